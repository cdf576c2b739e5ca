"""What every generation promises on every kind of place: conflicts, races, lost answers, refs and history."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import SpecVersion
from icefloe.storage.contract import Storage
from icefloe.testing.storages import Fault, FaultKind, FaultPlan, FaultyStorage

VERSIONS = [version.value for version in SpecVersion]
WRITERS, COMMITS = 4, 3


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def repo(place: Storage, version: str) -> icefloe.Repository:
    repo = icefloe.Repository.create(place, spec_version=version)
    with repo.transaction("main", message="start") as store:
        zarr.open_group(store, mode="a").create_array("a", shape=(16,), chunks=(1,), dtype="i4")
    return repo


def set_value(repo: icefloe.Repository, index: int, value: int, **options: Any) -> str:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[index] = value
    return session.commit(f"{index}={value}", **options)


def values(repo: icefloe.Repository, **ref: Any) -> list[int]:
    found: list[int] = zarr.open_array(repo.readonly_session(**ref).store, path="a", mode="r")[:].tolist()
    return found


def test_a_branch_that_moved_is_a_conflict_and_nothing_is_lost(repo: icefloe.Repository) -> None:
    late = repo.writable_session("main")
    zarr.open_array(late.store, path="a", mode="r+")[1] = 5
    first = set_value(repo, 0, 1)
    with pytest.raises(icefloe.ConflictError) as caught:
        late.commit("late")
    assert caught.value.actual_parent == first
    late.rebase(icefloe.ConflictDetector())
    late.commit("late")
    assert values(repo)[:2] == [1, 5]


def test_the_same_chunk_twice_is_found_and_solved_as_told(repo: icefloe.Repository) -> None:
    sessions = [repo.writable_session("main") for _ in range(3)]
    for number, session in enumerate(sessions):
        zarr.open_array(session.store, path="a", mode="r+")[0] = number + 1
    sessions[0].commit("first")
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        sessions[1].commit("second", rebase_with=icefloe.ConflictDetector())
    assert [conflict.path for conflict in caught.value.conflicts] == ["/a"]
    theirs = icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseTheirs)
    ours = icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseOurs)
    sessions[1].commit("second", rebase_with=theirs, allow_empty=True)
    assert values(repo)[0] == 1
    sessions[2].commit("third", rebase_with=ours)
    assert values(repo)[0] == 3


def commit_some(repository: bytes, writer: int) -> list[str]:
    repo: icefloe.Repository = pickle.loads(repository)
    return [
        set_value(repo, writer * COMMITS + number, writer + 1, rebase_with=icefloe.ConflictDetector())
        for number in range(COMMITS)
    ]


def check_all_landed(repo: icefloe.Repository, made: list[list[str]]) -> None:
    history = [info.id for info in repo.ancestry(branch="main")]
    assert len(set(history)) == len(history) == WRITERS * COMMITS + 2
    assert {each for ids in made for each in ids} == set(history[:-2])
    for ids in made:
        # A writer's own commits are in its order.
        assert sorted(ids, key=history.index, reverse=True) == ids
    assert values(repo)[: WRITERS * COMMITS] == [1 + index // COMMITS for index in range(WRITERS * COMMITS)]


def test_writers_in_threads_lose_no_commit(repo: icefloe.Repository) -> None:
    packed = pickle.dumps(repo)
    with ThreadPoolExecutor(WRITERS) as pool:
        made = list(pool.map(commit_some, [packed] * WRITERS, range(WRITERS)))
    check_all_landed(repo, made)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Two processes that share nothing with this one."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.every_generation
def test_writers_in_processes_lose_no_commit(repo: icefloe.Repository, processes: ProcessPoolExecutor) -> None:
    if repo.storage.url.startswith("memory"):
        pytest.skip("memory belongs to one process")
    packed = pickle.dumps(repo)
    made = list(processes.map(commit_some, [packed] * WRITERS, range(WRITERS)))
    check_all_landed(repo, made)


def test_of_many_creators_of_one_thing_exactly_one_wins(repo: icefloe.Repository) -> None:
    tip = repo.lookup_branch("main")

    async def race(make: Any) -> int:
        results = await asyncio.gather(*(make(number) for number in range(6)), return_exceptions=True)
        losers = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(loser, icefloe.AlreadyExistsError) for loser in losers)
        return len(results) - len(losers)

    async def races() -> tuple[int, int]:
        repos = [pickle.loads(pickle.dumps(repo)) for _ in range(6)]
        branches = await race(lambda number: repos[number].create_branch_async("one", tip))
        tags = await race(lambda number: repos[number].create_tag_async("one-tag", tip))
        return branches, tags

    assert asyncio.run(races()) == (1, 1)
    assert (repo.lookup_branch("one"), repo.lookup_tag("one-tag")) == (tip, tip)


@pytest.mark.parametrize("kind", [FaultKind.FAIL_BEFORE, FaultKind.LOSE_ANSWER])
def test_a_commit_whose_answer_was_lost_is_settled(repo: icefloe.Repository, kind: FaultKind) -> None:
    """Whichever conditional write goes wrong: success is success, failure leaves nothing, nothing lands twice."""
    for at in range(1, 3):
        before = [info.id for info in repo.ancestry(branch="main")]
        fault = Fault(kind, at=at, methods=("create", "swap"))
        faulty = icefloe.Repository.open(FaultyStorage(repo.storage, FaultPlan([fault])))
        session = faulty.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[at] = at + 40
        try:
            made = session.commit(f"try {at}")
        except icefloe.StorageError:
            made = None
        after = [info.id for info in repo.ancestry(branch="main")]
        assert after == (before if made is None else [made, *before])
        assert values(repo)[at] == (0 if made is None else at + 40)
        set_value(repo, at + 8, 7)


def test_random_faults_never_lose_or_double_a_commit(repo: icefloe.Repository) -> None:
    """A writer that tries until it succeeds ends with each of its commits in history once."""
    plan = FaultPlan(rate=0.05, seed=3, enabled=False)
    faulty = icefloe.Repository.open(FaultyStorage(repo.storage, plan))
    plan.enabled = True
    for number in range(6):
        for _ in range(40):
            try:
                session = faulty.writable_session("main")
                if any(info.message == f"{number}" for info in faulty.ancestry(branch="main")):
                    break
                zarr.open_array(session.store, path="a", mode="r+")[number] = number + 1
                session.commit(f"{number}")
            except (icefloe.StorageError, icefloe.OutcomeUnknownError, icefloe.ConflictError):
                continue
            break
        else:
            pytest.fail("forty tries were not enough")
    messages = [info.message for info in repo.ancestry(branch="main")]
    assert messages == [*(str(number) for number in reversed(range(6))), "start", "Repository initialized"]
    assert values(repo)[:6] == [1, 2, 3, 4, 5, 6]


def test_branches_go_their_own_ways_and_history_is_told_from_every_ref(repo: icefloe.Repository) -> None:
    start = repo.lookup_branch("main")
    expected: dict[str, list[str]] = {"main": ["start", "Repository initialized"]}
    for branch in ("dev", "été", "a b!"):
        repo.create_branch(branch, start)
        expected[branch] = ["start", "Repository initialized"]
    for number, branch in enumerate([*expected, *expected]):
        session = repo.writable_session(branch)
        zarr.open_array(session.store, path="a", mode="r+")[number] = number + 1
        tip = session.commit(f"{branch} {number}", {"n": number})
        repo.create_tag(f"{branch} {number}", tip)
        expected[branch].insert(0, f"{branch} {number}")
        expected[f"{branch} {number}"] = list(expected[branch])
    again = icefloe.Repository.open(repo.storage)
    assert again.list_branches() == {"main", "dev", "été", "a b!"}
    assert again.list_tags() == expected.keys() - again.list_branches()
    for name, messages in expected.items():
        ref = {"branch": name} if name in again.list_branches() else {"tag": name}
        infos = list(again.ancestry(**ref))
        assert [info.message for info in infos] == messages
        assert [info.parent_id for info in infos] == [*(info.id for info in infos[1:]), None]
        assert all(info.metadata.get("n") is not None for info in infos[:-2])
    repo.delete_branch("été")
    repo.reset_branch("dev", start)
    assert icefloe.Repository.open(repo.storage).list_branches() == {"main", "dev", "a b!"}
    assert values(again, branch="dev") == [0] * 16


def test_capabilities_say_what_the_generation_does(repo: icefloe.Repository) -> None:
    capabilities = repo.context.capabilities
    repo.create_tag("t", repo.lookup_branch("main"))
    if capabilities.deletable_tags:
        repo.delete_tag("t")
        with pytest.raises(icefloe.AlreadyExistsError):
            repo.create_tag("t", repo.lookup_branch("main"))
    else:
        with pytest.raises(icefloe.UnsupportedError):
            repo.delete_tag("t")
    for name, ask in (
        ("repository_metadata", repo.get_metadata),
        ("repository_status", repo.get_status),
        ("feature_flags", repo.feature_flags),
        ("operations_log", lambda: list(repo.ops_log())),
    ):
        if getattr(capabilities, name):
            ask()
        else:
            with pytest.raises(icefloe.UnsupportedError):
                ask()
