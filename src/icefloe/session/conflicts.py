"""Conflicts between a session's changes and the commits it missed, and how they are solved."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from icefloe.errors import printable


class ConflictType(enum.Enum):
    """What kind of clash it is."""

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


class VersionSelection(enum.Enum):
    """Whose version of a thing wins."""

    Fail = 0
    UseOurs = 1
    UseTheirs = 2


@dataclass(frozen=True)
class Conflict:
    """One clash: its kind, the path it is about, and the chunks if it is about chunks."""

    conflict_type: ConflictType
    path: str
    chunk_coords: npt.NDArray[np.uint32] | None = field(default=None, compare=False)

    @property
    def conflicted_chunks(self) -> list[list[int]] | None:
        """The coordinates of the chunks in conflict, where there are any."""
        return None if self.chunk_coords is None else self.chunk_coords.tolist()

    def __str__(self) -> str:
        chunks = ""
        if self.chunk_coords is not None:
            shown = ", ".join(str(c) for c in self.chunk_coords[:3].tolist())
            chunks = f" ({len(self.chunk_coords)} chunk(s): {shown}{', ...' if len(self.chunk_coords) > 3 else ''})"
        return printable(f"{self.conflict_type.name} at {self.path}{chunks}")


class ConflictSolver(ABC):
    """Decides each conflict. Subclass it to solve in Python: return whose version wins, or Fail."""

    @abstractmethod
    def resolve(self, conflict: Conflict) -> VersionSelection:
        """Ours = the session being rebased, Theirs = what was committed in between."""

    def resolve_all(self, conflicts: Sequence[Conflict]) -> list[VersionSelection]:
        """All conflicts of one missed commit at once."""
        return [self.resolve(conflict) for conflict in conflicts]


class ConflictDetector(ConflictSolver):
    """Solves nothing: any conflict fails the rebase, with the full list in the error."""

    def resolve(self, conflict: Conflict) -> VersionSelection:
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
