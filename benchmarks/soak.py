"""Several processes work on one repository, on a real S3 server with injected faults.

    python3 -m benchmarks.soak --minutes 10 --generation all

Each writer has its own chunks of one array and writes increasing numbers to them. A committed value must stay readable.
If the response to a commit is lost, the writer reads the branch. Some writers write directly, others through forks in
another process. A service keeps one repository open for the whole time. It reads and commits, and reads again from old
sessions. A maintenance job in another process expires, compacts, rewrites manifests and collects garbage. The program
prints the counts for each generation. It exits with 1 if a commit was lost, a read was wrong, or verify finds damage.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import multiprocessing
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import zarr
from tests.servers.s3 import S3Server
from tests.servers.seaweedfs import seaweedfs_missing, seaweedfs_server

import icefloe
from benchmarks.proxy import body_length, read_body
from icefloe.errors import ConflictError, IcefloeError, OutcomeUnknownError, StorageError

CHUNK = 64
WIDTH = 2 * CHUNK
"""Elements that a writer owns: two chunks."""
GENERATIONS = ("repository", "icechunk2", "icechunk1", "store", "dataset")
GRACE = dt.timedelta(seconds=45)


@dataclass
class UnkindProxy:
    """A proxy that fails a share of the requests: status 500 or 503, delays, lost requests and lost responses."""

    target: str
    rate: float
    endpoint_url: str = ""
    met: Counter[str] = field(default_factory=Counter)
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = urlsplit(self.target)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, TimeoutError):
            there, back = await asyncio.open_connection(address.hostname, address.port, limit=1 << 22)
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    body = await reader.readexactly(body_length(head))
                    self.met["requests"] += 1
                    fault = self._draw()
                    if fault in ("500", "503"):
                        reason = b"500 Internal Server Error" if fault == "500" else b"503 Slow Down"
                        writer.write(b"HTTP/1.1 " + reason + b"\r\nContent-Length: 0\r\n\r\n")
                        await writer.drain()
                        continue
                    if fault == "dropped":
                        return
                    if fault == "slow":
                        await asyncio.sleep(self.chance.uniform(0.2, 1.5))
                    back.write(head + body)
                    await back.drain()
                    answer = await there.readuntil(b"\r\n\r\n")
                    content = b"" if head.startswith(b"HEAD") else await read_body(there, answer)
                    if fault == "lost":
                        return
                    writer.write(answer + content)
                    await writer.drain()
            finally:
                back.close()
                writer.close()

    def _draw(self) -> str | None:
        if self.chance.random() >= self.rate:
            return None
        fault = self.chance.choice(("500", "503", "slow", "dropped", "lost"))
        self.met[fault] += 1
        return fault


@contextmanager
def unkind_proxy(target: str, rate: float) -> Iterator[UnkindProxy]:
    proxy = UnkindProxy(target, rate)
    started, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 22)
        proxy.endpoint_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await stop.wait()
        server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    started.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


@dataclass
class Soak:
    """The state that all threads share: the storage, the time to stop, the committed values, and counts."""

    options: dict[str, Any]
    until: float
    writers: int
    committed: list[int]
    pending: list[int]
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    longest: dict[str, float] = field(default_factory=dict)

    def open(self) -> icefloe.Repository:
        while True:
            try:
                return icefloe.Repository.open(icefloe.s3_storage(**self.options))
            except StorageError:
                self.counts["retried opens"] += 1

    def running(self) -> bool:
        return time.monotonic() < self.until and not self.wrong

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        except (StorageError, OutcomeUnknownError) as error:
            self.counts[f"{name} failed: {type(error).__name__}"] += 1  # the server was unkind for too long
        except ConflictError as error:
            # A commit is refused, and told so, when its base was expired while it was under way.
            if not name.startswith("commits") or "expired" not in str(error):
                raise
            self.counts[f"{name} failed: {type(error).__name__}"] += 1
        else:
            self.counts[name] += 1
        finally:
            self.longest[name] = max(self.longest.get(name, 0.0), time.monotonic() - started)


def _own(number: int) -> slice:
    return slice(number * WIDTH, (number + 1) * WIDTH)


def write(soak: Soak, number: int, repo: icefloe.Repository | None = None) -> None:
    """Write increasing numbers. Afterwards, `committed` contains the values that must be readable."""
    repo = repo or soak.open()
    chance = random.Random(number)
    while soak.running():
        value = soak.committed[number] + 1
        soak.pending[number] = value
        with soak.timing("commits"):
            session = repo.writable_session("main")
            zarr.open_array(session.store, path="counters", mode="r+")[_own(number)] = value
            if chance.random() < 0.1:
                session.discard_changes()  # chunks that nobody names
                continue
            session.commit(f"writer {number}: {value}", rebase_with=icefloe.ConflictDetector())
            soak.committed[number] = value
        if soak.committed[number] != value:
            _look(soak, repo, number, value)


def write_in_forks(soak: Soak, number: int, pool: ProcessPoolExecutor) -> None:
    """The same, with each chunk written by a fork in another process."""
    repo = soak.open()
    while soak.running():
        value = soak.committed[number] + 1
        soak.pending[number] = value
        with soak.timing("commits of forks"):
            session = repo.writable_session("main")
            starts = range(number * WIDTH, (number + 1) * WIDTH, CHUNK)
            work = [pool.submit(_write_fork, session.fork(), start, value) for start in starts]
            session.merge(*(each.result() for each in work))
            session.commit(f"forks of {number}: {value}", rebase_with=icefloe.ConflictDetector())
            soak.committed[number] = value
        if soak.committed[number] != value:
            _look(soak, repo, number, value)


def _write_fork(fork: Any, start: int, value: int) -> Any:
    zarr.open_array(fork.store, path="counters", mode="r+")[start : start + CHUNK] = value
    return fork


def _look(soak: Soak, repo: icefloe.Repository, number: int, value: int) -> None:
    """Read the branch after an error. It has the old value or the new one."""
    while True:
        try:
            array = zarr.open_array(repo.readonly_session("main").store, path="counters", mode="r")
            found = int(array[number * WIDTH])
            break
        except StorageError:
            continue
    if found not in (value - 1, value):
        soak.wrong.append(f"writer {number} finds {found}, it was told {value - 1} and tried {value}")
    soak.committed[number] = found


def read(soak: Soak, repo: icefloe.Repository | None = None) -> None:
    """Every value is one that was committed or is being committed, the same in all chunks of a writer."""
    held: list[tuple[float, Any, list[int]]] = []
    while soak.running():
        with soak.timing("reads"):
            floor = list(soak.committed)
            session = (repo or soak.open()).readonly_session("main")
            values = zarr.open_array(session.store, path="counters", mode="r")[:]
            ceiling = list(soak.pending)
            for number in range(soak.writers):
                part = values[_own(number)]
                if not (part == part[0]).all() or not floor[number] <= part[0] <= ceiling[number]:
                    soak.wrong.append(
                        f"a read found {part.tolist()} of writer {number}, not {floor[number]}..{ceiling[number]}"
                    )
            if repo is not None:
                held.append((time.monotonic(), session, values[::WIDTH].tolist()))
        # A session is good for as long as collections leave young objects alone.
        held = [each for each in held if time.monotonic() - each[0] < GRACE.total_seconds() / 3]
        if held and repo is not None:
            with soak.timing("reads of held sessions"):
                _, session, before = held[0]
                again = zarr.open_array(session.store, path="counters", mode="r")[::WIDTH].tolist()
                if again != before:
                    soak.wrong.append(f"a session held {before}, and later {again}")


def maintain(options: dict[str, Any], seconds: float, answers: Any) -> None:
    """The maintenance job, every second, in its own process. It returns its counts and errors."""
    soak = Soak(options, time.monotonic() + seconds, 0, [], [])
    try:
        repo = soak.open()
        turn = 0
        while soak.running():
            turn += 1
            with soak.timing("expiries"):
                soak.counts["expired"] += len(repo.expire_snapshots(retain_last=20))
            with soak.timing("compactions"):
                soak.counts["compacted chunks"] += repo.compact().chunks
            with soak.timing("rewrites"):
                repo.rewrite_manifests("rewrite", branch="main")
            with soak.timing("collections"):
                done = repo.garbage_collect(GRACE, incremental=turn % 3 != 0, ignore_running_sessions=True)
                soak.counts["deleted chunk objects"] += done.chunks_deleted
                soak.counts["deleted snapshots"] += done.snapshots_deleted
            time.sleep(1)
    except IcefloeError as error:
        soak.wrong.append(f"maintain: {type(error).__name__}: {error}")
    answers.put((soak.counts, soak.longest, soak.wrong))


def guarded(soak: Soak, work: Callable[..., None], *arguments: object) -> threading.Thread:
    def run() -> None:
        try:
            work(soak, *arguments)
        except IcefloeError as error:
            soak.wrong.append(f"{getattr(work, '__name__', work)}: {type(error).__name__}: {error}")

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def run_generation(server: S3Server, generation: str, minutes: float, writers: int, rate: float) -> bool:
    """Run one generation. Return whether nothing was lost or damaged."""
    with unkind_proxy(server.endpoint_url, rate) as proxy:
        bucket = server.make_bucket()
        kind = icefloe.s3_storage(**server.storage_options(bucket))
        config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
        repo = icefloe.Repository.create(kind, config, spec_version=generation)
        size = writers * WIDTH
        with repo.transaction("main", message="start") as store:
            array = zarr.create_array(
                store, name="counters", shape=(size,), chunks=(CHUNK,), dtype="i8", compressors=None
            )
            array[:] = np.full(size, 1)
        options = {**server.storage_options(bucket), "endpoint_url": proxy.endpoint_url}
        soak = Soak(options, time.monotonic() + 60 * minutes, writers, [1] * writers, [1] * writers)
        context = multiprocessing.get_context("spawn")
        answers = context.Queue()
        nightly = context.Process(target=maintain, args=(options, 60 * minutes, answers))
        nightly.start()
        service = soak.open()
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            threads = [guarded(soak, write, 0, service), guarded(soak, read, service), guarded(soak, read)]
            threads += [guarded(soak, write, number) for number in range(1, writers - 1)]
            threads += [guarded(soak, write_in_forks, writers - 1, pool)]
            for thread in threads:
                thread.join()
        counts, longest, wrong = answers.get(timeout=300)
        nightly.join()
        report = icefloe.Repository.open(kind).verify()
        final = zarr.open_array(repo.readonly_session("main").store, path="counters", mode="r")[::WIDTH].tolist()
    soak.wrong += wrong
    soak.wrong += [
        f"writer {number}: {soak.committed[number]} was committed, {found} is there"
        for number, found in enumerate(final)
        if found < soak.committed[number]
    ]
    soak.wrong += map(str, report.damages)
    print(f"{generation}: injected faults: {dict(proxy.met)}")
    print(f"  operations: {dict(sorted((soak.counts + counts).items()))}")
    print(f"  longest (s): { {name: round(took, 1) for name, took in (soak.longest | longest).items()} }")
    print(f"  final values {final}, committed {soak.committed}; verify: {len(report.damages)} damages", flush=True)
    for line in soak.wrong:
        print("  WRONG:", line, flush=True)
    return not soak.wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10, help="minutes per generation  [default: 10]")
    parser.add_argument("--generation", default="repository", choices=["all", *GENERATIONS])
    parser.add_argument(
        "--writers",
        type=int,
        default=4,
        help="the first is the service, the last writes in forks",
    )
    parser.add_argument("--rate", type=float, default=0.02, help="share of requests that fail  [default: 0.02]")
    arguments = parser.parse_args()
    if arguments.writers < 2:
        parser.error("--writers: at least 2, the service and the one with forks")
    if reason := seaweedfs_missing():
        print(reason)
        return 2
    chosen = GENERATIONS if arguments.generation == "all" else (arguments.generation,)
    with seaweedfs_server() as server:
        whole = [run_generation(server, each, arguments.minutes, arguments.writers, arguments.rate) for each in chosen]
    return 0 if all(whole) else 1


if __name__ == "__main__":
    sys.exit(main())
