"""References cross the public door as columns: any coordinates, any columnar form, ten million in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.blocking import run_blocking
from icefloe.cli.app import main
from icefloe.errors import InvalidInputError, ReadOnlyError, VirtualChunkError

PREFIX = "s3://archive/"
GRID = (6, 5)


def configured() -> icefloe.RepositoryConfig:
    config = icefloe.RepositoryConfig.default()
    container = icefloe.VirtualChunkContainer(PREFIX, icefloe.s3_store(region="us-east-1"))
    config.set_virtual_chunk_container(container)
    return config


def new_session(storage: icefloe.Storage | None = None, grid: tuple[int, ...] = GRID) -> tuple[Any, icefloe.Session]:
    repo = icefloe.Repository.create(storage or icefloe.in_memory_storage(), configured())
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="v", shape=grid, chunks=(1,) * len(grid), dtype="i1")
    return repo, session


def references(session: icefloe.Session, path: str = "/v") -> dict[tuple[int, ...], tuple[str, int, int]]:
    state = session.state
    table = run_blocking(state.chunk_table(state.tree.array(path)))
    rows = (table.row(index) for index in range(len(table)))
    return {
        tuple(coords): (str(ref.location), ref.offset, ref.length)
        for coords, ref in zip(table.coords.tolist(), rows, strict=True)
    }


rows_of_references = st.lists(
    st.tuples(
        st.integers(0, GRID[0] - 1),
        st.integers(0, GRID[1] - 1),
        st.sampled_from(["", PREFIX + "a.nc", PREFIX + "b.nc"]),
        st.integers(0, 2**40),
        st.integers(1, 2**30),
    ),
    max_size=40,
)


@given(st.lists(rows_of_references, max_size=3), st.sampled_from(["lists", "numpy", "arrow", "dictionary"]))
def test_columns_in_any_order_do_what_one_by_one_would(batches: list[list[tuple[Any, ...]]], form: str) -> None:
    _, session = new_session()
    expected: dict[tuple[int, ...], tuple[str, int, int]] = {}
    for batch in batches:
        y, x, texts, offsets, lengths = (list(column) for column in zip(*batch, strict=True)) if batch else ([],) * 5
        coords: Any = np.array([y, x], dtype="i8").T.reshape(len(batch), 2)
        locations: Any = texts
        if form == "arrow":
            coords, locations = (pa.array(y, pa.int32()), pa.array(x, pa.int64())), pa.array(texts, pa.string())
        elif form == "dictionary":
            locations = pa.array(texts, pa.string()).dictionary_encode()
        elif form == "numpy":
            locations = np.array(texts, dtype=object)
        session.store.set_virtual_refs_columns(
            "/v", coords, locations, np.array(offsets, dtype="u8"), np.array(lengths, dtype="i8")
        )
        expected |= {(a, b): (text, offset, length) for a, b, text, offset, length in batch if text}
    assert references(session) == expected


def test_columns_are_committed_and_one_location_may_stand_for_all() -> None:
    repo, session = new_session()
    rows = np.array([[5, 4], [0, 0], [2, 3]])
    session.store.set_virtual_refs_columns("v", rows, PREFIX + "a.nc", np.array([20, 0, 10]), np.array([1, 2, 3]))
    session.commit("three")
    assert references(repo.readonly_session("main")) == {
        (0, 0): (PREFIX + "a.nc", 0, 2),
        (2, 3): (PREFIX + "a.nc", 10, 3),
        (5, 4): (PREFIX + "a.nc", 20, 1),
    }


@pytest.mark.parametrize(
    ("coords", "location", "offsets", "lengths", "error", "told"),
    [
        (np.zeros((2, 3), int), "a.nc", [0, 0], [1, 1], InvalidInputError, "2 dimension"),
        (np.zeros(2, int), "a.nc", [0, 0], [1, 1], InvalidInputError, "row per chunk"),
        ((np.zeros(2, int), np.zeros(3, int)), "a.nc", [0, 0], [1, 1], InvalidInputError, "different lengths"),
        (np.array([[6, 0]]), "a.nc", [0], [1], InvalidInputError, "grid"),
        (np.array([[-1, 0]]), "a.nc", [0], [1], InvalidInputError, "whole numbers"),
        (np.array([[0.5, 0]]), "a.nc", [0], [1], InvalidInputError, "whole numbers"),
        (np.array([[0, 0]]), "a.nc", [0, 1], [1], InvalidInputError, "offsets"),
        (np.array([[0, 0]]), "a.nc", [0], [0], InvalidInputError, "length 0"),
        (np.array([[0, 0]]), "s3://elsewhere/a.nc", [0], [1], VirtualChunkError, "s3://elsewhere/a.nc"),
    ],
)
def test_wrong_columns_are_refused_and_change_nothing(
    coords: Any, location: str, offsets: list[int], lengths: list[int], error: type[Exception], told: str
) -> None:
    _, session = new_session()
    text = location if "://" in location else PREFIX + location
    with pytest.raises(error, match=told):
        session.store.set_virtual_refs_columns("v", coords, text, np.array(offsets), np.array(lengths))
    assert references(session) == {}


def test_a_read_only_store_takes_no_columns() -> None:
    repo, session = new_session()
    session.commit("an array")
    store = repo.readonly_session("main").store
    with pytest.raises(ReadOnlyError):
        store.set_virtual_refs_columns("v", np.array([[0, 0]]), PREFIX + "a.nc", np.array([0]), np.array([1]))


def test_manifests_and_chunks_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    side = 200
    repo, session = new_session(icefloe.local_filesystem_storage(str(tmp_path)), (side, side))
    count = side * side
    session.store.set_virtual_refs_arr("v", (side, side), PREFIX + "a.nc", np.arange(count) * 7, np.full(count, 7))
    zarr.create_array(session.store, name="x", data=np.arange(1, side + 1), chunks=(side // 4,), compressors=None)
    zarr.create_array(session.store, name="big", data=np.ones((4, 1000)), chunks=(1, 1000), compressors=None)
    snapshot_id = session.commit("arrays")

    files = {file.id: file for file in repo.list_manifest_files(snapshot_id)}
    assert sum(file.num_chunk_refs for file in files.values()) == count + 4 + 4
    for file in files.values():
        path = next(tmp_path.rglob(file.id))
        assert path.stat().st_size == file.size_bytes

    assert main(["manifests", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["manifests"]
    assert {entry["id"] for entry in shown} == set(files)
    assert {(e["size_bytes"], e["chunk_refs"]) for e in shown} == {
        (f.size_bytes, f.num_chunk_refs) for f in files.values()
    }
    cells = [array["extents"] for entry in shown for array in entry["arrays"] if array["path"] == "/v"]
    assert len(cells) >= 3
    assert sum((b - a) * (d - c) for (a, b), (c, d) in cells) == count

    assert main(["stats", str(tmp_path), "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert stats["total"]["chunks"] == {"native": 4, "inline": 4, "virtual": count}
    assert stats["total"]["bytes"] == {"native": 32_000, "inline": 8 * side, "virtual": 7 * count}
    assert stats["total"]["objects"] == 1
    assert stats["total"]["virtual_files"] == 1
    assert {entry["path"] for entry in stats["arrays"]} == {"/v", "/x", "/big"}


TEN_MILLION = """
import resource, sys
import numpy as np, pyarrow as pa, zarr
import icefloe

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

config = icefloe.RepositoryConfig.default()
config.set_virtual_chunk_container(icefloe.VirtualChunkContainer("s3://archive/", icefloe.s3_store(region="x")))
repo = icefloe.Repository.create(icefloe.local_filesystem_storage(sys.argv[1]), config)
session = repo.writable_session("main")
side, arrays = 1000, 10
names = pa.array([f"s3://archive/file-{index:05d}.nc" for index in range(side)])
codes = pa.array(np.repeat(np.arange(side, dtype="i4"), side))
locations = pa.DictionaryArray.from_arrays(codes, names)
offsets = np.tile(np.arange(side, dtype="u8") * 100, side)
lengths = np.full(side * side, 100, dtype="u8")
for index in range(arrays):
    zarr.create_array(session.store, name=f"v{index}", shape=(side, side), chunks=(1, 1), dtype="i1")
before = peak()
for index in range(arrays):
    if index % 2:
        session.store.set_virtual_refs_arr(f"v{index}", (side, side), locations, offsets, lengths)
    else:
        y, x = np.divmod(np.arange(side * side, dtype="u4"), np.uint32(side))
        session.store.set_virtual_refs_columns(f"v{index}", (y, x), locations, offsets, lengths)
snapshot_id = session.commit("ten million")
count = sum(file.num_chunk_refs for file in repo.list_manifest_files(snapshot_id))
size = sum(file.size_bytes for file in repo.list_manifest_files(snapshot_id))
print(count, peak() - before, size)
"""
BYTES_PER_REFERENCE = 100


@pytest.mark.slow
def test_a_session_of_ten_million_references_takes_a_hundred_bytes_for_each(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TEN_MILLION, str(tmp_path / "repo")],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    count, peak_bytes, size_bytes = map(int, done.stdout.split())
    assert count == 10_000_000
    assert peak_bytes < count * BYTES_PER_REFERENCE
    assert size_bytes < count * 10
