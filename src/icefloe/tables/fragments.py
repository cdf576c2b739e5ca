"""Rows as fragments of blocks: where in a block each row belongs, and its stored values."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.tables.encoding import encode_column
from icefloe.tables.targets import Target, positions


@dataclass(frozen=True, slots=True)
class Fragment:
    """Some cells of one block: their offsets within it in C order, and a column of stored values per variable."""

    block: int
    offsets: npt.NDArray[np.int64]
    values: tuple[npt.NDArray[Any], ...]

    def pack(self) -> bytes:
        """As bytes, for the way to the task that assembles the block."""
        return pickle.dumps((self.offsets, self.values), protocol=5)


def unpack_fragment(block: int, data: bytes) -> Fragment:
    offsets, values = pickle.loads(data)
    return Fragment(block, offsets, values)


def split_rows(target: Target, table: pa.Table, *, drop_off_grid: bool = False) -> Iterator[Fragment]:
    """The fragments of a table's rows, in order of their blocks."""
    places = [positions(_whole(table, dimension.name), dimension.values) for dimension in target.dimensions]
    off = np.zeros(len(table), dtype=bool)
    for place in places:
        off |= place < 0
    if off.any():
        if not drop_off_grid:
            raise _off_grid(target, table, off)
        kept = np.flatnonzero(~off)
        table, places = table.take(pa.array(kept)), [place[kept] for place in places]
    if not len(table):
        return
    blocks = np.zeros(len(table), dtype=np.int64)
    offsets = np.zeros(len(table), dtype=np.int64)
    for place, length, count in zip(places, target.block, target.blocks, strict=True):
        blocks = blocks * count + place // length
        offsets = offsets * length + place % length
    order = np.argsort(blocks, kind="stable")
    blocks, offsets = blocks[order], offsets[order]
    columns = [encode_column(v.name, v.coding, _whole(table, v.name), v.fill_value)[order] for v in target.variables]
    starts = np.flatnonzero(np.r_[True, blocks[1:] != blocks[:-1]])
    for first, end in zip(starts.tolist(), [*starts[1:].tolist(), len(blocks)], strict=True):
        yield Fragment(int(blocks[first]), offsets[first:end], tuple(column[first:end] for column in columns))


def _whole(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _off_grid(target: Target, table: pa.Table, off: npt.NDArray[np.bool_]) -> InvalidInputError:
    row = table.slice(int(np.flatnonzero(off)[0]), 1).to_pylist()[0]
    place = {name: row[name] for name in target.dims}
    return InvalidInputError(
        f"{int(off.sum())} row(s) lie off the grid, such as {place}; drop them with off_grid='drop', or extend the grid"
    )


def merge_fragments(fragments: Sequence[Fragment], duplicates: str) -> Fragment:
    """One fragment of all cells of a block, each once; several rows for one cell are settled as told."""
    first = fragments[0]
    offsets = np.concatenate([each.offsets for each in fragments])
    values = [np.concatenate(columns) for columns in zip(*(each.values for each in fragments), strict=True)]
    order = np.argsort(offsets, kind="stable")
    offsets = offsets[order]
    starts = np.flatnonzero(np.r_[True, offsets[1:] != offsets[:-1]])
    if len(starts) == len(offsets):
        return Fragment(first.block, offsets, tuple(column[order] for column in values))
    if duplicates == "error":
        raise InvalidInputError(
            f"{len(offsets) - len(starts)} cell(s) have several rows; make rows unique, or say what happens with "
            "duplicates='any', 'min', 'max', 'sum' or 'mean'"
        )
    settled = tuple(_settle(column[order], starts, duplicates) for column in values)
    return Fragment(first.block, offsets[starts], settled)


def _settle(column: npt.NDArray[Any], starts: npt.NDArray[np.int64], how: str) -> npt.NDArray[Any]:
    if how == "any":
        return column[starts]
    if column.dtype.kind not in "iufb":
        raise InvalidInputError(f"duplicates={how!r} needs numbers; use 'any' for texts and times")
    if how == "mean":
        counts = np.diff(np.r_[starts, len(column)])
        return np.asarray(np.add.reduceat(column.astype(np.float64), starts) / counts).astype(column.dtype)
    reduce = {"min": np.minimum, "max": np.maximum, "sum": np.add}[how]
    return np.asarray(reduce.reduceat(column, starts)).astype(column.dtype)
