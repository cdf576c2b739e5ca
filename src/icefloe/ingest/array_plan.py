"""The plan of one target array, the conversion of source values to its values, and what a sync changes in it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.ingest.cf import (
    Packing,
    TimeUnits,
    convert_times,
    decoded_dtype,
    find_time_units,
    keeps_values,
    packing_of,
    unpack,
)
from icefloe.ingest.chunk_grids import (
    Index,
    SourceBox,
    cut_cells,
    find_recipes,
    is_contiguous_chunking,
)
from icefloe.ingest.members import Member
from icefloe.ingest.placement import ExistingArray, JoinedDimension, same_coordinates
from icefloe.ingest.source_model import SourceVariable
from icefloe.model.zarr_document import ChunkLengths, as_lengths, parse_grid

ArrayKind: TypeAlias = Literal["native", "virtual", "values"]

CHUNK_BYTES = 8 << 20
"""The approximate size of native chunks, unless another one is given."""


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """One array of the target, new or extended.

    kind       native: tasks write values; virtual: tasks write references; values: the plan contains its few values
    joined     its joined dimensions
    template   the variable as the sources have it, with the chunks to reference it by
    chunks     the chunk lengths, or the longest ones along dimensions whose chunks differ in length
    grid       the lengths of all chunks
    """

    path: str
    kind: ArrayKind
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    attributes: Mapping[str, Any]
    fill_value: Any
    document: bytes
    joined: tuple[str, ...]
    template: SourceVariable
    is_new: bool = True
    repacks: bool = False
    """Values of files are rounded to the packing of the array, as the caller asked."""
    notes: tuple[str, ...] = field(default=())
    grid: tuple[ChunkLengths, ...] = ()
    recut: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """[first, end) of the cells of the last chunk along a dimension, which becomes shorter and is written again."""

    def __post_init__(self) -> None:
        if not self.grid:
            object.__setattr__(self, "grid", as_lengths(self.chunks))

    @property
    def itemsize(self) -> int:
        return 16 if self.dtype == "string" else np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def chunk_count(self) -> int:
        return math.prod(lengths.count(n) for n, lengths in zip(self.shape, self.grid, strict=True))

    @property
    def is_regular(self) -> bool:
        """Whether all chunks have one shape."""
        return all(lengths.is_regular for lengths in self.grid)

    def fill(self) -> Any:
        """The fill value as a scalar of the array's type."""
        if self.dtype == "string":
            return str(self.fill_value or "")
        return parse_fill_document(self.dtype, self.fill_value)


def parse_fill_document(dtype: str, value: Any) -> Any:
    """The scalar of a `fill_value` of zarr.json."""
    numpy_type = np.dtype(dtype)
    if numpy_type.kind == "S":
        return np.zeros(1, numpy_type)[0]
    if numpy_type.kind == "c" and isinstance(value, (list, tuple)):
        return numpy_type.type(complex(float(value[0]), float(value[1])))
    if isinstance(value, str) and numpy_type.kind == "f":
        if value.startswith("0x"):
            return np.array([int(value, 16)], dtype=f"u{numpy_type.itemsize}").view(numpy_type.newbyteorder("="))[0]
        return numpy_type.type(float(value.replace("Infinity", "inf")))
    return np.asarray(0 if value is None else value).astype(numpy_type)[()]


def choose_chunks(
    variable: SourceVariable, shape: Sequence[int], joined: Sequence[str], asked: Mapping[str, int]
) -> tuple[int, ...]:
    """Native chunk lengths: the given ones, or those of the source, adjusted to a good size."""
    chunks = [max(1, min(c, n)) for c, n in zip(variable.chunks, shape, strict=True)]
    fixed = [dim in asked for dim in variable.dims]
    for axis, dim in enumerate(variable.dims):
        if dim in asked:
            # An array may grow along a joined dimension, so its chunks may be longer than it is now.
            chunks[axis] = max(1, asked[dim] if dim in joined else min(asked[dim], max(1, shape[axis])))
    itemsize = 16 if variable.dtype == "string" else np.dtype(variable.dtype).itemsize

    def size() -> int:
        return math.prod(chunks) * itemsize

    order = sorted(range(len(chunks)), key=lambda a: variable.dims[a] in joined)
    # Double short chunks, along the grid first, then along the joined dimensions.
    for axis in order:
        while not fixed[axis] and chunks[axis] < shape[axis] and size() * 2 <= CHUNK_BYTES:
            chunks[axis] = min(chunks[axis] * 2, shape[axis])
    for axis in range(len(chunks)):
        while not fixed[axis] and chunks[axis] > 1 and size() > 4 * CHUNK_BYTES:
            chunks[axis] = -(-chunks[axis] // 2)
    return tuple(chunks)


@dataclass(frozen=True, slots=True)
class TargetDimensions:
    """The joined dimensions, and their start in the target."""

    offset: Mapping[str, int]
    joined: Mapping[str, JoinedDimension]

    def length(self, name: str) -> int:
        return self.offset[name] + self.joined[name].size


def fit_chunks(
    variable: SourceVariable,
    name: str,
    members: Sequence[Member],
    dims: TargetDimensions,
    joined: tuple[str, ...],
    stored: SourceVariable | None = None,
) -> tuple[SourceVariable, str | None]:
    """The variable with chunks on one grid for all files, or why there is no such grid.

    `stored` is an existing array. Contiguous values are divided into its chunks.
    """
    chunks = list(variable.chunks)
    can_be_cut = variable.layout == "contiguous" and (
        stored is None or is_contiguous_chunking(variable.shape[1:], stored.chunks[1:])
    )
    if stored is not None and can_be_cut:
        chunks = list(stored.chunks)
    for axis, dim in enumerate(variable.dims):
        if dim not in joined:
            continue
        # The first cell and the number of cells of each file.
        places = [(dims.offset[dim] + start, size, url) for start, size, url in dims.joined[dim].starts()]
        if can_be_cut and stored is None and axis == 0:
            # Row-major bytes can be divided anywhere along the first dimension. Use the longest chunk that fits every
            # file.
            sizes = (size for _, size, _ in places[:-1])
            step = int(np.gcd.reduce(np.array([chunks[0], *(start for start, _, _ in places), *sizes])))
            if is_contiguous_chunking(variable.shape[1:], variable.chunks[1:]):
                chunks[0] = max(1, step)
        chunk = chunks[axis]
        for start, size, url in places:
            if start % chunk:
                return replace(variable, chunks=tuple(chunks)), (
                    f"{url} starts at cell {start} of {dim}, within a chunk of {chunk} cells"
                )
            # The last chunk of a file may extend beyond its end, but must not cover existing cells.
            if stored is not None and (start + size) % chunk and start + size < stored.shape[axis]:
                return replace(variable, chunks=tuple(chunks)), (
                    f"{url} ends at cell {start + size} of {dim}, within a chunk of {chunk} cells"
                )
    return replace(variable, chunks=tuple(chunks)), _uncuttable(as_lengths(chunks), members, name)


def _uncuttable(grid: Sequence[ChunkLengths], members: Sequence[Member], name: str) -> str | None:
    """Why the values of a file cannot be divided into chunks. Those of chunked files are divided already."""
    checked: set[int] = set()
    for member in members:
        variable = member.variables[name].in_file()
        lengths = grid[len(grid) - len(variable.shape) :]
        if len(variable.shape) > len(grid):
            return f"{member.file.url} has the dimensions {variable.dims}, which is more than other files have"
        # Where chunks differ in length, they are those of the files.
        own = tuple(
            each.longest if each.is_regular else chunk for each, chunk in zip(lengths, variable.chunks, strict=True)
        )
        if id(member.variables[name]) in checked or 0 in variable.shape:
            continue
        checked.add(id(member.variables[name]))
        if variable.layout == "chunked" and variable.chunks != own:
            return f"{member.file.url} has chunks {variable.chunks}, the array {own}"
        if variable.layout not in ("contiguous", "records"):
            continue
        fits = is_contiguous_chunking(variable.shape, own)
        if variable.layout == "records":
            fits = own[0] == 1 and is_contiguous_chunking((1, *variable.shape[1:]), own)
        if not fits:
            return f"chunks {own} of the {variable.shape} values in {member.file.url} are not runs of bytes"
    return None


@dataclass(frozen=True, slots=True)
class FittedGrid:
    """Chunks that end where the chunks of the files end."""

    lengths: tuple[ChunkLengths, ...]
    recut: Mapping[str, tuple[int, int]]
    """The cells of the last chunk of an existing array, by dimension, if it must end with the array."""
    padded: int = 0
    """The number of files whose last chunk is longer than what is left of the file. It is written by value."""


def fit_lengths(
    variable: SourceVariable,
    name: str,
    members: Sequence[Member],
    dims: TargetDimensions,
    joined: tuple[str, ...],
    stored: ExistingArray | None = None,
) -> FittedGrid | None:
    """Chunks of different lengths along the joined dimensions that fit all files. None if there are none.

    `members` are those that are referenced. `stored` is an existing array, whose chunks stay as they are. A file may
    end within its last chunk. There is no grid if such chunks, which are written by value, are most of the cells.
    """
    by_key = {member.key: member.variables[name] for member in members}
    grid: list[ChunkLengths] = []
    recut: dict[str, tuple[int, int]] = {}
    known = None if stored is None else stored.grid()
    for axis, (dim, chunk) in enumerate(zip(variable.dims, variable.chunks, strict=True)):
        own = ChunkLengths(chunk) if known is None else known[axis]
        if dim not in joined:
            if not own.is_regular and own.of(variable.shape[axis]) != cut_cells(variable.shape[axis], chunk):
                return None
            grid.append(own)
            continue
        first = dims.offset[dim]
        pieces: list[int] = []
        if dims.joined[dim].spans:
            return None
        for block in dims.joined[dim].filled:
            cuts = {cut_cells(block.size, by_key[key].chunks[axis]) for key in block.urls if key in by_key}
            if len(cuts) > 1:
                return None
            pieces += cuts.pop() if cuts else cut_cells(block.size, chunk)
        extent = first if stored is None else int(stored.document["shape"][axis])
        lengths = list(own.of(extent)) if known is not None else list(cut_cells(extent, chunk))
        if first < extent:
            # A region of the array: its chunks are those of the files, or the files do not fit.
            at = own.index(first)
            if not own.is_bound(first) or lengths[at : at + len(pieces)] != pieces:
                return None
        else:
            beyond = sum(lengths) - extent
            if beyond:
                recut[dim] = (sum(lengths[:-1]), extent)
                lengths[-1] -= beyond
            lengths += pieces
        is_one = own.is_regular and set(lengths) <= {own.longest}
        grid.append(own if is_one or (first < extent and own.is_regular) else ChunkLengths(tuple(lengths)))
    if _uncuttable(grid, members, name) is not None:
        return None
    axes = [axis for axis, lengths in enumerate(grid) if not lengths.is_regular]
    padded = [_padded_share(each, axes) for each in by_key.values()]
    if sum(padded) > len(padded) / 2:
        return None
    return FittedGrid(tuple(grid), recut, sum(share > 0 for share in padded))


def _padded_share(variable: SourceVariable, axes: Sequence[int]) -> float:
    """The share of the cells of a file in chunks that are longer than what is left of the file, along some axes."""
    if variable.layout != "chunked":
        return 0.0
    whole = 1.0
    for axis in axes:
        length, chunk = variable.shape[axis], variable.chunks[axis]
        whole *= length // chunk * chunk / max(1, length)
    return 1.0 - whole


def grown_lengths(lengths: ChunkLengths, old: int, new: int, asked: int | None) -> ChunkLengths:
    """The chunks of a dimension that grows. New ones have the length asked for, or the one of the last chunk."""
    if lengths.is_regular or new <= old or asked is None:
        return lengths.covering(new)
    own = lengths.of(old)
    return ChunkLengths((*own, *(asked,) * -(-max(0, new - sum(own)) // asked)))


def native_codecs(dtype: str) -> tuple[Mapping[str, Any], ...]:
    """The default codecs of native chunks: shuffled bytes, then zstd."""
    if dtype == "string":
        return {"name": "vlen-utf8"}, {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
    itemsize = np.dtype(dtype).itemsize
    settings = {
        "typesize": itemsize,
        "cname": "zstd",
        "clevel": 3,
        "shuffle": "shuffle" if itemsize > 1 else "noshuffle",
        "blocksize": 0,
    }
    head: dict[str, Any] = {"name": "bytes"}
    if itemsize > 1 and np.dtype(dtype).kind != "S":
        head["configuration"] = {"endian": "little"}
    return head, {"name": "blosc", "configuration": settings}


def convert_values(values: npt.NDArray[Any], variable: SourceVariable, array: ArrayPlan) -> npt.NDArray[Any]:
    """Convert stored values of one file to those of the array. Raises if a value would change."""
    if array.dtype == "string":
        return values.astype(object)
    source, target = packing_of(variable.attributes, variable.dtype), packing_of(array.attributes, array.dtype)
    times = _find_times(variable, array, source, target)
    if times is not None:
        missing = source.missing(values)
        return convert_times(values, *times, array.dtype, missing=missing, no_time=target.fill)
    if (source.scale, source.offset, source.sign) == (target.scale, target.offset, target.sign):
        result = _cast_meant(values, variable, array, source, target)
    elif target.is_plain and not target.sign and np.dtype(array.dtype).kind == "f":
        own = variable.decoded_dtype or decoded_dtype(variable.dtype, variable.attributes)
        result = _cast(unpack(values, source, own), variable, array, target)
    elif array.repacks:
        return _pack(unpack(values, source, "<f8"), variable, array, target)
    else:
        raise InvalidInputError(
            f"{variable.path} is packed with {source}, the array {array.path} with {target}. Use unpack=True",
            path=array.path,
        )
    return result if source.fills == target.fills else _fill_anew(result, values, variable, array, source, target)


def _pack(
    values: npt.NDArray[np.float64], variable: SourceVariable, array: ArrayPlan, target: Packing
) -> npt.NDArray[Any]:
    """Round values to packed integers. NaN becomes the missing value."""
    wanted = np.dtype(array.dtype)
    missing = np.isnan(values)
    numbers = np.rint((np.where(missing, target.offset, values) - target.offset) / target.scale)
    limits = np.iinfo(wanted)
    is_lost = ~missing & ((numbers < limits.min) | (numbers > limits.max))
    for fill in target.fills:
        is_lost |= ~missing & (numbers == fill)
    if bool(is_lost.any()):
        raise InvalidInputError(
            f"{values[is_lost].reshape(-1)[0]:g} of {variable.path} does not fit the array /{array.path} of {wanted} "
            f"with {target}",
            path=array.path,
        )
    result = np.where(missing, 0, numbers).astype(wanted)
    if bool(missing.any()):
        if target.fill is None:
            raise InvalidInputError(
                f"values of {variable.path} are missing, but the packing of /{array.path} has no _FillValue",
                path=array.path,
            )
        result[missing] = target.fill
    return result


def _find_times(
    variable: SourceVariable, array: ArrayPlan, source: Packing, target: Packing
) -> tuple[TimeUnits, TimeUnits] | None:
    """The units of times, if they have to be converted."""
    if not (source.is_plain and target.is_plain) or source.sign or target.sign:
        return None
    own, wanted = find_time_units(variable.attributes), find_time_units(array.attributes)
    if own is None or wanted is None:
        return None
    is_same = own.counts_alike == wanted.counts_alike and source.fills == target.fills
    is_same = is_same and own.calendar == wanted.calendar
    return None if is_same and keeps_values(variable.dtype, array.dtype) else (own, wanted)


def _fill_anew(
    result: npt.NDArray[Any],
    values: npt.NDArray[Any],
    variable: SourceVariable,
    array: ArrayPlan,
    source: Packing,
    target: Packing,
) -> npt.NDArray[Any]:
    """Replace missing values by the missing value of the array."""
    missing = source.missing(values)
    taken = target.missing(result)
    if taken is not None and missing is not None:
        taken &= ~missing
    if taken is not None and bool(taken.any()):
        raise InvalidInputError(
            f"{variable.path} contains {target.fills}. These values mean missing in the array /{array.path}, but not "
            "in the file. Ingest the file into another group",
            path=array.path,
        )
    if missing is None:
        return result
    wanted = np.dtype(array.dtype)
    if target.fill is None and wanted.kind != "f":
        raise InvalidInputError(
            f"values of {variable.path} are missing, but the array /{array.path} has no _FillValue",
            path=array.path,
        )
    if result is values or np.shares_memory(result, values):
        result = result.copy()
    result[missing] = np.nan if target.fill is None else target.stored(target.fill, wanted)
    return result


def _cast_meant(
    values: npt.NDArray[Any], variable: SourceVariable, array: ArrayPlan, source: Packing, target: Packing
) -> npt.NDArray[Any]:
    """Values in the array's type. With `_Unsigned`, the unsigned numbers are kept."""
    wanted = np.dtype(array.dtype)
    if not source.sign or values.dtype.itemsize == wanted.itemsize or wanted.kind not in "iu":
        return _cast(values, variable, array, target)
    meant = target.meant_dtype(wanted)
    return _cast(source.meant(values), variable, replace(array, dtype=meant.str), Packing()).view(wanted)


def _cast(values: npt.NDArray[Any], variable: SourceVariable, array: ArrayPlan, target: Packing) -> npt.NDArray[Any]:
    """Values in the array's type. Raises if the caller chose a type that would change values."""
    wanted = np.dtype(array.dtype)
    if keeps_values(values.dtype.str, wanted.str):
        return values.astype(wanted, copy=False)
    absent = None
    if values.dtype.kind == "f" and wanted.kind in "iu" and target.fill is not None:
        absent = np.isnan(values)
        values = np.where(absent, values.dtype.type(0), values)
    with np.errstate(invalid="ignore", over="ignore"):
        result = values.astype(wanted)
    if values.dtype.kind == "f" and wanted.kind == "f":
        is_lost = np.isinf(result) & np.isfinite(values)
    else:
        is_lost = result.astype(values.dtype) != values
        if values.dtype.kind in "iu" and wanted.kind in "iu":
            is_lost |= (result < 0) != (values < 0)
    if bool(is_lost.any()):
        raise InvalidInputError(
            f"{values[is_lost].reshape(-1)[0]} of {variable.path} does not fit the type {wanted} of the array "
            f"/{array.path}",
            path=array.path,
        )
    if absent is not None:
        result[absent] = target.stored(target.fill, wanted)
    return result


_STORAGE_FACETS = ("data_type", "chunk_key_encoding", "codecs", "fill_value", "dimension_names")


def can_keep(stored: Mapping[str, Any], array: ArrayPlan) -> bool:
    """Return whether chunks of a stored array mean the same in a planned one."""
    planned = json.loads(array.document)
    for facet in _STORAGE_FACETS:
        if json.dumps(stored.get(facet), sort_keys=True) != json.dumps(planned.get(facet), sort_keys=True):
            return False
    if not _same_chunks(stored, planned, array):
        return False
    ours, theirs = stored.get("attributes") or {}, planned.get("attributes") or {}
    if repr(packing_of(ours, array.dtype)) != repr(packing_of(theirs, array.dtype)):
        return False
    left, right = find_time_units(ours), find_time_units(theirs)
    if left is None or right is None:
        return left is right and ours.get("units") == theirs.get("units")
    return left.counts_alike == right.counts_alike and left.calendar == right.calendar


def _same_chunks(stored: Mapping[str, Any], planned: Mapping[str, Any], array: ArrayPlan) -> bool:
    """Return whether two grids are equal. Those with chunks of different lengths may differ where files are joined."""
    ours, theirs = stored.get("chunk_grid") or {}, planned["chunk_grid"]
    if ours == theirs or "rectilinear" not in (ours.get("name"), theirs["name"]):
        return bool(ours == theirs)
    pairs = zip(array.dims, parse_grid(stored), array.grid, strict=True)
    return all(left == right for dim, left, right in pairs if dim not in array.joined)


@dataclass(frozen=True, slots=True)
class ValueWrite:
    """Values that the plan contains. They are written before the tasks run."""

    path: str
    start: tuple[int, ...]
    values: npt.NDArray[Any]


def changed_part(write: ValueWrite, stored: npt.NDArray[Any], grid: Sequence[ChunkLengths]) -> list[ValueWrite]:
    """Return the part of a write that differs from stored values. It begins and ends at chunk bounds."""
    values = write.values
    if values.ndim != 1:
        return [] if stored.shape == values.shape and same_coordinates(stored, values).all() else [write]
    length = min(len(stored), len(values))
    differs = np.ones(len(values), dtype=bool)
    differs[:length] = ~same_coordinates(stored[:length], values[:length])
    changed = np.flatnonzero(differs)
    if not len(changed):
        return []
    first = grid[0].start(grid[0].index(int(changed[0])))
    end = min(len(values), grid[0].start(grid[0].index(int(changed[-1])) + 1))
    return [ValueWrite(write.path, (first,), values[first:end])]


def convert_member(values: npt.NDArray[Any], member: Member, name: str, array: ArrayPlan) -> npt.NDArray[Any]:
    """Convert stored values of a file to those of the array. The error names the file."""
    try:
        return convert_values(values, member.variables[name], array)
    except InvalidInputError as error:
        raise InvalidInputError(f"{member.file.url}: {error}", url=member.file.url) from error


def joined_values(
    array: ArrayPlan, members: Sequence[Member], joined: JoinedDimension, name: str
) -> npt.NDArray[Any] | None:
    """The values of a variable along its first dimension, which is joined. None if the schemas do not have them."""
    by_url = {m.key: m for m in members}
    parts: list[npt.NDArray[Any]] = []
    for block in joined.filled:
        if block.is_missing:
            if block.coordinate is None or block.coordinate.values is None:
                return None
            values = block.coordinate.values
            parts.append((np.rint(values) if np.dtype(array.dtype).kind in "iu" else values).astype(array.dtype))
            continue
        member = next((by_url[u] for u in block.urls if name in by_url[u].variables), None)
        if member is None and name != joined.name:
            dtype: Any = object if array.dtype == "string" else array.dtype
            parts.append(np.full((block.size, *array.shape[1:]), array.fill(), dtype))
            continue
        coordinate = None if member is None else member.coordinates.get(name)
        if member is None or coordinate is None or coordinate.values is None:
            return None
        first = block.start - joined.blocks[joined.index_of[member.key]].start
        values = coordinate.values.reshape(member.variables[name].shape)[first : first + block.size]
        parts.append(convert_member(values, member, name, array))
    return np.concatenate(parts) if parts else None


@dataclass(frozen=True, slots=True)
class ArrayChanges:
    """What a sync does with one array. Positions are along its joined dimensions, in chunks."""

    array: ArrayPlan
    is_rewritten: bool
    """The array is new, or what it stores cannot be kept."""
    written: frozenset[Index]
    moved: Mapping[Index, Index] = field(default_factory=dict)
    """The old position by new position."""
    cleared: frozenset[Index] = frozenset()
    kept: int = 0

    @property
    def is_unchanged(self) -> bool:
        return not (self.is_rewritten or self.written or self.moved or self.cleared)

    @property
    def axes(self) -> list[int]:
        return [axis for axis, dim in enumerate(self.array.dims) if dim in self.array.joined]


def joined_lengths(array: ArrayPlan, grid: Sequence[ChunkLengths] | None = None) -> list[ChunkLengths]:
    """The chunk lengths of an array along its joined dimensions, or those of another grid."""
    return [each for dim, each in zip(array.dims, grid or array.grid, strict=True) if dim in array.joined]


@dataclass(frozen=True, slots=True)
class MovedSpan:
    """Chunks [first, end) along one joined dimension that consist of the same cells as earlier chunks.

    They are `shift` further than the earlier ones.
    """

    axis: int
    """The dimension, among the joined ones."""
    first: int
    end: int
    shift: int
    position: Index = ()
    """Their position along the other joined dimensions."""
    former: Index = ()
    """The position of the earlier chunks along the other joined dimensions."""

    @property
    def is_kept(self) -> bool:
        return not self.shift and self.position == self.former

    def pairs(self) -> Iterator[tuple[Index, Index]]:
        """The position of every chunk, and the one of the earlier chunk."""
        for index in range(self.first, self.end):
            old = index - self.shift
            yield (
                (*self.position[: self.axis], index, *self.position[self.axis :]),
                (*self.former[: self.axis], old, *self.former[self.axis :]),
            )


class _SpanTable:
    """Chunks of spans along one dimension, by their position along the others."""

    def __init__(self, axis: int, spans: Iterable[tuple[Index, int, int]]) -> None:
        self._axis = axis
        self._bounds: dict[Index, list[tuple[int, int]]] = {}
        for others, first, end in spans:
            self._bounds.setdefault(others, []).append((first, end))

    def __contains__(self, position: Index) -> bool:
        others = (*position[: self._axis], *position[self._axis + 1 :])
        return any(first <= position[self._axis] < end for first, end in self._bounds.get(others, ()))


def compare_chunks(
    array: ArrayPlan,
    old: Sequence[SourceBox],
    new: Sequence[SourceBox],
    stored: Mapping[str, Any],
    dirty: frozenset[Index],
    spans: Sequence[MovedSpan] = (),
) -> ArrayChanges:
    """Find the chunks of an array that can be kept or moved. `dirty` are those that somebody else wrote.

    `stored` is its zarr.json document. `spans` are known to consist of the same cells, and both grids are regular then.
    They follow one dimension. Boxes that reach into spans are only looked at elsewhere.
    """
    old_lengths, new_lengths = joined_lengths(array, parse_grid(stored)), joined_lengths(array)
    before, after = find_recipes(old, old_lengths), find_recipes(new, new_lengths)
    axis = spans[0].axis if spans else 0
    old_spans = _SpanTable(axis, ((s.former, s.first - s.shift, s.end - s.shift) for s in spans))
    new_spans = _SpanTable(axis, ((s.position, s.first, s.end) for s in spans))
    if spans:
        before = {position: recipe for position, recipe in before.items() if position not in old_spans}
        after = {position: recipe for position, recipe in after.items() if position not in new_spans}
    positions = {recipe: position for position, recipe in before.items() if position not in dirty}
    written, moved, kept = set(), {}, 0
    for position, recipe in after.items():
        source = positions.get(recipe)
        if before.get(position) == recipe and position not in dirty:
            kept += 1
        elif source is not None:
            moved[position] = source
        else:
            written.add(position)
    had = {*before}
    for span in spans:
        if span.is_kept and not dirty:
            kept += span.end - span.first
            continue
        for position, source in span.pairs():
            had.add(source)
            if source in dirty:
                written.add(position)
            elif position == source:
                kept += 1
            else:
                moved[position] = source
    sizes = [n for dim, n in zip(array.dims, stored["shape"], strict=True) if dim in array.joined]
    had |= {position for position in dirty if _is_inside(position, old_lengths, sizes)}
    sizes = [n for dim, n in zip(array.dims, array.shape, strict=True) if dim in array.joined]
    cleared = {
        position
        for position in had - after.keys()
        if _is_inside(position, new_lengths, sizes) and position not in new_spans
    }
    return ArrayChanges(array, False, frozenset(written), moved, frozenset(cleared), kept)


def _is_inside(position: Index, grid: Sequence[ChunkLengths], sizes: Sequence[int]) -> bool:
    return all(lengths.start(i) < n for i, lengths, n in zip(position, grid, sizes, strict=True))
