"""Old small chunks become larger ones, and the newest stay small. Values stay the same, whoever writes in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe import Repository
from icefloe.blocking import run_blocking
from icefloe.errors import ConflictError, InvalidInputError, UnsupportedError
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.sources import IngestOptions
from icefloe.ingest.sync import sync_local
from icefloe.maintenance import compact as compacting
from icefloe.maintenance.compact import plan_merge
from icefloe.model.zarr_document import parse_grid

pytestmark = pytest.mark.filterwarnings("ignore")
RECTILINEAR = "rectilinear_chunks" in zarr.config.get("array")
needs_grids = pytest.mark.skipif(not RECTILINEAR, reason="this zarr has regular grids only")
GENERATIONS = ("dataset", "store", "repository", "icechunk2")
laws = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def enabled() -> Iterator[None]:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        yield


def _values(cells: int, first: int = 0) -> Any:
    return np.arange(first * 3, (first + cells) * 3, dtype="i4").reshape(-1, 3) + 1


def _create(cells: int, generation: str = "repository", chunk: int = 1, **attributes: Any) -> Repository:
    repository = Repository.create(icefloe.in_memory_storage(), spec_version=generation)
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store,
        name="t",
        shape=(cells, 3),
        chunks=(chunk, 2),
        dtype="i4",
        dimension_names=["time", "x"],
        attributes=attributes,
    )
    array[:] = _values(cells)
    session.commit("values")
    return repository


def _open(repository: Repository, path: str = "t") -> Any:
    return zarr.open_array(repository.readonly_session("main").store, path=path, mode="r")


def _lengths(repository: Repository, path: str = "t") -> tuple[int, ...]:
    session = repository.readonly_session("main")
    document = json.loads(run_blocking(session.state.fetch_document(f"/{path}")) or b"{}")
    return parse_grid(document)[0].of(document["shape"][0])


def _append(repository: Repository, values: Any) -> None:
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t", mode="r+").append(values)
    session.commit("more")


def _check(repository: Repository, expected: Any) -> None:
    """The values are right, and every reference is within the grid."""
    fresh = Repository.open(repository.storage)
    np.testing.assert_array_equal(_open(fresh)[:], expected)
    session = fresh.readonly_session("main")
    node = session.state.tree.array("/t")
    table = run_blocking(session.state.chunk_table(node))
    assert (table.coords < np.asarray(node.grid)).all()
    assert fresh.verify(decode=True).is_clean


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 20), st.integers(0, 30))
def test_merged_chunks_are_never_merged_again(lengths: list[int], length: int, keep: int) -> None:
    extent = sum(lengths)
    groups = plan_merge(lengths, extent, length, keep)
    starts, after, index = dict(groups), [], 0
    while index < len(lengths):
        end = starts.get(index, index + 1)
        after.append(sum(lengths[index:end]))
        index = end
    assert sum(after) == extent and all(sum(lengths[a:b]) <= length for a, b in groups)
    assert all(sum(lengths[:high]) <= extent - max(1, keep) for _, high in groups)
    assert after[-1:] == lengths[-1:] and plan_merge(after, extent, length, keep) == []


@needs_grids
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("generation", GENERATIONS)
def test_old_chunks_are_merged_and_the_newest_stay(generation: str) -> None:
    notes = {"note": "x" * 5000}
    repository = _create(11, generation, **notes)
    before = repository.lookup_branch("main")
    plan = repository.plan_compaction(merge={"time": 4}, keep=3)
    assert plan.chunks == 16 and "to merge on branch main: 16 chunks" in str(plan)
    done = repository.compact(merge={"time": 4}, keep=3)
    assert (done.chunks, len(done.commits)) == (16, 1) and done.bytes_written > 0
    assert _lengths(repository) == (4, 4, 1, 1, 1) and dict(_open(repository).attrs) == notes
    _check(repository, _values(11))
    assert repository.compact(merge={"time": 4}, keep=3).commits == ()
    old = zarr.open_array(repository.readonly_session(snapshot_id=before).store, path="t", mode="r")
    np.testing.assert_array_equal(old[:], _values(11))
    repository.expire_snapshots(retain_last=1)
    repository.compact()
    _check(repository, _values(11))


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_a_merge_goes_on_batch_by_batch() -> None:
    repository = _create(13)
    done = repository.compact(merge={"time": 3}, batch_bytes=1)
    assert len(done.commits) == 4 and done.chunks == 24 and _lengths(repository) == (3, 3, 3, 3, 1)
    for commit in done.commits:
        found = zarr.open_array(repository.readonly_session(snapshot_id=commit).store, path="t", mode="r")
        np.testing.assert_array_equal(found[:], _values(13))


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_chunks_that_do_not_exist_are_not_made() -> None:
    repository = Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store, name="t", shape=(9, 4), chunks=(1, 2), dtype="f4", fill_value=7, dimension_names=["time", "x"]
    )
    array[2, :2] = 1
    array[8] = 2
    session.commit("few")
    repository.compact(merge={"time": 4})
    expected = np.full((9, 4), 7, dtype="f4")
    expected[2, :2], expected[8] = 1, 2
    _check(repository, expected)
    session = repository.readonly_session("main")
    table = run_blocking(session.state.chunk_table(session.state.tree.array("/t")))
    assert table.coords.tolist() == [[0, 0], [2, 0], [2, 1]]


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_shards_are_merged_into_larger_shards() -> None:
    repository = Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store, name="t", shape=(12, 3), chunks=(1, 3), shards=(2, 3), dtype="i4", dimension_names=["time", "x"]
    )
    array[:] = _values(12)
    session.commit("shards")
    repository.compact(merge={"time": 4})
    assert _lengths(repository) == (4, 4, 2, 2)
    _check(repository, _values(12))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("merge"), st.integers(1, 7), st.integers(0, 6)),
        st.tuples(st.just("write"), st.integers(0, 40), st.integers(1, 6)),
        st.tuples(st.just("pack"), st.just(0), st.just(0)),
    ),
    min_size=2,
    max_size=8,
)


@needs_grids
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("generation", GENERATIONS)
@laws
@given(st.integers(1, 12), st.integers(1, 3), ACTIONS)
def test_any_history_of_appends_writes_and_merges_has_the_plain_values(
    generation: str, cells: int, chunk: int, actions: list[tuple[str, int, int]]
) -> None:
    repository, expected = _create(cells, generation, chunk), _values(cells)
    for kind, first, second in actions:
        if kind == "append":
            more = _values(first, len(expected))
            _append(repository, more)
            expected = np.concatenate([expected, more])
        elif kind == "merge":
            repository.compact(merge={"time": first}, keep=second)
            assert repository.plan_compaction(merge={"time": first}, keep=second).chunks == 0
        elif kind == "pack":
            repository.compact()
        else:
            session = repository.writable_session("main")
            low = min(first, len(expected) - 1)
            zarr.open_array(session.store, path="t", mode="r+")[low : low + second] = -first
            session.commit("write")
            expected[low : low + second] = -first
        np.testing.assert_array_equal(_open(repository)[:], expected)
    _check(repository, expected)


@needs_grids
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("solver", [None, icefloe.ConflictDetector(), icefloe.BasicConflictSolver()])
@pytest.mark.parametrize("row", [1, 9], ids=["merged", "moved"])
def test_a_writer_that_was_overtaken_by_a_merge_finds_the_conflict(generation: str, solver: Any, row: int) -> None:
    """Its chunks were written for the former grid. No solver can keep them."""
    repository = _create(10, generation)
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t", mode="r+")[row] = 7
    repository.compact(merge={"time": 4})
    with pytest.raises(ConflictError):
        session.commit("late", rebase_with=solver)
    _check(repository, _values(10))


@needs_grids
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("row", [1, 9, 4, 10], ids=["merged", "moved", "new chunk", "other array"])
def test_a_merge_that_was_overtaken_by_a_writer_keeps_what_it_wrote(
    monkeypatch: pytest.MonkeyPatch, generation: str, row: int
) -> None:
    repository, expected = _create(10, generation), _values(10)
    with repository.transaction("main", message="a hole") as store:
        zarr.open_array(store, path="t", mode="r+")[4] = 0
        zarr.create_array(store, name="other", shape=(2,), chunks=(1,), dtype="i4")
    expected[4] = 0
    write, done = compacting._write_merged, []

    async def write_then_race(*args: Any) -> None:
        await write(*args)
        if not done:
            done.append(True)
            session = await repository.writable_session_async("main")
            name, coords = ("/t", (row, 0)) if row < 10 else ("/other", (0,))
            content = np.full((1, 2) if row < 10 else 1, -5, dtype="<i4")
            codec = _encoded(repository, name, content)
            await session.state.write_chunk(session.state.tree.array(name), coords, codec)
            await session.commit_async("in between")

    monkeypatch.setattr(compacting, "_write_merged", write_then_race)
    result = repository.compact(arrays="t", merge={"time": 4})
    if row < 10:
        expected[row, :2] = -5
    assert len(result.commits) == 1 and _lengths(repository) == (4, 4, 1, 1)
    _check(repository, expected)
    assert done


@needs_grids
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("merged", ["main", "dev"])
@pytest.mark.parametrize("row", [1, 9], ids=["merged", "moved"])
@pytest.mark.parametrize("solver", [None, icefloe.BasicConflictSolver()])
def test_branches_of_which_one_was_merged_and_the_other_written_are_not_joined(
    merged: str, row: int, solver: Any
) -> None:
    repository = _create(10)
    repository.create_branch("dev", repository.lookup_branch("main"))
    repository.compact(merged, merge={"time": 4})
    with repository.transaction("dev" if merged == "main" else "main", message="a row") as store:
        zarr.open_array(store, path="t", mode="r+")[row] = -5
    before, tip = repository.lookup_branch("main"), repository.lookup_branch("dev")
    with pytest.raises(ConflictError):
        repository.merge("dev", "main", solver=solver)
    with pytest.raises(ConflictError):
        repository.cherry_pick(tip, "main", solver=solver)
    assert repository.lookup_branch("main") == before


def _encoded(repository: Repository, name: str, values: Any) -> bytes:
    """The bytes of a chunk, as zarr encodes it with the codecs of an array of the repository."""
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, shape=values.shape, chunks=values.shape, dtype="i4")[:] = values
    (content,) = (each for key, each in store._store_dict.items() if "/" in key or key.startswith("c"))
    return bytes(content.to_bytes())


def test_a_merge_is_refused_where_its_grid_cannot_be() -> None:
    for generation in ("icechunk1", "repository") if RECTILINEAR else ("repository",):
        repository = _create(8, generation)
        before = repository.lookup_branch("main")
        advice = "convert" if generation == "icechunk1" else "RECTILINEAR" if RECTILINEAR else "Python 3.12"
        grids = {"array.rectilinear_chunks": generation == "icechunk1"} if RECTILINEAR else {}
        with zarr.config.set(grids), pytest.raises(UnsupportedError, match=advice):
            repository.compact(merge={"time": 4})
        assert repository.compact(merge={"time": 1}).chunks == 0
        assert repository.lookup_branch("main") == before


@pytest.mark.parametrize(
    "options",
    [
        {"merge": {}},
        {"merge": {"time": 4, "x": 2}},
        {"merge": {"time": 0}},
        {"merge": {"level": 4}},
        {"merge": {"time": 4}, "keep": -1},
        {"merge": {"time": 4}, "unpack": True},
        {"merge": {"time": 4}, "region": [(0, 1), (0, 1)]},
        {"merge": {"time": 4}, "arrays": "u*"},
        {"keep": 4},
    ],
)
def test_a_merge_that_makes_no_sense_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        _create(8).compact(**options)


# -- archives ---------------------------------------------------------------------------------------------------------


class Days:
    """Files of one or more days each, along time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.repository = Repository.create(icefloe.in_memory_storage())

    def write(self, start: int, length: int = 1, seed: int = 0) -> Path:
        values = np.random.default_rng([seed, start]).normal(size=(length, 3)).astype("f4")
        times = np.arange(start, start + length) * 1.0
        path = self.folder / f"day{start:03d}.nc"
        xr.Dataset({"t": (("time", "x"), values)}, {"time": times, "x": np.arange(3.0)}).to_netcdf(path)
        return path

    def expected(self) -> Any:
        files = sorted(self.folder.glob("*.nc"))
        return np.concatenate([xr.open_dataset(file, decode_times=False).load().t.values for file in files])

    def sync(self, mode: Any = "native") -> Any:
        return sync_local(self.folder, self.repository, IngestOptions(mode=mode, append_dim="time", chunks={"time": 1}))

    def check(self) -> None:
        np.testing.assert_array_equal(_open(self.repository)[:], self.expected())
        times = _open(self.repository, "time")[:]
        assert times.tolist() == sorted(times.tolist())


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_an_ingest_after_a_merge_appends_small_chunks(tmp_path: Path) -> None:
    days = Days(tmp_path / "in")
    options = IngestOptions(append_dim="time", chunks={"time": 1})
    ingest_local([days.write(day) for day in range(8)], days.repository, options)
    days.repository.compact(merge={"time": 4})
    assert _lengths(days.repository) == (4, 1, 1, 1, 1)
    for chunks in ({"time": 1}, {}):
        more = days.write(int(_open(days.repository).shape[0]), 2)
        ingest_local(more, days.repository, IngestOptions(append_dim="time", chunks=chunks))
        days.check()
    assert _lengths(days.repository) == (4, *(1,) * 8)
    days.repository.compact(merge={"time": 4}, keep=2)
    assert _lengths(days.repository) == (4, 4, 1, 1, 1, 1)
    days.check()


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_a_sync_keeps_what_was_merged(tmp_path: Path) -> None:
    days = Days(tmp_path / "in")
    for day in range(9):
        days.write(day)
    days.sync()
    days.repository.compact(merge={"time": 4})
    assert _lengths(days.repository) == (4, 4, 1)
    assert days.sync().snapshot_id is None
    days.write(9)
    result = days.sync().plan.arrays["t"]
    assert not result.is_rewritten and result.kept == 3 and len(result.written) == 1
    days.check()
    days.write(2, seed=5)
    result = days.sync().plan.arrays["t"]
    assert not result.is_rewritten and result.written == {(0,)}
    days.check()
    days.repository.compact(merge={"time": 4})
    assert _lengths(days.repository) == (4, 4, 1, 1)


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_a_change_of_others_before_a_merge_is_undone_by_the_next_sync(tmp_path: Path) -> None:
    """Also if the merge hides it: the history between them may have expired."""
    for expired in (False, True):
        days = Days(tmp_path / f"in{expired}")
        for day in range(9):
            days.write(day)
        days.sync()
        with days.repository.transaction("main", message="by hand") as store:
            zarr.open_array(store, path="t", mode="r+")[3] = -1
        by_hand = days.repository.lookup_branch("main")
        days.repository.compact(merge={"time": 4})
        if expired:
            days.repository.expire_snapshots(snapshots=[by_hand])
        assert days.sync().snapshot_id is not None
        days.check()
        assert _lengths(days.repository) == (4, 4, 1)


@needs_grids
@pytest.mark.usefixtures("enabled")
def test_a_merge_that_is_reverted_or_amended_is_followed_by_a_sync(tmp_path: Path) -> None:
    days = Days(tmp_path / "in")
    for day in range(9):
        days.write(day)
    days.sync()
    (commit,) = days.repository.compact(arrays="t", merge={"time": 4}).commits
    days.repository.revert(commit, "main")
    days.sync()
    days.check()
    days.repository.compact(arrays="t", merge={"time": 4})
    session = days.repository.writable_session("main")
    zarr.open_array(session.store, path="t", mode="r+")[2] = -1
    session.amend("with a correction")
    days.sync()
    days.check()


@needs_grids
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("mode", ["virtual", "mixed"])
def test_files_by_reference_are_not_merged(tmp_path: Path, mode: Any) -> None:
    days = Days(tmp_path / "in")
    for day in range(9):
        days.write(day)
    options = IngestOptions(mode=mode, append_dim="time", native_below_bytes=0)
    sync_local(days.folder, days.repository, options)
    before = days.repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="materialize"):
        days.repository.compact(merge={"time": 4})
    assert days.repository.lookup_branch("main") == before
    access = icefloe.containers_credentials({f"file://{days.folder}/": None})
    days.repository = Repository.open(days.repository.storage, authorize_virtual_chunk_access=access)
    days.repository.materialize()
    days.repository.compact(merge={"time": 4})
    days.check()
    days.write(9)
    sync_local(days.folder, days.repository, options)
    days.check()


STEPS = st.lists(
    st.sampled_from(["new", "late", "again", "merge", "merge more", "sync", "by hand", "ingest by zarr"]),
    min_size=3,
    max_size=9,
)


@needs_grids
@pytest.mark.usefixtures("enabled")
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.randoms(use_true_random=False))
def test_any_history_of_syncs_and_merges_equals_the_files(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], random: Any
) -> None:
    days = Days(tmp_path_factory.mktemp("merged") / "in")
    for day in range(10, 16):
        days.write(day)
    days.sync()
    free = 9
    for seed, step in enumerate(steps, 1):
        if step == "new":
            days.write(max(int(file.stem[3:]) for file in days.folder.glob("*.nc")) + 1)
        elif step == "late" and free >= 0:
            days.write(free)
            free -= random.randint(1, 2)
        elif step == "again":
            file = random.choice(sorted(days.folder.glob("*.nc")))
            days.write(int(file.stem[3:]), seed=seed)
        elif step.startswith("merge"):
            days.repository.compact(merge={"time": 3 if step == "merge" else 6}, keep=random.randint(0, 3))
        elif step == "by hand":
            with days.repository.transaction("main", message="by hand") as store:
                array = zarr.open_array(store, path="t", mode="r+")
                array[random.randrange(array.shape[0])] = -1
        elif step == "ingest by zarr":
            with days.repository.transaction("main", message="more") as store:
                zarr.open_array(store, path="t", mode="r+").append(np.ones((2, 3), dtype="f4"))
        else:
            days.sync()
            days.check()
    days.sync()
    days.check()
    assert days.sync().snapshot_id is None
