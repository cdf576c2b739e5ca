"""A process that dies at any storage operation leaves the repository at the old state or the new one."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zarr
from tests.session.forked import run_child
from tests.session.scenarios import SCENARIOS, make_repository, read_all

import icefloe
from icefloe import SpecVersion
from icefloe.storage.build import local_filesystem_storage
from icefloe.testing.storages import KILLED, Fault, FaultKind, FaultPlan, FaultyStorage

GENERATIONS = [version.value for version in SpecVersion]
KILLS = (FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER)
FAST = {"repository"}
BOTH = [
    pytest.param(version, name, marks=[] if version in FAST else [pytest.mark.slow])
    for version in GENERATIONS
    for name in SCENARIOS
]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Repositories that tests copy, made when they are first asked for."""
    return {}


@pytest.fixture
def template(
    request: pytest.FixtureRequest, templates: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    version: str = request.getfixturevalue("version")
    if version not in templates:
        templates[version] = tmp_path_factory.mktemp("template") / "repository"
        make_repository(templates[version], version)
    return templates[version]


def _act(path: Path, scenario: str, fault: Fault) -> None:
    plan = FaultPlan((fault,), enabled=False)
    repo = icefloe.Repository.open(FaultyStorage(local_filesystem_storage(path), plan))
    plan.enabled = True
    SCENARIOS[scenario].act(repo)
    os._exit(0)


def _deaths(template: Path, folder: Path, scenario: str) -> Iterator[tuple[str, Path]]:
    """Copies of a repository, each left behind by a process that died at another operation."""
    for number in itertools.count(1):
        codes = []
        for kind in KILLS:
            copy = folder / f"{kind.name}-{number}"
            shutil.copytree(template, copy)
            codes.append(run_child(_act, copy, scenario, Fault(kind, at=number)))
            assert codes[-1] in (0, KILLED), f"{scenario}: the child ended with {codes[-1]}"
            if codes[-1] == KILLED:
                yield f"operation {number}: {kind.value}", copy
            shutil.rmtree(copy)
        # An operation that finds nothing or refuses has no effect to die after.
        if codes[0] == 0:
            return


@pytest.mark.long
@pytest.mark.parametrize(("version", "scenario"), BOTH)
def test_a_repository_survives_a_death_at_every_operation(
    version: str, scenario: str, template: Path, tmp_path: Path
) -> None:
    if scenario == "save config" and version in ("dataset", "store"):
        pytest.skip("the generation keeps no configuration")
    before = icefloe.Repository.open(template)
    old = {name: read_all(before.readonly_session(name)) for name in ("main", "dev")}
    finished = tmp_path / "finished"
    shutil.copytree(template, finished)
    SCENARIOS[scenario].act(icefloe.Repository.open(finished))
    done = icefloe.Repository.open(finished)
    new = {name: read_all(done.readonly_session(name)) for name in ("main", "dev") if name in done.list_branches()}

    outcomes = []
    for what, path in _deaths(template, tmp_path, scenario):
        started = time.monotonic()
        repo = icefloe.Repository.open(path)
        landed = SCENARIOS[scenario].landed(repo, before)
        outcomes.append(landed)
        found = {name: read_all(repo.readonly_session(name)) for name in repo.list_branches() & {"main", "dev"}}
        if scenario == "rebase" and landed:
            _check_rebase(repo, old["main"], new["main"], what)
        else:
            assert found == (new if landed else old), f"{what}: neither the old state nor the new one"
        assert read_all(repo.readonly_session(tag="v1")) == old["dev"], what
        for info in repo.ancestry(branch="main"):
            assert repo.lookup_snapshot(info.id).id == info.id
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="packed", mode="r+")[3] = 1234
        snapshot_id = session.commit("after the death")
        again = icefloe.Repository.open(path)
        assert again.lookup_branch("main") == snapshot_id, what
        assert zarr.open_array(again.readonly_session("main").store, path="packed", mode="r")[3] == 1234
        assert time.monotonic() - started < 120, f"{what}: something waits for the dead"
    if scenario not in ("flush",):
        assert not outcomes[0], "the first operation already showed the change"
        assert outcomes[-1], "the last operation did not show the change"


def _check_rebase(repo: icefloe.Repository, old: dict[str, object], new: dict[str, object], what: str) -> None:
    """After a commit in between: either only that one, or both."""
    messages = [info.message for info in repo.ancestry(branch="main")]
    found = read_all(repo.readonly_session("main"))
    if messages[0] == "third":
        assert found == new, what
    else:
        assert messages[0] == "in between", what
        assert {**found, "packed": None} == {**old, "packed": None}, what


def _create(path: Path, version: str, fault: Fault) -> None:
    storage = FaultyStorage(local_filesystem_storage(path), FaultPlan((fault,)))
    icefloe.Repository.create(storage, spec_version=version)
    os._exit(0)


@pytest.mark.long
@pytest.mark.parametrize("version", GENERATIONS)
def test_a_place_survives_the_death_of_a_creator_at_every_operation(version: str, tmp_path: Path) -> None:
    outcomes = []
    for number in itertools.count(1):
        codes = [
            run_child(_create, tmp_path / f"{kind.name}-{number}", version, Fault(kind, at=number)) for kind in KILLS
        ]
        assert set(codes) <= {0, KILLED}
        for kind in KILLS:
            path = tmp_path / f"{kind.name}-{number}"
            outcomes.append(icefloe.Repository.exists(path))
            repo = icefloe.Repository.open_or_create(path, create_version=version)
            session = repo.writable_session("main")
            zarr.group(session.store).create_group("g")
            session.commit("first")
            assert len(list(icefloe.Repository.open(path).ancestry(branch="main"))) == 2
        if codes[0] == 0:
            break
    assert not outcomes[0] and outcomes[-1]
