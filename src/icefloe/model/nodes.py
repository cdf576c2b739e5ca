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
        # Commits of thousands of arrays notice: the constructor of a frozen class takes twice as long as its slots do,
        # `dataclasses.replace` several times.
        twin = object.__new__(ArrayNode)
        _set_id(twin, self.id)
        _set_path(twin, self.path)
        _set_document(twin, self.document)
        _set_shape(twin, self.shape)
        _set_grid(twin, self.grid)
        _set_dimension_names(twin, self.dimension_names)
        _set_manifests(twin, manifests)
        _set_attributes(twin, self.attributes)
        return twin


_set_id, _set_path, _set_document, _set_shape, _set_grid, _set_dimension_names, _set_manifests, _set_attributes = (
    ArrayNode.__dict__[name].__set__ for name in ArrayNode.__slots__
)


Node: TypeAlias = GroupNode | ArrayNode
