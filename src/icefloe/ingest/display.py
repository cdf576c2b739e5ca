"""A plan and its report as tables for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from icefloe.display.amounts import format_bytes, format_count
from icefloe.ingest.plan import IngestPlan
from icefloe.ingest.schema_report import SchemaReport

_COLOURS = {"error": "red", "handled": "yellow", "note": "dim"}


def report_table(report: SchemaReport, *, most: int = 50) -> Table:
    """Differences between the sources, the worst first."""
    table = Table(title="Differences between the sources")
    for heading in ("", "file", "variable", "what", "expected", "found", "what is done"):
        table.add_column(heading, overflow="fold")
    for severity, file, *rest in report.rows()[:most]:
        table.add_row(severity, file.rsplit("/", 1)[-1], *rest, style=_COLOURS[severity])
    if len(report.issues) > most:
        table.caption = f"and {len(report.issues) - most} more"
    return table


def arrays_table(plan: IngestPlan) -> Table:
    """The arrays of the target."""
    table = Table(title="Arrays")
    for heading in ("array", "stored", "type", "dimensions", "shape", "chunks", "number of chunks", "size"):
        table.add_column(heading, justify="left" if heading in ("array", "stored", "dimensions") else "right")
    for path, array in sorted(plan.arrays.items()):
        shape, chunks = (" × ".join(map(str, numbers)) or "scalar" for numbers in (array.shape, array.chunks))
        table.add_row(
            f"/{path}", array.kind, array.dtype.lstrip("<|=>"), ", ".join(array.dims), shape, chunks,
            f"{array.chunk_count:,}", format_bytes(array.nbytes),
        )  # fmt: skip
    return table


def plan_lines(plan: IngestPlan) -> Iterator[str]:
    """The plan in a few sentences."""
    native = [task for task in plan.tasks if task.kind == "native"]
    virtual = [task for task in plan.tasks if task.kind == "virtual"]
    yield f"{format_count(len(plan.sources), 'source')}, {format_bytes(plan.source_bytes)}, mode {plan.options.mode}"
    if native:
        size = sum(task.bytes for task in native)
        yield f"{_tasks(len(native))} values ({format_bytes(size)} decoded)"
    if virtual:
        yield f"{_tasks(len(virtual))} references"
    for prefix in plan.containers:
        yield f"readers authorise {prefix} (authorize_virtual_chunk_access)"
    for url in plan.skipped:
        yield f"left out: {url}"


def _tasks(count: int) -> str:
    return f"{format_count(count, 'task')} {'writes' if count == 1 else 'write'}"


class PlanView:
    """Prints a plan with rich: `console.print(PlanView(plan))`."""

    def __init__(self, plan: IngestPlan) -> None:
        self._plan = plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield arrays_table(self._plan)
        if self._plan.report.issues:
            yield report_table(self._plan.report)
        yield from plan_lines(self._plan)
