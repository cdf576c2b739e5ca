"""Set virtual references and move chunks within an array, without touching their bytes."""

from __future__ import annotations

import datetime as dt
import math
import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.manifests.chunk_columns import (
    CODED_AT_ONCE,
    TextCoder,
    code_texts,
    find_rows,
    map_coords,
    normalise,
    overlay,
    pack_numbers,
    shift_coords,
    take,
)
from icefloe.model.chunk_table import (
    FEW_TEXTS,
    ChunkKind,
    ChunkRef,
    ChunkTable,
    Coords,
    StringColumn,
    codes_of,
    highest,
    lowest,
    text_array,
    tombstones,
)
from icefloe.model.snapshot import ArrayNode
from icefloe.model.virtual_chunk_container import Checksum, VirtualChunkSpec
from icefloe.model.zarr_document import check_unicode, parse_document, parse_grid
from icefloe.session.session_state import MAX_COORD, SessionState, in_grid

Mapper = Callable[[Iterable[int]], Iterable[int] | None]
_Places = npt.NDArray[np.int64]
"""Coordinates of chunks, int64[n, ndim]."""


async def shift_array(state: SessionState, path: str, offset: Sequence[int]) -> None:
    """Move every chunk by an offset. Vacated chunks read as fill value. Chunks that leave the grid are dropped."""
    node = _array(state, path)
    if len(offset) != len(node.shape):
        raise InvalidInputError(
            f"offset {tuple(offset)} has {len(offset)} value(s), but {node.path} has {len(node.shape)} dimension(s)"
        )
    table = await state.chunk_table(node)
    moved = shift_coords(table, offset, node.grid)
    target = moved.coords.astype(np.int64)
    _check_moves(node, target - np.asarray(offset, dtype=np.int64), target)
    state.add_table(node, overlay(tombstones(table.coords), moved))


async def reindex_array(state: SessionState, path: str, forward: Mapper, backward: Mapper | None) -> None:
    """Move chunks by a function of their coordinates."""
    node = _array(state, path)
    table = await state.chunk_table(node)

    def checked(coords: Coords) -> Coords | None:
        target = forward(list(coords))
        if target is None:
            return None
        moved = tuple(int(c) for c in target)
        state.check_coords(node, moved)
        moves.append((coords, moved))
        return moved

    moves: list[tuple[Coords, Coords]] = []
    mapped = map_coords(table, checked)
    pairs = np.array(moves, dtype=np.int64).reshape(len(moves), 2, len(node.shape))
    _check_moves(node, pairs[:, 0], pairs[:, 1])
    cleared = _vacated(table, backward) if backward is not None else None
    state.add_table(node, mapped if cleared is None else overlay(cleared, mapped))


def _vacated(table: ChunkTable, backward: Mapper) -> ChunkTable:
    """Tombstones for coordinates whose source has no chunk."""
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


def _check_moves(node: ArrayNode, before: _Places, after: _Places) -> None:
    """Refuse to move a chunk to the place of a chunk of another shape. Its bytes would not fit there."""
    for axis, lengths in enumerate(parse_grid(parse_document(node.document))):
        old, new = lengths.lengths(before[:, axis]), lengths.lengths(after[:, axis])
        wrong = np.flatnonzero(old != new)
        if len(wrong):
            row = int(wrong[0])
            name = None if node.dimension_names is None else node.dimension_names[axis]
            raise InvalidInputError(
                f"chunk {tuple(before[row].tolist())} of {node.path} cannot move to {tuple(after[row].tolist())}: it "
                f"has {old[row]} cells along {axis if name is None else name}, and the chunk there has {new[row]}. In "
                "a variable chunk grid, a chunk can only move to a place of the same shape. Read and write the cells "
                "instead, or make the grid regular with icefloe.spark.rechunk",
                path=node.path,
            )


def virtual_ref(
    state: SessionState, location: str, offset: int, length: int, checksum: Checksum, *, validate_container: bool
) -> ChunkRef:
    """A checked reference to a range of a file."""
    _check_range(offset, length)
    check_unicode(location, "the location")
    text = _checked_location(state, location) if validate_container else location
    etag, modified = _split_checksum(state, checksum)
    return ChunkRef(ChunkKind.VIRTUAL, offset, length, location=text, etag=etag, last_modified=modified)


def _checked_location(state: SessionState, location: str) -> str:
    checked: str = state.context.containers.check_locations([location])[0]
    return checked


def _check_range(offset: int, length: int) -> None:
    if offset < 0 or length <= 0:
        raise InvalidInputError(
            f"offset {offset} and length {length}: a virtual chunk needs offset >= 0 and length > 0"
        )


def _check_ranges(offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
    if int(offsets.min()) < 0 or int(lengths.min()) <= 0:
        row = int(((offsets < 0) | (lengths <= 0)).argmax())
        _check_range(int(offsets[row]), int(lengths[row]))


def _split_checksum(state: SessionState, checksum: Checksum) -> tuple[str | None, int | None]:
    if checksum is None:
        return None, None
    if not state.context.format.capabilities.checksums:
        raise UnsupportedError(
            f"generation {state.context.format.spec_version.value!r} cannot store checksums of virtual chunks"
        )
    if isinstance(checksum, str):
        return check_unicode(checksum, "the checksum"), None
    if checksum.tzinfo is None:
        raise InvalidInputError(
            f"the checksum time {checksum} has no time zone; use datetime(..., tzinfo=timezone.utc)"
        )
    return None, _whole_seconds(checksum)


def _whole_seconds(checksum: dt.datetime) -> int:
    """A time that a file must not have been modified after, in whole seconds.

    A time in the past may be the modification time of the file itself, so it is rounded up. A time in the future leaves
    enough room for that, and is rounded down: the file is protected from its last second on.
    """
    seconds = checksum.timestamp()
    return math.ceil(seconds) if checksum <= dt.datetime.now(dt.UTC) else math.floor(seconds)


def set_specs(
    state: SessionState, array_path: str, chunks: Sequence[VirtualChunkSpec], *, validate_containers: bool
) -> list[tuple[int, ...]] | None:
    """Set references from specifications, all or none; those no container covers are left out and returned."""
    node = _array(state, array_path)
    specs = list(chunks)
    if not specs:
        return None
    columns = _read_usual_specs(specs, len(node.shape)) or _read_any_specs(state, node, specs)
    coords, offsets, lengths = _coords_in_grid(state, node, columns.coords), columns.offsets, columns.lengths
    _check_ranges(offsets, lengths)
    texts = _spec_locations(specs) if columns.codes is None else columns.locations
    codes, locations = _coded(texts, len(texts), "a location")
    codes = codes if columns.codes is None else columns.codes
    refused = np.empty(0, dtype=np.int64)
    if validate_containers:
        locations, covered = state.context.containers.select_covered(locations)
        refused = np.flatnonzero(~covered[codes])
    etag, etags, modified = _spec_checksums(state, specs) if columns.with_checksums else (None, (), None)
    table = ChunkTable(
        coords=coords,
        kind=np.full(len(specs), ChunkKind.VIRTUAL, dtype=np.uint8),
        offset=offsets.view(np.uint64),
        length=lengths.view(np.uint64),
        location=codes,
        locations=locations,
        etag=etag,
        etags=etags,
        last_modified=modified,
    )
    if len(refused):
        table = take(table, np.delete(np.arange(len(specs)), refused))
    state.set_table(node, normalise(table))
    return [tuple(row) for row in coords[refused].tolist()] or None


@dataclass(frozen=True, slots=True)
class _SpecColumns:
    """The attributes of specifications as columns."""

    coords: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    with_checksums: bool
    locations: list[str] = field(default_factory=list)
    """The distinct locations."""
    codes: npt.NDArray[np.int32] | None = None
    """The position in `locations` of every row. None if the locations were not read."""


def _read_usual_specs(specs: list[VirtualChunkSpec], ndim: int) -> _SpecColumns | None:
    """The columns of specifications whose values have the usual types, or None if one of them has not.

    Every step is one C loop or one list comprehension for a piece of specifications, without objects per specification.
    """
    count = len(specs)
    coords = np.empty((count, ndim), dtype=np.uint32)
    offsets, lengths = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    codes: npt.NDArray[np.int32] | None = np.empty(count, dtype=np.int32)
    coder = TextCoder()
    with_checksums = False
    for first in range(0, count, CODED_AT_ONCE):
        piece = specs[first : first + CODED_AT_ONCE]
        size = len(piece)
        rows = slice(first, first + size)
        indices = [spec.index for spec in piece]
        types = list(map(type, indices))
        if types.count(list) + types.count(tuple) < size or list(map(len, indices)).count(ndim) < size:
            return None
        try:
            for axis in range(ndim):
                coords[rows, axis] = pack_numbers([index[axis] for index in indices], "I")
            offsets[rows] = pack_numbers([spec.offset for spec in piece], "q")
            lengths[rows] = pack_numbers([spec.length for spec in piece], "q")
        except (struct.error, TypeError, OverflowError):
            return None
        if codes is not None:
            coded = coder.code([spec.location for spec in piece])
            if coded is None:
                codes = None
            else:
                codes[rows] = coded
        if not with_checksums:
            with_checksums = bool(
                [1 for spec in piece if spec.etag_checksum is not None or spec.last_updated_at_checksum is not None]
            )
    return _SpecColumns(coords, offsets, lengths, with_checksums, coder.texts, codes)


def _read_any_specs(state: SessionState, node: ArrayNode, specs: list[VirtualChunkSpec]) -> _SpecColumns:
    """The columns of specifications. An error names the first value that cannot be in one."""
    indices = _spec_values(specs, "index")
    ndim = len(node.shape)
    if set(map(len, indices)) != {ndim}:
        state.check_coords(node, tuple(next(index for index in indices if len(index) != ndim)))
    flat = chain.from_iterable(indices)
    try:
        numbers = np.fromiter(map(operator.index, flat), dtype=np.int64, count=len(specs) * ndim)
    except (TypeError, OverflowError) as error:
        raise InvalidInputError(
            f"a chunk of {node.path} has coordinates that are not whole numbers: {error}"
        ) from error
    coords = _coords_in_grid(state, node, numbers.reshape(len(specs), ndim))
    offsets, lengths = _spec_numbers(specs, "offset"), _spec_numbers(specs, "length")
    return _SpecColumns(coords, offsets, lengths, with_checksums=True)


def _coords_in_grid(state: SessionState, node: ArrayNode, coords: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Coordinates as a matrix of their final type. Every one must be in the grid of the array."""
    if coords.shape[1]:
        for extreme in (lowest(coords), highest(coords)):
            if not in_grid(node, extreme):
                outside = ((coords < 0) | (coords >= np.array(node.grid)) | (coords > MAX_COORD)).any(axis=1)
                state.check_coords(node, tuple(coords[int(outside.argmax())].tolist()))
    return coords.astype(np.uint32, copy=False)


def _spec_values(specs: list[VirtualChunkSpec], name: str) -> list[Any]:
    return list(map(operator.attrgetter(name), specs))


def _spec_locations(specs: list[VirtualChunkSpec]) -> list[str]:
    texts: list[str] = _spec_values(specs, "location")
    for text in texts:
        if not isinstance(text, str):
            raise InvalidInputError(f"the location of a virtual chunk is {text!r}, which is not text")
    return texts


def _spec_numbers(specs: list[VirtualChunkSpec], name: str) -> npt.NDArray[np.int64]:
    try:
        return np.fromiter(map(operator.index, map(operator.attrgetter(name), specs)), dtype=np.int64, count=len(specs))
    except (TypeError, OverflowError) as error:
        raise InvalidInputError(f"the {name} of a virtual chunk is not a whole number: {error}") from error


def _spec_checksums(
    state: SessionState, specs: list[VirtualChunkSpec]
) -> tuple[npt.NDArray[np.int32] | None, Sequence[str], npt.NDArray[np.uint32] | None]:
    """The columns `etag`, `etags` and `last_modified` of specifications. An ETag comes before a time."""
    tags, times = _spec_values(specs, "etag_checksum"), _spec_values(specs, "last_updated_at_checksum")
    etag: npt.NDArray[np.int32] | None = None
    etags: Sequence[str] = ()
    modified: npt.NDArray[np.uint32] | None = None
    if any(tags):
        tags = [tag or None for tag in tags]
        _split_checksum(state, next(filter(None, tags)))
        etag, etags = _coded(tags, len(specs), "a checksum")
        times = [None if tag else time for tag, time in zip(tags, times, strict=True)]
    if any(times):
        seconds = {time: _split_checksum(state, time)[1] or 0 for time in set(times)}
        modified = np.fromiter(map(seconds.__getitem__, times), dtype=np.uint32, count=len(times))
    return etag, etags, modified


def _coded(texts: Any, count: int, name: str) -> tuple[npt.NDArray[np.int32], StringColumn]:
    """Texts in any columnar form as codes and a column of the distinct ones. Null has the code -1."""
    try:
        return code_texts(texts, count)
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{name} is not valid Unicode: {error.object!r}") from error


def set_columns(
    state: SessionState,
    array_path: str,
    grid_shape: tuple[int, ...],
    columns: tuple[Any, Any, Any],
    *,
    first: tuple[int, ...] | None,
    checksum: Any,
    validate_containers: bool,
) -> list[tuple[int, ...]] | None:
    """Set the references of a box of chunks from columns in C order; empty locations are left alone."""
    node = _array(state, array_path)
    ndim = len(node.shape)
    if ndim == 0 and math.prod(grid_shape) == 1 and not any(first or ()):
        grid_shape, first = (), None  # VirtualiZarr describes the one chunk of a scalar as a box of shape (1,)
    corner = tuple(first) if first is not None else (0,) * ndim
    if len(grid_shape) != ndim or len(corner) != ndim:
        raise InvalidInputError(
            f"a box of {grid_shape} chunks at {corner} does not fit {node.path}, which has {ndim} dimension(s)"
        )
    if all(grid_shape):
        state.check_coords(node, corner)
        state.check_coords(node, tuple(first + n - 1 for first, n in zip(corner, grid_shape, strict=True)))
    coords = _box_coords(grid_shape, corner)
    state.set_table(node, _virtual_table(state, coords, columns, checksum, validate_containers=validate_containers))
    return None


def set_points(
    state: SessionState,
    array_path: str,
    coords: Any,
    columns: tuple[Any, Any, Any],
    *,
    checksum: Any,
    validate_containers: bool,
) -> list[tuple[int, ...]] | None:
    """Set the references of chunks anywhere in the grid from columns; the last of equal coordinates wins."""
    node = _array(state, array_path)
    where = _point_coords(coords, node)
    table = _virtual_table(state, where, columns, checksum, validate_containers=validate_containers)
    state.set_table(node, normalise(table))
    return None


def _virtual_table(
    state: SessionState,
    coords: npt.NDArray[np.uint32],
    columns: tuple[Any, Any, Any],
    checksum: Any,
    *,
    validate_containers: bool,
) -> ChunkTable:
    """Checked columns (locations, offsets, lengths) as a table, without the rows that have no location."""
    count = len(coords)
    offsets, lengths = _numbers(columns[1], count, "offsets"), _numbers(columns[2], count, "lengths")
    codes, texts = _coded(columns[0], count, "a location")
    texts = _without_empty(texts)
    missing = np.zeros(len(texts) + 1, dtype=bool)
    if texts.null_count:
        missing[:-1] = np.fromiter((text is None for text in texts), dtype=bool, count=len(texts))
    missing[-1] = True  # the code of null
    present = np.flatnonzero(~missing[codes])
    if len(present) and not lengths[present].all():
        raise InvalidInputError("a virtual chunk has length 0. To skip a chunk, give it an empty location")
    if validate_containers and len(present):
        texts = state.context.containers.check_locations(texts)
    etag, modified = _split_checksum(state, checksum)
    return ChunkTable(
        coords=coords[present],
        kind=np.full(len(present), ChunkKind.VIRTUAL, dtype=np.uint8),
        offset=offsets[present],
        length=lengths[present],
        location=codes[present],
        locations=texts,
        etag=None if etag is None else np.zeros(len(present), dtype=np.int32),
        etags=() if etag is None else (etag,),
        last_modified=None if modified is None else np.full(len(present), modified, dtype=np.uint32),
    )


def set_table(state: SessionState, array_path: str, table: ChunkTable, *, validate_containers: bool = True) -> None:
    """Set references of any kind from a table of columns, in any order; the last of equal coordinates wins."""
    if validate_containers and table.location is not None and len(table.locations):
        state.context.containers.check_locations(table.locations)
    state.set_table(_array(state, array_path), normalise(table))


def _array(state: SessionState, path: str) -> ArrayNode:
    return state.tree.array(path if path.startswith("/") else "/" + path)


def _numbers(values: Any, count: int, name: str) -> npt.NDArray[np.uint64]:
    column = np.asarray(values).reshape(-1)
    if len(column) != count:
        raise InvalidInputError(f"{name} has {len(column)} values for {count} chunks")
    if column.dtype.kind not in "ui" or (column.dtype.kind == "i" and len(column) and column.min() < 0):
        raise InvalidInputError(f"{name} must be non-negative whole numbers, got {column.dtype}")
    return column.astype(np.uint64, copy=False)


def _point_coords(coords: Any, node: ArrayNode) -> npt.NDArray[np.uint32]:
    """Coordinates uint32[n, ndim] from a matrix, or from a tuple with one column per dimension."""
    if isinstance(coords, tuple):
        columns = [np.asarray(column).reshape(-1) for column in coords]
        if len({len(column) for column in columns}) > 1:
            raise InvalidInputError(f"columns of coordinates have different lengths: {[len(c) for c in columns]}")
        matrix = np.stack(columns, axis=1) if columns else np.empty((0, 0), dtype=np.uint32)
    else:
        matrix = np.asarray(coords)
    if matrix.ndim != 2 or matrix.shape[1] != len(node.shape):
        raise InvalidInputError(
            f"chunk coordinates of shape {matrix.shape} for {node.path}, which has {len(node.shape)} dimension(s); "
            "give a matrix with a row per chunk, or a tuple with a column per dimension"
        )
    if matrix.size and (matrix.dtype.kind not in "ui" or matrix.min() < 0 or matrix.max() >= 1 << 32):
        raise InvalidInputError(f"chunk coordinates must be whole numbers from 0 to {(1 << 32) - 1}")
    return matrix.astype(np.uint32, copy=False)


def _box_coords(shape: tuple[int, ...], corner: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    count = int(np.prod(shape, dtype=np.int64))
    coords = np.empty((count, len(shape)), dtype=np.uint32)
    for axis, grid in enumerate(
        np.meshgrid(*(np.arange(n, dtype=np.uint32) for n in shape), indexing="ij", copy=False)
    ):
        coords[:, axis] = grid.reshape(-1) + np.uint32(corner[axis])
    return coords


def _without_empty(texts: StringColumn) -> StringColumn:
    """The empty text means no reference, as null does."""
    if len(texts) <= FEW_TEXTS:
        few = list(texts)
        return StringColumn.of_few([text or None for text in few]) if "" in few else texts
    import pyarrow.compute as pc  # noqa: PLC0415 - a twentieth of a second that a few texts do not need

    # Comparing an Arrow array with a Python value would load pandas first.
    empty = codes_of(pc.binary_length(texts.arrow)) == 0
    if not empty.any():
        return texts
    return StringColumn(text_array([text or None for text in texts]))
