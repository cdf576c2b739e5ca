"""Rebase a change set over commits that were made in the meantime: conflicts, solvers, false conflicts.

During an expiry, the log of a kept snapshot also contains the changes of its expired ancestors, so that no change is
missing. A writer based on one of these ancestors would see its own changes as conflicts. Such conflicts are dropped.
"""

from __future__ import annotations

import enum
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.chunks.reader import ChunkLookup
from icefloe.display.card import ShownField, WithFields
from icefloe.errors import RebaseFailedError, printable
from icefloe.ids import NodeId
from icefloe.manifests.chunk_columns import find_rows
from icefloe.metadata_files import MetadataFiles
from icefloe.model.chunk_table import ChunkKind, rows_inside
from icefloe.model.snapshot import ArrayNode, Extents, GroupNode, Node, Snapshot, TransactionLog
from icefloe.model.zarr_document import parent_path, parse_document, parse_grid, subtree_bounds
from icefloe.session.change_set import ChangeSet, ChangeSummary, summarise
from icefloe.session.session_state import Tree, renumber_rebased

Coordinates = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class TouchedChunks:
    """Chunks that a change may have touched: known coordinates, and boxes that may hold more."""

    ndim: int
    known: Coordinates | None = None
    boxes: tuple[Extents, ...] = ()

    @property
    def coords(self) -> Coordinates:
        """The known coordinates, and the first corner of every box."""
        corners = np.array([[first for first, _ in box] for box in self.boxes], dtype=np.uint32)
        corners = corners.reshape(len(self.boxes), self.ndim)
        return corners if self.known is None else np.concatenate([self.known, corners])

    def common(self, other: TouchedChunks) -> Coordinates:
        """Chunks that both may have written. For two overlapping boxes, the first corner of the overlap."""
        found = []
        if self.known is not None and other.known is not None and self.known.shape[1] == other.known.shape[1]:
            found.append(_common_rows(self.known, other.known))
        if self.known is not None:
            found.append(self.known[_inside(self.known, other.boxes)])
        if other.known is not None and other.known.shape[1] == self.ndim:
            found.append(other.known[_inside(other.known, self.boxes)])
        found.append(_shared_corners(self.boxes, other.boxes, self.ndim))
        return np.unique(np.concatenate(found), axis=0).astype(np.uint32, copy=False)

    def outside(self, box: Extents) -> Coordinates:
        """Chunks that are not in a box; of boxes that are not wholly in it, the last corner."""
        found = []
        if self.known is not None and self.known.shape[1] == self.ndim:
            found.append(self.known[~_inside(self.known, (box,))])
        corners = [[end - 1 for _, end in each] for each in self.boxes]
        last = np.array(corners, dtype=np.uint32).reshape(len(corners), self.ndim)
        return np.concatenate([*found, last[~_inside(last, (box,))]])


def _common_rows(ours: Coordinates, theirs: Coordinates) -> Coordinates:
    if ours.shape[1] == 0:
        return ours[: min(len(ours), len(theirs))]
    row = np.dtype((np.void, ours.dtype.itemsize * ours.shape[1]))
    mine = np.ascontiguousarray(ours).view(row).ravel()
    other = np.ascontiguousarray(theirs.astype(np.uint32)).view(row).ravel()
    return ours[np.isin(mine, other)]


def _inside(coords: Coordinates, boxes: tuple[Extents, ...]) -> npt.NDArray[np.bool_]:
    inside = np.zeros(len(coords), dtype=bool)
    for box in boxes:
        inside |= rows_inside(coords, [first for first, _ in box], [end for _, end in box])
    return inside


def _shared_corners(ours: tuple[Extents, ...], theirs: tuple[Extents, ...], ndim: int) -> Coordinates:
    mine = np.array(ours, dtype=np.int64).reshape(len(ours), 1, ndim, 2)
    other = np.array(theirs, dtype=np.int64).reshape(1, len(theirs), ndim, 2)
    first = np.maximum(mine[..., 0], other[..., 0])
    end = np.minimum(mine[..., 1], other[..., 1])
    corners: Coordinates = first[(first < end).all(axis=-1)].astype(np.uint32)
    return corners


async def drop_false_conflicts(
    log: TransactionLog, base: Snapshot, changes: ChangeSet, theirs: Snapshot, metadata_files: MetadataFiles
) -> TransactionLog:
    """The log without chunks that we changed and whose references did not change. Reads only if both list a chunk."""
    log = await _drop_beside_parts(_list_ours(log, base, changes), base, changes, metadata_files)
    suspects = _find_common(log, base, changes)
    if not suspects:
        return log
    before = {node.id: node for node in base.nodes.values() if node.id in suspects}
    after = {node.id: node for node in theirs.nodes.values() if node.id in suspects}
    lookup, chunks = ChunkLookup(metadata_files), dict(log.updated_chunks)
    for node_id, coords in suspects.items():
        was, now = before.get(node_id), after.get(node_id)
        if isinstance(was, ArrayNode) and isinstance(now, ArrayNode):
            unchanged = await _find_unchanged(was, now, coords, lookup)
            left = chunks.pop(node_id)
            left = left[~np.isin(_rows(left), _rows(unchanged))]
            if len(left):
                chunks[node_id] = left
    return replace(log, updated_chunks=chunks)


async def _drop_beside_parts(
    log: TransactionLog, base: Snapshot, changes: ChangeSet, metadata_files: MetadataFiles
) -> TransactionLog:
    """The log without chunks that are in the box of a part of ours but were not written by it.

    A part is known by its box. Which chunks of it were written is read from its manifest, if the log names some in it.
    """
    met = {
        node_id: (logged, near)
        for node_id, parts in changes.parts.items()
        if (logged := log.updated_chunks.get(node_id)) is not None and logged.shape[1] == len(parts[0].extents)
        if (near := [part for part in parts if _inside(logged, (part.box,)).any()])
    }
    if not met:
        return log
    ours, chunks = summarise(base, changes).chunks, dict(log.updated_chunks)
    for node_id, (logged, near) in met.items():
        written = [ours[node_id]] if node_id in ours else []
        written += [each.coords() for each in changes.cleared.get(node_id, ())]
        for part in near:
            manifest = await metadata_files.fetch_manifest(part.manifest_id)
            written.append(manifest.tables[node_id].coords)
        inside = _inside(logged, tuple(part.box for part in near))
        kept = ~inside | np.isin(_rows(logged), np.concatenate([_rows(each.astype(np.uint32)) for each in written]))
        chunks[node_id] = logged[kept]
    return replace(log, updated_chunks=chunks)


def _list_ours(log: TransactionLog, base: Snapshot, changes: ChangeSet) -> TransactionLog:
    """The log with our chunks that are in a box instead of the box, for arrays of which we know every chunk.

    A box is what a worker may have written. Which chunks of it were written is found by comparing references.
    """
    known = {
        node_id
        for node_id, edits in changes.edits.items()
        if node_id in log.updated_boxes and edits.base_box is None and node_id not in changes.parts
    } - changes.cleared.keys()
    if not known:
        return log
    ours, chunks, boxes = summarise(base, changes).chunks, dict(log.updated_chunks), dict(log.updated_boxes)
    for node_id in known & ours.keys():
        written, logged = ours[node_id], boxes.pop(node_id)
        if any(len(box) != written.shape[1] for box in logged):
            boxes[node_id] = logged
            continue
        inside = written[_inside(written, logged)]
        listed = chunks.get(node_id)
        chunks[node_id] = inside if listed is None else np.unique(np.concatenate([listed, inside]), axis=0)
    return replace(log, updated_chunks=chunks, updated_boxes=boxes)


def _find_common(log: TransactionLog, base: Snapshot, changes: ChangeSet) -> dict[NodeId, Coordinates]:
    """Chunks that the log names and that we wrote, or cut off by making their array smaller, by array."""
    if not any(node_id in log.updated_chunks for node_id in changes.edits):
        return {}
    ours = summarise(base, changes).chunks
    found = {}
    for node_id, edits in changes.edits.items():
        logged = log.updated_chunks.get(node_id)
        if logged is None or not len(logged):
            continue
        theirs = TouchedChunks(logged.shape[1], logged)
        written = ours.get(node_id)
        both = [] if edits.base_box is None else [theirs.outside(edits.base_box)]
        if written is not None and written.shape[1] == logged.shape[1]:
            both.append(TouchedChunks(logged.shape[1], written).common(theirs))
        coords = np.unique(np.concatenate(both), axis=0).astype(np.uint32, copy=False) if both else logged[:0]
        if len(coords):
            found[node_id] = coords
    return found


def _rows(coords: Coordinates) -> npt.NDArray[np.void]:
    """Each chunk as one value; the one chunk of an array without dimensions is equal to itself."""
    columns = np.ascontiguousarray(coords if coords.shape[1] else np.zeros((len(coords), 1), dtype=np.uint32))
    return columns.view(f"V{columns.itemsize * columns.shape[1]}").ravel()


async def _find_unchanged(was: ArrayNode, now: ArrayNode, coords: Coordinates, lookup: ChunkLookup) -> Coordinates:
    box = tuple((int(first), int(last) + 1) for first, last in zip(coords.min(axis=0), coords.max(axis=0), strict=True))
    old_refs, fresh = await lookup.table(was, box), await lookup.table(now, box)
    before, after = find_rows(old_refs, coords), find_rows(fresh, coords)
    there = (before >= 0) & (after >= 0)
    coords, before, after = coords[there], before[there], after[there]
    alike = (old_refs.kind[before] == fresh.kind[after]) & (old_refs.length[before] == fresh.length[after])
    kind, same = old_refs.kind[before], np.zeros(len(coords), dtype=bool)
    if old_refs.object_id is not None and fresh.object_id is not None:
        # Ids are random and never reused: every write of a chunk gives it a new id.
        same |= (kind == ChunkKind.NATIVE) & (old_refs.object_id[before] == fresh.object_id[after]).all(axis=1)
        same &= old_refs.offset[before] == fresh.offset[after]
    for place in np.flatnonzero(alike & (kind == ChunkKind.INLINE)).tolist():
        same[place] = old_refs.row(int(before[place])).data == fresh.row(int(after[place])).data
    unchanged: Coordinates = coords[same & alike]
    return unchanged


class ConflictType(enum.Enum):
    """The kind of a conflict. `str` gives it in words."""

    NewNodeConflictsWithExistingNode = (1,)
    NewNodeInInvalidGroup = (2,)
    ZarrMetadataDoubleUpdate = (3,)
    ZarrMetadataUpdateOfDeletedArray = (4,)
    ZarrMetadataUpdateOfDeletedGroup = (5,)
    ChunkDoubleUpdate = (6,)
    ChunksUpdatedInDeletedArray = (7,)
    ChunksUpdatedInUpdatedArray = (8,)
    DeleteOfUpdatedArray = (9,)
    DeleteOfUpdatedGroup = (10,)
    MoveOperationCannotBeRebased = (11,)

    @classmethod
    def _missing_(cls, value: object) -> ConflictType | None:
        return next((each for each in cls if each.value == (value,)), None)

    def __str__(self) -> str:
        return re.sub("(?<=[a-z])[A-Z]", lambda found: " " + found[0].lower(), self.name)


class VersionSelection(enum.Enum):
    """Whose version of a thing wins."""

    Fail = 0
    UseOurs = 1
    UseTheirs = 2


@dataclass(frozen=True, repr=False)
class Conflict(WithFields):
    """A conflict between the changes of a session and a commit that it missed.

    Parameters
    ----------
    conflict_type
        The kind of conflict.
    path
        The path of the node.
    conflicted_chunks
        The coordinates of the chunks in conflict, one row for each chunk. None if the conflict is not about chunks.

    Examples
    --------
    >>> str(Conflict(ConflictType.ZarrMetadataDoubleUpdate, "/temperature"))
    'ZarrMetadataDoubleUpdate at /temperature'
    """

    _full_name = "icechunk.conflicts.Conflict"

    conflict_type: ConflictType
    path: str
    chunk_coords: npt.NDArray[np.uint32] | None = field(default=None, compare=False)

    def __init__(
        self,
        conflict_type: ConflictType,
        path: str,
        conflicted_chunks: npt.NDArray[np.uint32] | Sequence[Sequence[int]] | None = None,
    ) -> None:
        object.__setattr__(self, "conflict_type", conflict_type)
        object.__setattr__(self, "path", path)
        coords = None if conflicted_chunks is None else np.asarray(conflicted_chunks, dtype=np.uint32)
        object.__setattr__(self, "chunk_coords", coords)

    @property
    def conflicted_chunks(self) -> list[list[int]] | None:
        """The coordinates of the chunks in conflict. None if the conflict is not about chunks."""
        return None if self.chunk_coords is None else self.chunk_coords.tolist()

    def _shown_fields(self) -> Iterator[ShownField]:
        for name in ("conflict_type", "path", "conflicted_chunks"):
            yield ShownField(name, getattr(self, name))

    def __str__(self) -> str:
        chunks = ""
        if self.chunk_coords is not None:
            shown = ", ".join(str(c) for c in self.chunk_coords[:3].tolist())
            chunks = f" ({len(self.chunk_coords)} chunk(s): {shown}{', ...' if len(self.chunk_coords) > 3 else ''})"
        return printable(f"{self.conflict_type.name} at {self.path}{chunks}")


class ConflictSolver(ABC):
    """Decides conflicts during a rebase. Subclass it and implement `resolve` for your own rules.

    Examples
    --------
    >>> import icefloe
    >>> class KeepOurs(icefloe.ConflictSolver):
    ...     def resolve(self, conflict):
    ...         return icefloe.VersionSelection.UseOurs
    """

    @abstractmethod
    def resolve(self, conflict: Conflict) -> VersionSelection:
        """Decide one conflict.

        Parameters
        ----------
        conflict
            The conflict.

        Returns
        -------
        VersionSelection
            `UseOurs` keeps the changes of the session. `UseTheirs` keeps those of the missed commit. `Fail` stops the
            rebase.

        Examples
        --------
        >>> import icefloe
        >>> conflict = icefloe.Conflict(icefloe.ConflictType.ChunkDoubleUpdate, "/temperature")
        >>> icefloe.ConflictDetector().resolve(conflict)
        <VersionSelection.Fail: ...>
        """

    def resolve_all(self, conflicts: Sequence[Conflict]) -> list[VersionSelection]:
        """Decide all conflicts with one missed commit.

        Parameters
        ----------
        conflicts
            The conflicts.

        Returns
        -------
        list of VersionSelection
            The decision for each conflict.

        Examples
        --------
        >>> import icefloe
        >>> conflict = icefloe.Conflict(icefloe.ConflictType.ChunkDoubleUpdate, "/temperature")
        >>> icefloe.ConflictDetector().resolve_all([conflict])
        [<VersionSelection.Fail: ...>]
        """
        return [self.resolve(conflict) for conflict in conflicts]


class ConflictDetector(ConflictSolver):
    """A solver that solves no conflict. A rebase with a conflict fails, and the error lists all conflicts.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> session.rebase(icefloe.ConflictDetector())
    """

    def resolve(self, conflict: Conflict) -> VersionSelection:
        """Decide one conflict.

        Parameters
        ----------
        conflict
            The conflict.

        Returns
        -------
        VersionSelection
            Always `Fail`.

        Examples
        --------
        >>> import icefloe
        >>> conflict = icefloe.Conflict(icefloe.ConflictType.ChunkDoubleUpdate, "/temperature")
        >>> icefloe.ConflictDetector().resolve(conflict)
        <VersionSelection.Fail: ...>
        """
        return VersionSelection.Fail


@dataclass(frozen=True)
class BasicConflictSolver(ConflictSolver):
    """Solves chunk conflicts by a fixed choice, and lets deletes win unless told to fail.

    Parameters
    ----------
    on_chunk_conflict
        Whose chunk wins when both wrote it.
    fail_on_delete_of_updated_array, fail_on_delete_of_updated_group
        Fail when the session deletes something that changed in between; otherwise the delete goes through.

    Examples
    --------
    >>> import icefloe
    >>> icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseTheirs).on_chunk_conflict.name
    'UseTheirs'
    """

    on_chunk_conflict: VersionSelection = VersionSelection.UseOurs
    fail_on_delete_of_updated_array: bool = False
    fail_on_delete_of_updated_group: bool = False

    def resolve(self, conflict: Conflict) -> VersionSelection:
        """Decide one conflict.

        Parameters
        ----------
        conflict
            The conflict.

        Returns
        -------
        VersionSelection
            Whose version is kept, or `Fail` for conflicts that the solver does not decide.

        Examples
        --------
        >>> import icefloe
        >>> conflict = icefloe.Conflict(icefloe.ConflictType.ChunkDoubleUpdate, "/temperature")
        >>> icefloe.BasicConflictSolver().resolve(conflict)
        <VersionSelection.UseOurs: ...>
        """
        kind = conflict.conflict_type
        if kind is ConflictType.ChunkDoubleUpdate:
            return self.on_chunk_conflict
        if kind is ConflictType.ChunksUpdatedInUpdatedArray:
            return VersionSelection.UseOurs
        if kind is ConflictType.DeleteOfUpdatedArray and not self.fail_on_delete_of_updated_array:
            return VersionSelection.UseOurs
        if kind is ConflictType.DeleteOfUpdatedGroup and not self.fail_on_delete_of_updated_group:
            return VersionSelection.UseOurs
        return VersionSelection.Fail


@dataclass(frozen=True, slots=True)
class _Clash:
    """A conflict with the node it is about, so that its solution can be carried out."""

    conflict: Conflict
    node_id: NodeId
    impossible: frozenset[VersionSelection] = frozenset()
    """Choices that would keep chunks whose cells mean something else by now."""


def rebase_over(
    base: Snapshot,
    changes: ChangeSet,
    theirs: Snapshot,
    log: TransactionLog,
    solver: ConflictSolver,
    *,
    official_rules: bool = False,
) -> ChangeSet:
    """The same changes, on top of `theirs`, a child of `base` that made the changes in `log`.

    By the rules of the official package, nothing is rebased over a move, and chunks cannot be written in an array whose
    metadata has changed, whatever has changed in it.
    """
    if official_rules and log.moves:
        conflict = Conflict(ConflictType.MoveOperationCannotBeRebased, min(move.from_path for move in log.moves))
        raise RebaseFailedError(snapshot=theirs.id, conflicts=[conflict])
    changes = renumber_rebased(base, changes, theirs, log.new_arrays | log.new_groups)
    missed = _Missed(base, changes, theirs, log, any_update_conflicts=official_rules)
    ours = summarise(base, changes)
    dropped = _solve(list(_find_clashes(ours, missed)), ours, missed, solver)
    return _replay(ours, missed, dropped)


@dataclass(frozen=True, slots=True)
class _Missed:
    """The commit that landed in between, and where our nodes are in it."""

    base: Snapshot
    changes: ChangeSet
    theirs: Snapshot
    log: TransactionLog
    any_update_conflicts: bool = False
    """Whether any change of the metadata of an array conflicts with chunks that we wrote in it."""

    def path_of(self, node_id: NodeId) -> str:
        """The path in the new base of a node of the old one."""
        return self.moved_path(self.changes.origin[node_id])

    def moved_path(self, path: str) -> str:
        """Where the commit put what was at a path; others' logs name a moved group only, not what is below it."""
        moves = {move.from_path: move.to_path for move in self.log.moves}
        above: str | None = path
        while moves and above is not None:
            if above in moves:
                return moves[above] + path[len(above) :]
            above = parent_path(above)
        return path

    def find(self, node_id: NodeId) -> Node | None:
        """The node of the same id in the new base, or None when it was deleted there."""
        found = self.theirs.nodes.get(self.path_of(node_id))
        return found if found is not None and found.id == node_id else None

    def was(self, node_id: NodeId) -> Node:
        return self.base.nodes[self.changes.origin[node_id]]

    @property
    def clipped(self) -> dict[NodeId, Extents]:
        """Arrays that we made smaller, if only for a while, and what is still visible of their base."""
        return {key: box for key, edits in self.changes.edits.items() if (box := edits.base_box) is not None}

    @property
    def deleted(self) -> frozenset[NodeId]:
        return self.log.deleted_arrays | self.log.deleted_groups

    @property
    def updated(self) -> frozenset[NodeId]:
        return self.log.updated_arrays | self.log.updated_groups

    def was_moved(self, node_id: NodeId) -> bool:
        """Whether a node of the old base is somewhere else in the new one."""
        return self.path_of(node_id) != self.changes.origin[node_id]

    def gained_nodes(self, node_id: NodeId) -> bool:
        """Whether something was created in a group, or moved into it."""
        if not (self.log.new_arrays or self.log.new_groups or self.log.moves):
            return False
        before = {node.id for node in Tree(self.base, ChangeSet()).subtree(self.changes.origin[node_id])}
        return any(node.id not in before for node in Tree(self.theirs, ChangeSet()).subtree(self.path_of(node_id)))


def _find_clashes(ours: ChangeSummary, missed: _Missed) -> Iterator[_Clash]:
    yield from _clashes_of_new_nodes(ours, missed)
    yield from _clashes_of_updates(ours, missed)
    yield from _clashes_of_deletes(ours, missed)
    yield from _clashes_of_chunks(ours, missed)
    yield from _clashes_of_moves(ours, missed)


def _clashes_of_new_nodes(ours: ChangeSummary, missed: _Missed) -> Iterator[_Clash]:
    for node in ours.new.values():
        existing = missed.theirs.nodes.get(node.path)
        if _is_the_same_group(node, ours, missed):
            continue
        if existing is not None and not _vacated(existing, ours):
            yield _Clash(Conflict(ConflictType.NewNodeConflictsWithExistingNode, node.path), node.id)
        if not _parent_is_group(node.path, ours, missed):
            yield _Clash(Conflict(ConflictType.NewNodeInInvalidGroup, node.path), node.id)


def _clashes_of_updates(ours: ChangeSummary, missed: _Missed) -> Iterator[_Clash]:
    for node_id, node in ours.updated.items():
        if node_id in missed.deleted:
            kind = (
                ConflictType.ZarrMetadataUpdateOfDeletedArray
                if isinstance(node, ArrayNode)
                else ConflictType.ZarrMetadataUpdateOfDeletedGroup
            )
            yield _Clash(Conflict(kind, node.path), node_id)
        elif node_id in missed.updated:
            yield _Clash(Conflict(ConflictType.ZarrMetadataDoubleUpdate, node.path), node_id)
        elif isinstance(node, ArrayNode) and not _same_layout(missed.was(node_id), node):
            log = missed.log
            written = TouchedChunks(
                len(node.shape), log.updated_chunks.get(node_id), log.updated_boxes.get(node_id, ())
            ).coords
            if len(written):
                # Their chunks were written for the former layout, and are part of the branch already.
                conflict = Conflict(ConflictType.ChunksUpdatedInUpdatedArray, node.path, written)
                yield _Clash(conflict, node_id, frozenset(VersionSelection))


def _clashes_of_deletes(ours: ChangeSummary, missed: _Missed) -> Iterator[_Clash]:
    for node_id, node in ours.deleted.items():
        if node_id in missed.deleted:
            continue
        log = missed.log
        changed = node_id in missed.updated or node_id in log.updated_chunks or node_id in log.updated_boxes
        changed = changed or missed.was_moved(node_id)
        if isinstance(node, ArrayNode) and changed:
            yield _Clash(Conflict(ConflictType.DeleteOfUpdatedArray, node.path), node_id)
        elif isinstance(node, GroupNode) and (changed or missed.gained_nodes(node_id)):
            yield _Clash(Conflict(ConflictType.DeleteOfUpdatedGroup, node.path), node_id)


def _clashes_of_chunks(ours: ChangeSummary, missed: _Missed) -> Iterator[_Clash]:
    for node_id in ours.chunks.keys() | ours.boxes.keys() | missed.clipped.keys():
        if node_id in ours.new or node_id in ours.deleted:
            continue
        was = missed.was(node_id)
        assert isinstance(was, ArrayNode)
        written = TouchedChunks(len(was.shape), ours.chunks.get(node_id), ours.boxes.get(node_id, ()))
        if node_id in missed.deleted:
            yield _Clash(Conflict(ConflictType.ChunksUpdatedInDeletedArray, was.path, written.coords), node_id)
            continue
        if node_id in missed.updated:
            now = missed.find(node_id)
            fits = isinstance(now, ArrayNode) and _same_layout(was, now)
            if isinstance(now, ArrayNode) and (missed.any_update_conflicts or not fits or _leaves_grid(written, now)):
                impossible = frozenset() if fits else frozenset({VersionSelection.UseOurs})
                conflict = Conflict(ConflictType.ChunksUpdatedInUpdatedArray, was.path, written.coords)
                yield _Clash(conflict, node_id, impossible)
        log = missed.log
        theirs = TouchedChunks(len(was.shape), log.updated_chunks.get(node_id), log.updated_boxes.get(node_id, ()))
        both = written.common(theirs)
        if node_id in missed.clipped:
            both = np.concatenate([both, theirs.outside(missed.clipped[node_id])])
        if len(both):
            yield _Clash(Conflict(ConflictType.ChunkDoubleUpdate, was.path, both), node_id)


def _clashes_of_moves(ours: ChangeSummary, missed: _Missed) -> Iterator[_Clash]:
    for node_id, (origin, node) in ours.moved.items():
        existing = missed.theirs.nodes.get(node.path)
        taken = existing is not None and existing.id != node_id and not _vacated(existing, ours)
        moved_too = missed.path_of(node_id) not in (origin, node.path)
        gone = node_id in missed.deleted or not _parent_is_group(node.path, ours, missed)
        # What others put into the group would stay behind where no group is.
        left_behind = isinstance(node, GroupNode) and not gone and missed.gained_nodes(node_id)
        if taken or moved_too or gone or left_behind:
            yield _Clash(Conflict(ConflictType.MoveOperationCannotBeRebased, node.path), node_id)


def _is_the_same_group(node: Node, ours: ChangeSummary, missed: _Missed) -> bool:
    """Whether both made one group: writers of an empty repository all begin with its root."""
    existing = missed.theirs.nodes.get(node.path)
    if not isinstance(node, GroupNode) or not isinstance(existing, GroupNode) or _vacated(existing, ours):
        return False
    return (node.document, node.attributes) == (existing.document, existing.attributes)


def _vacated(existing: Node, ours: ChangeSummary) -> bool:
    return existing.id in ours.deleted or existing.id in ours.moved


def _parent_is_group(path: str, ours: ChangeSummary, missed: _Missed) -> bool:
    """Whether a node may be at this path: its parent was not deleted in between, and no array is above it."""
    above = parent_path(path)
    while above is not None:
        here = missed.changes.added.get(above)
        if here is None or here.id not in ours.new:
            here = missed.theirs.nodes.get(above)
        if here is not None:
            return isinstance(here, GroupNode)
        if above in missed.base.nodes:
            return False  # it was deleted or moved away in between
        above = parent_path(above)
    return True


def _same_layout(ours: Node, theirs: ArrayNode) -> bool:
    """Whether chunks written for one document mean the same under the other: only the size may differ."""
    if not isinstance(ours, ArrayNode) or len(ours.shape) != len(theirs.shape):
        return False
    if ours.document == theirs.document:
        return True
    was, now = parse_document(ours.document), parse_document(theirs.document)
    return _layout(was) == _layout(now) and _same_grid(was, now)


def _leaves_grid(written: TouchedChunks, now: ArrayNode) -> bool:
    """Whether chunks were written that the array, made smaller in between, no longer has."""
    grid = np.array(now.grid, dtype=np.int64)
    known = written.known is not None and bool((written.known >= grid).any())
    return known or any(end > n for box in written.boxes for (_, end), n in zip(box, now.grid, strict=True))


def _layout(parsed: Mapping[str, object]) -> tuple[object, ...]:
    return parsed.get("codecs"), parsed.get("data_type")


def _same_grid(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether the chunks that both grids have are the same cells. Chunks at the end may have been added."""
    if ours.get("chunk_grid") == theirs.get("chunk_grid"):
        return True
    if {ours["chunk_grid"]["name"], theirs["chunk_grid"]["name"]} != {"rectilinear"}:
        return False
    for left, right in zip(parse_grid(ours), parse_grid(theirs), strict=True):
        both = [each.each for each in (left, right) if not isinstance(each.each, int)]
        common = min(map(len, both), default=1)
        if any(left.length(index) != right.length(index) for index in range(common)):
            return False
    return True


@dataclass(slots=True)
class _Dropped:
    """Parts of our changes that gave way to theirs."""

    nodes: set[NodeId]
    updates: set[NodeId]
    deletes: set[NodeId]
    moves: set[NodeId]
    chunks: dict[NodeId, list[npt.NDArray[np.uint32]]]


def _solve(clashes: list[_Clash], ours: ChangeSummary, missed: _Missed, solver: ConflictSolver) -> _Dropped:
    """Ask the solver; whatever it fails makes the rebase fail as a whole."""
    conflicts = [clash.conflict for clash in clashes]
    answers = solver.resolve_all(conflicts) if conflicts else []
    unsolved = [
        clash.conflict
        for clash, answer in zip(clashes, answers, strict=True)
        if not _can(clash.conflict, answer)
        or answer in clash.impossible
        or (answer is VersionSelection.UseTheirs and _stays(clash, ours, missed))
    ]
    if unsolved:
        raise RebaseFailedError(snapshot=missed.theirs.id, conflicts=unsolved)
    shared = {node_id for node_id, node in ours.new.items() if _is_the_same_group(node, ours, missed)}
    dropped = _Dropped(shared, set(), set(), set(), {})
    for clash, answer in zip(clashes, answers, strict=True):
        if answer is VersionSelection.UseTheirs:
            _drop(clash, dropped)
    return dropped


def _stays(clash: _Clash, ours: ChangeSummary, missed: _Missed) -> bool:
    """Whether our version of chunks cannot be taken out: workers wrote it, or the array was made smaller."""
    is_about_chunks = clash.conflict.conflict_type is ConflictType.ChunkDoubleUpdate
    return is_about_chunks and (clash.node_id in ours.boxes or clash.node_id in missed.clipped)


def _can(conflict: Conflict, answer: VersionSelection) -> bool:
    """Whether the choice of a solver can be applied: a deleted parent cannot be restored."""
    if answer is VersionSelection.Fail:
        return False
    impossible_ours = (
        ConflictType.NewNodeInInvalidGroup,
        ConflictType.ZarrMetadataUpdateOfDeletedArray,
        ConflictType.ZarrMetadataUpdateOfDeletedGroup,
        ConflictType.ChunksUpdatedInDeletedArray,
        ConflictType.MoveOperationCannotBeRebased,
    )
    return answer is VersionSelection.UseTheirs or conflict.conflict_type not in impossible_ours


def _drop(clash: _Clash, dropped: _Dropped) -> None:
    kind = clash.conflict.conflict_type
    if kind in (ConflictType.NewNodeConflictsWithExistingNode, ConflictType.NewNodeInInvalidGroup):
        dropped.nodes.add(clash.node_id)
    elif kind in (ConflictType.DeleteOfUpdatedArray, ConflictType.DeleteOfUpdatedGroup):
        dropped.deletes.add(clash.node_id)
    elif kind is ConflictType.MoveOperationCannotBeRebased:
        dropped.moves.add(clash.node_id)
    elif clash.conflict.chunk_coords is not None:
        dropped.chunks.setdefault(clash.node_id, []).append(clash.conflict.chunk_coords)
    else:
        dropped.updates.add(clash.node_id)


def _replay(ours: ChangeSummary, missed: _Missed, dropped: _Dropped) -> ChangeSet:
    """The changes again, as operations on the new base."""
    theirs = missed.theirs
    result = ChangeSet()
    tree = Tree(theirs, result)
    for node_id in ours.deleted:
        now = missed.find(node_id)
        if now is None or node_id in dropped.deletes:
            continue
        for node in tree.subtree(now.path) if _took_all(node_id, ours, missed) else [now]:
            result.remove_node(theirs, node)
    kept_moves = {node_id: node for node_id, (_, node) in ours.moved.items() if node_id not in dropped.moves}
    moving = [(missed.find(node_id), node.path) for node_id, node in kept_moves.items()]
    for source, _ in moving:
        if source is not None:
            result.remove_node(theirs, source)
    for source, target in moving:
        if source is not None:
            result.place_node(theirs, replace(source, path=target))
    for node_id, node in ours.updated.items():
        if node_id not in dropped.updates:
            current = tree.find(node.path if node_id in kept_moves else missed.path_of(node_id))
            if current is not None and current.id == node_id:
                result.put_node(theirs, _with_document(current, node))
    for node_id, node in ours.new.items():
        if node_id not in dropped.nodes:
            existing = tree.find(node.path)
            if existing is not None:
                result.remove_node(theirs, existing)
            result.put_node(theirs, node)
    _replay_chunks(ours, missed, dropped, result)
    return result


def _took_all(node_id: NodeId, ours: ChangeSummary, missed: _Missed) -> bool:
    """Whether a group was deleted with all its content, so that nodes others added to it are deleted too."""
    origin = missed.changes.origin[node_id]
    first, end = subtree_bounds(origin)
    if any(first <= path < end for path in missed.changes.added):
        return False
    inside = Tree(missed.base, ChangeSet()).subtree(origin)
    return all(node.id in ours.deleted or node.id in ours.moved for node in inside)


def _replay_chunks(ours: ChangeSummary, missed: _Missed, dropped: _Dropped, result: ChangeSet) -> None:
    def is_gone(node_id: NodeId) -> bool:
        return node_id in dropped.nodes or (node_id not in ours.new and missed.find(node_id) is None)

    for node_id, parts in missed.changes.parts.items():
        if not is_gone(node_id):
            result.parts[node_id] = parts
            if node_id not in ours.new:
                result.origin.setdefault(node_id, missed.path_of(node_id))
    for node_id, cleared in missed.changes.cleared.items():
        if not is_gone(node_id):
            result.cleared[node_id] = cleared
            if node_id not in ours.new:
                result.origin.setdefault(node_id, missed.path_of(node_id))
    for node_id, buffer in missed.changes.edits.items():
        if is_gone(node_id):
            continue
        if node_id in dropped.chunks or node_id not in ours.new:
            buffer = buffer.copy()
        for coords in dropped.chunks.get(node_id, ()):
            buffer.discard(coords)
        now = None if node_id in ours.new else missed.find(node_id)
        if isinstance(now, ArrayNode) and node_id in missed.updated and node_id not in ours.updated:
            buffer.drop_outside(now.grid)
        if buffer:
            result.edits[node_id] = buffer
            if node_id not in ours.new:
                result.origin.setdefault(node_id, missed.path_of(node_id))


def _with_document(current: Node, ours: Node) -> Node:
    """Our document on their node: chunks and manifests stay as they have them."""
    if isinstance(current, ArrayNode) and isinstance(ours, ArrayNode):
        return replace(ours, path=current.path, manifests=current.manifests)
    return replace(ours, path=current.path)
