"""Commit, amend and rebase: write the files of a commit, check for collected files, move the branch.

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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from icefloe.blocking import Turn, monotonic_time
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
from icefloe.ids import NodeId, ObjectId
from icefloe.ledger.ledger import StaleTipError, Tip
from icefloe.manifests.cells import in_box
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import REWRITTEN_PARENT_KEY, ArrayNode, Snapshot, SnapshotInfo, TransactionLog
from icefloe.session.ancestry import GONE, FetchLog, fetch_log, fit_log, log_since, merge_additions, merge_logs
from icefloe.session.change_set import ChangeSet
from icefloe.session.commit_files import (
    HISTORY_LENGTH,
    CommitRequest,
    EarlierFiles,
    background_writes,
    with_parent,
    write_snapshot,
)
from icefloe.session.open_repository import (
    LONG_SESSION_SECONDS,
    RepositoryContext,
    check_objects,
    list_collections,
)
from icefloe.session.races import (
    FIRST_PAUSE_SECONDS,
    PendingCommit,
    RecentCommits,
    longest_pause,
    recent_commits,
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


_LONGEST_TURN_SECONDS = 5.0
_MOST_PENDING = 8
"""Commits of this process that wait for the ref of the one before them."""
_PACKS_DURING_TURN_BYTES = 1 << 20
"""A writer with more bytes in memory stores them before its turn, so that others need not wait for them."""
_STALE_TRIES = 100
"""Each lost attempt means that history was expired or garbage collected, so a hundred attempts are enough."""


@traced("commit")
async def commit(state: SessionState, branch: str, request: CommitRequest) -> Snapshot:
    """Land the changes on a branch, rebasing over the commits they missed when a solver is given."""
    solver, rebases = request.rebase_with, 0
    earlier = None if solver is None else EarlierFiles()
    commits = recent_commits(state.context.ledger, branch)
    for attempt in range(max(request.rebase_tries, 0) + 1):
        # Writers of this process would defeat each other.
        turn = Turn(None if solver is None else commits, _LONGEST_TURN_SECONDS)
        if solver is not None and (turn.is_taken or _unstored_bytes(state) > _PACKS_DURING_TURN_BYTES):
            await state.writer.store_packs()
        async with turn:
            started, base = monotonic_time(), None
            if solver is not None and (attempt > 0 or request.rebase_tries > 0):
                base = await _stand_on_pending(state, commits)
                if base is None and (attempt > 0 or commits.is_ahead_of(state.tip)):
                    await rebase(state, branch, solver)
                    rebases += 1
            asked = request.after_rebases(rebases + (base is not None))
            try:
                if base is None:
                    return await _write_and_advance(state, branch, asked, earlier, turn)
                assert earlier is not None, "a commit without a solver stands on its own base"
                return await _write_and_follow(state, branch, asked, earlier, turn, base)
            except ConflictError:
                if solver is None or attempt == request.rebase_tries:
                    raise
            except GONE:
                await _check_base(state, branch)
                raise
            rebases += base is not None
        await asyncio.sleep(random.uniform(0, longest_pause(attempt, monotonic_time() - started)))
    raise AssertionError("unreachable: the last attempt returns or raises")


def _unstored_bytes(state: SessionState) -> int:
    return sum(map(len, state.writer.unstored.values()))


async def _stand_on_pending(state: SessionState, commits: RecentCommits) -> tuple[PendingCommit, SessionState] | None:
    """A commit of this process whose ref is not created yet, and the changes on top of it. None if there is none.

    The session itself stays as it is, because that commit may be lost. If something may conflict with it, or if it
    waits for many others, this waits until its ref is created.
    """
    pending = commits.pending
    if pending is None:
        return None
    logs = commits.find_logs(state.base.id, pending.snapshot.id)
    if logs is not None and pending.depth < _MOST_PENDING:
        carried = _carry_over_additions(state, pending.snapshot, logs)
        if carried is not None:
            state.context.metadata_files.keep_manifests(pending.manifests)
            return pending, SessionState(state.context, pending.snapshot, carried)
    await asyncio.wait([pending.landed], timeout=_LONGEST_TURN_SECONDS)
    return None


async def _write_and_follow(
    state: SessionState,
    branch: str,
    request: CommitRequest,
    earlier: EarlierFiles,
    turn: Turn,
    base: tuple[PendingCommit, SessionState],
) -> Snapshot:
    """Write the files of a commit on top of a pending one, and move the branch after that one has done so."""
    context, (before, written) = state.context, base
    commits = recent_commits(context.ledger, branch)
    earlier.reused.clear()
    snapshot = await _write_during_packs(state, written, request, earlier)
    reused = frozenset(earlier.reused)
    mine = commits.begin(snapshot, earlier.written, before, context.metadata_files)
    if commits.pending is mine:
        turn.release()
    try:
        await asyncio.wait([before.landed], timeout=_LONGEST_TURN_SECONDS)
        tip = before.landed.result() if before.landed.done() else None
        if tip is None:
            raise _lost(state, before.snapshot.id)
        context.ledger.note_tip(branch, tip)
        await check_references(state, tip, reused)
        commits.end(mine, await context.ledger.advance(branch, tip, snapshot))
        return snapshot
    except SessionStateError as error:
        # A manifest that was collected is written again by the next try. A chunk cannot be.
        missing: tuple[str, ...] = getattr(error, "missing", ())
        if not missing or not reused.issuperset(missing):
            raise
        earlier.forget()
        raise _lost(state, before.snapshot.id) from error
    finally:
        commits.end(mine, None)


def _lost(state: SessionState, other_id: ObjectId) -> ConflictError:
    return ConflictError(
        message=f"other writers have committed since {state.base.id}, the base of the session. Commit again",
        expected_parent=state.base.id,
        actual_parent=other_id,
    )


async def _write_and_advance(
    state: SessionState, branch: str, request: CommitRequest, earlier: EarlierFiles | None, turn: Turn
) -> Snapshot:
    """Write the files of a commit and move the branch; again, with other files, when garbage was collected meanwhile.

    Files of the first try may be old enough for the collection; those of the next are younger than its cut-off. The
    turn ends when the files are written.
    """
    commits = recent_commits(state.context.ledger, branch)
    for tries in range(_STALE_TRIES):
        tip = state.tip
        assert tip is not None, "a session with a branch knows where it stood"
        reused, mine = frozenset[str](), None
        if earlier is not None:
            earlier.reused.clear()
        snapshot = await _write_during_packs(state, state, request, earlier)
        if earlier is not None:
            reused, mine = (
                frozenset(earlier.reused),
                commits.begin(snapshot, earlier.written, None, state.context.metadata_files),
            )
            if commits.pending is mine:
                turn.release()
        try:
            await check_references(state, tip, reused)
            landed, moved = await advance_branch(state.context, branch, tip, snapshot)
            if mine is not None and landed is snapshot:
                commits.end(mine, moved)
            return landed
        except SessionStateError as error:
            # A manifest that was collected is written again. A chunk cannot be.
            missing: tuple[str, ...] = getattr(error, "missing", ())
            if not missing or not reused.issuperset(missing) or tries == _STALE_TRIES - 1:
                raise
        except StaleTipError as stale:
            if tries == _STALE_TRIES - 1:
                raise
            state.rebase_to(await state.context.fetch_base(branch, stale.tip), state.changes, stale.tip)
        finally:
            if mine is not None:
                commits.end(mine, None)
        if earlier is not None:
            earlier.forget()
    raise AssertionError("unreachable: the last try returns or raises")


async def advance_branch(context: RepositoryContext, branch: str, tip: Tip, snapshot: Snapshot) -> tuple[Snapshot, Tip]:
    """Make a written snapshot the tip of a branch that is at `tip`, its parent. Raises ConflictError if it moved.

    When history was rewritten under the writer, the snapshot gets the quotes that its parent has now, in its own file:
    nobody can have read it yet. StaleTipError when garbage was collected: then the caller looks at what it refers to.
    """
    for tries in range(_STALE_TRIES):
        try:
            return snapshot, await context.ledger.advance(branch, tip, snapshot)
        except StaleTipError as stale:
            if tries == _STALE_TRIES - 1 or _was_collected(context, tip, stale.tip):
                raise
            tip = stale.tip
        if context.capabilities.history_in_snapshot:
            quoting = with_parent(snapshot, await context.fetch_base(branch, tip))
            if quoting != snapshot:
                snapshot = quoting
                await context.metadata_files.write_snapshot(snapshot)
        await asyncio.sleep(random.uniform(0, longest_pause(tries, FIRST_PAUSE_SECONDS)))
    raise AssertionError("unreachable: the last try returns or raises")


def _was_collected(context: RepositoryContext, earlier: Tip, later: Tip) -> bool:
    return not context.ledger.announces_collections or context.ledger.collected_since(earlier, later)


async def _write_during_packs(
    state: SessionState, written: SessionState, request: CommitRequest, earlier: EarlierFiles | None
) -> Snapshot:
    """Store chunks that are still in memory while the files that tell of them are written: no ref points at either yet.

    `written` has the changes of the session, maybe on another base.
    Both come to their end, also when one fails: what goes on in the background would outlive the error.
    """
    state.writer.seal_packs(state.changes)
    async with background_writes() as start:
        if state.writer.unstored:
            start(state.writer.store_packs())
        return await write_snapshot(written, request, files=earlier)


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
            parent = await context.metadata_files.fetch_snapshot_file(parent_id, anew=True)
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
        parent = await context.metadata_files.fetch_snapshot_file(parent_id)
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
        await metadata_files.fetch_snapshot_file(state.base.id, anew=True)
        try:
            await check_references(state, await ledger.fetch_tip(branch))
        except RefNotFoundError:
            await check_objects(state.context, await referenced_objects(state))
        await ledger.record_detached(snapshot)
    except GONE as error:
        try:
            await metadata_files.fetch_snapshot_file(state.base.id, anew=True)
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
    commits = recent_commits(state.context.ledger, branch)
    for tries in range(_STALE_TRIES):
        tip = await state.context.ledger.fetch_tip(branch)
        missed: list[SnapshotInfo] | None = None
        try:
            logs = commits.find_logs(state.base.id, tip.snapshot_id)
            if logs is not None:
                newest = await state.context.fetch_base(branch, tip)
                carried = _carry_over_additions(state, newest, logs)
                if carried is not None:
                    state.rebase_to(newest, carried, tip)
                    return
            async with _prefetched_logs(state.context) as fetch:
                if state.context.ledger.keeps_pruned_logs:
                    fetch(tip.snapshot_id)
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

    Where expiry leaves no list of the logs that belong together, it rewrites the log of a kept snapshot, and then gives
    it a new parent. So logs are not taken from the cache there. A log must also be fetched after the parent that it is
    compared with: one that was fetched before may lack the changes of an ancestor that the walk no longer meets.
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
    newest = await context.metadata_files.fetch_snapshot_file(tip.snapshot_id)
    if not missed:
        return newest, changes
    at_once = await _carry_over_all(state, tip, missed, newest, fetch)
    if at_once is not None:
        return newest, at_once
    ids = [info.id for info in reversed(missed)]
    gate = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def fetch_snapshot(snapshot_id: ObjectId) -> Snapshot:
        async with gate:
            return await context.metadata_files.fetch_snapshot_file(snapshot_id)

    for theirs in await asyncio.gather(*map(fetch_snapshot, ids)):
        log = await fetch_log(context, theirs, base, _wanted(changes), tip, fetch)
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
    return _carry_over_additions(state, newest, logs)


def _carry_over_additions(state: SessionState, newest: Snapshot, logs: Sequence[TransactionLog]) -> ChangeSet | None:
    """The changes on top of commits that only added nodes and chunks. None if something may conflict."""
    changes, rules = state.changes, state.context.official_rules
    if not logs:
        return changes
    log = log_since(merge_additions(logs, _wanted(changes)), state.base, newest)
    try:
        return rebase_over(state.base, changes, newest, log, ConflictDetector(), official_rules=rules)
    except RebaseFailedError:
        return None


def _wanted(changes: ChangeSet) -> set[NodeId]:
    """The arrays that the changes write, resize, move or delete. Only these can be in conflict."""
    return {*changes.edits, *changes.parts, *changes.cleared, *changes.origin}


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
        newest = await state.context.metadata_files.fetch_snapshot_file(tip.snapshot_id)
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
