"""The actors of a simulation: processes with repositories of their own, and what they do to the one repository.

A `Process` is what an operating system would call one: it has a clock, a connection to the store, a `Repository` with
its caches (for its whole life, or opened anew for every step), and sessions. Its lanes are its threads: their steps run
at the same time, and share the repository and the sessions. A process that dies starts again with nothing in memory.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import pickle
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from zarr.core.buffer import Buffer, default_buffer_prototype

from icefloe.blocking import Environment, adopt
from icefloe.conversion.convert import convert_async, upgrade_async
from icefloe.conversion.survey import LossKind
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    RebaseFailedError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
    UnsupportedError,
)
from icefloe.ids import ObjectId
from icefloe.model.config import ChunkPackingConfig, RepositoryConfig
from icefloe.repository.repository import Repository
from icefloe.session.fork import Fork
from icefloe.session.rebase import ConflictDetector
from icefloe.session.session import ForkSession, Session
from icefloe.store import IcechunkStore
from icefloe.testing.model import (
    Change,
    Chunk,
    Content,
    Delete,
    Document,
    Put,
    apply_change,
    array_document,
    carry_over,
    describe_difference,
    find_clashes,
    find_path,
    read_content,
    touched_by,
)
from icefloe.testing.oracle import SOLVERS, Collection, Intent, Oracle, SessionModel
from icefloe.testing.schedule import ACTOR, SimulatedLoop, observe
from icefloe.testing.storages import Network, ProcessDied, SimulatedStorage, SimulatedStore

Edit: TypeAlias = tuple[str, str, int]
"""What to change, in which array, and a number: a chunk, a size, an offset."""

CONFIGS: Mapping[str, RepositoryConfig] = {
    "inline": RepositoryConfig(),
    "packed": RepositoryConfig(inline_chunk_threshold_bytes=0),
    "loose": RepositoryConfig(inline_chunk_threshold_bytes=0, chunk_packing=ChunkPackingConfig(enabled=False)),
}
"""Where chunks go: into manifests, into packs, into objects of their own."""

_WRITING = ("edit", "fork", "commit", "transaction", "rebase", "read_own")
_EXPECTED = (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    SessionStateError,
    StorageError,
)
"""Errors by which a call may be refused. What else must hold for them is checked before."""
EPOCH = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """A process as a schedule describes it."""

    name: str
    config: str = "inline"
    long_lived: bool = True
    skew_seconds: float = 0.0
    loss_share: float = 0.0
    death_share: float = 0.0
    is_local: bool = False
    """Whether its requests take no time, so that only its threads are in each other's way."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of one lane of a process, at a time (or when the lane's step before it is done)."""

    number: int
    at: float
    process: str
    lane: int
    verb: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.number:3}  {self.at:10.3f} s  {self.process}.{self.lane}  {self.verb}({arguments})"


@dataclass(slots=True)
class _Slot:
    session: Session
    model: SessionModel
    ready_at: float
    """When the session could be written to. The model began before that, with the first request."""


class Process:
    """One simulated process."""

    def __init__(
        self, plan: ProcessPlan, store: SimulatedStore, loop: SimulatedLoop, oracle: Oracle, seed: int
    ) -> None:
        self.plan = plan
        self._store = store
        self._loop = loop
        self._oracle = oracle
        self._seed = seed
        self._births = 0
        self._source = random.Random(f"{seed}/{plan.name}")
        self._rebirth()

    def _rebirth(self) -> None:
        self._births += 1
        self._network = Network(
            random.Random(self._seed), loss_share=self.plan.loss_share, death_share=self.plan.death_share
        )
        network = None if self.plan.is_local else self._network
        self._storage = SimulatedStorage(self._store, f"{self.plan.name}-{self._births}", network)
        self._repo: Repository | None = None
        self._slots: dict[str, _Slot] = {}
        self._readers: dict[str, Session] = {}

    def environment(self, loop: SimulatedLoop) -> Environment:
        """Time and randomness of this process; `loop` is that of one of its threads."""
        skew = dt.timedelta(seconds=self.plan.skew_seconds)
        return Environment(
            now=lambda: EPOCH + dt.timedelta(seconds=self._loop.time()) + skew,
            monotonic=self._loop.time,
            random_bytes=self._source.randbytes,
            loop=loop,
        )

    async def run_lane(self, lane: int, steps: Sequence[Step], loop: SimulatedLoop | None = None) -> None:
        """Take the steps of one thread, one after the other."""
        actor = f"{self.plan.name}.{lane}"
        ACTOR.set(actor)
        adopt(self.environment(loop or self._loop))
        for step in steps:
            if step.at > self._loop.time():
                await asyncio.sleep(step.at - self._loop.time())
            if self._oracle.found.is_set():
                return
            await self._take(actor, step)

    def stop(self) -> None:
        """End the process where it is."""
        self._network.is_dead = True

    async def _take(self, actor: str, step: Step) -> None:
        # A step meets the same delays and faults, whatever other steps are left out.
        self._network.random = random.Random(f"{self._seed}/{step.number}")
        births = self._births
        verb: Callable[..., Awaitable[None]] = getattr(self, f"_{step.verb}")
        try:
            if self._repo is None or not self.plan.long_lived:
                self._repo = await Repository.open_async(self._storage, config=CONFIGS[self.plan.config])
            await verb(actor, f"{actor}#{step.number}", **step.arguments)
        except ProcessDied:
            self._oracle.deaths += 1
            if self._births == births:
                self._rebirth()
        except (OutcomeUnknownError, StorageError, ConflictError, RebaseFailedError):
            pass
        except NotFoundError as error:
            self._check_not_found(actor, step, error)
        except IcefloeError as error:
            self._check_error(actor, step, error)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - any other error is a finding
            self._oracle.report("errors are typed", f"{actor}: {step.verb} raised {type(error).__name__}: {error}")
        finally:
            self._oracle.intents.pop(actor, None)

    def _check_not_found(self, actor: str, step: Step, error: NotFoundError) -> None:
        if isinstance(error, RefNotFoundError) or self._oracle.collections or self._oracle.upgrades:
            # After an upgrade, who still has the old generation open finds its files gone.
            return
        if isinstance(error, SnapshotNotFoundError) and (self._oracle.expiries or self._oracle.resets):
            return
        self._oracle.report("nothing vanishes", f"{actor}: {step.verb} raised {type(error).__name__}: {error}")

    def _check_error(self, actor: str, step: Step, error: IcefloeError) -> None:
        if isinstance(error, FormatError) and step.verb in _WRITING and self._oracle.collections:
            # A collection with too short a grace took what the session had written: it must say so, and it did.
            return
        if not isinstance(error, _EXPECTED):
            self._oracle.report("errors are typed", f"{actor}: {step.verb} raised {type(error).__name__}: {error}")

    @property
    def repo(self) -> Repository:
        assert self._repo is not None
        return self._repo

    def _intent(self, actor: str, verb: str, branch: str, **facts: Any) -> Intent:
        intent = Intent(verb, branch, since=len(self._oracle.moves), began=self._loop.time(), **facts)
        self._oracle.intents[actor] = intent
        return intent

    # -- writers --------------------------------------------------------------------------------------------------

    async def _open(self, actor: str, label: str, slot: str, branch: str) -> None:
        since, began = len(self._oracle.moves), self._loop.time()
        session = await self.repo.writable_session_async(branch)
        base = self._oracle.contents.get(session.snapshot_id)
        if base is None:
            self._oracle.report("every read is of one snapshot", f"{actor}: nobody knows {session.snapshot_id}")
            return
        self._slots[slot] = _Slot(
            session, SessionModel(branch, session.snapshot_id, base, began, since), self._loop.time()
        )

    async def _edit(self, actor: str, label: str, slot: str, edits: Sequence[Edit]) -> None:
        entry = self._slots.get(slot)
        if entry is not None:
            for number, edit in enumerate(edits):
                await self._apply(entry.session, entry.model, edit, f"{label}.{number}", actor)

    async def _apply(self, session: Session, model: SessionModel, edit: Edit, label: str, actor: str) -> None:
        """Make one change in a session, and the same in its model."""
        changes = _changes_of(edit, model.view(), label)
        if not changes:
            return
        model.under_way += changes
        try:
            if edit[0] == "shift":
                await session.shift_array_async("/" + edit[1], (edit[2],))
            else:
                for change in changes:
                    await _write(session, model.view(), change)
        except (ReadOnlyError, SessionStateError):
            # A session that is being committed, or was, may refuse what comes too late.
            return
        finally:
            for change in changes:
                model.under_way.remove(change)
        model.changes += changes
        if model.landed is not None:
            await self._check_late(session, model, changes, actor)

    async def _check_late(self, session: Session, model: SessionModel, changes: Sequence[Change], actor: str) -> None:
        """Changes were accepted while the session was being committed: they are in the commit, or still here."""
        assert model.landed is not None
        committed = self._oracle.contents[model.landed]
        after = model.view()
        paths = {array.uid: path for path, array in after.items()}
        for change in changes:
            if not isinstance(change, Chunk) or change.uid not in paths:
                continue
            path = paths[change.uid]
            if after[path].chunks.get(change.index) != change.data:
                continue
            in_commit = path in committed and committed[path].chunks.get(change.index) == change.data
            here = await session.keyspace.fetch(f"{path}/c/{change.index}")
            if not in_commit and (None if here is None else bytes(here)) != change.data:
                self._oracle.report(
                    "what is acknowledged is there",
                    f"{actor}: a write of {change.data!r} to chunk {change.index} of {path} returned while the session "
                    f"was being committed; it is neither in {model.landed} nor in the session",
                )

    async def _commit(self, actor: str, label: str, slot: str, solver: str = "none", amend: bool = False) -> None:
        entry = self._slots.pop(slot, None)
        if entry is None:
            return
        session, model = entry.session, entry.model
        intent = self._intent(
            actor,
            "amend" if amend else "commit",
            model.branch,
            model=model,
            solver=SOLVERS[solver](),
            required=len(model.changes),
        )
        intent.since = model.since
        try:
            if amend:
                snapshot_id = await session.amend_async(label)
            else:
                snapshot_id = await session.commit_async(label, rebase_with=intent.solver, rebase_tries=6)
        except OutcomeUnknownError:
            return
        except RebaseFailedError as error:
            self._oracle.check_refused(intent, error)
            self._oracle.check_clash(intent, model, error)
            return
        except ConflictError as error:
            self._oracle.check_refused(intent, error)
            self._oracle.check_conflict(intent, model, error)
            return
        except SessionStateError as error:
            self._oracle.check_refused(intent, error)
            if error.facts.get("no_changes") and _is_change(model):
                self._oracle.report("explicit writes are changes", f"{actor}: {error}; it made {model.changes[:3]}")
            return
        except IcefloeError as error:
            self._oracle.check_refused(intent, error)
            raise
        self._oracle.check_committed(intent, snapshot_id)
        if self._oracle.violations:
            return
        model.landed = snapshot_id
        await self._check_late(session, model, model.changes[intent.required :], actor)
        self._readers[f"{slot} after its commit"] = session

    async def _transaction(
        self, actor: str, label: str, branch: str, edits: Sequence[Edit], solver: str = "none", amend: bool = False
    ) -> None:
        slot = f"own {label}"
        await self._open(actor, label, slot, branch)
        await self._edit(actor, label, slot, edits)
        await self._commit(actor, label, slot, solver, amend)

    async def _rebase(self, actor: str, label: str, slot: str) -> None:
        """Bring a session to the tip of its branch by itself, without a commit."""
        entry = self._slots.get(slot)
        if entry is None or entry.model.parts:
            return
        model = entry.model
        intent = self._intent(actor, "rebase", model.branch, model=model)
        intent.since = model.since
        before, changes = model.view(), list(model.changes)
        try:
            await entry.session.rebase_async(ConflictDetector())
        except RebaseFailedError as error:
            self._oracle.check_clash(intent, model, error)
            if (text := describe_difference(before, await read_content(entry.session))) and changes == model.changes:
                self._oracle.report("a rebase that is refused changes nothing", f"{actor}: {text}")
            return
        base_id = entry.session.snapshot_id
        base = self._oracle.contents.get(base_id)
        if base_id == model.base_id or base is None:
            return
        if clashes := find_clashes(model.base, changes, base):
            self._oracle.report(
                "conflicts are reported", f"{actor}: rebased to {base_id}, although both changed {clashes}"
            )
            return
        expected = carry_over(model.base, changes, base)
        if text := describe_difference(expected, await read_content(entry.session)):
            self._oracle.report("a rebase is the new base and the session's changes", f"{actor}: {base_id}: {text}")
            return
        moved = [number for number, move in enumerate(self._oracle.moves) if move.new == base_id]
        entry.model = SessionModel(
            model.branch, base_id, base, model.opened_at, moved[-1] + 1 if moved else model.since
        )
        entry.model.changes = changes

    # -- forks ----------------------------------------------------------------------------------------------------

    async def _fork(
        self, actor: str, label: str, slot: str, edits: Sequence[Sequence[Edit]], how: str = "merge", pause: float = 0.0
    ) -> None:
        entry = self._slots.get(slot)
        if entry is None:
            return
        work: list[tuple[ForkSession, SessionModel]] = []
        for number, wanted in enumerate(edits):
            fork = await entry.session.fork_async()
            if how == "elsewhere":
                fork = await self._send(fork)
            view = entry.model.view()
            model = SessionModel(entry.model.branch, entry.model.base_id, view, self._loop.time())
            work.append((fork, model))
            for place, edit in enumerate(wanted):
                await self._apply(fork, model, edit, f"{label}/{number}.{place}", actor)
        self._slots[f"{slot} forks"] = _Slot(entry.session, entry.model, entry.ready_at)
        if pause:
            await asyncio.sleep(pause)
        for fork, model in work:
            await self._merge_fork(entry, fork, model, how, actor)
        self._slots.pop(f"{slot} forks", None)

    async def _send(self, fork: ForkSession) -> ForkSession:
        """A fork as it arrives in a worker: another engine, and copies of everything."""
        repo = await Repository.open_async(self._storage, config=CONFIGS[self.plan.config])
        state = await fork.stored_state()
        base = await repo.context.metadata_files.fetch_snapshot(state.base.id)
        inherited, changes = pickle.loads(pickle.dumps((state.inherited, state.changes)))
        return ForkSession(Fork(repo.context, base, inherited, changes))

    async def _merge_fork(self, entry: _Slot, fork: ForkSession, model: SessionModel, how: str, actor: str) -> None:
        before = entry.model.view()
        clashes = find_clashes(model.base, model.changes, before)
        try:
            if how == "parts":
                await entry.session.link_parts_async([await fork.write_parts_async()])
            else:
                await entry.session.merge_async(fork)
        except (InvalidInputError, SessionStateError) as error:
            after = await read_content(entry.session)
            if text := describe_difference(before, after):
                self._oracle.report("a fork that is refused changes nothing", f"{actor}: {error}; then {text}")
            others = touched_by(model.base, [c for c in entry.model.changes if c not in _inherited(entry.model, model)])
            ours = touched_by(model.base, model.changes)
            if how != "parts" and not clashes and not ours.meets(others):
                self._oracle.report("no false conflicts", f"{actor}: no fork changed the same thing, but {error}")
            return
        if clashes and how == "parts":
            # Workers that write one chunk are asked not to; what becomes of it is not promised.
            for slot in [name for name, each in self._slots.items() if each is entry]:
                del self._slots[slot]
            return
        if clashes:
            self._oracle.report(
                "conflicts are reported", f"{actor}: a fork was merged, although both changed {clashes}"
            )
            return
        # The merge is done, also if the reads below fail: the model must have it before them.
        entry.model.changes += model.changes
        entry.model.parts = entry.model.parts or how == "parts"
        expected = carry_over(model.base, model.changes, before)
        found = await read_content(entry.session)
        if text := describe_difference(expected, found):
            self._oracle.report("a merge is the session and the fork's changes", f"{actor}: {text}")

    # -- readers --------------------------------------------------------------------------------------------------

    async def _hold(self, actor: str, label: str, slot: str, branch: str) -> None:
        self._readers[slot] = await self.repo.readonly_session_async(branch)

    async def _read(self, actor: str, label: str, slot: str, branch: str) -> None:
        session = self._readers.get(slot)
        if session is None:
            session = await self.repo.readonly_session_async(branch)
        await self._oracle.check_read(session, actor)

    async def _read_own(self, actor: str, label: str, slot: str) -> None:
        """A session shows its base and its changes, unless somebody is changing it right now."""
        entry = self._slots.get(slot)
        if entry is None or entry.model.under_way or entry.session.read_only:
            return
        before, changes = entry.model.view(), len(entry.model.changes)
        found = await read_content(entry.session)
        unchanged = changes == len(entry.model.changes) and not entry.model.under_way
        # Another thread that commits the session may have brought it to a newer base between two reads.
        unchanged = unchanged and entry.session.snapshot_id == entry.model.base_id
        if unchanged and not entry.session.read_only and (text := describe_difference(before, found)):
            self._oracle.report("a session shows its own changes", f"{actor}: {text}")

    async def _look(self, actor: str, label: str, slot: str) -> None:
        entry = self._slots.get(slot)
        if entry is not None:
            entry.session.status()
            repr(entry.session)

    async def _list(self, actor: str, label: str, slot: str) -> None:
        """Ask for the chunks of a session while somebody writes to it."""
        entry = self._slots.get(slot)
        if entry is not None:
            for path in ("/a", "/b"):
                async for _ in entry.session.chunk_coordinates(path):
                    pass
                await entry.session.chunk_type_async(path, (0,))

    async def _history(self, actor: str, label: str, branch: str) -> None:
        async for _ in self.repo.async_ancestry(branch=branch):
            pass

    # -- refs -----------------------------------------------------------------------------------------------------

    async def _ancestor(self, branch: str, back: int) -> ObjectId:
        infos = [info.id async for info in self.repo.async_ancestry(branch=branch)]
        return infos[min(back, len(infos) - 1)]

    async def _create_branch(self, actor: str, label: str, branch: str, source: str, back: int = 0) -> None:
        self._intent(actor, "create_branch", branch)
        await self.repo.create_branch_async(branch, await self._ancestor(source, back))

    async def _delete_branch(self, actor: str, label: str, branch: str) -> None:
        self._intent(actor, "delete_branch", branch)
        await self.repo.delete_branch_async(branch)

    async def _reset(self, actor: str, label: str, branch: str, back: int, guarded: bool) -> None:
        self._oracle.resets += 1
        tip = await self.repo.lookup_branch_async(branch)
        target = await self._ancestor(branch, back)
        self._intent(actor, "reset", branch, target=target)
        await self.repo.reset_branch_async(branch, target, from_snapshot_id=tip if guarded else None)

    async def _create_tag(self, actor: str, label: str, tag: str, branch: str, back: int) -> None:
        target = await self._ancestor(branch, back)
        await self.repo.create_tag_async(tag, target)
        if tag not in self._oracle.unsure_tags:
            self._oracle.tags[tag] = target

    async def _delete_tag(self, actor: str, label: str) -> None:
        """Delete the first tag there is; some generations never delete one."""
        for tag in sorted(await self.repo.list_tags_async())[:1]:
            self._oracle.unsure_tags.add(tag)
            target = self._oracle.tags.pop(tag, None)
            try:
                await self.repo.delete_tag_async(tag)
            except UnsupportedError:
                if target is not None:
                    self._oracle.tags[tag] = target
                return
            self._oracle.deleted_tags.add(tag)

    # -- maintenance ----------------------------------------------------------------------------------------------

    async def _expire(self, actor: str, label: str, age: float | None = None, back: int | None = None) -> None:
        self._oracle.expiries += 1
        if back is not None:
            infos = [info.id async for info in self.repo.async_ancestry(branch="main")]
            if 0 < back < len(infos) - 1:
                await self.repo.expire_snapshots_async(snapshots=[infos[back]])
            return
        await self.repo.expire_snapshots_async(dt.timedelta(seconds=age or 0))

    async def _collect(self, actor: str, label: str, grace: float, incremental: bool = False) -> None:
        self._oracle.collections += 1
        open_since = self._oldest_writer()
        began = self._loop.time()
        running = Collection(began, began - grace)
        self._oracle.judged.append(running)
        try:
            await self.repo.garbage_collect_async(dt.timedelta(seconds=grace), incremental=incremental)
        finally:
            running.ended = self._loop.time()
        # A second of slack for clocks that count in seconds.
        if open_since is not None and open_since < began - grace - 2:
            still = self._oldest_writer()
            if still == open_since:
                self._oracle.report(
                    "a collection sees the writers of its process",
                    f"{actor}: objects older than {grace} s were judged, but a session or fork of this process has "
                    f"written since {began - open_since:.1f} s",
                )

    def _oldest_writer(self) -> float | None:
        """Since when the oldest session with uncommitted changes of this very process could be written to."""
        if not self.plan.long_lived:
            return None
        starts = [
            entry.ready_at
            for slot, entry in self._slots.items()
            if slot.endswith(" forks") or (entry.model.changes and not entry.session.read_only)
        ]
        return min(starts, default=None)

    async def _compact(self, actor: str, label: str, branch: str) -> None:
        self._intent(actor, "compact", branch)
        await self.repo.compact_async(branch, message=label)

    async def _rewrite(self, actor: str, label: str, branch: str) -> None:
        self._intent(actor, "rewrite", branch)
        await self.repo.rewrite_manifests_async(label, branch=branch)

    async def _verify(self, actor: str, label: str) -> None:
        await self.repo.verify_async()

    async def _squash(self, actor: str, label: str, branch: str, back: int) -> None:
        onto = await self._ancestor(branch, back)
        self._oracle.resets += 1
        self._intent(actor, "squash", branch)
        await self.repo.squash_async(branch, onto, message=label)

    async def _merge(self, actor: str, label: str, source: str, into: str, solver: str) -> None:
        chosen = SOLVERS[solver]()
        intent = self._intent(actor, "merge", into, solver=chosen, target=self._oracle.tips.get(into))
        self._oracle.check_committed(intent, await self.repo.merge_async(source, into, solver=chosen))

    async def _revert(self, actor: str, label: str, branch: str, back: int) -> None:
        target = await self._ancestor(branch, back)
        parent = self._oracle.parents.get(target)
        self._intent(actor, "revert", branch, merges=None if parent is None else (target, parent))
        await self.repo.revert_async(target, branch)

    async def _cherry_pick(self, actor: str, label: str, source: str, branch: str) -> None:
        target = await self.repo.lookup_branch_async(source)
        parent = self._oracle.parents.get(target)
        self._intent(actor, "cherry_pick", branch, merges=None if parent is None else (parent, target))
        await self.repo.cherry_pick_async(target, branch)

    async def _convert(self, actor: str, label: str, to: str) -> None:
        """Convert to another place while others go on; every branch arrives as it was at some moment."""
        since, before = len(self._oracle.moves), dict(self._oracle.tips)
        copy = SimulatedStore(self._store.now)
        target = SimulatedStorage(copy, "converted", self._network)
        await convert_async(self.repo, target, to, drop=LossKind)
        await observe(self._check_converted(copy, actor, since, before))

    async def _check_converted(
        self, copy: SimulatedStore, actor: str, since: int, before: Mapping[str, ObjectId]
    ) -> None:
        repo = await Repository.open_async(SimulatedStorage(copy, "copy"))
        for branch in await repo.list_branches_async():
            found = await read_content(await repo.readonly_session_async(branch))
            stood = [move.new for move in self._oracle.moves[since:] if move.branch == branch]
            known = [self._oracle.contents[each] for each in (before.get(branch), *stood) if each is not None]
            texts = [describe_difference(content, found) for content in known]
            if all(texts):
                self._oracle.report("a conversion shows one state", f"{actor}: {branch}: {texts[:1]}")

    async def _upgrade(self, actor: str, label: str, to: str) -> None:
        """Bring the repository to another generation where it is; who dies on the way does it again."""
        self._oracle.upgrading = actor
        self._oracle.upgrades += 1
        try:
            await upgrade_async(self._storage, to, drop=LossKind)
        except InvalidInputError:
            pass  # it is of this generation
        finally:
            self._oracle.upgrading = None
            await observe(self._oracle.learn_anew())
        self._repo = None

    async def _mirror(self, actor: str, label: str) -> None:
        copy = SimulatedStore(self._store.now)
        await self.repo.mirror_async(SimulatedStorage(copy, "mirror", self._network))
        await observe(self._check_copy(copy, actor))

    async def _check_copy(self, copy: SimulatedStore, actor: str) -> None:
        repo = await Repository.open_async(SimulatedStorage(copy, "copy"))
        for branch in await repo.list_branches_async():
            session = await repo.readonly_session_async(branch)
            expected = self._oracle.contents.get(session.snapshot_id)
            text = "" if expected is None else describe_difference(expected, await read_content(session))
            if expected is None or text:
                self._oracle.report("a mirror shows one state", f"{actor}: {branch} at {session.snapshot_id}: {text}")


def _inherited(session: SessionModel, fork: SessionModel) -> Sequence[Change]:
    """The changes of a session that a fork of it knew when it left."""
    known: list[Change] = []
    content: Content = session.base
    for change in session.changes:
        if content == fork.base:
            break
        known.append(change)
        content = apply_change(content, change)
    return known


def _is_change(model: SessionModel) -> bool:
    """Whether a session that says it has no changes has some: a chunk was written or cleared in an array it has."""
    uids = {array.uid for array in model.view().values()}
    return any(isinstance(change, Chunk) and change.uid in uids for change in model.changes)


def _changes_of(edit: Edit, view: Content, label: str) -> list[Change]:
    """What an edit means for what is there; nothing if it makes no sense there."""
    verb, path, number = edit
    array = view.get(path)
    data = label.encode().ljust(24, b".")
    if verb == "create":
        return [Put(label, path, max(1, number), label)] if array is None else []
    if array is None:
        return []
    if verb == "replace":
        return [Put(label, path, max(1, number), label)]
    if verb == "delete":
        return [Delete(array.uid)]
    if verb == "note":
        return [Document(array.uid, array.grid, label)]
    if verb == "resize":
        return [Document(array.uid, number, array.note)] if number != array.grid else []
    if array.grid == 0:
        return []
    if verb == "shift":
        moved: dict[int, bytes | None] = dict.fromkeys(array.chunks)
        for index, chunk in array.chunks.items():
            if 0 <= index + number < array.grid:
                moved[index + number] = chunk
        return [Chunk(array.uid, index, chunk) for index, chunk in sorted(moved.items())]
    index = number % array.grid
    return [Chunk(array.uid, index, data if verb == "set" else None)]


async def _write(session: Session, view: Content, change: Change) -> None:
    """Make a change of the model in a real session, through its Zarr store."""
    store = IcechunkStore(session)
    if isinstance(change, Put):
        if change.path in view:
            await store.delete_dir(change.path)
        await store.set(f"{change.path}/zarr.json", _buffer(array_document(change.grid, change.note)))
        return
    path = find_path(view, change.uid)
    if path is None:
        return
    if isinstance(change, Delete):
        await store.delete_dir(path)
    elif isinstance(change, Document):
        await store.set(f"{path}/zarr.json", _buffer(array_document(change.grid, change.note)))
    elif change.data is None:
        await store.delete(f"{path}/c/{change.index}")
    else:
        await store.set(f"{path}/c/{change.index}", _buffer(change.data))


def _buffer(data: bytes) -> Buffer:
    return default_buffer_prototype().buffer.from_bytes(data)
