"""Fragments become chunks: blocks assembled with the cells that were there, and written whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import zarr

from icefloe.session.session import Session
from icefloe.tables.fragments import Fragment, merge_fragments, split_rows
from icefloe.tables.targets import Target, TargetVariable, WriteOptions, apply_target, plan_target, write_dims


def write_fragments(session: Session, target: Target, fragments: Iterable[Fragment], duplicates: str) -> int:
    """Write fragments that come grouped by block; returns how many cells were set."""
    arrays = [_open(session, variable) for variable in target.variables]
    cells = 0
    for _, group in groupby(fragments, key=lambda fragment: fragment.block):
        merged = merge_fragments(list(group), duplicates)
        cells += len(merged.offsets)
        for array, variable, values in zip(arrays, target.variables, merged.values, strict=True):
            _write_block(array, target, variable, merged.block, merged.offsets, values)
    return cells


def _open(session: Session, variable: TargetVariable) -> zarr.Array[Any]:
    # A chunk whose cells are all missing is written like any other: a worker must not delete chunks.
    config: Any = {"write_empty_chunks": True}
    return zarr.open_array(session.store, path=variable.path.lstrip("/"), mode="r+", zarr_format=3, config=config)


def _write_block(
    array: zarr.Array[Any], target: Target, variable: TargetVariable, block: int, offsets: npt.NDArray[np.int64],
    values: npt.NDArray[Any],
) -> None:  # fmt: skip
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
    """Write the rows of a table into a session, here and now; returns how many cells were set."""
    dims = write_dims(session, options, table.column_names)
    incoming = {name: unique_values(table.column(name)) for name in dims}
    target = plan_target(session, options, table.schema, incoming)
    apply_target(session, target)
    fragments = split_rows(target, table, drop_off_grid=options.off_grid == "drop")
    return write_fragments(session, target, fragments, options.duplicates)


def unique_values(column: pa.ChunkedArray) -> pa.Array:
    """Distinct values of a column."""
    found = pc.unique(column)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def merge_uniques(parts: Sequence[Mapping[str, pa.Array]]) -> dict[str, pa.Array]:
    """Distinct values of several parts of a table, together."""
    names = list(parts[0]) if parts else []
    return {name: unique_values(pa.chunked_array([part[name] for part in parts])) for name in names}


def gather_tables(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Batches put together until they have so many rows; instants in UTC, whatever the zone of the session is."""
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
