"""Lost answers are settled, transient failures repeated, and what cannot be known is said so."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.s3 import S3Server
from tests.storage.lossy_proxy import LossyProxy, lossy_proxy

from icefloe.errors import (
    AlreadyExistsError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StorageError,
    UnsupportedError,
    VersionMismatchError,
)
from icefloe.storage.build import in_memory_storage, local_filesystem_storage, s3_storage
from icefloe.storage.contract import Buffer, Storage, Version
from icefloe.storage.remote import check_conditional_writes
from icefloe.storage.requests import RetryPolicy
from icefloe.storage.wrappers import WRITES, Operation, WrappedStorage
from icefloe.testing.storages import KILLED, CountingStorage, Fault, FaultKind, FaultPlan, FaultyStorage

QUICK = RetryPolicy(max_tries=4, initial_backoff_ms=5, max_backoff_ms=20)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[LossyProxy]:
    with lossy_proxy(s3_server.endpoint_url) as running:
        yield running


@pytest.fixture
def lossy(proxy: LossyProxy, s3_server: S3Server) -> Storage:
    """A real store behind a connection that loses answers."""
    options = s3_server.storage_options(s3_server.make_bucket()) | {"endpoint_url": proxy.endpoint_url}
    return s3_storage(**options, retries=QUICK)


@pytest.mark.s3
@pytest.mark.parametrize("unique", [True, False])
async def test_our_own_create_is_success_although_the_answer_was_lost(
    lossy: Storage, proxy: LossyProxy, unique: bool
) -> None:
    proxy.lose = 1
    version = await lossy.create("refs/a", b"ours", unique=unique)
    assert (await lossy.get_versioned("refs/a")).version == version
    proxy.lose = 1
    with pytest.raises(AlreadyExistsError):
        await lossy.create("refs/a", b"theirs")


@pytest.mark.s3
@pytest.mark.parametrize("unique", [True, False])
async def test_our_own_swap_is_success_although_the_answer_was_lost(
    lossy: Storage, proxy: LossyProxy, unique: bool
) -> None:
    first = await lossy.create("state", b"one")
    proxy.lose = 1
    second = await lossy.swap("state", b"two", first, unique=unique)
    assert (await lossy.get_versioned("state")).version == second != first


@pytest.mark.s3
async def test_a_refused_connection_is_tried_again(lossy: Storage, proxy: LossyProxy) -> None:
    proxy.refuse = 2
    await lossy.create("a", b"1")
    proxy.refuse = 2
    await lossy.put("b", b"2")
    proxy.lose = 2
    await lossy.put("c", b"3")
    assert await lossy.list_names("") == ["a", "b", "c"]


@pytest.mark.s3
async def test_an_answer_that_breaks_off_is_asked_for_again(lossy: Storage, proxy: LossyProxy) -> None:
    data = bytes(range(256)) * 4000
    await lossy.put("a", data)
    for read, whole in ((lossy.get, data), (lambda key: lossy.get_range(key, 5, 900_000), data[5:900_000])):
        proxy.truncate = 2
        assert await read("a") == whole
        assert proxy.truncate == 0
    proxy.truncate = 1000
    with pytest.raises(StorageError):
        await lossy.get("a")


@pytest.mark.s3
async def test_what_cannot_be_settled_has_its_own_error(lossy: Storage, proxy: LossyProxy) -> None:
    first = await lossy.create("state", b"one")
    proxy.refuse = 1000
    for write in (lossy.create("new", b"x"), lossy.swap("state", b"x", first), lossy.create("n2", b"x", unique=False)):
        with pytest.raises(OutcomeUnknownError, match="Look at the object"):
            await write
    with pytest.raises(StorageError):
        await lossy.put("plain", b"x")


@pytest.mark.s3
async def test_metadata_is_written_where_the_store_has_it(s3_server: S3Server) -> None:
    storage = s3_storage(**s3_server.storage_options(s3_server.make_bucket()))
    await storage.put("a", b"1", metadata={"ic_file_type": "snapshot", "ic_spec_ver": "1"})
    await storage.create("b", b"1", metadata={"ic_file_type": "manifest"}, unique=False)
    assert (await storage.metadata("a"))["ic_file_type"] == "snapshot"
    written = await storage.metadata("b")
    assert written["ic_file_type"] == "manifest" and len(written["icechunk_write_id"]) == 32


@pytest.mark.s3
async def test_a_missing_bucket_is_a_clear_error(s3_server: S3Server) -> None:
    storage = s3_storage(**s3_server.storage_options("no-such-bucket-here"), retries=QUICK)
    with pytest.raises(ObjectNotFoundError):
        await storage.get("a")
    with pytest.raises(ObjectNotFoundError, match="no-such-bucket-here"):
        await storage.put("a", b"")


class Forgetful(WrappedStorage):
    """A store that ignores conditions, as some do."""

    def __init__(self, inner: Storage, ignores: str) -> None:
        super().__init__(inner)
        self.ignores = ignores

    async def _forward(self, operation: Operation, call: Any) -> Any:
        return await call()

    def _rewrap(self, inner: Storage) -> Storage:
        return Forgetful(inner, self.ignores)

    async def create(self, key: str, data: Buffer, **options: Any) -> Version:
        if self.ignores == "create":
            await self.inner.put(key, data)
            return (await self.inner.head(key)).version
        return await self.inner.create(key, data)

    async def swap(self, key: str, data: Buffer, version: Version, **options: Any) -> Version:
        if self.ignores == "swap":
            await self.inner.put(key, data)
            return (await self.inner.head(key)).version
        return await self.inner.swap(key, data, version)


@pytest.mark.parametrize("ignores", ["create", "swap"])
async def test_a_store_that_ignores_conditions_is_noticed(ignores: str) -> None:
    inner = in_memory_storage()
    with pytest.raises(UnsupportedError, match="commits would be lost"):
        await check_conditional_writes(Forgetful(inner, ignores))
    assert await inner.is_empty()
    await check_conditional_writes(Forgetful(inner, "nothing"))


@pytest.mark.parametrize("kind", [FaultKind.FAIL_BEFORE, FaultKind.LOSE_ANSWER])
async def test_the_faulty_twin_fails_where_told_and_settles_conditional_writes(kind: FaultKind) -> None:
    inner = in_memory_storage()
    storage = FaultyStorage(inner, [Fault(kind, at=2, methods=("put",)), Fault(kind, methods=("create", "swap"))])
    await storage.put("a", b"1")
    with pytest.raises(StorageError, match="injected"):
        await storage.put("b", b"2")
    assert await inner.exists("b") is (kind is FaultKind.LOSE_ANSWER)
    await storage.put("c", b"3")
    version = await storage.create("d", b"4")
    assert (await inner.get_versioned("d")).version == version
    assert storage.counts.of("put").requests == 3 and storage.counts.of("put").sent_bytes == 3


async def test_a_swap_that_may_have_been_swapped_over_is_unknown() -> None:
    inner = in_memory_storage()
    first = await inner.create("state", b"one")

    class Overtaken(WrappedStorage):
        async def _forward(self, operation: Operation, call: Any) -> Any:
            answer = await call()
            if operation.method == "swap":
                await inner.swap("state", b"theirs, on top of ours", answer)
            return answer

        def _rewrap(self, inner: Storage) -> Storage:
            return self

    storage = FaultyStorage(Overtaken(inner), [Fault(FaultKind.LOSE_ANSWER, methods=("swap",))])
    with pytest.raises(OutcomeUnknownError):
        await storage.swap("state", b"ours", first)


async def test_under_random_faults_an_answer_is_never_wrong() -> None:
    for seed in range(40):
        inner = in_memory_storage()
        storage = FaultyStorage(inner, FaultPlan(rate=0.3, seed=seed))
        model: bytes | None = None
        version = Version()
        for turn in range(30):
            data = f"{seed} {turn}".encode()
            try:
                if model is None:
                    version = await storage.create("k", data)
                else:
                    version = await storage.swap("k", data, version)
                model = data
            except OutcomeUnknownError:
                found = await inner.get_versioned("k") if await inner.exists("k") else None
                assert found is None or found.data in (data, model)
                model, version = (None, Version()) if found is None else (found.data, found.version)
                continue
            assert await inner.get("k") == model
        with pytest.raises((VersionMismatchError, OutcomeUnknownError)):
            await storage.swap("k", b"x", Version(etag="never"))


def _die(folder: Path, at: int, kind: FaultKind) -> None:
    storage = FaultyStorage(local_filesystem_storage(folder), [Fault(kind, at=at, methods=WRITES)])

    async def work() -> None:
        await storage.put("one", b"1")
        await storage.create("two", b"2")

    asyncio.run(work())


@pytest.mark.parametrize(("kind", "at", "left"), [("KILL_BEFORE", 2, ["one"]), ("KILL_AFTER", 2, ["one", "two"])])
def test_the_process_dies_at_the_operation_that_was_named(tmp_path: Path, kind: str, at: int, left: list[str]) -> None:
    worker = multiprocessing.get_context("spawn").Process(target=_die, args=(tmp_path, at, FaultKind[kind]))
    worker.start()
    worker.join(60)
    assert worker.exitcode == KILLED
    assert asyncio.run(local_filesystem_storage(tmp_path).list_names("")) == left


async def test_requests_and_bytes_are_counted_by_method() -> None:
    storage = CountingStorage(in_memory_storage())
    await storage.put("a/1", b"12345")
    await storage.child("a").get("1")
    await storage.get_ranges("a/1", [0, 2], [1, 5])
    assert [len(page) async for page in storage.list("a/")] == [1]
    with pytest.raises(ObjectNotFoundError):
        await storage.get("b")
    counts = storage.counts
    assert counts.of("get").requests == 2 and counts.of("get").received_bytes == 5
    assert counts.of("get_ranges").received_bytes == 4
    assert counts.writes.requests == 1 and counts.writes.sent_bytes == 5
    counts.reset()
    assert counts.total.requests == 0
