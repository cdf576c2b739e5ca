"""A writer that loses a race writes little again, and many writers of one branch do not hinder each other."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import functools
import itertools
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from tests.session.contention import LAYOUTS, ProcessStorage, chunk_key, prepare, run_writers

import icefloe
from icefloe import SpecVersion
from icefloe.blocking import Turn, run_blocking
from icefloe.formats.icechunk2.repo_file import RepoInfo, decode_repo
from icefloe.ids import new_object_id
from icefloe.model.config import RepositoryConfig
from icefloe.model.manifest_config import ARRAY_PER_MANIFEST
from icefloe.model.snapshot import TransactionLog
from icefloe.session.ancestry import compare_snapshots, merge_additions, merge_logs
from icefloe.session.races import recent_commits
from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import Operation, WrappedStorage

T = TypeVar("T")
GENERATIONS = [version.value for version in SpecVersion]
FOLDERS = {
    "dataset": {"snapshots": "s", "manifests": "i", "attributes": "a", "chunks": "c"},
    "store": {"snapshots": "s", "manifests": "m", "attributes": "a", "chunks": "c"},
}


class RaceStorage(WrappedStorage):
    """Does something just before the first write of a ref, and counts writes by folder, before it and after it."""

    def __init__(self, inner: Storage, before_ref: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self.first: Counter[str] = Counter()
        self.again: Counter[str] = Counter()
        self._before_ref: Callable[[], Awaitable[None]] | None = before_ref

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        folder = operation.key.partition("/")[0]
        if operation.method in ("create", "swap") and self._before_ref is not None:
            run, self._before_ref = self._before_ref, None
            await run()
            self.first, self.again = self.again, self.first
        if operation.method in ("create", "swap", "put"):
            self.again[folder] += 1
        return await call()

    def _rewrap(self, inner: Storage) -> Storage:
        return self


def _make(generation: str, config: RepositoryConfig | None = None) -> Storage:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=generation, config=config)
    with repo.transaction("main", message="arrays") as store:
        for name in "ab":
            zarr.create_array(store, name=name, shape=(64, 64), chunks=(8, 64), dtype="i8", compressors=None)[:] = 1
    return storage


def _commit_b(storage: Storage) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        repo = await icefloe.Repository.open_async(storage)
        session = await repo.writable_session_async("main")
        async_group = await zarr.api.asynchronous.open_group(session.store, mode="r+")
        array = await async_group.getitem("b")
        await array.setitem(slice(0, 8), np.full((8, 64), 2))  # type: ignore[union-attr]
        await session.commit_async("the winner")

    return run


@pytest.mark.parametrize("generation", GENERATIONS)
def test_after_a_lost_race_only_the_snapshot_its_log_and_the_ref_are_written_again(generation: str) -> None:
    storage = _make(generation, RepositoryConfig(manifest=ARRAY_PER_MANIFEST, inline_chunk_threshold_bytes=0))
    race = RaceStorage(storage, _commit_b(storage))
    session = icefloe.Repository.open(race).writable_session("main")
    array = zarr.open_array(session.store, path="a", mode="r+")
    array[:16] = 3
    array.attrs["long"] = "x" * 100_000
    session.commit("the loser", rebase_with=icefloe.ConflictDetector())
    names = FOLDERS.get(generation, {name: name for name in ("snapshots", "manifests", "attributes", "chunks")})
    logs = {"transactions"} if "icechunk" in generation or generation == "repository" else set()
    assert race.first[names["manifests"]] == race.first[names["chunks"]] == 1
    refs = {"dataset": "state.json", "store": "r", "icechunk2": "repo"}.get(generation, "refs")
    assert set(race.again) <= {names["snapshots"], refs} | logs
    assert race.again[names["snapshots"]] == 1
    root = zarr.open_group(icefloe.Repository.open(storage).readonly_session("main").store, mode="r")
    assert (root["a"][:16] == 3).all() and (root["a"][16:] == 1).all() and root["a"].attrs["long"] == "x" * 100_000
    assert (root["b"][:8] == 2).all() and (root["b"][8:] == 1).all()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_manifest_that_the_winner_rewrote_is_merged_with_the_changes_of_the_loser(generation: str) -> None:
    storage = _make(generation)
    race = RaceStorage(storage, _commit_b(storage))
    session = icefloe.Repository.open(race).writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:16] = 3
    session.commit("the loser", rebase_with=icefloe.ConflictDetector())
    root = zarr.open_group(icefloe.Repository.open(storage).readonly_session("main").store, mode="r")
    assert (root["a"][:16] == 3).all() and (root["a"][16:] == 1).all()
    assert (root["b"][:8] == 2).all() and (root["b"][8:] == 1).all()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_manifest_that_was_collected_between_two_tries_is_written_again(generation: str) -> None:
    storage = _make(generation, RepositoryConfig(manifest=ARRAY_PER_MANIFEST, inline_chunk_threshold_bytes=1 << 20))

    async def win_and_collect() -> None:
        await _commit_b(storage)()
        repo = await icefloe.Repository.open_async(storage)
        later = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
        await repo.garbage_collect_async(later, ignore_running_sessions=True)

    race = RaceStorage(storage, win_and_collect)
    session = icefloe.Repository.open(race).writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:16] = 3
    session.commit("the loser", rebase_with=icefloe.ConflictDetector())
    root = zarr.open_group(icefloe.Repository.open(storage).readonly_session("main").store, mode="r")
    assert (root["a"][:16] == 3).all() and (root["b"][:8] == 2).all()
    assert icefloe.Repository.open(storage).verify().is_clean


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_thirty_two_writers_commit_half_as_fast_as_one_or_faster(layout: str) -> None:
    alone = run_writers(prepare(layout, 32, "repository"), layout, 1, 5)
    together = run_writers(prepare(layout, 32, "repository"), layout, 32, 2)
    assert together.per_second >= alone.per_second / 2
    assert statistics.median(together.tries) <= 10
    lost = sum(together.tries) - len(together.tries)
    assert together.counts["put snapshots"] <= len(together.tries) + lost
    assert together.counts.total() / (len(together.tries) + lost) <= 20, "requests per try"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_writers_of_one_process_commit_faster_than_one_and_lose_no_race(generation: str, layout: str) -> None:
    alone = run_writers(prepare(layout, 12, generation), layout, 1, 4)
    together = run_writers(prepare(layout, 12, generation), layout, 12, 2, processes=1)
    assert together.per_second >= 1.3 * alone.per_second
    assert max(together.tries) <= 2, "a commit is rebased over those of the others, once"
    requests = [each.counts.total() / len(each.tries) for each in (alone, together)]
    assert requests[1] <= requests[0] + 3
    folder = FOLDERS.get(generation, {"snapshots": "snapshots"})["snapshots"]
    assert together.counts[f"put {folder}"] == len(together.tries), "each writes its snapshot once"


@pytest.mark.every_generation
@pytest.mark.parametrize("generation", GENERATIONS)
def test_writers_of_two_processes_lose_no_commit(generation: str) -> None:
    layout, writers, commits = "regions of one array", 8, 3
    storage = prepare(layout, writers, generation)
    together = run_writers(storage, layout, writers, commits, processes=2)
    assert max(together.tries) > 2, "some races between the processes were lost"
    session = icefloe.Repository.open(storage).readonly_session("main")
    for writer, number in itertools.product(range(writers), range(commits)):
        found = run_blocking(session.keyspace.fetch(chunk_key(layout, writer, number)))
        assert found is not None and bytes(found) == bytes([writer, number, 0, 0])
    assert icefloe.Repository.open(storage).verify().is_clean


def test_storages_of_one_url_that_are_not_equal_share_no_commits() -> None:
    async def run() -> None:
        storage = icefloe.in_memory_storage()
        await icefloe.Repository.create_async(storage)
        ledgers = [
            (await icefloe.Repository.open_async(each))._context.ledger
            for each in (storage, storage, ProcessStorage(storage), ProcessStorage(storage))
        ]
        commits = [recent_commits(ledger, "main") for ledger in ledgers]
        assert commits[0] is commits[1] is not recent_commits(ledgers[0], "dev")
        assert len(set(map(id, commits))) == 3
        assert [recent_commits(ledger, "main") for ledger in ledgers] == commits

    asyncio.run(run())


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_lost_race_does_not_look_at_arrays_that_the_loser_did_not_change(generation: str) -> None:
    work = []
    for layout in LAYOUTS:
        together = run_writers(prepare(layout, 32, generation), layout, 6, 1)
        work.append(together.steps / sum(together.tries))
    assert max(work) <= 1.2 * min(work), "32 arrays in one manifest cost as much as one array"


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("generation", [name for name in GENERATIONS if name != "repository"])
def test_thirty_two_writers_make_progress_together_in_every_generation(generation: str, layout: str) -> None:
    alone = run_writers(prepare(layout, 32, generation), layout, 1, 5)
    together = run_writers(prepare(layout, 32, generation), layout, 32, 2)
    tries = sum(together.tries)
    assert together.per_second >= alone.per_second / 3
    assert statistics.median(together.tries) <= 10
    assert tries / len(together.tries) <= 16 and max(together.tries) <= len(together.tries)
    assert together.counts.total() / tries <= 20, "requests per try"
    assert together.steps / tries <= 160, "work per try"


def test_a_lost_race_of_the_repo_file_does_not_decode_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def decode(data: bytes) -> RepoInfo:
        decoded.append(len(data))
        return decode_repo(data)

    monkeypatch.setattr("icefloe.ledger.icechunk2.decode_repo", decode)
    storage = _make("icechunk2")
    race = RaceStorage(storage, _commit_b(storage))
    session = icefloe.Repository.open(race).writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:16] = 3
    before = len(decoded)
    with pytest.raises(icefloe.ConflictError):
        session.commit("the loser")
    # The winner decodes the file of before, as does the loser, which does not decode the file of the winner.
    assert len(decoded) - before <= 2


def test_a_commit_that_is_listed_already_is_not_refused_after_others_committed() -> None:
    storage = _make("icechunk2")

    async def run() -> None:
        repo = await icefloe.Repository.open_async(storage)
        ledger = repo._context.ledger
        base = await ledger.fetch_tip("main")
        await _commit_b(storage)()
        landed = await repo._context.metadata_files.fetch_snapshot((await ledger.fetch_tip("main")).snapshot_id)
        await _commit_b(storage)()
        # As after a response that was lost: the writer still takes the branch to be where it was before.
        assert (await ledger.advance("main", base, landed)).snapshot_id == landed.id
        with pytest.raises(icefloe.ConflictError):
            await ledger.advance("main", base, dataclasses.replace(landed, id=new_object_id(12)))

    asyncio.run(run())


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_comparison_for_some_arrays_lists_all_their_chunks_and_all_nodes(generation: str) -> None:
    storage = _make(generation)
    repo = icefloe.Repository.open(storage)
    base = repo.lookup_branch("main")
    with repo.transaction("main", message="both") as store:
        root = zarr.open_group(store, mode="r+")
        root["a"][:16] = 2
        root["b"][8:24] = 3
        root.create_array("c", shape=(8,), chunks=(1,), dtype="i8")[:] = 4

    async def run() -> None:
        context = (await icefloe.Repository.open_async(storage))._context
        old, new = [await context.metadata_files.fetch_snapshot(each) for each in (base, repo.lookup_branch("main"))]
        whole = await compare_snapshots(old, new, context.metadata_files)
        ids = [new.nodes[path].id for path in ("/a", "/b", "/c")]
        assert set(whole.updated_chunks) == set(ids)
        for wanted in ([], ids[:1], ids[1:], ids):
            some = await compare_snapshots(old, new, context.metadata_files, wanted=wanted)
            assert dataclasses.replace(some, updated_chunks={}) == dataclasses.replace(whole, updated_chunks={})
            assert set(some.updated_chunks) == set(wanted)
            assert all((some.updated_chunks[each] == whole.updated_chunks[each]).all() for each in wanted)

    asyncio.run(run())


def test_threads_that_commit_to_local_files_take_turns(tmp_path: Path) -> None:
    """Without turns, sixteen threads write more than two hundred snapshots for their 48 commits, with them 50."""
    writers, commits = 16, 3
    repo = icefloe.Repository.create(str(tmp_path / "repo"))
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(writers * commits,), chunks=(1,), dtype="i4", fill_value=0)

    def work(writer: int) -> None:
        own = icefloe.Repository.open(str(tmp_path / "repo"))
        for row in range(writer * commits, (writer + 1) * commits):
            session = own.writable_session("main")
            zarr.open_array(session.store, path="a")[row] = row + 1
            session.commit(f"row {row}", rebase_with=icefloe.ConflictDetector())

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(work, range(writers)))
    values = zarr.open_array(repo.readonly_session("main").store, path="a")[:]
    assert values.tolist() == list(range(1, writers * commits + 1))
    written = len(list((tmp_path / "repo" / "snapshots").iterdir()))
    assert written <= 2 + 1.25 * writers * commits


def test_a_writer_does_not_wait_forever_for_its_turn() -> None:
    async def run() -> list[str]:
        done: list[str] = []
        hung = asyncio.Event()

        async def hold() -> None:
            async with Turn("branch", 0.01):
                await hung.wait()
            done.append("hung")

        holding = asyncio.create_task(hold())
        await asyncio.sleep(0)
        assert Turn("branch", 0.01).is_taken and not Turn("other", 0.01).is_taken and not Turn(None, 0.01).is_taken
        async with Turn("branch", 0.01):
            done.append("waited")
        assert Turn("branch", 0.01).is_taken, "only its own turn is given back"
        hung.set()
        await holding
        async with Turn("branch", 0.01):
            done.append("free")
        return done

    assert asyncio.run(run()) == ["waited", "hung", "free"]


def test_a_writer_waits_as_long_as_turns_begin() -> None:
    async def run() -> list[int]:
        order: list[int] = []

        async def work(number: int) -> None:
            async with Turn("branch", 0.1):
                order.append(number)
                await asyncio.sleep(0.06)

        await asyncio.gather(*map(work, range(6)))
        return order

    assert asyncio.run(run()) == list(range(6)), "the last one waited three times as long as for one turn"


def test_a_turn_can_end_before_its_block_and_a_cancelled_writer_takes_none() -> None:
    async def run() -> None:
        async with Turn("branch", 5) as turn:
            assert Turn("branch", 5).is_taken
            waiting = asyncio.create_task(_take("branch"))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            turn.release()
            assert not Turn("branch", 5).is_taken
            async with Turn("branch", 5):
                turn.release()
                assert Turn("branch", 5).is_taken, "only its own turn is given back"
        assert not Turn("branch", 5).is_taken

    async def _take(key: str) -> None:
        async with Turn(key, 5):
            raise AssertionError("it was cancelled")

    asyncio.run(run())


_COORDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4).map(
    lambda rows: np.unique(np.array(rows, dtype=np.uint32).reshape(-1, 2), axis=0)
)
_ARRAYS = st.sampled_from([bytes([number]) * 8 for number in range(3)])
_ADDING_LOGS = st.builds(
    TransactionLog,
    new_groups=st.frozensets(_ARRAYS.map(lambda each: b"g" + each[1:]), max_size=2),
    new_arrays=st.frozensets(_ARRAYS, max_size=2),
    updated_chunks=st.dictionaries(_ARRAYS, _COORDS, max_size=3),
    updated_boxes=st.dictionaries(_ARRAYS, st.just((((0, 2), (0, 2)),)), max_size=2),
)


@given(st.lists(_ADDING_LOGS, min_size=1, max_size=4), st.frozensets(_ARRAYS))
def test_logs_that_only_add_are_merged_at_once_as_one_after_the_other(
    logs: list[TransactionLog], wanted: frozenset[bytes]
) -> None:
    merged, expected = merge_additions(logs, wanted), functools.reduce(merge_logs, logs)
    assert merged.only_adds
    assert (merged.new_groups, merged.new_arrays) == (expected.new_groups, expected.new_arrays)
    assert merged.updated_boxes == {key: each for key, each in expected.updated_boxes.items() if key in wanted}
    assert merged.updated_chunks.keys() == expected.updated_chunks.keys() & wanted
    for key, coords in merged.updated_chunks.items():
        assert (coords == expected.updated_chunks[key]).all()
