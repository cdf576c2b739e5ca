"""Moving chunks inside an array without touching their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.manifests.columns import take
from icefloe.manifests.keys import find_rows
from icefloe.manifests.merge import map_coords, overlay, shift_coords
from icefloe.model.chunk_table import ChunkTable, Coords, tombstones
from icefloe.model.nodes import ArrayNode
from icefloe.model.zarr_document import parse_document
from icefloe.session.workspace import Workspace

Mapper = Callable[[Iterable[int]], Iterable[int] | None]


async def shift_array(work: Workspace, path: str, offset: Sequence[int]) -> None:
    """Move every chunk by an offset; free places read as fill value, what leaves the grid is dropped."""
    node = _movable(work, path)
    if len(offset) != len(node.shape):
        raise InvalidInputError(f"offset {tuple(offset)} for {node.path}, which has {len(node.shape)} dimensions")
    table = await work.chunk_table(node)
    work.add_table(node, overlay(tombstones(table.coords), shift_coords(table, offset, node.grid)))


async def reindex_array(work: Workspace, path: str, forward: Mapper, backward: Mapper | None) -> None:
    """Move chunks by a function of their coordinates."""
    node = _movable(work, path)
    table = await work.chunk_table(node)

    def checked(coords: Coords) -> Coords | None:
        target = forward(list(coords))
        if target is None:
            return None
        moved = tuple(int(c) for c in target)
        work.check_coords(node, moved)
        return moved

    mapped = map_coords(table, checked)
    cleared = _vacated(table, backward) if backward is not None else None
    work.add_table(node, mapped if cleared is None else overlay(cleared, mapped))


def _vacated(table: ChunkTable, backward: Mapper) -> ChunkTable:
    """Tombstones for places whose source has no chunk."""
    rows = []
    for index, coords in enumerate(table.coords.tolist()):
        source = backward(coords)
        if source is None:
            rows.append(index)
            continue
        wanted = np.array([[int(c) for c in source]], dtype=np.int64)
        if (wanted < 0).any() or find_rows(table, wanted.astype(np.uint32))[0] < 0:
            rows.append(index)
    return tombstones(take(table, np.array(rows, dtype=np.int64)).coords)


def _movable(work: Workspace, path: str) -> ArrayNode:
    node = work.tree.array(path if path.startswith("/") else "/" + path)
    grid = parse_document(node.document)["chunk_grid"]
    if grid["name"] != "regular":
        raise InvalidInputError(
            f"{node.path} has a {grid['name']!r} chunk grid: its chunks differ in size and cannot move"
        )
    return node
