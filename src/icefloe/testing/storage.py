"""The contract of a storage as tests that anyone's storage can run. Needs pytest.

Subclass `StorageContract` in your own tests and define a fixture `storage` that returns an empty storage:

```python
import pytest

from icefloe.testing import StorageContract


class TestMyStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return MyStorage(tmp_path)
```
"""

from __future__ import annotations

import asyncio
import datetime as dt
import pickle
from collections.abc import Coroutine
from typing import Any, TypeVar

import numpy as np
import pytest

from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
    VersionMismatchError,
)
from icefloe.storage.contract import ObjectInfo, Storage, Version
from icefloe.storage.remote import check_conditional_writes

T = TypeVar("T")

ODD_NAMES = ["50% #1?", "é", "tag.", "tag..", "a b!:", 'x[1]{2}^~`|*<>"', "%25", "back\\slash", "日本", ".hidden"]


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


async def _listed(storage: Storage, prefix: str, after: str | None = None) -> list[ObjectInfo]:
    return [info async for page in storage.list(prefix, after=after) for info in page]


class StorageContract:
    """What every storage promises, as tests.

    A subclass defines the fixture `storage`, an empty `icefloe.Storage`. It may override the fixture `odd_names`
    if the store does not take some of the names.
    """

    @pytest.fixture
    def odd_names(self) -> list[str]:
        """Names with characters that stores and URLs treat specially."""
        return ODD_NAMES

    def test_what_was_put_is_read_back_whole_and_in_parts(self, storage: Storage) -> None:
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

        _run(check())

    def test_a_range_that_starts_behind_the_end_is_an_error(self, storage: Storage) -> None:
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

        _run(check())

    def test_every_kind_of_buffer_and_an_empty_object_can_be_written(self, storage: Storage) -> None:
        async def check() -> None:
            numbers: Any = np.arange(10, dtype="<i4")
            buffers: dict[str, Any] = {"a": bytearray(b"abc"), "b": memoryview(b"abc"), "c": memoryview(numbers)}
            for name, data in buffers.items():
                await storage.put(name, data)
                await storage.create(f"new-{name}", data)
                assert await storage.get(name) == await storage.get(f"new-{name}") == bytes(data)
            await storage.put("empty", b"")
            assert await storage.get("empty") == b""
            assert (await storage.head("empty")).size_bytes == 0

        _run(check())

    def test_a_missing_key_is_not_found_by_any_read(self, storage: Storage) -> None:
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

        _run(check())

    def test_create_succeeds_once(self, storage: Storage) -> None:
        async def check() -> None:
            version = await storage.create("refs/a/ref.json", b"one", metadata={"a": "b"})
            assert (await storage.get_versioned("refs/a/ref.json")).version == version
            with pytest.raises(AlreadyExistsError):
                await storage.create("refs/a/ref.json", b"two")
            with pytest.raises(AlreadyExistsError):
                await storage.create("refs/a/ref.json", b"two", unique=False)
            assert await storage.get("refs/a/ref.json") == b"one"

        _run(check())

    def test_only_the_current_version_can_be_swapped(self, storage: Storage) -> None:
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

        _run(check())

    def test_of_many_tasks_one_creates_and_no_increment_is_lost(self, storage: Storage) -> None:
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

        _run(check())

    def test_listing_is_sorted_recursive_and_starts_after_a_key(self, storage: Storage) -> None:
        async def check() -> None:
            keys = ["a!", "a-b", "a/b", "a/c/d", "a0", "b/1", "b/2", "b/3", "refs/branch.main/ZZZZZZZY.json"]
            for key in keys:
                await storage.put(key, key.encode())
            found = await _listed(storage, "")
            assert [info.key for info in found] == sorted(keys)
            assert [info.size_bytes for info in found] == [len(key) for key in sorted(keys)]
            assert [info.key for info in await _listed(storage, "a/")] == ["a/b", "a/c/d"]
            for after in [*keys, "a/", "b", "zz", "0", "b/25"]:
                assert [i.key for i in await _listed(storage, "", after)] == [k for k in sorted(keys) if k > after]
            assert [info.key for info in await _listed(storage, "b/", "b/1")] == ["b/2", "b/3"]
            assert await _listed(storage, "nothing/") == []
            assert await storage.list_names("") == ["a!", "a-b", "a/", "a0", "b/", "refs/"]
            assert await storage.list_names("a/") == ["b", "c/"]
            assert await storage.list_names("nothing/") == []

        _run(check())

    def test_a_long_listing_comes_in_pages_and_the_first_ones_come_first(self, storage: Storage) -> None:
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

        _run(check())

    def test_deleting_what_is_not_there_is_no_error(self, storage: Storage) -> None:
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

        _run(check())

    def test_a_copy_is_made_only_of_the_version_that_was_meant(self, storage: Storage) -> None:
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

        _run(check())

    def test_odd_names_are_kept_as_they_are(self, storage: Storage, odd_names: list[str]) -> None:
        async def check() -> None:
            for name in odd_names:
                await storage.create(f"refs/{name}/ref.json", name.encode())
            assert await storage.list_names("refs/") == sorted(f"{name}/" for name in odd_names)
            assert [info.key for info in await _listed(storage, "refs/")] == sorted(
                f"refs/{n}/ref.json" for n in odd_names
            )
            for name in odd_names:
                assert await storage.get(f"refs/{name}/ref.json") == name.encode()
                assert await storage.list_names(f"refs/{name}/") == ["ref.json"]
            await storage.delete([f"refs/{name}/ref.json" for name in odd_names])
            assert await storage.list_names("refs/") == []

        _run(check())

    @pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/..", ".", "a/./b", "a\0b", "\ud800"])
    def test_a_key_that_leads_elsewhere_is_refused(self, storage: Storage, key: str) -> None:
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

        _run(check())

    def test_a_child_is_the_same_storage_one_folder_deeper(self, storage: Storage) -> None:
        async def check() -> None:
            child = storage.child("inner/deep")
            await child.put("a/b", b"1")
            assert await storage.get("inner/deep/a/b") == b"1"
            assert [info.key for info in await _listed(child, "")] == ["a/b"]
            assert [info.key for info in await _listed(child, "a/", "a/a")] == ["a/b"]
            assert await child.list_names("a/") == ["b"]
            assert child.url.startswith(storage.url) and child.child("") == child

        _run(check())

    def test_a_storage_pickles(self, storage: Storage) -> None:
        async def check() -> None:
            await storage.put("a", b"1")
            twin = pickle.loads(pickle.dumps(storage.child("x")))
            assert twin == storage.child("x") and twin.url == storage.child("x").url
            await twin.put("b", b"2")
            assert await storage.get("x/b") == b"2"

        _run(check())

    def test_a_storage_serves_one_event_loop_after_the_other(self, storage: Storage) -> None:
        _run(storage.put("a", b"1"))
        assert _run(storage.get("a")) == b"1"

    def test_conditional_writes_are_really_conditional(self, storage: Storage) -> None:
        _run(check_conditional_writes(storage))
        assert _run(storage.is_empty())

    def test_names_are_listed_by_length_and_looked_up_without_the_rest(self, storage: Storage) -> None:
        async def check() -> None:
            for name, data in {"AAAA": b"1", "BBBB": b"22", "LONGER": b"333"}.items():
                await storage.put(f"chunks/{name}", data)
            await storage.put("chunks/SUB/AAAA", b"4444")
            names = await storage.list_names_of_length("chunks/", 4)
            assert sorted(names) == [b"AAAA", b"BBBB"]
            sizes, times = await storage.stat_names("chunks/", [b"BBBB", b"GONE", b"AAAA"])
            assert list(sizes) == [2, -1, 1] and times[1] == -1
            for name, time in (("BBBB", times[0]), ("AAAA", times[2])):
                modified = (await storage.head(f"chunks/{name}")).last_modified.timestamp()
                # Some stores show whole seconds in one place and fractions in the other.
                assert abs(time / 1e9 - modified) < 2
            assert list(await storage.list_names_of_length("nothing/", 4)) == []
            assert [list(column) for column in await storage.stat_names("nothing/", [b"AAAA"])] == [[-1], [-1]]

        _run(check())

    def test_a_condition_is_a_version_or_that_there_is_nothing(self, storage: Storage) -> None:
        async def check() -> None:
            first = await storage.write_if("state", b"one", None)
            with pytest.raises(AlreadyExistsError):
                await storage.write_if("state", b"two", None)
            second = await storage.write_if("state", b"two", first)
            with pytest.raises(VersionMismatchError):
                await storage.write_if("state", b"three", first)
            assert (await storage.get_versioned("state")).version == second

        _run(check())

    def test_cleaning_up_and_syncing_keep_every_object(self, storage: Storage) -> None:
        async def check() -> None:
            await storage.put("a/b", b"1")
            await storage.make_durable()
            assert await storage.remove_leftovers(dt.timedelta(0)) == 0
            assert await storage.get("a/b") == b"1"

        _run(check())
