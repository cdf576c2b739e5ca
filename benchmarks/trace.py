"""Count the files of the package that one operation enters: `python3 dev.py trace [OPERATION ...] [--files]`.

A reader who follows an operation opens these files. The limits keep the way short. Each operation runs twice in a
process of its own, and the second run is traced: imports and one-time set-up do not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

LIMITS = {"write and commit": 41, "open and read": 42, "collect garbage": 31, "ingest": 68, "scan a table": 45}
"""Files that each operation may enter, on local files in the default generation."""


class Tracer:
    """Which files of the package are entered, by which functions, and how often control changes between files."""

    def __init__(self) -> None:
        import icefloe

        self._root = str(Path(icefloe.__file__).parent)
        self._last: dict[int, str] = {}
        self.active = False
        self.files: set[str] = set()
        self.functions: set[tuple[str, str]] = set()
        self.changes = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not self.active:
            return
        code = frame.f_code
        if not code.co_filename.startswith(self._root) or code.co_name == "<module>":
            return
        name = code.co_filename[len(self._root) + 1 :]
        self.files.add(name)
        self.functions.add((name, code.co_qualname))
        thread = threading.get_ident()
        if self._last.get(thread) not in (None, name):
            self.changes += 1
        self._last[thread] = name

    def trace(self, operation: Callable[[], object]) -> None:
        """Run an operation and count what it enters."""
        self.active = True
        try:
            operation()
        finally:
            self.active = False


def prepare_commit(folder: Path) -> Callable[[], object]:
    """Write an array and commit it."""
    import zarr

    import icefloe

    repo = icefloe.Repository.create(str(folder / "repo"))
    with repo.transaction("main", message="an array") as store:
        zarr.create_group(store).create_array("a", shape=(8, 8), chunks=(4, 4), dtype="f4")

    def operation() -> None:
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a")[:] = 1.5
        session.commit("values")

    return operation


def prepare_read(folder: Path) -> Callable[[], object]:
    """Open a repository and read an array."""
    import zarr

    import icefloe

    prepare_commit(folder)()

    def operation() -> None:
        repo = icefloe.Repository.open(str(folder / "repo"))
        zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]

    return operation


def prepare_collection(folder: Path) -> Callable[[], object]:
    """Collect the garbage of a repository that has some."""
    import datetime as dt

    import icefloe

    write = prepare_commit(folder)
    for _ in range(3):
        write()
    repo = icefloe.Repository.open(str(folder / "repo"))
    repo.expire_snapshots(dt.datetime.now(dt.UTC))
    return lambda: repo.garbage_collect(dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1))


def prepare_ingest(folder: Path) -> Callable[[], object]:
    """Ingest two NetCDF files without Spark."""
    import numpy as np
    import xarray as xr

    import icefloe
    from icefloe.ingest import IngestOptions, ingest_local

    for day in range(2):
        values = np.full((4, 6), day, dtype="f4")
        xr.Dataset({"t": (("time", "x"), values)}, {"time": np.arange(4) + 4 * day}).to_netcdf(folder / f"{day}.nc")
    count = iter(range(100))

    def operation() -> None:
        repo = icefloe.Repository.create(str(folder / f"target-{next(count)}"))
        ingest_local([str(folder / "0.nc"), str(folder / "1.nc")], repo, IngestOptions(concat_dims=("time",)))

    return operation


def prepare_scan(folder: Path) -> Callable[[], object]:
    """Scan an array as a table without Spark."""
    from icefloe.tables.reading import scan_batches
    from icefloe.tables.scans import plan_scan
    from icefloe.tables.table_options import normalise_options, parse_options

    prepare_commit(folder)()

    def operation() -> None:
        options = parse_options(normalise_options({"path": str(folder / "repo"), "variables": "a"}))
        plan = plan_scan(options)
        for part in plan.parts:
            list(scan_batches(plan.scan, part))

    return operation


OPERATIONS: dict[str, Callable[[Path], Callable[[], object]]] = {
    "write and commit": prepare_commit,
    "open and read": prepare_read,
    "collect garbage": prepare_collection,
    "ingest": prepare_ingest,
    "scan a table": prepare_scan,
}


def trace_here(name: str) -> dict[str, Any]:
    """Trace an operation in this process."""
    tracer = Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    with tempfile.TemporaryDirectory() as folder:
        operation = OPERATIONS[name](Path(folder))
        operation()
        tracer.trace(operation)
    sys.setprofile(None)
    return {
        "files": sorted(tracer.files),
        "at_most": LIMITS[name],
        "functions": len(tracer.functions),
        "changes": tracer.changes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="dev.py trace", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("operations", nargs="*", metavar="OPERATION", help=f"some of: {', '.join(OPERATIONS)}")
    parser.add_argument("--files", action="store_true", help="list the files too")
    parser.add_argument("--here", metavar="OPERATION", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(trace_here(arguments.here)))
        return 0
    table = Table("operation", "files", "at most", "functions", "changes of file", title="Files that operations enter")
    listed: list[str] = []
    over = False
    for name in arguments.operations or OPERATIONS:
        command = [sys.executable, "-m", "benchmarks.trace", "--here", name]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        over |= len(found["files"]) > found["at_most"]
        table.add_row(name, *map(str, (len(found["files"]), found["at_most"], found["functions"], found["changes"])))
        listed += [f"{name}:", *(f"  {each}" for each in found["files"])]
    console = Console()
    if arguments.files:
        console.print("\n".join(listed), highlight=False, markup=False)
    console.print(table)
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
