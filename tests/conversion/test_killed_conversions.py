"""A process that dies at any storage operation of a conversion: nothing is lost, the same call finishes the work."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conversion.repositories import assert_same
from tests.conversion.test_conversion_promises import PAIRS_TO_KILL, files, small_repository
from tests.session.forked import run_child

import icefloe
from icefloe.ledger.ledger import JOURNAL_KEY
from icefloe.storage.build import local_filesystem_storage
from icefloe.storage.wrappers import METHODS, WRITES
from icefloe.testing.storages import KILLED, Fault, FaultKind, FaultPlan, FaultyStorage

STEPS = [pytest.param("icechunk1", "icechunk2", 11)] + [
    pytest.param(*pair, 1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]) for pair in PAIRS_TO_KILL
]
"""Some deaths in every run of the tests, all of them in the thorough one."""


def _dying(place: Path, fault: Fault) -> FaultyStorage:
    return FaultyStorage(local_filesystem_storage(place), FaultPlan((fault,)))


def _convert(source: Path, target: Path, version: str, fault: Fault) -> None:
    icefloe.convert(source, _dying(target, fault), version)
    os._exit(0)


def _upgrade(place: Path, version: str, fault: Fault) -> None:
    icefloe.upgrade(_dying(place, fault), version)
    os._exit(0)


def deaths(run: Callable[[Fault], int], step: int) -> Iterator[str]:
    """Every operation of a run, killed before it, and where it writes also after it; ends with a run that survives."""
    # Whoever dies after a read dies before whatever comes next.
    for kind, methods in ((FaultKind.KILL_BEFORE, METHODS), (FaultKind.KILL_AFTER, WRITES)):
        for number in itertools.count(1, step):
            code = run(Fault(kind, at=number, methods=methods))
            assert code in (0, KILLED), f"the child ended with {code}"
            if code == 0:
                assert number > 5
                break
            yield f"{kind.value} operation {number}"


@pytest.mark.long
@pytest.mark.parametrize(("old", "new", "step"), STEPS)
def test_a_process_that_dies_converting_leaves_the_source_and_a_second_run_finishes(
    tmp_path: Path, old: str, new: str, step: int
) -> None:
    place, target = tmp_path / "source", tmp_path / "target"
    source = small_repository(place, old)
    before = files(place)

    def run(fault: Fault) -> int:
        shutil.rmtree(target, ignore_errors=True)
        return run_child(_convert, place, target, new, fault)

    for death in deaths(run, step):
        assert files(place) == before, death
        done = icefloe.Repository.exists(target) and not (target / JOURNAL_KEY).exists()
        if not done:
            icefloe.convert(place, target, new)
        assert_same(source, icefloe.Repository.open(target))
        assert not (target / JOURNAL_KEY).exists(), death


@pytest.mark.long
@pytest.mark.parametrize(("old", "new", "step"), STEPS)
def test_a_process_that_dies_converting_in_place_leaves_a_whole_repository(
    tmp_path: Path, old: str, new: str, step: int
) -> None:
    template, place = tmp_path / "template", tmp_path / "place"
    source = small_repository(template, old)

    def run(fault: Fault) -> int:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(template, place)
        return run_child(_upgrade, place, new, fault)

    for death in deaths(run, step):
        found = icefloe.Repository.open(place)
        assert found.spec_version.value in {old, new, "icechunk2"}, death
        assert_same(source, found)
        if (place / JOURNAL_KEY).exists() or found.spec_version.value != new:
            icefloe.upgrade(place, new)
        found = icefloe.Repository.open(place)
        assert found.spec_version.value == new, death
        assert_same(source, found)
        assert not (place / JOURNAL_KEY).exists(), death
