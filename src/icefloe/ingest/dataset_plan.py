"""The plan of one dataset: many members in, arrays with places for every file out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError, suggest
from icefloe.ingest.array_plan import ArrayPlan, convert_values
from icefloe.ingest.cf import format_range
from icefloe.ingest.comparison import compare_variable, missing_variables
from icefloe.ingest.existing import Existing
from icefloe.ingest.members import Member, join_path
from icefloe.ingest.offsets import find_append_gap, find_offset
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.placement import (
    JoinedDimension,
    find_joined_dims,
    find_time_encoding,
    join_dimension,
    stack_member,
)
from icefloe.ingest.schema_report import GAP, SchemaIssue, SchemaReport, Severity
from icefloe.ingest.source_model import SourceFailure, SourceVariable
from icefloe.ingest.target_arrays import TargetDimensions, extend_array, fill_means_missing, plan_array
from icefloe.ingest.tasks import Extent, PlacedFile


@dataclass(frozen=True, slots=True)
class ValueWrite:
    """Values that the plan itself holds, written before the tasks run."""

    path: str
    start: tuple[int, ...]
    values: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """One group of the target."""

    group: str
    attributes: Mapping[str, Any]
    arrays: tuple[ArrayPlan, ...]
    files: tuple[PlacedFile, ...]
    values: tuple[ValueWrite, ...]
    extent: Extent
    report: SchemaReport
    skipped: tuple[str, ...]
    """URLs whose place was held free."""


def plan_dataset(
    group: str,
    members: Sequence[Member],
    failures: Sequence[tuple[int, SourceFailure]],
    options: IngestOptions,
    existing: Existing,
) -> DatasetPlan:
    """Find the joined dimensions, compare the members, place them, describe the arrays."""
    asked = _asked_dims(options, members)
    names = find_joined_dims(members, asked)
    _check_dimensions(group, members, names, options, existing)
    for name in names:
        if all(name not in m.sizes() for m in members):
            members = [stack_member(m, name) for m in members]
    absent = [name for name in names if all(name not in m.sizes() for m in members)]
    if absent:
        raise InvalidInputError(f"no source has the dimension {absent[0]!r} in group /{group}")
    joined = {n: _join(group, members, n, names, failures, options, existing) for n in names}
    dims = TargetDimensions({n: find_offset(group, j, options, existing) for n, j in joined.items()}, joined)
    contributions, duplicates = _contributions(members, joined)
    issues = duplicates
    arrays: list[ArrayPlan] = []
    for name, cells in contributions.items():
        having = _having(members, name, options)
        path = join_path(group, name)
        holes = _has_holes(having[0].variables[name], cells, dims, is_new=path not in existing.arrays)
        array, found = plan_array(path, name, having, dims, options, existing, has_holes=holes)
        issues += found
        if array is not None:
            arrays.append(array)
    virtual = {array.path.rpartition("/")[2] for array in arrays if array.kind == "virtual"}
    issues += _issues(members, contributions, joined, virtual, options)
    grown, found = _lacking(group, members, contributions, dims, options, existing)
    issues += [*found, *_lacked(group, members, contributions, arrays, dims, options)]
    values = [] if any(issue.severity == "error" for issue in issues) else _values(arrays, members, dims, options)
    arrays = [_kind_settled(array, {v.path for v in values}) for array in arrays] + grown
    gaps = [gap for j in joined.values() if (gap := find_append_gap(group, j, options, existing)) is not None]
    issues += _join_notes(joined, failures, gaps)
    written = {a.path: a for a in arrays if a.kind != "values"}
    return DatasetPlan(
        group,
        members[0].attributes,
        tuple(arrays),
        _place(group, members, contributions, written, dims),
        tuple(values),
        Extent({n: (dims.offset[n], dims.offset[n] + j.size) for n, j in joined.items()}),
        SchemaReport(tuple(issues)),
        tuple(f.file.url for _, f in failures),
    )


def _check_dimensions(
    group: str, members: Sequence[Member], names: Sequence[str], options: IngestOptions, existing: Existing
) -> None:
    """Refuse dimensions that nobody has: a new one is made only where files are stacked along it on purpose."""
    known = {d for m in members for d in m.sizes()} | {
        name for m in members for name, v in m.variables.items() if not v.dims
    }
    stored = {
        str(d)
        for path, array in existing.arrays.items()
        if path.rpartition("/")[0] == group
        for d in array.document.get("dimension_names") or ()
        if d is not None
    }
    asked = [options.append_dim] if options.append_dim is not None else []
    asked += [d for d in options.region if d not in asked] if isinstance(options.region, Mapping) else []
    for name in asked:
        if name not in known | stored and name not in (options.concat_dims or ()):
            raise InvalidInputError(
                f"no source and no array of /{group} has a dimension {name!r}{suggest(name, known | stored)}; to stack "
                f"files along a new dimension, name it in concat_dims too",
                dim=name,
            )
    for name in options.concat_dims or ():
        close = suggest(name, known | stored)
        if name not in known | stored and close:
            raise InvalidInputError(f"no source has a dimension {name!r}{close}", dim=name)


def _having(members: Sequence[Member], name: str, options: IngestOptions) -> list[Member]:
    """The members that have a variable. Of one without cells nothing is referenced, so its chunks do not matter."""
    having = [m for m in members if name in m.variables]
    if options.mode == "native":
        return having
    return [m for m in having if 0 not in m.variables[name].shape] or having


def _has_holes(variable: SourceVariable, cells: Mapping[Any, str], dims: TargetDimensions, *, is_new: bool) -> bool:
    """Whether cells of a variable come from no file: places of the grid without one, or what was there before it."""
    own = [d for d in variable.dims if d in dims.joined]
    if is_new and any(dims.offset[d] for d in own):
        return True
    places = math.prod(len(dims.joined[d].filled) for d in own)
    filled = sum(all(dims.joined[d].blocks[i].size for d, i in place) for place in cells)
    return bool(own) and filled < places


def _lacking(
    group: str,
    members: Sequence[Member],
    cells: Mapping[str, Mapping[Any, str]],
    dims: TargetDimensions,
    options: IngestOptions,
    existing: Existing,
) -> tuple[list[ArrayPlan], list[SchemaIssue]]:
    """Arrays of the repository that grow along the appended dimension, of which the files have nothing."""
    name = options.append_dim
    grown: list[ArrayPlan] = []
    issues: list[SchemaIssue] = []
    if name is None or name not in dims.joined or not dims.joined[name].size:
        return grown, issues
    url = members[0].file.url
    for path, stored in existing.arrays.items():
        folder, _, own = path.rpartition("/")
        if folder != group or own in cells or name not in (stored.document.get("dimension_names") or ()):
            continue
        if not options.allow_missing:
            told = "use allow_missing to leave missing values"
            issues.append(SchemaIssue("error", url, own, "missing variable", "present", "absent", told))
            continue
        array = extend_array(stored, name, dims.length(name))
        if not fill_means_missing(array):
            told = "its fill value is an ordinary one, so cells cannot be left out"
            issues.append(SchemaIssue("error", url, own, "missing variable", "present", "absent", told))
            continue
        told = "its region stays missing"
        issues.append(SchemaIssue("handled", url, own, "missing variable", "present", "absent", told))
        grown.append(array)
    return grown, issues


def _lacked(
    group: str,
    members: Sequence[Member],
    cells: Mapping[str, Mapping[Any, str]],
    arrays: Sequence[ArrayPlan],
    dims: TargetDimensions,
    options: IngestOptions,
) -> list[SchemaIssue]:
    """Variables of the files that the repository lacks where it has others."""
    issues: list[SchemaIssue] = []
    new = {array.path: array for array in arrays if array.is_new}
    for name in cells:
        array = new.get(join_path(group, name))
        if array is None or not any(dims.offset[d] for d in array.joined):
            continue
        severity: Severity = "handled" if options.allow_missing else "error"
        told = (
            "its earlier cells stay missing" if options.allow_missing else "use allow_missing to leave missing values"
        )
        url = next(m.file.url for m in members if name in m.variables)
        issues.append(SchemaIssue(severity, url, name, "new variable", "in the repository", "absent", told))
    return issues


def _asked_dims(options: IngestOptions, members: Sequence[Member]) -> tuple[str, ...] | None:
    if options.concat_dims is not None:
        extra = () if options.append_dim in (None, *options.concat_dims) else (str(options.append_dim),)
        return (*options.concat_dims, *extra)
    found = find_joined_dims(members, None) if len(members) > 1 else ()
    wanted: list[str] = list(found)
    if options.append_dim is not None and options.append_dim not in wanted:
        wanted.append(options.append_dim)
    if options.region is not None:
        named = () if options.region == "auto" else options.region
        sizes = {d for m in members for d in m.sizes()}
        with_coordinate = [d for d in sizes if any(d in m.coordinates for m in members)]
        wanted += [d for d in (named or sorted(with_coordinate)) if d not in wanted]
    return tuple(wanted) if wanted else None


def _join(
    group: str,
    members: Sequence[Member],
    name: str,
    names: Sequence[str],
    failures: Sequence[tuple[int, SourceFailure]],
    options: IngestOptions,
    existing: Existing,
) -> JoinedDimension:
    stored = existing.arrays.get(join_path(group, name))
    own = None if stored is None else stored.variable()
    known = None if own is None else {"attributes": own.attributes, "dtype": own.dtype}
    encoding = find_time_encoding(members, name, known, options.time_units)
    missing = [(order, failure.file.url) for order, failure in failures]
    if missing and len(names) > 1:
        raise InvalidInputError(
            f"{missing[0][1]} cannot be read and its place is not known: files are joined along {', '.join(names)}; "
            f"take it out of the sources",
            url=missing[0][1],
        )
    return join_dimension(members, name, encoding, missing)


def _contributions(
    members: Sequence[Member], joined: Mapping[str, JoinedDimension]
) -> tuple[dict[str, dict[Any, str]], list[SchemaIssue]]:
    """Per variable: which file fills which place of the joined grid. The first one fills what all of them hold."""
    cells: dict[str, dict[Any, str]] = {}
    duplicates: list[SchemaIssue] = []
    for member in members:
        for name, variable in member.variables.items():
            own = [d for d in joined if d in variable.dims]
            place = tuple((d, joined[d].index_of[member.file.url]) for d in own)
            filled = cells.setdefault(name, {})
            if place not in filled:
                filled[place] = member.file.url
            elif len(own) == len(joined) and joined and variable.dims != (name,):
                duplicates.append(
                    SchemaIssue(
                        "error",
                        member.file.url,
                        name,
                        "place",
                        "one file",
                        f"also in {filled[place]}",
                        "leave one of the files out",
                    )
                )
    return cells, duplicates


def _issues(
    members: Sequence[Member],
    cells: Mapping[str, Mapping[Any, str]],
    joined: Mapping[str, JoinedDimension],
    virtual: Set[str],
    options: IngestOptions,
) -> list[SchemaIssue]:
    issues: list[SchemaIssue] = []
    by_rank: dict[tuple[str, ...], list[str]] = {}
    for name in cells:
        having = _having(members, name, options)
        reference = having[0].variables[name]
        issues += compare_variable(
            name, reference, having, list(joined), virtual=name in virtual, keep_times=options.mode == "virtual",
            unpack=options.unpack, is_asked=name in options.dtypes,
        )  # fmt: skip
        by_rank.setdefault(tuple(d for d in joined if d in reference.dims), []).append(name)
    for dims, names in by_rank.items():
        if dims:
            issues += missing_variables(names, cells, options.allow_missing)
    return issues + _static_differ(members, joined)


def _static_differ(members: Sequence[Member], joined: Mapping[str, JoinedDimension]) -> list[SchemaIssue]:
    """Coordinates that are not joined must be the same everywhere."""
    issues: list[SchemaIssue] = []
    first: dict[str, tuple[str, str]] = {}
    for member in members:
        for name, coordinate in member.coordinates.items():
            variable = member.variables.get(name)
            if variable is None or any(d in joined for d in variable.dims):
                continue
            digest, url = first.setdefault(name, (coordinate.digest, member.file.url))
            if digest != coordinate.digest:
                severity: Severity = "error" if variable.dims else "note"
                issues.append(
                    SchemaIssue(
                        severity,
                        member.file.url,
                        name,
                        "values",
                        f"those of {url}",
                        format_range(coordinate.first, coordinate.last, variable.attributes),
                        "join the files along it (concat_dims)" if variable.dims else "the first file's is kept",
                    )
                )
    return issues


def _values(
    arrays: Sequence[ArrayPlan], members: Sequence[Member], dims: TargetDimensions, options: IngestOptions
) -> list[ValueWrite]:
    """Coordinates whose values travelled with the schemas; nothing is read again for them."""
    writes: list[ValueWrite] = []
    for array in arrays:
        name = array.path.rpartition("/")[2]
        if array.kind == "virtual" or (options.region is not None and not array.is_new):
            continue
        if array.dims == (name,) and name in dims.joined:
            values = _joined_values(array, members, dims.joined[name])
        elif array.dims in ((), (name,)) and array.is_new:
            member = next(m for m in members if name in m.variables)
            coordinate = member.coordinates.get(name)
            values = None if coordinate is None else coordinate.values
            if values is not None:
                values = _convert(values, member, name, array).reshape(array.shape)
        else:
            values = None
        if values is not None:
            start = tuple(dims.offset.get(d, 0) for d in array.dims)
            writes.append(ValueWrite(array.path, start, values))
    return writes


def _convert(values: npt.NDArray[Any], member: Member, name: str, array: ArrayPlan) -> npt.NDArray[Any]:
    try:
        return convert_values(values, member.variables[name], array)
    except InvalidInputError as error:
        raise InvalidInputError(f"{member.file.url}: {error}", url=member.file.url) from error


def _joined_values(array: ArrayPlan, members: Sequence[Member], joined: JoinedDimension) -> npt.NDArray[Any] | None:
    by_url = {m.file.url: m for m in members}
    parts: list[npt.NDArray[Any]] = []
    for block in joined.filled:
        if block.is_missing:
            if block.coordinate is None or block.coordinate.values is None:
                return None
            values = block.coordinate.values
            parts.append((np.rint(values) if np.dtype(array.dtype).kind in "iu" else values).astype(array.dtype))
            continue
        member = next((by_url[u] for u in block.urls if joined.name in by_url[u].variables), None)
        coordinate = None if member is None else member.coordinates.get(joined.name)
        if member is None or coordinate is None or coordinate.values is None:
            return None
        parts.append(_convert(coordinate.values, member, joined.name, array))
    return np.concatenate(parts) if parts else None


def _kind_settled(array: ArrayPlan, with_values: set[str]) -> ArrayPlan:
    return replace(array, kind="values") if array.path in with_values else array


def _join_notes(
    joined: Mapping[str, JoinedDimension], failures: Sequence[tuple[int, SourceFailure]], gaps: Sequence[str]
) -> list[SchemaIssue]:
    found = [*gaps, *(note for d in joined.values() for note in d.notes)]
    notes = [
        SchemaIssue("note", "", "", GAP, "equal steps", note, "the files are joined without filling it")
        for note in found
    ]
    held = {url for d in joined.values() for block in d.blocks if block.is_missing for url in block.urls}
    for _, failure in failures:
        told = "its region stays missing"
        if failure.file.url not in held:
            told = "it is left out: nothing tells where it belongs"
        notes.append(SchemaIssue("handled", failure.file.url, "", "file", "readable", failure.reason, told))
    return notes


def _place(
    group: str,
    members: Sequence[Member],
    cells: Mapping[str, Mapping[Any, str]],
    written: Mapping[str, ArrayPlan],
    dims: TargetDimensions,
) -> tuple[PlacedFile, ...]:
    """Every member with the variables that are taken from it; alike members share one mapping."""
    fills: dict[str, set[str]] = {}
    for name, places in cells.items():
        for url in places.values():
            fills.setdefault(url, set()).add(name)
    shared: dict[tuple[Any, ...], dict[str, SourceVariable]] = {}
    placed: list[PlacedFile] = []
    for member in members:
        taken = [n for n in member.variables if n in fills.get(member.file.url, ()) and join_path(group, n) in written]
        if not taken:
            continue
        key = tuple((n, id(member.variables[n])) for n in taken)
        if key not in shared:
            shared[key] = {join_path(group, n): member.variables[n] for n in taken}
        origin = {
            n: dims.offset[n] + j.blocks[j.index_of[member.file.url]].start
            for n, j in dims.joined.items()
            if member.file.url in j.index_of
        }
        placed.append(PlacedFile(member.file, member.format, origin, shared[key]))
    return tuple(placed)
