"""What differs between the sources, file by file, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from icefloe.display.amounts import format_count
from icefloe.errors import InvalidInputError, printable

GAP = "gap"
"""The facet of a difference that is nobody's fault: values missing between neighbours of a joined dimension."""

Severity: TypeAlias = Literal["error", "handled", "note"]


@dataclass(frozen=True, slots=True)
class SchemaIssue:
    """One difference: in which file and variable, what was expected and found, and what is done about it."""

    severity: Severity
    file: str
    variable: str
    facet: str
    expected: str
    found: str
    resolution: str

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.file, self.variable) if part)
        told = f"{self.facet}: expected {self.expected}, found {self.found}; {self.resolution}"
        return printable(f"{place}: {told}" if place else f"{self.found}; {self.resolution}")


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """Every difference found in the first pass."""

    issues: tuple[SchemaIssue, ...] = ()

    @property
    def errors(self) -> tuple[SchemaIssue, ...]:
        return tuple(issue for issue in self.issues if issue.severity == "error")

    def raise_on_errors(self) -> None:
        """Refuse the ingest if a difference cannot be dealt with."""
        errors = self.errors
        if errors:
            shown = "\n".join(f"  {issue}" for issue in errors[:20])
            more = f"\n  and {len(errors) - 20} more" if len(errors) > 20 else ""
            count = format_count(len(errors), "difference")
            raise InvalidInputError(
                f"the sources do not fit together ({count}); nothing was written:\n{shown}{more}", report=self
            )

    def rows(self) -> list[tuple[str, ...]]:
        """For tables: severity, file, variable, facet, expected, found, resolution."""
        return [(i.severity, i.file, i.variable, i.facet, i.expected, i.found, i.resolution) for i in self.issues]


def join_reports(reports: Sequence[SchemaReport]) -> SchemaReport:
    """One report of several, the worst first."""
    rank = {"error": 0, "handled": 1, "note": 2}
    issues = sorted((i for report in reports for i in report.issues), key=lambda i: rank[i.severity])
    return SchemaReport(tuple(issues))
