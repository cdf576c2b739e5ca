"""The `repo` file as a value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from icefloe.errors import UnknownFormatError
from icefloe.formats.flat.body import Body
from icefloe.formats.flat.files import open_body
from icefloe.formats.flat.metadata_items import read_items
from icefloe.formats.flat.ragged import texts_of
from icefloe.formats.flat.tables import Tables, item_positions, root_table
from icefloe.formats.header import FileType
from icefloe.formats.icechunk2.repo_glance import check_spec
from icefloe.formats.icechunk2.repo_info import (
    BRANCHES,
    CONFIG,
    DELETED_TAGS,
    DISABLED,
    ENABLED,
    EXTRA,
    METADATA,
    SNAPSHOTS,
    SPEC,
    STATUS,
    TAGS,
    UPDATES,
    UPDATES_BEFORE,
    Availability,
    FlagChange,
    RepoInfo,
    RepoStatus,
    SnapshotRecord,
    Update,
    UpdateKind,
)
from icefloe.ids import ObjectId, encode_base32, encode_base32_column

_FEW = 20
"""Up to this many ids are quicker spelled one by one."""


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
    # The schema's default is 0: an absent parent is the first entry, none is -1.
    parents = infos.scalar(1, "<i4", default=0)
    if len(ids) and (int(parents.min()) < -1 or int(parents.max()) >= len(ids)):
        raise body.corrupt("a snapshot names a parent that is not listed")
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
        raise root.body.corrupt("a ref names a snapshot that is not listed")
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
    held = root.vectors(slot, 1, 1, required=False)
    start = int(held.starts[0])
    return None if start < 0 else root.body.data[start : start + int(held.counts[0])]


def _read_statuses(tables: Tables) -> list[RepoStatus]:
    codes = tables.scalar(0, "u1").tolist()
    times = tables.scalar(1, "<u8").tolist()
    reasons = texts_of(tables.body, tables.strings(2, required=False))
    if any(code not in list(Availability) for code in codes):
        raise tables.body.corrupt("it has an unknown status")
    return [RepoStatus(Availability(c), t, reason) for c, t, reason in zip(codes, times, reasons, strict=True)]


def _read_updates(root: Tables) -> tuple[Update, ...]:
    body = root.body
    updates, _ = root.tables(UPDATES)
    kinds = updates.scalar(0, "u1")
    if not bool(np.isin(kinds, list(UpdateKind)).all()):
        unknown = sorted(set(kinds.tolist()) - set(UpdateKind))
        raise UnknownFormatError(
            f"the operations log has entries of the unknown types {unknown}; upgrade icefloe", types=unknown
        )
    times = updates.scalar(2, "<u8").tolist()
    backups = texts_of(body, updates.strings(3, required=False))
    targets = updates.targets(1, required=True)
    made: list[Update | None] = [None] * len(updates)
    for kind in UpdateKind:
        rows = np.flatnonzero(kinds == kind)
        if len(rows) == 0:
            continue
        details = _DETAILS.get(kind, _plain)(Tables(body, targets[rows]))
        for row, facts in zip(rows.tolist(), details, strict=True):
            made[row] = Update(kind, times[row], backups[row], **facts)  # type: ignore[arg-type]
    return tuple(update for update in made if update is not None)


Facts = dict[str, object]


def _plain(tables: Tables) -> list[Facts]:
    return [{} for _ in range(len(tables))]


def _migrated(tables: Tables) -> list[Facts]:
    pairs = zip(tables.scalar(0, "u1").tolist(), tables.scalar(1, "u1").tolist(), strict=True)
    return [{"versions": pair} for pair in pairs]


def _named(tables: Tables) -> list[Facts]:
    return [{"name": name} for name in texts_of(tables.body, tables.strings(0))]


def _named_with(*fields: str) -> Callable[[Tables], list[Facts]]:
    """A name, then ids in the slots that follow."""

    def read(tables: Tables) -> list[Facts]:
        columns = [_id_texts(tables, slot) for slot in range(1, len(fields) + 1)]
        named = _named(tables)
        return [facts | dict(zip(fields, ids, strict=True)) for facts, *ids in zip(named, *columns, strict=True)]

    return read


def _detached(tables: Tables) -> list[Facts]:
    return [{"new_id": new_id} for new_id in _id_texts(tables, 0)]


def _flag(tables: Tables) -> list[Facts]:
    columns = (tables.scalar(0, "<u2").tolist(), tables.scalar(1, "u1").tolist(), tables.scalar(2, "u1").tolist())
    return [{"flag": FlagChange(flag, bool(value), bool(known))} for flag, value, known in zip(*columns, strict=True)]


def _status(tables: Tables) -> list[Facts]:
    return [{"status": status} for status in _read_statuses(tables.child(0))]


_DETAILS: dict[UpdateKind, Callable[[Tables], list[Facts]]] = {
    UpdateKind.REPO_MIGRATED: _migrated,
    UpdateKind.TAG_CREATED: _named,
    UpdateKind.TAG_DELETED: _named_with("previous_id"),
    UpdateKind.BRANCH_CREATED: _named,
    UpdateKind.BRANCH_DELETED: _named_with("previous_id"),
    UpdateKind.BRANCH_RESET: _named_with("previous_id"),
    UpdateKind.NEW_COMMIT: _named_with("new_id"),
    UpdateKind.COMMIT_AMENDED: _named_with("previous_id", "new_id"),
    UpdateKind.NEW_DETACHED_SNAPSHOT: _detached,
    UpdateKind.FEATURE_FLAG_CHANGED: _flag,
    UpdateKind.STATUS_CHANGED: _status,
}
