"""Files that stay open between reads of small parts: nobody can tell, except by the time that it takes."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.blocking import run_blocking
from icefloe.errors import IcefloeError, ObjectNotFoundError, PermissionDeniedError
from icefloe.storage import local as local_files
from icefloe.storage import requests
from icefloe.storage.local import LocalStorage

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="nothing tells which files are open")
SIZE = 64
SECRET = b"S" * SIZE


def content(number: int) -> bytes:
    return bytes([number % 251 + 1]) * SIZE


@pytest.fixture(autouse=True)
def kept_on_any_file_system(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(local_files, "device_type", lambda device: "ext4")
    requests.KEPT_FILES.forget()
    yield
    requests.KEPT_FILES.forget()


def open_below(folder: Path) -> list[str]:
    """The files below a folder that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue  # that of the listing
        if path.startswith(f"{folder}/"):
            found.append(path)
    return found


def fresh(root: Path, key: str) -> bytes | type[IcefloeError]:
    """What a storage reads that has never read before."""
    try:
        return run_blocking(LocalStorage(root).get_range(key, 3, 9))
    except IcefloeError as error:
        return type(error)


async def read_now(storage: LocalStorage, key: str) -> bytes | None:
    return storage.read_now(key, 3, 9)


def read(storage: LocalStorage, key: str) -> bytes | type[IcefloeError]:
    """What a reader of single chunks gets."""
    found = run_blocking(read_now(storage, key))
    if found is not None and len(found) == 6:
        return found  # what is too short is asked for again, for its error
    try:
        return run_blocking(storage.get_range(key, 3, 9))
    except IcefloeError as error:
        return type(error)


def test_a_file_of_which_parts_are_read_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    (tmp_path / "pack").write_bytes(content(1))
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **named: opened.append(path) or real(path, *rest, **named))
    for _ in range(20):
        assert read(storage, "pack") == content(1)[3:9]
    assert opened == [str(tmp_path / "pack")]
    assert open_below(tmp_path) == [str(tmp_path / "pack")]


def test_a_file_that_is_read_whole_is_closed(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    (tmp_path / "chunk").write_bytes(content(1)[3:9])

    async def read_whole() -> bytes | None:
        return storage.read_now("chunk", 0, 6)

    assert run_blocking(read_whole()) == content(1)[3:9]
    assert open_below(tmp_path) == []


def _delete(root: Path, outside: Path) -> None:
    (root / "deep" / "pack").unlink()


def _replace(root: Path, outside: Path) -> None:
    (root / "deep" / "new").write_bytes(content(7))
    (root / "deep" / "new").rename(root / "deep" / "pack")


def _write_in_place(root: Path, outside: Path) -> None:
    with open(root / "deep" / "pack", "r+b") as file:
        file.write(content(9))


def _truncate(root: Path, outside: Path) -> None:
    os.truncate(root / "deep" / "pack", 5)


def _link_out(root: Path, outside: Path) -> None:
    (root / "deep" / "pack").unlink()
    (root / "deep" / "pack").symlink_to(outside / "pack")


def _move_out_and_link(root: Path, outside: Path) -> None:
    (root / "deep" / "pack").rename(outside / "moved")
    (root / "deep" / "pack").symlink_to(outside / "moved")


def _link_inside(root: Path, outside: Path) -> None:
    (root / "other").write_bytes(content(8))
    (root / "deep" / "pack").unlink()
    (root / "deep" / "pack").symlink_to(root / "other")


def _link_the_folder_out(root: Path, outside: Path) -> None:
    shutil.rmtree(root / "deep")
    (root / "deep").symlink_to(outside)


def _rename_the_folder(root: Path, outside: Path) -> None:
    (root / "deep").rename(root / "renamed")


def _make_the_folder_again(root: Path, outside: Path) -> None:
    (root / "deep").rename(root / "renamed")
    (root / "deep").mkdir()
    (root / "deep" / "pack").write_bytes(content(6))


def _put_a_folder_there(root: Path, outside: Path) -> None:
    (root / "deep" / "pack").unlink()
    (root / "deep" / "pack").mkdir()


def _move_the_repository(root: Path, outside: Path) -> None:
    root.rename(root.parent / "elsewhere")


CHANGES = [
    _delete,
    _replace,
    _write_in_place,
    _truncate,
    _link_out,
    _move_out_and_link,
    _link_inside,
    _link_the_folder_out,
    _rename_the_folder,
    _make_the_folder_again,
    _put_a_folder_there,
    _move_the_repository,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
def test_what_others_do_to_a_file_is_seen_by_the_next_read(tmp_path: Path, change: object) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "deep").mkdir(parents=True)
    outside.mkdir()
    (root / "deep" / "pack").write_bytes(content(1))
    (outside / "pack").write_bytes(SECRET)
    storage = LocalStorage(root)
    assert read(storage, "deep/pack") == content(1)[3:9]
    assert len(open_below(root)) == 1
    change(root, outside)  # type: ignore[operator]
    expected = fresh(root, "deep/pack")
    for _ in range(3):
        found = read(storage, "deep/pack")
        assert found == expected
        assert found != SECRET[3:9]


def test_a_folder_that_is_moved_out_is_not_followed_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "pack").write_bytes(content(1))
    storage = LocalStorage(root)
    assert read(storage, "deep/pack") == content(1)[3:9]
    (root / "deep").rename(tmp_path / "outside")
    (root / "deep").symlink_to(tmp_path / "outside")
    monkeypatch.setattr(requests, "_CHECKED_SECONDS", 0.0)
    assert read(storage, "deep/pack") is PermissionDeniedError


@given(st.lists(st.sampled_from(["read", "replace", "delete", "write", "link out", "link in", "append"]), max_size=20))
def test_any_sequence_of_changes_reads_like_a_storage_without_open_files(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    root, outside = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("outside")
    pack, storage = root / "pack", LocalStorage(root)
    (outside / "pack").write_bytes(SECRET)
    (root / "other").write_bytes(content(99))
    for number, step in enumerate(["replace", "read", *steps]):
        if step == "replace":
            (root / "new").write_bytes(content(number))
            (root / "new").rename(pack)
        elif step in ("link out", "link in"):
            pack.unlink(missing_ok=True)
            pack.symlink_to(outside / "pack" if step == "link out" else root / "other")
        elif step == "delete":
            pack.unlink(missing_ok=True)
        elif pack.exists() and not pack.is_symlink():
            if step == "write":
                pack.write_bytes(content(number)[: number + 1])
            elif step == "append":
                with open(pack, "ab") as file:
                    file.write(content(number))
        assert read(storage, "pack") == fresh(root, "pack")


def test_few_files_are_open_whatever_the_number_of_packs_and_repositories(tmp_path: Path) -> None:
    storages = []
    for number in range(20):
        root = tmp_path / str(number)
        root.mkdir()
        storages.append(LocalStorage(root))
        for pack in range(5):
            (root / f"p{pack}").write_bytes(content(5 * number + pack))
    for _ in range(2):
        for number, storage in enumerate(storages):
            for pack in range(5):
                assert read(storage, f"p{pack}") == content(5 * number + pack)[3:9]
                assert len(open_below(tmp_path)) <= requests._MOST_KEPT_FILES


async def test_files_that_are_not_used_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_KEPT_SECONDS", 0.2)
    storage = LocalStorage(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(content(1))
        assert storage.read_now(name, 3, 9) == content(1)[3:9]
    (tmp_path / "a").unlink()
    for _ in range(4):
        await asyncio.sleep(0.1)
        assert storage.read_now("b", 3, 9) == content(1)[3:9]
    assert open_below(tmp_path) == [str(tmp_path / "b")]
    await asyncio.sleep(0.5)
    assert open_below(tmp_path) == []
    assert storage.read_now("b", 3, 9) == content(1)[3:9]


def test_files_are_closed_after_the_loop_that_read_them_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_KEPT_SECONDS", 0.1)
    storage = LocalStorage(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(content(1))
    for _ in range(2):
        assert asyncio.run(read_now(storage, "a")) == content(1)[3:9]
        assert storage.read_now("b", 3, 9) == content(1)[3:9]
        assert sorted(open_below(tmp_path)) == [str(tmp_path / "a"), str(tmp_path / "b")]
        time.sleep(0.4)
        assert open_below(tmp_path) == []


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "overlay", ""])
def test_files_of_network_file_systems_are_not_kept_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(local_files, "device_type", lambda device: kind)
    storage = LocalStorage(tmp_path)
    (tmp_path / "pack").write_bytes(content(1))
    assert run_blocking(read_now(storage, "pack")) == content(1)[3:9]
    assert open_below(tmp_path) == []


def test_a_forked_child_closes_what_its_parent_had_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    (tmp_path / "pack").write_bytes(content(1))
    assert read(storage, "pack") == content(1)[3:9]
    child = os.fork()
    if child == 0:
        status = 1
        monkeypatch.setattr(requests, "_KEPT_SECONDS", 0.1)
        try:
            nothing_open = open_below(tmp_path) == []
            status = 0 if nothing_open and read(storage, "pack") == content(1)[3:9] else 2
            time.sleep(0.4)
            status = status or 3 * len(open_below(tmp_path))
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert open_below(tmp_path) == [str(tmp_path / "pack")]
    assert read(storage, "pack") == content(1)[3:9]


def test_threads_never_read_from_a_file_that_was_closed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_MOST_KEPT_FILES", 2)
    storage = LocalStorage(tmp_path)
    for number in range(12):
        (tmp_path / str(number)).write_bytes(content(number))
    wrong: list[object] = []

    def run(seed: int) -> None:
        async def reads() -> None:
            for step in range(1500):
                number = (seed * 7 + step * step) % 12
                found = storage.read_now(str(number), 3, 9)
                if found not in (None, content(number)[3:9]):
                    wrong.append((number, found))

        asyncio.run(reads())

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_deleted_object_is_missing_although_it_was_just_read(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    run_blocking(storage.put("chunks/pack", content(1)))
    assert read(storage, "chunks/pack") == content(1)[3:9]
    run_blocking(storage.delete(["chunks/pack"]))
    assert run_blocking(read_now(storage, "chunks/pack")) is None
    assert read(storage, "chunks/pack") is ObjectNotFoundError
    assert open_below(tmp_path) == []
