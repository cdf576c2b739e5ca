"""Read one share of a scan: blocks of arrays as Arrow batches, in one of three layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zarr

from icefloe.codec_pipeline import enable_variable_grids
from icefloe.tables.chunk_values import ChunkPart, chunk_values_at, without_gaps
from icefloe.tables.columns import from_numpy, to_numpy
from icefloe.tables.evaluate import CellTest, Mask, exact_rows
from icefloe.tables.grids import Grid, Variable
from icefloe.tables.predicates import has_literals
from icefloe.tables.scans import Scan
from icefloe.tables.selection import BlockPart

START = "__start_"
LENGTH = "__length_"
PICKED = "__picked"
"""The column with the positions of the cells of a list, if some cells of the run are left out."""
LITERAL_COORDINATES = 4096
"""The longest coordinate that is a constant of the plan. Longer ones are sent with the rows."""
_SHORTEST_LIST = 64


@dataclass(frozen=True, slots=True)
class RowsLayout:
    """Rows of cells as lists. Outer dimensions are values, the last ones are folded into the lists."""

    folded: int
    """The number of last dimensions that are folded into lists."""
    looked_up: tuple[int, ...]
    """Folded axes whose coordinate is computed from the position. The others are sent as lists."""
    picked: bool = False
    """Whether cells may be left out of the lists."""


def plan_rows(grid: Grid, masks: Sequence[Mask | None], *, picked: bool = False) -> RowsLayout:
    """Fold dimensions until lists are long enough.

    A coordinate is computed from the position where cells are contiguous.
    """
    rank = len(grid.shape)
    folded, length = 0, 1
    while folded < rank and (folded == 0 or length < _SHORTEST_LIST):
        folded += 1
        length *= min(grid.block[rank - folded].longest, grid.shape[rank - folded])
    axes = range(rank - folded, rank)
    short = [a for a in axes if grid.shape[a] <= LITERAL_COORDINATES and has_literals(grid.dimensions[a].type)]
    return RowsLayout(folded, tuple(axis for axis in short if _is_run(masks[axis])), picked)


def _is_run(mask: Mask | None) -> bool:
    if mask is None:
        return True
    found = np.flatnonzero(mask)
    return not len(found) or int(found[-1]) - int(found[0]) + 1 == len(found)


def list_type(value: pa.DataType, *, nulls: bool = True) -> pa.DataType:
    """Return a list type with Spark's name of the element."""
    return pa.list_(pa.field("element", value, nullable=nulls))


PICKED_TYPE = list_type(pa.int32(), nulls=False)


def rows_schema(grid: Grid, layout: RowsLayout | None = None) -> pa.Schema:
    """Return the columns of rows of cells. Without a layout, the last dimension and its coordinate are lists."""
    rank = len(grid.shape)
    folded = 1 if layout is None else layout.folded
    looked_up = () if layout is None else layout.looked_up
    fields = [pa.field(d.name, d.type) for d in grid.dimensions[: rank - folded]] if rank else []
    for axis in range(max(0, rank - folded), rank):
        dimension = grid.dimensions[axis]
        if axis in looked_up:
            fields.append(pa.field(START + dimension.name, pa.int32()))
        else:
            fields.append(pa.field(dimension.name, list_type(dimension.type)))
        if layout is not None:
            fields.append(pa.field(LENGTH + dimension.name, pa.int32()))
    if layout is not None and layout.picked:
        fields.append(pa.field(PICKED, PICKED_TYPE))
    for variable in grid.variables:
        nulls = layout is None or lists_have_nulls(variable)
        fields.append(pa.field(variable.name, list_type(variable.coding.type, nulls=nulls)))
    return pa.schema(fields)


def lists_have_nulls(variable: Variable) -> bool:
    """Return whether lists of a layout contain nulls. Missing floats are NaN there.

    The JVM expands a list that is known to have no nulls in two thirds of the time.
    """
    return variable.coding.has_missing and not variable.coding.missing_is_nan


def chunks_schema(grid: Grid, tensor: str) -> pa.Schema:
    """Return the columns of the layout `chunks`."""
    fields = [
        pa.field("chunk", list_type(pa.int32())),
        pa.field("start", list_type(pa.int64())),
        pa.field("shape", list_type(pa.int32())),
    ]
    for dimension in grid.dimensions:
        fields += [
            pa.field(f"{dimension.name}_first", dimension.type),
            pa.field(f"{dimension.name}_last", dimension.type),
        ]
    for variable in grid.variables:
        fields += _tensor_fields(variable, tensor)
    return pa.schema(fields)


def _tensor_fields(variable: Variable, tensor: str) -> list[pa.Field]:
    if tensor == "list":
        return [pa.field(variable.name, list_type(variable.coding.type))]
    return [pa.field(variable.name, pa.binary()), pa.field(f"{variable.name}_dtype", pa.string())]


CELLS_PER_BATCH = 100_000
LISTED_CELLS_PER_BATCH = 1 << 20
ROWS_PER_BATCH = 1 << 17
_READ_AHEAD = 2
Indices: TypeAlias = tuple[npt.NDArray[np.int64], ...]
"""Positions of the cells of a block per dimension."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block that was read: the position of its cells, and their stored values."""

    coordinates: tuple[int, ...]
    indices: Indices
    values: tuple[npt.NDArray[Any], ...]
    """Of every variable."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(each) for each in self.indices)

    @property
    def cells(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


def read_blocks(scan: Scan, part: BlockPart) -> Iterator[Block]:
    """Yield the blocks of a share, without cells that masks exclude. The next blocks are fetched meanwhile."""
    if not all(each.is_regular for variable in scan.grid.variables for each in variable.chunks):
        # A scan has such chunks only if they are enabled where it was planned. A worker has settings of its own.
        enable_variable_grids()
    coordinates = part.coordinates()
    along = [_indices(scan, axis, coordinates[:, axis]) for axis in range(coordinates.shape[1])]
    found = list(zip(*along, strict=True)) if along else [()] * len(coordinates)
    kept = [number for number, indices in enumerate(found) if all(map(len, indices))]
    indices = [found[number] for number in kept]
    streams = [_read_variable(scan, variable, coordinates[kept], indices) for variable in scan.grid.variables]
    for number, *values in zip(kept, *streams, strict=True):
        yield Block(tuple(coordinates[number].tolist()), found[number], tuple(values))


def _read_variable(
    scan: Scan, variable: Variable, coordinates: npt.NDArray[np.int64], indices: Sequence[Indices]
) -> Iterator[npt.NDArray[Any]]:
    chunks = chunk_values_at(scan.address, scan.snapshot_id, variable.path)
    if not chunks.is_direct or variable.chunks != scan.grid.block:
        yield from _read_windows(chunks.array, indices)
        return
    starts = [each.starts_of(coordinates[:, axis]) for axis, each in enumerate(scan.grid.block)]
    origins = np.stack(starts, axis=1) if starts else coordinates
    parts = [
        ChunkPart(tuple(i - o for i, o in zip(each, origin, strict=True)))
        for each, origin in zip(indices, origins.tolist(), strict=True)
    ]
    yield from chunks.read_parts(coordinates, parts, decode_ahead=scan.decode_ahead)


def _read_windows(array: zarr.Array[Any], indices: Sequence[Indices]) -> Iterator[npt.NDArray[Any]]:
    """Read blocks that are not chunks of the array through zarr."""

    def read(each: Indices) -> npt.NDArray[Any]:
        window = tuple(slice(int(i[0]), int(i[-1]) + 1) for i in each)
        return without_gaps(np.asarray(array[window] if window else array[()]), each)

    todo = iter(indices)
    with ThreadPoolExecutor(_READ_AHEAD) as pool:
        ahead: list[Future[npt.NDArray[Any]]] = [pool.submit(read, each) for each in islice(todo, _READ_AHEAD)]
        while ahead:
            values = ahead.pop(0).result()
            ahead += [pool.submit(read, each) for each in islice(todo, 1)]
            yield values


def _indices(scan: Scan, axis: int, blocks: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return the positions of the cells of blocks along a dimension that masks do not exclude."""
    lengths, mask = scan.grid.block[axis], scan.masks[axis]
    ends = np.minimum(lengths.starts_of(blocks + 1), scan.grid.shape[axis])
    bounds = zip(lengths.starts_of(blocks).tolist(), ends.tolist(), strict=True)
    if mask is None:
        return [np.arange(first, end) for first, end in bounds]
    return [np.flatnonzero(mask[first:end]) + first for first, end in bounds]


def read_cells(scan: Scan, part: BlockPart) -> Iterator[pa.RecordBatch]:
    """Yield one row per cell."""
    schema = scan.grid.schema()
    for block in read_blocks(scan, part):
        values = [v.coding.decode(stored) for v, stored in zip(scan.grid.variables, block.values, strict=True)]
        for first in range(0, block.cells, CELLS_PER_BATCH):
            end = min(first + CELLS_PER_BATCH, block.cells)
            positions = np.unravel_index(np.arange(first, end), block.shape) if block.shape else ()
            columns = [
                scan.coordinate(axis).take(pa.array(block.indices[axis][position]))
                for axis, position in enumerate(positions)
            ]
            columns += [each.slice(first, end - first) for each in values]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            if scan.beyond is not None:
                batch = batch.filter(pa.array(_is_beyond(block, positions, scan.beyond)))
            kept = exact_rows(batch, scan.exact, scan.zone)
            if len(kept):
                yield kept


def read_columns(scan: Scan, part: BlockPart, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield one row per cell with some of the columns. Cells that cannot match are left out if they are many."""
    schema = pa.schema([scan.grid.schema().field(name) for name in names])
    axes = {dimension.name: axis for axis, dimension in enumerate(scan.grid.dimensions)}
    coordinates = {name: _numpy_coordinate(scan.coordinate(axes[name])) for name in names if name in axes}
    for block in read_blocks(scan, part):
        values = {v.name: v.coding.decode(stored) for v, stored in zip(scan.grid.variables, block.values, strict=True)}
        mask = scan.test.matches(values) if scan.test is not None and values else None
        chosen = None if mask is None else np.flatnonzero(mask)
        if chosen is not None and not len(chosen):
            continue
        within = None if chosen is None else np.unravel_index(chosen, block.shape) if block.shape else ()
        columns = []
        for name in names:
            if name not in axes:
                columns.append(values[name] if chosen is None else values[name].take(from_numpy(chosen)))
                continue
            axis = axes[name]
            shape = tuple(-1 if each == axis else 1 for each in range(len(block.shape)))
            if within is not None:
                positions = block.indices[axis][within[axis]]
            else:
                positions = np.broadcast_to(block.indices[axis].reshape(shape), block.shape)
            columns.append(_coordinate_column(coordinates[name], positions, schema.field(name).type))
        rows = block.cells if chosen is None else len(chosen)
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        for first in range(0, rows, ROWS_PER_BATCH):
            yield batch.slice(first, ROWS_PER_BATCH)


def _numpy_coordinate(values: pa.Array) -> pa.Array | npt.NDArray[Any]:
    """Return a coordinate as numbers, if it has no nulls. Gathering numbers is the fastest."""
    kind = values.type
    if values.null_count or not (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind)
    ):
        return values
    return to_numpy(values)


def _coordinate_column(
    values: pa.Array | npt.NDArray[Any], positions: npt.NDArray[np.int64], type: pa.DataType
) -> pa.Array:
    if isinstance(values, np.ndarray):
        taken = from_numpy(values[positions])
        return taken.view(type) if pa.types.is_timestamp(type) else taken
    return values.take(from_numpy(positions))


def _is_beyond(
    block: Block, positions: Sequence[npt.NDArray[np.int64]], shape: tuple[int, ...]
) -> npt.NDArray[np.bool_]:
    outside: npt.NDArray[np.bool_] = np.logical_or.reduce(
        [
            block.indices[axis][position] >= length
            for axis, (position, length) in enumerate(zip(positions, shape, strict=True))
        ]
    )
    return outside


def read_rows(scan: Scan, part: BlockPart, layout: RowsLayout | None = None) -> Iterator[pa.RecordBatch]:
    """Yield one row per run of cells along the last dimensions, as lists."""
    schema = rows_schema(scan.grid, layout)
    rank = len(scan.grid.shape)
    folded = min(rank, 1) if layout is None else layout.folded
    nulls = [layout is None or lists_have_nulls(variable) for variable in scan.grid.variables]
    outer_columns = _OuterColumns(scan, rank - folded)
    for block in read_blocks(scan, part):
        outer, inner = block.shape[: rank - folded], block.shape[rank - folded :]
        length, count = int(np.prod(inner, dtype=np.int64)), int(np.prod(outer, dtype=np.int64))
        if not length:
            continue
        values = [
            v.coding.decode(stored, as_nan=not may)
            for v, stored, may in zip(scan.grid.variables, block.values, nulls, strict=True)
        ]
        step = max(1, LISTED_CELLS_PER_BATCH // length)
        for first in range(0, count, step):
            rows = min(step, count - first)
            columns = outer_columns.of(block, first, rows)
            columns += _folded_columns(scan, block, rows, rank - folded, layout)
            if layout is not None and layout.picked:
                columns.append(pa.nulls(rows, PICKED_TYPE))
            columns += [
                _lists(each.slice(first * length, rows * length), rows, length, nulls=may)
                for each, may in zip(values, nulls, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            kept = batch if scan.test is None or layout is None else _leave_out(batch, scan, scan.test, length)
            if len(kept):
                yield kept


def _leave_out(batch: pa.RecordBatch, scan: Scan, test: CellTest, length: int) -> pa.RecordBatch:
    """Remove cells that cannot match, if they are many, and rows that are then empty."""
    mask = test.matches({v.name: v.coding.with_nulls(batch.column(v.name).values) for v in scan.grid.variables})
    if mask is None:
        return batch
    chosen = np.flatnonzero(mask)
    counts = np.bincount(chosen // length, minlength=len(batch))
    rows, cells = pa.array(counts > 0), pa.array(chosen)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts[counts > 0])]).astype(np.int32))
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name == PICKED:
            columns.append(_listed(offsets, pa.array((chosen % length).astype(np.int32)), nulls=False))
        elif pa.types.is_list(field.type):
            columns.append(_listed(offsets, column.values.take(cells), nulls=field.type.value_field.nullable))
        else:
            columns.append(column.filter(rows))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


class _OuterColumns:
    """Coordinates of rows along the first dimensions. They are cached, because the next block mostly has the same."""

    def __init__(self, scan: Scan, rank: int) -> None:
        self._coordinates = [scan.coordinate(axis) for axis in range(rank)]
        self._rank = rank
        self._last: tuple[Any, list[pa.Array]] = (None, [])

    def of(self, block: Block, first: int, rows: int) -> list[pa.Array]:
        """Return the columns of some rows of a block."""
        key = (block.coordinates[: self._rank], first, rows)
        if key != self._last[0]:
            outer = block.shape[: self._rank]
            positions = np.unravel_index(np.arange(first, first + rows), outer) if outer else ()
            taken = zip(self._coordinates, block.indices, positions, strict=False)
            self._last = key, [values.take(pa.array(indices[position])) for values, indices, position in taken]
        return list(self._last[1])


def _folded_columns(scan: Scan, block: Block, rows: int, first_axis: int, layout: RowsLayout | None) -> list[pa.Array]:
    inner = block.shape[first_axis:]
    length = int(np.prod(inner, dtype=np.int64))
    columns = []
    for axis in range(first_axis, len(block.shape)):
        indices = block.indices[axis]
        if layout is not None and axis in layout.looked_up:
            columns.append(pa.array(np.full(rows, indices[0], dtype=np.int32)))
        else:
            shape = tuple(len(indices) if a == axis - first_axis else 1 for a in range(len(inner)))
            once = np.broadcast_to(indices.reshape(shape), inner).reshape(-1)
            columns.append(_lists(scan.coordinate(axis).take(pa.array(np.tile(once, rows))), rows, length))
        if layout is not None:
            columns.append(pa.array(np.full(rows, len(indices), dtype=np.int32)))
    return columns


def _lists(values: pa.Array, rows: int, length: int, *, nulls: bool = True) -> pa.Array:
    return _listed(pa.array(np.arange(0, rows * length + 1, length, dtype=np.int32)), values, nulls=nulls)


def _listed(offsets: pa.Array, values: pa.Array, *, nulls: bool = True) -> pa.Array:
    return pa.ListArray.from_arrays(offsets, values).cast(list_type(values.type, nulls=nulls))


def read_chunks(scan: Scan, part: BlockPart) -> Iterator[pa.RecordBatch]:
    """Yield one row per block, with its values as a tensor."""
    schema = chunks_schema(scan.grid, scan.tensor)
    for block in read_blocks(scan, part):
        if block.cells:
            yield pa.RecordBatch.from_arrays(_chunk_columns(scan, block, schema), schema=schema)


def _chunk_columns(scan: Scan, block: Block, schema: pa.Schema) -> list[pa.Array]:
    starts = [int(each[0]) for each in block.indices]
    columns: list[Any] = [[list(block.coordinates)], [starts], [list(block.shape)]]
    for axis, indices in enumerate(block.indices):
        ends = scan.coordinate(axis).take(pa.array(indices[[0, -1]]))
        columns += [ends.slice(0, 1), ends.slice(1, 1)]
    for variable, stored in zip(scan.grid.variables, block.values, strict=True):
        if scan.tensor == "list":
            columns.append(_lists(variable.coding.decode(stored), 1, block.cells))
        else:
            tensor = variable.coding.decode_tensor(stored)
            columns += [[tensor.tobytes()], [tensor.dtype.str]]
    return [each if isinstance(each, pa.Array) else pa.array(each, type=f.type) for each, f in zip(columns, schema)]


def scan_batches(scan: Scan, part: BlockPart) -> Iterator[pa.RecordBatch]:
    """Read a share in the layout of its scan."""
    readers = {"cells": read_cells, "rows": read_rows, "chunks": read_chunks}
    return readers[scan.layout](scan, part)


def layout_schema(scan: Scan) -> pa.Schema:
    """Return the columns that `scan_batches` yields."""
    if scan.layout == "cells":
        return scan.grid.schema()
    return rows_schema(scan.grid) if scan.layout == "rows" else chunks_schema(scan.grid, scan.tensor)
