"""Symbolic links inside of a repository or a container lead nowhere outside, whenever they are put there."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.blocking import run_blocking
from icefloe.errors import IcefloeError, PermissionDeniedError, VirtualChunkError
from icefloe.model.capabilities import SpecVersion
from icefloe.storage.local import LocalStorage

SECRET = b"TOPSECRETBYTES!!"
ALONE = icefloe.RepositoryConfig(
    inline_chunk_threshold_bytes=0, chunk_packing=icefloe.ChunkPackingConfig(enabled=False)
)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    return folder


def _read(repo: icefloe.Repository) -> bytes:
    return bytes(zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:])


def _write(repo: icefloe.Repository, value: int) -> None:
    with repo.transaction("main", message="x") as store:
        zarr.create_array(store, name="a", shape=(16,), chunks=(16,), dtype="u1", compressors=None, overwrite=True)[
            :
        ] = value


@pytest.mark.parametrize("version", list(SpecVersion))
def test_no_file_of_a_repository_is_read_through_a_link_that_leads_out(
    tmp_path: Path, outside: Path, version: SpecVersion
) -> None:
    root = tmp_path / "repo"
    _write(icefloe.Repository.create(str(root), ALONE, spec_version=version), 1)
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        content = path.read_bytes()
        (outside / "copy").write_bytes(content)
        path.unlink()
        path.symlink_to(outside / "copy")
        assert not _followed(root, path)
        path.unlink()
        path.write_bytes(content)
    assert _read(icefloe.Repository.open(str(root))) == b"\1" * 16


def _followed(root: Path, path: Path) -> bool:
    storage = LocalStorage(root)
    try:
        run_blocking(storage.get(str(path.relative_to(root))))
    except PermissionDeniedError:
        return False
    return True


def test_a_folder_that_is_a_link_takes_no_writes_and_no_deletions(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "repo"
    repo = icefloe.Repository.create(str(root), ALONE)
    _write(repo, 1)
    (root / "chunks").rename(tmp_path / "elsewhere")
    (root / "chunks").symlink_to(tmp_path / "elsewhere")
    before = sorted(os.listdir(tmp_path / "elsewhere"))
    for use in (
        lambda: _read(icefloe.Repository.open(str(root))),
        lambda: _write(icefloe.Repository.open(str(root)), 2),
        lambda: icefloe.Repository.open(str(root)).garbage_collect(dt.timedelta(0)),
    ):
        with pytest.raises(IcefloeError):
            use()
    assert sorted(os.listdir(tmp_path / "elsewhere")) == before


OPERATIONS: dict[str, Callable[[LocalStorage, str], Any]] = {
    "get": lambda storage, key: storage.get(key),
    "get_versioned": lambda storage, key: storage.get_versioned(key),
    "get_range": lambda storage, key: storage.get_range(key, 0, 4),
    "head": lambda storage, key: storage.head(key),
    "put": lambda storage, key: storage.put(f"{key}.new", b"x"),
    "create": lambda storage, key: storage.create(f"{key}.other", b"x"),
    "copy": lambda storage, key: storage.copy(key, "copied"),
    "delete": lambda storage, key: storage.delete([key]),
    "list_names": lambda storage, key: storage.list_names("linked/"),
    "names": lambda storage, key: storage.list_names_of_length("linked/", 6),
    "stat": lambda storage, key: storage.stat_names("linked/", [b"secret"]),
}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_operation_goes_through_a_folder_that_leads_out(tmp_path: Path, outside: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "linked").symlink_to(outside)
    for storage in (LocalStorage(root), LocalStorage(root, encoded=False)):
        with pytest.raises(PermissionDeniedError, match="leads out"):
            run_blocking(OPERATIONS[name](storage, "linked/secret"))
        with pytest.raises(PermissionDeniedError, match="leads out"):
            run_blocking(storage.child("linked").get("secret"))
        with pytest.raises(PermissionDeniedError, match="leads out"):
            run_blocking(storage.put("linked/deep/er/x", b"x"))
    assert sorted(os.listdir(outside)) == ["secret"] and (outside / "secret").read_bytes() == SECRET
    assert not (root / "copied").exists()


def test_listings_leave_out_links_that_lead_out_or_in_circles(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "folder" / "file").write_bytes(b"x")
    (root / "folder" / "circle").symlink_to(root)
    (root / "folder" / "out").symlink_to(outside)
    (root / "folder" / "secret").symlink_to(outside / "secret")
    (root / "folder" / "same").symlink_to(root / "folder" / "file")
    (root / "folder" / "nothing").symlink_to(root / "gone")
    storage = LocalStorage(root)

    async def keys() -> list[str]:
        return [item.key async for page in storage.list("") for item in page]

    assert run_blocking(keys()) == ["folder/file", "folder/same"]
    assert run_blocking(storage.get("folder/same")) == b"x"


def test_a_root_that_is_a_link_is_the_callers_choice(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    storage = LocalStorage(tmp_path / "link")
    run_blocking(storage.put("a/b", b"x"))
    assert run_blocking(storage.get("a/b")) == b"x"
    (tmp_path / "real").rename(tmp_path / "moved")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    assert run_blocking(storage.get("a/b")) == b"x"


def test_nobody_waits_for_a_pipe_among_the_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(IcefloeError):
        run_blocking(LocalStorage(tmp_path).get("pipe"))


def _virtual(folder: Path) -> icefloe.Repository:
    config = icefloe.RepositoryConfig.default()
    prefix = f"file://{folder}/"
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(folder)))
    )
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, {prefix: None})
    with repo.transaction("main", message="x") as store:
        zarr.create_array(store, name="a", shape=(16,), chunks=(16,), dtype="u1", compressors=None)
        store.set_virtual_ref("a/c/0", f"{prefix}deep/x", offset=0, length=16)
    return repo


def test_a_link_that_is_put_into_a_container_later_is_not_followed(tmp_path: Path, outside: Path) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "x").write_bytes(b"innocent bytes..")
    repo = _virtual(data)
    assert _read(repo) == b"innocent bytes.."
    (data / "deep" / "x").unlink()
    (data / "deep" / "x").symlink_to(outside / "secret")
    with pytest.raises(VirtualChunkError, match="leads out"):
        _read(repo)
    (data / "deep" / "x").unlink()
    (data / "deep").rmdir()
    (outside / "x").write_bytes(SECRET)
    (data / "deep").symlink_to(outside)
    with pytest.raises(VirtualChunkError, match="leads out"):
        _read(repo)


def test_no_race_lets_a_link_be_followed(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "root"
    (root / "one").mkdir(parents=True)
    (root / "one" / "x").write_bytes(b"innocent bytes..")
    (outside / "x").write_bytes(SECRET)
    (root / "now").symlink_to("one")
    storage = LocalStorage(root)
    stopped = threading.Event()

    def exchange() -> None:
        while not stopped.is_set():
            for target in (str(outside), "one"):
                os.symlink(target, root / "next")
                os.rename(root / "next", root / "now")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        seen = set()
        for _ in range(3000):
            try:
                seen.add(run_blocking(storage.get("now/x")))
            except IcefloeError:
                seen.add(b"refused")
    finally:
        stopped.set()
        thread.join()
    assert SECRET not in seen
