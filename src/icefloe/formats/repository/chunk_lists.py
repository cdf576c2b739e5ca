"""The coordinates of changed chunks in a transaction log: a MessagePack map with integers of fixed width."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.formats.repository.rows import NODE_TEXT_BYTES, text_mark
from icefloe.ids import NODE_ID_BYTES, NodeId, encode_base32, encode_base32_column
from icefloe.model.chunk_tables import NO_TABLES
from icefloe.model.transaction_log import WrittenChunks, WrittenColumns, join_written

Coordinates = npt.NDArray[np.uint32]

_HEAD_BYTES = 1 + NODE_TEXT_BYTES + 5
"""Of an entry: the text of the node id, and how many coordinates follow."""
_FEW_ARRAYS = 8
"""Up to here, one after the other is as quick as all at once."""
_MANY_ROWS = 4096
"""Arrays with more chunks are laid out by themselves: memory then holds one of them."""


def encode_chunks(chunks: Mapping[NodeId, Coordinates]) -> msgspec.Raw:
    """The entry of every array: those with few chunks first, each kind ordered by node id."""
    head = b"\xdf" + len(chunks).to_bytes(4, "big")
    if len(chunks) <= _FEW_ARRAYS:
        return msgspec.Raw(b"".join([head, *_encode_alone(dict(chunks))]))
    together, alone = (chunks.together, chunks.alone) if isinstance(chunks, WrittenChunks) else (NO_TABLES, chunks)
    few = {node: coords for node, coords in alone.items() if len(coords) <= _MANY_ROWS}
    many = _encode_alone({node: coords for node, coords in alone.items() if node not in few})
    return msgspec.Raw(b"".join([head, _encode_together(join_written(WrittenChunks(together, few))).data, *many]))


def _encode_alone(chunks: Mapping[NodeId, Coordinates]) -> Iterator[bytes | memoryview]:
    for node, coords in sorted(chunks.items(), key=itemgetter(0)):
        yield text_mark(NODE_TEXT_BYTES) + encode_base32(node).encode() + b"\xdd" + len(coords).to_bytes(4, "big")
        yield _encode_coords(coords).data


def _encode_together(written: WrittenColumns) -> npt.NDArray[np.uint8]:
    """The entries of some arrays, each put at its place by node id."""
    nodes, counts, ndims, coords = written.nodes, written.counts, written.ndims, written.coords
    sizes = np.array([coords_record(ndim).itemsize for ndim in range(coords.shape[1] + 1)], dtype=np.int64)[ndims]
    entry_bytes = _HEAD_BYTES + counts * sizes
    body = np.empty(int(entry_bytes.sum()), dtype=np.uint8)
    if not nodes:
        return body
    order = np.argsort(np.frombuffer(b"".join(nodes), dtype=">u8"))
    starts = np.empty(len(nodes), dtype=np.int64)
    starts[order] = np.cumsum(entry_bytes[order]) - entry_bytes[order]
    _scatter(body, starts, _heads(nodes, counts))
    within = np.arange(len(coords)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.repeat(starts + _HEAD_BYTES, counts) + within * np.repeat(sizes, counts)
    ranks = np.repeat(ndims, counts)
    for ndim in np.flatnonzero(np.bincount(ndims)).tolist():
        rows = ranks == ndim
        _scatter(body, places[rows], _encode_coords(coords[rows, :ndim]).reshape(-1, coords_record(ndim).itemsize))
    return body


def _scatter(body: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], rows: npt.NDArray[np.uint8]) -> None:
    """Put rows of bytes at their places."""
    if not len(rows):
        return
    size = rows.shape[1]
    # Windows of one row at every byte: assigning to some of them scatters whole rows.
    windows = np.ndarray((len(body) - size + 1,), dtype=f"V{size}", buffer=body.data, strides=(1,))
    windows[starts] = np.ascontiguousarray(rows).view(f"V{size}")[:, 0]


def _heads(nodes: list[NodeId], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    heads = np.empty((len(nodes), _HEAD_BYTES), dtype=np.uint8)
    heads[:, 0] = 0xA0 | NODE_TEXT_BYTES
    ids = np.frombuffer(b"".join(nodes), dtype=np.uint8).reshape(len(nodes), NODE_ID_BYTES)
    heads[:, 1 : 1 + NODE_TEXT_BYTES] = encode_base32_column(ids)
    heads[:, 1 + NODE_TEXT_BYTES] = 0xDD
    heads[:, 2 + NODE_TEXT_BYTES :] = counts.astype(">u4").view(np.uint8).reshape(len(nodes), 4)
    return heads


def _encode_coords(coords: Coordinates) -> npt.NDArray[np.uint8]:
    """Integers of fixed width, so that the list is a matrix of bytes."""
    count, ndim = coords.shape
    rows = np.empty(count, dtype=coords_record(ndim))
    if ndim < 16:
        rows["head"] = 0x90 | ndim
    else:
        rows["head"] = np.void(b"\xdc" + ndim.to_bytes(2, "big"))
    for dimension in range(ndim):
        rows[f"m{dimension}"] = 0xCE
        rows[f"c{dimension}"] = coords[:, dimension]
    return rows.view(np.uint8)


@functools.cache
def coords_record(ndim: int) -> np.dtype[Any]:
    """One row of coordinates as it lies in a file."""
    members: list[tuple[str, str]] = [("head", "u1" if ndim < 16 else "V3")]
    for dimension in range(ndim):
        members += [(f"m{dimension}", "u1"), (f"c{dimension}", ">u4")]
    return np.dtype(members)
