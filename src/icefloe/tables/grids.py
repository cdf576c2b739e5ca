"""Find the arrays of a group that form one table, and parse times."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError, NodeNotFoundError, UnsupportedError
from icefloe.lazy_exports import lazy_module
from icefloe.model.snapshot import ArrayNode, GroupNode
from icefloe.model.zarr_document import ChunkLengths, parse_document, parse_grid
from icefloe.session.session import Session

if TYPE_CHECKING:
    import pyarrow as pa
    import zarr

    from icefloe.tables import columns
    from icefloe.tables.columns import ColumnCoding
else:
    # Names of tables and columns are found without Arrow and Zarr, so a wrong name is reported at once.
    pa = lazy_module("pyarrow")
    zarr = lazy_module("zarr")
    columns = lazy_module("icefloe.tables.columns")

_STAMP = re.compile(
    r"^(\d{4})-(\d{1,2})(?:-(\d{1,2}))?(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6}))?)?)?"
    r"\s*(Z|UTC|[+-]\d{2}:\d{2})?$"
)
_OFFSET = re.compile(r"^(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?$")
WIDEST_OFFSET = dt.timedelta(hours=18)
"""No time zone is further from UTC."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def parse_instant(text: str, *, date_only: bool = False) -> dt.datetime | None:
    """Parse an ISO date or time, with its zone if there is one. Return None for other text."""
    match = _STAMP.match(text.strip())
    if match is None or (date_only and match[4] is not None):
        return None
    given = zip(match.groups()[:6], (1, 1, 1, 0, 0, 0), strict=True)
    year, month, day, hour, minute, second = (int(part) if part else default for part, default in given)
    micro = int((match[7] or "0").ljust(6, "0"))
    try:
        moment = dt.datetime(year, month, day, hour, minute, second, micro)  # noqa: DTZ001 - the zone follows
    except ValueError:
        return None
    return moment if match[8] is None else moment.replace(tzinfo=_zone(match[8]))


def _zone(text: str) -> dt.tzinfo:
    if text in ("Z", "UTC"):
        return dt.UTC
    sign = -1 if text[0] == "-" else 1
    return dt.timezone(sign * dt.timedelta(hours=int(text[1:3]), minutes=int(text[4:6])))


def session_zone(name: str) -> dt.tzinfo | None:
    """Return the time zone with a name or an offset, as Spark spells them, or None if it is unknown."""
    if name.upper() in ("UTC", "Z", "GMT", "UT", "ETC/UTC"):
        return dt.UTC
    offset = _OFFSET.match(name)
    if offset is not None:
        sign, hours, minutes, seconds = offset[1], int(offset[2]), int(offset[3] or 0), int(offset[4] or 0)
        shift = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return dt.timezone(-shift if sign == "-" else shift) if shift <= WIDEST_OFFSET else None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return None


def to_microseconds(moment: dt.datetime, zone: dt.tzinfo) -> int:
    """Return microseconds since 1970. A time without a zone is in the given one."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
    return (aware - _EPOCH) // dt.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension: its length, and the array of its coordinate. Without an array, the index is the coordinate."""

    name: str
    length: int
    path: str | None
    coding: ColumnCoding | None

    @property
    def type(self) -> pa.DataType:
        return self.coding.type if self.coding is not None else pa.int64()


@dataclass(frozen=True, slots=True)
class Variable:
    """An array as a column: its path, its chunks, and how its values are decoded."""

    name: str
    path: str
    chunks: tuple[ChunkLengths, ...]
    coding: ColumnCoding


@dataclass(frozen=True, slots=True)
class Grid:
    """Variables with the same dimensions, divided into blocks that follow the chunks of the largest variable."""

    dimensions: tuple[Dimension, ...]
    variables: tuple[Variable, ...]
    block: tuple[ChunkLengths, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(dimension.length for dimension in self.dimensions)

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(dimension.name for dimension in self.dimensions)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of blocks along each dimension."""
        return tuple(each.count(n) for n, each in zip(self.shape, self.block, strict=True))

    @property
    def cell_bytes(self) -> int:
        """The decoded size of one cell of every variable, for estimates."""
        return sum(_width(variable.coding.type) for variable in self.variables) or 8

    @property
    def block_bytes(self) -> int:
        """The approximate decoded size of a block."""
        lengths = zip(self.block, self.shape, self.blocks, strict=True)
        return math.prod(b.longest if b.is_regular else -(-n // max(1, k)) for b, n, k in lengths) * self.cell_bytes

    def schema(self) -> pa.Schema:
        """Return the columns of the table of cells: dimensions, then variables."""
        fields = [pa.field(dimension.name, dimension.type) for dimension in self.dimensions]
        return pa.schema([*fields, *(pa.field(v.name, v.coding.type) for v in self.variables)])


def _width(type: pa.DataType) -> int:
    return type.bit_width // 8 or 1 if pa.types.is_primitive(type) or pa.types.is_decimal(type) else 24


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    node: ArrayNode
    document: Mapping[str, Any]

    @property
    def dims(self) -> tuple[str, ...]:
        return _dims(self.node)

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.document.get("attributes") or {}

    @property
    def is_coordinate(self) -> bool:
        return self.dims == (self.name,)


def find_grid(session: Session, group: str = "/", variables: Sequence[str] | None = None, *, raw: bool = False) -> Grid:
    """Return the grid of the named variables of a group, or of all. The error lists the variables that form tables."""
    arrays = _arrays(session, group)
    chosen = _choose(arrays, group, variables)
    grids: dict[tuple[Any, ...], list[_Found]] = {}
    for found in chosen:
        grids.setdefault((found.dims, found.node.shape), []).append(found)
    if len(grids) > 1:
        listed = "; ".join(
            f"{', '.join(sorted(f.name for f in each))} over ({_describe(each[0])})" for each in grids.values()
        )
        raise InvalidInputError(
            f"the variables of {group} have {len(grids)} different grids, but a table has one: {listed}. Select "
            "variables of one grid with the option `variables`",
            grids=[[f.name for f in each] for each in grids.values()],
        )
    return _make_grid(session, arrays, chosen, raw=raw)


def list_grids(session: Session, group: str = "/") -> list[tuple[str, ...]]:
    """Return the names of the variables of a group that form tables together."""
    grids: dict[tuple[Any, ...], list[str]] = {}
    for name, node in _nodes(session, group):
        if _dims(node) != (name,):
            grids.setdefault((_dims(node), node.shape), []).append(name)
    return [tuple(names) for names in grids.values()]


def dimensions_of(session: Session, path: str) -> tuple[str, ...]:
    """Return the columns of dimensions that the table of an array has."""
    node = session.state.tree.array(path)
    return ("index",) if _dims(node) == (path.rpartition("/")[2],) else _dims(node)


def _dims(node: ArrayNode) -> tuple[str, ...]:
    names = node.dimension_names or (None,) * len(node.shape)
    return tuple(name if name is not None else f"dim_{axis}" for axis, name in enumerate(names))


def _describe(found: _Found) -> str:
    return ", ".join(f"{dim}: {length}" for dim, length in zip(found.dims, found.node.shape, strict=True))


def _nodes(session: Session, group: str) -> Iterator[tuple[str, ArrayNode]]:
    """Yield the arrays of a group by name."""
    tree = session.state.tree
    start = "/" + group.strip("/")
    # A repository without a root group still has its arrays.
    if start != "/" and not isinstance(tree.node(start), GroupNode):
        raise InvalidInputError(f"{start} is an array. Pass its group as `group` and its name in `variables`")
    below = start.rstrip("/") + "/"
    for node in tree.subtree(start):
        name = node.path[len(below) :]
        if isinstance(node, ArrayNode) and "/" not in name:
            yield name, node


def _arrays(session: Session, group: str) -> dict[str, _Found]:
    found = {}
    for name, node in _nodes(session, group):
        document = run_blocking(session.state.fetch_document(node.path))
        assert document is not None
        found[name] = _Found(name, node, parse_document(document))
    return found


def _choose(arrays: Mapping[str, _Found], group: str, variables: Sequence[str] | None) -> list[_Found]:
    if variables is not None:
        missing = [name for name in variables if name not in arrays]
        if missing:
            raise NodeNotFoundError(
                f"there is no array {missing[0]!r} in group {group}. There are: {_names(arrays)}", variables=missing
            )
        if not variables:
            raise InvalidInputError(f"the option `variables` is empty. There are: {_names(arrays)}")
        return [arrays[name] for name in dict.fromkeys(variables)]
    aside = _auxiliary(arrays.values())
    data = [f for f in arrays.values() if not f.is_coordinate and f.node.shape and f.name not in aside]
    data = data or [f for f in arrays.values() if not f.is_coordinate] or list(arrays.values())
    if not data:
        raise NodeNotFoundError(f"there are no arrays in group {group}")
    return data


def _auxiliary(arrays: Iterable[_Found]) -> set[str]:
    """Return arrays that others name as bounds or further coordinates. They are in a table only if they are named."""
    aside: set[str] = set()
    for found in arrays:
        for key in ("bounds", "coordinates", "grid_mapping", "ancillary_variables"):
            value = found.attributes.get(key)
            if isinstance(value, str):
                aside |= set(value.split())
    return aside


def _names(arrays: Mapping[str, _Found]) -> str:
    return ", ".join(sorted(arrays)) or "none"


def _make_grid(session: Session, arrays: Mapping[str, _Found], chosen: Sequence[_Found], *, raw: bool) -> Grid:
    first = chosen[0]
    if len(set(first.dims)) < len(first.dims):
        raise InvalidInputError(
            f"{first.node.path} has the dimension names {list(first.dims)}; a table needs unique ones"
        )
    variables = tuple(_variable(session, found, raw=raw) for found in chosen)
    dimensions = tuple(
        _dimension(session, arrays, name, length, raw=raw)
        for name, length in zip(first.dims, first.node.shape, strict=True)
    )
    names = [name.lower() for name in (*first.dims, *(found.name for found in chosen))]
    double = sorted({name for name in names if names.count(name) > 1})
    if double and not (len(chosen) == 1 and chosen[0].is_coordinate):
        raise InvalidInputError(
            f"two columns would have the name {double[0]!r}. Select other variables with the option `variables`"
        )
    if len(chosen) == 1 and chosen[0].is_coordinate:
        dimensions = (Dimension("index", first.node.shape[0], None, None),)
    return Grid(dimensions, variables, max((variable.chunks for variable in variables), key=longest_cells))


def _variable(session: Session, found: _Found, *, raw: bool) -> Variable:
    array = open_array(session, found.node.path)
    coding = columns.coding_of(_dtype(array), found.attributes, raw=raw)
    return Variable(found.name, found.node.path, chunk_lengths(found.node), coding)


def chunk_lengths(node: ArrayNode) -> tuple[ChunkLengths, ...]:
    """Return the lengths of the chunks of an array along each dimension. For shards, those of the shards."""
    return tuple(
        _same_chunks(each, n) for each, n in zip(parse_grid(parse_document(node.document)), node.shape, strict=True)
    )


def _same_chunks(lengths: ChunkLengths, cells: int) -> ChunkLengths:
    """Return equal lengths for equal chunks, however the grid is written."""
    if isinstance(lengths.each, int):
        return ChunkLengths(max(1, lengths.each))
    own = lengths.covering(cells)
    return own if len(set(own.of(cells))) > 1 else ChunkLengths(own.longest)


def longest_cells(chunks: Sequence[ChunkLengths]) -> int:
    """Return the number of cells of the largest chunk."""
    return math.prod(each.longest for each in chunks)


def _dimension(session: Session, arrays: Mapping[str, _Found], name: str, length: int, *, raw: bool) -> Dimension:
    found = arrays.get(name)
    if found is None or found.dims != (name,) or found.node.shape != (length,):
        return Dimension(name, length, None, None)
    array = open_array(session, found.node.path)
    return Dimension(name, length, found.node.path, columns.coding_of(_dtype(array), found.attributes, raw=raw))


def _dtype(array: zarr.Array[Any]) -> np.dtype[Any]:
    return array.dtype


def open_array(session: Session, path: str) -> zarr.Array[Any]:
    """Open an array of a session for reading."""
    mode: Any = "r" if session.read_only else "r+"
    try:
        return zarr.open_array(session.store, path=path.lstrip("/"), mode=mode, zarr_format=3)
    except ValueError as error:
        raise unreadable_grid(session, path) or error from error


def unreadable_grid(session: Session, path: str) -> UnsupportedError | None:
    """Return the error for an array at a path or below it whose chunk grid this zarr does not read, or None."""
    for node in session.state.tree.subtree("/" + path.strip("/")):
        name = parse_document(node.document)["chunk_grid"]["name"] if isinstance(node, ArrayNode) else "regular"
        if name != "regular":
            has_it = "rectilinear_chunks" in zarr.config.get("array")
            advice = (
                "Set the variable ZARR_ARRAY__RECTILINEAR_CHUNKS=True, also for the workers of Spark"
                if has_it
                else "Use Python 3.12 or newer with a newer zarr"
            )
            return UnsupportedError(
                f"{node.path} has the chunk grid {name!r}, which zarr {zarr.__version__} "
                f"{'reads only on demand' if has_it else 'does not have'}. {advice}"
            )
    return None


def read_coordinate(session: Session, dimension: Dimension) -> pa.Array:
    """Read the decoded coordinate of a dimension. Without a coordinate, return its indices."""
    if dimension.path is None or dimension.coding is None:
        return columns.from_numpy(np.arange(dimension.length, dtype=np.int64))
    values: npt.NDArray[Any] = np.asarray(open_array(session, dimension.path)[:])
    return dimension.coding.decode(values)
