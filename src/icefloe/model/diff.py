"""What differs between two snapshots, or what a session has changed, by path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from icefloe.display.amounts import format_count
from icefloe.display.card import Card, Described, Listing
from icefloe.errors import printable


@dataclass(frozen=True)
class Diff(Described):
    """Paths that were added, removed, changed or moved, and the chunks that were written."""

    new_groups: set[str] = field(default_factory=set)
    new_arrays: set[str] = field(default_factory=set)
    deleted_groups: set[str] = field(default_factory=set)
    deleted_arrays: set[str] = field(default_factory=set)
    updated_groups: set[str] = field(default_factory=set)
    updated_arrays: set[str] = field(default_factory=set)
    chunk_coords: Mapping[str, npt.NDArray[np.uint32]] = field(default_factory=dict)
    """Changed chunks per array as columns, uint32[n, ndim]."""
    moved_nodes: list[tuple[str, str]] = field(default_factory=list)

    @cached_property
    def updated_chunks(self) -> dict[str, list[list[int]]]:
        """Changed chunks per array as lists of coordinates."""
        return {path: coords.tolist() for path, coords in self.chunk_coords.items()}

    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return not (
            self.new_groups or self.new_arrays or self.deleted_groups or self.deleted_arrays
            or self.updated_groups or self.updated_arrays or self.chunk_coords or self.moved_nodes
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Diff):
            return NotImplemented
        names = ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays", "updated_groups", "updated_arrays",
                 "moved_nodes", "updated_chunks")  # fmt: skip
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def _card(self) -> Card:
        chunks = [f"{path}: {format_count(len(found), 'chunk')}" for path, found in sorted(self.chunk_coords.items())]
        listings = (
            Listing("new groups", "added", sorted(self.new_groups)),
            Listing("new arrays", "added", sorted(self.new_arrays)),
            Listing("deleted groups", "removed", sorted(self.deleted_groups)),
            Listing("deleted arrays", "removed", sorted(self.deleted_arrays)),
            Listing("updated groups", "changed", sorted(self.updated_groups)),
            Listing("updated arrays", "changed", sorted(self.updated_arrays)),
            Listing("moved", "tag", [f"{old} → {new}" for old, new in self.moved_nodes]),
            Listing("updated chunks", "changed", chunks),
        )
        return Card("Diff", "no changes" if self.is_empty() else "", (), [each for each in listings if each.entries])

    def __repr__(self) -> str:
        lines = []
        for title, paths in (
            ("Groups created", self.new_groups),
            ("Arrays created", self.new_arrays),
            ("Group definitions updated", self.updated_groups),
            ("Array definitions updated", self.updated_arrays),
            ("Groups deleted", self.deleted_groups),
            ("Arrays deleted", self.deleted_arrays),
        ):
            if paths:
                lines += [f"{title}:", *(f"    {path}" for path in sorted(paths)), ""]
        if self.moved_nodes:
            lines += ["Nodes moved:", *(f"    {old} -> {new}" for old, new in self.moved_nodes), ""]
        if self.chunk_coords:
            lines.append("Chunks updated:")
            for path in sorted(self.chunk_coords):
                coords = self.chunk_coords[path]
                lines.append(f"    {path}: {len(coords)} chunk(s)")
                lines += [f"        {row}" for row in coords[:10].tolist()]
                if len(coords) > 10:
                    lines.append(f"        ... {len(coords) - 10} more")
        return printable("\n".join(lines).rstrip()) or "(no changes)"
