"""Large writes: logs with boxes, listings in parts, comparisons that only read what differs."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.blocking import run_blocking
from icefloe.chunks import reader
from icefloe.manifests.cells import box_array, filled_boxes, plan_slabs, volume
from icefloe.session import change_set
from icefloe.testing.storages import CountingStorage

GENERATIONS = ["dataset", "store", "repository", "icechunk1", "icechunk2"]


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every write as a large one, and every array as an array with many manifests."""
    monkeypatch.setattr(change_set, "LISTED_CHUNKS", -1)
    monkeypatch.setattr(change_set, "_BOXED_CHUNKS", 1)
    monkeypatch.setattr(reader, "SLAB_MANIFESTS", 2)


@given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=120), st.data())
@settings(max_examples=60, deadline=None)
def test_filled_boxes_contain_the_chunks_and_nothing_else(
    chosen: set[tuple[int, int, int]], data: st.DataObject
) -> None:
    if data.draw(st.booleans()):
        first = data.draw(st.tuples(*[st.integers(0, 3)] * 3))
        sides = data.draw(st.tuples(*[st.integers(1, 6)] * 3))
        chosen |= set(itertools.product(*(range(a, a + n) for a, n in zip(first, sides, strict=True))))
    coords = np.array(sorted(chosen), dtype=np.uint32)
    boxes = filled_boxes(coords, 1000)
    if boxes is None:
        return  # the chunks are scattered
    inside = [chunk for box in boxes for chunk in itertools.product(*(range(a, b) for a, b in box))]
    assert sorted(inside) == sorted(chosen)
    assert sum(map(volume, boxes)) == len(coords)
    if len(boxes) > 1:
        assert filled_boxes(coords, len(boxes) - 1) is None


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(0, 9), st.integers(1, 4)), max_size=30),
    st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_slabs_cover_the_grid_in_order_and_meet_few_manifests(
    drawn: list[tuple[int, int, int, int]], most: int
) -> None:
    boxes = box_array([((a, a + n), (b, b + m)) for a, n, b, m in drawn], 2)
    slabs = plan_slabs((13, 13), boxes, most)
    chunks = [chunk for slab in slabs for chunk in itertools.product(*(range(a, b) for a, b in slab))]
    assert chunks == list(itertools.product(range(13), range(13)))
    for slab in slabs:
        met = [box for box in boxes.tolist() if all(a < d and c < b for (a, b), (c, d) in zip(slab, box, strict=True))]
        axis = next((axis for axis in (0, 1) if slab[axis][1] - slab[axis][0] > 1), 1)
        can_be_cut = any(slab[axis][0] < cut < slab[axis][1] for box in met for cut in box[axis])
        assert len(met) <= most or not can_be_cut


def make(spec_version: str, side: int = 24) -> tuple[icefloe.Repository, CountingStorage]:
    """A repository with an array of many manifests."""
    sets = (icefloe.ManifestSet.default(split_size=16),)
    config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(sets=sets, rules=()))
    storage = CountingStorage(icefloe.in_memory_storage())
    repo = icefloe.Repository.create(storage, config, spec_version=spec_version)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(side, side), chunks=(1, 1), dtype="i4")[:] = numbers(side)
    session.commit("all")
    return repo, storage


def numbers(side: int) -> Any:
    return np.arange(side * side, dtype="i4").reshape(side, side) + 1


def list_coords(session: icefloe.Session, batch: int = 7) -> Iterator[list[int]]:
    async def collect() -> list[Any]:
        return [batch async for batch in session.state.chunk_batches(session.state.tree.array("/a"), 7)]

    for table in run_blocking(collect()):
        assert len(table) <= batch
        yield from table.coords.tolist()


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("spec_version", GENERATIONS)
def test_a_listing_in_parts_has_every_chunk_once_and_in_order(spec_version: str) -> None:
    repo, _ = make(spec_version)
    expected = [list(chunk) for chunk in itertools.product(range(24), range(24))]
    assert list(list_coords(repo.readonly_session("main"))) == expected
    session = repo.writable_session("main")
    asyncio.run(session.store.delete("a/c/3/3"))
    zarr.open_array(session.store, path="a", mode="r+").resize((30, 24))
    zarr.open_array(session.store, path="a", mode="r+")[29, 5] = 7
    changed = [chunk for chunk in expected if chunk != [3, 3]] + [[29, 5]]
    assert list(list_coords(session)) == changed
    session.commit("changed")
    assert list(list_coords(repo.readonly_session("main"))) == changed


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("spec_version", GENERATIONS)
def test_logs_with_boxes_tell_what_lists_of_coordinates_tell(spec_version: str) -> None:
    repo, _ = make(spec_version)
    first = repo.lookup_branch("main")
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="a", mode="r+")
    array[4:9, 3:20] = -5
    array[20, 20] = -6
    asyncio.run(session.store.delete("a/c/0/0"))
    session.commit("box, point, deletion")
    expected = sorted([*map(list, itertools.product(range(4, 9), range(3, 20))), [20, 20], [0, 0]])
    assert repo.diff(from_snapshot_id=first, to_branch="main").updated_chunks == {"/a": expected}
    start = list(repo.ancestry(branch="main"))[-1].id
    everything = repo.diff(from_snapshot_id=start, to_branch="main")
    assert everything.new_arrays == {"/a"}
    found = everything.updated_chunks["/a"]
    # Without logs, a chunk that was created and deleted leaves no trace.
    assert [chunk for chunk in found if chunk != [0, 0]] == list(map(list, itertools.product(range(24), range(24))))[1:]
    assert repo.verify().is_clean
    repo.expire_snapshots(dt.datetime.now(dt.UTC))
    repo.garbage_collect(dt.datetime.now(dt.UTC))
    assert repo.verify().is_clean


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("spec_version", GENERATIONS)
def test_a_large_write_conflicts_with_writes_to_its_chunks_and_no_others(spec_version: str) -> None:
    repo, _ = make(spec_version)
    beside, across = repo.writable_session("main"), repo.writable_session("main")
    large = repo.writable_session("main")
    zarr.open_array(large.store, path="a", mode="r+")[0:6, 0:6] = -1
    large.commit("large")
    zarr.open_array(beside.store, path="a", mode="r+")[6, 6] = -2
    beside.commit("beside", rebase_with=icefloe.ConflictDetector())
    zarr.open_array(across.store, path="a", mode="r+")[5, 5] = -3
    with pytest.raises(icefloe.RebaseFailedError):
        across.commit("across", rebase_with=icefloe.ConflictDetector())
    found = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]
    expected = numbers(24)
    expected[0:6, 0:6], expected[6, 6] = -1, -2
    np.testing.assert_array_equal(found, expected)


def test_the_log_of_a_large_write_has_the_size_of_its_boxes() -> None:
    sizes = {}
    for side in (100, 300):
        storage = CountingStorage(icefloe.in_memory_storage())
        config = icefloe.RepositoryConfig.default()
        container = icefloe.VirtualChunkContainer("s3://archive/", icefloe.s3_store(region="us-east-1"))
        config.set_virtual_chunk_container(container)
        repo = icefloe.Repository.create(storage, config)
        session = repo.writable_session("main")
        zarr.create_array(session.store, name="a", shape=(side, side), chunks=(1, 1), dtype="i1")
        everywhere = np.zeros(side * side, dtype="u8")
        session.store.set_virtual_refs_arr("a", (side, side), ["s3://archive/x"] * side**2, everywhere, everywhere + 1)
        snapshot = session.commit("all")
        sizes[side] = len(run_blocking(storage.get(f"transactions/{snapshot}")))
        parent = list(repo.ancestry(branch="main"))[1].id
        found = repo.diff(from_snapshot_id=parent, to_branch="main").chunk_coords["/a"]
        assert len(found) == side**2
    assert sizes[100] > 1000
    assert sizes[300] < 500


@pytest.mark.parametrize("spec_version", GENERATIONS)
def test_snapshots_are_compared_without_the_manifests_that_both_have(spec_version: str) -> None:
    repo, storage = make(spec_version)
    before = repo.lookup_branch("main")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[7, 7] = -1
    session.commit("one chunk")
    from icefloe.session.ancestry import compare_snapshots

    fresh = icefloe.Repository.open(storage)
    files = fresh._context.metadata_files
    old, new = (run_blocking(files.fetch_snapshot(each)) for each in (before, repo.lookup_branch("main")))
    storage.counts.reset()
    log = run_blocking(compare_snapshots(old, new, files))
    assert [coords.tolist() for coords in log.updated_chunks.values()] == [[[7, 7]]]
    assert storage.counts.total.requests <= 4


@pytest.mark.parametrize("spec_version", ["repository", "icechunk2"])
def test_a_manifest_of_many_arrays_is_read_a_few_times_and_not_for_every_array(spec_version: str) -> None:
    storage = CountingStorage(icefloe.in_memory_storage())
    repo = icefloe.Repository.create(storage, spec_version=spec_version)
    session = repo.writable_session("main")
    for number in range(60):
        zarr.create_array(session.store, name=f"a{number}", shape=4, chunks=1, dtype="i4")[:] = number + 1
    session.commit("arrays")
    manifests = len(repo.list_manifest_files(repo.lookup_branch("main")))
    storage.counts.reset()
    assert icefloe.Repository.open(storage).verify().is_clean
    assert manifests <= 2
    assert storage.counts.total.requests < 45


@pytest.mark.every_generation
@pytest.mark.parametrize("spec_version", GENERATIONS)
def test_workers_with_chunks_of_many_arrays_share_manifests(spec_version: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    names = [f"v{number:02d}" for number in range(40)]
    for name in names:
        root.create_array(name, shape=(6,), chunks=(1,), dtype="i4", fill_value=-1)
    written = []
    for worker in range(2):
        fork = session.fork()
        group = zarr.open_group(fork.store, mode="r+")
        for number, name in enumerate(names):
            group[name][3 * worker : 3 * worker + 3] = number + 100 * worker
        written.append(fork.write_parts())
        assert len({part.manifest_id for part in written[-1].parts}) == 1
    session.link_parts(written)
    session.commit("workers")
    assert len(repo.list_manifest_files(repo.lookup_branch("main"))) == 2
    found = repo.verify()
    assert found.is_clean, str(found)

    # A commit to one of the arrays leaves the others as they are.
    session = repo.writable_session("main")
    changed = zarr.open_group(session.store, mode="r+")
    changed[names[7]][1:5] = 7
    session.commit("one array")
    group = zarr.open_group(repo.readonly_session("main").store, mode="r")
    for number, name in enumerate(names):
        expected = np.repeat([number, number + 100], 3)
        expected[1:5] = 7 if number == 7 else expected[1:5]
        np.testing.assert_array_equal(group[name][:], expected)
    assert repo.verify().is_clean
    repo.rewrite_manifests("again", branch="main")
    assert repo.verify().is_clean
