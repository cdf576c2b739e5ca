"""Where each file's cells lie in the combined arrays, found from coordinates."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.ingest.cf import convert_times, format_coordinate, format_step, is_time_units, parse_time_units
from icefloe.ingest.members import Member
from icefloe.ingest.source_model import Coordinate, SourceVariable


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of one dimension that some files cover; one without coordinate is known by its order only."""

    start: int
    size: int
    coordinate: Coordinate | None
    urls: tuple[str, ...]
    is_missing: bool = False
    """Held free for a file that could not be read."""


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
    """Gaps between neighbours."""


def find_joined_dims(members: Sequence[Member], asked: Sequence[str] | None) -> tuple[str, ...]:
    """The dimensions along which the members differ."""
    if asked is not None:
        return tuple(asked)
    if len(members) == 1:
        return ()
    seen: dict[str, set[Any]] = {}
    for member in members:
        for dim, size in member.sizes().items():
            coordinate = member.coordinates.get(dim)
            # The same numbers in other time units are other times.
            units = member.variables[dim].attributes.get("units") if dim in member.variables else None
            label = units if is_time_units(units) else None
            seen.setdefault(dim, set()).add((size, coordinate.digest if coordinate else None, label))
    varying = [dim for dim, kinds in seen.items() if len(kinds) > 1]
    if varying:
        unknown = [d for d in varying if all(d not in m.coordinates for m in members)]
        if unknown and len(unknown) == len(varying):
            raise InvalidInputError(
                f"the files differ along {', '.join(unknown)}, which has no coordinate to order them by; "
                f"name the dimension with concat_dims to join the files in the order of their names"
            )
        return tuple(d for d in varying if d not in unknown)
    scalars: dict[str, set[str]] = {}
    for member in members:
        for name, variable in member.variables.items():
            if variable.dims == () and name in member.coordinates:
                units = variable.attributes.get("units") if is_time_units(variable.attributes.get("units")) else ""
                scalars.setdefault(name, set()).add(f"{member.coordinates[name].digest}{units}")
    stacked = [name for name, digests in scalars.items() if len(digests) == len(members)]
    if len(stacked) == 1:
        return (stacked[0],)
    _check_disjoint(members)
    return ()


def _check_disjoint(members: Sequence[Member]) -> None:
    owners: dict[str, str] = {}
    for member in members:
        for name, variable in member.variables.items():
            if name in member.coordinates or variable.dims == ():
                continue
            if name in owners:
                raise InvalidInputError(
                    f"{owners[name]} and {member.file.url} hold {name} at the same coordinates; leave one out, or name "
                    f"the dimension to join them along with concat_dims"
                )
            owners[name] = member.file.url


def stack_member(member: Member, dim: str) -> Member:
    """The member with `dim`, which no file has, as the first dimension of its data."""
    variables: dict[str, SourceVariable] = {}
    for name, variable in member.variables.items():
        is_own = name == dim and variable.dims == ()
        # Coordinates of the grid, such as two-dimensional latitudes, are the same in every file.
        if is_own or (variable.dims and name not in member.coordinates):
            variables[name] = _stacked(variable, dim)
        else:
            variables[name] = variable
    return replace(member, variables=variables)


def _stacked(variable: SourceVariable, dim: str) -> SourceVariable:
    turned = any(codec["name"] == "transpose" for codec in variable.codecs)
    reason = "its chunks are transposed and files are stacked" if turned else None
    return replace(
        variable, dims=(dim, *variable.dims), shape=(1, *variable.shape), chunks=(1, *variable.chunks),
        is_stacked=True, not_virtual=variable.not_virtual or reason,
    )  # fmt: skip


def target_units(members: Sequence[Member], dim: str, asked: str | None) -> tuple[str | None, str]:
    """The units and calendar of a joined coordinate: those asked for, or the first file's."""
    for member in members:
        variable = member.variables.get(dim)
        if variable is not None:
            units = variable.attributes.get("units")
            calendar = str(variable.attributes.get("calendar", "standard"))
            if is_time_units(units):
                return asked or str(units), calendar
            return (None if units is None else str(units)), calendar
    return None, "standard"


def convert_coordinate(
    values: npt.NDArray[Any], attributes: Mapping[str, Any], units: str | None, calendar: str, dtype: str
) -> npt.NDArray[Any]:
    """A coordinate's values in the joined dimension's units."""
    own = attributes.get("units")
    if units is None or own == units or not is_time_units(own):
        return values if values.dtype.kind in "SU" or dtype == "string" else values.astype(np.dtype(dtype))
    source = parse_time_units(str(own), str(attributes.get("calendar", "standard")))
    return convert_times(values, source, parse_time_units(units, calendar), dtype)


def join_dimension(
    members: Sequence[Member], dim: str, units: str | None, calendar: str, missing: Sequence[tuple[int, str]] = ()
) -> JoinedDimension:
    """Put the members in order along one dimension; overlaps are an error, gaps are noted.

    `missing` are (order among the sources, URL) of files that could not be read.
    """
    with_values = [m for m in members if dim in m.sizes()]
    if all(dim not in m.coordinates for m in with_values):
        return _join_by_order(with_values, dim, missing)
    groups: dict[str, tuple[Coordinate, list[Member]]] = {}
    several_units = len({str(m.variables[dim].attributes.get("units")) for m in with_values if dim in m.variables}) > 1
    for member in with_values:
        coordinate = _comparable(member, dim, units, calendar)
        key = f"{coordinate.first}:{coordinate.last}:{coordinate.size}" if several_units else coordinate.digest
        groups.setdefault(key, (coordinate, []))[1].append(member)
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
    entries.sort(key=lambda entry: entry[0].first, reverse=sign < 0)
    notes: list[str] = []
    steps = [abs(c.step) for c, _ in entries if c.step]
    step = float(np.median(steps)) if steps else _median_distance([c.first for c, _ in entries])
    for (left, left_members), (right, right_members) in itertools.pairwise(entries):
        ends, starts = (format_coordinate(value, units, calendar) for value in (left.last, right.first))
        pair = f"{left_members[0].file.name} ends at {ends}, {right_members[0].file.name} starts at {starts}"
        if sign * _difference(right.first, left.last) <= 0:
            raise InvalidInputError(
                f"files overlap along {dim}: {pair}; leave one out or cut it",
                dim=dim, left=left_members[0].file.url, right=right_members[0].file.url,
            )  # fmt: skip
        if step and abs(_difference(right.first, left.last)) > 1.5 * step:
            notes.append(f"gap along {dim}: {pair} (a step is {format_step(step, units)})")
    blocks, index_of, start = [], {}, 0
    for index, (coordinate, group) in enumerate(entries):
        blocks.append(Block(start, coordinate.size, coordinate, tuple(m.file.url for m in group)))
        index_of.update({m.file.url: index for m in group})
        start += coordinate.size
    joined = JoinedDimension(dim, tuple(blocks), start, units, calendar, index_of, tuple(notes))
    return _hold_free(joined, members, missing, sign * step if step else None) if missing else joined


def _comparable(member: Member, dim: str, units: str | None, calendar: str) -> Coordinate:
    """The member's coordinate with its ends in the joined units."""
    coordinate = member.coordinates.get(dim)
    if coordinate is None:
        raise InvalidInputError(f"{member.file.url} has no coordinate for {dim}, other files do", url=member.file.url)
    variable = member.variables.get(dim)
    own = variable.attributes.get("units") if variable is not None else None
    if variable is None or own == units or not is_time_units(own) or units is None:
        return coordinate
    ends = np.array([coordinate.first, coordinate.last])
    kept = coordinate.values
    try:
        first, last = convert_coordinate(ends, variable.attributes, units, calendar, "<f8").tolist()
        values = None if kept is None else convert_coordinate(kept, variable.attributes, units, calendar, "<f8")
    except IcefloeError as error:
        raise InvalidInputError(f"{member.file.url}: {error}", url=member.file.url) from error
    scale = parse_time_units(str(own)).unit_us / parse_time_units(units).unit_us
    step = None if coordinate.step is None else coordinate.step * scale
    return replace(coordinate, first=first, last=last, step=step, values=values)


def _difference(right: Any, left: Any) -> float:
    if isinstance(right, (int, float)):
        return float(right - left)
    return 1.0 if right > left else 0.0 if right == left else -1.0


def _median_distance(firsts: Sequence[Any]) -> float | None:
    if len(firsts) < 3 or not isinstance(firsts[0], (int, float)):
        return None
    return float(np.median(np.abs(np.diff(np.array(firsts, dtype=np.float64)))))


def _join_by_order(members: Sequence[Member], dim: str, missing: Sequence[tuple[int, str]]) -> JoinedDimension:
    sizes = {m.sizes()[dim] for m in members}
    if missing and len(sizes) != 1:
        raise _unknown_place(missing[0][1], dim, "the files differ in length")
    entries: list[tuple[int, str, int, bool]] = [(m.order, m.file.url, m.sizes()[dim], False) for m in members]
    entries += [(order, url, min(sizes), True) for order, url in missing]
    blocks, index_of, start = [], {}, 0
    for index, (_, url, size, is_missing) in enumerate(sorted(entries)):
        blocks.append(Block(start, size, None, (url,), is_missing))
        index_of[url] = index
        start += size
    return JoinedDimension(dim, tuple(blocks), start, None, "standard", index_of)


def _unknown_place(url: str, dim: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{url} cannot be read and its place along {dim} is not known ({why}); take it out of the sources", url=url
    )


def _hold_free(
    joined: JoinedDimension, members: Sequence[Member], missing: Sequence[tuple[int, str]], step: float | None
) -> JoinedDimension:
    """Blocks for unreadable files, where order of names, equal lengths and spacing say where they would be."""
    by_url = {m.file.url: m for m in members}
    orders = [by_url[b.urls[0]].order for b in joined.blocks]
    sizes = {b.size for b in joined.blocks}
    for _, url in missing:
        if len(sizes) != 1:
            raise _unknown_place(url, joined.name, "the files differ in length")
        if orders != sorted(orders):
            raise _unknown_place(url, joined.name, "the order of the names is not that of the coordinate")
        if step is None or not isinstance(joined.blocks[0].coordinate.first, (int, float)):  # type: ignore[union-attr]
            raise _unknown_place(url, joined.name, "the coordinate is not equally spaced")
    size = sizes.pop()
    entries = sorted(
        [(order, block.urls, block.coordinate) for order, block in zip(orders, joined.blocks, strict=True)]
        + [(order, (url,), None) for order, url in missing],
        key=lambda entry: entry[0],
    )
    anchor = next(index for index, entry in enumerate(entries) if entry[2] is not None)
    origin = entries[anchor][2].first - anchor * size * step  # type: ignore[operator, union-attr]
    blocks: list[Block] = []
    for index, (_, urls, coordinate) in enumerate(entries):
        first = origin + index * size * step  # type: ignore[operator]
        if coordinate is not None:
            if abs(coordinate.first - first) > 0.01 * abs(step):  # type: ignore[arg-type]
                raise _unknown_place(missing[0][1], joined.name, f"{urls[0]} is not where equal spacing would put it")
            blocks.append(Block(index * size, size, coordinate, urls))
            continue
        values = first + step * np.arange(size)  # type: ignore[operator]
        made = Coordinate(size, f"missing:{urls[0]}", first, float(values[-1]), 1, step, values)
        blocks.append(Block(index * size, size, made, urls, is_missing=True))
    index_of = {url: index for index, block in enumerate(blocks) for url in block.urls}
    notes = tuple(n for n in joined.notes if not missing)
    return replace(joined, blocks=tuple(blocks), size=size * len(blocks), index_of=index_of, notes=notes)
