"""What must be true of a simulated repository, and the watcher that finds out when it is not.

The oracle looks at the branches in the very step in which a request changed one of them. So it knows the serial order
of all commits, and checks each of them when it lands: its parent is the commit that was there before, and its content
is the parent's content with the changes of that session. At the end it reads everything with a repository that was
just opened.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field

from icefloe.conversion.convert import convert_async, find_journal, upgrade_async
from icefloe.conversion.survey import LossKind
from icefloe.errors import (
    FormatError,
    IcefloeError,
    NotFoundError,
)
from icefloe.formats.format import get_format
from icefloe.ids import ObjectId
from icefloe.maintenance.merge import MERGED
from icefloe.model.capabilities import SpecVersion
from icefloe.repository.repository import Repository
from icefloe.session.rebase import BasicConflictSolver, ConflictDetector, ConflictSolver, VersionSelection
from icefloe.session.session import Session
from icefloe.testing.model import (
    Change,
    Chunk,
    Content,
    Touched,
    Uid,
    apply_change,
    by_uid,
    carry_over,
    describe_difference,
    describe_merge,
    difference,
    find_clashes,
    read_content,
    touched_by,
)
from icefloe.testing.schedule import ACTOR, observe
from icefloe.testing.storages import SimulatedStorage, SimulatedStore

_IMMUTABLE = (
    "snapshots/",
    "manifests/",
    "chunks/",
    "transactions/",
    "attributes/",
    "s/",
    "m/",
    "c/",
    "a/",
    "t/",
    "icefloe/",
    "structure/",
    "structures/",
)
"""Folders whose objects decide nothing: a branch does not move when one of them is written."""


_RULES_OF_OBJECTS = (
    "what landed is readable",
    "what is reachable is readable",
    "errors are typed",
    "verify is clean",
    "the repository is whole at the end",
    "a mirror shows one state",
    "nothing vanishes",
)
"""Rules that a missing object breaks."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not happen, and did."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


@dataclass(slots=True)
class SessionModel:
    """A writable session as the model knows it."""

    branch: str
    base_id: ObjectId
    base: Content
    opened_at: float
    since: int = 0
    """How many moves of branches there had been when it was opened."""
    changes: list[Change] = field(default_factory=list)
    under_way: list[Change] = field(default_factory=list)
    """Changes whose call has not returned yet."""
    landed: ObjectId | None = None
    parts: bool = False
    """Whether it holds parts of a distributed write, which cannot give way to the chunks of others."""

    def view(self) -> Content:
        content = self.base
        for change in self.changes:
            content = apply_change(content, change)
        return content


@dataclass(slots=True)
class Intent:
    """What an actor has asked the engine for."""

    verb: str
    branch: str
    model: SessionModel | None = None
    solver: ConflictSolver | None = None
    target: ObjectId | None = None
    merges: tuple[ObjectId, ObjectId] | None = None
    """The change that it brings to a branch: from one snapshot to another one."""
    required: int = 0
    """How many of the session's changes had returned when the commit began."""
    landed: list[ObjectId] = field(default_factory=list)
    since: int = 0
    """How many moves of branches there had been when it, or its session, began."""
    began: float = 0.0


@dataclass(slots=True)
class Collection:
    """A garbage collection: when it ran, and up to what time it judged objects."""

    began: float
    cutoff: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """A branch went from one snapshot to another one."""

    branch: str
    old: ObjectId | None
    new: ObjectId | None
    touched: Touched


SOLVERS: dict[str, Callable[[], ConflictSolver | None]] = {
    "none": lambda: None,
    "detector": ConflictDetector,
    "ours": lambda: BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs),
    "theirs": lambda: BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs),
    "careful": lambda: BasicConflictSolver(
        VersionSelection.UseOurs, fail_on_delete_of_updated_array=True, fail_on_delete_of_updated_group=True
    ),
}


@dataclass(frozen=True, slots=True)
class Start:
    """What a repository holds when a simulation begins."""

    tips: dict[str, ObjectId]
    contents: dict[ObjectId, Content]
    parents: dict[ObjectId, ObjectId | None]


async def read_start(repo: Repository) -> Start:
    """Read everything that a repository holds."""
    start = Start({}, {}, {})
    for branch in await repo.list_branches_async():
        tip = start.tips[branch] = await repo.lookup_branch_async(branch)
        async for info in repo.async_ancestry(snapshot_id=tip):
            session = await repo.readonly_session_async(snapshot_id=info.id)
            start.contents[info.id] = await read_content(session)
            start.parents[info.id] = info.parent_id
    return start


class Oracle:
    """Follows every move of every branch, and knows what each snapshot must read as."""

    def __init__(self, store: SimulatedStore, generation: str, start: Start) -> None:
        self.store = store
        self.generation = generation
        self.start_of = start
        self._has_logs = get_format(SpecVersion(generation)).capabilities.transaction_logs
        self.contents: dict[ObjectId, Content] = {}
        self.parents: dict[ObjectId, ObjectId | None] = {}
        self.tips: dict[str, ObjectId] = {}
        self.moves: list[Moved] = []
        self.tags: dict[str, ObjectId] = {}
        self.unsure_tags: set[str] = set()
        """Tags that somebody began to delete."""
        self.deleted_tags: set[str] = set()
        self.merged: dict[ObjectId, ObjectId] = {}
        """Merges, and the snapshots whose changes they brought."""
        self.intents: dict[str, Intent] = {}
        self.violations: list[Violation] = []
        self.found = asyncio.Event()
        self.expiries = 0
        self.collections = 0
        self.resets = 0
        self.upgrades = 0
        self.upgrading: str | None = None
        """Who is bringing the repository to another generation, if somebody is."""
        self.deaths = 0
        self.judged: list[Collection] = []
        self.tainted = False
        """Whether a commit landed during a collection that judged the objects of its session, against all advice: the
        collection may delete them afterwards, and nobody can help it."""
        self._repo: Repository | None = None
        self._looking = asyncio.Lock()

    def report(self, rule: str, what: str) -> None:
        """Note a violation; the simulation stops at the first one."""
        if self.tainted and rule in _RULES_OF_OBJECTS:
            self.found.set()
            return
        self.violations.append(Violation(rule, what))
        self.found.set()

    async def start(self) -> None:
        """Learn what there is, and watch from now on."""
        self._repo = await Repository.open_async(SimulatedStorage(self.store, "oracle"))
        start = self.start_of
        self.tips, self.contents, self.parents = dict(start.tips), dict(start.contents), dict(start.parents)
        self.store.watchers.append(self._watch)

    # -- moves of branches ----------------------------------------------------------------------------------------

    async def _watch(self, key: str, client: str) -> None:
        if not key.startswith(_IMMUTABLE) and not self.violations:
            await observe(self._look(ACTOR.get()))

    async def learn_anew(self) -> None:
        """Learn the refs and snapshots of a repository that was converted where it is: ids may be others."""
        await self._check_same(self.upgrading or "after an upgrade")
        if self.violations:
            return
        repo = await Repository.open_async(SimulatedStorage(self.store, "oracle"))
        start = await read_start(repo)
        self.tips = start.tips
        self.contents |= start.contents
        self.parents |= start.parents
        self.tags = {name: await repo.lookup_tag_async(name) for name in await repo.list_tags_async()}
        self.generation = repo.context.format.spec_version.value
        self._has_logs = repo.context.capabilities.transaction_logs
        self._repo = repo

    async def _check_same(self, actor: str) -> None:
        """In the middle of an upgrade, whoever opens the repository finds everything in one generation or the other."""
        try:
            repo = await Repository.open_async(SimulatedStorage(self.store, "oracle"))
            for branch, tip in self.tips.items():
                found = await read_content(await repo.readonly_session_async(branch))
                if text := describe_difference(self.contents[tip], found):
                    self.report("an upgrade changes no data", f"{actor}: {branch}: {text}")
            names = set(await repo.list_tags_async())
            for tag in sorted(self.tags.keys() - names):
                self.report("an upgrade changes no data", f"{actor}: tag {tag} is gone")
        except IcefloeError as error:
            self.report("an upgrade changes no data", f"{actor}: {type(error).__name__}: {error}")

    async def _look(self, actor: str) -> None:
        assert self._repo is not None
        if self.upgrading == actor:
            await self._check_same(actor)
            return
        ledger = self._repo.context.ledger
        found = {}
        for branch in await ledger.list_branches():
            found[branch] = (await ledger.fetch_tip(branch)).snapshot_id
        if found == self.tips:
            return
        for branch in sorted(found.keys() | self.tips.keys()):
            old, new = self.tips.get(branch), found.get(branch)
            if old != new:
                await self._check_move(branch, old, new, self.intents.get(actor), actor)
        self.tips = found

    async def _check_move(
        self, branch: str, old: ObjectId | None, new: ObjectId | None, intent: Intent | None, actor: str
    ) -> None:
        where = f"branch {branch}, {actor}"
        if intent is None or intent.branch != branch:
            self.report("nobody asked", f"{where}: it moved from {old} to {new}")
            return
        touched = Touched()
        if new is not None:
            intent.landed.append(new)
            self._note_taint(intent)
            if new not in self.contents:
                await self._learn(new, where)
                if new not in self.contents:
                    return
                self._check_content(branch, old, new, intent, where)
            if old is not None:
                touched = difference(self.contents[old], self.contents[new])
            if intent.verb in ("compact", "rewrite") and not self._has_logs:
                # Without transaction logs, chunks that lie elsewhere than before count as changed.
                touched.chunks = {array.uid: set(array.chunks) for array in self.contents[new].values()}
            if intent.model is not None and old is not None:
                touched.join(touched_by(intent.model.base, intent.model.changes))
        self.moves.append(Moved(branch, old, new, touched))

    def _note_taint(self, intent: Intent) -> None:
        now = asyncio.get_running_loop().time()
        began = intent.began if intent.model is None else intent.model.opened_at
        for each in self.judged:
            is_running = each.ended is None or now <= each.ended + 3
            if is_running and each.cutoff + 2 > began:
                self.tainted = True

    async def _learn(self, snapshot_id: ObjectId, where: str) -> None:
        """Read a snapshot that just became reachable."""
        assert self._repo is not None
        # Nothing of it may come from a cache that an earlier look has filled.
        repo = await Repository.open_async(SimulatedStorage(self.store, "oracle"))
        try:
            session = await repo.readonly_session_async(snapshot_id=snapshot_id)
            self.contents[snapshot_id] = await read_content(session)
            info = await repo.context.ledger.fetch_info(snapshot_id)
            self.parents[snapshot_id] = info.parent_id
            if isinstance(merged := info.metadata.get(MERGED), str):
                self.merged[snapshot_id] = merged
        except IcefloeError as error:
            self.report("what landed is readable", f"{where}: {type(error).__name__}: {error}")

    def _check_content(self, branch: str, old: ObjectId | None, new: ObjectId, intent: Intent, where: str) -> None:
        parent, found = self.parents[new], self.contents[new]
        if intent.verb == "commit":
            if parent != old:
                self.report("no commit is lost", f"{where}: {new} replaced {old}, but its parent is {parent}")
                return
            assert intent.model is not None and old is not None
            self._check_commit(old, new, intent, where)
        elif intent.verb == "amend":
            assert intent.model is not None and old is not None
            if intent.model.base_id != old:
                self.report("no commit is lost", f"{where}: {intent.model.base_id} was amended, and {old} replaced")
                return
            self._check_commit(old, new, intent, where)
        elif intent.verb in ("compact", "rewrite"):
            if parent != old:
                self.report("no commit is lost", f"{where}: {new} replaced {old}, but its parent is {parent}")
            elif old is not None and (text := describe_difference(self.contents[old], found)):
                self.report("maintenance changes no data", f"{where}: {intent.verb}: {text}")
        elif intent.verb == "squash":
            if old is not None and (text := describe_difference(self.contents[old], found)):
                self.report("a squash changes no data", f"{where}: {text}")
        elif intent.verb in ("merge", "revert", "cherry_pick"):
            if parent != old:
                self.report("no commit is lost", f"{where}: {new} replaced {old}, but its parent is {parent}")
            elif old is not None:
                self._check_merge(old, new, intent, where)
        else:
            self.report("nobody asked", f"{where}: {intent.verb} made the new snapshot {new}")

    def _check_commit(self, old: ObjectId, new: ObjectId, intent: Intent, where: str) -> None:
        model, found, parent = intent.model, self.contents[new], self.contents[old]
        assert model is not None
        changes = model.changes[: intent.required]
        clashes = find_clashes(model.base, changes, parent) if old != model.base_id else []
        dropped: set[tuple[Uid, int]] = set()
        unsure: set[tuple[str, int]] = set()
        if clashes and (intent.solver is None or isinstance(intent.solver, ConflictDetector)):
            self.report(
                "conflicts are reported",
                f"{where}: {new} landed on {old} without a conflict, although both changed {_name(clashes, parent)}",
            )
            return
        if isinstance(intent.solver, BasicConflictSolver):
            paths = {uid: path for uid, (path, _) in (by_uid(parent) | by_uid(model.base)).items()}
            for uid, index in clashes:
                if index is None:
                    # What a solver makes of arrays is the business of other tests: take it as it is.
                    path = paths.get(uid, uid)
                    unsure |= {(str(path), i) for i in range(-1, 64)}
                elif intent.solver.on_chunk_conflict is VersionSelection.UseTheirs:
                    dropped.add((uid, index))
            # A commit in between may have changed a chunk and another one changed it back.
            since = self._touched_since(intent, model)
            for uid, chunks in since.chunks.items():
                if uid in paths:
                    unsure |= {(paths[uid], i) for i in chunks if (uid, i) not in dropped}
            # Chunks outside an array that was smaller for a while are gone, whoever wins.
            unsure |= {(paths[uid], i) for uid in since.documents if uid in paths for i in range(64)}
            unsure |= {(paths[uid], i) for uid, i in dropped if uid in paths and model.parts}
        expected = carry_over(model.base, changes, parent, dropped)
        # Writes that had not returned when the commit began may be in it or not.
        names = {array.uid: path for path, array in model.view().items()}
        for change in (*model.changes[intent.required :], *model.under_way):
            if isinstance(change, Chunk) and change.uid in names:
                unsure.add((names[change.uid], change.index))
        text = describe_difference(_without(expected, unsure), _without(found, unsure))
        if text:
            self.report("a commit is its parent and its session's changes", f"{where}: {new} on {old}: {text}")

    def _check_merge(self, old: ObjectId, new: ObjectId, intent: Intent, where: str) -> None:
        """A merge brings the change of others, and leaves alone what they left alone."""
        if self.expiries or self.resets or not (intent.solver is None or isinstance(intent.solver, ConflictDetector)):
            # After these, others are the parents that a change is measured against.
            return
        bases = [intent.merges] if intent.merges is not None else []
        if intent.verb == "merge" and new in self.merged:
            source = self.merged[new]
            tips = {move.new for move in self.moves[intent.since :] if move.branch == intent.branch}
            for tip in {old, intent.target, *tips} - {None}:
                assert tip is not None
                base = self._merge_base(source, tip)
                bases += [(base, source)] if base is not None else []
        texts = [
            describe_merge(self.contents[base], self.contents[source], self.contents[old], self.contents[new])
            for base, source in bases
            if base in self.contents and source in self.contents
        ]
        if texts and all(texts):
            self.report("a merge is what both sides made", f"{where}: {intent.verb} made {new} of {old}: {texts[0]}")

    def _merge_base(self, source: ObjectId, target: ObjectId) -> ObjectId | None:
        known = set(self._ancestors(target))
        known |= {self.merged[each] for each in known if each in self.merged}
        return next((each for each in self._ancestors(source) if each in known), None)

    def _touched_since(self, intent: Intent, model: SessionModel) -> Touched:
        touched = Touched()
        for move in self.moves[intent.since :]:
            if move.branch == model.branch:
                touched.join(move.touched)
        return touched

    # -- answers --------------------------------------------------------------------------------------------------

    def check_committed(self, intent: Intent, snapshot_id: ObjectId) -> None:
        """An answer said that this snapshot is on the branch."""
        if snapshot_id not in intent.landed and intent.verb != "merge":
            self.report("what is acknowledged is there", f"{intent.verb} returned {snapshot_id}, which never landed")

    def check_refused(self, intent: Intent, error: IcefloeError) -> None:
        """An answer said that nothing has landed."""
        if intent.landed:
            self.report(
                "what landed is not reported as failed",
                f"{intent.verb} raised {type(error).__name__}: {error}; but {intent.landed[-1]} is on {intent.branch}",
            )

    def check_conflict(self, intent: Intent, model: SessionModel, error: IcefloeError) -> None:
        """A commit was refused because of others: somebody must have moved the branch, or changed the same thing."""
        moves = [move for move in self.moves[intent.since :] if move.branch == model.branch]
        if not moves:
            self.report("no false conflicts", f"nobody moved {model.branch}, but {type(error).__name__}: {error}")

    def check_clash(self, intent: Intent, model: SessionModel, error: IcefloeError) -> None:
        """A rebase failed: somebody must have changed the same thing since the session's base."""
        ours = touched_by(model.base, model.changes)
        if not ours.meets(self._touched_since(intent, model)):
            self.report("no false conflicts", f"nobody changed the same thing, but {type(error).__name__}: {error}")

    # -- readers --------------------------------------------------------------------------------------------------

    async def is_reachable(self, snapshot_id: ObjectId) -> bool:
        """Whether a branch or tag leads to a snapshot now."""
        repo = await Repository.open_async(SimulatedStorage(self.store, "oracle"))
        targets = {await repo.lookup_branch_async(name) for name in await repo.list_branches_async()}
        targets |= {await repo.lookup_tag_async(name) for name in await repo.list_tags_async()}
        for target in targets:
            async for info in repo.async_ancestry(snapshot_id=target):
                if info.id == snapshot_id:
                    return True
        return False

    async def check_read(self, session: Session, who: str) -> None:
        """A reader reads everything; it sees the snapshot it opened and nothing else."""
        snapshot_id = session.snapshot_id
        try:
            found = await read_content(session)
        except (NotFoundError, FormatError) as error:
            if await observe(self.is_reachable(snapshot_id)):
                self.report("what is reachable is readable", f"{who}: {snapshot_id}: {type(error).__name__}: {error}")
            return
        expected = self.contents.get(snapshot_id)
        if expected is None:
            self.report("every read is of one snapshot", f"{who}: nobody knows snapshot {snapshot_id}")
        elif text := describe_difference(expected, found):
            self.report("every read is of one snapshot", f"{who}: {snapshot_id}: {text}")

    # -- the end --------------------------------------------------------------------------------------------------

    async def check_end(self, thorough: bool) -> None:
        """Everything that refs lead to is there, and the repository can be looked after as any other."""
        try:
            await self._finish_upgrade()
            repo = await Repository.open_async(SimulatedStorage(self.store, "oracle"))
            await self._check_refs(repo)
            read: set[ObjectId] = set()
            for branch in self.tips:
                await self._check_history(repo, branch, read)
            if self.violations:
                return
            # Who dies while history is rewritten may leave a log that tells too much; repairing needs no guess.
            report = await repo.verify_async(repair=self.deaths > 0)
            if not report.is_clean:
                self.report("verify is clean", "; ".join(str(report).splitlines()[:4]))
                return
            if thorough:
                await self._check_maintenance(repo)
        except (IcefloeError, ValueError, KeyError, AssertionError, TypeError, AttributeError) as error:
            self.report("the repository is whole at the end", f"{type(error).__name__}: {error}")

    async def _finish_upgrade(self) -> None:
        """An upgrade whose process died leaves the repository read-only until it is done again."""
        storage = SimulatedStorage(self.store, "oracle")
        journal = await find_journal(storage) if self.upgrades else None
        if journal is not None:
            await upgrade_async(storage, journal.target, drop=LossKind)
            await self.learn_anew()

    async def _check_refs(self, repo: Repository) -> None:
        tips = {name: await repo.lookup_branch_async(name) for name in await repo.list_branches_async()}
        if tips != self.tips:
            self.report("what is acknowledged is there", f"branches stand at {tips}, not at {self.tips}")
        tags = {name: await repo.lookup_tag_async(name) for name in await repo.list_tags_async()}
        for name in sorted(self.deleted_tags & tags.keys()):
            self.report("what is acknowledged is there", f"tag {name} was deleted, but is at {tags[name]}")
        for name, target in self.tags.items():
            if tags.get(name) != target:
                self.report("what is acknowledged is there", f"tag {name} is at {tags.get(name)}, not at {target}")

    async def _check_history(self, repo: Repository, branch: str, read: set[ObjectId]) -> None:
        """Walk a branch and read its snapshots, except those that were read with another branch."""
        known, previous = self._ancestors(self.tips[branch]), -1
        infos = [info async for info in repo.async_ancestry(branch=branch)]
        for info in infos:
            if self.resets == 0:
                if info.id not in known or known.index(info.id) <= previous:
                    self.report("history is a serial order", f"{branch}: {info.id} is no ancestor at this point")
                    return
                previous = known.index(info.id)
            if info.id in read:
                continue
            read.add(info.id)
            try:
                found = await read_content(await repo.readonly_session_async(snapshot_id=info.id))
            except IcefloeError as error:
                self.report(
                    "what is reachable is readable",
                    f"{branch}: {info.id} ({info.message!r}): {type(error).__name__}: {error}",
                )
                return
            expected = self.contents.get(info.id)
            if expected is None:
                self.report("history is a serial order", f"{branch}: nobody committed {info.id} ({info.message!r})")
            elif text := describe_difference(expected, found):
                self.report("a snapshot never changes", f"{branch}: {info.id} ({info.message!r}): {text}")
        if self.resets == 0 and self.expiries == 0 and len(infos) != len(known):
            self.report("what is acknowledged is there", f"{branch} has {len(infos)} commits, not {len(known)}")
        for info in infos[1:2] + infos[-1:]:
            session = await repo.readonly_session_async(branch, as_of=info.written_at)
            if session.snapshot_id != info.id:
                self.report("as_of finds the commit of a time", f"{branch}: {session.snapshot_id}, not {info.id}")

    def _ancestors(self, tip: ObjectId) -> list[ObjectId]:
        found: list[ObjectId] = []
        at: ObjectId | None = tip
        while at is not None and at not in found:
            found.append(at)
            at = self.parents.get(at)
        return found

    async def _read_histories(self, repo: Repository) -> dict[str, list[tuple[ObjectId, ObjectId | None]]]:
        """The snapshots of each branch and tag, with their parents, newest first."""
        found = {}
        for name in sorted(self.tips):
            found[f"branch {name}"] = [(info.id, info.parent_id) async for info in repo.async_ancestry(branch=name)]
        for name in sorted(self.tags):
            found[f"tag {name}"] = [(info.id, info.parent_id) async for info in repo.async_ancestry(tag=name)]
        return found

    async def _check_maintenance(self, repo: Repository) -> None:
        """Expire, collect, convert: what the repository must still be able to do."""
        await repo.expire_snapshots_async(dt.timedelta(0))
        shown = await self._read_histories(repo)
        await repo.garbage_collect_async(dt.timedelta(0), ignore_running_sessions=True)
        fresh = await Repository.open_async(SimulatedStorage(self.store, "oracle"))
        for ref, history in (await self._read_histories(fresh)).items():
            if history != shown[ref]:
                self.report("a collection changes no history", f"{ref}: {shown[ref]} became {history}")
        for branch, tip in self.tips.items():
            found = await read_content(await fresh.readonly_session_async(branch))
            if text := describe_difference(self.contents[tip], found):
                self.report("a collection keeps what is reachable", f"{branch}: {text}")
        report = await fresh.verify_async()
        if not report.is_clean:
            self.report("verify is clean", "after expire and collect: " + "; ".join(str(report).splitlines()[:4]))
        other = SpecVersion.ICECHUNK2 if self.generation != "icechunk2" else SpecVersion.REPOSITORY
        target = SimulatedStorage(SimulatedStore(self.store.now), "converted")
        done = await convert_async(fresh, target, other, drop=LossKind)
        assert done.repository is not None
        for branch, tip in self.tips.items():
            found = await read_content(await done.repository.readonly_session_async(branch))
            if text := describe_difference(self.contents[tip], found):
                self.report("a conversion keeps what is reachable", f"{branch}: {text}")


def _name(clashes: list[tuple[Uid | str, int | None]], content: Content) -> str:
    names = {uid: path for uid, (path, _) in by_uid(content).items()}
    return ", ".join(
        f"{names.get(uid, uid)!s}" + ("" if index is None else f" chunk {index}") for uid, index in clashes[:3]
    )


def _without(content: Content, cells: set[tuple[str, int]]) -> Content:
    """The content without some chunks; index -1 stands for the whole array."""
    if not cells:
        return content
    return {
        path: type(array)(
            array.uid, array.grid, array.note, {i: d for i, d in array.chunks.items() if (path, i) not in cells}
        )
        for path, array in content.items()
        if (path, -1) not in cells
    }
