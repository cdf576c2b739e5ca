"""The plan of an ingest. It can be pickled and is made before anything is written."""

from __future__ import annotations

import itertools
import math
import posixpath
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from icefloe.display.card import TextCardMixin, format_bytes, format_count
from icefloe.errors import InvalidInputError, suggest
from icefloe.ingest.array_plan import ArrayPlan, TargetDimensions, ValueWrite, convert_member, joined_values
from icefloe.ingest.catalogue import SourceRun
from icefloe.ingest.cf import find_time_units, format_range
from icefloe.ingest.members import (
    Member,
    compare_variable,
    join_path,
    missing_variables,
    snap_coordinates,
    split_datasets,
    stack_members,
    target_group,
    with_runs,
)
from icefloe.ingest.placement import (
    Existing,
    JoinedDimension,
    find_append_gap,
    find_encoding,
    find_joined_dims,
    find_offset,
    has_shared_values,
    join_dimension,
    without_overlaps,
)
from icefloe.ingest.source_files import in_natural_order
from icefloe.ingest.source_model import (
    GAP,
    SchemaIssue,
    SchemaReport,
    Severity,
    SourceFailure,
    SourceSchema,
    SourceVariable,
    intern_schemas,
    join_reports,
)
from icefloe.ingest.sources import IngestOptions
from icefloe.ingest.target_arrays import existing_array, extend_array, fill_means_missing, plan_array
from icefloe.ingest.write_tasks import (
    Comparison,
    Extent,
    IngestTask,
    PlacedFile,
    RepeatedVariable,
    check_repeated,
    means_the_same,
    plan_native_tasks,
    plan_virtual_tasks,
)
from icefloe.ingest.zarr_documents import group_document


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
    """URLs whose position was reserved."""
    repeated: tuple[RepeatedVariable, ...] = ()


COMPARED_BYTES = 16 << 20
"""The size limit of variables that are compared if two files have them at the same position.

Larger ones are refused.
"""


def plan_dataset(
    group: str,
    members: Sequence[Member],
    failures: Sequence[tuple[int, SourceFailure]],
    options: IngestOptions,
    existing: Existing,
) -> DatasetPlan:
    """Find the joined dimensions, compare the members, determine their positions, and describe the arrays."""
    stored = {d: existing.coordinate(join_path(group, d)) for d in members[0].sizes()} if existing.arrays else {}
    members = snap_coordinates(members, options.tolerance, stored)
    asked = _asked_dims(options, members)
    names = find_joined_dims(members, asked)
    _check_dimensions(group, members, names, options, existing)
    # The last one is stacked first, so that the dimensions are in the order of their names.
    for name in reversed(names):
        if all(name not in m.sizes() for m in members):
            members = stack_members(members, name)
    absent = [name for name in names if all(name not in m.sizes() for m in members)]
    if absent:
        raise InvalidInputError(f"no source has the dimension {absent[0]!r} in group /{group}")
    members, overlaps = without_overlaps(group, members, names, options, existing)
    joined = {n: _join(group, members, n, names, failures, options, existing) for n in names}
    dims = TargetDimensions({n: find_offset(group, j, options, existing) for n, j in joined.items()}, joined)
    contributions, again = _contributions(members, joined)
    repeated, issues = _repeated(group, members, joined, again, options)
    issues += overlaps
    repeated += _stored_too(group, members, contributions, dims, options, existing)
    arrays: list[ArrayPlan] = []
    for name, cells in contributions.items():
        having = _having(members, name, options)
        path = join_path(group, name)
        holes = _has_holes(having[0].variables[name], cells, dims, is_new=path not in existing.arrays)
        array, found = plan_array(path, name, having, dims, options, existing, has_holes=holes)
        issues += found
        if array is not None:
            arrays.append(array)
    # Files with another encoding than that of a referenced array are written by value.
    partly = {issue.variable for issue in issues if (issue.facet, issue.severity) == ("references", "handled")}
    virtual = {array.path.rpartition("/")[2] for array in arrays if array.kind == "virtual"} - partly
    varying = {array.path.rpartition("/")[2] for array in arrays if not array.is_regular}
    issues += _issues(members, contributions, joined, virtual, varying, options)
    grown, found = _lacking(group, members, contributions, dims, options, existing)
    issues += [*found, *_lacked(group, members, contributions, arrays, dims, options)]
    values = [] if any(issue.severity == "error" for issue in issues) else _values(arrays, members, dims, options)
    arrays = [_with_values_kind(array, {v.path for v in values}) for array in arrays] + grown
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
        repeated,
    )


def _check_dimensions(
    group: str, members: Sequence[Member], names: Sequence[str], options: IngestOptions, existing: Existing
) -> None:
    """Refuse unknown dimensions. A new one is only created if files are stacked along it explicitly."""
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
                f"no source and no array of /{group} has a dimension {name!r}{suggest(name, known | stored)}. To stack "
                "files along a new dimension, add it to concat_dims",
                dim=name,
            )
    for name in options.concat_dims or ():
        close = suggest(name, known | stored)
        if name not in known | stored and close:
            raise InvalidInputError(f"no source has a dimension {name!r}{close}", dim=name)


def _having(members: Sequence[Member], name: str, options: IngestOptions) -> list[Member]:
    """The members that have a variable. The chunks of a variable without cells do not matter."""
    having = [m for m in members if name in m.variables]
    if options.mode == "native":
        return having
    return [m for m in having if 0 not in m.variables[name].shape] or having


def _has_holes(variable: SourceVariable, cells: Mapping[Any, str], dims: TargetDimensions, *, is_new: bool) -> bool:
    """Whether no file has some cells of a variable: positions of the grid without a file, or earlier cells."""
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
    """Arrays of the repository that grow along the appended dimension, but are not in the files."""
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
            resolution = "use allow_missing to leave missing values"
            issues.append(SchemaIssue("error", url, own, "missing variable", "present", "absent", resolution))
            continue
        array = extend_array(stored, name, dims.length(name))
        if not fill_means_missing(array):
            resolution = "its fill value is an ordinary one, so cells cannot be left out"
            issues.append(SchemaIssue("error", url, own, "missing variable", "present", "absent", resolution))
            continue
        resolution = "its region stays missing"
        issues.append(SchemaIssue("handled", url, own, "missing variable", "present", "absent", resolution))
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
    """Variables of the files that are not in the group of the repository."""
    issues: list[SchemaIssue] = []
    new = {array.path: array for array in arrays if array.is_new}
    for name in cells:
        array = new.get(join_path(group, name))
        if array is None or not any(dims.offset[d] for d in array.joined):
            continue
        severity: Severity = "handled" if options.allow_missing else "error"
        resolution = (
            "its earlier cells stay missing" if options.allow_missing else "use allow_missing to leave missing values"
        )
        url = next(m.file.url for m in members if name in m.variables)
        issues.append(SchemaIssue(severity, url, name, "new variable", "in the repository", "absent", resolution))
    return issues


def _asked_dims(options: IngestOptions, members: Sequence[Member]) -> tuple[str, ...] | None:
    named = [name for name, variable in members[0].variables.items() if variable.layout == "named"]
    if options.concat_dims is not None:
        asked = [*(name for name in named if name not in options.concat_dims), *options.concat_dims]
        extra = () if options.append_dim in (None, *asked) else (str(options.append_dim),)
        return (*asked, *extra)
    found = find_joined_dims(members, None, named=named)
    wanted: list[str] = list(found)
    if options.append_dim is not None and options.append_dim not in wanted:
        wanted.append(options.append_dim)
    if options.region is not None:
        given = () if options.region == "auto" else options.region
        sizes = {d for m in members for d in m.sizes()}
        with_coordinate = [d for d in sizes if any(d in m.coordinates for m in members)]
        wanted += [d for d in (given or sorted(with_coordinate)) if d not in wanted]
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
    encoding = find_encoding(group, members, name, options, existing)
    missing = [(order, failure.file.url) for order, failure in failures]
    if missing and len(names) > 1:
        raise InvalidInputError(
            f"{missing[0][1]} cannot be read and its position is not known: files are joined along {', '.join(names)}. "
            "Remove it from the sources",
            url=missing[0][1],
        )
    return join_dimension(members, name, encoding, missing, can_share=len(names) > 1)


def _contributions(
    members: Sequence[Member], joined: Mapping[str, JoinedDimension]
) -> tuple[dict[str, dict[Any, str]], list[tuple[Member, str, str]]]:
    """Per variable: the file of each position of the joined grid. If several files have it, the first one is used.

    The second result has (member, variable, URL of the first file) of the other files.
    """
    cells: dict[str, dict[Any, str]] = {}
    again: list[tuple[Member, str, str]] = []
    for member in members:
        for name, variable in member.variables.items():
            own = [d for d in joined if d in variable.dims]
            filled = cells.setdefault(name, {})
            others: dict[str, None] = {}
            for place in itertools.product(*([(d, i) for i in joined[d].span(member.key)] for d in own)):
                if (other := filled.setdefault(place, member.key)) != member.key:
                    others[other] = None
            if 0 not in variable.shape and not _is_compared(member, name):
                again += [(member, name, other) for other in others]
    return cells, again


def _is_compared(member: Member, name: str) -> bool:
    """Whether a variable is a coordinate of its own dimension. Those are compared by their hashes and values."""
    return name in member.coordinates and member.variables[name].dims == (name,)


def _same_digest(first: Member, other: Member, name: str) -> bool:
    """Whether hashes show that two files have the same values with the same meaning."""
    ours = _digest(first, name)
    return (
        ours is not None
        and ours == _digest(other, name)
        and means_the_same(first.variables[name], other.variables[name])
    )


def _digest(member: Member, name: str) -> str | None:
    coordinate = member.coordinates.get(name)
    return member.digests.get(name) if coordinate is None else coordinate.digest


def _repeated(
    group: str,
    members: Sequence[Member],
    joined: Mapping[str, JoinedDimension],
    again: Sequence[tuple[Member, str, str]],
    options: IngestOptions,
) -> tuple[tuple[RepeatedVariable, ...], list[SchemaIssue]]:
    """Variables that must be the same in two files: masks, bounds, or the times of files with different variables.

    Hashes of the schemas tell most of them.
    """
    by_url = {m.key: m for m in members} if again else {}
    repeated: list[RepeatedVariable] = []
    issues: list[SchemaIssue] = []
    for member, name, url in again:
        first = by_url[url]
        shared = [d for d, j in joined.items() if d in member.variables[name].dims and j.spans]
        if any(joined[d].span(url) != joined[d].span(member.key) for d in shared):
            if len(shared) > 1 or not has_shared_values(name, joined[shared[0]], (first, member)):
                resolution = "leave one of the files out, or the variable (drop_variables)"
                found = f"also in {url}"
                issues.append(SchemaIssue("error", member.file.url, name, "position", "one file", found, resolution))
            continue
        is_static = bool(joined) and not any(d in joined for d in member.variables[name].dims)
        if first.file.url == member.file.url or _same_digest(first, member, name) or (is_static and options.unchecked):
            continue
        if not is_static and max(m.variables[name].nbytes for m in (first, member)) > COMPARED_BYTES:
            resolution = "leave one of the files out, or the variable of one of them"
            issues.append(
                SchemaIssue("error", member.file.url, name, "position", "one file", f"also in {url}", resolution)
            )
            continue
        path = join_path(group, name)
        kept, other = (PlacedFile(m.file, m.format, {}, {path: m.variables[name]}) for m in (first, member))
        repeated.append(RepeatedVariable(path, kept, other))
    return tuple(repeated), issues


def _stored_too(
    group: str,
    members: Sequence[Member],
    cells: Mapping[str, Mapping[Any, str]],
    dims: TargetDimensions,
    options: IngestOptions,
    existing: Existing,
) -> tuple[RepeatedVariable, ...]:
    """Variables of the repository that an append does not extend. They are compared, and nothing of them is written."""
    found: list[RepeatedVariable] = []
    for name, places in cells.items() if not options.unchecked else ():
        path = join_path(group, name)
        if path not in existing.arrays or (() not in places and options.append_dim is None):
            continue
        first = next(m for m in members if name in m.variables)
        chosen = set() if options.append_dim in first.variables[name].dims else {*places.values()}
        for member in [m for m in members if m.key in chosen]:
            variable, coordinate = member.variables[name], member.coordinates.get(name)
            has_values = coordinate is not None and coordinate.values is not None
            is_known = variable.dims == (name,) if () not in places else has_values and _is_compared(member, name)
            if 0 in variable.shape or is_known:
                continue
            sizes = zip(variable.dims, variable.shape, strict=True)
            region = tuple(slice(s := _start_of(member, d, dims), s + n) for d, n in sizes)
            placed = PlacedFile(member.file, member.format, {}, {path: variable})
            found.append(RepeatedVariable(path, None, placed, _digest(member, name), region))
    return tuple(found)


def _start_of(member: Member, dim: str, dims: TargetDimensions) -> int:
    """The first cell of a member among the joined ones."""
    joined = dims.joined.get(dim)
    return 0 if joined is None else joined.blocks[joined.span(member.key)[0]].start


def _issues(
    members: Sequence[Member],
    cells: Mapping[str, Mapping[Any, str]],
    joined: Mapping[str, JoinedDimension],
    virtual: Set[str],
    varying: Set[str],
    options: IngestOptions,
) -> list[SchemaIssue]:
    issues: list[SchemaIssue] = []
    by_rank: dict[tuple[str, ...], list[str]] = {}
    for name in cells:
        having = _having(members, name, options)
        reference = having[0].variables[name]
        issues += compare_variable(
            name,
            reference,
            having,
            list(joined),
            virtual=name in virtual,
            keep_times=options.mode == "virtual",
            unpack=options.unpack or name in options.pack,
            is_asked=name in options.dtypes,
            varying=list(joined) if name in varying else (),
        )
        by_rank.setdefault(tuple(d for d in joined if d in reference.dims), []).append(name)
    for dims, names in by_rank.items():
        if dims:
            issues += missing_variables(names, cells, options.allow_missing)
    return issues + _static_differ(members, joined)


def _static_differ(members: Sequence[Member], joined: Mapping[str, JoinedDimension]) -> list[SchemaIssue]:
    """Check that coordinates that are not joined are the same everywhere."""
    issues: list[SchemaIssue] = []
    first: dict[str, tuple[tuple[Any, ...], str]] = {}
    for member in members:
        for name, coordinate in member.coordinates.items():
            variable = member.variables.get(name)
            if variable is None or variable.dims != (name,) or name in joined:
                continue
            # The same numbers in other time units are other times.
            times = find_time_units(variable.attributes)
            units = () if times is None else (times.counts_alike, times.calendar)
            own = (coordinate.digest, *units)
            known, url = first.setdefault(name, (own, member.file.url))
            if known != own:
                shown = format_range(coordinate.first, coordinate.last, variable.attributes)
                resolution = "join the files along it (concat_dims)"
                issues.append(
                    SchemaIssue("error", member.file.url, name, "values", f"those of {url}", shown, resolution)
                )
    return issues


def _values(
    arrays: Sequence[ArrayPlan], members: Sequence[Member], dims: TargetDimensions, options: IngestOptions
) -> list[ValueWrite]:
    """Coordinates whose values are in the schemas. They are not read again."""
    writes: list[ValueWrite] = []
    for array in arrays:
        name = array.path.rpartition("/")[2]
        if array.kind == "virtual" or (options.region is not None and not array.is_new):
            continue
        if array.dims == (name,) and name in dims.joined:
            values = joined_values(array, members, dims.joined[name], name)
        elif len(array.joined) == 1 and array.dims[0] in array.joined and dims.joined[array.dims[0]].spans:
            # Files share some of its cells.
            values = joined_values(array, members, dims.joined[array.dims[0]], name)
        elif array.dims in ((), (name,)) and array.is_new:
            member = next(m for m in members if name in m.variables)
            coordinate = member.coordinates.get(name)
            values = None if coordinate is None else coordinate.values
            if values is not None:
                values = convert_member(values, member, name, array).reshape(array.shape)
        else:
            values = None
        if values is not None:
            start = tuple(dims.offset.get(d, 0) for d in array.dims)
            writes.append(ValueWrite(array.path, start, values))
    return writes


def _with_values_kind(array: ArrayPlan, with_values: set[str]) -> ArrayPlan:
    return replace(array, kind="values") if array.path in with_values else array


def _join_notes(
    joined: Mapping[str, JoinedDimension], failures: Sequence[tuple[int, SourceFailure]], gaps: Sequence[str]
) -> list[SchemaIssue]:
    found = [*gaps, *(note for d in joined.values() for note in d.notes)]
    notes = [
        SchemaIssue("note", "", "", GAP, "equal steps", note, "the files are joined without filling it")
        for note in found
    ]
    in_gaps = {url for d in joined.values() for block in d.blocks if block.is_missing for url in block.urls}
    for _, failure in failures:
        resolution = "its region stays missing"
        if failure.file.url not in in_gaps:
            resolution = "it is left out, because its position is not known"
        notes.append(SchemaIssue("handled", failure.file.url, "", "file", "readable", failure.reason, resolution))
    return notes


def _place(
    group: str,
    members: Sequence[Member],
    cells: Mapping[str, Mapping[Any, str]],
    written: Mapping[str, ArrayPlan],
    dims: TargetDimensions,
) -> tuple[PlacedFile, ...]:
    """Every member with the variables that are read from it. Similar members share one mapping."""
    fills: dict[str, set[str]] = {}
    for name, places in cells.items():
        for url in places.values():
            fills.setdefault(url, set()).add(name)
    shared: dict[tuple[Any, ...], dict[str, SourceVariable]] = {}
    placed: list[PlacedFile] = []
    for member in members:
        taken = [n for n in member.variables if n in fills.get(member.key, ()) and join_path(group, n) in written]
        if not taken:
            continue
        key = tuple((n, id(member.variables[n])) for n in taken)
        if key not in shared:
            shared[key] = {join_path(group, n): member.variables[n] for n in taken}
        origin = {
            n: dims.offset[n] + j.blocks[j.index_of[member.key]].start
            for n, j in dims.joined.items()
            if member.key in j.index_of
        }
        placed.append(PlacedFile(member.file, member.format, origin, shared[key], member.run))
    return tuple(placed)


@dataclass(frozen=True, slots=True, repr=False)
class IngestPlan(TextCardMixin):
    """The plan of an ingest.

    Attributes
    ----------
    documents
        zarr.json by node path, for new groups and arrays and for arrays that grow.
    arrays
        The arrays by path.
    values
        Coordinates and other small values that are written before the tasks run.
    tasks
        Tasks that share no chunks. They can run in any order and in any process.
    containers
        URL prefixes that readers must authorise for the virtual references.
    report
        The differences between the sources.
    options
        The options of the ingest.
    sources
        The URLs of the sources.
    source_bytes
        The size of the sources.
    skipped
        The URLs of sources that cannot be read.
    notes
        Further information.
    repeated
        Variables that must be the same in two files, or in a file and in the repository. They are compared before
        anything is written.
    datasets
        The groups of the target, with the position of every file.

    Examples
    --------
    >>> import xarray
    >>> from icefloe.ingest import expand_sources, parse_schema
    >>> xarray.Dataset({"t": (("y", "x"), [[1.0, 2.0]])}).to_netcdf("plan.nc")
    >>> plan_ingest([parse_schema(file) for file in expand_sources("plan.nc")], IngestOptions())
    IngestPlan(native: 1 sources, 1 arrays, 1 tasks, 0 differences)
    """

    documents: Mapping[str, bytes]
    arrays: Mapping[str, ArrayPlan]
    values: tuple[ValueWrite, ...]
    tasks: tuple[IngestTask, ...]
    containers: tuple[str, ...]
    report: SchemaReport
    options: IngestOptions
    sources: Sequence[str]
    source_bytes: int
    skipped: tuple[str, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    repeated: tuple[RepeatedVariable, ...] = ()
    datasets: tuple[DatasetPlan, ...] = ()

    def __repr__(self) -> str:
        counts = (
            f"{len(self.sources):,} sources, {len(self.arrays):,} arrays, {len(self.tasks):,} tasks, "
            f"{len(self.report.issues):,} differences"
        )
        return f"IngestPlan({self.options.mode}: {counts})"

    @property
    def total_bytes(self) -> int:
        """The decoded bytes of all tasks."""
        return sum(task.bytes for task in self.tasks)


def plan_ingest(
    schemas: Sequence[SourceSchema],
    options: IngestOptions,
    *,
    failures: Sequence[SourceFailure] = (),
    existing: Existing | None = None,
    runs: Mapping[str, SourceRun] | None = None,
) -> IngestPlan:
    """Plan an ingest from the schemas of its sources.

    Differences between sources do not raise. They are in `plan.report`. Call `plan.report.raise_on_errors()` before you
    execute the plan.

    Parameters
    ----------
    schemas
        The schemas of the sources.
    options
        The options of the ingest.
    failures
        Sources that cannot be read.
    existing
        The arrays and groups of the repository. None is an empty repository.
    runs
        Runs of sources by the URLs of their leaders. `schemas` has no other source of a run. The plan has no tasks
        then: `plan_tasks` makes those of an ingest, and a sync makes its own.

    Returns
    -------
    IngestPlan
        The plan.

    Raises
    ------
    InvalidInputError
        A source cannot be read and `on_error` is `fail`, or no source can be read.

    Examples
    --------
    >>> import xarray
    >>> from icefloe.ingest import expand_sources, parse_schema
    >>> xarray.Dataset({"t": (("y", "x"), [[1.0, 2.0]])}).to_netcdf("ingest.nc")
    >>> plan = plan_ingest([parse_schema(file) for file in expand_sources("ingest.nc")], IngestOptions())
    >>> sorted(plan.arrays)
    ['t']
    """
    if failures and options.on_error == "fail":
        shown = "\n".join(f"  {f.reason}" for f in failures[:20])
        raise InvalidInputError(
            f"{len(failures)} of {len(failures) + len(schemas)} sources cannot be read. Nothing was written. Use "
            f"on_error='skip' to leave them out:\n{shown}",
            failures=list(failures),
        )
    if not schemas:
        raise InvalidInputError("no source can be read", failures=list(failures))
    existing = existing or Existing()
    placed, broken = _order(intern_schemas(schemas), failures)
    ordered = [schema for _, schema in placed]
    datasets = [
        plan_dataset(group, with_runs(members, runs or {}, group), broken, options, existing)
        for group, members in split_datasets(placed, options).items()
        if any(m.variables for m in members)
    ]
    arrays = {a.path: a for d in datasets for a in d.arrays}
    groups = _group_attributes(ordered, datasets, options)
    documents = {p: group_document(a) for p, a in groups.items() if p not in existing.groups}
    # Do not rewrite the document of an array with the same shape, to avoid conflicts.
    documents.update({a.path: a.document for a in arrays.values() if a.is_new or _grows(a, existing)})
    skipped = SchemaReport((*_skipped_members(ordered, options), *_unchecked(existing, datasets, options)))
    report = join_reports([*(d.report for d in datasets), skipped])
    # Tasks rely on what the report checks, such as equal dimensions of a variable in all files.
    tasks = () if report.errors or runs is not None else plan_tasks(datasets, options)
    is_virtual = any(array.kind == "virtual" for array in arrays.values()) and not report.errors
    return IngestPlan(
        documents=dict(sorted(documents.items())),
        arrays=arrays,
        values=tuple(v for d in datasets for v in d.values),
        tasks=tasks,
        containers=find_containers(ordered, options, runs or {}) if is_virtual else (),
        report=report,
        options=options,
        sources=tuple(s.file.url for s in ordered),
        source_bytes=sum(s.file.size_bytes for s in ordered),
        skipped=tuple(f.file.url for f in failures),
        repeated=tuple(r for d in datasets for r in d.repeated),
        datasets=tuple(datasets),
    )


def check_plan(plan: IngestPlan, existing: Existing, comparison: Comparison) -> None:
    """Refuse an ingest that cannot succeed, before anything is written. Repeated variables are read and compared."""
    plan.report.raise_on_errors()
    check_free(plan, existing)
    kept = {r.path: existing_array(existing.arrays[r.path]) for r in plan.repeated if r.path in existing.arrays}
    check_repeated(plan.repeated, {**kept, **plan.arrays}, comparison)


def check_free(plan: IngestPlan, existing: Existing) -> None:
    """Refuse to overwrite arrays without append_dim or region."""
    taken = sorted(path for path in plan.arrays if path in existing.arrays)
    if taken and plan.options.append_dim is None and plan.options.region is None:
        raise InvalidInputError(
            f"the array /{taken[0]} exists. Use append_dim to extend it, region to write into it, or another group",
            path=taken[0],
        )


def _order(
    schemas: Sequence[SourceSchema], failures: Sequence[SourceFailure]
) -> tuple[list[tuple[int, SourceSchema]], list[tuple[int, SourceFailure]]]:
    """All sources in natural order of URLs, with their position."""
    urls = in_natural_order([*(s.file.url for s in schemas), *(f.file.url for f in failures)])
    position = {url: index for index, url in enumerate(urls)}
    ordered = sorted(schemas, key=lambda s: position[s.file.url])
    return [(position[s.file.url], s) for s in ordered], [(position[f.file.url], f) for f in failures]


def _grows(array: ArrayPlan, existing: Existing) -> bool:
    return tuple(existing.arrays[array.path].document["shape"]) != array.shape


def plan_tasks(datasets: Sequence[DatasetPlan], options: IngestOptions) -> tuple[IngestTask, ...]:
    """Return the tasks that write all files of a plan."""
    tasks: list[IngestTask] = []
    for dataset in datasets:
        native = [a for a in dataset.arrays if a.kind == "native"]
        virtual = [a for a in dataset.arrays if a.kind == "virtual"]
        for arrays, window, files, size in plan_native_tasks(native, dataset.files, dataset.extent, options.task_bytes):
            tasks.append(IngestTask(len(tasks), "native", arrays, window, files, size))
        for arrays, window, files, size in plan_virtual_tasks(virtual, dataset.files, options.files_per_task):
            tasks.append(IngestTask(len(tasks), "virtual", arrays, window, files, size))
    return tuple(tasks)


def _group_attributes(
    schemas: Sequence[SourceSchema], datasets: Sequence[DatasetPlan], options: IngestOptions
) -> dict[str, Mapping[str, Any]]:
    """Every group of the target and its parents.

    A group without variables has the attributes of the first source with it.
    """
    found: dict[str, Mapping[str, Any]] = {"": {}}
    own = {dataset.group: dataset.attributes for dataset in datasets}
    for schema in {id(s.groups): s for s in schemas}.values() if options.variables is None else ():
        for path, attributes in schema.groups.items():
            own.setdefault(join_path(target_group(schema.file, options), path), attributes)
    for group, attributes in own.items():
        parts = group.split("/") if group else []
        for depth in range(1, len(parts)):
            found.setdefault("/".join(parts[:depth]), own.get("/".join(parts[:depth]), {}))
        found[group] = attributes
    return found


def _skipped_members(schemas: Sequence[SourceSchema], options: IngestOptions) -> list[SchemaIssue]:
    """Variables that cannot be stored, by the first file with them, and parts of files that are no data."""
    found: dict[str, SchemaIssue] = {}
    advice = "leave it out with drop_variables (--drop-variables)"
    for url, path, reason in ((s.file.url, *item) for s in schemas for item in s.skipped.items()):
        names = {path, path.rpartition("/")[2]}
        is_wanted = options.variables is None or names & {*options.variables}
        if path not in found and is_wanted and not names & {*options.drop_variables}:
            found[path] = SchemaIssue("error", url, path, "variable", "one that Zarr can hold", reason, advice)
    notes = [
        SchemaIssue("note", schema.file.url, path, "variable", "one that Zarr can hold", reason, "it is left out")
        for schema in schemas
        for path, reason in schema.left_out.items()
    ]
    return [*found.values(), *notes]


def _unchecked(existing: Existing, datasets: Sequence[DatasetPlan], options: IngestOptions) -> list[SchemaIssue]:
    """Coordinates of the repository that could not be compared with the sources."""
    needed = {join_path(d.group, dim) for d in datasets for array in d.arrays for dim in array.dims}
    severity: Severity = "note" if options.unchecked else "error"
    resolution = (
        "the sources are not checked against it, as asked for"
        if options.unchecked
        else "open the repository with that authorisation (authorize_virtual_chunk_access, --authorize), or go on "
        "with unchecked=True (--unchecked): repeated cells and other grids are then not noticed"
    )
    return [
        SchemaIssue(severity, "", path, "the repository's values", "readable", reason, resolution)
        for path, reason in existing.unreadable.items()
        if path in needed
    ]


def find_containers(
    schemas: Sequence[SourceSchema], options: IngestOptions, runs: Mapping[str, SourceRun]
) -> tuple[str, ...]:
    """The prefixes that cover every referenced file: the one given, or the longest common folders."""
    folders = {
        folder
        for schema in schemas
        for folder in (schema.referenced or (schema.file.url.rstrip("/").rsplit("/", 1)[0] + "/",))
    }
    for run in runs.values():
        if run.batch.template.schema is not None and not run.batch.template.schema.referenced:
            folders |= {url.rstrip("/").rsplit("/", 1)[0] + "/" for url in run.urls}
    if options.container_prefix is not None:
        prefix = options.container_prefix.rstrip("/") + "/"
        outside = sorted(f for f in folders if not f.startswith(prefix))
        if outside:
            raise InvalidInputError(f"sources in {outside[0]} are not below the container prefix {prefix}")
        return (prefix,)
    places: dict[tuple[str, str], list[str]] = {}
    for folder in folders:
        parts = urlsplit(folder)
        # The only common folder of local files may be the root, which is too much to authorise.
        top = parts.path.split("/")[1] if parts.scheme == "file" else ""
        places.setdefault((f"{parts.scheme}://{parts.netloc}", top), []).append(parts.path)
    return tuple(sorted(f"{root}{posixpath.commonpath(paths).rstrip('/')}/" for (root, _), paths in places.items()))


_COLOURS = {"error": "red", "handled": "yellow", "note": "dim"}


_STYLE: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False, "show_edge": False, "title_justify": "left"}


def report_table(report: SchemaReport, *, most: int = 50) -> Table:
    """Differences between the sources, errors first."""
    table = Table(title="Differences between the sources", **_STYLE)
    for heading in ("", "file", "variable", "what", "expected", "found", "what is done"):
        table.add_column(heading, overflow="fold")
    for severity, file, *rest in report.rows()[:most]:
        table.add_row(severity, file.rsplit("/", 1)[-1], *rest, style=_COLOURS[severity])
    if len(report.issues) > most:
        table.caption = f"and {len(report.issues) - most} more"
    return table


def arrays_table(plan: IngestPlan) -> Table:
    """The arrays of the target."""
    table = Table(title="Arrays", **_STYLE)
    for heading in ("array", "stored", "type", "dimensions", "shape", "chunks", "number of chunks", "size"):
        table.add_column(heading, justify="left" if heading in ("array", "stored", "dimensions") else "right")
    for path, array in sorted(plan.arrays.items()):
        shape, chunks = (" × ".join(map(str, numbers)) or "scalar" for numbers in (array.shape, array.grid))
        table.add_row(
            f"/{path}",
            array.kind,
            array.dtype.lstrip("<|=>"),
            ", ".join(array.dims),
            shape,
            chunks,
            f"{array.chunk_count:,}",
            format_bytes(array.nbytes),
        )
    return table


def plan_lines(plan: IngestPlan) -> Iterator[str]:
    """The summary of the plan, as lines of text."""
    native = [task for task in plan.tasks if task.kind == "native"]
    virtual = [task for task in plan.tasks if task.kind == "virtual"]
    yield f"{format_count(len(plan.sources), 'source')}, {format_bytes(plan.source_bytes)}, mode {plan.options.mode}"
    if native:
        size = sum(task.bytes for task in native)
        yield f"{_tasks(len(native))} values ({format_bytes(size)} decoded)"
    if virtual:
        yield f"{_tasks(len(virtual))} references"
    for prefix in plan.containers:
        yield f"readers authorise {prefix} (authorize_virtual_chunk_access)"
    for url in plan.skipped:
        yield f"left out: {url}"


def _tasks(count: int) -> str:
    return f"{format_count(count, 'task')} {'writes' if count == 1 else 'write'}"


class PlanView:
    """Prints a plan with rich: `console.print(PlanView(plan))`."""

    def __init__(self, plan: IngestPlan) -> None:
        self._plan = plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield arrays_table(self._plan)
        if self._plan.report.issues:
            yield report_table(self._plan.report)
        yield from plan_lines(self._plan)
