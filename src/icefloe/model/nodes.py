"""Groups and arrays as a snapshot holds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from icefloe.ids import NodeId, ObjectId

Extents: TypeAlias = tuple[tuple[int, int], ...]
"""[first, end) of chunk indices per dimension; the empty tuple covers everything."""


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A manifest that holds chunks of an array, and the box of the grid it speaks for."""

    manifest_id: ObjectId
    extents: Extents


@dataclass(frozen=True, slots=True)
class AttributesRef:
    """Where the attributes of a node are kept when they are not in its document."""

    object_id: ObjectId
    row: int


@dataclass(frozen=True, slots=True)
class GroupNode:
    """A group: its id, path, and zarr.json as written.

    When `attributes` is set, the document holds `{}` for its attributes and the real ones are in that file.
    """

    id: NodeId
    path: str
    document: bytes
    attributes: AttributesRef | None = None


@dataclass(frozen=True, slots=True)
class ArrayNode:
    """An array: as a group, plus its grid and the manifests that hold its chunks."""

    id: NodeId
    path: str
    document: bytes
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    """Number of chunks per dimension."""
    dimension_names: tuple[str | None, ...] | None = None
    manifests: tuple[ManifestRef, ...] = field(default=())
    attributes: AttributesRef | None = None

    def with_manifests(self, manifests: tuple[ManifestRef, ...]) -> ArrayNode:
        """The same array, its chunks in other manifests."""
        # `dataclasses.replace` takes several times as long, and commits of thousands of arrays notice.
        return ArrayNode(
            self.id, self.path, self.document, self.shape, self.grid, self.dimension_names, manifests, self.attributes
        )


Node: TypeAlias = GroupNode | ArrayNode
