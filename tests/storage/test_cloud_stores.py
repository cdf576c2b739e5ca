"""Conditional writes, races and lost answers on emulators of Azure Blob Storage and Google Cloud Storage."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import zarr
from tests.servers.azurite import AzureServer, azurite_missing, azurite_server
from tests.servers.fake_gcs import GcsServer, fake_gcs_missing, fake_gcs_server
from tests.storage.lossy_proxy import LossyProxy, lossy_proxy

import icefloe
from icefloe.errors import AlreadyExistsError, OutcomeUnknownError, StorageError, VersionMismatchError
from icefloe.storage.build import azure_storage, gcs_storage
from icefloe.storage.contract import Storage
from icefloe.storage.remote import check_conditional_writes
from icefloe.storage.requests import RetryPolicy

pytestmark = pytest.mark.slow
QUICK = RetryPolicy(max_tries=4, initial_backoff_ms=5, max_backoff_ms=20)
SPAWN = multiprocessing.get_context("spawn")
PROCESSES = 4


@dataclass(frozen=True)
class Cloud:
    """An emulator, and how a fresh storage on it is made."""

    endpoint_url: str
    make: Callable[[str | None], Storage]
    """Takes the address to speak to, where it is not the emulator's own."""


@pytest.fixture(scope="module")
def azurite() -> Iterator[AzureServer]:
    if reason := azurite_missing():
        pytest.skip(reason)
    with azurite_server() as server:
        yield server


@pytest.fixture(scope="module")
def fake_gcs() -> Iterator[GcsServer]:
    if reason := fake_gcs_missing():
        pytest.skip(reason)
    with fake_gcs_server() as server:
        yield server


@pytest.fixture(params=["azure", "gcs"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    if request.param == "gcs":
        gcs: GcsServer = request.getfixturevalue("fake_gcs")
        bucket = gcs.make_bucket()
        return Cloud(
            gcs.endpoint_url, lambda endpoint: gcs_storage(**gcs.storage_options(bucket, endpoint), retries=QUICK)
        )
    server: AzureServer = request.getfixturevalue("azurite")
    container = server.make_container()
    return Cloud(
        server.endpoint_url,
        lambda endpoint: azure_storage(**server.storage_options(container, endpoint), retries=QUICK),
    )


@pytest.fixture
def storage(cloud: Cloud) -> Storage:
    return cloud.make(None)


@pytest.fixture
def proxy(cloud: Cloud) -> Iterator[LossyProxy]:
    with lossy_proxy(cloud.endpoint_url) as running:
        yield running


@pytest.fixture
def lossy(cloud: Cloud, proxy: LossyProxy) -> Storage:
    return cloud.make(proxy.endpoint_url)


async def test_the_store_keeps_its_word_about_conditions(storage: Storage) -> None:
    await check_conditional_writes(storage)
    first = await storage.create("a", b"1")
    second = await storage.swap("a", b"2", first)
    third = await storage.swap("a", b"1", second)
    assert len({first, second, third}) == 3
    with pytest.raises(VersionMismatchError):
        await storage.swap("a", b"9", first)
    assert (await storage.get_versioned("a")).version == third
    await storage.delete(["a", "never there"])
    with pytest.raises(VersionMismatchError):
        await storage.swap("a", b"9", third)


async def test_objects_are_listed_in_order_and_from_an_offset(storage: Storage) -> None:
    keys = ["a-b", "a/b", "a/b c%", "b", "refs/branch.é/0.json", "z"]
    for key in keys:
        await storage.put(key, key.encode())
    assert [item.key async for page in storage.list("") for item in page] == sorted(keys)
    assert [item.key async for page in storage.list("", after="a/b") for item in page] == sorted(keys)[2:]
    assert await storage.list_names("") == ["a-b", "a/", "b", "refs/", "z"]
    assert await storage.get_ranges("refs/branch.é/0.json", [0, 5], [4, 8]) == [b"refs", b"bra"]


@pytest.mark.parametrize("unique", [True, False])
async def test_our_own_write_is_success_although_the_answer_was_lost(
    lossy: Storage, proxy: LossyProxy, unique: bool
) -> None:
    proxy.lose = 1
    first = await lossy.create("refs/a", b"ours", unique=unique)
    assert (await lossy.get_versioned("refs/a")).version == first
    proxy.lose = 1
    with pytest.raises(AlreadyExistsError):
        await lossy.create("refs/a", b"theirs")
    proxy.lose = 1
    second = await lossy.swap("refs/a", b"two", first, unique=unique)
    assert (await lossy.get_versioned("refs/a")).version == second != first


async def test_what_cannot_be_settled_has_its_own_error(lossy: Storage, proxy: LossyProxy) -> None:
    first = await lossy.create("state", b"one")
    proxy.refuse = 1000
    for write in (lossy.create("new", b"x"), lossy.swap("state", b"x", first), lossy.create("n2", b"x", unique=False)):
        with pytest.raises(OutcomeUnknownError, match="look"):
            await write
    with pytest.raises(StorageError):
        await lossy.put("plain", b"x")


def _create_and_count(storage: Storage, name: int, start: Any, won: Any) -> None:
    async def work() -> list[str]:
        mine = []
        for number in range(15):
            key = f"refs/{number:02d}"
            try:
                await storage.create(key, f"{name}".encode() * 5000)
                mine.append(key)
            except AlreadyExistsError:
                pass
        for turn in range(10):
            while True:
                found = await storage.get_versioned("count")
                value = int(found.data.split()[0])
                try:
                    await storage.swap("count", f"{value + 1} {name} {turn}".encode(), found.version)
                    break
                except VersionMismatchError:
                    continue
        return mine

    start.wait()
    won.put((name, asyncio.run(work())))


def test_of_racing_processes_one_wins_each_key_and_no_update_is_lost(storage: Storage) -> None:
    asyncio.run(storage.create("count", b"0"))
    won, start = SPAWN.Queue(), SPAWN.Barrier(PROCESSES)
    workers = [SPAWN.Process(target=_create_and_count, args=(storage, n, start, won)) for n in range(PROCESSES)]
    for worker in workers:
        worker.start()
    wins = dict(won.get(timeout=300) for _ in workers)
    for worker in workers:
        worker.join(60)
    keys = [key for mine in wins.values() for key in mine]
    assert sorted(keys) == [f"refs/{number:02d}" for number in range(15)]
    for name, mine in wins.items():
        for key in mine:
            assert asyncio.run(storage.get(key)) == f"{name}".encode() * 5000
    assert int(asyncio.run(storage.get("count")).split()[0]) == 10 * PROCESSES


@pytest.mark.parametrize("generation", ["repository", "icechunk2", "icechunk1", "store", "dataset"])
def test_commits_survive_lost_answers(lossy: Storage, proxy: LossyProxy, storage: Storage, generation: str) -> None:
    repo = icefloe.Repository.create(lossy, spec_version=generation)
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="i4", compressors=None)
    for value in range(1, 6):
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a")[:] = value
        proxy.lose = value % 3
        session.commit(f"commit {value}")
        proxy.lose = 0
    again = icefloe.Repository.open(storage)
    assert [info.message for info in again.ancestry(branch="main")][:5] == [f"commit {n}" for n in (5, 4, 3, 2, 1)]
    assert again.verify(decode=True).is_clean
