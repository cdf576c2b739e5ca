"""What a listing says about a node: its kind, type, shape and chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icefloe.model.nodes import ArrayNode, Node
from icefloe.model.zarr_document import parse_document


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as a line of a listing."""

    path: str
    kind: str
    data_type: str | None = None
    shape: tuple[int, ...] = ()
    chunk_shape: tuple[int, ...] | None = None
    grid: tuple[int, ...] = ()
    dimension_names: tuple[str | None, ...] | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2] or "/"

    def as_json(self) -> dict[str, Any]:
        """The facts under the names of Zarr."""
        if self.kind == "group":
            return {"path": self.path, "kind": self.kind}
        return {
            "path": self.path,
            "kind": self.kind,
            "data_type": self.data_type,
            "shape": self.shape,
            "chunk_shape": self.chunk_shape,
            "chunk_grid": self.grid,
            "dimension_names": self.dimension_names,
        }

    def shape_text(self) -> str:
        """The shape, with names of dimensions where there are any: `(time: 24, lat: 180)`."""
        names = self.dimension_names or (None,) * len(self.shape)
        parts = (f"{name}: {n}" if name else str(n) for name, n in zip(names, self.shape, strict=True))
        return f"({', '.join(parts)})"


def node_facts(node: Node) -> NodeFacts:
    """The facts of a node, from its document."""
    if not isinstance(node, ArrayNode):
        return NodeFacts(node.path, "group")
    document = parse_document(node.document)
    return NodeFacts(
        path=node.path,
        kind="array",
        data_type=_data_type(document.get("data_type")),
        shape=node.shape,
        chunk_shape=_chunk_shape(document.get("chunk_grid", {})),
        grid=node.grid,
        dimension_names=node.dimension_names,
    )


def _data_type(given: Any) -> str:
    return str(given.get("name", given)) if isinstance(given, Mapping) else str(given)


def _chunk_shape(grid: Mapping[str, Any]) -> tuple[int, ...] | None:
    shape = grid.get("configuration", {}).get("chunk_shape")
    return None if shape is None else tuple(int(n) for n in shape)
