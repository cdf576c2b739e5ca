"""How fast could a small operation be at most? Compares both packages with what no package can avoid.

`python -m benchmarks.limits [--rounds 5] [--write]`. Zarr itself takes part of every operation: it finds the chunks,
starts tasks in its own thread, and runs the codecs. This part is measured with the same calls on zarr's `MemoryStore`.
A read of a chunk is measured with a pipeline that does nothing instead, because Icefloe brings its own. A durable
commit also waits for the disk twice: before its ref is written, and after. The limit is the ratio that a package would
reach that takes no time itself. All ways take turns in one process, and the fastest round counts.
"""

from __future__ import annotations

import argparse
import operator
import os
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from rich.console import Console
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.registry import register_pipeline

import icechunk
import icefloe
from benchmarks.report import PAGE, markdown, replace_block, where_measured

Way = Callable[[int], float]
"""Runs an operation so many times and returns the seconds of one."""
HEADER = ("operation", "official ms", "Icefloe ms", "unavoidable ms", "ratio", "limit", "what is unavoidable")


@dataclass(frozen=True)
class Operation:
    """An operation with both packages, and the part of it that no package can avoid."""

    name: str
    repeat: int
    official: Way
    ours: Way
    alone: Way
    unavoidable: str

    def measure(self, rounds: int) -> list[str]:
        """Return the cells of a row."""
        best = [float("inf")] * 3
        for way in (self.official, self.ours, self.alone):  # what is loaded and started at first use is not measured
            way(max(self.repeat // 20, 1))
        for _ in range(rounds):
            for place, way in enumerate((self.official, self.ours, self.alone)):
                best[place] = min(best[place], way(self.repeat))
        official, ours, alone = best
        times = [f"{seconds * 1000:.3g}" for seconds in best]
        return [self.name, *times, f"{official / ours:.2f}", f"{official / alone:.1f}", self.unavoidable]


class Clock:
    """Adds up the seconds of some parts of an operation."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started


def create(library: Any, folder: Path, **options: Any) -> Any:
    """Create a repository in a folder of its own, with one small array `a`."""
    place = tempfile.mkdtemp(dir=folder)
    repo = library.Repository.create(library.local_filesystem_storage(place, **options))
    with repo.transaction("main", message="base") as store:
        fill(store)
    return repo


def fill(store: Any) -> None:
    """Create an array of a hundred chunks and write the first one."""
    zarr.create_array(store, name="a", shape=(1000,), chunks=(10,), dtype="i4")[0] = 1


def write_element(store: Any, index: int) -> None:
    zarr.open_array(store, path="a", mode="r+")[index % 1000] = index + 1


def commits(repo: Any) -> Way:
    def run(count: int) -> float:
        started = time.perf_counter()
        for index in range(count):
            session = repo.writable_session("main")
            write_element(session.store, index)
            session.commit("one element")
        return (time.perf_counter() - started) / count

    return run


def writes_alone(folder: Path | None) -> Way:
    """Zarr's part of a commit. With a folder, two small files are put on disk one after the other as well."""
    store = zarr.storage.MemoryStore()
    fill(store)

    def run(count: int) -> float:
        started = time.perf_counter()
        for index in range(count):
            write_element(store, index)
            for _ in range(2 if folder is not None else 0):
                put_on_disk(folder)
        return (time.perf_counter() - started) / count

    return run


def put_on_disk(folder: Path | None) -> None:
    fd, _ = tempfile.mkstemp(dir=folder)
    os.write(fd, b"x" * 500)
    os.fsync(fd)
    os.close(fd)


def opening(library: Any, folder: Path) -> Way:
    """Open a repository, open an array and read a chunk."""
    storage = library.local_filesystem_storage(str(folder))
    if not library.Repository.exists(storage):
        repo = library.Repository.create(storage)
        with repo.transaction("main", message="base") as store:
            fill(store)

    def run(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            repo = library.Repository.open(library.local_filesystem_storage(str(folder)))
            zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[0]
        return (time.perf_counter() - started) / count

    return run


def opening_alone() -> Way:
    store = zarr.storage.MemoryStore()
    fill(store)

    def run(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            zarr.open_array(store, path="a", mode="r")[0]
        return (time.perf_counter() - started) / count

    return run


def reading(store: Any) -> Way:
    """Read single chunks of 4 KiB at random."""
    array = zarr.open_array(store, path="small", mode="r")
    rows = np.random.default_rng(2).integers(0, array.shape[0], 1000).tolist()

    def run(count: int) -> float:
        started = time.perf_counter()
        for index in range(count):
            array[rows[index % len(rows)]]
        return (time.perf_counter() - started) / count

    return run


class EmptyPipeline(BatchedCodecPipeline):
    """Says that each chunk was read, and reads nothing. What is left of a read is zarr's own."""

    async def read(self, batch_info: Any, out: Any, drop_axes: tuple[int, ...] = ()) -> Any:
        return tuple({"status": "present"} for _ in batch_info)


register_pipeline(EmptyPipeline)


def reading_nothing() -> Way:
    """Select single chunks as `reading` does, without reading them."""
    store = fill_small(zarr.storage.MemoryStore())
    with zarr.config.set({"codec_pipeline.path": f"{EmptyPipeline.__module__}.{EmptyPipeline.__qualname__}"}):
        way = reading(store)
    return way


def fill_small(store: Any) -> Any:
    values = np.random.default_rng(1).integers(0, 2**31, (20_000, 1024), dtype="i4")
    array = zarr.create_array(store, name="small", shape=values.shape, chunks=(1, 1024), dtype="i4", compressors=None)
    array[:] = values
    return store


def small_chunks(library: Any, folder: Path) -> Any:
    repo = create(library, folder)
    with repo.transaction("main", message="small chunks") as store:
        fill_small(store)
    return repo.readonly_session("main").store


def specs(library: Any, count: int) -> list[Any]:
    return [
        library.VirtualChunkSpec([index], f"s3://bucket/{index // 1000}.nc", index % 1000 * 100, 100)
        for index in range(count)
    ]


def objects(library: Any, folder: Path) -> Way:
    """Set references that are Python objects, and commit."""

    def run(count: int) -> float:
        config = library.RepositoryConfig.default()
        config.set_virtual_chunk_container(
            library.VirtualChunkContainer("s3://bucket/", library.s3_store(region="us-east-1"))
        )
        repo = library.Repository.create(library.local_filesystem_storage(tempfile.mkdtemp(dir=folder)), config)
        session = repo.writable_session("main")
        zarr.create_array(session.store, name="v", shape=(count,), chunks=(1,), dtype="u1", compressors=None)
        chunks, clock = specs(library, count), Clock()
        with clock.timed():
            session.store.set_virtual_refs("v", chunks)
            session.commit("references")
        return clock.seconds / count

    return run


def attributes_alone(count: int) -> float:
    """Read the six attributes of each object and drop them."""
    chunks, clock = specs(icefloe, count), Clock()
    with clock.timed():
        for name in ("index", "location", "offset", "length", "etag_checksum", "last_updated_at_checksum"):
            deque(map(operator.attrgetter(name), chunks), maxlen=0)
    return clock.seconds / count


def operations(folder: Path) -> Iterator[Operation]:
    """The operations, prepared one after the other."""
    official = commits(create(icechunk, folder))
    zarr_part, disk = "zarr, on its `MemoryStore`", "and two `fsync`, one after the other"
    yield Operation(
        "commit one element, durable (official: not durable)",
        100,
        official,
        commits(create(icefloe, folder)),
        writes_alone(folder),
        f"{zarr_part}, {disk}",
    )
    yield Operation(
        "commit one element, not durable",
        100,
        official,
        commits(create(icefloe, folder, fsync=False)),
        writes_alone(None),
        zarr_part,
    )
    yield Operation(
        "open a repository and an array, read a chunk",
        100,
        opening(icechunk, folder / "official"),
        opening(icefloe, folder / "ours"),
        opening_alone(),
        zarr_part,
    )
    yield Operation(
        "read a chunk of 4 KiB",
        1000,
        reading(small_chunks(icechunk, folder)),
        reading(small_chunks(icefloe, folder)),
        reading_nothing(),
        "zarr, with a pipeline that reads nothing",
    )
    yield Operation(
        "set and commit a reference that is an object, one of a million",
        1_000_000,
        objects(icechunk, folder),
        objects(icefloe, folder),
        attributes_alone,
        "reading six attributes",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the fastest counts  [default: 5]")
    parser.add_argument("--write", action="store_true", help="write the figures to docs/performance.md")
    arguments = parser.parse_args()
    icechunk.set_logs_filter("error")
    warnings.simplefilter("ignore")
    load, console = os.getloadavg(), Console(width=150)
    with tempfile.TemporaryDirectory(prefix="limits-") as folder:
        rows = []
        for operation in operations(Path(folder)):
            rows.append(operation.measure(min(arguments.rounds, 3) if operation.repeat > 10_000 else arguments.rounds))
            console.print(dict(zip(HEADER, rows[-1], strict=True)))
    if arguments.write:
        text = f"{where_measured(load)} All ways took turns in one process. The fastest round counts."
        replace_block(PAGE, "limits", f"{text}\n\n{markdown(HEADER, rows)}")


if __name__ == "__main__":
    main()
