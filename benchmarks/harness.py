"""Runs the same steps with both libraries, each in a new process, and compares time, memory, objects and bytes."""

from __future__ import annotations

import compileall
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

OURS, OFFICIAL = "icefloe", "icechunk"


@dataclass
class Meter:
    """The measurements of one step: wall time and processor time inside `timed`, and counts."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    facts: dict[str, float] = field(default_factory=dict)
    is_one_process: bool = True
    """Whether the processor time and the memory of this process are those of the step. Spark has more processes."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        started, worked = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started
            self.cpu_seconds += time.process_time() - worked

    def count(self, name: str, value: float) -> None:
        self.facts[name] = self.facts.get(name, 0) + value


def compile_sources() -> None:
    """Compile the package, as an installation does. Otherwise every new process would compile what was edited."""
    for folder in ("src", "benchmarks"):
        compileall.compile_dir(Path(__file__).resolve().parents[1] / folder, quiet=1)


Step = Callable[[ModuleType, Path, Meter, float], None]
"""A step gets the library, the folder that all steps of a workload share, a meter and the scale (1 = full size)."""


@dataclass(frozen=True)
class Workload:
    """Steps that run one after the other, each in its own process."""

    name: str
    question: str
    steps: Mapping[str, Step]
    goals: Mapping[str, float | str] = field(default_factory=dict)
    """The ratio of wall time, official / ours, that a step is to reach. A text is a goal of another kind."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """The facts of steps that have a row of their own in the table, and their units."""


@dataclass(frozen=True)
class Measured:
    """The result of one step with one library. Objects and bytes are those that it added to the folder."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    objects: int
    added_mb: float
    facts: Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """One step in both libraries, or one fact of a step."""

    workload: str
    step: str
    official: Measured | None
    ours: Measured
    goal: float | str | None = None
    unit: str = "s"
    """The unit of `seconds`. In a row of a fact, `seconds` is its value."""


def run_workload(module: str, workload: Workload, scale: float, root: Path, rounds: int = 1) -> list[Row]:
    """Run all steps. The libraries take turns. The fastest of several rounds counts for each step.

    Every round has a new folder below `root`, and nothing is deleted: for some time after files were deleted, ext4
    needs several times as long to create new ones.
    """
    best: dict[tuple[str, str], Measured] = {}
    for _ in range(rounds):
        for library in (OFFICIAL, OURS):
            folder = Path(tempfile.mkdtemp(prefix=f"{library}-", dir=root))
            for step in workload.steps:
                measured = _run_step(module, workload.name, step, library, folder, scale)
                key = (step, library)
                if measured is not None and (key not in best or measured.seconds < best[key].seconds):
                    best[key] = measured
    rows = []
    for step in workload.steps:
        row = Row(workload.name, step, best.get((step, OFFICIAL)), best[step, OURS], workload.goals.get(step))
        rows += [row, *(_row_of_fact(row, name, workload) for name in row.ours.facts if name in workload.facts)]
    return rows


def _row_of_fact(row: Row, name: str, workload: Workload) -> Row:
    """The row of a fact that both libraries counted."""
    official, ours = (
        None if each is None or name not in each.facts else Measured(each.facts[name], 0.0, 0.0, 0, 0.0, {})
        for each in (row.official, row.ours)
    )
    assert ours is not None
    return Row(row.workload, name, official, ours, workload.goals.get(name), workload.facts[name])


def _run_step(module: str, workload: str, step: str, library: str, folder: Path, scale: float) -> Measured | None:
    before = _usage(folder)
    os.sync()  # what the other library has left to be written must not slow down this one
    command = [sys.executable, "-m", "benchmarks.harness", module, workload, step, library, str(folder), str(scale)]
    # Installed packages have their bytecode. Without it, the first use of a module would compile it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["ICECHUNK_LOG"] = "error"
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        if library == OFFICIAL:
            print(f"  {workload}/{step}: the official package failed: {done.stderr.strip().splitlines()[-1:]}")
            return None
        raise RuntimeError(f"{workload}/{step} failed:\n{done.stderr}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    after = _usage(folder)
    return Measured(
        told["seconds"],
        told["cpu_seconds"],
        told["peak_mb"],
        after[0] - before[0],
        (after[1] - before[1]) / 1e6,
        told["facts"],
    )


def _usage(folder: Path) -> tuple[int, int]:
    sizes = [p.stat().st_size for p in folder.rglob("*") if p.is_file()]
    return len(sizes), sum(sizes)


def find_workload(module: str, name: str) -> Workload:
    """A workload of a module of this folder, by name."""
    loaded = __import__(f"benchmarks.{module}", fromlist=["WORKLOADS"])
    return next(w for w in loaded.WORKLOADS if w.name == name)


def _child(arguments: list[str]) -> None:
    module, workload, step, library, folder, scale = arguments
    found = find_workload(module, workload)
    meter = Meter()
    loaded = __import__(library)
    loaded.Repository.exists  # noqa: B018 - whatever is loaded on first use is loaded now, as the other library is
    found.steps[step](loaded, Path(folder), meter, float(scale))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cpu_seconds = meter.cpu_seconds
    if not meter.is_one_process:
        cpu_seconds = peak_mb = 0.0
    told = {"seconds": meter.seconds, "cpu_seconds": cpu_seconds, "peak_mb": peak_mb, "facts": meter.facts}
    print(json.dumps(told))


def open_repository(library: Any, folder: Path, **options: Any) -> Any:
    """The repository of a workload, opened."""
    return library.Repository.open(library.local_filesystem_storage(str(folder / "repo")), **options)


def create_repository(library: Any, folder: Path, **options: Any) -> Any:
    """The repository of a workload, made."""
    return library.Repository.create(library.local_filesystem_storage(str(folder / "repo")), **options)


if __name__ == "__main__":
    _child(sys.argv[1:])
