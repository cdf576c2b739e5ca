"""Split rows into fragments of blocks, and write fragments as chunks."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import zarr

from icefloe.errors import InvalidInputError
from icefloe.session.session import Session
from icefloe.tables.columns import encode_column
from icefloe.tables.targets import (
    Target,
    TargetVariable,
    WriteOptions,
    apply_target,
    plan_target,
    positions,
    write_dims,
)


@dataclass(frozen=True, slots=True)
class Fragment:
    """Cells of one block: their offsets in it in C order, and a column of stored values per variable."""

    block: int
    offsets: npt.NDArray[np.int64]
    values: tuple[npt.NDArray[Any], ...]

    def pack(self) -> bytes:
        """Serialise the fragment for the task that assembles the block."""
        return pickle.dumps((self.offsets, self.values), protocol=5)


def unpack_fragment(block: int, data: bytes) -> Fragment:
    offsets, values = pickle.loads(data)
    return Fragment(block, offsets, values)


def split_rows(target: Target, table: pa.Table, *, drop_off_grid: bool = False) -> Iterator[Fragment]:
    """Return the fragments of a table's rows, ordered by block."""
    indices = [positions(_whole(table, dimension.name), dimension.values) for dimension in target.dimensions]
    off = np.zeros(len(table), dtype=bool)
    for index in indices:
        off |= index < 0
    if off.any():
        if not drop_off_grid:
            raise _off_grid(target, table, off)
        kept = np.flatnonzero(~off)
        table, indices = table.take(pa.array(kept)), [index[kept] for index in indices]
    if not len(table):
        return
    blocks = np.zeros(len(table), dtype=np.int64)
    offsets = np.zeros(len(table), dtype=np.int64)
    for index, length, count in zip(indices, target.block, target.blocks, strict=True):
        blocks = blocks * count + index // length
        offsets = offsets * length + index % length
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
    coordinates = {name: row[name] for name in target.dims}
    return InvalidInputError(
        f"{int(off.sum())} row(s) are not on the grid, for example {coordinates}. Pass off_grid='drop' to leave them "
        "out, or extend the grid"
    )


def merge_fragments(fragments: Sequence[Fragment], duplicates: str) -> Fragment:
    """Merge fragments of one block so that each cell occurs once.

    `duplicates` says how rows of one cell are combined.
    """
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
            f"{len(offsets) - len(starts)} cell(s) have several rows. Make the rows unique, or choose "
            "duplicates='any', 'min', 'max', 'sum' or 'mean'"
        )
    merged = tuple(_merge_duplicates(column[order], starts, duplicates) for column in values)
    return Fragment(first.block, offsets[starts], merged)


def _merge_duplicates(column: npt.NDArray[Any], starts: npt.NDArray[np.int64], how: str) -> npt.NDArray[Any]:
    if how == "any":
        return column[starts]
    if column.dtype.kind not in "iufb":
        raise InvalidInputError(f"duplicates={how!r} needs numbers. Use 'any' for texts and times")
    if how == "mean":
        counts = np.diff(np.r_[starts, len(column)])
        return np.asarray(np.add.reduceat(column.astype(np.float64), starts) / counts).astype(column.dtype)
    reduce = {"min": np.minimum, "max": np.maximum, "sum": np.add}[how]
    return np.asarray(reduce.reduceat(column, starts)).astype(column.dtype)


def write_fragments(session: Session, target: Target, fragments: Iterable[Fragment], duplicates: str) -> int:
    """Write fragments that are grouped by block. Return the number of cells."""
    arrays = [_open(session, variable) for variable in target.variables]
    cells = 0
    for _, group in groupby(fragments, key=lambda fragment: fragment.block):
        merged = merge_fragments(list(group), duplicates)
        cells += len(merged.offsets)
        for array, variable, values in zip(arrays, target.variables, merged.values, strict=True):
            _write_block(array, target, variable, merged.block, merged.offsets, values)
    return cells


def _open(session: Session, variable: TargetVariable) -> zarr.Array[Any]:
    # Write chunks whose cells are all missing too, because a worker must not delete chunks.
    config: Any = {"write_empty_chunks": True}
    return zarr.open_array(session.store, path=variable.path.lstrip("/"), mode="r+", zarr_format=3, config=config)


def _write_block(
    array: zarr.Array[Any],
    target: Target,
    variable: TargetVariable,
    block: int,
    offsets: npt.NDArray[np.int64],
    values: npt.NDArray[Any],
) -> None:
    corner = np.unravel_index(block, target.blocks)
    first = [int(c) * length for c, length in zip(corner, target.block, strict=True)]
    window = tuple(
        slice(start, min(start + length, size))
        for start, length, size in zip(first, target.block, target.shape, strict=True)
    )
    shape = tuple(each.stop - each.start for each in window)
    if len(offsets) == int(np.prod(shape, dtype=np.int64)) or variable.made is not None:
        cells = np.full(shape, variable.fill_value, dtype=values.dtype)
    else:
        cells = np.array(array[window])
    cells[np.unravel_index(offsets, target.block)] = values
    array[window] = cells


def write_rows(session: Session, table: pa.Table, options: WriteOptions) -> int:
    """Write the rows of a table into a session, in this process. Return the number of cells."""
    dims = write_dims(session, options, table.column_names)
    incoming = {name: unique_values(table.column(name)) for name in dims}
    target = plan_target(session, options, table.schema, incoming)
    apply_target(session, target)
    fragments = split_rows(target, table, drop_off_grid=options.off_grid == "drop")
    return write_fragments(session, target, fragments, options.duplicates)


def unique_values(column: pa.ChunkedArray) -> pa.Array:
    """Return the distinct values of a column."""
    found = pc.unique(column)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def merge_uniques(parts: Sequence[Mapping[str, pa.Array]]) -> dict[str, pa.Array]:
    """Return the distinct values of several parts of a table."""
    names = list(parts[0]) if parts else []
    return {name: unique_values(pa.chunked_array([part[name] for part in parts])) for name in names}


def gather_tables(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Combine batches until they have the given number of rows. Instants are in UTC for every session time zone."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += len(batch)
        if count >= rows:
            yield _in_utc(pa.Table.from_batches(held))
            held, count = [], 0
    if held:
        yield _in_utc(pa.Table.from_batches(held))


def _in_utc(table: pa.Table) -> pa.Table:
    fields = [
        field.with_type(pa.timestamp(field.type.unit, tz="UTC"))
        if pa.types.is_timestamp(field.type) and field.type.tz not in (None, "UTC")
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))
