"""What grows with the number of references? One array and a thousand arrays with 1, 10 and 100 million references.

Run with `python -m benchmarks.scale_100m [--sizes 1e6 1e7 1e8] [--layouts one thousand] [--write]`. Every step runs in
a new process on the same repository on local files. The table shows wall time, processor time, the highest memory of
the process above what it had after its imports, and the requests and bytes that went to and came from storage.

A long run can be done in pieces. `--results FILE` keeps measurements and adds to those that are there. `--folder PATH`
keeps the repositories, so that a later call runs only `--steps` on them. A repository that is missing is filled first.
`--missing` skips what the results have. `--write` replaces the block of docs/performance.md, the picture, and the
cells that were measured in scale_100m.json. With `--sizes` and no number, it writes them from the results alone.

The official package is not part of this benchmark. It is in `benchmarks.published`, with sizes that it can finish.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zarr

import icefloe
from benchmarks import report
from benchmarks.harness import compile_sources
from icefloe.storage.build import local_filesystem_storage
from icefloe.testing.storages import CountingStorage

PREFIX = "s3://archive/"
PER_FILE = 1000
"""References to one file, in an array of files x 1,000 chunks."""
ARRAYS = 1000
BLOCK = 4_000_000
"""References of one call."""
LAYOUTS = {"one": "one array", "thousand": "1,000 arrays"}


@dataclass
class Meter:
    """What one step took."""

    storage: CountingStorage
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    requests: int = 0
    sent_mb: float = 0.0
    received_mb: float = 0.0
    facts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self) -> Iterator[None]:
        self.storage.counts.reset()
        before, started, worked = resident_mb(), time.perf_counter(), time.process_time()
        yield
        self.seconds += time.perf_counter() - started
        self.cpu_seconds += time.process_time() - worked
        self.peak_mb = max(self.peak_mb, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before)
        total = self.storage.counts.total
        self.requests += total.requests
        self.sent_mb += total.sent_bytes / 1e6
        self.received_mb += total.received_bytes / 1e6


def resident_mb() -> float:
    """The memory of this process now."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


@dataclass(frozen=True)
class Case:
    """A repository with so many references in one array or in a thousand."""

    folder: Path
    layout: str
    count: int

    @property
    def arrays(self) -> list[str]:
        return ["v"] if self.layout == "one" else [f"v{number:04d}" for number in range(ARRAYS)]

    @property
    def grid(self) -> tuple[int, int]:
        each = self.count // len(self.arrays)
        width = PER_FILE if self.layout == "one" else 100
        return each // width, width

    @property
    def source(self) -> Path:
        return self.folder / "source"

    def config(self) -> Any:
        config = icefloe.RepositoryConfig.default()
        store = icefloe.s3_store(region="us-east-1")
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(PREFIX, store))
        local = icefloe.local_filesystem_store(str(self.source))
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(f"file://{self.source}/", local))
        return config

    def open(self, storage: CountingStorage) -> icefloe.Repository:
        allowed = {f"file://{self.source}/": None}
        return icefloe.Repository.open(storage, authorize_virtual_chunk_access=allowed)


def begin(case: Case, storage: CountingStorage) -> tuple[icefloe.Repository, Any]:
    """A repository with empty arrays, and a session to fill them."""
    case.source.mkdir(parents=True, exist_ok=True)
    (case.source / "first.bin").write_bytes(bytes(range(100)) * 10)
    repo = icefloe.Repository.create(storage, case.config())
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    for name in case.arrays:
        root.create_array(name, shape=case.grid, chunks=(1, 1), dtype="u1", compressors=None, fill_value=0)
    return repo, session


def blocks(case: Case) -> Iterator[tuple[str, tuple[Any, ...], tuple[int, int]]]:
    """The columns of all references, a few million at a time: array, arguments of the call, and first corner."""
    rows, width = case.grid
    block = max(1, min(rows, BLOCK // width))
    offsets, lengths = np.arange(block * width, dtype="u8") % width, np.full(block * width, 1, dtype="u8")
    codes = np.repeat(np.arange(block, dtype="i4"), width)
    for number, name in enumerate(case.arrays):
        for first in range(0, rows, block):
            size = min(block, rows - first)
            files = [f"{PREFIX}{number:04d}/{row:08d}.nc" for row in range(first, first + size)]
            if first == 0:
                files[0] = f"file://{case.source}/first.bin"
            locations = pa.DictionaryArray.from_arrays(codes[: size * width], files)
            count = size * width
            yield f"/{name}", ((size, width), locations, offsets[:count], lengths[:count]), (first, 0)


def set_and_commit(case: Case, meter: Meter) -> None:
    """Set all references in one session, in calls of a few million, and commit once. The session holds all of them."""
    repo, session = begin(case, meter.storage)
    with meter.timed():
        for path, columns, corner in blocks(case):
            session.store.set_virtual_refs_arr(path, *columns, arr_offset=corner)
        started = time.perf_counter()
        session.commit("references")
        meter.facts["commit_seconds"] = time.perf_counter() - started
    meter.facts["manifests"] = len(repo.list_manifest_files(repo.lookup_branch("main")))


def set_in_parts(case: Case, meter: Meter) -> None:
    """Set all references in forks that write their manifests, and commit once. Only one block is in memory."""
    if (case.folder / "repo").exists():
        meter.storage = CountingStorage(local_filesystem_storage(str(case.folder / "parts")))
    repo, session = begin(case, meter.storage)
    with meter.timed():
        fork, count = session.fork(), 0
        for path, columns, corner in blocks(case):
            fork.store.set_virtual_refs_arr(path, *columns, arr_offset=corner)
            count += len(columns[2])
            if count >= BLOCK:
                session.link_parts([fork.write_parts()])
                fork, count = session.fork(), 0
        session.link_parts([fork.write_parts()])
        started = time.perf_counter()
        session.commit("references")
        meter.facts["commit_seconds"] = time.perf_counter() - started
    meter.facts["manifests"] = len(repo.list_manifest_files(repo.lookup_branch("main")))


def read_first_chunk(case: Case, meter: Meter) -> None:
    """Open the repository and an array, and read a chunk."""
    with meter.timed():
        session = case.open(meter.storage).readonly_session("main")
        found = zarr.open_array(session.store, path=case.arrays[-1], mode="r")[0, 7]
    assert found == 7


def commit_one_chunk(case: Case, meter: Meter) -> None:
    """Change one reference in the middle and commit."""
    repo = case.open(meter.storage)
    rows, width = case.grid
    with meter.timed():
        session = repo.writable_session("main")
        key = f"{case.arrays[len(case.arrays) // 2]}/c/{rows // 2}/{width // 2}"
        session.store.set_virtual_ref(key, f"{PREFIX}other.nc", offset=0, length=10)
        session.commit("one chunk")


def list_all(case: Case, meter: Meter) -> None:
    """Iterate over the columns of all references."""
    session = case.open(meter.storage).readonly_session("main")

    async def count() -> int:
        total = 0
        for name in case.arrays:
            async for coords, *_ in session.store.array_chunk_iterator(f"/{name}"):
                total += len(coords)
        return total

    with meter.timed():
        found = asyncio.run(count())
    rows, width = case.grid
    assert found == rows * width * len(case.arrays)


def diff_one_chunk(case: Case, meter: Meter) -> None:
    """The changes of the commit of one chunk."""
    repo = case.open(meter.storage)
    ids = [info.id for info in repo.ancestry(branch="main")]
    with meter.timed():
        diff = repo.diff(from_snapshot_id=ids[1], to_snapshot_id=ids[0])
    assert sum(len(coords) for coords in diff.chunk_coords.values()) == 1


def diff_all(case: Case, meter: Meter) -> None:
    """The changes of the commit of all references."""
    repo = case.open(meter.storage)
    ids = [info.id for info in repo.ancestry(branch="main")]
    with meter.timed():
        diff = repo.diff(from_snapshot_id=ids[-1], to_snapshot_id=ids[-2])
        meter.facts["chunks"] = sum(len(coords) for coords in diff.chunk_coords.values())


def expire_and_collect(case: Case, meter: Meter) -> None:
    """Expire all snapshots but the newest, and collect what only they reached."""
    repo = case.open(meter.storage)
    now = dt.datetime.now(dt.UTC)
    with meter.timed():
        repo.expire_snapshots(now)
        summary = repo.garbage_collect(now)
    meter.facts["manifests"] = summary.manifests_deleted


def verify(case: Case, meter: Meter) -> None:
    """Check all metadata that is reachable. Files of virtual chunks are in containers without authorization."""
    repo = icefloe.Repository.open(meter.storage)
    with meter.timed():
        found = repo.verify()
    assert found.is_clean, str(found)


def compact(case: Case, meter: Meter) -> None:
    """Look for small chunks to pack. Virtual references are left alone."""
    repo = case.open(meter.storage)
    with meter.timed():
        repo.compact("main")


def rewrite_manifests(case: Case, meter: Meter) -> None:
    """Split all manifests again, into cells of half the size."""
    config = case.config()
    kept = [each for each in icefloe.ManifestConfig().sets if each.name != "default"]
    config.manifest = icefloe.ManifestConfig(sets=(*kept, icefloe.ManifestSet.default(split_size=8192)))
    repo = icefloe.Repository.open(meter.storage, config)
    with meter.timed():
        repo.rewrite_manifests("smaller manifests", branch="main")


STEPS: dict[str, Callable[[Case, Meter], None]] = {
    "set + commit": set_and_commit,
    "set + commit in parts": set_in_parts,
    "cold open + first chunk": read_first_chunk,
    "one-chunk commit": commit_one_chunk,
    "list all": list_all,
    "diff of the one-chunk commit": diff_one_chunk,
    "diff of all": diff_all,
    "compact": compact,
    "rewrite manifests": rewrite_manifests,
    "expire + collect": expire_and_collect,
    "verify": verify,
}


def run_child(case: Case, step: str) -> None:
    """Run a step in this process and print what it took."""
    meter = Meter(CountingStorage(local_filesystem_storage(str(case.folder / "repo"))))
    STEPS[step](case, meter)
    told = {name: getattr(meter, name) for name in MEASURED}
    print(json.dumps({**told, **meter.facts}))


MEASURED = ("seconds", "cpu_seconds", "peak_mb", "requests", "sent_mb", "received_mb")
Results = dict[str, dict[str, Any]]
"""What was measured, by `layout/count/step`."""


@dataclass(frozen=True)
class Run:
    """Which cells of the table are measured, and what is kept."""

    layouts: list[str]
    sizes: list[int]
    steps: list[str]
    store: Path | None = None
    folder: Path | None = None
    limit: int = 3600
    only_missing: bool = False

    def execute(self, results: Results) -> None:
        """Run the steps for each layout and size, and add what they took to the results."""
        for layout in self.layouts:
            for count in self.sizes:
                wanted = self._wanted(layout, count, results)
                if not wanted:
                    continue
                if self.folder is not None:
                    (below := self.folder / f"{layout}-{count}").mkdir(parents=True, exist_ok=True)
                    self._execute(Case(below, layout, count), wanted, results)
                    continue
                with tempfile.TemporaryDirectory(prefix="bench-") as below:
                    self._execute(Case(Path(below), layout, count), wanted, results)

    def _wanted(self, layout: str, count: int, results: Results) -> list[str]:
        """The steps to run. Without a folder, those before a missing one run again: it needs what they wrote."""
        if not self.only_missing:
            return list(self.steps)
        missing = [step for step in self.steps if f"{layout}/{count}/{step}" not in results]
        if self.folder is not None or not missing:
            return missing
        return list(self.steps[: self.steps.index(missing[-1]) + 1])

    def _execute(self, case: Case, steps: list[str], results: Results) -> None:
        """Run steps on one repository. A step that fails or takes too long ends them."""
        if not (case.folder / "repo").exists() and not FILLING.intersection(steps):
            steps = ["set + commit in parts", *steps]
        for step in steps:
            title = f"{LAYOUTS[case.layout]:>12} {case.count:>12,}  {step:<30}"
            # These two begin with an empty repository.
            for name in ("repo", "parts") if step == "set + commit" else ("parts",):
                shutil.rmtree(case.folder / name, ignore_errors=True)
            command = [sys.executable, "-m", "benchmarks.scale_100m", "--child"]
            command += [case.layout, str(case.count), step, str(case.folder)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=self.limit)
            except subprocess.TimeoutExpired:
                print(f"{title} stopped after {self.limit} s", flush=True)
                return
            if done.returncode:
                print(f"{title} failed\n{done.stderr[-2000:]}", flush=True)
                return
            told = json.loads(done.stdout.strip().splitlines()[-1])
            told["load"], told["commit"] = os.getloadavg()[0], report.commit()
            results[f"{case.layout}/{case.count}/{step}"] = told
            print(f"{title} {_line(told)}", flush=True)
            if self.store is not None:
                self.store.write_text(json.dumps(results, indent=1) + "\n")


FILLING = frozenset({"set + commit", "set + commit in parts"})
"""Steps that fill a repository."""


def load_results(store: Path | None) -> Results:
    """What earlier runs measured."""
    found: Results = json.loads(store.read_text()) if store is not None and store.exists() else {}
    return found


def _line(told: dict[str, Any]) -> str:
    extra = {name: round(value, 1) for name, value in told.items() if name not in (*MEASURED, "load", "commit")}
    return (
        f"{told['seconds']:8.2f} s {told['cpu_seconds']:8.2f} CPU s {told['peak_mb']:7.0f} MB {told['requests']:7,} "
        f"requests {told['sent_mb']:8.2f} MB sent {told['received_mb']:8.2f} MB received {extra or ''}"
    )


def table_of(results: Results) -> str:
    """The measurements as a Markdown table: a row for each step and layout, with all sizes in each cell."""
    sizes = sorted({int(key.split("/")[1]) for key in results})
    header = ["step", "arrays", *(f"{_short(size)}: s (CPU s), MB, MB moved" for size in sizes)]
    rows = []
    for layout, title in LAYOUTS.items():
        for step in STEPS:
            found = [results.get(f"{layout}/{size}/{step}") for size in sizes]
            if any(found):
                rows.append([step, title, *("-" if told is None else _cell(told) for told in found)])
    return report.markdown(header, rows, texts=2)


def _short(size: int) -> str:
    return f"{size // 1_000_000} M" if size >= 1_000_000 else f"{size:,}"


def _cell(told: dict[str, Any]) -> str:
    moved = told["sent_mb"] + told["received_mb"]
    return f"{_digits(told['seconds'])} ({_digits(told['cpu_seconds'])}), {told['peak_mb']:,.0f}, {_digits(moved)}"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def draw_growth(results: Results, target: Path) -> None:
    """Seconds and memory over the number of references, on logarithmic axes, a line for each step."""
    figure = report.figure_of(13, 8)
    axes = figure.subplots(2, 2, sharex=True)
    for row, (layout, title) in enumerate(LAYOUTS.items()):
        for column, (name, label, least) in enumerate(
            (("seconds", "seconds", 0.001), ("peak_mb", "MB above the start", 1.0))
        ):
            here = axes[row][column]
            for number, step in enumerate(STEPS):
                points = sorted(
                    (int(key.split("/")[1]), max(told[name], least))
                    for key, told in results.items()
                    if key.startswith(f"{layout}/") and key.endswith(f"/{step}")
                )
                if points:
                    looks = {"marker": "os^vDP*Xd<>"[number % 11], "color": f"C{number % 10}"}
                    looks["linestyle"] = "-" if number < 10 else "--"
                    here.plot(*zip(*points, strict=True), label=step, linewidth=1.3, markersize=4, **looks)
            here.set_xscale("log")
            here.set_yscale("log")
            here.set_title(f"{title}: {label}", fontsize=10, loc="left")
            here.grid(alpha=0.3)
            here.spines[["top", "right"]].set_visible(False)
    for here in axes[1]:
        here.set_xlabel("references")
    # A layout may lack steps. The legend has every line once, beside the axes.
    lines = {line.get_label(): line for here in axes.flat for line in here.get_lines()}
    figure.legend(lines.values(), lines.keys(), loc="outside right upper", frameon=False, fontsize=8)
    report.save(figure, target)


def publish(results: Results, load: tuple[float, float, float]) -> None:
    """Write the table and the picture of the page."""
    loads = [told["load"] for told in results.values()]
    commits = sorted({told.get("commit", "unknown") for told in results.values()})
    text = (
        f"{report.where_measured(load)} During the steps, it was between {min(loads):.1f} and {max(loads):.1f}. Each "
        f"step ran once, at commit {', '.join(commits)}.\n\n{table_of(results)}\n\n"
        "![Seconds and memory of each step over the number of references](images/growth.svg)"
    )
    report.replace_block(report.PAGE, "growth", text)
    target = report.IMAGES / "growth.svg"
    draw_growth(results, target)
    FIGURES.write_text(json.dumps(results, indent=1) + "\n")


FIGURES = Path(__file__).with_name("scale_100m.json")
"""The measurements behind the picture of the page."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_100m", description=__doc__)
    parser.add_argument("--sizes", nargs="*", type=float, default=[1e6, 1e7, 1e8], help="numbers of references")
    parser.add_argument("--layouts", nargs="*", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=list(STEPS))
    parser.add_argument("--results", type=Path, help="a file to keep measurements in, and to continue from")
    parser.add_argument(
        "--folder", type=Path, help="keep the repositories in this folder, and use those that are there"
    )
    parser.add_argument("--missing", action="store_true", help="run only what the results do not have")
    parser.add_argument("--limit", type=int, default=3600, help="seconds that a step may take  [default: 3600]")
    parser.add_argument("--write", action="store_true", help="write docs/performance.md and its picture")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        layout, count, step, folder = arguments.child
        run_child(Case(Path(folder), layout, int(count)), step)
        return
    compile_sources()
    load = os.getloadavg()
    sizes = [int(size) for size in arguments.sizes]
    results = load_results(arguments.results)
    Run(
        arguments.layouts,
        sizes,
        [step for step in STEPS if step in arguments.steps],
        arguments.results,
        arguments.folder,
        arguments.limit,
        arguments.missing,
    ).execute(results)
    print(table_of(results))
    if arguments.write:
        publish(load_results(FIGURES) | results, load)


if __name__ == "__main__":
    main()
