"""Commit: write manifests, attributes, snapshot and log of a change set, check for collected files, move the branch.

A collection announces itself before it deletes anything: it puts a record into the repository, then writes the refs
again. That makes the first attempt of a commit in progress fail. The check costs nothing while no collection runs.
The commit then reads the records and checks every chunk object that its changes refer to. If an object is missing, the
commit is refused. If a running collection may still delete an object (it is older than the cut-off), the commit waits
for the end of the collection. A collection reads refs again after it wrote them, and keeps what faster commits name.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from icefloe.blocking import Turn, current_time, gather_each, monotonic_time
from icefloe.debug import traced
from icefloe.errors import (
    ConflictError,
    NotFoundError,
    ObjectNotFoundError,
    RebaseFailedError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.ids import NodeId, ObjectId, new_object_id
from icefloe.ledger.ledger import StaleTipError, Tip
from icefloe.manifests.cells import ArrayEdits, BulkEdits, contains, in_box
from icefloe.manifests.manifest_plan import (
    BuiltManifest,
    ManifestPlan,
    PlannedManifest,
    build_output,
    edited_rows,
    link_manifests,
    output_sources,
    plan_manifests,
)
from icefloe.model.chunk_table import NO_TABLES, ChunkKind, ChunkTable
from icefloe.model.snapshot import (
    REWRITTEN_PARENT_KEY,
    ArrayNode,
    AttributesRef,
    Manifest,
    ManifestFileInfo,
    ManifestRef,
    Node,
    Snapshot,
    SnapshotInfo,
    TransactionLog,
    inherit_metadata,
    later_than,
)
from icefloe.model.zarr_document import split_attributes
from icefloe.session.ancestry import GONE, FetchLog, fetch_log, fit_log, log_since, merge_logs
from icefloe.session.change_set import (
    ChangeSet,
    GatheredEdits,
    box_chunks,
    gather_edits,
    summarise,
    transaction_log,
)
from icefloe.session.open_repository import (
    LONG_SESSION_SECONDS,
    RepositoryContext,
    check_objects,
    list_collections,
)
from icefloe.session.rebase import ConflictDetector, ConflictSolver, drop_false_conflicts, rebase_over
from icefloe.session.session_state import SessionState

_REQUESTS_AT_ONCE = 32


async def check_references(state: SessionState, tip: Tip, reused: Iterable[str] = ()) -> None:
    """Refuse to commit changes that refer to collected objects; asks for nothing unless a collection ran meanwhile.

    `reused` are the keys of files that an earlier try of the commit wrote.
    """
    ledger, first = state.context.ledger, state.first_tip
    if first is None or not _must_look(state, first, tip):
        return
    is_told = ledger.announces_collections or state.is_long_open(LONG_SESSION_SECONDS)
    if not is_told and not await list_collections(state.context.storage):
        return  # refs do not show it, but records do: garbage was never collected
    await check_objects(state.context, [*await referenced_objects(state), *reused])


def _must_look(state: SessionState, first: Tip, tip: Tip) -> bool:
    if state.context.ledger.announces_collections:
        return state.context.ledger.collected_since(first, tip)
    return tip != first or state.is_long_open(LONG_SESSION_SECONDS)


async def referenced_objects(state: SessionState) -> list[str]:
    """The keys of all objects that changes refer to: chunks, and manifests of workers with their chunks."""
    layout = state.context.format
    tables = [buffer.to_table() for buffer in state.changes.edits.values()]
    parts = {part.manifest_id for each in state.changes.parts.values() for part in each}
    keys = [layout.manifest_key(manifest_id) for manifest_id in sorted(parts)]
    for manifest_id in sorted(parts):
        try:
            tables += (await state.context.metadata_files.fetch_manifest(manifest_id)).tables.values()
        except ObjectNotFoundError:
            continue  # its own key is among those looked for
    known = frozenset(state.base.attribute_files)
    attributes = {n.attributes.object_id for n in state.changes.added.values() if n.attributes is not None}
    keys += [layout.attributes_key(each) for each in sorted(attributes - known)]
    waiting = frozenset(state.writer.unstored)
    return [*keys, *(layout.chunk_key(each) for each in chunk_objects(tables) if each not in waiting)]


def chunk_objects(tables: Iterable[ChunkTable]) -> list[bytes]:
    """The objects that native references of some tables point at, each once."""
    columns = [table.object_id[table.kind == ChunkKind.NATIVE] for table in tables if table.object_id is not None]
    columns = [column for column in columns if len(column)]
    if not columns:
        return []
    return [row.tobytes() for row in np.unique(np.concatenate(columns), axis=0)]


_IN_FLIGHT = 4
"""Outputs that are built and written at the same time: memory holds their tables."""


@dataclass(frozen=True, slots=True)
class WrittenManifests:
    """The manifests of every array whose references changed, and the files behind them."""

    refs: Mapping[NodeId, tuple[ManifestRef, ...]] = field(default_factory=dict)
    files: Mapping[ObjectId, ManifestFileInfo] = field(default_factory=dict)


def collect_edits(changes: ChangeSet, gathered: GatheredEdits, arrays: Iterable[ArrayNode]) -> BulkEdits:
    """The non-empty chunk edits of a change set. Arrays without manifests share common columns."""
    bare = {node.id for node in arrays if not node.manifests}.difference(changes.parts)
    together = gathered.together
    places = [place for place, node_id in enumerate(together.nodes) if node_id in bare]
    fresh = together.select(np.array(places, dtype=np.int64)) if places else NO_TABLES
    edits = {}
    for node_id in {*gathered.alone, *changes.parts, *together.nodes}.difference(fresh.nodes):
        buffer = changes.edits.get(node_id)
        table = buffer.to_table() if buffer is not None else None
        change = ArrayEdits(
            table=table if table is not None and len(table) else None,
            parts=tuple(changes.parts.get(node_id, ())),
            base_box=None if buffer is None else buffer.base_box,
        )
        if change.has_changes():
            edits[node_id] = change
    return BulkEdits(edits, fresh)


Start = Callable[[Coroutine[Any, Any, object]], object]
"""Runs a write in the background."""


@contextlib.asynccontextmanager
async def background_writes() -> AsyncIterator[Start]:
    """Run writes in the background of a block. All of them have ended when the block is left, also after an error."""
    tasks: list[asyncio.Future[object]] = []
    try:
        yield lambda write: tasks.append(asyncio.ensure_future(write))
    except BaseException:
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


_Written = list[tuple[BuiltManifest, ManifestFileInfo]]


class EarlierFiles:
    """The manifests and attributes files that earlier tries of a commit wrote.

    A try that lost a race to another writer uses them again where that writer did not change what they were made of.
    """

    def __init__(self) -> None:
        self._manifests: dict[object, tuple[list[Any], _Written]] = {}
        self._attributes: dict[tuple[bytes, ...], ObjectId] = {}
        self._unsorted: list[tuple[PlannedManifest, Mapping[NodeId, ArrayEdits], _Written]] = []
        self.reused: set[str] = set()
        """The keys of the files that the present try uses again."""

    def forget(self) -> None:
        """Use none of the files again, because garbage was collected meanwhile."""
        for each in (self._manifests, self._attributes, self._unsorted, self.reused):
            each.clear()

    def add_manifests(self, output: PlannedManifest, edits: Mapping[NodeId, ArrayEdits], written: _Written) -> None:
        """Remember what was written for an output."""
        self._unsorted.append((output, edits, written))

    def find_manifests(self, output: PlannedManifest, edits: Mapping[NodeId, ArrayEdits]) -> _Written | None:
        """What was written for an output with the same sources and the same edits. None if there is nothing."""
        while self._unsorted:
            # Most commits win their first race, so outputs are compared when the first race is lost.
            earlier, its_edits, written = self._unsorted.pop()
            self._manifests[output_sources(earlier)] = edited_rows(earlier, its_edits), written
        if not self._manifests:
            return None
        rows, found = self._manifests.get(output_sources(output), ([], None))
        return found if found is not None and rows == edited_rows(output, edits) else None

    def add_attributes(self, rows: Sequence[bytes], attributes_id: ObjectId) -> None:
        """Remember an attributes file."""
        self._attributes[tuple(rows)] = attributes_id

    def find_attributes(self, rows: Sequence[bytes]) -> ObjectId | None:
        """The attributes file with these rows, if one was written."""
        return self._attributes.get(tuple(rows)) if self._attributes else None


async def write_manifests(
    state: SessionState,
    gathered: GatheredEdits | None = None,
    nodes: Iterable[Node] | None = None,
    start: Start | None = None,
    earlier: EarlierFiles | None = None,
) -> WrittenManifests:
    """Write what the edits of a change set ask for; untouched manifests stay linked.

    Pass the edits and the nodes of the hierarchy if they are listed already. See `apply_plan` for `start`.
    """
    gathered = gathered or gather_edits(state.changes.edits)
    if not state.changes.parts and not gathered.alone and not len(gathered.together):
        return WrittenManifests()
    arrays = [node for node in (state.tree.nodes() if nodes is None else nodes) if isinstance(node, ArrayNode)]
    edits = collect_edits(state.changes, gathered, arrays)
    if not edits:
        return WrittenManifests()
    plan = plan_manifests(arrays, state.base.manifests, edits, state.context.manifest_config)
    return await apply_plan(state, plan, edits, start, earlier)


async def apply_plan(
    state: SessionState,
    plan: ManifestPlan,
    edits: Mapping[NodeId, ArrayEdits],
    start: Start | None = None,
    earlier: EarlierFiles | None = None,
) -> WrittenManifests:
    """Build and write the outputs of a plan, a few at a time.

    With `start`, a few manifests are written in the background. Many are not, because memory would hold all of them.
    """
    limit = asyncio.Semaphore(_IN_FLIGHT)
    in_background = start if len(plan.outputs) <= _IN_FLIGHT else None

    async def write_one(output: PlannedManifest) -> _Written:
        found = None if earlier is None else earlier.find_manifests(output, edits)
        if found is not None and earlier is not None:
            earlier.reused.update(state.context.format.manifest_key(info.id) for _, info in found)
            return found
        async with limit:
            return await _write_output(state, output, edits, in_background)

    made = await gather_each(write_one, plan.outputs)
    if earlier is not None:
        for output, pairs in zip(plan.outputs, made, strict=True):
            earlier.add_manifests(output, edits, pairs)
    written = [pair for pairs in made for pair in pairs]
    files = {info.id: info for _, info in written} | {part.manifest_id: part.info for part in plan.linked_parts}
    return WrittenManifests(link_manifests(plan, (built.refs for built, _ in written)), files)


async def _write_output(
    state: SessionState, output: PlannedManifest, edits: Mapping[NodeId, ArrayEdits], start: Start | None
) -> _Written:
    fetched = await gather_each(state.lookup.fetch, output.fetch)
    sources: dict[ObjectId, Manifest] = dict(zip(output.fetch, fetched, strict=True))
    new_id = partial(new_object_id, state.context.capabilities.object_id_bytes)
    written: _Written = []
    for built in build_output(output, sources.__getitem__, edits, new_id):
        # The references are small: keep them, not the tables, while the next manifest is built.
        info = await state.context.metadata_files.write_manifest(built.manifest, start)
        written.append((BuiltManifest(Manifest(built.manifest.id, {}), built.refs), info))
        start = None  # an output of several manifests is a large one
    return written


HISTORY_LENGTH = 32
"""Ancestors that a snapshot carries with it, where its generation keeps any: a bound, so commits do not grow."""

_FIRST_PAUSE_SECONDS = 0.005
_PAUSE_PER_TRY = 4.0
_LONGEST_PAUSE_SECONDS = 10.0
_LONGEST_TURN_SECONDS = 5.0
_STALE_TRIES = 100
"""Each lost attempt means that history was expired or garbage collected, so a hundred attempts are enough."""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """What a caller asks for when committing."""

    message: str
    metadata: Mapping[str, Any]
    rebase_with: ConflictSolver | None = None
    rebase_tries: int = 1000
    records_rebases: bool = False
    """Whether the number of rebases goes to the metadata of the commit."""
    only_moves_chunks: bool = False
    """Whether the new references lead to the same bytes as the old ones. Without logs, the metadata shows it."""

    def after_rebases(self, count: int) -> CommitRequest:
        """The request with the number of rebases in its metadata, under the key of the official package."""
        if count == 0 or not self.records_rebases:
            return self
        own = {**self.metadata.get("__icechunk", {}), "rebase_attempts": count}
        return replace(self, metadata={**self.metadata, "__icechunk": own})


@traced("commit")
async def commit(state: SessionState, branch: str, request: CommitRequest) -> Snapshot:
    """Land the changes on a branch, rebasing over the commits they missed when a solver is given."""
    solver, rebases, url = request.rebase_with, 0, state.context.storage.url
    earlier = None if solver is None else EarlierFiles()
    for attempt in range(max(request.rebase_tries, 0) + 1):
        started = monotonic_time()
        # Writers of this process would defeat each other. In a store that is far away, they rather work meanwhile.
        turn = Turn((url, branch) if url.startswith("file:") else None, _LONGEST_TURN_SECONDS)
        async with contextlib.AsyncExitStack() as stack:
            if solver is not None and (attempt > 0 or (turn.is_taken and request.rebase_tries > 0)):
                await stack.enter_async_context(turn)
                await rebase(state, branch, solver)
                rebases += 1
            try:
                return await _write_and_advance(state, branch, request.after_rebases(rebases), earlier)
            except ConflictError:
                if solver is None or attempt == request.rebase_tries:
                    raise
            except GONE:
                await _check_base(state, branch)
                raise
        await asyncio.sleep(random.uniform(0, longest_pause(attempt, monotonic_time() - started)))
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _write_and_advance(
    state: SessionState, branch: str, request: CommitRequest, earlier: EarlierFiles | None
) -> Snapshot:
    """Write the files of a commit and move the branch; again, with other files, when garbage was collected meanwhile.

    Files of the first try may be old enough for the collection; those of the next are younger than its cut-off.
    """
    for tries in range(_STALE_TRIES):
        tip = state.tip
        assert tip is not None, "a session with a branch knows where it stood"
        reused = frozenset[str]()
        if earlier is not None:
            earlier.reused.clear()
        snapshot = await _write_during_packs(state, request, earlier)
        try:
            if earlier is not None:
                reused = frozenset(earlier.reused)
            await check_references(state, tip, reused)
            return await advance_branch(state.context, branch, tip, snapshot)
        except SessionStateError as error:
            # A manifest that was collected is written again. A chunk cannot be.
            missing: tuple[str, ...] = getattr(error, "missing", ())
            if not missing or not reused.issuperset(missing) or tries == _STALE_TRIES - 1:
                raise
        except StaleTipError as stale:
            if tries == _STALE_TRIES - 1:
                raise
            state.rebase_to(await state.context.fetch_base(branch, stale.tip), state.changes, stale.tip)
        if earlier is not None:
            earlier.forget()
    raise AssertionError("unreachable: the last try returns or raises")


async def advance_branch(context: RepositoryContext, branch: str, tip: Tip, snapshot: Snapshot) -> Snapshot:
    """Make a written snapshot the tip of a branch that is at `tip`, its parent. Raises ConflictError if it moved.

    When history was rewritten under the writer, the snapshot gets the quotes that its parent has now, in its own file:
    nobody can have read it yet. StaleTipError when garbage was collected: then the caller looks at what it refers to.
    """
    for tries in range(_STALE_TRIES):
        try:
            await context.ledger.advance(branch, tip, snapshot)
            return snapshot
        except StaleTipError as stale:
            if tries == _STALE_TRIES - 1 or _was_collected(context, tip, stale.tip):
                raise
            tip = stale.tip
        if context.capabilities.history_in_snapshot:
            quoting = with_parent(snapshot, await context.fetch_base(branch, tip))
            if quoting != snapshot:
                snapshot = quoting
                await context.metadata_files.write_snapshot(snapshot)
        await asyncio.sleep(random.uniform(0, longest_pause(tries, _FIRST_PAUSE_SECONDS)))
    raise AssertionError("unreachable: the last try returns or raises")


def _was_collected(context: RepositoryContext, earlier: Tip, later: Tip) -> bool:
    return not context.ledger.announces_collections or context.ledger.collected_since(earlier, later)


def with_parent(snapshot: Snapshot, parent: Snapshot) -> Snapshot:
    """The snapshot with quotes of its parent and of the ancestors that the parent quotes."""
    total = None if parent.total_ancestors is None else parent.total_ancestors + 1
    return replace(snapshot, parent_id=parent.id, history=_quotes(parent), total_ancestors=total)


def _quotes(parent: Snapshot) -> tuple[SnapshotInfo, ...]:
    return (replace(parent.info, manifests=()), *parent.history)[:HISTORY_LENGTH]


async def _write_during_packs(state: SessionState, request: CommitRequest, earlier: EarlierFiles | None) -> Snapshot:
    """Store chunks that are still in memory while the files that tell of them are written: no ref points at either yet.

    Both come to their end, also when one fails: what goes on in the background would outlive the error.
    """
    state.writer.seal_packs(state.changes)
    async with background_writes() as start:
        if state.writer.unstored:
            start(state.writer.store_packs())
        return await write_snapshot(state, request, files=earlier)


def longest_pause(lost: int, took_seconds: float) -> float:
    """Within which time the next try begins, after `lost` tries failed before one that took so long.

    Tries that overlap defeat each other, so writers spread out over several times the length of one. Who has lost
    often waits less than who came later: with pauses that grow, newcomers win again and again. The first try may have
    stored chunks, which none does again, so its length says nothing.
    """
    if lost == 0:
        return _FIRST_PAUSE_SECONDS
    return min(_PAUSE_PER_TRY * took_seconds / lost, _LONGEST_PAUSE_SECONDS)


@traced("amend")
async def amend(state: SessionState, branch: str, tip: Tip, request: CommitRequest) -> tuple[Snapshot, Tip]:
    """Replace the newest commit of a branch by one that holds its changes and these."""
    await state.writer.store_all(state.changes)

    async def write(tip: Tip, parent: Snapshot, earlier: TransactionLog) -> Snapshot:
        lost = await _list_lost(state, earlier, parent)
        snapshot = await write_snapshot(state, request, onto=parent, earlier=lost)
        await check_references(state, tip)
        return snapshot

    try:
        return await replace_newest(state.context, branch, tip, state.base, write)
    except GONE:
        await _check_base(state, branch)
        raise


async def _fetch_replaced_log(context: RepositoryContext, replaced: Snapshot, parent: Snapshot) -> TransactionLog:
    """The changes of the replaced snapshot that the log of the new one must contain.

    Where the ledger names the logs of expired ancestors, it goes on to do so for the new snapshot. Its log must not
    tell of them again, and an expiry meanwhile may name more of them.
    """
    if context.ledger.keeps_pruned_logs:
        with contextlib.suppress(ObjectNotFoundError):
            return await context.metadata_files.fetch_transaction_log(replaced.id)
    return await fetch_log(context, replaced, parent)


async def replace_newest(
    context: RepositoryContext,
    branch: str,
    tip: Tip,
    replaced: Snapshot,
    write: Callable[[Tip, Snapshot, TransactionLog], Awaitable[Snapshot]],
) -> tuple[Snapshot, Tip]:
    """Replace the newest snapshot of a branch by another one, on the present parent of the replaced one.

    `write` writes the snapshot, given the tip, the parent and what the replaced one changed against it. All are read
    from storage: others may have expired the parent that this process remembers.
    """
    for tries in range(_STALE_TRIES):
        parent_id = (await context.ledger.fetch_info(replaced.id)).parent_id
        if parent_id is None:
            raise SessionStateError("the first snapshot of a repository cannot be amended. Use commit instead")
        try:
            parent = await context.metadata_files.fetch_snapshot(parent_id, anew=True)
            snapshot = await write(tip, parent, await _fetch_replaced_log(context, replaced, parent))
            landed = await context.ledger.advance(branch, tip, snapshot, amends=replaced.id)
        except (StaleTipError, SnapshotNotFoundError) as error:
            if tries == _STALE_TRIES - 1:
                raise
            tip = error.tip if isinstance(error, StaleTipError) else tip
            continue
        if context.ledger.parents_change_unseen:
            await _follow_parent(context, replaced.id, snapshot)
        return snapshot, landed
    raise AssertionError("unreachable: the last try returns or raises")


async def _follow_parent(context: RepositoryContext, replaced_id: ObjectId, snapshot: Snapshot) -> None:
    """Give a snapshot the parent that the replaced one has by now: others may have expired the one it had."""
    try:
        parent_id = (await context.ledger.fetch_info(replaced_id)).parent_id
        if parent_id is None or parent_id == snapshot.parent_id:
            return
        earlier = await context.metadata_files.fetch_transaction_log(replaced_id, anew=True)
        own = await context.metadata_files.fetch_transaction_log(snapshot.id, anew=True)
        parent = await context.metadata_files.fetch_snapshot(parent_id)
    except NotFoundError:
        return  # the replaced snapshot was collected; what this one names was checked before
    await context.metadata_files.write_transaction_log(snapshot.id, fit_log(merge_logs(earlier, own), parent, snapshot))
    await context.ledger.reparent_snapshot(snapshot.id, parent_id)


@traced("flush")
async def write_detached(state: SessionState, branch: str, request: CommitRequest) -> Snapshot:
    """Save the changes as a snapshot that no branch points at; its parent must still be there."""
    metadata_files, ledger = state.context.metadata_files, state.context.ledger
    await state.store_chunks()
    try:
        snapshot = await write_snapshot(state, request)
        await metadata_files.fetch_snapshot(state.base.id, anew=True)
        try:
            await check_references(state, await ledger.fetch_tip(branch))
        except RefNotFoundError:
            await check_objects(state.context, await referenced_objects(state))
        await ledger.record_detached(snapshot)
    except GONE as error:
        try:
            await metadata_files.fetch_snapshot(state.base.id, anew=True)
        except SnapshotNotFoundError:
            raise _base_gone(state, (await ledger.fetch_tip(branch)).snapshot_id) from error
        raise
    return snapshot


def _base_gone(state: SessionState, tip_id: ObjectId) -> ConflictError:
    return ConflictError(
        message=f"the base of the session, snapshot {state.base.id}, was expired and garbage collected. Open a new "
        "session and write again",
        expected_parent=state.base.id,
        actual_parent=tip_id,
    )


@traced("rebase")
async def rebase(state: SessionState, branch: str, solver: ConflictSolver) -> None:
    """Rebase the changes on the tip of the branch, completely or not at all."""
    earlier: tuple[ObjectId, list[SnapshotInfo] | None] | None = None
    for tries in range(_STALE_TRIES):
        tip = await state.context.ledger.fetch_tip(branch)
        missed: list[SnapshotInfo] | None = None
        try:
            async with _prefetched_logs(state.context) as fetch:
                if state.context.capabilities.transaction_logs:
                    for snapshot_id in {tip.snapshot_id, *state.context.ledger.recall_passed(branch, state.tip)}:
                        fetch(snapshot_id)
                missed = await _missed(state, branch, tip)
                # The walk over history began with the file of the tip, as it is now.
                state.context.ledger.note_current(branch, tip)
                base, changes = await _carry_over(state, tip, missed, solver, fetch)
        except GONE as error:
            # Others expired and collected a commit after history was walked: then the next walk does not meet it.
            if tries < _STALE_TRIES - 1 and earlier != (tip.snapshot_id, missed):
                earlier = tip.snapshot_id, missed
                continue
            if not isinstance(error, SnapshotNotFoundError):
                raise
            raise ConflictError(
                message=f"the branch is at snapshot {tip.snapshot_id}. A commit between it and {state.base.id}, the "
                f"base of the session, no longer exists ({error}). Open a new session and write again",
                expected_parent=state.base.id,
                actual_parent=tip.snapshot_id,
            ) from error
        state.rebase_to(base, changes, tip)
        return


@contextlib.asynccontextmanager
async def _prefetched_logs(context: RepositoryContext) -> AsyncIterator[FetchLog]:
    """A function that begins to fetch the log of a snapshot, once for each. What is not needed is cancelled.

    Where expiry leaves no list of the logs that belong together, it rewrites the log of a kept snapshot. So logs are
    not taken from the cache there.
    """
    begun: dict[ObjectId, asyncio.Future[TransactionLog]] = {}
    anew = not context.ledger.keeps_pruned_logs

    def fetch(snapshot_id: ObjectId) -> asyncio.Future[TransactionLog]:
        if snapshot_id not in begun:
            begun[snapshot_id] = asyncio.ensure_future(
                context.metadata_files.fetch_transaction_log(snapshot_id, anew=anew)
            )
        return begun[snapshot_id]

    try:
        yield fetch
    finally:
        for task in begun.values():
            task.cancel()
        await asyncio.gather(*begun.values(), return_exceptions=True)


async def _carry_over(
    state: SessionState, tip: Tip, missed: Sequence[SnapshotInfo], solver: ConflictSolver, fetch: FetchLog
) -> tuple[Snapshot, ChangeSet]:
    """The snapshot at a tip, and the changes on top of it."""
    context, base, changes = state.context, state.base, state.changes
    if context.capabilities.transaction_logs:
        for info in missed[:HISTORY_LENGTH]:
            fetch(info.id)
    newest = await context.metadata_files.fetch_snapshot(tip.snapshot_id)
    if not missed:
        return newest, changes
    at_once = await _carry_over_all(state, tip, missed, newest, fetch)
    if at_once is not None:
        return newest, at_once
    ids = [info.id for info in reversed(missed)]
    gate = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def fetch_snapshot(snapshot_id: ObjectId) -> Snapshot:
        async with gate:
            return await context.metadata_files.fetch_snapshot(snapshot_id)

    for theirs in await asyncio.gather(*map(fetch_snapshot, ids)):
        # Only arrays that the changes write, resize, move or delete can be in conflict.
        wanted = {*changes.edits, *changes.parts, *changes.cleared, *changes.origin}
        log = await fetch_log(context, theirs, base, wanted, tip, fetch)
        log = log_since(log, base, theirs)
        log = await drop_false_conflicts(log, base, changes, theirs, context.metadata_files)
        changes = rebase_over(base, changes, theirs, log, solver, official_rules=context.official_rules)
        base = theirs
    return base, changes


async def _carry_over_all(
    state: SessionState, tip: Tip, missed: Sequence[SnapshotInfo], newest: Snapshot, fetch: FetchLog
) -> ChangeSet | None:
    """The changes on top of all missed commits in one step, without their snapshots.

    None if something may conflict, or if the commits did more than write chunks and create nodes. Then each commit is
    looked at by itself, because it matters in which one a conflict is.
    """
    context = state.context
    if not context.capabilities.transaction_logs or context.ledger.parents_change_unseen:
        return None
    if any(REWRITTEN_PARENT_KEY in info.metadata for info in missed) or len(missed) > HISTORY_LENGTH:
        return None
    for info in missed:
        if await context.ledger.fetch_pruned_logs(info.id, tip):
            return None
    try:
        logs = await asyncio.gather(*(fetch(info.id) for info in reversed(missed)))
    except ObjectNotFoundError:
        return None
    if not all(log.only_adds for log in logs):
        return None
    log = log_since(reduce(merge_logs, logs), state.base, newest)
    try:
        return rebase_over(
            state.base, state.changes, newest, log, ConflictDetector(), official_rules=context.official_rules
        )
    except RebaseFailedError:
        return None


async def _check_base(state: SessionState, branch: str) -> None:
    """ConflictError when files are missing because the base is no longer in the history of the branch."""
    for _ in range(_STALE_TRIES):
        tip = await state.context.ledger.fetch_tip(branch)
        with contextlib.suppress(SnapshotNotFoundError):  # the tip itself was expired since: others were fast
            await _missed(state, branch, tip)
            return
        if tip == await state.context.ledger.fetch_tip(branch):
            return


async def _missed(state: SessionState, branch: str, tip: Tip) -> list[SnapshotInfo]:
    """Commits between the base and the tip, newest first; ConflictError when the base is not among its ancestors."""
    missed: list[SnapshotInfo] = []
    if state.context.capabilities.history_in_snapshot and state.context.ledger.is_current(branch, tip):
        # Another session of this process wrote the tip, so that what is remembered of its history is what it is.
        newest = await state.context.metadata_files.fetch_snapshot(tip.snapshot_id)
        for info in (newest.info, *newest.history):
            if info.id == state.base.id:
                return missed
            missed.append(info)
        missed = []
    async for info in state.context.ledger.ancestry_at(tip):
        if info.id == state.base.id:
            return missed
        missed.append(info)
        if info.parent_id == state.base.id:
            return missed
    raise ConflictError(
        message=f"the branch is at snapshot {tip.snapshot_id}. Its history does not contain {state.base.id}, the base "
        "of the session: the branch was reset, or the base has expired. Open a new session and write again. To "
        "avoid this, only expire commits that are older than your longest session",
        expected_parent=state.base.id,
        actual_parent=tip.snapshot_id,
    )


async def write_snapshot(
    state: SessionState,
    request: CommitRequest,
    *,
    onto: Snapshot | None = None,
    earlier: TransactionLog | None = None,
    manifests: WrittenManifests | None = None,
    files: EarlierFiles | None = None,
) -> Snapshot:
    """Write manifests, attributes, snapshot and log of the changes; no ref points at them yet.

    Pass `manifests` if they are written already, and `files` if earlier tries may have written some of the files. All
    files are written at the same time: nobody reads them before a ref points at the snapshot.
    """
    context = state.context
    summary = summarise(state.base, state.changes)
    log = transaction_log(summary)
    if log.updated_boxes and context.capabilities.transaction_logs and not context.capabilities.boxes_in_logs:
        log = await _list_boxes(state, log)
    if context.capabilities.boxes_in_logs:
        log = box_chunks(log, summary.edits)
    log = await _list_cleared(state, log)
    if earlier is not None:
        log = merge_logs(earlier, log)
    if log.moves:
        await context.ledger.check_feature("move_node")
    nodes = list(state.tree.nodes())
    async with background_writes() as start:
        if manifests is None:
            manifests = await write_manifests(state, summary.edits, nodes, start, files)
        attributes = _write_attributes(state, summary.new.keys() | summary.updated.keys(), start, files)
        snapshot = _build_snapshot(state, request, _link_nodes(nodes, manifests, attributes), manifests, onto)
        start(context.metadata_files.write_snapshot(snapshot))
        if context.format.capabilities.transaction_logs:
            start(context.metadata_files.write_transaction_log(snapshot.id, log))
    return snapshot


async def _list_boxes(state: SessionState, log: TransactionLog) -> TransactionLog:
    """The log with every coordinate that workers wrote, for readers that know nothing of boxes."""
    chunks = dict(log.updated_chunks)
    for node_id, parts in state.changes.parts.items():
        manifests = await asyncio.gather(*(state.lookup.fetch(part.manifest_id) for part in parts))
        written = [manifest.tables[node_id].coords for manifest in manifests]
        chunks[node_id] = np.unique(
            np.concatenate([*written, *([chunks[node_id]] if node_id in chunks else [])]), axis=0
        )
    for node_id, cleared in state.changes.cleared.items():
        written = [each.coords() for each in cleared]
        chunks[node_id] = np.unique(
            np.concatenate([*written, *([chunks[node_id]] if node_id in chunks else [])]), axis=0
        )
    return replace(log, updated_chunks=chunks, updated_boxes={})


async def _list_cleared(state: SessionState, log: TransactionLog) -> TransactionLog:
    """The log with the chunks that an array lost when it was made smaller and then larger again."""
    resized = {node_id: edits for node_id, edits in state.changes.edits.items() if edits.base_box is not None}
    if not resized:
        return log
    chunks = dict(log.updated_chunks)
    for node_id, edits in resized.items():
        assert edits.base_box is not None
        path = state.changes.origin.get(node_id)
        base = state.base.nodes.get(path) if path is not None else None
        now = next((n for n in state.changes.added.values() if n.id == node_id), base)
        if not isinstance(base, ArrayNode) or not isinstance(now, ArrayNode):
            continue
        grid = tuple((0, n) for n in now.grid)
        if contains(edits.base_box, grid):
            continue
        stored = (await state.lookup.table(base, grid)).coords
        cleared = stored[~in_box(stored, edits.base_box)]
        if len(cleared):
            known = chunks.get(node_id)
            chunks[node_id] = cleared if known is None else np.unique(np.concatenate([known, cleared]), axis=0)
    return replace(log, updated_chunks=chunks)


async def _list_lost(state: SessionState, earlier: TransactionLog, parent: Snapshot) -> TransactionLog:
    """The log of the commit to be amended, with chunks of arrays that it made smaller and we made larger again."""
    grown = {
        node.id: (was, node)
        for node in state.changes.added.values()
        if node.id in earlier.updated_arrays and isinstance(node, ArrayNode)
        if isinstance(was := state.base.nodes.get(state.changes.origin.get(node.id, "")), ArrayNode)
        if any(now > then for now, then in zip(node.grid, was.grid, strict=True))
    }
    if not grown:
        return earlier
    chunks = dict(earlier.updated_chunks)
    for older in parent.nodes.values():
        if isinstance(older, ArrayNode) and older.id in grown:
            was, now = grown[older.id]
            stored = (await state.lookup.table(older, tuple((0, n) for n in now.grid))).coords
            lost = stored[~in_box(stored, tuple((0, n) for n in was.grid))]
            chunks[older.id] = np.unique(np.concatenate([chunks.get(older.id, lost[:0]), lost]), axis=0)
    return replace(earlier, updated_chunks=chunks)


def _write_attributes(
    state: SessionState, changed: Container[NodeId], start: Start, earlier: EarlierFiles | None
) -> Mapping[NodeId, tuple[bytes, AttributesRef]]:
    """Begin to write large attributes of changed nodes to one file; returns document and reference of each.

    A node that was only moved keeps its document: the log records no change of it.
    """
    if not state.context.format.capabilities.attributes_files:
        return {}
    threshold = state.context.attributes_bytes
    rows: list[bytes] = []
    stripped: dict[NodeId, bytes] = {}
    for node in state.changes.added.values():
        if node.id not in changed or node.attributes is not None or len(node.document) <= threshold:
            continue
        parts = split_attributes(node.document)
        if parts is not None and len(parts[1]) > threshold:
            stripped[node.id] = parts[0]
            rows.append(parts[1])
    if not rows:
        return {}
    attributes_id = None if earlier is None else earlier.find_attributes(rows)
    if attributes_id is not None and earlier is not None:
        earlier.reused.add(state.context.format.attributes_key(attributes_id))
    else:
        attributes_id = new_object_id(state.context.format.capabilities.object_id_bytes)
        start(state.context.metadata_files.write_attributes(attributes_id, rows))
        if earlier is not None:
            earlier.add_attributes(rows, attributes_id)
    return {
        node_id: (document, AttributesRef(attributes_id, row))
        for row, (node_id, document) in enumerate(stripped.items())
    }


def _link_nodes(
    nodes: Iterable[Node], manifests: WrittenManifests, attributes: Mapping[NodeId, tuple[bytes, AttributesRef]]
) -> dict[str, Node]:
    """The nodes of the new snapshot, which know the files that were written for them."""
    linked: dict[str, Node] = {}
    for node in nodes:
        if attributes and node.id in attributes:
            document, place = attributes[node.id]
            node = replace(node, document=document, attributes=place)
        refs = manifests.refs.get(node.id)
        if refs is not None and isinstance(node, ArrayNode):
            node = node.with_manifests(refs)
        linked[node.path] = node
    return linked


def _changed_paths(state: SessionState, nodes: Mapping[str, Node]) -> set[str]:
    """The paths of the nodes that the changes add, remove or write."""
    changes = state.changes
    written = {*changes.edits, *changes.parts, *changes.cleared}
    paths = {path for path, node in nodes.items() if node.id in written} if written else set()
    return paths | set(changes.added) | set(changes.removed)


def _build_snapshot(
    state: SessionState,
    request: CommitRequest,
    nodes: Mapping[str, Node],
    manifests: WrittenManifests,
    onto: Snapshot | None,
) -> Snapshot:
    base, capabilities = state.base, state.context.format.capabilities
    parent = onto or base
    known = {**base.manifests, **manifests.files}
    links = {id(node.manifests): node.manifests for node in nodes.values() if isinstance(node, ArrayNode)}
    used = dict.fromkeys(ref.manifest_id for refs in links.values() for ref in refs)
    total = None if parent.total_ancestors is None else parent.total_ancestors + 1
    now = current_time()
    metadata = inherit_metadata(base.metadata, request.metadata, lambda: _changed_paths(state, nodes))
    if request.only_moves_chunks:
        metadata = {**metadata, REWRITTEN_PARENT_KEY: parent.id}
    return Snapshot(
        id=new_object_id(capabilities.object_id_bytes),
        parent_id=parent.id,
        written_at=later_than(base.written_at, now),
        message=request.message,
        metadata=metadata,
        nodes=nodes,
        manifests={manifest_id: known[manifest_id] for manifest_id in used if manifest_id in known},
        attribute_files=tuple(
            dict.fromkeys(n.attributes.object_id for n in nodes.values() if n.attributes is not None)
        ),
        history=_quotes(parent) if capabilities.history_in_snapshot else (),
        total_ancestors=total,
        started_at=now,
    )
