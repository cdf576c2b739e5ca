"""A value as the `repo` file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.flat.blocks import OFFSET, FieldType, FlatWriter, TableBlock
from icefloe.formats.flat.body import Positions
from icefloe.formats.flat.files import seal_body
from icefloe.formats.flat.metadata_items import write_items
from icefloe.formats.flat.snapshot_writer import object_ids
from icefloe.formats.header import FileType
from icefloe.formats.icechunk2.repo_info import RepoInfo, RepoStatus, SnapshotRecord, Update, UpdateKind
from icefloe.ids import ObjectId

_SPEC = 2


def encode_repo(info: RepoInfo) -> bytes:
    """A whole repo file."""
    return seal_body(encode_repo_body(info), FileType.REPO_INFO, _SPEC)


def encode_repo_body(info: RepoInfo) -> bytes:
    """The flatbuffer of a repo file; snapshots are numbered in the order of their ids."""
    writer = FlatWriter()
    fields: dict[int, FieldType] = {0: "u1", 1: OFFSET, 2: OFFSET, 3: OFFSET, 4: OFFSET, 5: OFFSET, 7: OFFSET}
    if info.metadata:
        fields[6] = OFFSET
    optional = {8: info.updates_before, 9: info.config, 12: info.extra}
    fields |= {slot: OFFSET for slot, value in optional.items() if value is not None}
    flags = {10: info.enabled_flags, 11: info.disabled_flags}
    fields |= {slot: OFFSET for slot, ids in flags.items() if ids}
    root = writer.tables(1, fields).set(0, info.spec_version)
    records = sorted(info.snapshots.values(), key=lambda record: record.id)
    numbers = {record.id: number for number, record in enumerate(records)}
    _write_refs(writer, root, 1, info.tags, numbers)
    _write_refs(writer, root, 2, info.branches, numbers)
    _write_names(writer, root, 3, sorted(info.deleted_tags, key=str.encode))
    _write_snapshots(writer, root, records, numbers)
    root.link(5, _write_statuses(writer, [info.status]))
    if info.metadata:
        root.link(6, write_items(writer, [info.metadata]).positions)
    _write_updates(writer, root, info.updates)
    for slot, value in optional.items():
        if value is not None:
            root.link(slot, writer.texts([value]) if isinstance(value, str) else writer.blobs([value]))
    for slot, ids in flags.items():
        if ids:
            items = np.array(sorted(ids), dtype="<u2")
            root.link(slot, writer.vectors(items.tobytes(), np.array([len(items)], dtype=np.int64), 2, 2))
    return writer.finish(root)


def _number(numbers: Mapping[ObjectId, int], snapshot_id: ObjectId, what: str) -> int:
    if snapshot_id not in numbers:
        raise InvalidInputError(f"{what} points at snapshot {snapshot_id}, which the repository does not list")
    return numbers[snapshot_id]


def _write_refs(
    writer: FlatWriter, root: TableBlock, slot: int, refs: Mapping[str, ObjectId], numbers: Mapping[ObjectId, int]
) -> None:
    names = sorted(refs, key=str.encode)
    vector = writer.references(np.array([len(names)], dtype=np.int64))
    root.link(slot, vector.positions)
    block = writer.tables(len(names), {0: OFFSET, 1: "<u4"})
    block.set(1, np.array([_number(numbers, refs[name], f"ref {name!r}") for name in names], dtype=np.uint32))
    block.link(0, writer.texts(names))
    vector.link(block.positions)


def _write_names(writer: FlatWriter, root: TableBlock, slot: int, names: Sequence[str]) -> None:
    vector = writer.references(np.array([len(names)], dtype=np.int64))
    root.link(slot, vector.positions)
    vector.link(writer.texts(names))


def _write_snapshots(
    writer: FlatWriter, root: TableBlock, records: Sequence[SnapshotRecord], numbers: Mapping[ObjectId, int]
) -> None:
    vector = writer.references(np.array([len(records)], dtype=np.int64))
    root.link(4, vector.positions)
    positions = np.empty(len(records), dtype=np.int64)
    pruned = np.array([bool(record.pruned_logs) for record in records], dtype=np.bool_)
    # An empty list of pruned logs is never written, so records with one are tables of their own kind.
    for has_pruned in (False, True):
        rows = np.flatnonzero(pruned == has_pruned)
        if len(rows) == 0:
            continue
        picked = [records[row] for row in rows.tolist()]
        fields: dict[int, FieldType] = {0: 12, 1: "<i4", 2: "<u8", 3: OFFSET, 4: OFFSET}
        if has_pruned:
            fields[5] = OFFSET
        block = writer.tables(len(picked), fields).set(0, object_ids([record.id for record in picked]))
        block.set(1, np.array([
            -1 if record.parent_id is None else _number(numbers, record.parent_id, f"snapshot {record.id}")
            for record in picked
        ], dtype=np.int32))  # fmt: skip
        block.set(2, np.array([record.flushed_at_us for record in picked], dtype=np.uint64))
        block.link(3, writer.texts([record.message for record in picked]))
        block.link(4, write_items(writer, [record.metadata for record in picked]).positions)
        if has_pruned:
            logs = object_ids([log for record in picked for log in record.pruned_logs])
            counts = np.array([len(record.pruned_logs) for record in picked], dtype=np.int64)
            block.link(5, writer.vectors(logs.tobytes(), counts, 12, 1))
        positions[rows] = block.positions
    vector.link(positions)


def _write_statuses(writer: FlatWriter, statuses: Sequence[RepoStatus]) -> Positions:
    positions = np.empty(len(statuses), dtype=np.int64)
    reasoned = np.array([status.reason is not None for status in statuses], dtype=np.bool_)
    for has_reason in (False, True):
        rows = np.flatnonzero(reasoned == has_reason)
        if len(rows) == 0:
            continue
        picked = [statuses[row] for row in rows.tolist()]
        fields: dict[int, FieldType] = {0: "u1", 1: "<u8"}
        if has_reason:
            fields[2] = OFFSET
        block = writer.tables(len(picked), fields)
        block.set(0, np.array([status.availability for status in picked], dtype=np.uint8))
        block.set(1, np.array([status.set_at_us for status in picked], dtype=np.uint64))
        if has_reason:
            block.link(2, writer.texts([status.reason or "" for status in picked]))
        positions[rows] = block.positions
    return positions


def _write_updates(writer: FlatWriter, root: TableBlock, updates: Sequence[Update]) -> None:
    vector = writer.references(np.array([len(updates)], dtype=np.int64))
    root.link(7, vector.positions)
    positions = np.empty(len(updates), dtype=np.int64)
    details = np.empty(len(updates), dtype=np.int64)
    backed = np.array([update.backup is not None for update in updates], dtype=np.bool_)
    kinds = np.array([update.kind for update in updates], dtype=np.uint8)
    blocks: list[tuple[TableBlock, np.ndarray[tuple[int], np.dtype[np.int64]]]] = []
    for has_backup in (False, True):
        rows = np.flatnonzero(backed == has_backup)
        if len(rows) == 0:
            continue
        fields: dict[int, FieldType] = {0: "u1", 1: OFFSET, 2: "<u8"}
        if has_backup:
            fields[3] = OFFSET
        block = writer.tables(len(rows), fields).set(0, kinds[rows])
        block.set(2, np.array([updates[row].at_us for row in rows.tolist()], dtype=np.uint64))
        if has_backup:
            block.link(3, writer.texts([updates[row].backup or "" for row in rows.tolist()]))
        positions[rows] = block.positions
        blocks.append((block, rows))
    vector.link(positions)
    for kind in np.unique(kinds).tolist():
        rows = np.flatnonzero(kinds == kind)
        details[rows] = _DETAILS.get(UpdateKind(kind), _plain)(writer, [updates[row] for row in rows.tolist()])
    for block, rows in blocks:
        block.link(1, details[rows])


Details = Callable[[FlatWriter, Sequence[Update]], Positions]


def _plain(writer: FlatWriter, updates: Sequence[Update]) -> Positions:
    return writer.tables(len(updates), {}).positions


def _migrated(writer: FlatWriter, updates: Sequence[Update]) -> Positions:
    pairs = np.array([update.versions or (0, 0) for update in updates], dtype=np.uint8)
    return writer.tables(len(updates), {0: "u1", 1: "u1"}).set(0, pairs[:, 0]).set(1, pairs[:, 1]).positions


def _named_with(*fields: str) -> Details:
    """A name, then ids in the slots that follow."""

    def write(writer: FlatWriter, updates: Sequence[Update]) -> Positions:
        kinds: dict[int, FieldType] = {0: OFFSET, **dict.fromkeys(range(1, len(fields) + 1), 12)}
        block = writer.tables(len(updates), kinds)
        for slot, field in enumerate(fields, start=1):
            block.set(slot, object_ids([getattr(update, field) for update in updates]))
        return block.link(0, writer.texts([update.name or "" for update in updates])).positions

    return write


def _detached(writer: FlatWriter, updates: Sequence[Update]) -> Positions:
    ids = object_ids([update.new_id or "" for update in updates])
    return writer.tables(len(updates), {0: 12}).set(0, ids).positions


def _flag(writer: FlatWriter, updates: Sequence[Update]) -> Positions:
    changes = [update.flag for update in updates if update.flag is not None]
    block = writer.tables(len(changes), {0: "<u2", 1: "u1", 2: "u1"})
    block.set(0, np.array([change.flag_id for change in changes], dtype=np.uint16))
    block.set(1, np.array([change.value for change in changes], dtype=np.uint8))
    return block.set(2, np.array([change.is_set for change in changes], dtype=np.uint8)).positions


def _status(writer: FlatWriter, updates: Sequence[Update]) -> Positions:
    block = writer.tables(len(updates), {0: OFFSET})
    statuses = _write_statuses(writer, [update.status for update in updates if update.status is not None])
    return block.link(0, statuses).positions


_DETAILS: dict[UpdateKind, Details] = {
    UpdateKind.REPO_MIGRATED: _migrated,
    UpdateKind.TAG_CREATED: _named_with(),
    UpdateKind.TAG_DELETED: _named_with("previous_id"),
    UpdateKind.BRANCH_CREATED: _named_with(),
    UpdateKind.BRANCH_DELETED: _named_with("previous_id"),
    UpdateKind.BRANCH_RESET: _named_with("previous_id"),
    UpdateKind.NEW_COMMIT: _named_with("new_id"),
    UpdateKind.COMMIT_AMENDED: _named_with("previous_id", "new_id"),
    UpdateKind.NEW_DETACHED_SNAPSHOT: _detached,
    UpdateKind.FEATURE_FLAG_CHANGED: _flag,
    UpdateKind.STATUS_CHANGED: _status,
}
