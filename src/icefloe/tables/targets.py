"""Write rows to a grid, which is created or extended as needed: rows become fragments of blocks, and then chunks."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe.blocking import run_blocking
from icefloe.codec_pipeline import enable_variable_grids
from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.model.snapshot import ArrayNode
from icefloe.model.zarr_document import ChunkLengths, as_lengths, grid_document, parse_document, parse_grid
from icefloe.session.session import Session
from icefloe.tables.columns import TIMESTAMP, ArrayKind, ColumnCoding, encode_column, kind_of_column
from icefloe.tables.grids import Grid, Variable, find_grid, read_coordinate

MODES = ("append", "upsert", "overwrite", "error")
DUPLICATES = ("error", "any", "min", "max", "sum", "mean")
OFF_GRID = ("error", "drop")
_CELLS_PER_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write of rows."""

    group: str = "/"
    dims: tuple[str, ...] | None = None
    mode: str = "append"
    append_dim: str | None = None
    chunks: Mapping[str, int] = field(default_factory=dict)
    coordinates: Mapping[str, Any] = field(default_factory=dict)
    duplicates: str = "error"
    off_grid: str = "error"
    any_order: bool = False
    """Whether new coordinates may be before existing ones."""

    def __post_init__(self) -> None:
        for name, allowed in (("mode", MODES), ("duplicates", DUPLICATES), ("off_grid", OFF_GRID)):
            value = getattr(self, name)
            if value not in allowed:
                raise InvalidInputError(f"{name} is {value!r}, expected one of {', '.join(allowed)}")


@dataclass(frozen=True, slots=True)
class TargetVariable:
    """An array that receives a column."""

    name: str
    path: str
    chunks: tuple[ChunkLengths, ...]
    coding: ColumnCoding
    fill_value: Any
    made: ArrayKind | None = None
    """Set for arrays that do not exist yet."""


@dataclass(frozen=True, slots=True)
class TargetDimension:
    """A dimension: its coordinate values after the write, and how many of them existed before."""

    name: str
    values: pa.Array
    known: int
    made: ArrayKind | None = None
    coding: ColumnCoding | None = None
    path: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """The grid of a write."""

    group: str
    dimensions: tuple[TargetDimension, ...]
    variables: tuple[TargetVariable, ...]
    block: tuple[ChunkLengths, ...]
    """Cells that one task writes together: whole chunks of every variable."""
    replaces: tuple[str, ...] = ()
    """Arrays that are removed first."""

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(dimension.name for dimension in self.dimensions)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(dimension.values) for dimension in self.dimensions)

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(each.count(n) for n, each in zip(self.shape, self.block, strict=True))

    @property
    def largest(self) -> tuple[int, ...]:
        """The lengths of the largest block. Cells are numbered in a block of this shape."""
        return tuple(each.longest for each in self.block)


def write_dims(session: Session, options: WriteOptions, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the dimensions of a write: those given, or those of the arrays of its columns."""
    if options.dims:
        missing = [name for name in options.dims if name not in columns]
        if missing:
            raise InvalidInputError(f"the dimension {missing[0]!r} is not a column. There are: {', '.join(columns)}")
        return options.dims
    base = options.group.rstrip("/") + "/"
    found: dict[tuple[str | None, ...], str] = {}
    for name in columns:
        node = session.state.tree.find_array(base + name)
        if node is not None and node.dimension_names is not None and node.dimension_names != (name,):
            found[node.dimension_names] = name
    if len(found) != 1:
        reason = "their arrays have several" if found else "none of them has an array yet"
        raise InvalidInputError(
            f"the dimensions of the columns {', '.join(columns)} are not known: {reason}. Give the columns that are "
            "dimensions, in order, with `dims`"
        )
    names = next(iter(found))
    missing = [str(name) for name in names if name not in columns]
    if missing:
        raise InvalidInputError(
            f"the rows have no column for the dimension {missing[0]!r} of {next(iter(found.values()))}"
        )
    return tuple(str(name) for name in names)


def plan_target(session: Session, options: WriteOptions, schema: pa.Schema, incoming: Mapping[str, pa.Array]) -> Target:
    """Decide what is created, extended or replaced. `incoming` has the distinct coordinates of the rows."""
    dims = write_dims(session, options, schema.names)
    base = options.group.rstrip("/") + "/"
    names = [name for name in schema.names if name not in dims]
    if not names:
        raise InvalidInputError(
            f"every column ({', '.join(schema.names)}) is a dimension, so there are no values to write"
        )
    existing = [name for name in names if session.state.tree.find_array(base + name) is not None]
    if options.mode == "error" and existing:
        raise AlreadyExistsError(f"the array {base + existing[0]} exists. Use the mode append, upsert or overwrite")
    fresh = options.mode == "overwrite" or not existing
    grid = None if fresh else find_grid(session, options.group, existing)
    if grid is not None and grid.dims != dims:
        raise InvalidInputError(f"{base + existing[0]} has the dimensions {grid.dims}, but the rows have {dims}")
    dimensions = tuple(_dimension(session, options, grid, name, schema, incoming) for name in dims)
    shape = tuple(len(dimension.values) for dimension in dimensions)
    chunks = _chunk_shape(dims, shape, options.chunks, grid)
    variables = tuple(_variable(session, base, schema, name, grid, chunks) for name in names)
    replaced = _replaced(session, options, base, dims, names) if options.mode == "overwrite" else ()
    return Target(options.group, dimensions, variables, _common_block(shape, variables), replaced)


def _replaced(
    session: Session, options: WriteOptions, base: str, dims: Sequence[str], names: Sequence[str]
) -> tuple[str, ...]:
    """Return the arrays that an overwrite removes: those it writes, and all others with a replaced dimension."""
    doomed = []
    for node in session.state.tree.subtree(options.group):
        if isinstance(node, ArrayNode) and node.path.startswith(base) and "/" not in node.path[len(base) :]:
            name = node.path[len(base) :]
            if name in names or name in dims or set(node.dimension_names or ()) & set(dims):
                doomed.append(node.path)
    return tuple(doomed)


def _dimension(
    session: Session,
    options: WriteOptions,
    grid: Grid | None,
    name: str,
    schema: pa.Schema,
    incoming: Mapping[str, pa.Array],
) -> TargetDimension:
    base = options.group.rstrip("/") + "/"
    arriving = _instants(incoming[name])
    if arriving.null_count:
        raise InvalidInputError(f"the dimension column {name} has nulls, but every row needs a position on the grid")
    if grid is None:
        return _new_dimension(name, options, arriving, base)
    known = next(dimension for dimension in grid.dimensions if dimension.name == name)
    values = read_coordinate(session, known)
    given, arriving = arriving, _in_type_of(values, arriving, name)
    off = arriving.filter(pc.invert(pc.is_in(arriving, value_set=values)))
    extends = options.mode == "append" and name == _append_dim(options, grid)
    if not len(off) or (options.off_grid == "drop" and not extends):
        return TargetDimension(name, values, len(values), None, known.coding, known.path or "")
    if not extends:
        note = "" if options.mode == "append" else f"; mode={options.mode!r} does not extend arrays"
        example = given.filter(pc.invert(pc.is_in(arriving, value_set=values)))[0]
        raise InvalidInputError(
            f"{len(off)} value(s) of {name} are not on the grid{note}, for example {example}. Pass off_grid='drop' to "
            "leave such rows out, or extend one dimension with append_dim"
        )
    if off.null_count:
        example = given.filter(pc.is_null(arriving))[0]
        raise InvalidInputError(f"{example} of the column {name} does not fit its coordinate ({values.type})")
    if known.path is None:
        raise InvalidInputError(
            f"the dimension {name} has no coordinate, so it cannot be extended. Its values are positions"
        )
    return TargetDimension(
        name, _extend(name, values, off, any_order=options.any_order), len(values), None, known.coding, known.path
    )


def _append_dim(options: WriteOptions, grid: Grid) -> str:
    if options.append_dim is not None and options.append_dim not in grid.dims:
        raise InvalidInputError(f"append_dim is {options.append_dim!r}, expected one of {', '.join(grid.dims)}")
    return options.append_dim or grid.dims[0]


def _extend(name: str, values: pa.Array, off: pa.Array, *, any_order: bool) -> pa.Array:
    _refuse_nan(name, off)
    ascending = len(values) < 2 or values[0].as_py() < values[-1].as_py()
    ordered = off.take(pc.sort_indices(off, sort_keys=[("", "ascending" if ascending else "descending")]))
    if len(values) and not any_order:
        last, first = values[-1].as_py(), ordered[0].as_py()
        if first < last if ascending else first > last:
            raise InvalidInputError(
                f"new values of {name} begin at {first}, before the last existing value {last}. A grid is extended at "
                "its end. Pass any_order=True to append them anyway"
            )
    return pa.concat_arrays([values, ordered])


def _new_dimension(name: str, options: WriteOptions, arriving: pa.Array, base: str) -> TargetDimension:
    given = options.coordinates.get(name)
    if given is None:
        values = arriving.take(pc.sort_indices(arriving))
    else:
        values = _in_type_of(arriving, _instants(given if isinstance(given, pa.Array) else pa.array(given)), name)
        if values.null_count:
            raise InvalidInputError(f"coordinates of {name} are missing, or do not fit its column ({arriving.type})")
        outside = arriving.filter(pc.invert(pc.is_in(arriving, value_set=values)))
        if len(outside) and options.off_grid == "error":
            raise InvalidInputError(
                f"{len(outside)} value(s) of {name} are not on the given grid, for example {outside[0]}"
            )
    _refuse_nan(name, values)
    if len(pc.unique(values)) < len(values):
        raise InvalidInputError(f"the coordinates of {name} contain duplicates")
    whole = pa.types.is_timestamp(values.type) and not bool((values.view(pa.int64()).to_numpy() % 1_000_000).any())
    kind = kind_of_column(name, values.type, is_coordinate=True, whole_seconds=whole)
    return TargetDimension(name, values, 0, kind, kind.coding(), base + name)


def _refuse_nan(name: str, values: pa.Array) -> None:
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        raise InvalidInputError(f"the dimension {name} contains NaN. Leave those rows out")


def _instants(values: pa.Array) -> pa.Array:
    """Return times as instants in UTC, and other values unchanged."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64()).view(TIMESTAMP)
    return values


def _in_type_of(coordinate: pa.Array, values: pa.Array, name: str = "") -> pa.Array:
    """Convert values to the type of a coordinate. Values that do not fit are null. Doubles are rounded to floats."""
    wanted = coordinate.type
    if values.type == wanted:
        return values
    try:
        cast = values.cast(wanted, safe=False)
        if pa.types.is_floating(wanted) and pa.types.is_floating(values.type):
            return cast
        return pc.if_else(pc.equal(cast.cast(values.type, safe=False), values), cast, pa.scalar(None, wanted))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"the dimension column {name} ({values.type}) does not fit its coordinate ({wanted}): {error}"
        ) from error


def _chunk_shape(
    dims: Sequence[str], shape: tuple[int, ...], wanted: Mapping[str, int], grid: Grid | None
) -> tuple[ChunkLengths, ...]:
    unknown = sorted(set(wanted) - set(dims))
    if unknown:
        raise InvalidInputError(
            f"chunks contains {unknown[0]!r}, which is not a dimension. There are: {', '.join(dims)}"
        )
    if grid is not None:
        # A new array beside others has one length for all chunks.
        return as_lengths(each.longest for each in grid.block)
    chunks = [max(1, wanted.get(dim, length)) for dim, length in zip(dims, shape, strict=True)]
    free = [axis for axis, dim in enumerate(dims) if dim not in wanted]
    while math.prod(chunks) > _CELLS_PER_CHUNK and any(chunks[axis] > 1 for axis in free):
        axis = max(free, key=lambda each: chunks[each])
        chunks[axis] = -(-chunks[axis] // 2)
    return as_lengths(chunks)


def _variable(
    session: Session, base: str, schema: pa.Schema, name: str, grid: Grid | None, chunks: tuple[ChunkLengths, ...]
) -> TargetVariable:
    known: Variable | None = None
    if grid is not None:
        known = next((variable for variable in grid.variables if variable.name == name), None)
    if known is not None:
        array = zarr.open_array(session.store, path=known.path.lstrip("/"), mode="r", zarr_format=3)
        return TargetVariable(name, known.path, known.chunks, known.coding, array.fill_value)
    kind = kind_of_column(name, schema.field(name).type)
    return TargetVariable(name, base + name, chunks, kind.coding(), kind.fill_value, kind)


def _common_block(shape: tuple[int, ...], variables: Sequence[TargetVariable]) -> tuple[ChunkLengths, ...]:
    """Return whole chunks of every variable, as short as possible. They end where a chunk of every variable ends."""
    return tuple(
        _common_lengths(max(length, 1), {variable.chunks[axis] for variable in variables})
        for axis, length in enumerate(shape)
    )


def _common_lengths(cells: int, lengths: Collection[ChunkLengths]) -> ChunkLengths:
    same = math.lcm(*(each.longest for each in lengths if each.is_regular))
    varying = [each for each in lengths if not each.is_regular]
    if not varying:
        return ChunkLengths(min(same, cells))
    starts = np.arange(0, cells, same)
    for each in varying:
        starts = np.intersect1d(starts, each.starts(cells))
    return ChunkLengths(tuple(np.diff(starts, append=cells).tolist()))


def apply_target(session: Session, target: Target) -> None:
    """Create, extend and remove arrays and coordinates in a session. Values are written later."""
    for path in target.replaces:
        session.state.delete_node(path)
    group = zarr.open_group(session.store, path=target.group.strip("/"), mode="a", zarr_format=3)
    for axis, dimension in enumerate(target.dimensions):
        _write_coordinate(group, session, target, axis, dimension)
    for variable in target.variables:
        if variable.made is not None:
            chunks = tuple(each.longest for each in variable.chunks)
            _create(group, variable.name, variable.made, target.shape, chunks, target.dims)
    if any(dimension.known != len(dimension.values) for dimension in target.dimensions):
        _resize_all(session, target)


def _write_coordinate(
    group: zarr.Group, session: Session, target: Target, axis: int, dimension: TargetDimension
) -> None:
    if dimension.made is not None and dimension.coding is not None:
        array = _create(
            group,
            dimension.name,
            dimension.made,
            (len(dimension.values),),
            (max(1, len(dimension.values)),),
            (dimension.name,),
        )
        array[:] = encode_column(dimension.name, dimension.coding, dimension.values, None)
    elif len(dimension.values) > dimension.known and dimension.coding is not None:
        array = _resize(session, dimension.path, (len(dimension.values),))
        fresh = dimension.values.slice(dimension.known)
        array[dimension.known :] = encode_column(dimension.name, dimension.coding, fresh, None)


def _create(
    group: zarr.Group,
    name: str,
    kind: ArrayKind,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dims: tuple[str, ...],
) -> zarr.Array[Any]:
    dtype: Any = str if kind.dtype == "string" else np.dtype(kind.dtype)
    made: zarr.Array[Any] = group.create_array(
        name,
        shape=shape,
        chunks=tuple(max(1, c) for c in chunks),
        dtype=dtype,
        fill_value=kind.fill_value,
        dimension_names=dims,
        attributes=dict(kind.attributes),
    )
    return made


def _resize_all(session: Session, target: Target) -> None:
    """Extend every array of the group that has an extended dimension."""
    lengths = {dimension.name: len(dimension.values) for dimension in target.dimensions}
    base = target.group.rstrip("/") + "/"
    for node in session.state.tree.subtree(target.group):
        if not isinstance(node, ArrayNode) or "/" in node.path[len(base) :] or node.dimension_names is None:
            continue
        shape = tuple(
            max(length, lengths.get(str(name), length))
            for name, length in zip(node.dimension_names, node.shape, strict=True)
        )
        if shape != node.shape:
            _resize(session, node.path, shape)


def _resize(session: Session, path: str, shape: tuple[int, ...]) -> zarr.Array[Any]:
    """Make an array larger. In a variable chunk grid, new chunks have the length of the last one, as in an ingest."""
    key = path.strip("/")
    document = dict(parse_document(run_blocking(session.state.fetch_document(path)) or b""))
    grid = [each.covering(n) for each, n in zip(parse_grid(document), shape, strict=True)]
    if all(each.is_regular for each in grid):
        array = zarr.open_array(session.store, path=key, mode="r+", zarr_format=3)
        array.resize(shape)
        return array
    text = json.dumps({**document, "shape": list(shape), "chunk_grid": grid_document(grid)}, indent=2).encode()
    run_blocking(session.store.set(f"{key}/zarr.json", default_buffer_prototype().buffer.from_bytes(text)))
    return zarr.open_array(session.store, path=key, mode="r+", zarr_format=3)


def positions(values: pa.Array, coordinate: pa.Array) -> npt.NDArray[np.int64]:
    """Return the positions of values on a coordinate. -1 means that a value is not on it."""
    wanted = _in_type_of(coordinate, _instants(values))
    found = pc.index_in(wanted, value_set=coordinate)
    result: npt.NDArray[np.int64] = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return result


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
    for index, lengths, count in zip(indices, target.block, target.blocks, strict=True):
        at = lengths.indices(index)
        blocks = blocks * count + at
        offsets = offsets * lengths.longest + index - lengths.starts_of(at)
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
    if not all(each.is_regular for variable in target.variables for each in variable.chunks):
        # A target has such chunks only if they are enabled where it was planned. A worker has settings of its own.
        enable_variable_grids()
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
    window = tuple(
        slice(lengths.start(int(c)), min(lengths.start(int(c) + 1), size))
        for c, lengths, size in zip(corner, target.block, target.shape, strict=True)
    )
    shape = tuple(each.stop - each.start for each in window)
    if len(offsets) == int(np.prod(shape, dtype=np.int64)) or variable.made is not None:
        cells = np.full(shape, variable.fill_value, dtype=values.dtype)
    else:
        cells = np.array(array[window])
    cells[np.unravel_index(offsets, target.largest)] = values
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
