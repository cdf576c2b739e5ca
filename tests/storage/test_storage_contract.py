"""What every storage promises, asked of each of them."""

from __future__ import annotations

import asyncio
import datetime as dt
import pickle

import pytest

from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
    VersionMismatchError,
)
from icefloe.storage.conditional_writes import check_conditional_writes
from icefloe.storage.contract import ObjectInfo, Storage, Version

ODD_NAMES = ["50% #1?", "é", "tag.", "tag..", "a b!:", 'x[1]{2}^~`|*<>"', "%25", "back\\slash", "日本", ".hidden"]


def run(coroutine):
    return asyncio.run(coroutine)


async def listed(storage: Storage, prefix: str, after: str | None = None) -> list[ObjectInfo]:
    return [info async for page in storage.list(prefix, after=after) for info in page]


def test_what_was_put_is_read_back_whole_and_in_parts(storage: Storage) -> None:
    async def check() -> None:
        data = bytes(range(256)) * 40
        await storage.put("chunks/one", data, metadata={"ic_file_type": "chunk"})
        assert await storage.get("chunks/one") == data
        assert await storage.get_range("chunks/one", 10, 20) == data[10:20]
        assert await storage.get_range("chunks/one", 10, 10) == b""
        assert await storage.get_range("chunks/one", len(data) - 3, len(data) + 50) == data[-3:]
        starts, ends = [5000, 0, 7, 7, 10239], [5100, 3, 7, 9, 20000]
        parts = await storage.get_ranges("chunks/one", starts, ends)
        assert parts == [data[s:e] for s, e in zip(starts, ends, strict=True)]
        assert await storage.get_ranges("chunks/one", [], []) == []
        info = await storage.head("chunks/one")
        assert (info.key, info.size_bytes) == ("chunks/one", len(data))
        assert abs(info.last_modified - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=5)
        assert await storage.exists("chunks/one") and not await storage.exists("chunks/two")

    run(check())


def test_a_range_that_starts_behind_the_end_is_an_error(storage: Storage) -> None:
    async def check() -> None:
        await storage.put("k", b"0123456789")
        for start, end in ((10, 12), (50, 60)):
            with pytest.raises(StorageError):
                await storage.get_range("k", start, end)
            with pytest.raises(StorageError):
                await storage.get_ranges("k", [0, start], [2, end])
        with pytest.raises(InvalidInputError):
            await storage.get_range("k", 5, 4)
        with pytest.raises(InvalidInputError):
            await storage.get_ranges("k", [1, 2], [3])

    run(check())


def test_every_kind_of_buffer_and_an_empty_object_can_be_written(storage: Storage) -> None:
    async def check() -> None:
        import numpy as np

        numbers = np.arange(10, dtype="<i4")
        for name, data in {"a": bytearray(b"abc"), "b": memoryview(b"abc"), "c": memoryview(numbers)}.items():
            await storage.put(name, data)
            await storage.create(f"new-{name}", data)
            assert await storage.get(name) == await storage.get(f"new-{name}") == bytes(data)
        await storage.put("empty", b"")
        assert await storage.get("empty") == b""
        assert (await storage.head("empty")).size_bytes == 0

    run(check())


def test_a_missing_key_is_not_found_by_any_read(storage: Storage) -> None:
    async def check() -> None:
        await storage.put("folder/there", b"x")
        for key in ("absent", "folder/absent", "folder", "folder/there/below"):
            for read in (storage.get, storage.get_versioned, storage.head):
                with pytest.raises(ObjectNotFoundError):
                    await read(key)
            with pytest.raises(ObjectNotFoundError):
                await storage.get_range(key, 0, 1)
        with pytest.raises(ObjectNotFoundError):
            await storage.copy("absent", "target")

    run(check())


def test_create_succeeds_once(storage: Storage) -> None:
    async def check() -> None:
        version = await storage.create("refs/a/ref.json", b"one", metadata={"a": "b"})
        assert (await storage.get_versioned("refs/a/ref.json")).version == version
        with pytest.raises(AlreadyExistsError):
            await storage.create("refs/a/ref.json", b"two")
        with pytest.raises(AlreadyExistsError):
            await storage.create("refs/a/ref.json", b"two", unique=False)
        assert await storage.get("refs/a/ref.json") == b"one"

    run(check())


def test_only_the_current_version_can_be_swapped(storage: Storage) -> None:
    async def check() -> None:
        first = await storage.create("state", b"one")
        second = await storage.swap("state", b"two", first)
        with pytest.raises(VersionMismatchError):
            await storage.swap("state", b"three", first)
        with pytest.raises(VersionMismatchError):
            await storage.swap("state", b"three", first, unique=False)
        assert await storage.get("state") == b"two"
        third = await storage.swap("state", b"three", second, unique=False)
        assert (await storage.get_versioned("state")).version == third
        fourth = await storage.swap("state", b"four", (await storage.head("state")).version)
        assert fourth != third
        with pytest.raises(VersionMismatchError):
            await storage.swap("gone", b"x", first)

    run(check())


def test_of_many_tasks_one_creates_and_no_increment_is_lost(storage: Storage) -> None:
    async def check() -> None:
        async def create(number: int) -> bool:
            try:
                await storage.create("race", str(number).encode())
            except AlreadyExistsError:
                return False
            return True

        assert sum(await asyncio.gather(*(create(number) for number in range(8)))) == 1

        await storage.create("count", b"0 start")

        async def increment(name: str) -> None:
            for _ in range(3):
                while True:
                    found = await storage.get_versioned("count")
                    value = int(found.data.split()[0])
                    try:
                        await storage.swap("count", f"{value + 1} {name}".encode(), found.version)
                        break
                    except VersionMismatchError:
                        await asyncio.sleep(0.001)

        await asyncio.gather(*(increment(f"task{number}") for number in range(4)))
        assert (await storage.get("count")).split()[0] == b"12"

    run(check())


def test_listing_is_sorted_recursive_and_starts_after_a_key(storage: Storage) -> None:
    async def check() -> None:
        keys = ["a!", "a-b", "a/b", "a/c/d", "a0", "b/1", "b/2", "b/3", "refs/branch.main/ZZZZZZZY.json"]
        for key in keys:
            await storage.put(key, key.encode())
        found = await listed(storage, "")
        assert [info.key for info in found] == sorted(keys)
        assert [info.size_bytes for info in found] == [len(key) for key in sorted(keys)]
        assert [info.key for info in await listed(storage, "a/")] == ["a/b", "a/c/d"]
        for after in [*keys, "a/", "b", "zz", "0", "b/25"]:
            assert [i.key for i in await listed(storage, "", after)] == [k for k in sorted(keys) if k > after]
        assert [info.key for info in await listed(storage, "b/", "b/1")] == ["b/2", "b/3"]
        assert await listed(storage, "nothing/") == []
        assert await storage.list_names("") == ["a!", "a-b", "a/", "a0", "b/", "refs/"]
        assert await storage.list_names("a/") == ["b", "c/"]
        assert await storage.list_names("nothing/") == []

    run(check())


def test_a_long_listing_comes_in_pages_and_the_first_ones_come_first(storage: Storage) -> None:
    async def check() -> None:
        keys = [f"many/{number:05d}" for number in range(1205)]
        await asyncio.gather(*(storage.put(key, b"x") for key in reversed(keys)))
        pages = [[info.key for info in page] async for page in storage.list("many/")]
        assert len(pages) > 1 and [key for page in pages for key in page] == keys
        async for page in storage.list("many/", after=keys[700]):
            assert page[0].key == keys[701]
            break
        await storage.delete(keys)
        assert await storage.is_empty()

    run(check())


def test_deleting_what_is_not_there_is_no_error(storage: Storage) -> None:
    async def check() -> None:
        assert await storage.is_empty()
        await storage.put("x/one", b"1")
        await storage.put("x/two", b"2")
        assert not await storage.is_empty()
        await storage.delete(["x/absent", "x/one", "other/absent"])
        assert await storage.list_names("x/") == ["two"]
        await storage.delete([])
        await storage.delete(["x/two"])
        assert await storage.list_names("") == [] and await storage.is_empty()

    run(check())


def test_a_copy_is_made_only_of_the_version_that_was_meant(storage: Storage) -> None:
    async def check() -> None:
        old = await storage.create("repo", b"old")
        await storage.copy("repo", "overwritten/1", version=old)
        new = await storage.swap("repo", b"new", old)
        with pytest.raises(VersionMismatchError):
            await storage.copy("repo", "overwritten/2", version=old)
        await storage.copy("repo", "overwritten/3", version=new)
        await storage.copy("repo", "overwritten/4")
        assert await storage.list_names("overwritten/") == ["1", "3", "4"]
        assert await storage.get("overwritten/1") == b"old" and await storage.get("overwritten/4") == b"new"

    run(check())


def test_odd_names_are_kept_as_they_are(storage: Storage, request: pytest.FixtureRequest) -> None:
    # SeaweedFS takes a backslash for a slash.
    odd_names = [name for name in ODD_NAMES if "seaweedfs" not in request.node.name or "\\" not in name]

    async def check() -> None:
        for name in odd_names:
            await storage.create(f"refs/{name}/ref.json", name.encode())
        assert await storage.list_names("refs/") == sorted(f"{name}/" for name in odd_names)
        assert [info.key for info in await listed(storage, "refs/")] == sorted(f"refs/{n}/ref.json" for n in odd_names)
        for name in odd_names:
            assert await storage.get(f"refs/{name}/ref.json") == name.encode()
            assert await storage.list_names(f"refs/{name}/") == ["ref.json"]
        await storage.delete([f"refs/{name}/ref.json" for name in odd_names])
        assert await storage.list_names("refs/") == []

    run(check())


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/..", ".", "a/./b", "a\0b", "\ud800"])
def test_a_key_that_leads_elsewhere_is_refused(storage: Storage, key: str) -> None:
    async def check() -> None:
        for call in (
            storage.get(key),
            storage.head(key),
            storage.put(key, b""),
            storage.create(key, b""),
            storage.swap(key, b"", Version(etag="x")),
            storage.get_range(key, 0, 1),
            storage.delete([key]),
            storage.copy(key, "b"),
            storage.list_names("../"),
            storage.list_names("a"),
        ):
            with pytest.raises(InvalidInputError):
                await call
        with pytest.raises(InvalidInputError):
            storage.child("../x")

    run(check())


def test_a_child_is_the_same_storage_one_folder_deeper(storage: Storage) -> None:
    async def check() -> None:
        child = storage.child("inner/deep")
        await child.put("a/b", b"1")
        assert await storage.get("inner/deep/a/b") == b"1"
        assert [info.key for info in await listed(child, "")] == ["a/b"]
        assert [info.key for info in await listed(child, "a/", "a/a")] == ["a/b"]
        assert await child.list_names("a/") == ["b"]
        assert child.url.startswith(storage.url) and child.child("") == child

    run(check())


def test_a_storage_pickles(storage: Storage) -> None:
    async def check() -> None:
        await storage.put("a", b"1")
        twin = pickle.loads(pickle.dumps(storage.child("x")))
        assert twin == storage.child("x") and twin.url == storage.child("x").url
        await twin.put("b", b"2")
        assert await storage.get("x/b") == b"2"

    run(check())


def test_a_storage_serves_one_event_loop_after_the_other(storage: Storage) -> None:
    run(storage.put("a", b"1"))
    assert run(storage.get("a")) == b"1"


def test_conditional_writes_are_really_conditional(storage: Storage) -> None:
    run(check_conditional_writes(storage))
    assert run(storage.is_empty())
