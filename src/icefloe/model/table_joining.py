"""Tables of several arrays made one set of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.ids import NodeId
from icefloe.model.chunk_table import ChunkKind, ChunkTable, empty_table
from icefloe.model.chunk_tables import NO_TABLES, ChunkTables, widen


def join_tables(tables: Mapping[NodeId, ChunkTable]) -> ChunkTables:
    """All tables that have rows, ordered by node id."""
    if isinstance(tables, ChunkTables):
        return tables.by_id()
    nodes = sorted(node for node, table in tables.items() if len(table))
    parts = [tables[node] for node in nodes]
    counts = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
    ndims = np.fromiter((p.coords.shape[1] for p in parts), dtype=np.int64, count=len(parts))
    return ChunkTables(nodes, counts, ndims, _join_rows(parts))


def concat_tables(parts: Sequence[ChunkTables]) -> ChunkTables:
    """The arrays of all parts, part after part; no array is in two of them."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else NO_TABLES
    nodes = [node for part in filled for node in part.nodes]
    counts = _concatenate([part.counts for part in filled], np.int64)
    ndims = _concatenate([part.ndims for part in filled], np.int64)
    return ChunkTables(nodes, counts, ndims, _join_rows([part.rows for part in filled]))


def _join_rows(parts: list[ChunkTable]) -> ChunkTable:
    """The rows of all tables, table after table."""
    if len(parts) < 2:
        return parts[0] if parts else empty_table(0)
    counts = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
    locations, location = _join_dictionaries(parts, lambda p: p.location, lambda p: p.locations)
    etags, etag = _join_dictionaries(parts, lambda p: p.etag, lambda p: p.etags)
    kind = _concatenate([p.kind for p in parts], np.uint8)
    offset = _concatenate([p.offset for p in parts], np.uint64)
    inline_bytes = np.fromiter((len(p.inline) for p in parts), dtype=np.int64, count=len(parts))
    if inline_bytes.any():
        shift = np.repeat((np.cumsum(inline_bytes) - inline_bytes).astype(np.uint64), counts)
        offset = np.where(kind == ChunkKind.INLINE, offset + shift, offset)
    width = max(p.coords.shape[1] for p in parts)
    return ChunkTable(
        np.concatenate([widen(p.coords, width) for p in parts]), kind, offset,
        _concatenate([p.length for p in parts], np.uint64),
        _join_ids(parts), location, locations, etag, etags,
        _join_optional(parts, lambda p: p.last_modified, 0, np.uint32),
        b"".join(p.inline for p in parts) if inline_bytes.any() else b"",
    )  # fmt: skip


def _concatenate(parts: list[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


def _join_ids(parts: list[ChunkTable]) -> npt.NDArray[np.uint8] | None:
    width = next((p.object_id.shape[1] for p in parts if p.object_id is not None), 0)
    if not width:
        return None
    return np.concatenate(
        [np.zeros((len(p), width), dtype=np.uint8) if p.object_id is None else p.object_id for p in parts]
    )


def _join_optional(
    parts: list[ChunkTable], pick: Callable[[ChunkTable], npt.NDArray[Any] | None], default: int, dtype: type
) -> npt.NDArray[Any] | None:
    picked = [pick(p) for p in parts]
    if all(column is None for column in picked):
        return None
    return np.concatenate(
        [np.full(len(p), default, dtype=dtype) if c is None else c for p, c in zip(parts, picked, strict=True)]
    )


def _join_dictionaries(
    parts: list[ChunkTable],
    pick: Callable[[ChunkTable], npt.NDArray[np.int32] | None],
    words: Callable[[ChunkTable], Sequence[str]],
) -> tuple[Sequence[str], npt.NDArray[np.int32] | None]:
    column = _join_optional(parts, pick, -1, np.int32)
    if column is None:
        return (), None
    dictionaries = [words(part) for part in parts if pick(part) is not None]
    if all(each is dictionaries[0] for each in dictionaries):
        return dictionaries[0], column
    joined: list[str] = []
    starts = []
    for part in parts:
        starts.append(len(joined))
        joined.extend(words(part))
    shift = np.repeat(np.array(starts, dtype=np.int32), [len(p) for p in parts])
    return joined, np.where(column >= 0, column + shift, column).astype(np.int32)
