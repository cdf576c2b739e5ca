"""The `repo` file of icechunk 2.x: decoded, encoded, and in public values (status, feature flags, operations log)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from icefloe.errors import InvalidInputError, UnknownFormatError
from icefloe.formats.byte_columns import texts_of
from icefloe.formats.flatbuf.decode import Body, Positions, Table, Tables, item_positions, item_table, root, root_table
from icefloe.formats.flatbuf.encode import OFFSET_TYPE, FieldType, FlatWriter, TableBlock
from icefloe.formats.flatbuf.files import open_body, seal_body
from icefloe.formats.flatbuf.flexbuffers import RawMetadata, decode_flexible, decode_metadata, read_items, write_items
from icefloe.formats.flatbuf.snapshot import object_ids
from icefloe.formats.header import FileType, parse_header
from icefloe.ids import ObjectId, decode_base32, encode_base32, encode_base32_column
from icefloe.model import status as public
from icefloe.model.snapshot import from_microseconds
from icefloe.model.status import FeatureFlag, RepoAvailability, RepoStatus, Update, UpdateType

FLAGS: Mapping[str, int] = {"move_node": 3, "create_tag": 4, "delete_tag": 5}
"""Feature flags by name. All are on unless disabled."""

(
    SPEC,
    TAGS,
    BRANCHES,
    DELETED_TAGS,
    SNAPSHOTS,
    STATUS,
    METADATA,
    UPDATES,
    UPDATES_BEFORE,
    CONFIG,
    ENABLED,
    DISABLED,
    EXTRA,
) = range(13)
"""The fields of the file's table."""


class UpdateKind(enum.IntEnum):
    """The kind of an entry of the operations log. The value is the type byte of the union."""

    REPO_INITIALIZED = 1
    REPO_MIGRATED = 2
    CONFIG_CHANGED = 3
    METADATA_CHANGED = 4
    TAG_CREATED = 5
    TAG_DELETED = 6
    BRANCH_CREATED = 7
    BRANCH_DELETED = 8
    BRANCH_RESET = 9
    NEW_COMMIT = 10
    COMMIT_AMENDED = 11
    NEW_DETACHED_SNAPSHOT = 12
    GC_RAN = 13
    EXPIRATION_RAN = 14
    FEATURE_FLAG_CHANGED = 15
    STATUS_CHANGED = 16


class Availability(enum.IntEnum):
    """Whether a repository takes writes."""

    ONLINE = 0
    READ_ONLY = 1
    OFFLINE = 2


@dataclass(frozen=True, slots=True)
class StatusRecord:
    """Whether a repository accepts writes, since when, and the reason."""

    availability: Availability
    set_at_us: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class FlagChange:
    """A feature flag set to a value, or back to its default when `is_set` is False."""

    flag_id: int
    value: bool
    is_set: bool


@dataclass(frozen=True, slots=True)
class UpdateRecord:
    """One entry of the operations log. Fields that its kind does not have are None."""

    kind: UpdateKind
    at_us: int
    backup: str | None = None
    """The name in `overwritten/` of the file that the next update replaced. None for the newest update."""
    name: str | None = None
    previous_id: ObjectId | None = None
    new_id: ObjectId | None = None
    versions: tuple[int, int] | None = None
    flag: FlagChange | None = None
    status: StatusRecord | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A snapshot in the repo file. Metadata stays encoded, so that rewriting does not change it."""

    id: ObjectId
    parent_id: ObjectId | None
    flushed_at_us: int
    message: str
    metadata: RawMetadata = ()
    pruned_logs: tuple[ObjectId, ...] = ()
    """Expired ancestors whose logs, oldest first, are still part of this snapshot's change."""


@dataclass(frozen=True, slots=True)
class RepoInfo:
    """The whole repo file. Snapshots are identified by id. Their numbers exist only in the file."""

    branches: Mapping[str, ObjectId]
    snapshots: Mapping[ObjectId, SnapshotRecord]
    updates: tuple[UpdateRecord, ...]
    """Newest first, at least one."""
    status: StatusRecord
    tags: Mapping[str, ObjectId] = field(default_factory=dict)
    deleted_tags: frozenset[str] = frozenset()
    metadata: RawMetadata = ()
    updates_before: str | None = None
    """The name in `overwritten/` of the file that continues the operations log."""
    config: bytes | None = None
    enabled_flags: frozenset[int] = frozenset()
    disabled_flags: frozenset[int] = frozenset()
    extra: bytes | None = None
    spec_version: int = 2


KNOWN_SPEC = 2


class RepoHead:
    """A repo file. Only the requested parts are decoded."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._root = root(body)
        check_spec(body, self._root.scalar(SPEC, "u1"))

    @property
    def config(self) -> bytes | None:
        """The stored configuration, not decoded."""
        return self._root.blob(CONFIG)

    @property
    def status(self) -> StatusRecord:
        """Whether the repository takes writes."""
        table = self._root.child(STATUS)
        code = table.scalar(0, "u1")
        if code not in list(Availability):
            raise self._body.corrupt("it has an unknown status")
        return StatusRecord(Availability(code), table.scalar(1, "<u8"), table.text(2, required=False))

    def find_branch(self, name: str) -> ObjectId | None:
        """The tip of a branch. None if the search does not find it. Decode the whole file to confirm that."""
        return self._find_ref(BRANCHES, name)

    def find_tag(self, name: str) -> ObjectId | None:
        """The snapshot of a tag. None as for branches."""
        return self._find_ref(TAGS, name)

    def may_list(self, snapshot_id: ObjectId) -> bool:
        """Whether the file may list a snapshot. If False, the id is nowhere in the file, in any order of its tables."""
        return decode_base32(snapshot_id, 12) in self._body.data

    def _find_ref(self, slot: int, name: str) -> ObjectId | None:
        wanted = name.encode(errors="surrogatepass")
        start, high = self._root.vector(slot, 4, 4)
        low = 0
        while low < high:
            middle = (low + high) // 2
            ref = item_table(self._body, start, middle)
            found = ref.blob(0)
            if found is None:
                raise self._body.corrupt("a ref has no name")
            if found == wanted:
                return self._snapshot_id(ref)
            if found < wanted:
                low = middle + 1
            else:
                high = middle
        return None

    def _snapshot_id(self, ref: Table) -> ObjectId:
        row = ref.scalar(1, "<u4")
        start, count = self._root.vector(SNAPSHOTS, 4, 4)
        if row >= count:
            raise self._body.corrupt("a ref points to a snapshot that is not listed")
        return encode_base32(item_table(self._body, start, row).struct(0, 12))


def read_repo_head(data: bytes) -> RepoHead:
    """A repo file; UnknownFormatError when it is newer than this library."""
    return RepoHead(open_body(data, FileType.REPO_INFO)[1])


def check_spec(body: Body, spec: int) -> None:
    """Refuse files that are newer than this library."""
    if spec > KNOWN_SPEC:
        raise UnknownFormatError(
            f"the repository has spec version {spec}. This library reads versions up to {KNOWN_SPEC}. Upgrade icefloe",
            spec_version=spec,
        )
    if spec == 0:
        raise body.corrupt("it has no spec version")


_FEW = 20
"""Up to this many ids, a Python loop is faster."""


def decode_repo(data: bytes) -> RepoInfo:
    """A repo file; UnknownFormatError when it is newer than this library."""
    _, body = open_body(data, FileType.REPO_INFO)
    return decode_repo_body(body)


def decode_repo_body(body: Body) -> RepoInfo:
    """The flatbuffer of a repo file."""
    root = root_table(body)
    spec = int(root.scalar(SPEC, "u1")[0])
    check_spec(body, spec)
    snapshots = _read_snapshots(root)
    ids = list(snapshots)
    branches = _read_refs(root, BRANCHES, ids)
    if "main" not in branches:
        raise body.corrupt("it has no branch main")
    updates = _read_updates(root)
    if not updates:
        raise body.corrupt("its operations log is empty")
    status = root.child(STATUS)
    return RepoInfo(
        branches=branches,
        snapshots=snapshots,
        updates=updates,
        status=_read_statuses(status)[0],
        tags=_read_refs(root, TAGS, ids),
        deleted_tags=frozenset(_read_names(root, DELETED_TAGS)),
        metadata=read_items(root, METADATA)[0],
        updates_before=texts_of(body, root.strings(UPDATES_BEFORE, required=False))[0],
        config=_find_bytes(root, CONFIG),
        enabled_flags=_read_flags(root, ENABLED),
        disabled_flags=_read_flags(root, DISABLED),
        extra=_find_bytes(root, EXTRA),
        spec_version=spec,
    )


def _id_texts(tables: Tables, slot: int) -> list[ObjectId]:
    return _texts(tables.struct(slot, 12))


def _texts(ids: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> list[ObjectId]:
    if len(ids) <= _FEW:
        return [encode_base32(row.tobytes()) for row in ids]
    characters = encode_base32_column(ids)
    width = characters.shape[1]
    whole = characters.tobytes().decode("ascii")
    return [whole[start : start + width] for start in range(0, len(whole), width)]


def _read_snapshots(root: Tables) -> dict[ObjectId, SnapshotRecord]:
    body = root.body
    infos, _ = root.tables(SNAPSHOTS)
    ids = _id_texts(infos, 0)
    # The schema's default is 0, the first entry. -1 means that there is no parent.
    parents = infos.scalar(1, "<i4", default=0)
    if len(ids) and (int(parents.min()) < -1 or int(parents.max()) >= len(ids)):
        raise body.corrupt("a snapshot has a parent that is not listed")
    if len(set(ids)) != len(ids):
        raise body.corrupt("a snapshot is listed twice")
    times = infos.scalar(2, "<u8").tolist()
    messages = texts_of(body, infos.strings(3))
    metadata = read_items(infos, 4)
    pruned = infos.vectors(5, 12, 1, required=False)
    pruned_ids = _texts(body.read_bytes(item_positions(body, pruned, 12), 12))
    bounds = pruned.bounds().tolist()
    return {
        snapshot_id: SnapshotRecord(
            snapshot_id,
            None if parent < 0 else ids[parent],
            times[row],
            messages[row] or "",
            metadata[row],
            tuple(pruned_ids[bounds[row] : bounds[row + 1]]),
        )
        for row, (snapshot_id, parent) in enumerate(zip(ids, parents.tolist(), strict=True))
    }


def _read_refs(root: Tables, slot: int, ids: list[ObjectId]) -> dict[str, ObjectId]:
    refs, _ = root.tables(slot)
    names = texts_of(root.body, refs.strings(0))
    targets = refs.scalar(1, "<u4").tolist()
    if targets and max(targets) >= len(ids):
        raise root.body.corrupt("a ref points to a snapshot that is not listed")
    return {name or "": ids[target] for name, target in zip(names, targets, strict=True)}


def _read_names(root: Tables, slot: int) -> list[str]:
    """A vector of strings."""
    body = root.body
    at = item_positions(body, root.vectors(slot, 4, 4), 4)
    heads = at + body.read(at, "<u4")
    names = []
    for head, count in zip(heads.tolist(), body.read(heads, "<u4").tolist(), strict=True):
        raw = body.data[head + 4 : head + 4 + count]
        if len(raw) != count:
            raise body.corrupt("a string reaches outside the file")
        try:
            names.append(raw.decode())
        except UnicodeDecodeError as error:
            raise body.corrupt("a string is not UTF-8") from error
    return names


def _read_flags(root: Tables, slot: int) -> frozenset[int]:
    at = item_positions(root.body, root.vectors(slot, 2, 2, required=False), 2)
    return frozenset(root.body.read(at, "<u2").tolist())


def _find_bytes(root: Tables, slot: int) -> bytes | None:
    vectors = root.vectors(slot, 1, 1, required=False)
    start = int(vectors.starts[0])
    return None if start < 0 else root.body.data[start : start + int(vectors.counts[0])]


def _read_statuses(tables: Tables) -> list[StatusRecord]:
    codes = tables.scalar(0, "u1").tolist()
    times = tables.scalar(1, "<u8").tolist()
    reasons = texts_of(tables.body, tables.strings(2, required=False))
    if any(code not in list(Availability) for code in codes):
        raise tables.body.corrupt("it has an unknown status")
    return [StatusRecord(Availability(c), t, reason) for c, t, reason in zip(codes, times, reasons, strict=True)]


def _read_updates(root: Tables) -> tuple[UpdateRecord, ...]:
    body = root.body
    updates, _ = root.tables(UPDATES)
    kinds = updates.scalar(0, "u1")
    if not bool(np.isin(kinds, list(UpdateKind)).all()):
        unknown = sorted(set(kinds.tolist()) - set(UpdateKind))
        raise UnknownFormatError(
            f"the operations log has entries of the unknown types {unknown}. Upgrade icefloe", types=unknown
        )
    times = updates.scalar(2, "<u8").tolist()
    backups = texts_of(body, updates.strings(3, required=False))
    targets = updates.targets(1, required=True)
    made: list[UpdateRecord | None] = [None] * len(updates)
    for kind in UpdateKind:
        rows = np.flatnonzero(kinds == kind)
        if len(rows) == 0:
            continue
        details = _DETAIL_READERS.get(kind, _read_plain)(Tables(body, targets[rows]))
        for row, facts in zip(rows.tolist(), details, strict=True):
            made[row] = UpdateRecord(kind, times[row], backups[row], **facts)  # type: ignore[arg-type]
    return tuple(update for update in made if update is not None)


Facts = dict[str, object]


def _read_plain(tables: Tables) -> list[Facts]:
    return [{} for _ in range(len(tables))]


def _read_migrated(tables: Tables) -> list[Facts]:
    pairs = zip(tables.scalar(0, "u1").tolist(), tables.scalar(1, "u1").tolist(), strict=True)
    return [{"versions": pair} for pair in pairs]


def _named(tables: Tables) -> list[Facts]:
    return [{"name": name} for name in texts_of(tables.body, tables.strings(0))]


def _read_named_with(*fields: str) -> Callable[[Tables], list[Facts]]:
    """A name, then ids in the slots that follow."""

    def read(tables: Tables) -> list[Facts]:
        columns = [_id_texts(tables, slot) for slot in range(1, len(fields) + 1)]
        named = _named(tables)
        return [facts | dict(zip(fields, ids, strict=True)) for facts, *ids in zip(named, *columns, strict=True)]

    return read


def _read_detached(tables: Tables) -> list[Facts]:
    return [{"new_id": new_id} for new_id in _id_texts(tables, 0)]


def _read_flag(tables: Tables) -> list[Facts]:
    columns = (tables.scalar(0, "<u2").tolist(), tables.scalar(1, "u1").tolist(), tables.scalar(2, "u1").tolist())
    return [{"flag": FlagChange(flag, bool(value), bool(known))} for flag, value, known in zip(*columns, strict=True)]


def _read_status(tables: Tables) -> list[Facts]:
    return [{"status": status} for status in _read_statuses(tables.child(0))]


_DETAIL_READERS: dict[UpdateKind, Callable[[Tables], list[Facts]]] = {
    UpdateKind.REPO_MIGRATED: _read_migrated,
    UpdateKind.TAG_CREATED: _named,
    UpdateKind.TAG_DELETED: _read_named_with("previous_id"),
    UpdateKind.BRANCH_CREATED: _named,
    UpdateKind.BRANCH_DELETED: _read_named_with("previous_id"),
    UpdateKind.BRANCH_RESET: _read_named_with("previous_id"),
    UpdateKind.NEW_COMMIT: _read_named_with("new_id"),
    UpdateKind.COMMIT_AMENDED: _read_named_with("previous_id", "new_id"),
    UpdateKind.NEW_DETACHED_SNAPSHOT: _read_detached,
    UpdateKind.FEATURE_FLAG_CHANGED: _read_flag,
    UpdateKind.STATUS_CHANGED: _read_status,
}


_SPEC = 2


def encode_repo(info: RepoInfo) -> bytes:
    """A whole repo file."""
    return seal_body(encode_repo_body(info), FileType.REPO_INFO, _SPEC)


def encode_repo_body(info: RepoInfo) -> bytes:
    """Encode a repo file. Snapshots are numbered in the order of their ids."""
    writer = FlatWriter()
    fields: dict[int, FieldType] = {
        0: "u1",
        1: OFFSET_TYPE,
        2: OFFSET_TYPE,
        3: OFFSET_TYPE,
        4: OFFSET_TYPE,
        5: OFFSET_TYPE,
        7: OFFSET_TYPE,
    }
    if info.metadata:
        fields[6] = OFFSET_TYPE
    optional = {8: info.updates_before, 9: info.config, 12: info.extra}
    fields |= {slot: OFFSET_TYPE for slot, value in optional.items() if value is not None}
    flags = {10: info.enabled_flags, 11: info.disabled_flags}
    fields |= {slot: OFFSET_TYPE for slot, ids in flags.items() if ids}
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
        raise InvalidInputError(f"{what} points to snapshot {snapshot_id}, which is not in the repository")
    return numbers[snapshot_id]


def _write_refs(
    writer: FlatWriter, root: TableBlock, slot: int, refs: Mapping[str, ObjectId], numbers: Mapping[ObjectId, int]
) -> None:
    names = sorted(refs, key=str.encode)
    vector = writer.references(np.array([len(names)], dtype=np.int64))
    root.link(slot, vector.positions)
    block = writer.tables(len(names), {0: OFFSET_TYPE, 1: "<u4"})
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
    # An empty list of pruned logs is not written, so records with such a list need another table layout.
    for has_pruned in (False, True):
        rows = np.flatnonzero(pruned == has_pruned)
        if len(rows) == 0:
            continue
        picked = [records[row] for row in rows.tolist()]
        fields: dict[int, FieldType] = {0: 12, 1: "<i4", 2: "<u8", 3: OFFSET_TYPE, 4: OFFSET_TYPE}
        if has_pruned:
            fields[5] = OFFSET_TYPE
        block = writer.tables(len(picked), fields).set(0, object_ids([record.id for record in picked]))
        block.set(
            1,
            np.array(
                [
                    -1 if record.parent_id is None else _number(numbers, record.parent_id, f"snapshot {record.id}")
                    for record in picked
                ],
                dtype=np.int32,
            ),
        )
        block.set(2, np.array([record.flushed_at_us for record in picked], dtype=np.uint64))
        block.link(3, writer.texts([record.message for record in picked]))
        block.link(4, write_items(writer, [record.metadata for record in picked]).positions)
        if has_pruned:
            logs = object_ids([log for record in picked for log in record.pruned_logs])
            counts = np.array([len(record.pruned_logs) for record in picked], dtype=np.int64)
            block.link(5, writer.vectors(logs.tobytes(), counts, 12, 1))
        positions[rows] = block.positions
    vector.link(positions)


def _write_statuses(writer: FlatWriter, statuses: Sequence[StatusRecord]) -> Positions:
    positions = np.empty(len(statuses), dtype=np.int64)
    reasoned = np.array([status.reason is not None for status in statuses], dtype=np.bool_)
    for has_reason in (False, True):
        rows = np.flatnonzero(reasoned == has_reason)
        if len(rows) == 0:
            continue
        picked = [statuses[row] for row in rows.tolist()]
        fields: dict[int, FieldType] = {0: "u1", 1: "<u8"}
        if has_reason:
            fields[2] = OFFSET_TYPE
        block = writer.tables(len(picked), fields)
        block.set(0, np.array([status.availability for status in picked], dtype=np.uint8))
        block.set(1, np.array([status.set_at_us for status in picked], dtype=np.uint64))
        if has_reason:
            block.link(2, writer.texts([status.reason or "" for status in picked]))
        positions[rows] = block.positions
    return positions


def _write_updates(writer: FlatWriter, root: TableBlock, updates: Sequence[UpdateRecord]) -> None:
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
        fields: dict[int, FieldType] = {0: "u1", 1: OFFSET_TYPE, 2: "<u8"}
        if has_backup:
            fields[3] = OFFSET_TYPE
        block = writer.tables(len(rows), fields).set(0, kinds[rows])
        block.set(2, np.array([updates[row].at_us for row in rows.tolist()], dtype=np.uint64))
        if has_backup:
            block.link(3, writer.texts([updates[row].backup or "" for row in rows.tolist()]))
        positions[rows] = block.positions
        blocks.append((block, rows))
    vector.link(positions)
    for kind in np.unique(kinds).tolist():
        rows = np.flatnonzero(kinds == kind)
        details[rows] = _DETAIL_WRITERS.get(UpdateKind(kind), _write_plain)(
            writer, [updates[row] for row in rows.tolist()]
        )
    for block, rows in blocks:
        block.link(1, details[rows])


Details = Callable[[FlatWriter, Sequence[UpdateRecord]], Positions]


def _write_plain(writer: FlatWriter, updates: Sequence[UpdateRecord]) -> Positions:
    return writer.tables(len(updates), {}).positions


def _write_migrated(writer: FlatWriter, updates: Sequence[UpdateRecord]) -> Positions:
    pairs = np.array([update.versions or (0, 0) for update in updates], dtype=np.uint8)
    return writer.tables(len(updates), {0: "u1", 1: "u1"}).set(0, pairs[:, 0]).set(1, pairs[:, 1]).positions


def _write_named_with(*fields: str) -> Details:
    """A name, then ids in the slots that follow."""

    def write(writer: FlatWriter, updates: Sequence[UpdateRecord]) -> Positions:
        kinds: dict[int, FieldType] = {0: OFFSET_TYPE, **dict.fromkeys(range(1, len(fields) + 1), 12)}
        block = writer.tables(len(updates), kinds)
        for slot, name in enumerate(fields, start=1):
            block.set(slot, object_ids([getattr(update, name) for update in updates]))
        return block.link(0, writer.texts([update.name or "" for update in updates])).positions

    return write


def _write_detached(writer: FlatWriter, updates: Sequence[UpdateRecord]) -> Positions:
    ids = object_ids([update.new_id or "" for update in updates])
    return writer.tables(len(updates), {0: 12}).set(0, ids).positions


def _write_flag(writer: FlatWriter, updates: Sequence[UpdateRecord]) -> Positions:
    changes = [update.flag for update in updates if update.flag is not None]
    block = writer.tables(len(changes), {0: "<u2", 1: "u1", 2: "u1"})
    block.set(0, np.array([change.flag_id for change in changes], dtype=np.uint16))
    block.set(1, np.array([change.value for change in changes], dtype=np.uint8))
    return block.set(2, np.array([change.is_set for change in changes], dtype=np.uint8)).positions


def _write_status(writer: FlatWriter, updates: Sequence[UpdateRecord]) -> Positions:
    block = writer.tables(len(updates), {0: OFFSET_TYPE})
    statuses = _write_statuses(writer, [update.status for update in updates if update.status is not None])
    return block.link(0, statuses).positions


_DETAIL_WRITERS: dict[UpdateKind, Details] = {
    UpdateKind.REPO_MIGRATED: _write_migrated,
    UpdateKind.TAG_CREATED: _write_named_with(),
    UpdateKind.TAG_DELETED: _write_named_with("previous_id"),
    UpdateKind.BRANCH_CREATED: _write_named_with(),
    UpdateKind.BRANCH_DELETED: _write_named_with("previous_id"),
    UpdateKind.BRANCH_RESET: _write_named_with("previous_id"),
    UpdateKind.NEW_COMMIT: _write_named_with("new_id"),
    UpdateKind.COMMIT_AMENDED: _write_named_with("previous_id", "new_id"),
    UpdateKind.NEW_DETACHED_SNAPSHOT: _write_detached,
    UpdateKind.FEATURE_FLAG_CHANGED: _write_flag,
    UpdateKind.STATUS_CHANGED: _write_status,
}


def public_status(status: StatusRecord) -> RepoStatus:
    """The status of a repository."""
    return RepoStatus(RepoAvailability(status.availability.value), from_microseconds(status.set_at_us), status.reason)


def list_flags(settings: Mapping[str, bool | None]) -> list[FeatureFlag]:
    """Every known flag. All are on by default."""
    return [FeatureFlag(FLAGS[name], name, True, setting) for name, setting in settings.items()]


def public_update(update: UpdateRecord) -> Update:
    """An entry of the operations log."""
    return Update(_KINDS[update.kind](update), from_microseconds(update.at_us), update.backup)


def _text(value: str | None) -> str:
    """A field that the decoder guarantees for this kind of update."""
    assert value is not None
    return value


def _migrated(update: UpdateRecord) -> UpdateType:
    assert update.versions is not None
    return public.RepoMigrated(*update.versions)


def _flag(update: UpdateRecord) -> UpdateType:
    assert update.flag is not None
    return public.FeatureFlagChanged(update.flag.flag_id, update.flag.value if update.flag.is_set else None)


def _status(update: UpdateRecord) -> UpdateType:
    assert update.status is not None
    return public.RepoStatusChanged(public_status(update.status))


_KINDS: Mapping[UpdateKind, Callable[[UpdateRecord], UpdateType]] = {
    UpdateKind.REPO_INITIALIZED: lambda u: public.RepoInitialized(),
    UpdateKind.REPO_MIGRATED: _migrated,
    UpdateKind.CONFIG_CHANGED: lambda u: public.ConfigChanged(),
    UpdateKind.METADATA_CHANGED: lambda u: public.MetadataChanged(),
    UpdateKind.TAG_CREATED: lambda u: public.TagCreated(_text(u.name)),
    UpdateKind.TAG_DELETED: lambda u: public.TagDeleted(_text(u.name), _text(u.previous_id)),
    UpdateKind.BRANCH_CREATED: lambda u: public.BranchCreated(_text(u.name)),
    UpdateKind.BRANCH_DELETED: lambda u: public.BranchDeleted(_text(u.name), _text(u.previous_id)),
    UpdateKind.BRANCH_RESET: lambda u: public.BranchReset(_text(u.name), _text(u.previous_id)),
    UpdateKind.NEW_COMMIT: lambda u: public.NewCommit(_text(u.name), _text(u.new_id)),
    UpdateKind.COMMIT_AMENDED: lambda u: public.CommitAmended(_text(u.name), _text(u.previous_id), _text(u.new_id)),
    UpdateKind.NEW_DETACHED_SNAPSHOT: lambda u: public.NewDetachedSnapshot(_text(u.new_id)),
    UpdateKind.GC_RAN: lambda u: public.GCRan(),
    UpdateKind.EXPIRATION_RAN: lambda u: public.ExpirationRan(),
    UpdateKind.FEATURE_FLAG_CHANGED: _flag,
    UpdateKind.STATUS_CHANGED: _status,
}


def describe_repo(info: RepoInfo, data: bytes) -> dict[str, Any]:
    """A repo file as plain data, in the layout that the official package prints."""
    header = parse_header(data)
    writer = header.writer.strip()
    name, _, version = writer.partition("-")
    described: dict[str, Any] = {
        "header": {
            "written_by": writer,
            "app_name": name,
            "app_version": version,
            "spec_version": f"{header.spec_version}.0",
            "file_type": "repo-info",
            "compression": "zstd" if header.compression else "none",
        },
        "spec_version": f"{info.spec_version}.0",
        "branches": dict(info.branches),
        "tags": dict(info.tags),
        "deleted_tags": sorted(info.deleted_tags),
        "snapshots": [_record(record) for record in info.snapshots.values()],
        "status": {
            "availability": info.status.availability.name.lower(),
            "set_at": _time(info.status.set_at_us),
            "limited_availability_reason": info.status.reason,
        },
        "metadata": decode_metadata(info.metadata, _SPEC),
        "latest_updates": [_update(update) for update in info.updates],
        "enabled_feature_flags": sorted(info.enabled_flags),
        "disabled_feature_flags": sorted(info.disabled_flags),
    }
    if info.config is not None:
        described["config"] = decode_flexible(info.config)
    if info.updates_before is not None:
        described["repo_before_updates"] = info.updates_before
    return described


def _record(record: SnapshotRecord) -> dict[str, Any]:
    described = {
        "id": record.id,
        "parent_id": record.parent_id,
        "flushed_at": _time(record.flushed_at_us),
        "message": record.message,
        "metadata": decode_metadata(record.metadata, _SPEC),
        "pruned_ancestor_tx_logs": list(record.pruned_logs),
    }
    return {key: value for key, value in described.items() if value not in (None, [])}


def _update(update: UpdateRecord) -> dict[str, Any]:
    kind = public_update(update).kind
    facts = {name: getattr(kind, name) for name in getattr(kind, "__dataclass_fields__", {})}
    if isinstance(kind, public.RepoStatusChanged):
        facts["status"] = kind.status.availability.name
    described: dict[str, Any] = {
        "update_type": {"type": f"{type(kind).__name__}Update", **facts},
        "updated_at": _time(update.at_us),
    }
    return described if update.backup is None else {**described, "backup_path": update.backup}


def _time(microseconds: int) -> str:
    return from_microseconds(microseconds).isoformat().replace("+00:00", "Z")
