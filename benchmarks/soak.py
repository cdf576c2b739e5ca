"""Writers, readers, collection, expiry and compaction together on a real S3 server that misbehaves, for minutes.

    python3 -m benchmarks.soak --minutes 10

Each writer owns chunks of one array and counts up in them; every value it was told is committed must be readable ever
after. What a writer is not told (a lost answer that cannot be settled) it looks up. Prints numbers, exits with 1 when
a commit was lost or a read was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np
import zarr
from tests.servers.seaweedfs import seaweedfs_missing, seaweedfs_server

import icefloe
from icefloe.errors import ConflictError, IcefloeError, OutcomeUnknownError, StorageError

CHUNK = 64
GRACE = dt.timedelta(seconds=45)


@dataclass
class UnkindProxy:
    """Hands requests on, except for a share of them: 500, 503, slow, dropped before, and answered to nobody."""

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
                    body = await reader.readexactly(_length(head))
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
                    content = b"" if head.startswith(b"HEAD") else await _content(there, answer)
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


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def _content(there: asyncio.StreamReader, answer: bytes) -> bytes:
    if b"chunked" not in answer.lower():
        return await there.readexactly(_length(answer))
    parts = []
    while True:
        line = await there.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        data = await there.readexactly(size + 2)
        parts += [line, data]
        if size == 0:
            return b"".join(parts)


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
    """What all threads share: the place, the time to stop, what is known to be committed, and counts."""

    options: dict[str, object]
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
                return icefloe.Repository.open(icefloe.s3_storage(**self.options))  # type: ignore[arg-type]
            except StorageError:
                self.counts["retried opens"] += 1

    def running(self) -> bool:
        return time.monotonic() < self.until and not self.wrong

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        except (StorageError, ConflictError, OutcomeUnknownError) as error:
            self.counts[f"{name} failed: {type(error).__name__}"] += 1
        else:
            self.counts[name] += 1
        finally:
            self.longest[name] = max(self.longest.get(name, 0.0), time.monotonic() - started)


def write(soak: Soak, number: int) -> None:
    """Count up in the chunks of this writer; afterwards `committed` holds what must be readable."""
    repo = soak.open()
    chance = random.Random(number)
    while soak.running():
        value = soak.committed[number] + 1
        soak.pending[number] = value
        with soak.timing("commits"):
            session = repo.writable_session("main")
            array = zarr.open_array(session.store, path="counters", mode="r+")
            array[number * CHUNK : (number + 1) * CHUNK] = value
            if chance.random() < 0.1:
                session.discard_changes()  # chunks that nobody names
                continue
            session.commit(f"writer {number}: {value}", rebase_with=icefloe.ConflictDetector())
            soak.committed[number] = value
        if soak.committed[number] != value:
            _look(soak, repo, number, value)


def _look(soak: Soak, repo: icefloe.Repository, number: int, value: int) -> None:
    """After an error, what is there counts: the old value or the new one."""
    while True:
        try:
            array = zarr.open_array(repo.readonly_session("main").store, path="counters", mode="r")
            found = int(array[number * CHUNK])
            break
        except StorageError:
            continue
    if found not in (value - 1, value):
        soak.wrong.append(f"writer {number} finds {found}, it was told {value - 1} and tried {value}")
    soak.committed[number] = found


def read(soak: Soak) -> None:
    """Every value is one that was committed or is being committed, the same in a whole chunk."""
    while soak.running():
        with soak.timing("reads"):
            floor = list(soak.committed)
            values = zarr.open_array(soak.open().readonly_session("main").store, path="counters", mode="r")[:]
            ceiling = list(soak.pending)
            for number in range(soak.writers):
                part = values[number * CHUNK : (number + 1) * CHUNK]
                if not (part == part[0]).all() or not floor[number] <= part[0] <= ceiling[number]:
                    soak.wrong.append(
                        f"a read found {part[0]} of writer {number}, not {floor[number]}..{ceiling[number]}"
                    )


def maintain(soak: Soak) -> None:
    """Expiry, compaction and collection, one after the other, beside everybody else."""
    repo = soak.open()
    turn = 0
    while soak.running():
        turn += 1
        with soak.timing("expiries"):
            soak.counts["expired"] += len(repo.expire_snapshots(retain_last=20))
        with soak.timing("compactions"):
            soak.counts["compacted chunks"] += repo.compact().chunks
        with soak.timing("collections"):
            done = repo.garbage_collect(GRACE, incremental=turn % 3 != 0, ignore_running_sessions=True)
            soak.counts["deleted chunk objects"] += done.chunks_deleted
            soak.counts["deleted snapshots"] += done.snapshots_deleted
        time.sleep(1)


def guarded(soak: Soak, work: object, *arguments: object) -> threading.Thread:
    def run() -> None:
        try:
            work(soak, *arguments)  # type: ignore[operator]
        except IcefloeError as error:
            soak.wrong.append(f"{getattr(work, '__name__', work)}: {type(error).__name__}: {error}")

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.02, help="the share of requests that meet a fault")
    arguments = parser.parse_args()
    if reason := seaweedfs_missing():
        print(reason)
        return 2
    with seaweedfs_server() as server, unkind_proxy(server.endpoint_url, arguments.rate) as proxy:
        bucket = server.make_bucket()
        config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
        kind = icefloe.s3_storage(**server.storage_options(bucket))
        repo = icefloe.Repository.create(kind, config)
        session = repo.writable_session("main")
        size = arguments.writers * CHUNK
        zarr.create_array(session.store, name="counters", shape=(size,), chunks=(CHUNK,), dtype="i8", compressors=None)
        zarr.open_array(session.store, path="counters", mode="r+")[:] = np.full(size, 1)
        session.commit("start")
        options = {**server.storage_options(bucket), "endpoint_url": proxy.endpoint_url}
        until = time.monotonic() + 60 * arguments.minutes
        soak = Soak(options, until, arguments.writers, [1] * arguments.writers, [1] * arguments.writers)
        threads = [guarded(soak, write, number) for number in range(arguments.writers)]
        threads += [guarded(soak, read), guarded(soak, read), guarded(soak, maintain)]
        for thread in threads:
            thread.join()
        report = icefloe.Repository.open(kind).verify()
        final = zarr.open_array(repo.readonly_session("main").store, path="counters", mode="r")[::CHUNK].tolist()
    damages = [damage for damage in report.damages if damage.kind.value != "misquoted"]
    lost = [number for number, found in enumerate(final) if found < soak.committed[number]]
    print(f"faults met: {dict(proxy.met)}")
    print(f"done: {dict(sorted(soak.counts.items()))}")
    print(f"longest: { {name: round(seconds, 1) for name, seconds in soak.longest.items()} }")
    print(f"final values {final}, committed {soak.committed}; verify: {len(damages)} damages")
    for line in (*soak.wrong, *map(str, damages)):
        print("WRONG:", line)
    return 1 if soak.wrong or lost or damages else 0


if __name__ == "__main__":
    sys.exit(main())
