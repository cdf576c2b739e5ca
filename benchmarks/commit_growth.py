"""Does a small commit take the same time at the start of a branch and after thousands of commits?

Run it by itself: `python -m benchmarks.commit_growth [--commits 2000]`. It prints the bytes
and the mean processor time of the commits around the hundredth one, of the last commits, and of one-chunk commits in a
repository with many other arrays. Other programs on the machine hardly change processor time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time

import icefloe
from icefloe.blocking import run_blocking
from icefloe.storage.build import local_filesystem_storage
from icefloe.testing.storages import CountingStorage

WINDOW = 50
GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
ARRAY = json.dumps(
    {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [16],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {"units": "K"},
    }
).encode()


def make_repository(folder: str, arrays: int) -> tuple[icefloe.Repository, CountingStorage]:
    """A repository with some arrays of one written chunk each."""
    storage = CountingStorage(local_filesystem_storage(folder))
    repo = icefloe.Repository.create(storage)
    session = repo.writable_session("main")

    async def write() -> None:
        await session.keyspace.write("zarr.json", GROUP)
        for number in range(arrays):
            await session.keyspace.write(f"a{number:05d}/zarr.json", ARRAY)
            await session.keyspace.write(f"a{number:05d}/c/0", b"\0\0\0\1")

    run_blocking(write())
    session.commit("arrays")
    return repo, storage


def commit(repo: icefloe.Repository, storage: CountingStorage, number: int) -> tuple[float, int]:
    """Seconds of processor time and bytes of one commit of one chunk."""
    storage.counts.reset()
    started = time.process_time()
    session = repo.writable_session("main")
    run_blocking(session.keyspace.write(f"a00000/c/{number % 16}", number.to_bytes(4, "little")))
    session.commit(f"commit {number}")
    return time.process_time() - started, storage.counts.writes.sent_bytes


def report(name: str, costs: list[tuple[float, int]]) -> tuple[float, float]:
    seconds = statistics.fmean(cost[0] for cost in costs)
    written = statistics.median(cost[1] for cost in costs)
    print(f"{name:<42} {1e3 * seconds:8.2f} ms  {written:10.0f} bytes")
    return seconds, written


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.commit_growth")
    parser.add_argument("--commits", type=int, default=2000, help="number of commits  [default: 2000]")
    parser.add_argument("--arrays", type=int, default=5760, help="number of other arrays  [default: 5760]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repo, storage = make_repository(folder, 1)
        costs = [commit(repo, storage, number) for number in range(arguments.commits)]
    early = report("around commit 100", costs[100 - WINDOW // 2 : 100 + WINDOW // 2])
    late = report(f"up to commit {arguments.commits}", costs[-WINDOW:])
    print(f"{'growth':<42} {late[0] / early[0]:8.2f} x   {late[1] / early[1]:10.2f} x")
    with tempfile.TemporaryDirectory() as folder:
        repo, storage = make_repository(folder, arguments.arrays)
        report(f"one chunk next to {arguments.arrays} arrays", [commit(repo, storage, n) for n in range(20)])


if __name__ == "__main__":
    main()
