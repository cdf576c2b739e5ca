"""All references of a manifest in one set of columns, whatever arrays they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.ids import NodeId
from icefloe.model.chunk_table import ChunkTable


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of ChunkTable over several arrays, array after array.

    `coords` is as wide as the largest rank, zero beyond an array's own. Optional columns as in ChunkTable.
    """

    nodes: Sequence[NodeId]
    counts: npt.NDArray[np.int64]
    ndims: npt.NDArray[np.int64]
    coords: npt.NDArray[np.uint32]
    kind: npt.NDArray[np.uint8]
    offset: npt.NDArray[np.uint64]
    length: npt.NDArray[np.uint64]
    object_id: npt.NDArray[np.uint8] | None
    location: npt.NDArray[np.int32] | None
    locations: Sequence[str]
    etag: npt.NDArray[np.int32] | None
    etags: Sequence[str]
    last_modified: npt.NDArray[np.uint32] | None
    inline: bytes | memoryview

    def __len__(self) -> int:
        return len(self.kind)


def join_tables(tables: Mapping[NodeId, ChunkTable]) -> Columns:
    """One set of columns of all tables, ordered by node id."""
    nodes = sorted(node for node, table in tables.items() if len(table))
    parts = [tables[node] for node in nodes]
    counts = np.array([len(p) for p in parts], dtype=np.int64)
    ndims = np.array([p.ndim for p in parts], dtype=np.int64)
    if len(parts) == 1:
        one = parts[0]
        return Columns(
            nodes, counts, ndims, one.coords, one.kind, one.offset, one.length, one.object_id, one.location,
            one.locations, one.etag, one.etags, one.last_modified, one.inline,
        )  # fmt: skip
    locations, location = _join_dictionaries(parts, lambda p: p.location, lambda p: p.locations)
    etags, etag = _join_dictionaries(parts, lambda p: p.etag, lambda p: p.etags)
    inline_starts = np.cumsum([0] + [len(p.inline) for p in parts[:-1]]) if parts else np.zeros(0, dtype=np.int64)
    kind = _concatenate([p.kind for p in parts], np.uint8)
    offset = _concatenate([p.offset for p in parts], np.uint64)
    if any(len(p.inline) for p in parts):
        shift = np.repeat(inline_starts.astype(np.uint64), counts)
        offset = np.where(kind == 0, offset + shift, offset)
    return Columns(
        nodes, counts, ndims, _join_coords(parts, int(ndims.max(initial=0))), kind, offset,
        _concatenate([p.length for p in parts], np.uint64),
        _join_ids(parts), location, locations, etag, etags,
        _join_optional(parts, lambda p: p.last_modified, 0, np.uint32),
        b"".join(p.inline for p in parts),
    )  # fmt: skip


def _concatenate(parts: list[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


def _join_coords(parts: list[ChunkTable], width: int) -> npt.NDArray[np.uint32]:
    if parts and all(p.ndim == width for p in parts):
        return np.concatenate([p.coords for p in parts])
    coords = np.zeros((sum(len(p) for p in parts), width), dtype=np.uint32)
    start = 0
    for part in parts:
        coords[start : start + len(part), : part.ndim] = part.coords
        start += len(part)
    return coords


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
    joined: list[str] = []
    starts = []
    for part in parts:
        starts.append(len(joined))
        joined.extend(words(part))
    shift = np.repeat(np.array(starts, dtype=np.int32), [len(p) for p in parts])
    return joined, np.where(column >= 0, column + shift, column).astype(np.int32)


def split_tables(columns: Columns) -> dict[NodeId, ChunkTable]:
    """The table of every array; rows are already in order within each."""
    if len(columns.nodes) == 1:
        return {columns.nodes[0]: _whole_table(columns)}
    ends = np.cumsum(columns.counts)
    starts = ends - columns.counts
    locations = _split_dictionary(columns.location, columns.locations, columns.counts)
    etags = _split_dictionary(columns.etag, columns.etags, columns.counts)
    inline = memoryview(columns.inline)
    inline_bounds = _inline_bounds(columns, starts)
    has_kinds = _kinds_per_table(columns.kind, starts)
    tables = {}
    for index, node in enumerate(columns.nodes):
        a, b = int(starts[index]), int(ends[index])
        has_inline, has_native, has_virtual = (bool(flag) for flag in has_kinds[:, index])
        offset = columns.offset[a:b]
        low, high = inline_bounds[index], inline_bounds[index + 1]
        if has_inline and low:
            offset = np.where(columns.kind[a:b] == 0, offset - np.uint64(low), offset)
        etag_words = etags[1][index]
        modified = columns.last_modified[a:b] if has_virtual and columns.last_modified is not None else None
        tables[node] = ChunkTable(
            columns.coords[a:b, : int(columns.ndims[index])], columns.kind[a:b], offset, columns.length[a:b],
            columns.object_id[a:b] if has_native and columns.object_id is not None else None,
            locations[0][a:b] if has_virtual else None, locations[1][index],
            etags[0][a:b] if etag_words else None, etag_words,
            modified if modified is not None and modified.any() else None,
            bytes(inline[low:high]) if has_inline else b"",
        )  # fmt: skip
    return tables


def _whole_table(columns: Columns) -> ChunkTable:
    return ChunkTable(
        columns.coords[:, : int(columns.ndims[0])], columns.kind, columns.offset, columns.length, columns.object_id,
        columns.location, columns.locations, columns.etag, columns.etags, columns.last_modified, bytes(columns.inline),
    )  # fmt: skip


def _kinds_per_table(kind: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return np.stack([np.logical_or.reduceat(kind == k, starts) for k in (0, 1, 2)])


def _inline_bounds(columns: Columns, starts: npt.NDArray[np.int64]) -> list[int]:
    """Where the inline bytes of every table start; they lie in row order."""
    sizes = np.where(columns.kind == 0, columns.length, 0).astype(np.int64)
    totals = np.add.reduceat(sizes, starts)
    return [0, *np.cumsum(totals).tolist()]


def _split_dictionary(
    column: npt.NDArray[np.int32] | None, words: Sequence[str], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int32], list[list[str]]]:
    """Give every table a dictionary of its own, so that each can be kept and dropped alone."""
    if column is None:
        return np.zeros(0, dtype=np.int32), [[] for _ in counts]
    table = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    used = column >= 0
    keys = table[used] * max(len(words), 1) + column[used]
    distinct, inverse = np.unique(keys, return_inverse=True)
    owners = distinct // max(len(words), 1)
    firsts = np.searchsorted(owners, np.arange(len(counts)))
    local = np.full(len(column), -1, dtype=np.int32)
    local[used] = (inverse - firsts[table[used]]).astype(np.int32)
    word_of = (distinct % max(len(words), 1)).tolist()
    bounds = [*firsts.tolist(), len(distinct)]
    return local, [[words[w] for w in word_of[a:b]] for a, b in pairwise(bounds)]
