"""What only local files promise: names others find, nothing half written, nothing left over."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import LocalStore

from icefloe.errors import (
    AlreadyExistsError,
    IcefloeError,
    InvalidInputError,
    PermissionDeniedError,
    UnsupportedError,
    VersionMismatchError,
)
from icefloe.ingest.access import SourceAccess
from icefloe.storage import durability
from icefloe.storage import local as local_files
from icefloe.storage.contract import Version
from icefloe.storage.local import LocalStorage
from icefloe.storage.requests import check_key, decode_key, encode_key

PARTS = st.text(min_size=1, max_size=30).filter(
    lambda part: part not in (".", "..") and "/" not in part and "\0" not in part and part.isprintable()
)


@given(st.lists(PARTS, min_size=1, max_size=4))
def test_an_encoded_key_decodes_to_itself_and_has_no_bare_special(parts: list[str]) -> None:
    key = "/".join(parts)
    encoded = encode_key(check_key(key))
    assert decode_key(encoded) == key
    assert encoded.isascii() and not set(encoded.replace("%", "")) & set('\\{^}`]">[~<#|*?')
    assert encoded.count("/") == key.count("/")


def test_keys_are_encoded_as_the_official_package_does() -> None:
    assert encode_key("refs/tag.50% #1?/ref.json") == "refs/tag.50%25 %231%3F/ref.json"
    assert encode_key("a b!:$&'()+,;=@-_.") == "a b!:$&'()+,;=@-_."
    assert encode_key("é\x7f\x01") == "%C3%A9%7F%01"


@given(st.lists(PARTS, min_size=1, max_size=3, unique=True))
def test_any_name_comes_back_from_a_listing(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    storage = LocalStorage(tmp_path_factory.mktemp("names"))

    async def check() -> None:
        short = [name for name in names if len(encode_key(name)) < 200]
        for name in short:
            await storage.put(name, name.encode())
        assert await storage.list_names("") == sorted(short)
        assert [info.key async for page in storage.list("") for info in page] == sorted(short)

    asyncio.run(check())


async def test_unfinished_files_are_in_no_listing_of_ours_or_of_obstore(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    await storage.put("chunks/one", b"1")
    (tmp_path / "chunks" / ".new#123").write_bytes(b"half")
    (tmp_path / "chunks" / "two#4").write_bytes(b"half")
    (tmp_path / "chunks" / ".lock#0").write_bytes(b"")
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    assert await storage.list_names("chunks/") == ["one"]
    assert await storage.list_names("") == ["chunks/"]
    assert [info.key async for page in storage.list("") for info in page] == ["chunks/one"]
    assert [meta["path"] for meta in LocalStore(tmp_path).list().collect()] == ["chunks/one"]
    assert await storage.remove_leftovers(dt.timedelta(hours=1)) == 0
    assert await storage.remove_leftovers(dt.timedelta(seconds=-5)) == 1
    assert not (tmp_path / "chunks" / ".new#123").exists()


async def test_writes_leave_nothing_beside_the_object(tmp_path: Path) -> None:
    for fsync in (False, True):
        storage = LocalStorage(tmp_path / str(fsync), fsync=fsync)
        await storage.put("a/k", b"1")
        await storage.put("a/k", b"2")
        version = await storage.create("a/c", b"1")
        version = await storage.swap("a/c", b"2", version)
        with pytest.raises(VersionMismatchError):
            await storage.swap("a/c", b"3", Version(etag="x"))
        await storage.copy("a/c", "a/d", version=version)
        assert sorted(os.listdir(tmp_path / str(fsync) / "a")) == ["c", "d", "k"]


async def test_a_reader_sees_the_old_or_the_new_file_and_nothing_between(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    size = 200_000
    await storage.put("k", b"0" * size)
    done = threading.Event()
    mixed: list[bytes] = []

    def read() -> None:
        while not done.is_set():
            data = (tmp_path / "k").read_bytes()
            if data != data[:1] * size:
                mixed.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    version = (await storage.get_versioned("k")).version
    for number in range(200):
        version = await storage.swap("k", str(number % 10).encode() * size, version)
    done.set()
    reader.join()
    assert mixed == []


async def test_equal_size_time_and_inode_are_not_mistaken_for_the_same_version(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    version = await storage.create("state", b"aaaa")
    before = os.stat(tmp_path / "state")
    fd = os.open(tmp_path / "state", os.O_WRONLY)
    os.write(fd, b"bbbb")
    os.close(fd)
    os.utime(tmp_path / "state", ns=(before.st_atime_ns, before.st_mtime_ns))
    after = os.stat(tmp_path / "state")
    assert (before.st_ino, before.st_mtime_ns, before.st_size) == (after.st_ino, after.st_mtime_ns, after.st_size)
    with pytest.raises(VersionMismatchError):
        await storage.swap("state", b"cccc", version)


async def test_without_hard_links_creation_is_still_exclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(local_files.os, "link", refuse)
    storage = LocalStorage(tmp_path)
    await storage.create("a/k", b"1")
    assert await storage.get("a/k") == b"1"
    with pytest.raises(FileExistsError):
        local_files.create_file(str(tmp_path / "a" / "k"), b"2", None, local_files.Bounds(str(tmp_path)))
    assert os.listdir(tmp_path / "a") == ["k"]


async def test_without_proc_files_are_written_and_links_still_lead_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chroot or a sandbox may have no /proc."""
    readlink = os.readlink

    def refuse(path: Any, **options: Any) -> Any:
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(path)
        return readlink(path, **options)

    monkeypatch.setattr(local_files.os, "readlink", refuse)
    storage = LocalStorage(tmp_path / "root")
    await storage.put("a/b", b"1")
    await storage.create("a/c", b"2")
    assert [await storage.get(key) for key in ("a/b", "a/c")] == [b"1", b"2"]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root" / "x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IcefloeError, match="leads out"):
        await storage.put("x/y", b"3")
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_file_where_a_folder_should_be_is_a_clear_error(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    await storage.put("a", b"1")
    for write in (storage.put("a/b", b"2"), storage.create("a/b", b"2")):
        with pytest.raises(UnsupportedError, match="existing folder"):
            await write
    with pytest.raises(InvalidInputError, match="longer"):
        await storage.put("x" * 300, b"")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_folder_without_permission_is_a_clear_error(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o500)
    with pytest.raises(PermissionDeniedError):
        await LocalStorage(tmp_path).put("a", b"1")


async def test_the_etag_is_the_one_other_users_of_the_files_see(tmp_path: Path) -> None:
    await LocalStorage(tmp_path).put("k", b"123")
    seen = LocalStore(tmp_path).head("k")["e_tag"]
    assert seen is not None
    assert (await LocalStorage(tmp_path).head("k")).version == Version(etag=seen.strip('"'))


async def test_a_slow_file_system_is_asked_from_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    await storage.put("k", b"1")
    asked_from: list[int] = []
    real = local_files.read_file

    def slow(path: str, bounds: local_files.Bounds) -> bytes:
        import time

        asked_from.append(threading.get_ident())
        time.sleep(0.02)
        return real(path, bounds)

    monkeypatch.setattr(local_files, "read_file", slow)
    for _ in range(8):
        assert await storage.get("k") == b"1"
    assert asked_from[0] == threading.get_ident() != asked_from[-1]


async def test_many_files_are_deleted_whatever_is_gone_already(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    (tmp_path / "chunks").mkdir()
    keys = [f"chunks/{number}" for number in range(1000)]
    for key in keys[::2]:
        (tmp_path / key).write_bytes(b"1")
    (tmp_path / "chunks" / "kept").write_bytes(b"1")
    (tmp_path / "chunks" / "folder").mkdir()
    await storage.delete([*keys, "chunks/folder", "elsewhere/1"])
    assert sorted(os.listdir(tmp_path / "chunks")) == ["folder", "kept"]


async def test_a_deletion_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    keys = [f"chunks/{number}" for number in range(1000)]
    for key in keys:
        await storage.put(key, b"1")
    unlink = os.unlink

    def deny(path: str, **options: Any) -> None:
        if path == "500":
            raise PermissionError(13, "Permission denied", path)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", deny)
    with pytest.raises(PermissionDeniedError):
        await storage.delete(keys)
    left = {int(name) for name in os.listdir(tmp_path / "chunks")}
    assert 500 in left and len(left) < 100


async def test_a_deletion_waits_for_a_swap_under_way(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    await storage.put("refs/main", b"1")
    with local_files.folder_lock(str(tmp_path / "refs")):
        deleting = asyncio.ensure_future(storage.delete(["refs/main"]))
        await asyncio.sleep(0.1)
        assert not deleting.done() and await storage.get("refs/main") == b"1"
    await deleting
    assert not await storage.exists("refs/main")


class _ShortCalls:
    """The operating system, with calls that read and write at most so many bytes, as POSIX allows."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def read(self, fd: int, count: int) -> bytes:
        return os.read(fd, min(count, self._most_bytes))

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        return os.pread(fd, min(count, self._most_bytes), offset)

    def write(self, fd: int, data: Any) -> int:
        return os.write(fd, memoryview(data)[: self._most_bytes])


@given(st.binary(max_size=60), st.integers(1, 70), st.integers(0, 60), st.integers(0, 2**63))
def test_files_are_read_and_written_whole_however_little_one_call_moves(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, most_bytes: int, start: int, length: int
) -> None:
    folder = tmp_path_factory.mktemp("short")
    end = start + length

    async def check() -> None:
        storage = LocalStorage(folder)
        await storage.put("k", data)
        assert await storage.get("k") == (await storage.get_versioned("k")).data == data
        await storage.copy("k", "copy")
        version = await storage.create("c", data)
        await storage.swap("c", data + data, version)
        assert (folder / "copy").read_bytes() == data and (folder / "c").read_bytes() == data + data
        if start < len(data):
            assert await storage.get_ranges("k", [start, 0, start], [end, 1, start]) == [data[start:end], data[:1], b""]
            assert SourceAccess().read_ranges((folder / "k").as_uri(), [start], [end]) == [data[start:end]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_files, "os", _ShortCalls(most_bytes))
        asyncio.run(check())


@pytest.mark.slow
async def test_more_bytes_than_one_call_of_the_system_moves_are_read(tmp_path: Path) -> None:
    size = 2**31 + 5000
    with (tmp_path / "k").open("wb") as file:
        file.truncate(size)
        file.seek(size - 1)
        file.write(b"9")
    storage = LocalStorage(tmp_path)
    assert len(await storage.get("k")) == size
    part = await storage.get_range("k", 1, size)
    assert len(part) == size - 1 and part[-1:] == b"9"


class _RepeatedRequests:
    """The operating system on a network file system that lost its answers: what was done is asked for once more."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)
        os.rename(source, target)


async def test_a_link_or_rename_that_was_repeated_is_not_a_lost_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "os", _RepeatedRequests())
    storage = LocalStorage(tmp_path)
    version = await storage.create("refs/a", b"1")
    with pytest.raises(AlreadyExistsError):
        await storage.create("refs/a", b"2")
    await storage.swap("refs/a", b"3", version)
    await storage.put("refs/b", b"4")
    assert sorted(os.listdir(tmp_path / "refs")) == ["a", "b"]
    assert await storage.get("refs/a") == b"3" and await storage.get("refs/b") == b"4"


async def test_leftover_files_that_vanish_while_they_are_looked_for_are_passed_over(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, fsync=False)
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            local_files.write_file(f"{tmp_path}/k{number % 7}", b"x", None, local_files.Bounds(str(tmp_path)))

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    for _ in range(400):
        assert await storage.remove_leftovers(dt.timedelta(hours=1)) == 0
    done.set()
    for writer in writers:
        writer.join()


@pytest.mark.skipif(durability._SYNC_FILE_RANGE is None, reason="only Linux begins to write a file on request")
async def test_only_large_files_whose_writes_are_synced_later_are_begun_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun = durability._SYNC_FILE_RANGE, []

    def recorded(fd: int, *arguments: int) -> int:
        begun.append((os.fstat(fd).st_size, real(fd, *arguments)))
        return 0

    monkeypatch.setattr(durability, "_SYNC_FILE_RANGE", recorded)
    large = np.arange(durability._BEGUN_BYTES // 4, dtype="u4")
    durable, fast = LocalStorage(tmp_path / "durable"), LocalStorage(tmp_path / "fast", fsync=False)
    for storage in (durable, fast):
        await storage.put("large", large)
        await storage.put("small", large.data.cast("B")[1:])
        assert await storage.get("large") == large.tobytes()
    await durable.put("large", large)  # what replaces a file is synced at once
    assert begun == [(large.nbytes, 0)]


def test_beginning_to_write_what_is_no_file_does_nothing() -> None:
    reading, writing = os.pipe()
    try:
        durability.begin_writing(writing, durability._BEGUN_BYTES)
    finally:
        os.close(reading)
        os.close(writing)


class _SlowDisk:
    """The operating system with a disk that needs some time, and a record of the threads that waited for it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.threads: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, fd: int) -> None:
        self.threads.append(threading.get_ident())
        time.sleep(self.seconds)


async def test_other_tasks_go_on_while_a_write_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, turns = _SlowDisk(0.05), 0
    monkeypatch.setattr(durability, "os", disk)
    storage = LocalStorage(tmp_path, fsync=True)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    counting = asyncio.create_task(count_turns())
    await storage.create("a", b"1")
    counting.cancel()
    assert turns > 5


async def test_a_fast_disk_is_waited_for_in_the_same_thread_until_it_becomes_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, here = _SlowDisk(0), threading.get_ident()
    monkeypatch.setattr(durability, "os", disk)
    storage = LocalStorage(tmp_path, fsync=True)
    await storage.create("fast", b"1")
    assert disk.threads[-1] == here, "nobody else needs the thread of the event loop"
    found = await storage.get_versioned("fast")
    await storage.swap("fast", b"2", found.version)
    assert disk.threads[-1] != here, "a swap may wait for other processes"
    disk.seconds = 0.02
    for number in range(10):
        await storage.create(f"slow{number}", b"1")
    assert disk.threads[-1] != here
