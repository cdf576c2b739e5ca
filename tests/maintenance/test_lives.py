"""Any life of a repository: what refs lead to reads as it was written, and collections leave nothing else behind."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.maintenance.histories import GENERATIONS, count, now

import icefloe
from icefloe.errors import StorageError
from icefloe.maintenance.verify_report import DamageKind
from icefloe.storage.faulty import FaultPlan, FaultyStorage

NAMES = st.sampled_from(["a", "b"])
BRANCHES = st.sampled_from(["main", "dev", "old"])
CHUNK = 100
SETTINGS = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=100)


class Life(RuleBasedStateMachine):
    """Commits, branches, resets, expiries, compactions, merges and collections, some of them beside each other."""

    version = "repository"
    fault_rate = 0.0

    @initialize(seed=st.integers(0, 1 << 30))
    def begin(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.plan = FaultPlan(rate=self.fault_rate, seed=seed, enabled=False)
        self.storage = FaultyStorage(icefloe.in_memory_storage(), self.plan)
        self.repo = icefloe.Repository.create(self.storage, SETTINGS, spec_version=self.version)
        self.values: dict[str, dict[str, np.ndarray]] = {self.repo.lookup_branch("main"): {}}

    def attempt(self, act: Any) -> Any:
        """Do something that may fail by faults; whether it did is looked at afterwards."""
        self.plan.enabled = True
        try:
            return act()
        except (StorageError, icefloe.OutcomeUnknownError, icefloe.ConflictError):
            return None
        finally:
            self.plan.enabled = False

    def tips(self) -> dict[str, str]:
        return {name: self.repo.lookup_branch(name) for name in self.repo.list_branches()}

    @rule(branch=BRANCHES, name=NAMES, chunk=st.integers(0, 2), value=st.integers(1, 1000))
    def commit(self, branch: str, name: str, chunk: int, value: int) -> None:
        tips = self.tips()
        if branch not in tips:
            return
        session = self.repo.writable_session(branch)
        expected = dict(self.values[tips[branch]])
        root = zarr.open_group(session.store, mode="a")
        if name not in expected:
            root.create_array(name, shape=(3 * CHUNK,), chunks=(CHUNK,), dtype="i4", compressors=None)
        array = expected.get(name, np.zeros(3 * CHUNK, dtype="i4")).copy()
        array[chunk * CHUNK : (chunk + 1) * CHUNK] = value
        self.write(session, name, chunk, value)
        done = self.attempt(lambda: session.commit(f"{name}[{chunk}] = {value}"))
        if not session.read_only:
            session.discard_changes()
        expected[name] = array
        landed = self.repo.lookup_branch(branch)
        assert done is None or done == landed
        if landed != tips[branch]:
            self.values[landed] = expected

    def write(self, session: icefloe.Session, name: str, chunk: int, value: int) -> None:
        zarr.open_array(session.store, path=name, mode="r+")[chunk * CHUNK : (chunk + 1) * CHUNK] = value

    def somewhere(self) -> str:
        """Any snapshot that refs lead to; ids are random, so the choice is by age."""
        reachable = self.reachable()
        return self.random.choice([each for each in self.values if each in reachable])

    @rule(branch=BRANCHES)
    def branch_off(self, branch: str) -> None:
        if branch not in self.tips():
            self.repo.create_branch(branch, self.somewhere())

    @rule(branch=BRANCHES)
    def delete(self, branch: str) -> None:
        if branch != "main" and branch in self.tips():
            self.repo.delete_branch(branch)

    @rule(branch=BRANCHES)
    def reset(self, branch: str) -> None:
        if branch in self.tips():
            self.repo.reset_branch(branch, self.somewhere())

    @rule(last=st.integers(1, 4))
    def expire(self, last: int) -> None:
        self.attempt(lambda: self.repo.expire_snapshots(retain_last=last))

    @rule(branch=BRANCHES, unpack=st.booleans())
    def compact(self, branch: str, unpack: bool) -> None:
        before = self.tips()
        if branch not in before:
            return
        self.attempt(lambda: self.repo.compact(branch, unpack=unpack, batch_bytes=600))
        for info in self.repo.ancestry(branch=branch):
            if info.id == before[branch]:
                break
            self.values[info.id] = self.values[before[branch]]

    @rule(source=BRANCHES)
    def merge(self, source: str) -> None:
        tips = self.tips()
        if source not in tips or source == "main":
            return
        solver = icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseTheirs)
        plan = self.repo.plan_merge(source, solver=solver)
        if plan.conflicts:
            return
        self.attempt(lambda: self.repo.merge(source, solver=solver))
        landed = self.repo.lookup_branch("main")
        if landed not in self.values:
            self.values[landed] = self.merged(plan.base, tips[source], tips["main"])

    def merged(self, base: str, source: str, target: str) -> dict[str, np.ndarray]:
        old, ours, theirs = (self.values.get(each, {}) for each in (base, source, target))
        result = dict(theirs)
        for name, array in ours.items():
            if name not in theirs:
                result[name] = array
                continue
            joined = theirs[name].copy()
            before = old.get(name, np.zeros(3 * CHUNK, dtype="i4"))
            for chunk in range(3):
                part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
                if (theirs[name][part] == before[part]).all():
                    joined[part] = array[part]
            result[name] = joined
        return result

    @rule(incremental=st.booleans())
    def collect(self, incremental: bool) -> None:
        self.attempt(lambda: self.repo.garbage_collect(now(), incremental=incremental))

    @rule()
    def collect_everything(self) -> None:
        self.repo.garbage_collect(now())
        report = self.repo.verify()
        assert sum(report.orphans.values()) == 0, str(report)
        assert self.repo.garbage_collect(now()) == icefloe.GCSummary()
        assert count(self.repo)["snapshots"] == len(self.reachable())

    def reachable(self) -> set[str]:
        starts = list(self.tips().values())
        return {info.id for start in starts for info in self.repo.ancestry(snapshot_id=start)}

    @invariant()
    def what_refs_lead_to_is_what_was_written(self) -> None:
        if not hasattr(self, "repo"):
            return
        fresh = icefloe.Repository.open(self.storage)
        for snapshot_id in self.reachable():
            expected = self.values[snapshot_id]
            if not expected:
                continue
            root = zarr.open_group(fresh.readonly_session(snapshot_id=snapshot_id).store, mode="r")
            for name, array in expected.items():
                np.testing.assert_array_equal(root[name][:], array)  # type: ignore[index]

    def teardown(self) -> None:
        if hasattr(self, "repo"):
            damages = self.repo.verify().damages
            assert not [d for d in damages if d.kind is not DamageKind.MISQUOTED], damages


def _run(version: str, fault_rate: float, examples: int) -> None:
    machine = type(f"Life of {version}", (Life,), {"version": version, "fault_rate": fault_rate})
    run_state_machine(machine, examples)


def run_state_machine(machine: type[Life], examples: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("version", GENERATIONS)
def test_a_life_without_faults(version: str) -> None:
    _run(version, 0.0, 4)


@pytest.mark.parametrize("version", GENERATIONS)
def test_a_life_with_faults(version: str) -> None:
    _run(version, 0.05, 4)


@pytest.mark.slow
@pytest.mark.parametrize("version", GENERATIONS)
def test_long_lives_with_faults(version: str) -> None:
    _run(version, 0.03, 40)
