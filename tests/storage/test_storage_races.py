"""Many processes at one key: one winner, no lost update, whoever dies."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from icefloe.errors import AlreadyExistsError, InvalidInputError, UnsupportedError, VersionMismatchError
from icefloe.storage.build import in_memory_storage, local_filesystem_storage, s3_storage
from icefloe.storage.contract import Storage

PROCESSES = 8
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(params=["local", pytest.param("ministack", marks=pytest.mark.s3)])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A storage that several processes can reach."""
    if request.param == "local":
        return local_filesystem_storage(tmp_path / "repo")
    server = request.getfixturevalue("s3_server")
    return s3_storage(**server.storage_options(server.make_bucket()))


def _create_all(storage: Storage, name: int, keys: list[str], start: Any, won: Any) -> None:
    async def work() -> None:
        for key in keys:
            try:
                await storage.create(key, f"{name}".encode() * 5000)
                won.put((key, name))
            except AlreadyExistsError:
                pass

    start.wait()
    asyncio.run(work())
    won.put(None)


@pytest.mark.long
def test_of_many_processes_one_creates_each_key(shared: Storage) -> None:
    keys = [f"refs/branch.main/{number:04d}.json" for number in range(20)]
    won, start = SPAWN.Queue(), SPAWN.Barrier(PROCESSES)
    workers = [SPAWN.Process(target=_create_all, args=(shared, n, keys, start, won)) for n in range(PROCESSES)]
    for worker in workers:
        worker.start()
    wins: dict[str, list[int]] = {}
    finished = 0
    while finished < PROCESSES:
        got = won.get(timeout=120)
        if got is None:
            finished += 1
        else:
            wins.setdefault(got[0], []).append(got[1])
    for worker in workers:
        worker.join(60)
    assert {key: len(names) for key, names in wins.items()} == dict.fromkeys(keys, 1)
    for key in keys:
        assert asyncio.run(shared.get(key)) == f"{wins[key][0]}".encode() * 5000
    assert asyncio.run(shared.list_names("refs/branch.main/")) == [key.rpartition("/")[2] for key in keys]


def _increment(storage: Storage, name: int, times: int, start: Any) -> None:
    async def work() -> None:
        for turn in range(times):
            while True:
                found = await storage.get_versioned("count")
                value = int(found.data.split()[0])
                try:
                    await storage.swap("count", f"{value + 1} {name} {turn}".encode(), found.version)
                    break
                except VersionMismatchError:
                    continue

    start.wait()
    asyncio.run(work())


@pytest.mark.long
def test_no_increment_of_many_processes_is_lost(shared: Storage) -> None:
    times = 25
    asyncio.run(shared.create("count", b"0"))
    start = SPAWN.Barrier(PROCESSES)
    workers = [SPAWN.Process(target=_increment, args=(shared, n, times, start)) for n in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(200)
        assert worker.exitcode == 0
    assert int(asyncio.run(shared.get("count")).split()[0]) == PROCESSES * times


def _write_for_ever(storage: Storage) -> None:
    async def work() -> None:
        number = 0
        version = await storage.create("swapped", b"0" * 300_000)
        while True:
            number += 1
            data = str(number % 10).encode() * 300_000
            await storage.put("put", data)
            await storage.create(f"created/{number:06d}", data)
            version = await storage.swap("swapped", data, version)

    asyncio.run(work())


@pytest.mark.long
def test_a_killed_writer_leaves_no_half_file_and_no_lock(tmp_path: Path) -> None:
    for turn in range(4):
        storage = local_filesystem_storage(tmp_path / str(turn))
        worker = SPAWN.Process(target=_write_for_ever, args=(storage,))
        worker.start()
        deadline = time.monotonic() + 60
        while not asyncio.run(storage.exists("created/000003")) and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(0.003 * turn)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()

        async def check(storage: Storage = storage) -> None:
            async for page in storage.list(""):
                for info in page:
                    data = await storage.get(info.key)
                    assert len(data) == 300_000 and len(set(data)) == 1
                    assert "#" not in info.key
            found = await storage.get_versioned("swapped")
            await asyncio.wait_for(storage.swap("swapped", b"next", found.version), 5)

        asyncio.run(check())


def _unpickle(data: bytes, answer: Any) -> None:
    import pickle

    try:
        pickle.loads(data)
        answer.put("unpickled")
    except InvalidInputError as error:
        answer.put(str(error))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_memory_is_not_found_in_another_process(method: str) -> None:
    import pickle

    storage = in_memory_storage()
    context = multiprocessing.get_context(method)
    answer = context.Queue()
    worker = context.Process(target=_unpickle, args=(pickle.dumps(storage), answer))
    worker.start()
    assert "belongs to process" in answer.get(timeout=60)
    worker.join()


def _use(storage: Storage, answer: Any) -> None:
    try:
        asyncio.run(storage.get("a"))
        answer.put("read")
    except UnsupportedError as error:
        answer.put(str(error))


@pytest.mark.s3
def test_a_forked_child_is_told_instead_of_waiting_for_ever(s3_server: Any) -> None:
    storage = s3_storage(**s3_server.storage_options(s3_server.make_bucket()))
    asyncio.run(storage.put("a", b"1"))
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    worker = context.Process(target=_use, args=(storage, answer))
    worker.start()
    assert "spawn" in answer.get(timeout=60)
    worker.join()
