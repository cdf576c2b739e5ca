"""Runs benchmarks, prints one table, draws one picture: `python3 dev.py bench [MODULE ...] [--scale 0.1]`.

A run of all modules at full size writes its figures to docs/performance.md and docs/images/ratios.svg, with the table
of requests. `--write` writes the ratios of other runs too. `--all` then measures everything else that the page has.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Measured, Row, compile_sources, run_workload
from benchmarks.report import format_goal, publish_ratios

MODULES = ["engine", "sharding", "scale", "published", "spark_ingest", "requests"]
OTHERS = (
    ("limits", "--rounds", "7"),
    ("sharding",),
    ("durability",),
    ("writers", "--server", "seaweedfs"),
    ("writers", "--server", "seaweedfs", "--processes"),
    ("scale_100m",),
)
"""The modules that measure the other figures of the page, and their arguments."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench")
    parser.add_argument("modules", nargs="*", default=MODULES, help=f"which of {', '.join(MODULES)}")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the data  [default: 1]")
    parser.add_argument("--only", default="", help="run only workloads whose name contains this text")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each workload, the fastest counts  [default: 3]")
    parser.add_argument("--write", action="store_true", help="write the figures to docs/performance.md in any case")
    parser.add_argument("--all", action="store_true", help="then measure all other figures of docs/performance.md")
    arguments = parser.parse_args()
    compile_sources()
    load = os.getloadavg()
    console = Console(width=max(150, Console().width))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name in arguments.modules:
            module = importlib.import_module(f"benchmarks.{name}")
            for workload in module.WORKLOADS:
                if arguments.only in workload.name:
                    console.print(f"[dim]{workload.name}: {workload.question}")
                    rows += run_workload(name, workload, arguments.scale, Path(folder), arguments.rounds)
    console.print(make_table(rows))
    everything = set(arguments.modules) >= set(MODULES) and arguments.scale == 1 and not arguments.only
    if everything or arguments.write:
        publish_ratios(rows, load, runs=arguments.rounds, scale=arguments.scale)
    if everything:
        requests = importlib.import_module("benchmarks.requests")
        requests.publish(requests.run_all(), load)
    for module, *options in OTHERS if arguments.all else ():
        console.print(f"[dim]python -m benchmarks.{module} {' '.join(options)}")
        subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *options, "--write"], check=True)


def make_table(rows: list[Row]) -> Table:
    """Seconds, memory, objects and bytes of both packages. Ratios are official / ours: more than 1 is better."""
    official = importlib.metadata.version("icechunk")
    table = Table(title=f"official icechunk {official} beside icefloe; ratios are official / ours")
    for column in ("workload", "step"):
        table.add_column(column)
    for column in (
        "official",
        "ours",
        "ratio",
        "goal",
        "CPU s",
        "ratio",
        "peak MB",
        "ratio",
        "objects",
        "MB added",
        "also",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        if row.step.startswith("prepare"):
            continue
        table.add_row(
            row.workload,
            row.step,
            _amount(row.official, row.unit),
            _amount(row.ours, row.unit),
            _ratio(row, "seconds"),
            format_goal(row.goal),
            _pair(row, "cpu_seconds", "{:.2f}"),
            _ratio(row, "cpu_seconds"),
            _pair(row, "peak_mb", "{:.0f}"),
            _ratio(row, "peak_mb"),
            _pair(row, "objects", "{:.0f}"),
            _pair(row, "added_mb", "{:.2f}"),
            _facts(row),
        )
    return table


def _amount(measured: Measured | None, unit: str) -> str:
    if measured is None:
        return "-"
    return f"{measured.seconds:.3f} s" if unit == "s" else f"{measured.seconds:g} {unit}"


def _ratio(row: Row, name: str) -> str:
    if row.official is None or not getattr(row.ours, name):
        return "-"
    ratio = getattr(row.official, name) / getattr(row.ours, name)
    return f"[{'green' if ratio >= 1 else 'red'}]{ratio:.2f}"


def _pair(row: Row, name: str, form: str) -> str:
    if not getattr(row.ours, name) and not (row.official and getattr(row.official, name)):
        return ""
    official = "-" if row.official is None else form.format(getattr(row.official, name))
    return f"{official} | {form.format(getattr(row.ours, name))}"


def _facts(row: Row) -> str:
    told = []
    for name, value in row.ours.facts.items():
        other = "-" if row.official is None else f"{row.official.facts.get(name, 0):.0f}"
        told.append(f"{name} {other} | {value:.0f}")
    return ", ".join(told)


if __name__ == "__main__":
    main()
