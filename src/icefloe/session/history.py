"""Points of a repository's history: refs, times, ancestry, and what lies between two of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Container
from dataclasses import dataclass
from functools import reduce

from icefloe.errors import ConflictError, FormatError, InvalidInputError, ObjectNotFoundError, SnapshotNotFoundError
from icefloe.ids import NodeId, ObjectId
from icefloe.ledger.contract import Tip
from icefloe.model.diff import Diff
from icefloe.model.snapshot import REWRITTEN_PARENT_KEY, Snapshot, SnapshotInfo
from icefloe.model.transaction_log import TransactionLog
from icefloe.session.compare import chunks_in_boxes, compare_snapshots, diff_from_logs
from icefloe.session.engine import Engine
from icefloe.session.logs import is_cut_off, join_logs, merge_logs

GONE = (SnapshotNotFoundError, ObjectNotFoundError, FormatError)
"""What is met where others expired and collected a commit after its history was walked.

A manifest that a snapshot names and that is not there is a FormatError.
"""
_WALKS = 20
_CLOCK_DIFFERENCE = dt.timedelta(minutes=5)
"""How far the clocks of two machines may be apart."""


@dataclass(frozen=True, slots=True)
class RefChoice:
    """A snapshot, named by exactly one of a branch, a tag or its id."""

    branch: str | None = None
    tag: str | None = None
    snapshot_id: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("branch", "tag", "snapshot_id") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidInputError(f"give one of branch, tag and snapshot_id, not {' and '.join(given)}")

    def or_main(self) -> RefChoice:
        """The same choice, or the branch `main` when nothing was chosen."""
        return self if self.branch or self.tag or self.snapshot_id else RefChoice(branch="main")


async def resolve(engine: Engine, choice: RefChoice) -> ObjectId:
    """The snapshot id that a choice names."""
    if choice.branch is not None:
        return (await engine.ledger.fetch_tip(choice.branch)).snapshot_id
    if choice.tag is not None:
        return await engine.ledger.fetch_tag(choice.tag)
    if choice.snapshot_id is not None:
        return choice.snapshot_id
    raise InvalidInputError("give one of branch, tag and snapshot_id")


async def ancestry(engine: Engine, choice: RefChoice) -> AsyncIterator[SnapshotInfo]:
    """A snapshot and its ancestors, newest first."""
    async for info in engine.ledger.ancestry(await resolve(engine, choice)):
        yield info


def check_zone(moment: dt.datetime, name: str) -> dt.datetime:
    """A time that says its time zone; InvalidInputError for one that does not, because it would have to be guessed."""
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidInputError(
            f"{name}={moment.isoformat()} has no time zone, so that it may be off by hours; give one, as in "
            "datetime.now(timezone.utc) or datetime(2024, 5, 1, tzinfo=timezone.utc)"
        )
    return moment


def check_past(moment: dt.datetime, name: str, now: dt.datetime) -> dt.datetime:
    """A time with a zone that is not in the future, up to the difference between two clocks."""
    if check_zone(moment, name) > now + _CLOCK_DIFFERENCE:
        raise InvalidInputError(
            f"{name}={moment.isoformat()} is in the future: it is {now.isoformat()}. Everything would be old enough; "
            "check the time zone, or give a time span such as timedelta(days=1)"
        )
    return moment


async def snapshot_as_of(engine: Engine, snapshot_id: ObjectId, time: dt.datetime) -> ObjectId:
    """The newest ancestor that was written at or before a time."""
    moment = check_zone(time, "as_of")
    oldest = None
    async for info in engine.ledger.ancestry(snapshot_id):
        if info.written_at <= moment:
            return info.id
        oldest = info
    since = f"; its history begins at {oldest.written_at.isoformat()}" if oldest is not None else ""
    raise SnapshotNotFoundError(f"the branch had no commit at {moment.isoformat()}{since}", as_of=moment)


async def fetch_branch(engine: Engine, branch: str) -> tuple[Tip, Snapshot]:
    """Where a branch stands, and the snapshot there, for work that will commit on top of it."""
    tip = await engine.ledger.fetch_tip(branch)
    return tip, await fetch_base(engine, branch, tip)


async def fetch_base(engine: Engine, branch: str, tip: Tip) -> Snapshot:
    """The snapshot at a tip, with the history that its file quotes now.

    A commit copies these quotes, and expiry rewrites them in place. A snapshot that is remembered is good if it was
    read, or written, under the very ref that the branch has now: expiry writes the ref again.
    """
    if engine.ledger.is_current(branch, tip):
        return await engine.archive.fetch_snapshot(tip.snapshot_id)
    snapshot = await engine.archive.fetch_snapshot(tip.snapshot_id, anew=True)
    engine.ledger.note_current(branch, tip)
    return snapshot


async def fetch_log(
    engine: Engine,
    snapshot: Snapshot,
    parent: Snapshot | None = None,
    wanted: Container[NodeId] | None = None,
    tip: Tip | None = None,
) -> TransactionLog:
    """What a snapshot changed: its log, or a comparison where the generation or an early writer left none.

    `parent` saves a request where the caller has it; `wanted` are the arrays of which every chunk must be told. `tip`
    is given by who walked the history of it with `ancestry_at`: then expiry since that walk changes nothing.
    """
    logs: list[TransactionLog] = []
    if engine.capabilities.transaction_logs:
        pruned = await engine.ledger.fetch_pruned_logs(snapshot.id, tip)
        try:
            # Where expiry leaves no list of the logs that belong together, it rewrites the log of a kept snapshot.
            anew = not engine.ledger.keeps_pruned_logs
            logs = [await engine.archive.fetch_transaction_log(each, anew=anew) for each in (*pruned, snapshot.id)]
        except ObjectNotFoundError:
            logs = []
    if len(logs) == 1:
        if engine.ledger.parents_change_unseen and parent is not None and is_cut_off(logs[0], parent, snapshot):
            return await compare_snapshots(parent, snapshot, engine.archive)
        return logs[0]
    if parent is None:
        parent_id = (await engine.ledger.fetch_info(snapshot.id)).parent_id
        parent = None if parent_id is None else await engine.archive.fetch_snapshot(parent_id)
    if parent is None:
        return reduce(merge_logs, logs, TransactionLog())
    if not logs:
        if snapshot.metadata.get(REWRITTEN_PARENT_KEY) == parent.id:
            log = await compare_snapshots(parent, snapshot, engine.archive, chunks=False)
            if log.is_empty():
                return log
        return await compare_snapshots(parent, snapshot, engine.archive)
    return await join_logs(logs, parent, snapshot, engine.archive, wanted)


async def diff_between(engine: Engine, old: ObjectId, new: ObjectId) -> Diff:
    """What changed from one snapshot to another one; SnapshotNotFoundError when one of the two is gone.

    Along one history the logs in between tell; unrelated snapshots are compared. Others may expire and collect what is
    in between meanwhile: then the history is walked again.
    """
    cause: Exception = ConflictError(f"the history of {new} was expired again and again while it was read; try again")
    for _ in range(_WALKS):
        before = await engine.archive.fetch_snapshot(old)
        after = await engine.archive.fetch_snapshot(new)
        try:
            found = await _diff(engine, before, after)
        except GONE as error:
            # One of the two, which may still be remembered, or one in between?
            for end in (old, new):
                await engine.archive.fetch_snapshot(end, anew=True)
            cause = error
        else:
            if found is not None:
                return found
    raise cause


async def _diff(engine: Engine, before: Snapshot, after: Snapshot) -> Diff | None:
    """What changed from one snapshot to another one; None when history was expired meanwhile."""
    between = await _snapshots_between(engine, before.id, after.id)
    if between is None or not engine.capabilities.transaction_logs:
        return diff_from_logs(before, after, [await compare_snapshots(before, after, engine.archive)])
    logs = [await fetch_log(engine, await engine.archive.fetch_snapshot(snapshot_id)) for snapshot_id in between]
    found = diff_from_logs(before, after, logs, await chunks_in_boxes(after, logs, engine.archive))
    # Expiry adds the logs of what it takes away to the next one that stays, also those of commits before the first.
    return found if await _snapshots_between(engine, before.id, after.id) == between else None


async def _snapshots_between(engine: Engine, old: ObjectId, new: ObjectId) -> list[ObjectId] | None:
    """The commits after `old` up to `new`, oldest first; None when `old` is not an ancestor."""
    found: list[ObjectId] = []
    async for info in engine.ledger.ancestry(new):
        if info.id == old:
            return found[::-1]
        found.append(info.id)
    return None
