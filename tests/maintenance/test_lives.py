"""Any life of a repository: what refs lead to reads as it was written, and collections leave nothing else behind."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.maintenance.histories import GENERATIONS, count, now, objects

import icefloe
from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, ObjectNotFoundError, SnapshotNotFoundError, StorageError
from icefloe.maintenance.inventory import id_texts, microseconds, open_uncached
from icefloe.maintenance.verify_checks import DamageKind
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.snapshot import ArrayNode
from icefloe.storage.wrappers import Operation
from icefloe.testing.storages import FaultPlan, FaultyStorage

T = TypeVar("T")

NAMES = st.sampled_from(["a", "b"])
BRANCHES = st.sampled_from(["main", "dev", "old"])
CHUNK = 100
SETTINGS = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=100)


class Meeting(FaultyStorage):
    """Lets somebody else act just before one of the coming operations."""

    visitor: Callable[[], Coroutine[Any, Any, None]] | None = None
    wait = 0
    visit: asyncio.Future[None] | None = None

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        self.wait -= 1
        visitor = self.visitor
        if self.wait <= 0 and visitor is not None:
            self.visitor = None
            # Whatever happens to the work that is visited, the visitor goes on.
            self.visit = asyncio.ensure_future(visitor())
            await asyncio.shield(self.visit)
        return await super()._forward(operation, call)

    async def end(self) -> None:
        """Wait for a visitor that is still there."""
        self.visitor = None
        if self.visit is not None:
            await asyncio.wait([self.visit])
            self.visit = None


@dataclass
class Writer:
    """A session that has written a chunk and not committed it yet."""

    session: icefloe.Session
    branch: str
    name: str
    chunk: int
    value: int
    started: dt.datetime
    message: str

    async def commit(self) -> None:
        solver = icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseOurs)
        with suppress(icefloe.IcefloeError):  # history tells whether it landed
            await self.session.commit_async(self.message, rebase_with=solver)

    def apply(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        array = values[self.name].copy()
        array[self.chunk * CHUNK : (self.chunk + 1) * CHUNK] = self.value
        return {**values, self.name: array}


class Life(RuleBasedStateMachine):
    """Commits, branches, resets, expiries, compactions, merges and collections; writers live and land beside them."""

    version = "repository"
    fault_rate = 0.0

    @initialize(seed=st.integers(0, 1 << 30))
    def begin(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.plan = FaultPlan(rate=self.fault_rate, seed=seed, enabled=False)
        self.storage = Meeting(icefloe.in_memory_storage(), self.plan)
        self.repo = icefloe.Repository.create(self.storage, SETTINGS, spec_version=self.version)
        self.values: dict[str, dict[str, np.ndarray]] = {self.repo.lookup_branch("main"): {}}
        self.writers: list[Writer] = []
        self.number = 0
        self.compacted = False
        """Whether chunks may have been moved that nobody changed."""
        self.deleted = True
        """Whether something may have been deleted since everything was read."""
        for value, name in enumerate("abab", 1):
            self.commit("main", name, value % 3, value)
        self.repo.create_branch("dev", self.repo.lookup_branch("main"))
        self.commit("dev", "a", 0, 5)

    def attempt(self, act: Any) -> Any:
        """Do something that may fail by faults; whether it did is looked at afterwards."""
        self.plan.enabled = True
        try:
            return act()
        except (StorageError, icefloe.OutcomeUnknownError, icefloe.ConflictError):
            return None
        finally:
            self.plan.enabled = False

    def there(self, branch: str) -> str:
        """The branch, or main where it is gone: hardly any step does nothing."""
        return branch if branch in self.tips() else "main"

    def tips(self) -> dict[str, str]:
        return {name: self.repo.lookup_branch(name) for name in self.repo.list_branches()}

    @rule(branch=BRANCHES, name=NAMES, chunk=st.integers(0, 2), value=st.integers(1, 1000))
    def commit(self, branch: str, name: str, chunk: int, value: int) -> None:
        branch, tips = self.there(branch), self.tips()
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

    @rule(branch=BRANCHES, name=NAMES, chunk=st.integers(0, 2), value=st.integers(1001, 2000))
    def start_writer(self, branch: str, name: str, chunk: int, value: int) -> None:
        """A session that stays open while other things happen."""
        branch, tips = self.there(branch), self.tips()
        if len(self.writers) >= 2 or name not in self.values[tips[branch]]:
            return
        self.number += 1
        started = now()
        session = self.repo.writable_session(branch)
        self.write(session, name, chunk, value)
        self.writers.append(Writer(session, branch, name, chunk, value, started, f"writer {self.number}"))

    @rule()
    def land(self) -> None:
        """An open session commits over whatever happened since."""
        if self.writers:
            writer = self.writers.pop(0)
            before = self.tips().get(writer.branch)
            self.plan.enabled = True
            run_blocking(writer.commit())
            self.plan.enabled = False
            self.leave(writer, before)

    def leave(self, writer: Writer, before: str | None) -> None:
        if not writer.session.read_only:
            writer.session.discard_changes()
        self.learn(writer.branch, before, writer)

    def learn(self, branch: str, before: str | None, writer: Writer | None = None) -> None:
        """What new commits of a branch must hold: what it held before, and what a writer brought.

        Their parents do not tell: expiry may have changed them since.
        """
        if before is None:
            return
        fresh = list(takewhile(lambda info: info.id not in self.values, self.repo.ancestry(branch=branch)))
        current = self.values[before]
        for info in reversed(fresh):
            if writer is not None and info.message == writer.message:
                current = writer.apply(current)
            self.values[info.id] = current

    @rule(verb=st.sampled_from(["expire", "compact", "collect", "collect what is new"]), at=st.integers(1, 60))
    def meet(self, verb: str, at: int) -> None:
        """A writer commits in the middle of a piece of maintenance."""
        self.deleted = True
        if not self.writers:
            self.start_writer("main", "a", at % 3, 2000 + at)
        if not self.writers:
            return
        cutoff = self.cutoff()
        writer = self.writers.pop(0)
        acts: dict[str, Callable[[], Any]] = {
            "expire": lambda: self.repo.expire_snapshots(retain_last=1),
            "compact": lambda: self.repo.compact(writer.branch, batch_bytes=600),
            "collect": lambda: self.repo.garbage_collect(cutoff),
            "collect what is new": lambda: self.repo.garbage_collect(cutoff, incremental=True),
        }
        before = self.tips().get(writer.branch)
        self.compacted |= verb == "compact"
        self.storage.visitor, self.storage.wait = writer.commit, at
        try:
            if verb != "compact" or before is not None:
                self.attempt(acts[verb])
        finally:
            run_blocking(self.storage.end())
        self.leave(writer, before)

    def cutoff(self) -> dt.datetime:
        """The latest time that spares what open sessions have written."""
        # A session seems older than it is by the time that a request takes.
        return min((writer.started - dt.timedelta(milliseconds=50) for writer in self.writers), default=now())

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
        self.repo.reset_branch(self.there(branch), self.somewhere())

    @rule(last=st.integers(1, 4))
    def expire(self, last: int) -> None:
        self.attempt(lambda: self.repo.expire_snapshots(retain_last=last))

    @rule(branch=BRANCHES, unpack=st.booleans())
    def compact(self, branch: str, unpack: bool) -> None:
        branch = self.there(branch)
        before, self.compacted = self.tips()[branch], True
        self.attempt(lambda: self.repo.compact(branch, unpack=unpack, batch_bytes=600))
        self.learn(branch, before)

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
            expected = self.merged(plan.base, tips[source], tips["main"])
            if self.compacted and not self.repo.context.capabilities.transaction_logs:
                expected = self.settled(landed, expected, self.values[tips["main"]])
            self.values[landed] = expected

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

    def settled(
        self, landed: str, expected: dict[str, np.ndarray], theirs: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """What a merge holds where references are compared: chunks that a compaction moved count as changed, too."""
        root = zarr.open_group(self.repo.readonly_session(snapshot_id=landed).store, mode="r")
        result = {}
        for name, array in expected.items():
            found = np.asarray(root[name][:])  # type: ignore[index]
            for part in (slice(chunk * CHUNK, (chunk + 1) * CHUNK) for chunk in range(3)):
                kept = name in theirs and (found[part] == theirs[name][part]).all()
                assert kept or (found[part] == array[part]).all()
            result[name] = found
        return result

    @rule(incremental=st.booleans())
    def collect(self, incremental: bool) -> None:
        cutoff, self.deleted = self.cutoff(), True
        self.attempt(lambda: self.repo.garbage_collect(cutoff, incremental=incremental))

    @rule()
    def collect_everything(self) -> None:
        """Nothing that is unreachable and older than the cut-off is left, by an account of its own."""
        cutoff, self.deleted = self.cutoff(), True
        self.repo.garbage_collect(cutoff)
        limit = microseconds(cutoff)
        listed = objects(self.repo)
        files = listed["snapshots"]
        young = set(files.take(files.modified >= limit).texts())
        # A writer that was under way while history expired quotes what it knew: that is kept while it is there.
        quoted = self.quoted() & set(files.texts())
        allowed = self.account(self.reachable() | self.closure(young, must_exist=False) | quoted)
        for kind, found in listed.items():
            old = set(found.take(found.modified < limit).texts())
            assert old <= allowed[kind], (kind, old - allowed[kind])
        if not self.writers and quoted <= self.reachable():
            assert sum(self.repo.verify().orphans.values()) == 0
            assert count(self.repo)["snapshots"] == len(self.reachable())
        assert self.repo.garbage_collect(cutoff) == icefloe.GCSummary()

    def account(self, snapshots: set[str]) -> dict[str, set[str]]:
        """Everything that snapshots name, found by opening each.

        The snapshot of a failed commit may be there without its manifests: the files of a commit are written at the
        same time, and a collection may delete what a refused commit refers to.
        """
        named: dict[str, set[str]] = {kind: set() for kind in objects(self.repo)}
        reachable = self.reachable()
        named["snapshots"] = set(snapshots)
        pruned = run_blocking(self.repo.context.ledger.fetch_all_pruned_logs())
        named["transaction_logs"] = snapshots | pruned
        for snapshot_id in snapshots:
            work = self.repo.readonly_session(snapshot_id=snapshot_id).state
            named["manifests"] |= set(work.base.manifests)
            named["attributes"] |= set(work.base.attribute_files)
            for node in work.tree.nodes():
                if node.attributes is not None:
                    named["attributes"].add(node.attributes.object_id)
                if isinstance(node, ArrayNode):
                    named["manifests"] |= {ref.manifest_id for ref in node.manifests}
                    try:
                        table = run_blocking(work.chunk_table(node))
                    except FormatError as error:
                        if snapshot_id in reachable or not isinstance(error.__cause__, ObjectNotFoundError):
                            raise
                        continue
                    if table.object_id is not None:
                        named["chunks"] |= set(id_texts(table.object_id[table.kind == ChunkKind.NATIVE]))
        return named

    def reachable(self) -> set[str]:
        """What refs lead to."""
        return self.closure(set(self.tips().values()))

    def closure(self, starts: set[str], must_exist: bool = True) -> set[str]:
        """Snapshots and their ancestors, by the parents in their own files, or as the repository lists them."""
        found = set(starts)
        if not self.repo.context.capabilities.history_in_snapshot:
            for start in starts:
                with suppress(icefloe.IcefloeError):  # one that no ref leads to may have lost its place in the list
                    found |= {info.id for info in self.repo.ancestry(snapshot_id=start)}
            return found
        metadata_files = open_uncached(self.repo.context).metadata_files
        waiting = list(starts)
        while waiting:
            snapshot_id = waiting.pop()
            try:
                parent = run_blocking(metadata_files.fetch_snapshot(snapshot_id)).parent_id
            except SnapshotNotFoundError:
                if must_exist:
                    raise
                found.remove(snapshot_id)
                continue
            if parent is not None and parent not in found:
                found.add(parent)
                waiting.append(parent)
        return found

    def quoted(self) -> set[str]:
        """Ancestors that reachable snapshots quote, there or not."""
        metadata_files = open_uncached(self.repo.context).metadata_files
        histories = [run_blocking(metadata_files.fetch_snapshot(each)).history for each in self.reachable()]
        return {entry.id for history in histories for entry in history}

    @invariant()
    def what_refs_lead_to_is_what_was_written(self) -> None:
        if not hasattr(self, "repo"):
            return
        fresh = icefloe.Repository.open(self.storage)
        wanted, self.deleted = self.reachable() if self.deleted else set(self.tips().values()), False
        for snapshot_id in wanted:
            expected = self.values[snapshot_id]
            if not expected:
                continue
            root = zarr.open_group(fresh.readonly_session(snapshot_id=snapshot_id).store, mode="r")
            for name, array in expected.items():
                np.testing.assert_array_equal(root[name][:], array)  # type: ignore[index]

    def teardown(self) -> None:
        if hasattr(self, "repo"):
            self.deleted = True
            self.what_refs_lead_to_is_what_was_written()
            for writer in self.writers:
                writer.session.discard_changes()
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


@pytest.mark.long
@pytest.mark.parametrize("version", GENERATIONS)
def test_a_life_without_faults(version: str) -> None:
    _run(version, 0.0, 3)


@pytest.mark.long
@pytest.mark.parametrize("version", GENERATIONS)
def test_a_life_with_faults(version: str) -> None:
    _run(version, 0.05, 3)


@pytest.mark.slow
@pytest.mark.parametrize("version", GENERATIONS)
def test_long_lives_with_faults(version: str) -> None:
    _run(version, 0.03, 40)
