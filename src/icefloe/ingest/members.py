"""The datasets of an ingest: one member per file and group, and what differs between members."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import IcefloeError, InvalidInputError, suggest
from icefloe.ingest.catalogue import SourceRun
from icefloe.ingest.cf import (
    find_time_units,
    format_coordinate,
    format_step,
    is_time_units,
    keeps_values,
    packing_of,
)
from icefloe.ingest.source_files import in_natural_order, take_rows
from icefloe.ingest.source_model import (
    IDENTITY_ATTRIBUTES,
    NAMING_ATTRIBUTES,
    Coordinate,
    SchemaIssue,
    Severity,
    SourceFile,
    SourceSchema,
    SourceVariable,
    named_by,
    summarise_coordinate,
)
from icefloe.ingest.sources import IngestOptions, NamedValues, name_values
from icefloe.ingest.zarr_documents import parse_fill_attribute


@dataclass(frozen=True, slots=True)
class Member:
    """The part of one file in one dataset. Variables and dimensions have their target names."""

    file: SourceFile
    format: str
    order: int
    """Position among the sources."""
    variables: Mapping[str, SourceVariable]
    coordinates: Mapping[str, Coordinate]
    attributes: Mapping[str, Any]
    digests: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the stored values of small variables that files usually share."""
    part: tuple[int, int] | None = None
    """The cells of the file that are used along the dimension in which files overlap. None for all of them."""
    run: SourceRun | None = None
    """The sources that it stands for, if they are planned like one file. `file` is the first of them."""

    @property
    def key(self) -> str:
        """The URL, and the part of the file if others are members too."""
        return self.file.url if self.part is None else f"{self.file.url} [{self.part[0]}:{self.part[1]}]"

    @property
    def count(self) -> int:
        """The number of files."""
        return 1 if self.run is None else len(self.run)

    def run_along(self, dim: str) -> SourceRun | None:
        """The run, if its sources follow each other along a dimension."""
        return self.run if self.run is not None and self.run.dim == dim else None

    def cut(self, dim: str, first: int, end: int) -> Member:
        """The part [first, end) of the file along a dimension."""
        along = {name for name, variable in self.variables.items() if dim in variable.dims}
        coordinates = dict(self.coordinates)
        for name in along & coordinates.keys():
            values = coordinates.pop(name).values
            if values is not None and self.variables[name].dims == (dim,):
                coordinates[name] = summarise_coordinate(values[first:end])
        return replace(
            self,
            variables={n: v.cut(dim, first, end) if n in along else v for n, v in self.variables.items()},
            coordinates=coordinates,
            digests={name: digest for name, digest in self.digests.items() if name not in along},
            part=(first, end),
        )

    def sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for variable in self.variables.values():
            sizes.update(zip(variable.dims, variable.shape, strict=True))
        return sizes


def join_path(*parts: str) -> str:
    return "/".join(part.strip("/") for part in parts if part.strip("/"))


def split_datasets(schemas: Sequence[tuple[int, SourceSchema]], options: IngestOptions) -> dict[str, list[Member]]:
    """Members by target group. Groups without variables have none. Schemas have their position among the sources."""
    _check_names([schema for _, schema in schemas], options)
    datasets: dict[str, list[Member]] = {}
    shared: dict[tuple[int, ...], tuple[Any, dict[str, SourceVariable]]] = {}
    extended: dict[tuple[int, ...], dict[str, SourceVariable]] = {}
    arranged: dict[Any, Any] = {}
    for order, schema in schemas:
        below = target_group(schema.file, options)
        for group in _groups(schema):
            chosen = _select(schema, group, options)
            if not chosen and group:
                continue
            # Similar files share one mapping, so that plans of many files stay small. The variables are kept too,
            # or their ids could be reused.
            key = tuple(id(v) for v in chosen.values())
            if key not in shared:
                shared[key] = (chosen, _inherit_units(_renamed(schema.file, chosen, options.rename)))
            renamed = shared[key][1]
            coordinates = _coordinates(schema, group, renamed, options.rename)
            if options.pattern is not None and chosen:
                named = _named_coordinates(schema.file, renamed, options.pattern)
                added = {name: variable for name, (variable, _) in named.items()}
                renamed = extended.setdefault((id(renamed), *map(id, added.values())), {**added, **renamed})
                coordinates |= {name: coordinate for name, (_, coordinate) in named.items()}
            member = Member(
                schema.file,
                schema.format,
                order,
                renamed,
                coordinates,
                schema.groups.get(group, {}),
                {
                    options.rename.get(name, name): digest
                    for path, digest in schema.digests.items()
                    for folder, _, name in (path.rpartition("/"),)
                    if folder == group
                },
            )
            if options.sort or options.flip or options.longitudes is not None:
                member = _arranged(member, options, arranged)
            datasets.setdefault(join_path(below, group), []).append(member)
    return datasets


def with_runs(members: Sequence[Member], runs: Mapping[str, SourceRun], group: str) -> list[Member]:
    """Replace the members that lead runs of a group by members with the cells of all sources. `runs` are by URL."""
    found: list[Member] = []
    for member in members:
        run = runs.get(member.file.url)
        found.append(_run_member(member, run) if run is not None and run.group == group else member)
    return found


def _run_member(member: Member, run: SourceRun) -> Member:
    """Return a member with the cells of all sources of a run. The given one is that of its leader."""
    along = {name for name, variable in member.variables.items() if run.dim in variable.dims}
    variables, coordinates = dict(member.variables), dict(member.coordinates)
    for name in along:
        variables[name] = _repeated_along(variables[name], run)
    for name, path in _columns(member, run, run.batch.values):
        if name in along and name != run.dim:
            coordinates[name] = _summary(_joined_rows(run.batch.values[path][run.rows], member.variables[name], run))
    own = member.variables.get(run.dim)
    order = None if own is None else own.order.get(run.dim)
    coordinates[run.dim] = _summary((run.values if order is None else run.values[:, order]).reshape(-1))
    digests = {name: digest for name, digest in member.digests.items() if name not in along}
    for name, path in _columns(member, run, run.batch.hashes):
        every, known = take_rows(run.batch.hashes[path], run.rows), run.batch.hashes[path][run.leader]
        if name in along or any(each != known for each in every):
            digest = hashlib.blake2b(digest_size=16)
            for each in every:
                digest.update(f"{each} ".encode())
            digests[name] = digest.hexdigest() + member.digests[name].removeprefix(known)
    return replace(member, file=run.file(0), variables=variables, coordinates=coordinates, digests=digests, run=run)


def _repeated_along(variable: SourceVariable, run: SourceRun) -> SourceVariable:
    """Return a variable of one source of a run with the cells of all of them."""
    lengths = zip(variable.dims, variable.shape, strict=True)
    return replace(variable, shape=tuple(n * len(run) if dim == run.dim else n for dim, n in lengths))


def _joined_rows(rows: npt.NDArray[Any], variable: SourceVariable, run: SourceRun) -> npt.NDArray[Any]:
    """Return the values of a coordinate of all sources of a run, in the order of the cells of one array."""
    axis = variable.dims.index(run.dim)
    parts = np.moveaxis(rows.reshape(len(run), *variable.shape), 0, axis)
    return np.ascontiguousarray(parts).reshape(-1)


def _columns(member: Member, run: SourceRun, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Return the target name and the path of every variable of which the batch of a run has a column."""
    names = {variable.path: name for name, variable in member.variables.items()}
    for path in paths:
        if (name := names.get(path, names.get(f"/{path}"))) is not None:
            yield name, path


def _summary(values: npt.NDArray[Any]) -> Coordinate:
    """Summarise a coordinate. Its values are kept, because they are those of many short coordinates."""
    return replace(summarise_coordinate(values), values=values)


def find_step(entries: Sequence[tuple[Coordinate, list[Member]]], dim: str) -> float | None:
    """The usual distance between neighbours: within files, or between files with one value each."""
    steps: list[Any] = []
    firsts: list[Any] = []
    for coordinate, group in entries:
        run = group[0].run_along(dim)
        if run is None or coordinate.values is None:
            steps += [abs(coordinate.step)] if coordinate.step else []
            firsts.append(coordinate.first)
            continue
        rows = coordinate.values.reshape(len(run), run.length)
        firsts += rows[:, 0].tolist()
        if run.length > 1:
            steps += (np.abs(rows[:, -1] - rows[:, 0]) / (run.length - 1)).tolist()
    if steps:
        return float(np.median(steps))
    if len(firsts) < 3 or not isinstance(firsts[0], (int, float)):
        return None
    return float(np.median(np.abs(np.diff(np.array(firsts, dtype=np.float64)))))


def gaps_within(
    coordinate: Coordinate, group: Sequence[Member], dim: str, step: float | None, units: str | None, calendar: str
) -> list[str]:
    """Notes about gaps between the files of runs with the same coordinate."""
    run = group[0].run_along(dim)
    if run is None or coordinate.values is None or not step:
        return []
    rows = coordinate.values.reshape(len(run), run.length)
    distance = np.abs(rows[1:, 0].astype(np.float64) - rows[:-1, -1].astype(np.float64))
    found = []
    for index in np.flatnonzero(distance > 1.5 * step).tolist():
        ends, starts = (format_coordinate(v.item(), units, calendar) for v in (rows[index, -1], rows[index + 1, 0]))
        pair = f"{name_of(group, dim, index)} ends at {ends}, {name_of(group, dim, index + 1)} starts at {starts}"
        found.append(f"gap along {dim}: {pair} (a step is {format_step(step, units)})")
    return found


def name_of(group: Sequence[Member], dim: str, index: int) -> str:
    """Return the name of a file of members with the same coordinate. `index` is its position in their runs."""
    files = [member.file if (run := member.run_along(dim)) is None else run.file(index) for member in group]
    first = in_natural_order([file.url for file in files])[0] if len(files) > 1 else files[0].url
    return next(file.name for file in files if file.url == first)


def _named_coordinates(
    file: SourceFile, variables: Mapping[str, SourceVariable], pattern: str | NamedValues
) -> dict[str, tuple[SourceVariable, Coordinate]]:
    """The coordinates that the name of a file gives. The file must not have others."""
    sizes = {d: n for v in variables.values() for d, n in zip(v.dims, v.shape, strict=True)}
    found: dict[str, tuple[SourceVariable, Coordinate]] = {}
    for dim, value in name_values(file.url, pattern).items():
        if dim in variables or sizes.get(dim, 1) != 1:
            own = f"a variable {dim!r}" if dim in variables else f"{sizes[dim]} cells along {dim!r}"
            raise InvalidInputError(
                f"{file.url} has {own} of its own, and its name gives a coordinate {dim!r} too. Leave it out of the "
                "pattern, or leave the variable out (drop_variables)",
                url=file.url,
                dim=dim,
            )
        is_text = isinstance(value.value, str)
        values: npt.NDArray[Any] = np.array([value.value], dtype=object if is_text else None)
        dtype = "string" if is_text else values.dtype.newbyteorder("<").str
        variable = _named_variable(dim, dtype, value.units, dim in sizes)
        found[dim] = (variable, summarise_coordinate(values))
    return found


@lru_cache(maxsize=256)
def _named_variable(dim: str, dtype: str, units: str | None, has_dim: bool) -> SourceVariable:
    """The variable of a coordinate that names of files give. Similar files share one."""
    attributes = {} if units is None else {"units": units}
    if units is not None and " since " in units:
        attributes["calendar"] = "proleptic_gregorian"
    shape = (1,) if has_dim else ()
    dims = (dim,) if has_dim else ()
    reason = "its value is in the name of the file"
    return SourceVariable(dim, dims, shape, dtype, shape, attributes, layout="named", not_virtual=reason)


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """How the cells of a file are used along a dimension."""

    order: tuple[int, ...]
    added: tuple[float, ...] = ()
    """What is added to the coordinate."""
    coordinate: Coordinate | None = None
    """The coordinate afterwards."""


def _arranged(member: Member, options: IngestOptions, shared: dict[Any, Any]) -> Member:
    """The member with its cells in the order that the options ask for. Similar files share the same values."""
    found: dict[str, _Arrangement] = {}
    for dim, size in member.sizes().items():
        coordinate, variable = member.coordinates.get(dim), member.variables.get(dim)
        key = (dim, size, None if coordinate is None else (coordinate.digest, id(coordinate)), id(variable))
        if key not in shared:
            # The values are kept too, or their ids could be reused.
            shared[key] = _arrange(member, dim, size, options), coordinate, variable
        if shared[key][0] is not None:
            found[dim] = shared[key][0]
    _check_longitudes(member, options)
    if not found:
        return member
    variables, coordinates, digests = dict(member.variables), dict(member.coordinates), dict(member.digests)
    for name, variable in member.variables.items():
        own = [dim for dim in variable.dims if dim in found]
        if not own:
            continue
        ids = (id(variable), *(id(found[dim]) for dim in own))
        if ids not in shared:
            orders = {dim: found[dim].order for dim in own}
            added = {d: found[d].added for d in own if found[d].added and name in (d, _bounds_of(member, d))}
            reason = f"its cells are in another order along {own[0]}"
            again = replace(variable, order=orders, added=added, not_virtual=variable.not_virtual or reason)
            shared[ids] = again, variable, [found[dim] for dim in own]
        variables[name] = shared[ids][0]
        if name in digests:
            digests[name] = f"{digests[name]}:{hash(tuple((found[d].order, found[d].added) for d in own))}"
    for dim, arrangement in found.items():
        if arrangement.coordinate is not None:
            coordinates[dim] = arrangement.coordinate
    return replace(member, variables=variables, coordinates=coordinates, digests=digests)


def _arrange(member: Member, dim: str, size: int, options: IngestOptions) -> _Arrangement | None:
    """How the cells of a file are used along a dimension. None if they are used as they are."""
    coordinate, variable = member.coordinates.get(dim), member.variables.get(dim)
    is_wrapped = options.longitudes is not None and is_longitude(dim, variable)
    if dim not in options.sort and dim not in options.flip and not is_wrapped:
        return None
    order = np.arange(size)[:: -1 if dim in options.flip else 1]
    values = None if coordinate is None else coordinate.values
    added: npt.NDArray[Any] = np.zeros(0)
    if dim in options.sort or is_wrapped:
        packing = packing_of(variable.attributes, variable.dtype) if variable is not None else None
        if values is None or len(values) != size or (values.dtype.kind == "f" and bool(np.isnan(values).any())):
            raise InvalidInputError(
                f"{member.file.url} cannot be sorted along {dim}, which has no coordinate, too many values or missing "
                "ones",
                url=member.file.url,
                dim=dim,
            )
        values = values[order]
        if is_wrapped:
            if (packing is not None and not packing.is_plain) or values.dtype.kind not in "if":
                raise InvalidInputError(
                    f"{member.file.url} has longitudes of type {values.dtype} or packed ones. Convert them with "
                    "preprocess",
                    url=member.file.url,
                )
            start = 0.0 if options.longitudes == "0..360" else -180.0
            turns = np.floor((values.astype(np.float64) - start) / 360.0)
            added = (-360 * turns).astype(values.dtype)
            values = values + added
        down = options.sort.get(dim) == "descending"
        # A negative scale reverses packed numbers.
        down = down != (packing is not None and packing.scale < 0)
        sorter = np.argsort(values, kind="stable")[:: -1 if down else 1]
        order, values = order[sorter], values[sorter]
        added = added[sorter] if is_wrapped and bool(added.any()) else np.zeros(0)
        if is_wrapped and bool((values[1:] == values[:-1]).any()):
            raise InvalidInputError(
                f"{member.file.url} has the same meridian twice along {dim}, such as 0 and 360 degrees. Leave one out "
                "with preprocess",
                url=member.file.url,
                dim=dim,
            )
    elif values is not None:
        values = values[order]
    if np.array_equal(order, np.arange(size)) and not len(added):
        return None
    summary = None if values is None else summarise_coordinate(values)
    return _Arrangement(tuple(order.tolist()), tuple(added.tolist()), summary)


_EAST = frozenset({"degrees_east", "degree_east", "degrees_e", "degree_e", "degreese", "degreee"})


def is_longitude(name: str, variable: SourceVariable | None) -> bool:
    """Return whether a coordinate has longitudes, as its name, its units or its standard name say."""
    attributes = {} if variable is None else variable.attributes
    units, standard_name = str(attributes.get("units", "")).lower(), attributes.get("standard_name")
    return units in _EAST or standard_name == "longitude" or name.lower() in ("lon", "longitude", "long")


def _bounds_of(member: Member, dim: str) -> str | None:
    variable = member.variables.get(dim)
    return None if variable is None else str(variable.attributes.get("bounds"))


def _check_longitudes(member: Member, options: IngestOptions) -> None:
    """Refuse longitudes that are not those of a dimension. Their cells have no order to follow."""
    for name, variable in member.variables.items() if options.longitudes is not None else ():
        own = variable.dims[0] if variable.dims else None
        is_bounds = own is not None and name == _bounds_of(member, own)
        if variable.dims != (name,) and not is_bounds and is_longitude(name, variable):
            raise InvalidInputError(
                f"the longitudes {name!r} of {member.file.url} have the dimensions {variable.dims}. Only longitudes "
                "of a dimension are converted: use preprocess",
                url=member.file.url,
            )


def stack_members(members: Sequence[Member], dim: str) -> list[Member]:
    """The members with the new dimension `dim` as the first dimension of their data. Similar ones share variables."""
    shared: dict[tuple[int, int], tuple[SourceVariable, SourceVariable]] = {}
    return [_stack_member(member, dim, shared) for member in members]


def _stack_member(
    member: Member, dim: str, shared: dict[tuple[int, int], tuple[SourceVariable, SourceVariable]]
) -> Member:
    count = 1 if (run := member.run_along(dim)) is None else len(run)
    variables = dict(member.variables)
    for name, variable in member.variables.items():
        is_own = name == dim and variable.dims == ()
        # Coordinates of the grid, such as two-dimensional latitudes, are the same in every file.
        if is_own or (variable.dims and name not in member.coordinates):
            key = (id(variable), count)
            if key not in shared:
                # The variable is kept too, or its id could be reused.
                shared[key] = _stacked(variable, dim, count), variable
            variables[name] = shared[key][0]
    return replace(member, variables=variables)


def _stacked(variable: SourceVariable, dim: str, count: int) -> SourceVariable:
    turned = any(codec["name"] == "transpose" for codec in variable.codecs)
    reason = "its chunks are transposed and files are stacked" if turned else None
    return replace(
        variable,
        dims=(dim, *variable.dims),
        shape=(count, *variable.shape),
        chunks=(1, *variable.chunks),
        stacked=variable.stacked + 1,
        not_virtual=variable.not_virtual or reason,
    )


def snap_coordinates(
    members: Sequence[Member],
    tolerance: float | Mapping[str, float] | None,
    stored: Mapping[str, npt.NDArray[Any] | None],
) -> Sequence[Member]:
    """The members with equal coordinates where they differ by no more than a tolerance.

    The coordinates of the repository (`stored`) or of the first member are used.
    """
    if tolerance is None:
        return members
    known: dict[str, list[Coordinate]] = {}
    for dim, values in stored.items():
        if values is not None and values.dtype.kind in "iuf":
            known[dim] = [summarise_coordinate(values)]
    result: list[Member] = []
    shared: dict[tuple[str, int], tuple[Coordinate, Coordinate]] = {}
    for member in members:
        changed: dict[str, Coordinate] = {}
        for dim, coordinate in member.coordinates.items():
            variable = member.variables.get(dim)
            if variable is None or variable.dims != (dim,) or variable.dtype == "string":
                continue
            is_time = is_time_units(variable.attributes.get("units"))
            limit = tolerance.get(dim) if isinstance(tolerance, Mapping) else None if is_time else tolerance
            if limit is None or coordinate.values is None or coordinate.values.dtype.kind not in "iuf":
                continue
            key = (dim, id(coordinate))
            if key not in shared:
                shared[key] = _snapped(member, dim, coordinate, limit, known.setdefault(dim, [])), coordinate
            if shared[key][0] is not coordinate:
                changed[dim] = shared[key][0]
        result.append(replace(member, coordinates={**member.coordinates, **changed}) if changed else member)
    return result


def _snapped(member: Member, dim: str, own: Coordinate, limit: float, known: list[Coordinate]) -> Coordinate:
    """The known coordinate that differs by no more than the limit, or the own one, which is known from now on."""
    assert own.values is not None
    values = own.values.astype(np.float64)
    if own.size > 1 and bool((np.abs(np.diff(values)) <= 2 * limit).any()):
        raise InvalidInputError(
            f"the tolerance {limit:g} along {dim} is too large: neighbours of {member.file.url} differ by less than "
            "two times that",
            url=member.file.url,
            dim=dim,
        )
    for other in known:
        same = other.values.astype(np.float64) if other.values is not None and other.size == own.size else None
        if same is not None and bool((np.abs(same - values) <= limit).all()):
            return other if other.digest != own.digest else own
    known.append(own)
    return own


def target_group(file: SourceFile, options: IngestOptions) -> str:
    """The target group of a file's groups."""
    return join_path(options.group, _group_of(file, options))


def _group_of(file: SourceFile, options: IngestOptions) -> str:
    if options.group_pattern is None:
        return ""
    match = re.search(options.group_pattern, file.url)
    if match is None:
        raise InvalidInputError(f"{file.url} does not match the group pattern {options.group_pattern!r}", url=file.url)
    return "/".join(part for part in match.groups() if part)


def _groups(schema: SourceSchema) -> list[str]:
    found = {path.rpartition("/")[0] for path in schema.variables}
    return sorted(found | set(schema.groups) | {""})


def _check_names(schemas: Sequence[SourceSchema], options: IngestOptions) -> None:
    """Refuse unknown names. Variables have the names of the sources, targets have their new names."""
    present = {name for schema in schemas for path, v in schema.variables.items() for name in (path, v.name)}
    present |= {name for schema in schemas for path in schema.skipped for name in (path, path.rpartition("/")[2])}
    dims = {d for schema in schemas for v in schema.variables.values() for d in v.dims}
    for name in (*(options.variables or ()), *options.drop_variables):
        if name not in present:
            shown = ", ".join(sorted(present)[:30])
            raise InvalidInputError(f"no source has a variable {name!r}{suggest(name, present)}. There are: {shown}")
    for name in options.rename:
        if name not in present | dims:
            near = suggest(name, present | dims)
            raise InvalidInputError(f"no source has a variable or dimension {name!r} to rename{near}")
    renamed = {options.rename.get(d, d) for d in dims}
    if options.pattern is not None and schemas:
        renamed |= name_values(schemas[0].file.url, options.pattern).keys()
    for name in options.chunks:
        if name not in renamed | {options.append_dim, *(options.concat_dims or ())}:
            raise InvalidInputError(f"chunks: no source has a dimension {name!r}{suggest(name, renamed)}")
    for option in ("sort", "flip", *(("tolerance",) if isinstance(options.tolerance, Mapping) else ())):
        for name in getattr(options, option):
            if name not in renamed:
                raise InvalidInputError(f"{option}: no source has a dimension {name!r}{suggest(name, renamed)}")
    targets = {options.rename.get(name, name) for name in present}
    for name in options.pack:
        if name.rpartition("/")[2] not in targets:
            raise InvalidInputError(f"pack: no source has a variable {name!r}{suggest(name, targets)}")
    for name in options.dtypes:
        if name.rpartition("/")[2] not in targets:
            raise InvalidInputError(f"dtypes: no source has a variable {name!r}{suggest(name, targets)}")


def _select(schema: SourceSchema, group: str, options: IngestOptions) -> dict[str, SourceVariable]:
    here = {v.name: v for path, v in schema.variables.items() if path.rpartition("/")[0] == group}
    if options.variables is not None:
        wanted = {n for n, v in here.items() if n in options.variables or v.path in options.variables}
        needed = {d for n in wanted for d in here[n].dims}
        for name in list(wanted):
            needed.update(named_by(here[name]))
        for name in [n for n in needed if n in here]:
            needed.update(named_by(here[name]))
        here = {n: v for n, v in here.items() if n in wanted or n in needed}
    return {n: v for n, v in here.items() if n not in options.drop_variables and v.path not in options.drop_variables}


_RESERVED_NAMES = frozenset({"zarr.json", ".", ".."})
"""Names that are reserved in Zarr."""


def _renamed(
    file: SourceFile, chosen: Mapping[str, SourceVariable], names: Mapping[str, str]
) -> dict[str, SourceVariable]:
    """Variables by their new names, which must be distinct."""
    renamed: dict[str, SourceVariable] = {}
    for name, variable in chosen.items():
        new = names.get(name, name)
        if new in _RESERVED_NAMES:
            raise InvalidInputError(
                f"{file.url} has a variable {new!r}, which is not a valid name of an array. Use rename or "
                "drop_variables",
                url=file.url,
            )
        if new in renamed:
            raise InvalidInputError(
                f"two variables of {file.url} would be named {new!r}: {renamed[new].path} and {variable.path}. Leave "
                "one out with drop_variables, or rename both",
                url=file.url,
            )
        renamed[new] = _rename(variable, names)
    return renamed


def _rename(variable: SourceVariable, names: Mapping[str, str]) -> SourceVariable:
    if not names:
        return variable
    attributes = dict(variable.attributes)
    for key in NAMING_ATTRIBUTES:
        if isinstance(attributes.get(key), str):
            attributes[key] = " ".join(names.get(word, word) for word in attributes[key].split())
    return replace(variable, dims=tuple(names.get(d, d) for d in variable.dims), attributes=attributes)


def _inherit_units(variables: dict[str, SourceVariable]) -> dict[str, SourceVariable]:
    """Bounds of a time coordinate have its units. Set them explicitly, so that bounds are converted too."""
    found = dict(variables)
    for variable in variables.values():
        bounds = found.get(str(variable.attributes.get("bounds")))
        if bounds is not None and is_time_units(variable.attributes.get("units")) and "units" not in bounds.attributes:
            passed = {k: variable.attributes[k] for k in ("units", "calendar") if k in variable.attributes}
            name = str(variable.attributes["bounds"])
            found[name] = replace(bounds, attributes={**bounds.attributes, **passed})
    return found


def _coordinates(
    schema: SourceSchema, group: str, variables: Mapping[str, SourceVariable], names: Mapping[str, str]
) -> dict[str, Coordinate]:
    """Coordinates of the group's dimensions. A group inherits those of its parent groups."""
    found: dict[str, Coordinate] = {}
    parts = group.split("/") if group else []
    for depth in range(len(parts) + 1):
        around = "/".join(parts[:depth])
        for path, coordinate in schema.coordinates.items():
            folder, _, name = path.rpartition("/")
            if folder == around:
                found[names.get(name, name)] = coordinate
    dims = {d for v in variables.values() for d in v.dims}
    return {name: c for name, c in found.items() if name in dims or name in variables}


_PACKING = ("scale_factor", "add_offset")
_MISSING = ("_FillValue", "missing_value", "_Unsigned")
_TIME = ("units", "calendar")
_MEANING = ("units", "calendar", *_MISSING, *_PACKING)


def compare_variable(
    name: str,
    reference: SourceVariable,
    members: Sequence[Member],
    joined: Sequence[str],
    *,
    virtual: bool,
    keep_times: bool,
    unpack: bool,
    is_asked: bool = False,
    varying: Sequence[str] = (),
) -> Iterator[SchemaIssue]:
    """Differences of one variable from its reference, over the members that have it.

    `virtual`: its bytes are referenced. `keep_times`: times must not be re-encoded. `is_asked`: the caller chose its
    type. `varying`: dimensions along which chunks may differ in length.
    """
    checked: dict[int, list[tuple[Severity, str, str, str, str]]] = {id(reference): []}
    for member in members:
        variable = member.variables.get(name)
        if variable is None:
            continue
        # Similar files share one value, which is compared once.
        if variable.has_missing_text:
            advice = "Zarr has no missing text: leave the variable out (drop_variables)"
            yield SchemaIssue("error", member.file.url, name, "values", "text", "cells that are missing", advice)
        if id(variable) not in checked:
            checked[id(variable)] = list(
                _differences(
                    reference,
                    variable,
                    joined,
                    virtual=virtual,
                    keep_times=keep_times,
                    unpack=unpack,
                    is_asked=is_asked,
                    varying=varying,
                )
            )
        for severity, facet, expected, found, resolution in checked[id(variable)]:
            yield SchemaIssue(severity, member.file.url, name, facet, expected, found, resolution)


def _differences(
    reference: SourceVariable,
    variable: SourceVariable,
    joined: Sequence[str],
    *,
    virtual: bool,
    keep_times: bool,
    unpack: bool,
    is_asked: bool = False,
    varying: Sequence[str] = (),
) -> Iterator[tuple[Severity, str, str, str, str]]:
    if variable.dims != reference.dims:
        yield "error", "dimensions", str(reference.dims), str(variable.dims), "leave the file out"
        return
    fixed = [(d, n, m) for d, n, m in zip(reference.dims, reference.shape, variable.shape, strict=True) if n != m]
    for dim, expected, found in fixed:
        if dim not in joined:
            yield "error", f"length of {dim}", str(expected), str(found), "files can only differ where they are joined"
    if variable.dtype != reference.dtype:
        difference = _data_type(reference, variable, virtual, is_asked)
        if difference is not None:
            yield difference
    if virtual:
        yield from _bytes_differ(reference, variable, varying)
    yield from _attributes_differ(reference, variable, virtual=virtual, keep_times=keep_times, unpack=unpack)


def promoted_dtype(dtypes: Sequence[str]) -> str | None:
    """The type that can represent all values of several types, by numpy's promotion. None if there is none.

    >>> promoted_dtype(["<i2", ">i4"]), promoted_dtype(["<f4", "<i4"]), promoted_dtype(["<i8", "<u8"])
    ('<i4', '<f8', None)
    """
    if "string" in dtypes:
        return "string" if set(dtypes) == {"string"} else None
    types = [np.dtype(d).newbyteorder("=") for d in dtypes]
    if len(set(types)) == 1:
        return types[0].newbyteorder("<").str
    kinds = {t.kind for t in types}
    if not kinds <= set("iufc") and kinds not in ({"S"}, {"U"}):
        return None
    found = np.result_type(*types).newbyteorder("<").str
    return found if all(keeps_values(t.str, found) for t in types) else None


def _data_type(
    reference: SourceVariable, variable: SourceVariable, virtual: bool, is_asked: bool
) -> tuple[Severity, str, str, str, str] | None:
    facts = ("dtype", reference.dtype, variable.dtype)
    if virtual:
        return "error", *facts, "one array has one type: use mode='native'"
    if "string" in (reference.dtype, variable.dtype):
        return "error", *facts, "text and numbers cannot be joined"
    found = promoted_dtype([reference.dtype, variable.dtype])
    if found is not None and np.dtype(found).newbyteorder("=") == np.dtype(variable.dtype).newbyteorder("="):
        if np.dtype(reference.dtype).newbyteorder("=") == np.dtype(found).newbyteorder("="):
            return None
        return "handled", *facts, f"all are stored as {np.dtype(found)}"
    if found is not None:
        return "handled", *facts, f"stored as {np.dtype(found)}"
    is_time = all(find_time_units(v.attributes) is not None for v in (reference, variable))
    if is_asked or is_time:
        return "handled", *facts, "converted to the type that was asked for" if is_asked else "times are re-encoded"
    return "error", *facts, "no type holds the values of both: choose one with dtypes"


def _bytes_differ(
    reference: SourceVariable, variable: SourceVariable, varying: Sequence[str]
) -> Iterator[tuple[Severity, str, str, str, str]]:
    advice = "chunk bytes stay as they are: use mode='native'"
    pairs = zip(variable.dims, variable.chunks, reference.chunks, strict=True)
    if variable.layout == "chunked" and any(own != other for dim, own, other in pairs if dim not in varying):
        yield "error", "chunks", str(reference.chunks), str(variable.chunks), advice
    if decoding_codecs(variable.codecs) != decoding_codecs(reference.codecs):
        yield "error", "codecs", *_shown_codecs(reference.codecs, variable.codecs), advice


def decoding_codecs(codecs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Codecs without settings that only an encoder uses."""
    free = ("level", "clevel", "cname", "blocksize")
    return [(c["name"], {k: v for k, v in (c.get("configuration") or {}).items() if k not in free}) for c in codecs]


def _shown_codecs(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the names of codecs, with their settings if the names are the same."""
    names = [", ".join(str(c["name"]) for c in codecs) for codecs in (ours, theirs)]
    if names[0] == names[1]:
        names = [", ".join(f"{name} {settings}" for name, settings in decoding_codecs(c)) for c in (ours, theirs)]
    return names[0], names[1]


def _attributes_differ(
    reference: SourceVariable, variable: SourceVariable, *, virtual: bool, keep_times: bool, unpack: bool
) -> Iterator[tuple[Severity, str, str, str, str]]:
    ours, theirs = reference.attributes, variable.attributes
    keys = sorted({k for k in (*ours, *theirs) if not _same_value(ours.get(k), theirs.get(k))})
    is_time = find_time_units(ours) is not None and find_time_units(theirs) is not None
    is_same = packing_of(ours, reference.dtype) == packing_of(theirs, variable.dtype)
    is_number = all(v.dtype != "string" and np.dtype(v.dtype).kind in "iuf" for v in (reference, variable))
    for key in keys:
        facts = (key, _shown(reference, key), _shown(variable, key))
        if key in _TIME and is_time and not (virtual or keep_times):
            yield "handled", *facts, "times are re-encoded"
        elif key in _TIME and is_time and (_same_calendar if key == "calendar" else _count_alike)(ours, theirs):
            yield "note", *facts, "it says the same in other words; the first file's is kept"
        elif key == "units" and is_time:
            yield "error", *facts, "times are not re-encoded by reference: use mode='mixed' or 'native'"
        elif key in _PACKING and unpack:
            yield "handled", *facts, "values are unpacked"
        elif key in _PACKING:
            advice = "unpack=True" if not virtual else "mode='native', unpack=True"
            yield "error", *facts, f"packed numbers mean different values: use {advice}"
        elif key in _MISSING and not virtual and is_number:
            yield "handled", *facts, "missing values are re-encoded"
        elif key in _MISSING and is_same and is_number:
            yield "note", *facts, "the same values are missing"
        elif key in _MEANING or key in IDENTITY_ATTRIBUTES:
            yield "error", *facts, "the numbers do not mean the same"
        else:
            yield "note", *facts, "the first file's is kept"


def _same_value(left: Any, right: Any) -> bool:
    # NaN does not equal itself, but its text does.
    return bool(left == right) or repr(left) == repr(right)


def _count_alike(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    left, right = find_time_units(ours), find_time_units(theirs)
    if left is None or right is None:
        return False
    return left.counts_alike == right.counts_alike and left.calendar == right.calendar


def _same_calendar(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    left, right = find_time_units(ours), find_time_units(theirs)
    return left is not None and right is not None and left.calendar == right.calendar


def _shown(variable: SourceVariable, key: str) -> str:
    """Format an attribute. Fill values of floats are stored in base64."""
    value = variable.attributes.get(key)
    if key != "_FillValue" or value is None:
        return "none" if value is None else str(value)
    try:
        return str(parse_fill_attribute(variable.dtype, value))
    except IcefloeError:
        return str(value)


def find_byte_difference(reference: SourceVariable, members: Sequence[Member], name: str) -> str | None:
    """Why the files' bytes cannot be parts of one array. None if they can."""
    checked = {id(reference)}
    for member in members:
        variable = member.variables[name]
        if id(variable) in checked:
            continue
        checked.add(id(variable))
        difference = encoding_difference(reference, variable)
        if difference is not None:
            return f"{difference} in {member.file.url}"
    return None


def encoding_difference(reference: SourceVariable, variable: SourceVariable, varying: Sequence[str] = ()) -> str | None:
    """Why the chunks of a variable do not mean the same in an array of another one. None if they do.

    `varying`: dimensions along which chunks may differ in length.
    """
    if variable.not_virtual is not None:
        return variable.not_virtual
    found = _differences(
        reference, variable, variable.dims, virtual=True, keep_times=True, unpack=False, varying=varying
    )
    for severity, facet, expected, there, _ in found:
        if severity == "error":
            return f"{facet} is {expected} here and {there}"
    return None


def split_by_encoding(
    members: Sequence[Member], name: str, varying: Sequence[str] = ()
) -> tuple[list[Member], list[tuple[Member, str]]]:
    """The members with the most common encoding of a variable, and the others with what differs.

    `varying`: dimensions along which chunks may differ in length.
    """
    kinds: list[tuple[SourceVariable, list[Member]]] = []
    known: dict[int, int] = {}
    for member in members:
        variable = member.variables[name]
        if id(variable) not in known:
            same = (i for i, (model, _) in enumerate(kinds) if encoding_difference(model, variable, varying) is None)
            known[id(variable)] = next(same, len(kinds))
            if known[id(variable)] == len(kinds):
                kinds.append((variable, []))
        kinds[known[id(variable)]][1].append(member)
    can_be_referenced = [kind for kind in kinds if kind[0].not_virtual is None]
    model, common = max(can_be_referenced or kinds, key=lambda kind: sum(member.count for member in kind[1]))
    chosen = {id(member) for member in common}
    others = [
        (member, encoding_difference(model, member.variables[name], varying) or "")
        for member in members
        if id(member) not in chosen
    ]
    return common, others


def missing_variables(
    names: Sequence[str], cells: Mapping[str, Mapping[Any, str]], allow_missing: bool
) -> Iterator[SchemaIssue]:
    """Variables that are missing at some position of the joined grid. `cells` has, per variable, a file by position."""
    every: dict[Any, str] = {}
    for name in names:
        every.update({place: url for place, url in cells[name].items() if place not in every})
    for name in names:
        for place in sorted(set(every) - set(cells[name])):
            severity: Severity = "handled" if allow_missing else "error"
            resolution = "its region stays missing" if allow_missing else "use allow_missing to leave missing values"
            yield SchemaIssue(severity, every[place], name, "missing variable", "present", "absent", resolution)
