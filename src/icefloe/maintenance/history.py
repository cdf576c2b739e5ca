"""The history of a whole repository: every ref, and every snapshot that refs lead to, each met once."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from icefloe.errors import SnapshotNotFoundError
from icefloe.ids import ObjectId
from icefloe.ledger.contract import HistoryChange
from icefloe.ledger.history_walk import walk_history
from icefloe.maintenance.reading import Reading, Refs, fetch_all_refs
from icefloe.model.snapshot import SnapshotInfo
from icefloe.session.engine import Engine


@dataclass(frozen=True, slots=True)
class History:
    """Refs, and the snapshots they lead to; parents say how."""

    refs: Refs
    snapshots: Mapping[ObjectId, SnapshotInfo]
    detached: Mapping[ObjectId, SnapshotInfo] = field(default_factory=dict)
    """Snapshots that the repository lists although no ref leads to them."""
    misquoted: Mapping[ObjectId, ObjectId] = field(default_factory=dict)
    """Snapshots, and their parents, that some descendants quote with a parent that is no longer there."""

    def chain(self, start: ObjectId) -> list[SnapshotInfo]:
        """A snapshot and its ancestors, newest first."""
        found: list[SnapshotInfo] = []
        current: ObjectId | None = start
        while current is not None:
            info = self.snapshots.get(current)
            if info is None:
                raise SnapshotNotFoundError(f"the history of {start} leads to {current}, which is not there")
            found.append(info)
            current = info.parent_id
        return found

    def roots(self) -> set[ObjectId]:
        """The snapshots without a parent."""
        return {info.id for info in self.snapshots.values() if info.parent_id is None}


async def fetch_history(reading: Reading) -> History:
    """The history of a repository as it is now."""
    existing = await _fetch_existing(reading)
    refs = await fetch_all_refs(reading.ledger)
    listed = await reading.ledger.fetch_listed()
    found: dict[ObjectId, SnapshotInfo] = {}
    if listed is not None:
        _follow_listed(refs, listed, found)
        return History(refs, found, {key: info for key, info in listed.items() if key not in found})
    misquoted: dict[ObjectId, ObjectId] = {}
    for start in sorted(refs.targets()):
        if start in found:
            continue
        previous: ObjectId | None = None
        async with aclosing(_walk(reading, start, existing)) as walk:  # type: ignore[type-var]
            async for info in walk:
                if previous is None and info.id != start:
                    # The first snapshot of some early repositories has another id than its file: refs name the file.
                    info = dataclasses.replace(info, id=start)
                # A quoted entry may name a parent that was collected since: what is walked next is the parent.
                if previous is not None and found[previous].parent_id != info.id:
                    misquoted[previous] = info.id
                    found[previous] = _with_parent(found[previous], info.id)
                if info.id in found:
                    break
                found[info.id] = info
                previous = info.id
    if existing is None:
        return History(refs, found)
    for start in refs.targets():
        quoted = (await reading.archive.fetch_snapshot(start)).history
        misquoted.update(_find_contradictions(quoted, found))
    return History(refs, found, misquoted=misquoted)


async def correct_quotes(engine: Engine, reading: Reading) -> None:
    """Where snapshots quote ancestors that are gone, write anew who their ancestors are."""
    misquoted = (await fetch_history(reading)).misquoted
    if misquoted:
        await engine.ledger.change_parents(HistoryChange(frozenset(), misquoted))


def _find_contradictions(
    quoted: Sequence[SnapshotInfo], found: Mapping[ObjectId, SnapshotInfo]
) -> dict[ObjectId, ObjectId]:
    """Snapshots that are quoted with another parent: somebody died while changing it."""
    contradicted = {}
    for entry in quoted:
        known = found[entry.id].parent_id if entry.id in found else None
        if known is not None and entry.parent_id is not None and known != entry.parent_id:
            contradicted[entry.id] = known
    return contradicted


def _follow_listed(refs: Refs, listed: Mapping[ObjectId, SnapshotInfo], found: dict[ObjectId, SnapshotInfo]) -> None:
    for start in refs.targets():
        current: ObjectId | None = start
        while current is not None and current not in found:
            if current not in listed:
                raise SnapshotNotFoundError(
                    f"the history of {start} leads to {current}, which the repository does not list",
                    snapshot_id=current,
                )
            found[current] = listed[current]
            current = listed[current].parent_id


async def _fetch_existing(reading: Reading) -> Container[ObjectId] | None:
    """Ids of the snapshot files, where snapshots quote each other and might quote one that is gone."""
    if not reading.format.capabilities.history_in_snapshot:
        return None
    names = await reading.storage.list_names(reading.format.snapshots_folder)
    return {name.removesuffix(reading.format.metadata_extension) for name in names}


def _walk(reading: Reading, start: ObjectId, existing: Container[ObjectId] | None) -> AsyncIterator[SnapshotInfo]:
    if existing is None:
        return reading.ledger.ancestry(start)
    return walk_history(reading.archive, start, existing)


def _with_parent(info: SnapshotInfo, parent_id: ObjectId) -> SnapshotInfo:
    return SnapshotInfo(info.id, parent_id, info.written_at, info.message, info.metadata, info.manifests)
