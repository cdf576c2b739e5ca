"""The positions of the cells of each file in the combined arrays and in the arrays of the repository."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.ingest.cf import (
    SourceTimes,
    TimeEncoding,
    choose_time_encoding,
    convert_times,
    find_time_units,
    format_coordinate,
    format_step,
    is_time_units,
    packing_of,
    parse_time_units,
)
from icefloe.ingest.members import Member, find_step, gaps_within, join_path, name_of
from icefloe.ingest.parsers.zarr import variable_of_v3
from icefloe.ingest.source_files import natural_key
from icefloe.ingest.source_model import Coordinate, SchemaIssue, SourceVariable, summarise_coordinate
from icefloe.ingest.sources import IngestOptions
from icefloe.model.zarr_document import ChunkLengths, as_lengths, grid_document, parse_grid


@dataclass(frozen=True, slots=True)
class ExistingArray:
    """An array of the repository. One-dimensional coordinates have their values.

    Parameters
    ----------
    path
        The path of the array.
    document
        The zarr.json document.
    values
        The values of a coordinate, or None.

    Examples
    --------
    >>> ExistingArray("time", {"shape": [3]}).values is None
    True
    """

    path: str
    document: Mapping[str, Any]
    values: npt.NDArray[Any] | None = None

    def variable(self) -> SourceVariable:
        """Return the array as a source variable.

        Returns
        -------
        SourceVariable
            The variable.

        Examples
        --------
        >>> import json, icefloe, zarr
        >>> session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
        >>> array = zarr.create_array(session.store, name="a", shape=(4,), dtype="i8", dimension_names=["x"])
        >>> ExistingArray("a", array.metadata.to_dict()).variable().shape
        (4,)
        """
        longest = as_lengths(max(1, lengths.longest) for lengths in self.grid())
        return variable_of_v3(self.path, {**self.document, "chunk_grid": grid_document(longest)})

    def grid(self) -> tuple[ChunkLengths, ...]:
        """Return the chunk lengths along each dimension.

        Returns
        -------
        tuple of ChunkLengths
            One per dimension.

        Examples
        --------
        >>> grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[31, 28], 4]}}
        >>> print(*ExistingArray("t", {"shape": [59, 4], "chunk_grid": grid}).grid(), sep=", ")
        28 to 31, 4
        """
        return parse_grid(self.document)

    def resized(self, shape: tuple[int, ...], grid: Sequence[ChunkLengths] | None = None) -> bytes:
        """Return the zarr.json document with another shape.

        Parameters
        ----------
        shape
            The new shape.
        grid
            The new chunk lengths. By default, new chunks have the length of the last one.

        Returns
        -------
        bytes
            The document.

        Examples
        --------
        >>> json.loads(ExistingArray("time", {"shape": [3]}).resized((4,)))
        {'shape': [4]}
        """
        document = {**self.document, "shape": list(shape)}
        if grid is None and self.document.get("chunk_grid", {}).get("name") == "rectilinear":
            grid = [each.covering(n) for each, n in zip(self.grid(), shape, strict=True)]
        if grid is not None:
            document["chunk_grid"] = grid_document(grid)
        return json.dumps(document, indent=2).encode()


@dataclass(frozen=True, slots=True)
class Existing:
    """The arrays and groups of the repository by path. Empty for a new repository.

    Parameters
    ----------
    arrays
        The arrays by path.
    groups
        The paths of the groups.
    unreadable
        Coordinates whose values cannot be read, and the reasons. These are virtual ones without authorisation.
    chunks
        Chunk lengths by path, for native arrays that are planned anew. One per dimension, or one for each chunk.
    variable_grids
        Whether chunks of different lengths are possible, because the repository and zarr can have them.

    Examples
    --------
    >>> Existing().arrays
    {}
    """

    arrays: Mapping[str, ExistingArray] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Coordinates whose values cannot be read, and the reasons. These are virtual ones without authorisation."""
    chunks: Mapping[str, tuple[int | tuple[int, ...], ...]] = field(default_factory=dict)
    """Chunk lengths of native arrays that are planned anew. An archive keeps its chunks when it grows."""
    variable_grids: bool = False
    """Whether chunks of different lengths are possible, because the repository and zarr can have them."""

    def coordinate(self, path: str) -> npt.NDArray[Any] | None:
        """Return the values of a coordinate of the repository.

        Parameters
        ----------
        path
            The path of the coordinate.

        Returns
        -------
        numpy.ndarray or None
            The values, or None if there are none.

        Examples
        --------
        >>> Existing().coordinate("time") is None
        True
        """
        found = self.arrays.get(path)
        return None if found is None else found.values


def find_run(whole: npt.NDArray[Any], part: npt.NDArray[Any]) -> int | None:
    """The position of `part` in `whole` as consecutive values. None if it is not in it."""
    if len(part) == 0 or len(part) > len(whole):
        return None
    for start in np.flatnonzero(same_coordinates(whole, np.full(len(whole), part[0]))):
        run = whole[start : start + len(part)]
        if len(run) == len(part) and bool(same_coordinates(run, part).all()):
            return int(start)
    return None


def same_coordinates(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which values of two coordinates of equal length are the same.

    Floats of different precision are the same where the coarser type cannot tell them apart.
    """
    if left.dtype.kind == "f" and right.dtype.kind == "f" and left.dtype.itemsize != right.dtype.itemsize:
        coarse = min(left.dtype, right.dtype, key=lambda dtype: dtype.itemsize)
        left, right = left.astype(coarse), right.astype(coarse)
    found: npt.NDArray[np.bool_] = np.asarray(left == right)
    if left.dtype.kind == "f" and right.dtype.kind == "f":
        found |= np.isnan(left) & np.isnan(right)
    return found


@dataclass(frozen=True, slots=True)
class Block:
    """A range of one dimension that some files cover. Without a coordinate, only its order is known."""

    start: int
    size: int
    coordinate: Coordinate | None
    urls: tuple[str, ...]
    is_missing: bool = False
    """Reserved for a file that cannot be read."""


@dataclass(frozen=True, slots=True)
class JoinedDimension:
    """A dimension along which files are joined."""

    name: str
    blocks: tuple[Block, ...]
    size: int
    units: str | None
    calendar: str
    index_of: Mapping[str, int]
    """Block by URL."""
    notes: tuple[str, ...] = ()
    """Notes about gaps between neighbours."""
    encoding: TimeEncoding | None = None
    """The encoding of its times in the target. None if the files have the same encoding, or it is not a time."""
    direction: int = 0
    """1 ascending, -1 descending, 0 for a single value."""
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """[first, end) of the blocks of a file, by URL, if files share blocks. Otherwise each file has one block."""

    def span(self, url: str) -> range:
        """The blocks of a file."""
        return range(*self.spans[url]) if self.spans else range(self.index_of[url], self.index_of[url] + 1)

    def starts(self) -> list[tuple[int, int, str]]:
        """The first cell of every file with cells, the number of its cells, and its URL, without repeats."""
        if not self.spans:
            return [(block.start, block.size, block.urls[0]) for block in self.blocks if block.size]
        found: dict[tuple[int, int], str] = {}
        for url in self.index_of:
            own = [self.blocks[index] for index in self.span(url)]
            if own and (size := sum(block.size for block in own)):
                found.setdefault((own[0].start, size), url)
        return [(start, size, url) for (start, size), url in sorted(found.items())]

    @property
    def filled(self) -> tuple[Block, ...]:
        """The blocks that have cells. A file may have none."""
        return tuple(block for block in self.blocks if block.size)

    def values(self) -> npt.NDArray[Any] | None:
        """The values of the coordinate in the encoding of the target. None if some are not known."""
        known = [
            b.coordinate.values for b in self.filled if b.coordinate is not None and b.coordinate.values is not None
        ]
        return np.concatenate(known) if known and len(known) == len(self.filled) else None


def find_joined_dims(
    members: Sequence[Member], asked: Sequence[str] | None, *, named: Sequence[str] = ()
) -> tuple[str, ...]:
    """The dimensions along which the members differ. Their names give the first ones (`named`)."""
    if asked is not None:
        return tuple(asked)
    if len(members) == 1:
        return tuple(named)
    seen: dict[str, set[Any]] = {}
    for member in members:
        for dim, size in member.sizes().items():
            coordinate = member.coordinates.get(dim)
            # The same numbers in other time units are other times.
            units = member.variables[dim].attributes.get("units") if dim in member.variables else None
            label = units if is_time_units(units) else None
            seen.setdefault(dim, set()).add((size, coordinate.digest if coordinate else None, label))
    varying = [dim for dim, kinds in seen.items() if len(kinds) > 1 and dim not in named]
    if varying:
        unknown = [d for d in varying if all(d not in m.coordinates for m in members)]
        if unknown and len(unknown) == len(varying):
            raise InvalidInputError(
                f"the files differ along {', '.join(unknown)}, which has no coordinate to order them by. To join the "
                "files in the order of their names, pass the dimension in concat_dims"
            )
        return (*named, *(d for d in varying if d not in unknown))
    if named:
        return tuple(named)
    scalars: dict[str, set[str]] = {}
    for member in members:
        for name, variable in member.variables.items():
            if variable.dims == () and name in member.coordinates:
                units = variable.attributes.get("units") if is_time_units(variable.attributes.get("units")) else ""
                scalars.setdefault(name, set()).add(f"{member.coordinates[name].digest}{units}")
    stacked = [name for name, digests in scalars.items() if len(digests) == len(members)]
    if len(stacked) == 1:
        return (stacked[0],)
    return ()


def find_time_encoding(
    members: Sequence[Member], dim: str, stored: Mapping[str, Any] | None, asked: str | None
) -> TimeEncoding | None:
    """The encoding of the times of a dimension in the target.

    `stored` is the variable of the repository (attributes and dtype), which does not change. `asked` are units that the
    caller gave. Returns None if the dimension is not a time.
    """
    sources = [times for m in members if (times := _source_times(m, dim)) is not None]
    if not sources:
        return None
    if stored is not None:
        units = find_time_units(stored["attributes"])
        return None if units is None else TimeEncoding(units, stored["attributes"].get("calendar"), stored["dtype"])
    if asked is None:
        return choose_time_encoding(sources)
    units = parse_time_units(asked, sources[0].units.calendar)
    dtype = "<i8" if all(_is_whole(source, units) for source in sources) else "<f8"
    return TimeEncoding(units, sources[0].calendar, dtype)


def find_encoding(
    group: str, members: Sequence[Member], name: str, options: IngestOptions, existing: Existing
) -> TimeEncoding | None:
    """The encoding of the times of a dimension of a group in the target. None if it is not a time."""
    stored = existing.arrays.get(join_path(group, name))
    own = None if stored is None else stored.variable()
    known = None if own is None else {"attributes": own.attributes, "dtype": own.dtype}
    return find_time_encoding(members, name, known, options.time_units)


def _source_times(member: Member, dim: str) -> SourceTimes | None:
    variable, coordinate = member.variables.get(dim), member.coordinates.get(dim)
    if variable is None or variable.dtype == "string" or np.dtype(variable.dtype).kind not in "iuf":
        return None
    units, packing = find_time_units(variable.attributes), packing_of(variable.attributes, variable.dtype)
    if units is None or not packing.is_plain or packing.sign:
        return None
    values = None if coordinate is None else coordinate.values
    return SourceTimes(units, variable.attributes.get("calendar"), variable.dtype, values)


def _is_whole(source: SourceTimes, units: Any) -> bool:
    values = source.values
    if values is None:
        return np.dtype(source.dtype).kind in "iu"
    try:
        convert_times(values, source.units, units, "<i8")
    except InvalidInputError:
        return False
    return True


def join_dimension(
    members: Sequence[Member],
    dim: str,
    encoding: TimeEncoding | None,
    missing: Sequence[tuple[int, str]] = (),
    *,
    can_share: bool = False,
) -> JoinedDimension:
    """Order the members along one dimension. Overlaps are an error, gaps are noted.

    `missing` are (order among the sources, URL) of files that could not be read. With `can_share`, files that differ
    along another dimension may have some of the same values: forecasts of different lengths.
    """
    with_values = [m for m in members if dim in m.sizes()]
    if all(dim not in m.coordinates for m in with_values):
        return _join_by_order(with_values, dim, missing)
    units, calendar = _shown_units(with_values, dim, encoding)
    groups: dict[str, tuple[Coordinate, list[Member]]] = {}
    empty: list[tuple[Coordinate, list[Member]]] = []
    shared: dict[tuple[int, int], Coordinate] = {}
    for member in with_values:
        coordinate = _comparable(member, dim, encoding, shared)
        if coordinate.size == 0:
            empty.append((coordinate, [member]))
            continue
        groups.setdefault(coordinate.digest, (coordinate, []))[1].append(member)
    entries = list(groups.values())
    directions = {c.direction for c, _ in entries if c.size > 1}
    if len(directions) > 1 or 0 in directions:
        wrong = next(
            (m.file.url for c, g in entries for m in g if c.size > 1 and c.direction == 0), entries[-1][1][0].file.url
        )
        raise InvalidInputError(
            f"the coordinate {dim} is not monotone, or runs in different directions between files ({wrong})", url=wrong
        )
    sign = directions.pop() if directions else 1
    nameless = next((m.file.url for c, g in entries for m in g if c.first != c.first or c.last != c.last), None)
    if nameless is not None:
        raise InvalidInputError(f"the coordinate {dim} of {nameless} has missing values (NaN)", url=nameless)
    entries.sort(key=lambda entry: entry[0].first, reverse=sign < 0)
    if can_share and any(
        sign * _difference(right.first, left.last) <= 0 for (left, _), (right, _) in itertools.pairwise(entries)
    ):
        return _share_values(JoinedDimension(dim, (), 0, units, calendar, {}, (), encoding, sign), entries, empty)
    notes: list[str] = []
    step = find_step(entries, dim)
    for (left, left_members), (right, right_members) in itertools.pairwise(entries):
        notes += gaps_within(left, left_members, dim, step, units, calendar)
        distance = sign * _difference(right.first, left.last)
        if distance > 0 and not (step and distance > 1.5 * step):
            continue
        ends, starts = (format_coordinate(value, units, calendar) for value in (left.last, right.first))
        pair = f"{name_of(left_members, dim, -1)} ends at {ends}, {name_of(right_members, dim, 0)} starts at {starts}"
        if distance <= 0:
            raise InvalidInputError(
                f"files overlap along {dim}: {pair}. Leave one out, or choose one with overlap (--overlap)",
                dim=dim,
                left=left_members[0].file.url,
                right=right_members[0].file.url,
            )
        notes.append(f"gap along {dim}: {pair} (a step is {format_step(step or 0.0, units)})")
    for coordinate, group in entries[-1:]:
        notes += gaps_within(coordinate, group, dim, step, units, calendar)
    blocks, index_of, start = [], {}, 0
    for index, (coordinate, group) in enumerate([*entries, *empty]):
        blocks.append(Block(start, coordinate.size, coordinate, tuple(m.key for m in group)))
        index_of.update({m.key: index for m in group})
        start += coordinate.size
    notes += [f"{group[0].file.name} has no cells along {dim}" for _, group in empty]
    direction = sign if start > 1 else 0
    joined = JoinedDimension(dim, tuple(blocks), start, units, calendar, index_of, tuple(notes), encoding, direction)
    return _reserve_missing(joined, members, missing, sign * step if step else None) if missing else joined


def _share_values(
    joined: JoinedDimension,
    entries: Sequence[tuple[Coordinate, list[Member]]],
    empty: Sequence[tuple[Coordinate, list[Member]]],
) -> JoinedDimension:
    """A dimension with the values of all files, each once. Its blocks end where a file begins or ends."""
    first = entries[0][1][0].file.url
    unknown = next((group[0].file.url for c, group in entries if c.values is None), None)
    if unknown is not None:
        raise InvalidInputError(f"files overlap along {joined.name}, and {unknown} has too many values to compare")
    union = np.unique(np.concatenate([c.values for c, _ in entries if c.values is not None]))
    union = union[:: joined.direction]
    runs: list[tuple[int, int]] = []
    for coordinate, group in entries:
        start = find_run(union, coordinate.values) if coordinate.values is not None else None
        if start is None:
            raise InvalidInputError(
                f"files overlap along {joined.name}: the values of {group[0].file.url} are not consecutive among those "
                f"of all files, such as {first}. Leave one out, or cut it",
                dim=joined.name,
            )
        runs.append((start, start + coordinate.size))
    edges = sorted({edge for run in runs for edge in run})
    blocks = []
    for low, high in itertools.pairwise(edges):
        urls = tuple(
            m.key for (_, group), run in zip(entries, runs, strict=True) for m in group if run[0] <= low < run[1]
        )
        blocks.append(Block(low, high - low, summarise_coordinate(union[low:high]), urls))
    spans: dict[str, tuple[int, int]] = {}
    for (_, group), run in zip(entries, runs, strict=True):
        spans.update({m.key: (edges.index(run[0]), edges.index(run[1])) for m in group})
    for coordinate, group in empty:
        spans.update({m.key: (len(blocks), len(blocks) + 1) for m in group})
        blocks.append(Block(len(union), 0, coordinate, tuple(m.key for m in group)))
    index_of = {url: span[0] for url, span in spans.items()}
    direction = joined.direction if len(union) > 1 else 0
    return replace(joined, blocks=tuple(blocks), size=len(union), index_of=index_of, direction=direction, spans=spans)


def has_shared_values(name: str, joined: JoinedDimension, pair: Sequence[Member]) -> bool:
    """Whether a variable along a shared dimension has the same values in two files where both have some."""
    found = []
    low = max(joined.blocks[joined.span(m.key)[0]].start for m in pair)
    ends = [joined.blocks[joined.span(m.key)[-1]] for m in pair]
    high = min(block.start + block.size for block in ends)
    for member in pair:
        coordinate, variable = member.coordinates.get(name), member.variables[name]
        if coordinate is None or coordinate.values is None or variable.dims[0] != joined.name:
            return False
        start = joined.blocks[joined.span(member.key)[0]].start
        values = coordinate.values.reshape(variable.shape)[low - start : high - start]
        found.append((values, variable.attributes.get("units"), variable.attributes.get("calendar")))
    (left, *ours), (right, *theirs) = found
    return ours == theirs and left.shape == right.shape and bool(same_coordinates(left, right).all())


def without_overlaps(
    group: str, members: Sequence[Member], names: Sequence[str], options: IngestOptions, existing: Existing
) -> tuple[Sequence[Member], list[SchemaIssue]]:
    """Take cells that several files have from one of them, along the first dimension in which files overlap."""
    for name in sorted(names, key=lambda n: n != options.append_dim) if options.overlap != "error" else ():
        encoding = find_encoding(group, members, name, options, existing)
        cut, overlaps = cut_overlaps(members, name, names, encoding, options)
        # Files that alternate are cut too, and all of their cells are used.
        if overlaps or len(cut) > len(members):
            used = f"overlap={options.overlap!r}: they are taken from another file"
            return cut, [
                SchemaIssue(
                    "handled", o.url, name, "overlap", "its own", f"{o.cells - o.used} of {o.cells} values", used
                )
                for o in overlaps
            ]
    return members, []


@dataclass(frozen=True, slots=True)
class Overlap:
    """A file of which other files have some cells too."""

    url: str
    cells: int
    used: int


def cut_overlaps(
    members: Sequence[Member], dim: str, names: Sequence[str], encoding: TimeEncoding | None, options: IngestOptions
) -> tuple[list[Member], list[Overlap]]:
    """Take each value of a dimension from one file, as the options say. Other members stay as they are.

    Files overlap if they have the same variables at the same coordinates along the other joined dimensions. Files whose
    values cannot be compared one by one stay as they are, and `join_dimension` refuses them if they overlap.
    """
    alike: dict[Any, list[Member]] = {}
    for member in members:
        if dim in member.sizes() and dim in member.coordinates:
            others = tuple(c.digest for d in names if d != dim and (c := member.coordinates.get(d)) is not None)
            along = frozenset(n for n, v in member.variables.items() if dim in v.dims)
            alike.setdefault((others, along), []).append(member)
    runs: dict[str, list[tuple[int, int]]] = {}
    for group in alike.values():
        runs.update(_divide(group, dim, encoding, options))
    if not runs:
        return list(members), []
    found: list[Member] = []
    overlaps: list[Overlap] = []
    for member in members:
        size = member.sizes().get(dim, 0)
        kept = runs.get(member.key, [(0, size)])
        found += [member if run == (0, size) else member.cut(dim, *run) for run in kept]
        used = sum(end - first for first, end in kept)
        if used < size:
            overlaps.append(Overlap(member.file.url, size, used))
    return found, overlaps


def _divide(
    members: Sequence[Member], dim: str, encoding: TimeEncoding | None, options: IngestOptions
) -> dict[str, list[tuple[int, int]]]:
    """Return the runs of cells that are used of each file, if files overlap."""
    shared: dict[tuple[int, int], Coordinate] = {}
    filled = [(m, c) for m in members if (c := _comparable(m, dim, encoding, shared)).size]
    values = [c.values for _, c in filled]
    directions = {c.direction for _, c in filled if c.size > 1}
    if len(filled) < 2 or len(directions) > 1 or 0 in directions:
        return {}
    known = [each for each in values if each is not None]
    # Equal times in different units are not always equal floats.
    is_rounded = encoding is not None and np.dtype(encoding.dtype).kind == "f"
    if is_rounded and any(c is not m.coordinates[dim] for m, c in filled):
        return {}
    if len(known) < len(values) or not _are_comparable(known):
        return {}
    ends = sorted((min(c.first, c.last), max(c.first, c.last)) for _, c in filled)
    reached = list(itertools.accumulate((end for _, end in ends), max))
    if all(start > end for (start, _), end in zip(ends[1:], reached, strict=False)):
        return {}
    order = sorted(range(len(filled)), key=lambda i: _precedence(filled[i][0], options))
    rank = np.empty(len(filled), dtype=np.int64)
    rank[order if options.overlap == "last" else order[::-1]] = np.arange(len(filled))
    sizes = [len(each) for each in known]
    every = np.concatenate(known)
    owner = np.repeat(np.arange(len(known)), sizes)
    index = np.concatenate([np.arange(size) for size in sizes])
    by_value = np.lexsort((rank[owner], every))
    is_last = np.append(every[by_value][1:] != every[by_value][:-1], True)
    used = by_value[is_last]
    if -1 in directions:
        used = used[::-1]
    owners, cells = owner[used], index[used]
    starts = np.flatnonzero(np.append(True, (owners[1:] != owners[:-1]) | (cells[1:] != cells[:-1] + 1)))
    found: dict[str, list[tuple[int, int]]] = {member.key: [] for member, _ in filled}
    for first, end in itertools.pairwise([*starts.tolist(), len(used)]):
        found[filled[owners[first]][0].key].append((int(cells[first]), int(cells[end - 1]) + 1))
    return found


def _are_comparable(values: Sequence[npt.NDArray[Any]]) -> bool:
    """Whether equal coordinates of different files are equal numbers, also in their common type."""
    types = {each.dtype.newbyteorder("=") for each in values}
    kinds = {each.kind for each in types}
    if kinds == {"f"} and len(types) > 1:
        return False
    if any(each.dtype.kind == "f" and np.isnan(each).any() for each in values):
        return False
    if len(types) > 1 and kinds <= {"i", "u", "f"}:
        return (
            all(bool(np.all(np.abs(each.astype(np.float64)) < 2**53)) for each in values)
            and np.dtype("f4") not in types
        )
    return len(types) == 1 and kinds <= {"i", "u", "f", "M", "U"}


def _precedence(member: Member, options: IngestOptions) -> tuple[Any, ...]:
    """The order of a file among those that overlap. The last one is the greatest."""
    by, url = options.overlap_by, member.file.url
    if callable(by):
        return by(url), member.order
    if by == "name":
        return (member.order,)
    if by == "time":
        if member.file.last_modified is None:
            raise InvalidInputError(f"{url} has no modification time to order it by. Use another overlap_by", url=url)
        version = member.file.version or ""
        return member.file.last_modified, int(version) if version.isdigit() else 0, member.order
    match = re.search(by, url)
    if match is None:
        raise InvalidInputError(f"{url} does not match the pattern overlap_by={by!r}", url=url)
    return natural_key(match[1] or ""), member.order


def _shown_units(members: Sequence[Member], dim: str, encoding: TimeEncoding | None) -> tuple[str | None, str]:
    """The units and the calendar in which values of a dimension are shown."""
    if encoding is not None:
        return encoding.units.text, encoding.units.calendar
    variable = next((m.variables[dim] for m in members if dim in m.variables), None)
    if variable is None:
        return None, "standard"
    units = variable.attributes.get("units")
    return (None if units is None else str(units)), str(variable.attributes.get("calendar", "standard"))


def _comparable(
    member: Member, dim: str, encoding: TimeEncoding | None, shared: dict[tuple[int, int], Coordinate]
) -> Coordinate:
    """The member's coordinate in the encoding of the target. Similar files share one."""
    coordinate = member.coordinates.get(dim)
    if coordinate is None:
        raise InvalidInputError(
            f"{member.file.url} has no coordinate {dim}, but other files have one", url=member.file.url
        )
    variable = member.variables.get(dim)
    own = None if variable is None or encoding is None else _source_times(member, dim)
    if own is None or variable is None or encoding is None:
        return coordinate
    if own.units.counts_alike == encoding.units.counts_alike:
        return coordinate
    key = id(variable), id(coordinate)
    if key not in shared:
        try:
            shared[key] = _converted(coordinate, own, encoding)
        except InvalidInputError as error:
            raise InvalidInputError(f"{member.file.url}: {error}", url=member.file.url) from error
    return shared[key]


def _converted(coordinate: Coordinate, own: SourceTimes, encoding: TimeEncoding) -> Coordinate:
    def convert(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return convert_times(values, own.units, encoding.units, encoding.dtype)

    if coordinate.values is not None:
        return summarise_coordinate(convert(coordinate.values))
    first, last = convert(np.array([coordinate.first, coordinate.last], dtype=own.dtype)).tolist()
    step = None if coordinate.step is None else coordinate.step * own.units.unit_ns / encoding.units.unit_ns
    return replace(coordinate, digest=f"{coordinate.digest}:{own.units.text}", first=first, last=last, step=step)


def _difference(right: Any, left: Any) -> float:
    if isinstance(right, (int, float)):
        return float(right - left)
    return 1.0 if right > left else 0.0 if right == left else -1.0


def _join_by_order(members: Sequence[Member], dim: str, missing: Sequence[tuple[int, str]]) -> JoinedDimension:
    sizes = {m.sizes()[dim] for m in members}
    if missing and len(sizes) != 1:
        raise _unknown_place(missing[0][1], dim, "the files differ in length")
    entries: list[tuple[int, str, int, bool]] = [(m.order, m.key, m.sizes()[dim], False) for m in members]
    entries += [(order, url, min(sizes), True) for order, url in missing]
    blocks, index_of, start = [], {}, 0
    for index, (_, url, size, is_missing) in enumerate(sorted(entries)):
        blocks.append(Block(start, size, None, (url,), is_missing))
        index_of[url] = index
        start += size
    return JoinedDimension(dim, tuple(blocks), start, None, "standard", index_of)


def _unknown_place(url: str, dim: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{url} cannot be read, and its position along {dim} is not known ({why}). Remove it from the sources", url=url
    )


def _reserve_missing(
    joined: JoinedDimension, members: Sequence[Member], missing: Sequence[tuple[int, str]], step: float | None
) -> JoinedDimension:
    """Blocks for unreadable files between others, if names, lengths and spacing define their position.

    Files before the first and after the last readable one are left out, because their position is not known.
    """
    by_url = {m.key: m for m in members}
    known = joined.filled
    orders = [by_url[b.urls[0]].order for b in known]
    inside = [(order, url) for order, url in missing if orders and min(orders) < order < max(orders)]
    if not inside:
        return joined
    sizes = {b.size for b in known}
    for _, url in inside:
        if len(sizes) != 1:
            raise _unknown_place(url, joined.name, "the files differ in length")
        if orders != sorted(orders):
            raise _unknown_place(url, joined.name, "the order of the names is not that of the coordinate")
        if step is None or not isinstance(known[0].coordinate.first, (int, float)):  # type: ignore[union-attr]
            raise _unknown_place(url, joined.name, "the coordinate is not equally spaced")
    assert step is not None
    size = sizes.pop()
    entries = sorted(
        [(order, block.urls, block.coordinate) for order, block in zip(orders, known, strict=True)]
        + [(order, (url,), None) for order, url in inside],
        key=lambda entry: entry[0],
    )
    first_known = known[0].coordinate
    assert first_known is not None
    is_whole = isinstance(first_known.first, int)
    blocks: list[Block] = []
    for index, (_, urls, coordinate) in enumerate(entries):
        first = first_known.first + index * size * step
        if coordinate is not None:
            if abs(coordinate.first - first) > 0.01 * abs(step):
                raise _unknown_place(inside[0][1], joined.name, f"{urls[0]} is not at the position of equal spacing")
            blocks.append(Block(index * size, size, coordinate, urls))
            continue
        values: npt.NDArray[Any] = first + step * np.arange(size)
        if is_whole:
            values = np.rint(values).astype(np.int64)
        made = replace(summarise_coordinate(values), digest=f"missing:{urls[0]}")
        blocks.append(Block(index * size, size, made, urls, is_missing=True))
    total = size * len(blocks)
    blocks += [replace(block, start=total) for block in joined.blocks if not block.size]
    index_of = {url: index for index, block in enumerate(blocks) for url in block.urls}
    return replace(joined, blocks=tuple(blocks), size=total, index_of=index_of, notes=())


def find_offset(group: str, joined: JoinedDimension, options: IngestOptions, existing: Existing) -> int:
    """The first cell of the target that the joined files write along one dimension."""
    if options.append_dim == joined.name:
        return _append_offset(group, joined, options, existing)
    if options.region is None:
        return 0
    if options.region == "auto":
        return _found_region(group, joined, existing)
    if joined.name not in options.region:
        known = existing.coordinate(join_path(group, joined.name)) is not None
        return _found_region(group, joined, existing) if known else 0
    bounds = options.region[joined.name]
    first, end = (bounds.start or 0, bounds.stop) if isinstance(bounds, slice) else bounds
    if first < 0:
        raise InvalidInputError(f"the region {first}:{end} along {joined.name} starts before the first cell")
    if end is not None and end - first != joined.size:
        raise InvalidInputError(
            f"the region {first}:{end} along {joined.name} has {end - first} cells, but the sources have {joined.size}"
        )
    return int(first)


def _found_region(group: str, joined: JoinedDimension, existing: Existing) -> int:
    coordinate = existing.coordinate(join_path(group, joined.name))
    values = joined.values()
    if coordinate is None or values is None:
        raise InvalidInputError(
            f"region='auto' needs a coordinate {joined.name} in the repository and in every file. Give the bounds "
            "instead"
        )
    start = find_run(coordinate, values)
    if start is None:
        ends = f"{_shown(joined, values[0])} .. {_shown(joined, values[-1])}"
        raise InvalidInputError(
            f"the values of {joined.name} ({ends}) are not consecutive values of {joined.name} in the repository"
        )
    return start


def _append_offset(group: str, joined: JoinedDimension, options: IngestOptions, existing: Existing) -> int:
    name = joined.name
    lengths: set[int] = set()
    for array in existing.arrays.values():
        names = list(array.document.get("dimension_names") or [])
        if array.path.rpartition("/")[0] == group and name in names:
            lengths.add(int(array.document["shape"][names.index(name)]))
    if not lengths:
        return 0
    if len(lengths) > 1:
        raise InvalidInputError(
            f"arrays of /{group} have different lengths along {name}: {sorted(lengths)}. They cannot be appended to"
        )
    stored = existing.coordinate(join_path(group, name))
    if stored is not None and len(stored) and joined.filled:
        if options.append_order == "any" or stored.dtype.kind not in "iufM":
            _refuse_repeated(joined, stored)
        else:
            _refuse_earlier(joined, stored)
    return lengths.pop()


def _refuse_earlier(joined: JoinedDimension, stored: npt.NDArray[Any]) -> None:
    """Check that appended values follow those of the repository, in their direction."""
    found = summarise_coordinate(stored)
    # If the repository has unordered values, or a single one, the files define the direction.
    direction = found.direction or joined.direction or 1
    block = joined.filled[0]
    first = None if block.coordinate is None else block.coordinate.first
    if first is None:
        return
    advice = "skip_ingested leaves out sources that are there already, region='auto' overwrites"
    if joined.direction not in (0, direction):
        raise InvalidInputError(
            f"cannot append along {joined.name}: its values {'rise' if direction > 0 else 'fall'} in the repository, "
            f"and not in {block.urls[0]}",
            dim=joined.name,
        )
    edge = (stored.max() if direction > 0 else stored.min()).item()
    if not (first > edge if direction > 0 else first < edge):
        ends = "ends at" if found.direction or len(stored) == 1 else "reaches to"
        raise InvalidInputError(
            f"cannot append along {joined.name}: the repository {ends} {_shown(joined, edge)}, "
            f"{block.urls[0]} starts at {_shown(joined, first)}; {advice}",
            dim=joined.name,
        )


def find_append_gap(group: str, joined: JoinedDimension, options: IngestOptions, existing: Existing) -> str | None:
    """The gap between the end of the repository and the first appended file, if there is one."""
    stored = existing.coordinate(join_path(group, joined.name))
    if options.append_dim != joined.name or options.append_order == "any" or not joined.filled:
        return None
    block = joined.filled[0]
    if block.coordinate is None or stored is None or len(stored) < 2 or stored.dtype.kind not in "iuf":
        return None
    wide = np.sort(stored.astype(np.float64))
    step = float(np.median(np.diff(wide)))
    direction = summarise_coordinate(stored).direction or joined.direction or 1
    last = (stored.max() if direction > 0 else stored.min()).item()
    if not step or abs(float(block.coordinate.first) - float(last)) <= 1.5 * step:
        return None
    return (
        f"gap along {joined.name}: the repository ends at {_shown(joined, last)}, "
        f"{block.urls[0].rsplit('/', 1)[-1]} starts at {_shown(joined, block.coordinate.first)} "
        f"(a step is {format_step(step, joined.units)})"
    )


def _shown(joined: JoinedDimension, value: Any) -> str:
    return format_coordinate(value, joined.units, joined.calendar)


def _refuse_repeated(joined: JoinedDimension, stored: npt.NDArray[Any]) -> None:
    """Check that values that are appended out of order are not in the repository yet."""
    for block in joined.filled:
        values = block.coordinate.values if block.coordinate is not None else None
        if values is None:
            continue
        if stored.dtype.kind in "iufM":
            again = values[np.isin(values, stored)]
        else:
            known = set(stored.tolist())
            again = values[[value in known for value in values.tolist()]]
        if len(again):
            raise InvalidInputError(
                f"cannot append along {joined.name}: the repository has {len(again)} of the values of {block.urls[0]} "
                f"already, for example {_shown(joined, again[0])}. Use region='auto' to overwrite them",
                dim=joined.name,
            )
