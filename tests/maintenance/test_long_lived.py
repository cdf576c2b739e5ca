"""A service keeps a repository open for months while others commit and a nightly job rewrites history.

The service, a fresh process and the nightly job have caches of their own; the storage is all that they share. Whatever
they do in turns, the branch reads as the model says, its history is the same for everybody, and verify finds nothing.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

import numpy as np
import pytest
import zarr
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.maintenance.histories import GENERATIONS

import icefloe

LENGTH = 6
ELEMENTS = st.integers(0, LENGTH - 1)
SINGLE = icefloe.RepositoryConfig(
    inline_chunk_threshold_bytes=0, chunk_packing=icefloe.ChunkPackingConfig(enabled=False)
)
"""Every chunk is an object of its own, stored when it is written."""


def open_array(session: icefloe.Session, mode: str = "r+") -> zarr.Array:
    return zarr.open_array(session.store, path="a", mode=mode)


def read(repo: icefloe.Repository, snapshot_id: str) -> list[int]:
    return np.asarray(open_array(repo.readonly_session(snapshot_id=snapshot_id), "r")[:]).tolist()


@dataclass
class Late:
    """A session of the service that was opened some time ago."""

    session: icefloe.Session
    writes: dict[int, int] = field(default_factory=dict)
    shifts: int = 0

    def apply(self, values: list[int]) -> list[int]:
        """What the branch reads as after these changes."""
        moved = ([0] * self.shifts + values)[: len(values)]
        return [self.writes.get(place, value) for place, value in enumerate(moved)]


class LongLived(RuleBasedStateMachine):
    generation = "repository"

    @initialize()
    def create(self) -> None:
        self.storage = icefloe.in_memory_storage()
        self.service = icefloe.Repository.create(self.storage, SINGLE, spec_version=self.generation)
        with self.service.transaction("main", message="array") as store:
            zarr.create_group(store)
            zarr.create_array(store, name="a", shape=(LENGTH,), chunks=(1,), dtype="i4", compressors=None)
        self.values: dict[str, list[int]] = {self.service.lookup_branch("main"): [0] * LENGTH}
        self.late: list[Late] = []
        self.count = 0

    def fresh(self) -> icefloe.Repository:
        return icefloe.Repository.open(self.storage, SINGLE)

    def next_value(self) -> int:
        self.count += 1
        return self.count

    def tip(self) -> str:
        return self.fresh().lookup_branch("main")

    def check(self) -> None:
        """Everybody sees one history, and all of it reads as it was written."""
        fresh = self.fresh()
        history = [info.id for info in fresh.ancestry(branch="main")]
        assert [info.id for info in self.service.ancestry(branch="main")] == history
        for info in list(fresh.ancestry(branch="main"))[:-1]:
            assert read(fresh, info.id) == self.values[info.id]
            assert fresh.readonly_session("main", as_of=info.written_at).snapshot_id == info.id
        assert read(self.service, history[0]) == self.values[history[0]]

    @rule(element=ELEMENTS, by_service=st.booleans(), amend=st.booleans())
    def commit(self, element: int, by_service: bool, amend: bool) -> None:
        repo, before = self.service if by_service else self.fresh(), self.values[self.tip()]
        session, value = repo.writable_session("main"), self.next_value()
        open_array(session)[element] = value
        snapshot_id = session.amend(f"amended {value}") if amend else session.commit(f"wrote {value}")
        self.values[snapshot_id] = [value if place == element else was for place, was in enumerate(before)]
        self.check()

    @rule(element=ELEMENTS, shift=st.booleans())
    def open_late(self, element: int, shift: bool) -> None:
        late = Late(self.service.writable_session("main"))
        if shift:
            late.session.shift_array("/a", (1,))
            late.shifts = 1
        late.writes[element] = self.next_value()
        open_array(late.session)[element] = late.writes[element]
        self.late.append(late)

    @precondition(lambda self: self.late)
    @rule(rebase_first=st.booleans(), data=st.data())
    def commit_late(self, rebase_first: bool, data: st.DataObject) -> None:
        late = data.draw(st.sampled_from(self.late))
        before = self.values[self.tip()]
        try:
            if rebase_first:
                late.session.rebase(icefloe.ConflictDetector())
                if data.draw(st.booleans()):
                    return
            snapshot_id = late.session.commit("late", rebase_with=icefloe.ConflictDetector())
        except icefloe.IcefloeError:
            self.late.remove(late)
        else:
            self.late.remove(late)
            self.values[snapshot_id] = late.apply(before)
        self.check()

    @rule(keep=st.integers(1, 3))
    def expire(self, keep: int) -> None:
        self.fresh().expire_snapshots(retain_last=keep)
        self.check()

    @rule()
    def collect(self) -> None:
        self.fresh().garbage_collect(dt.timedelta(0), ignore_running_sessions=True)
        self.check()

    @rule(target_bytes=st.sampled_from([8, 64]))
    def compact(self, target_bytes: int) -> None:
        packing = icefloe.ChunkPackingConfig(enabled=True)
        repo = icefloe.Repository.open(self.storage, icefloe.RepositoryConfig(chunk_packing=packing))
        before = self.values[self.tip()]
        repo.compact("main", target_bytes=target_bytes)
        self.values.setdefault(self.tip(), before)
        self.check()

    @rule(by_service=st.booleans())
    def squash(self, by_service: bool) -> None:
        repo, before = self.service if by_service else self.fresh(), self.values[self.tip()]
        history = [info.id for info in repo.ancestry(branch="main")]
        self.values.setdefault(repo.squash("main", history[-1], message="squashed"), before)
        self.check()

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            assert self.fresh().verify().is_clean, str(self.fresh().verify())
            self.fresh().garbage_collect(dt.timedelta(0), ignore_running_sessions=True)
            self.check()


@pytest.mark.every_generation
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_long_lived_repository_sees_what_others_did(generation: str) -> None:
    class Machine(LongLived):
        pass

    Machine.generation = generation
    Machine.TestCase.settings = settings(max_examples=8, stateful_step_count=14)
    Machine.TestCase("runTest").debug()
