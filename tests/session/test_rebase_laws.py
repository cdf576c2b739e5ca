"""A rebase is what one session did, done again on what another one committed, or it is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.session.editing_machine import EDITS, Edit, Work
from tests.session.machine import RepositoryMachine

EDIT_LISTS = st.lists(EDITS, min_size=1, max_size=4)


def _open(machine: RepositoryMachine) -> Work:
    tip = machine.branches["main"]
    work = Work(machine.repo.writable_session("main"), "main", tip, machine.snapshots[tip])
    machine.works.append(work)
    return work


def _race(
    version: str, index: int, before: list[Edit], ours: list[Edit], theirs: list[list[Edit]], solver: bool
) -> None:
    machine = type("Machine", (RepositoryMachine,), {"spec_version": version})()
    try:
        machine.start(index)
        work = machine.works[0]
        for edit in before:
            machine.edit(work, edit)
        machine.commit(work, None, False)
        machine.works.clear()
        work = _open(machine)
        for edit in ours:
            machine.edit(work, edit)
        for edits in theirs:
            other = _open(machine)
            for edit in edits:
                machine.edit(other, edit)
            machine.commit(other, None, False)
            if other in machine.works:
                machine.works.remove(other)
        machine.rebase(work, solver, None, True)
    finally:
        machine.teardown()


@pytest.mark.long
@given(
    index=st.integers(0, 20),
    before=st.lists(EDITS, max_size=4),
    ours=EDIT_LISTS,
    theirs=st.lists(EDIT_LISTS, min_size=1, max_size=2),
    solver=st.booleans(),
)
def test_a_rebase_is_a_replay_or_is_refused(
    index: int, before: list[Edit], ours: list[Edit], theirs: list[list[Edit]], solver: bool
) -> None:
    _race("repository", index, before, ours, theirs, solver)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["icechunk2", "icechunk1", "store", "dataset"])
@settings(max_examples=40)
@given(
    index=st.integers(0, 20),
    before=st.lists(EDITS, max_size=4),
    ours=EDIT_LISTS,
    theirs=st.lists(EDIT_LISTS, min_size=1, max_size=2),
    solver=st.booleans(),
)
def test_a_rebase_is_a_replay_in_every_generation(
    version: str, index: int, before: list[Edit], ours: list[Edit], theirs: list[list[Edit]], solver: bool
) -> None:
    _race(version, index, before, ours, theirs, solver)
