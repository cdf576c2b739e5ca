"""Expire snapshots by age, number, rule or name.

An expiry gives kept snapshots new parents. In some generations it is recorded in the refs (`Ledger.records_expiries`).
The files of snapshots and logs stay as they are until garbage is collected. The collection joins the logs, writes the
new parents to the files, and removes the record. Then it looks for garbage.

The record is one atomic step, and it only affects what history shows. What is kept is decided by the files: a new
parent is always an ancestor there. So nothing can be deleted that a branch or a tag reaches.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from icefloe.blocking import current_time
from icefloe.debug import traced
from icefloe.display.card import TextCardMixin, format_count
from icefloe.errors import (
    InvalidInputError,
    ObjectNotFoundError,
    RefNotFoundError,
    SnapshotNotFoundError,
    StorageError,
    UnsupportedError,
    VersionMismatchError,
    printable,
)
from icefloe.ids import ObjectId
from icefloe.ledger.ledger import (
    CONVERSION,
    MAIN,
    MOST_NEW_PARENTS,
    HistoryChange,
    HistoryChangedError,
    check_not_converting,
)
from icefloe.maintenance.inventory import (
    History,
    UncachedRepository,
    correct_quotes,
    fetch_all_refs,
    fetch_history,
    fetch_written_history,
    open_uncached,
    report_progress,
)
from icefloe.metadata_files import MetadataFiles
from icefloe.model.snapshot import Snapshot, SnapshotInfo, TransactionLog, check_past
from icefloe.session.ancestry import GONE, compare_snapshots, fit_log, join_logs, merge_logs
from icefloe.session.open_repository import RepositoryContext
from icefloe.storage.contract import Version

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """How much history of the matching branches and tags is kept. The first rule that matches applies.

    Parameters
    ----------
    pattern
        A name of branches and tags, or a pattern with `*` and `?`. Start it with `branch:` or `tag:` to select only
        branches or only tags.
    keep_for
        Keep commits younger than this.
    keep_last
        Keep this many of the latest commits.
    forever
        Keep all commits.

    Examples
    --------
    >>> import datetime, icefloe
    >>> icefloe.RetentionRule("tag:v*", forever=True).matches("tag", "v1.0")
    True
    """

    pattern: str = "*"
    keep_for: dt.timedelta | None = None
    keep_last: int | None = None
    forever: bool = False

    def __post_init__(self) -> None:
        if self.keep_last is not None and self.keep_last < 1:
            raise InvalidInputError(f"keep_last is {self.keep_last}, expected at least 1")
        if not self.forever and self.keep_for is None and self.keep_last is None:
            raise InvalidInputError(f"the rule for {self.pattern!r} keeps nothing. Give keep_for, keep_last or forever")

    def matches(self, kind: str, name: str) -> bool:
        """Return whether the rule applies to a branch or tag.

        Parameters
        ----------
        kind
            "branch" or "tag".
        name
            The name of the branch or tag.

        Returns
        -------
        bool
            Whether the rule applies.

        Examples
        --------
        >>> RetentionRule("branch:dev-*", keep_last=1).matches("branch", "dev-anna")
        True
        """
        wanted, colon, pattern = self.pattern.partition(":")
        if colon and wanted in ("branch", "tag"):
            return wanted == kind and fnmatchcase(name, pattern)
        return fnmatchcase(name, self.pattern)


@dataclass(frozen=True, slots=True)
class ExpiryRequest:
    """The options of an expiry: snapshots by id, or age, number and rules."""

    older_than: dt.datetime | None = None
    retain_last: int | None = None
    rules: Sequence[RetentionRule] = ()
    snapshots: frozenset[ObjectId] = frozenset()
    delete_branches: bool = False
    delete_tags: bool = False
    now: dt.datetime = field(default_factory=current_time)

    def __post_init__(self) -> None:
        if self.older_than is None and self.retain_last is None and not self.rules and not self.snapshots:
            raise InvalidInputError("nothing is selected to expire. Give older_than, retain_last, rules or snapshots")
        if self.retain_last is not None and self.retain_last < 1:
            raise InvalidInputError(f"retain_last is {self.retain_last}, expected at least 1")
        if self.older_than is not None:
            check_past(self.older_than, "older_than", self.now)


@dataclass(frozen=True, slots=True)
class ExpiryPlan(TextCardMixin):
    """The snapshots to remove from history, and the new parents of kept snapshots."""

    change: HistoryChange
    expired: tuple[SnapshotInfo, ...]
    """Newest first."""
    kept: int
    skipped: Mapping[ObjectId, tuple[ObjectId, ...]] = field(default_factory=dict)
    """For kept snapshots with a new parent: the ancestors in between, newest first."""

    def __str__(self) -> str:
        lines = [f"{format_count(len(self.expired), 'snapshot')} to expire, {self.kept:,} stay"]
        lines += [f"  {info.id}  {info.written_at:%Y-%m-%d %H:%M}  {info.message}" for info in self.expired[:_SHOWN]]
        if len(self.expired) > _SHOWN:
            lines.append(f"  ... and {len(self.expired) - _SHOWN:,} more")
        lines += [f"  branch {name} is deleted" for name in sorted(self.change.branches)]
        lines += [f"  tag {name} is deleted" for name in sorted(self.change.tags)]
        lines += [f"  {child} gets the parent {parent}" for child, parent in list(self.change.parents.items())[:_SHOWN]]
        return printable("\n".join(lines))


def plan_expiry(history: History, request: ExpiryRequest, *, tags_can_go: bool = True) -> ExpiryPlan:
    """Decide what expires. Roots stay. The snapshot of a ref stays too, unless the ref is removed."""
    if request.snapshots:
        return _plan_named(history, request.snapshots)
    branches, tags = _refs_to_go(history, request)
    if tags and not tags_can_go:
        raise UnsupportedError(
            f"tags {', '.join(sorted(tags))} point to expired snapshots, but tags of this repository cannot be "
            "deleted. Expire without delete_expired_tags"
        )
    kept = history.roots()
    for kind, name, start in _refs(history):
        if name in (branches if kind == "branch" else tags):
            continue
        chain = history.chain(start)
        kept.add(start)
        kept.update(info.id for index, info in enumerate(chain) if _stays(kind, name, index, info, request))
    expired = history.snapshots.keys() - kept
    expired |= {key for key, info in history.detached.items() if _is_old_detached(info, request)}
    return _finish(history, frozenset(expired), branches, tags)


def _refs(history: History) -> Iterable[tuple[str, str, ObjectId]]:
    yield from (("branch", name, tip) for name, tip in history.refs.branches.items())
    yield from (("tag", name, target) for name, target in history.refs.tags.items())


def _refs_to_go(history: History, request: ExpiryRequest) -> tuple[dict[str, ObjectId], dict[str, ObjectId]]:
    def is_old(kind: str, name: str, snapshot_id: ObjectId) -> bool:
        info = history.snapshots[snapshot_id]
        return info.parent_id is not None and not _stays(kind, name, 0, info, request)

    branches = {n: s for n, s in history.refs.branches.items() if n != MAIN and is_old("branch", n, s)}
    tags = {n: s for n, s in history.refs.tags.items() if is_old("tag", n, s)}
    return branches if request.delete_branches else {}, tags if request.delete_tags else {}


def _stays(kind: str, name: str, index: int, info: SnapshotInfo, request: ExpiryRequest) -> bool:
    """Whether a ref keeps the snapshot at this index of its history."""
    for rule in request.rules:
        if rule.matches(kind, name):
            young = rule.keep_for is not None and info.written_at >= request.now - rule.keep_for
            return rule.forever or young or (rule.keep_last is not None and index < rule.keep_last)
    if request.older_than is None and request.retain_last is None:
        return True
    young = request.older_than is not None and info.written_at >= request.older_than
    return young or (request.retain_last is not None and index < request.retain_last)


def _is_old_detached(info: SnapshotInfo, request: ExpiryRequest) -> bool:
    return info.parent_id is not None and request.older_than is not None and info.written_at < request.older_than


def _plan_named(history: History, named: frozenset[ObjectId]) -> ExpiryPlan:
    unknown = named - history.snapshots.keys() - history.detached.keys()
    if unknown:
        raise SnapshotNotFoundError(
            f"{', '.join(sorted(unknown)[:3])} cannot be reached from a branch or tag. `icefloe log --graph` shows all "
            "snapshots",
            snapshot_id=min(unknown),
        )
    for snapshot_id in named & history.refs.targets():
        refs = " and ".join(history.refs.names_of(snapshot_id))
        raise InvalidInputError(f"snapshot {snapshot_id} is the tip of {refs}. Reset or delete it first")
    if named & history.roots():
        raise InvalidInputError(f"snapshot {min(named & history.roots())} is the first one and cannot expire")
    return _finish(history, named, {}, {})


def plan_again(
    history: History, expired: frozenset[ObjectId], branches: Iterable[str] = (), tags: Iterable[str] = ()
) -> ExpiryPlan:
    """The rest of an expiry: removed snapshots that are reachable again.

    Snapshots of refs stay, except of the branches and tags that are about to be deleted.
    """
    gone = {("branch", name) for name in branches} | {("tag", name) for name in tags}
    kept = history.roots() | {target for kind, name, target in _refs(history) if (kind, name) not in gone}
    return _finish(history, frozenset(expired & history.snapshots.keys()) - kept, {}, {})


def _finish(
    history: History, expired: frozenset[ObjectId], branches: Mapping[str, ObjectId], tags: Mapping[str, ObjectId]
) -> ExpiryPlan:
    parents = {child: parent for child, parent in history.misquoted.items() if child not in expired}
    skipped: dict[ObjectId, tuple[ObjectId, ...]] = {}
    for info in history.snapshots.values():
        if info.id not in expired and info.parent_id in expired:
            skipped[info.id] = _skipped(history, info.parent_id, expired)
            nearest = history.snapshots[skipped[info.id][-1]].parent_id
            assert nearest is not None  # roots never expire
            parents[info.id] = nearest
    everything = {**history.detached, **history.snapshots}
    listed = sorted((everything[key] for key in expired), key=lambda info: info.written_at, reverse=True)
    change = HistoryChange(expired, parents, dict(branches), dict(tags), _parents_of(history, parents))
    return ExpiryPlan(change, tuple(listed), len(everything) - len(expired), skipped)


def plan_new_parents(history: History, new_parents: Mapping[ObjectId, ObjectId]) -> ExpiryPlan:
    """What has to be written to give kept snapshots new parents. `history` has the parents in the files."""
    paths = {child: _between(history, child, parent) for child, parent in new_parents.items()}
    paths = {child: path for child, path in paths.items() if path is not None}
    shown: set[ObjectId] = set()
    for start in history.refs.targets():
        current: ObjectId | None = start
        while current is not None and current not in shown and current in history.snapshots:
            shown.add(current)
            current = new_parents[current] if current in paths else history.snapshots[current].parent_id
    skipped = {child: path for child, path in paths.items() if path and child in shown}
    expired = frozenset(history.snapshots.keys() - shown)
    parents = {child: new_parents[child] for child in skipped}
    change = HistoryChange(expired, parents, former=_parents_of(history, parents))
    return ExpiryPlan(change, tuple(history.snapshots[each] for each in expired), len(shown), skipped)


def _parents_of(history: History, snapshots: Iterable[ObjectId]) -> dict[ObjectId, ObjectId]:
    found = {each: history.snapshots[each].parent_id for each in snapshots if each in history.snapshots}
    return {child: parent for child, parent in found.items() if parent is not None}


def _between(history: History, child: ObjectId, ancestor: ObjectId) -> tuple[ObjectId, ...] | None:
    """The snapshots between one and its ancestor, newest first. None if it is no ancestor."""
    found: list[ObjectId] = []
    current = history.snapshots[child].parent_id if child in history.snapshots else None
    while current is not None and current != ancestor and current in history.snapshots:
        found.append(current)
        current = history.snapshots[current].parent_id
    return tuple(found) if current == ancestor else None


def _skipped(history: History, start: ObjectId, expired: frozenset[ObjectId]) -> tuple[ObjectId, ...]:
    """Expired snapshots from one to its nearest kept ancestor, without the latter."""
    found: list[ObjectId] = []
    current: ObjectId | None = start
    while current is not None and current in expired:
        found.append(current)
        current = history.snapshots[current].parent_id
    return tuple(found)


_ROUNDS = 20
"""The number of attempts if others commit on snapshots that are being expired."""


async def plan_expiry_of(context: RepositoryContext, request: ExpiryRequest) -> ExpiryPlan:
    """Plan an expiry."""
    return _plan(context, await fetch_history(open_uncached(context)), request)


def _plan(context: RepositoryContext, history: History, request: ExpiryRequest) -> ExpiryPlan:
    return plan_expiry(history, request, tags_can_go=context.capabilities.deletable_tags)


@traced("expire_snapshots")
async def expire(context: RepositoryContext, request: ExpiryRequest) -> ExpiryPlan:
    """Remove old snapshots from history. Their files stay until garbage is collected."""
    uncached = open_uncached(context)
    history = await fetch_history(uncached)
    plan = _plan(context, history, request)
    context.ledger.learn_from(uncached.ledger)
    if context.ledger.records_expiries:
        await _record(context, plan, uncached, history)
        return plan
    return await _write_expiry(context, plan, uncached.metadata_files)


async def apply_expiry(context: RepositoryContext, plan: ExpiryPlan) -> ExpiryPlan:
    """Apply a plan that was made before."""
    uncached = open_uncached(context)
    if not context.ledger.records_expiries:
        return await _write_expiry(context, plan, uncached.metadata_files)
    # Others may have expired and collected since, so the new parents are those of the present history.
    history, change = await fetch_history(uncached), plan.change
    rest = plan_again(history, change.expired, change.branches, change.tags)
    rest = replace(rest, change=replace(rest.change, branches=change.branches, tags=change.tags))
    await _record(context, rest, uncached, history)
    return plan


async def _record(context: RepositoryContext, plan: ExpiryPlan, uncached: UncachedRepository, history: History) -> None:
    """Record the new parents of a plan, and delete its refs.

    That `main` has not moved is checked by the creation of its next file. Other refs are fetched again afterwards: a
    commit may have been amended, or a branch that was to be deleted may have moved.
    """
    if plan.change.is_empty() or MAIN not in history.refs.branches:
        await context.check_writable()
    if plan.change.is_empty():
        return
    if history.misquoted:
        await correct_quotes(context, uncached)
    rest = plan
    report_progress("change history", 0, 1)
    for _ in range(_ROUNDS):
        is_recorded = await _record_parents(context, uncached, history, rest)
        if rest.change.branches or rest.change.tags:
            await context.ledger.change_history(replace(rest.change, expired=frozenset(), parents={}))
        report_progress("change history", 1, 1)
        if is_recorded and await fetch_all_refs(open_uncached(context).ledger) == history.refs:
            return
        uncached = open_uncached(context)
        history = await fetch_history(uncached)
        rest = plan_again(history, plan.change.expired)
        if not rest.skipped:
            return
    if not is_recorded:
        raise StorageError(f"others recorded or wrote expiries in each of {_ROUNDS} attempts to record one. Try again")


async def _record_parents(
    context: RepositoryContext, uncached: UncachedRepository, history: History, plan: ExpiryPlan
) -> bool:
    """Add the new parents of a plan to the recorded ones. False if others have changed those."""
    parents = {**history.new_parents, **{child: plan.change.parents[child] for child in plan.skipped}}
    if len(parents) > MOST_NEW_PARENTS:
        # What no ref reaches is only of use if a branch is reset to it.
        kept = history.snapshots.keys() - plan.change.expired
        parents = {child: parent for child, parent in parents.items() if child in kept}
    is_short = len(parents) <= MOST_NEW_PARENTS
    if is_short and parents == history.new_parents:
        return True
    if history.main is None:
        raise RefNotFoundError("there is no branch 'main', so an expiry cannot be recorded", name=MAIN)
    if not is_short:
        await context.check_writable()
        # One of them is recorded, so that expiries that were planned before notice this one.
        one = {child: parents[child] for child in list(plan.skipped)[:1]}
        if not await uncached.ledger.record_new_parents(history.main, {**history.new_parents, **one}):
            return False
        await write_new_parents(context, parents)
        return True
    return await uncached.ledger.record_new_parents(history.main, parents)


@traced("write_new_parents")
async def write_new_parents(context: RepositoryContext, added: Mapping[ObjectId, ObjectId] | None = None) -> None:
    """Write recorded new parents to the files of snapshots, and some that were not recorded. Then remove the record.

    The record is only removed if it is the one that was written, and after a walk over all refs has found nothing left
    to write. So commits and expiries in the meantime are not missed.
    """
    if not added and not await context.ledger.fetch_new_parents():
        return
    await check_not_converting(context.storage, CONVERSION)
    cause: Exception | None = None
    written: set[ObjectId] = set()
    observed: dict[ObjectId, ObjectId] = {}
    for _ in range(_ROUNDS):
        uncached = open_uncached(context)
        try:
            history = await fetch_written_history(uncached)
            parents = _farthest(history, history.new_parents, added or {})
            plan = plan_new_parents(history, parents)
            if not plan.skipped:
                # If a collection died before, descendants may still quote the former parents of what it has written.
                found = {child: to for child, to in parents.items() if _has_parent(history, child, to)}
                quoted = {child: to for child, to in found.items() if child not in written}
                former = {**quoted, **observed}
                await context.ledger.change_parents(HistoryChange(plan.change.expired, quoted, former=former))
                if not history.main or not history.new_parents:
                    return
                if await context.ledger.record_new_parents(history.main, {}):
                    return
                continue
            await _apply(context, _observe(plan, observed), uncached.metadata_files, "write new parents")
            written |= plan.change.parents.keys()
        except HistoryChangedError as error:
            observed.update(error.observed)
            written.clear()
            cause = error
        except GONE as error:
            # Others may have written them and collected garbage since the walk. Damage is found again.
            if str(cause) == str(error):
                raise
            cause = error
    raise StorageError(
        f"other processes changed history in each of {_ROUNDS} attempts to write recorded expiries. Try again"
    ) from cause


def _observe(plan: ExpiryPlan, observed: Mapping[ObjectId, ObjectId]) -> ExpiryPlan:
    """A plan with parents that were read from files before it was made. History may have others, from quotes."""
    return replace(plan, change=replace(plan.change, former={**plan.change.former, **observed}))


def _has_parent(history: History, child: ObjectId, parent: ObjectId) -> bool:
    return child in history.snapshots and history.snapshots[child].parent_id == parent


def _farthest(
    history: History, one: Mapping[ObjectId, ObjectId], other: Mapping[ObjectId, ObjectId]
) -> Mapping[ObjectId, ObjectId]:
    """The new parents of two expiries. Of two parents of one snapshot, the older one: it skips what both expired."""

    def skips(child: ObjectId, parent: ObjectId) -> int:
        path = _between(history, child, parent)
        return -1 if path is None else len(path)

    chosen = {child: max((one[child], other[child]), key=lambda p: skips(child, p)) for child in one.keys() & other}
    return {**one, **other, **chosen}


async def _write_expiry(context: RepositoryContext, plan: ExpiryPlan, contents: MetadataFiles) -> ExpiryPlan:
    """Change the files of snapshots. `contents` may have some of them in its cache."""
    if plan.change.is_empty() or not context.ledger.expires_at_once:
        await context.check_writable()
    if plan.change.is_empty():
        if context.official_rules:
            await context.ledger.log_expiry()
        return plan
    if context.ledger.expires_at_once:
        await _apply(context, plan, contents)
        return plan
    refs, missed = await fetch_all_refs(open_uncached(context).ledger), plan
    observed: dict[ObjectId, ObjectId] = {}
    for number in range(_ROUNDS):
        unchanged = HistoryChange(frozenset())
        try:
            await _apply(context, missed, contents)
        except HistoryChangedError as error:
            if number == _ROUNDS - 1:
                raise
            observed.update(error.observed)
            unchanged = plan.change
        else:
            # A commit or an amendment made in the meantime may have an expired parent.
            if await fetch_all_refs(open_uncached(context).ledger) == refs:
                break
        history = await fetch_history(open_uncached(context))
        refs, branches, tags = history.refs, unchanged.branches, unchanged.tags
        missed = plan_again(history, plan.change.expired, branches, tags)
        missed = replace(missed, change=replace(missed.change, branches=branches, tags=tags))
        if missed.change.is_empty():
            break
        missed = _observe(missed, observed)
    return plan


async def _apply(
    context: RepositoryContext, plan: ExpiryPlan, contents: MetadataFiles, stage: str = "change history"
) -> None:
    """Join transaction logs and change history.

    The nodes of a snapshot never change, so `contents` may have them in its cache. Logs are read from storage.
    """
    seams = {} if context.ledger.keeps_pruned_logs or not context.capabilities.transaction_logs else plan.skipped
    exact, versions = {}, {}
    for number, (child, skipped) in enumerate(seams.items()):
        report_progress("join transaction logs", number, len(seams))
        parent = await contents.fetch_snapshot_file(plan.change.parents[child])
        if parent.parent_id is None:
            context.metadata_files.keep_snapshot(parent)  # its file is never rewritten
        own, exact[child], version = await _join_skipped(contents, child, skipped, parent, plan.change)
        # Until the parents change, the log contains both, because a log with missing changes would hide a conflict.
        versions[child] = await _replace_log(context, child, _union(own, exact[child]), version)
    report_progress(stage, 0, 1)
    await context.ledger.change_history(plan.change)
    for child, log in exact.items():
        await _replace_log(context, child, log, versions[child])
    report_progress(stage, 1, 1)


async def _replace_log(
    context: RepositoryContext, snapshot_id: ObjectId, log: TransactionLog, version: Version | None
) -> Version:
    """Write a log if its file is the one that was read. It belongs to the parent that the snapshot had then.

    An expiry reads a log and writes it before it changes the parent, and again after that. So an expiry that is late
    does not replace the log of one that changed the parent again.
    """
    try:
        return await context.metadata_files.replace_transaction_log(snapshot_id, log, version)
    except VersionMismatchError as error:
        raise HistoryChangedError(snapshot_id) from error


def _union(one: TransactionLog, other: TransactionLog) -> TransactionLog:
    """The union of both logs. A node that one created and the other deleted is in both lists."""
    joined = merge_logs(one, other)
    return replace(
        joined,
        new_groups=one.new_groups | other.new_groups,
        new_arrays=one.new_arrays | other.new_arrays,
        deleted_groups=one.deleted_groups | other.deleted_groups,
        deleted_arrays=one.deleted_arrays | other.deleted_arrays,
        updated_groups=one.updated_groups | other.updated_groups,
        updated_arrays=one.updated_arrays | other.updated_arrays,
    )


async def _join_skipped(
    files: MetadataFiles, child: ObjectId, skipped: Sequence[ObjectId], parent: Snapshot, change: HistoryChange
) -> tuple[TransactionLog, TransactionLog, Version | None]:
    """What a snapshot changed against its expired parent, and against its new parent. Also the version of its log.

    Its own log is read last, and once: a concurrent expiry may write it again, and what that one wrote must not be
    replaced by less. If the snapshot still has the former parent after that, the log belongs to it.
    """
    before = await files.fetch_snapshot(skipped[0])
    earlier = await _find_logs(files, skipped[::-1])
    versions: list[Version] = []
    own = await _find_logs(files, [child], versions)
    new = await files.fetch_snapshot(child, anew=True)
    change.check_parent(child, new.parent_id)
    return (
        await _fit_logs(files, own, before, new),
        await _fit_logs(files, None if earlier is None or own is None else [*earlier, *own], parent, new),
        versions[0] if versions else None,
    )


async def _find_logs(
    files: MetadataFiles, snapshots: Sequence[ObjectId], versions: list[Version] | None = None
) -> list[TransactionLog] | None:
    """The logs of some snapshots. None if one of them has none."""
    try:
        return [await files.fetch_transaction_log(each, anew=True, versions=versions) for each in snapshots]
    except ObjectNotFoundError:
        return None


async def _fit_logs(
    files: MetadataFiles, logs: Sequence[TransactionLog] | None, old: Snapshot, new: Snapshot
) -> TransactionLog:
    """The log of all changes from one snapshot to another. Without logs, they are compared."""
    if logs is None:
        return await compare_snapshots(old, new, files)
    return fit_log(await join_logs(logs, old, new, files), old, new)
