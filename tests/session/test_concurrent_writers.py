"""Many processes commit to one branch, or create one repository: every commit lands once, one creator wins."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.session.forked import FORKSERVER, run_together

import icefloe
from icefloe import SpecVersion
from icefloe.blocking import iterate_blocking
from icefloe.storage.build import local_filesystem_storage, s3_storage
from icefloe.storage.contract import Storage

GENERATIONS = [version.value for version in SpecVersion]
OTHERS = [pytest.param(name, marks=pytest.mark.slow) if name != "repository" else name for name in GENERATIONS]


@pytest.fixture(
    params=[
        "local",
        pytest.param("ministack", marks=pytest.mark.s3),
        pytest.param("seaweedfs", marks=[pytest.mark.s3, pytest.mark.slow]),
    ]
)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A storage that several processes can reach."""
    if request.param == "local":
        return local_filesystem_storage(tmp_path / "repository")
    server = request.getfixturevalue(request.param)
    return s3_storage(**server.storage_options(server.make_bucket()))


def _commit_many(storage: Storage, worker: int, commits: int, start: Any) -> None:
    repo = icefloe.Repository.open(storage)
    start.wait()
    for number in range(commits):
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[worker, number] = 1000 * worker + number + 1
        session.commit("step", {"worker": worker, "number": number}, rebase_with=icefloe.ConflictDetector())


def _storm(storage: Storage, version: str, workers: int, commits: int) -> float:
    """Let writers commit to one branch; returns how many snapshots were written for each commit that landed."""
    repo = icefloe.Repository.create(storage, spec_version=version)
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(workers, commits), chunks=(1, 1), dtype="i4")
    run_together(_commit_many, [(storage, worker, commits) for worker in range(workers)])
    repo = icefloe.Repository.open(storage)
    history = [dict(info.metadata) for info in repo.ancestry(branch="main")][:-2]
    landed = Counter((entry["worker"], entry["number"]) for entry in history)
    assert landed == Counter((worker, number) for worker in range(workers) for number in range(commits))
    for worker in range(workers):
        own = [entry["number"] for entry in reversed(history) if entry["worker"] == worker]
        assert own == sorted(own), "the commits of one writer are in its order"
    values = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]
    expected = 1000 * np.arange(workers)[:, None] + np.arange(1, commits + 1)
    np.testing.assert_array_equal(values, expected)
    return _count_snapshots(repo) / (workers * commits)


def _count_snapshots(repo: icefloe.Repository) -> int:
    return sum(len(page) for page in iterate_blocking(repo.storage.list(repo.context.format.snapshots_folder)))


@pytest.mark.long
def test_eight_processes_make_fifty_commits_each_and_none_is_lost(
    shared: Storage,
) -> None:
    assert _storm(shared, "repository", 8, 50) < 8, "writers spend their time on attempts that lose"


@pytest.mark.slow
@pytest.mark.parametrize("version", [name for name in GENERATIONS if name != "repository"])
def test_eight_processes_share_a_branch_in_every_generation(version: str, tmp_path: Path) -> None:
    _storm(local_filesystem_storage(tmp_path / "repository"), version, 8, 12)


@pytest.mark.long
def test_a_storm_of_sixteen_short_writers_makes_progress(tmp_path: Path) -> None:
    attempts = _storm(local_filesystem_storage(tmp_path / "repository"), "repository", 16, 10)
    assert attempts < 16, "writers spend their time on attempts that lose"


def _create(storage: Storage, version: str, worker: int, won: Any, start: Any) -> None:
    start.wait()
    try:
        icefloe.Repository.create(storage, spec_version=version)
        won.put(worker)
    except icefloe.AlreadyExistsError:
        won.put(None)


@pytest.mark.long
@pytest.mark.parametrize("version", OTHERS)
def test_of_eight_creators_exactly_one_wins(version: str, shared: Storage) -> None:
    for turn in range(3):
        storage = shared.child(f"turn-{turn}")
        won = FORKSERVER.Queue()
        run_together(_create, [(storage, version, worker, won) for worker in range(8)])
        winners = [winner for winner in (won.get(timeout=10) for _ in range(8)) if winner is not None]
        assert len(winners) == 1
        assert len(list(icefloe.Repository.open(storage).ancestry(branch="main"))) == 1


def _open_or_create(storage: Storage, version: str, worker: int, start: Any) -> None:
    start.wait()
    repo = icefloe.Repository.open_or_create(storage, create_version=version)
    session = repo.writable_session("main")
    session.commit("mine", {"worker": worker}, rebase_with=icefloe.ConflictDetector(), allow_empty=True)


@pytest.mark.parametrize("version", OTHERS)
def test_eight_processes_that_open_or_create_one_repository_all_get_it(version: str, shared: Storage) -> None:
    run_together(_open_or_create, [(shared, version, worker) for worker in range(8)])
    repo = icefloe.Repository.open(shared)
    workers = [info.metadata.get("worker") for info in repo.ancestry(branch="main")]
    assert sorted(workers[:-1]) == list(range(8))
