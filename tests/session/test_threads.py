"""One session written and read from many threads: no chunk is lost, no reader sees what is not there."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import SpecVersion

THREADS, ROWS, COLUMNS = 8, 64, 8
SIZES = {"inline": 8, "packed": 600, "large": 70_000}


@pytest.mark.long
@pytest.mark.parametrize("version", [version.value for version in SpecVersion])
@pytest.mark.parametrize("kind", SIZES)
def test_no_chunk_of_many_threads_is_lost(version: str, kind: str, tmp_path: Path) -> None:
    size = SIZES[kind] if kind != "large" or version == "repository" else 40_000
    rows = ROWS if kind != "large" else 16
    config = icefloe.RepositoryConfig(
        chunk_packing=icefloe.ChunkPackingConfig(threshold_bytes=100_000, target_bytes=100_000)
    )
    repo = icefloe.Repository.create(tmp_path / "repository", config=None, spec_version=version)
    repo = repo.reopen(config=config)
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store,
        name="a",
        shape=(rows, COLUMNS, size // 8),
        chunks=(1, 1, size // 8),
        dtype="i8",
        compressors=None,
    )
    written = np.zeros((rows, COLUMNS), dtype=bool)
    failures: list[str] = []
    finished = threading.Event()

    def write(row: int) -> None:
        for column in range(COLUMNS):
            array[row, column] = 1 + row * COLUMNS + column
            written[row, column] = True

    def read() -> None:
        own = zarr.open_array(session.store, path="a", mode="r")
        while not finished.is_set():
            known = written.copy()
            values = own[:, :, 0]
            expected = 1 + np.arange(rows * COLUMNS).reshape(rows, COLUMNS)
            if not ((values == expected) | ((values == 0) & ~known)).all():
                failures.append("a chunk that was written does not read back")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(write, range(rows)))
    finally:
        finished.set()
        for reader in readers:
            reader.join()
    assert not failures
    session.commit("all")
    values = zarr.open_array(icefloe.Repository.open(tmp_path / "repository").readonly_session("main").store, path="a")
    np.testing.assert_array_equal(values[:, :, 0], 1 + np.arange(rows * COLUMNS).reshape(rows, COLUMNS))
    np.testing.assert_array_equal(values[:, :, -1], values[:, :, 0])


def test_threads_that_create_arrays_and_groups_in_one_session_keep_them_all(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(tmp_path / "repository")
    session = repo.writable_session("main")
    root = zarr.group(session.store)

    def create(number: int) -> None:
        group = root.create_group(f"g{number}")
        group.create_array("a", shape=(4,), chunks=(2,), dtype="i4")[:] = number
        group.attrs["number"] = number

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(create, range(100)))
    session.commit("all")
    found = zarr.open_group(repo.readonly_session("main").store, mode="r")
    assert {name: group.attrs["number"] for name, group in found.groups()} == {f"g{n}": n for n in range(100)}
    assert all((group["a"][:] == group.attrs["number"]).all() for _, group in found.groups())


def test_threads_that_commit_to_one_branch_through_one_repository_lose_nothing(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(tmp_path / "repository")
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(THREADS, 10), chunks=(1, 1), dtype="i4")

    def work(row: int) -> None:
        for column in range(10):
            session = repo.writable_session("main")
            zarr.open_array(session.store, path="a", mode="r+")[row, column] = 1
            session.commit("step", rebase_with=icefloe.ConflictDetector())

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    assert zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:].all()
    assert sum(1 for _ in repo.ancestry(branch="main")) == THREADS * 10 + 2
