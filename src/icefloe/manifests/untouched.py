"""Arrays that nobody changed, whose references go from one manifest into another as they are, many at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icefloe.ids import NodeId, ObjectId
from icefloe.manifests.boxes import intersect
from icefloe.manifests.columns import bounding_rows
from icefloe.manifests.pieces import full_box
from icefloe.model.chunk_table import ChunkTable
from icefloe.model.chunk_tables import ChunkTables
from icefloe.model.nodes import ArrayNode, Extents
from icefloe.model.table_joining import join_tables


@dataclass(frozen=True, slots=True)
class Untouched:
    """Arrays of one manifest that have no other, and no edits."""

    manifest_id: ObjectId
    nodes: tuple[ArrayNode, ...]

    def __str__(self) -> str:
        return f"{len(self.nodes)} untouched arrays of {self.manifest_id}"


def visible_box(node: ArrayNode) -> Extents:
    """Where the only manifest of an array speaks for it."""
    whole = full_box(node)
    return intersect(node.manifests[0].extents or whole, whole)


def take_untouched(
    tables: Mapping[NodeId, ChunkTable], nodes: Sequence[ArrayNode]
) -> tuple[ChunkTables, list[ArrayNode]]:
    """The references of all arrays that have some and show all of them; the others have to be looked at one by one.

    Early writers left references of other arrays behind, and extents may be narrower than what a manifest holds.
    """
    held = [node for node in nodes if node.id in tables]
    if isinstance(tables, ChunkTables):
        found = tables.select(tables.positions([node.id for node in held]))
    else:
        found = join_tables({node.id: tables[node.id] for node in held if len(tables[node.id])})
        by_id = {node.id: node for node in held}
        held = [by_id[node_id] for node_id in found.nodes]
    if not held:
        return found, []
    shown = _shows_all(found, held)
    if bool(shown.all()):
        return found, []
    return found.select(np.flatnonzero(shown)), [held[index] for index in np.flatnonzero(~shown).tolist()]


def _shows_all(tables: ChunkTables, nodes: Sequence[ArrayNode]) -> npt.NDArray[np.bool_]:
    """Whether the references of every array are of its rank and inside the box where its manifest speaks."""
    width = tables.rows.coords.shape[1]
    known: dict[tuple[tuple[int, ...], Extents], list[int]] = {}
    allowed = []
    for node in nodes:
        key = node.grid, node.manifests[0].extents
        bounds = known.get(key)
        if bounds is None:
            box = (*visible_box(node), *[(0, 1)] * width)[:width]
            bounds = known[key] = [len(node.grid), *(first for first, _ in box), *(end for _, end in box)]
        allowed.append(bounds)
    limits = np.array(allowed, dtype=np.int64)
    found = bounding_rows(tables)
    inside: npt.NDArray[np.bool_] = found[:, 0] == limits[:, 0]
    inside &= (found[:, 1 : 1 + width] >= limits[:, 1 : 1 + width]).all(axis=1)
    inside &= (found[:, 1 + width :] <= limits[:, 1 + width :]).all(axis=1)
    return inside
