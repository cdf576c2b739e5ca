"""Runs: sources that are planned together, like one source.

Sources that follow each other along one joined dimension, and have equal schemas and the same cells along the others,
are a run: a plan of one source with all of their cells is equal to a plan of each of them. The cost of a plan then
depends on what differs between the sources, not on their number.

A sync has runs of unchanged sources (`choose_runs`). The sources of a batch have equal schemas, and the last sync
planned them together with the same options. A forecast with a file for every run and step of the model has one run of
sources for every step, for example. Everything else is planned source by source: new and changed sources, those whose
coordinate is not known as numbers, and the first source of every batch, because arrays take their attributes and
everything that is not joined from it.

All runs of a group follow one dimension. They end at the same cells, so that two runs have all of their coordinates in
common, or none. They end at the coordinates of every source that is not in a run, and where such a source was in the
last sync.

An ingest of many new sources has runs if all sources follow each other along one dimension (`plan_table`). Their
schemas are in a `SchemaTable`, which has what they share once. If a plan with runs finds any difference between
sources, every source is planned instead, so that the report names each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.ingest.array_plan import ArrayPlan
from icefloe.ingest.catalogue import (
    Catalogue,
    CataloguedSource,
    Placement,
    SourceBatch,
    SourceRun,
    joined_variables,
)
from icefloe.ingest.cf import is_time_units
from icefloe.ingest.members import is_longitude, split_datasets
from icefloe.ingest.placement import Existing
from icefloe.ingest.plan import IngestPlan, plan_ingest, plan_tasks
from icefloe.ingest.record import FoundSources
from icefloe.ingest.schema_table import AlikeSources, SchemaTable
from icefloe.ingest.source_files import SourceFiles, in_natural_order, is_range
from icefloe.ingest.source_model import SourceFailure, SourceSchema
from icefloe.ingest.sources import IngestOptions, NamedValue, name_values
from icefloe.ingest.write_tasks import PlacedFile

_SHORTEST_BATCH = 3
_Units: TypeAlias = tuple[Any, Any]


def choose_runs(found: FoundSources, before: Catalogue, options: IngestOptions) -> list[SourceRun]:
    """Return runs of unchanged sources. All other sources are planned one by one."""
    joined: dict[str, dict[str, None]] = {}
    for path, (_, dims) in before.arrays.items():
        joined.setdefault(path.rpartition("/")[0], {}).update(dict.fromkeys(dims))
    batches = [_Batch(batch, found, options) for batch in found.sources.batches]
    runs: list[SourceRun] = []
    for group, names in joined.items():
        own = [each for each in batches if each.group == group and {*each.dims} <= names.keys()]
        former = _former_extents(own, before, group) if len(names) > 1 else {}
        choices = [_runs_along(dim, group, own, batches, found, options, former.get(dim, [])) for dim in names]
        # The more sources are in runs, and the fewer runs there are, the less has to be planned.
        runs += max(choices, key=lambda chosen: sum(len(run) - 1 for run in chosen), default=[])
    return runs


@dataclass(frozen=True, slots=True)
class _Column:
    """The coordinate of the sources of a batch along a dimension: one row for each of them."""

    values: npt.NDArray[Any]
    units: _Units


class _Batch:
    """A batch of sources, and what decides about runs of them."""

    def __init__(self, batch: SourceBatch, found: FoundSources, options: IngestOptions) -> None:
        self.batch, self.options = batch, options
        self.schema = batch.template.schema
        placed = batch.template.placed
        is_candidate = len(batch) >= _SHORTEST_BATCH and self.schema is not None and len(placed) == 1
        self.group = next(iter(placed)) if is_candidate and batch.starts else None
        self.dims = [dim for group, dim in batch.starts if group == self.group]
        self.numbers = _order_of(batch, found)
        """The position of every source among the sorted names."""
        self._named: dict[str, Sequence[NamedValue]] | None = None
        self._columns: dict[str, _Column | None] = {}

    def named(self) -> Mapping[str, Sequence[NamedValue]]:
        """Return the coordinates in the names of the sources, by dimension."""
        if self._named is None:
            pattern = self.options.pattern
            rows = [] if pattern is None else [name_values(url, pattern) for url in self.batch.urls]
            alike = bool(rows) and all(row.keys() == rows[0].keys() for row in rows)
            self._named = {dim: [row[dim] for row in rows] for dim in rows[0]} if alike else {}
        return self._named

    def has(self, dim: str) -> bool:
        """Return whether the sources may have cells along a dimension."""
        return self.schema is None or _has_dimension(self.schema, dim, self.options) or dim in self.named()

    def column(self, dim: str) -> _Column | None:
        """Return the coordinate along a dimension, or None if it is not known as numbers."""
        if dim not in self._columns:
            self._columns[dim] = self._find_column(dim)
        return self._columns[dim]

    def _find_column(self, dim: str) -> _Column | None:
        if (named := self.named().get(dim)) is not None:
            return _named_column(named)
        if self.schema is None:
            return None
        own = _own_paths(self.schema, dim, self.options)
        if len(own) != 1:
            return None
        values = self.batch.values.get(own[0])
        if values is None:
            known = self.schema.coordinates.get(own[0])
            if known is None or known.values is None:
                return None
            values = np.repeat(known.values.reshape(1, -1), len(self.batch), axis=0)
        is_known = values.dtype.kind in "iuf" and values.shape[1] and not bool(np.isnan(values).any())
        return _Column(values, _units(self.schema, own[0])) if is_known else None

    def fits(self, dim: str) -> bool:
        """Return whether sources that follow each other along a dimension can be planned like one source."""
        schema, column, options = self.schema, self.column(dim), self.options
        if self.group is None or schema is None or column is None or dim not in self.dims:
            return False
        length = self.batch.template.placed[self.group].extent[dim][1]
        if column.values.shape[1] != length:
            return False
        along = joined_variables(schema, {dim}, options.rename)
        names = [_name(path, options) for path in along]
        # The coordinates of the run are made of the columns of the batch.
        if len({*names}) < len(names) or any(p in along and p not in self.batch.values for p in schema.coordinates):
            return False
        own = next(iter(_own_paths(schema, dim, options)), None)
        variable = None if own is None else schema.variables.get(own)
        if options.longitudes is not None and is_longitude(dim, variable):
            return False
        if length > 1 and dim in options.sort:
            # The cells of all sources have one order only if all of them rise, or all of them fall.
            rises = column.values[:, 1:] > column.values[:, :-1]
            falls = column.values[:, 1:] < column.values[:, :-1]
            return bool(rises.all() or falls.all())
        return True

    def lines(self, dim: str) -> npt.NDArray[np.int64]:
        """Return a number for each source. Sources with one number differ only along a dimension."""
        batch = self.batch
        numbers = np.zeros(len(batch), dtype=np.int64)
        along = joined_variables(self.schema, {dim}, self.options.rename) if self.schema is not None else set()
        columns: list[npt.NDArray[Any]] = [each for (_, other), each in batch.starts.items() if other != dim]
        for path, values in batch.values.items():
            if path not in along and _name(path, self.options) != dim and values.shape[1]:
                width = values.dtype.itemsize * values.shape[1]
                columns.append(np.ascontiguousarray(values).view(np.dtype((np.void, width))).reshape(-1))
        texts: list[Sequence[Any]] = [each for path, each in batch.hashes.items() if path not in along]
        texts += [each for other, each in self.named().items() if other != dim]
        for each in texts:
            known: dict[Any, int] = {}
            columns.append(np.array([known.setdefault(value, len(known)) for value in each], dtype=np.int64))
        for column in columns:
            _, codes = np.unique(column, return_inverse=True)
            _, numbers = np.unique(numbers * (int(codes.max()) + 1) + codes.reshape(-1), return_inverse=True)
        return numbers.reshape(-1).astype(np.int64)


def _order_of(batch: SourceBatch, found: FoundSources) -> npt.NDArray[np.int64]:
    """Return the position of every source of a batch among the sorted names."""
    order: Mapping[str, int] = found.order
    if batch.urls[0] in found.unreadable:
        order = {url: number for number, url in enumerate(in_natural_order(batch.urls))}
    return np.fromiter((order[url] for url in batch.urls), dtype=np.int64, count=len(batch))


def _named_column(named: Sequence[NamedValue]) -> _Column | None:
    kinds = {(type(each.value), each.units) for each in named}
    if len(kinds) != 1 or isinstance(named[0].value, str):
        return None
    units = named[0].units
    calendar = "proleptic_gregorian" if units is not None and is_time_units(units) else None
    values: npt.NDArray[Any] = np.array([each.value for each in named]).reshape(-1, 1)
    return _Column(values, (units, calendar)) if values.dtype.kind in "if" else None


def _name(path: str, options: IngestOptions) -> str:
    name = path.rpartition("/")[2]
    return options.rename.get(name, name)


def _has_dimension(schema: SourceSchema, dim: str, options: IngestOptions) -> bool:
    names = options.rename
    return any(
        _name(path, options) == dim or dim in {names.get(d, d) for d in v.dims} for path, v in schema.variables.items()
    )


def _own_paths(schema: SourceSchema, dim: str, options: IngestOptions) -> list[str]:
    """Return the paths of the coordinates of a dimension."""
    return [path for path in schema.variables if _name(path, options) == dim]


def _units(schema: SourceSchema, path: str) -> _Units:
    attributes = schema.variables[path].attributes
    return attributes.get("units"), attributes.get("calendar")


def _former_extents(candidates: Sequence[_Batch], before: Catalogue, group: str) -> dict[str, list[tuple[int, int]]]:
    """Return the cells that all other sources had in the last sync, by dimension.

    In a group with several joined dimensions, such a source may have had cells beside those of runs.
    """
    known = {url for each in candidates for url in each.batch.urls}
    found: dict[str, list[tuple[int, int]]] = {}

    def add(placed: Mapping[str, Placement]) -> None:
        for part in placed[group].parts() if group in placed else ():
            for dim, (start, length) in part.extent.items():
                found.setdefault(dim, []).append((start, start + length))

    for batch in before.sources.batches:
        for row in [row for row, url in enumerate(batch.urls) if url not in known]:
            add(batch.placed(row))
    for url, source in before.sources.singles.items():
        if url not in known:
            add(source.placed)
    return found


@dataclass(frozen=True, slots=True)
class _Lines:
    """The sources of a batch that may be in runs, by line and position."""

    batch: _Batch
    rows: npt.NDArray[np.intp]
    lines: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    """The least and the greatest coordinate of each source, negative if coordinates fall."""
    length: int

    @property
    def is_new_line(self) -> npt.NDArray[np.bool_]:
        return np.append(True, self.lines[1:] != self.lines[:-1])

    def apart(self) -> list[npt.NDArray[np.int64]]:
        """Return the cells at which lines begin, end, or have no source."""
        ends = self.starts + self.length
        is_apart = self.is_new_line
        is_apart[1:] |= self.starts[1:] != ends[:-1]
        return [self.starts[is_apart], ends[np.append(is_apart[1:], True)]]


def _runs_along(
    dim: str,
    group: str,
    candidates: Sequence[_Batch],
    batches: Sequence[_Batch],
    found: FoundSources,
    options: IngestOptions,
    former: Iterable[tuple[int, int]],
) -> list[SourceRun]:
    """Return the runs of a group along a dimension. There are none if something about the dimension is not known."""
    fitting = [each for each in candidates if each.fits(dim)]
    signs = {id(each): _direction(each, dim) for each in fitting}
    fitting = [each for each in fitting if signs[id(each)]]
    sign = signs[id(fitting[0])] if fitting else 0
    if not fitting or any(signs[id(each)] != sign for each in fitting):
        return []
    lines = [_find_lines(each, dim, group, sign) for each in fitting]
    table = _join_lines(lines)
    limit = _tolerance(dim, fitting[0], options)
    if table is None or bool((table.low[1:] - table.high[:-1] <= 2 * limit).any()):
        return []
    chosen = {id(each.batch): each.rows for each in lines}
    ranges = _find_ranges(dim, batches, chosen, found.sources.singles.values(), options)
    if ranges is None or {each.units for each in ranges} | {_column(each, dim).units for each in fitting} != {
        _column(fitting[0], dim).units
    }:
        return []
    cuts = [edge for each in lines for edge in each.apart()]
    for other in ranges:
        cuts += table.edges_at(other.low, other.high, sign, limit)
    cuts += [table.edges_between(start, end) for start, end in former]
    edges = np.unique(np.concatenate(cuts))
    runs: list[SourceRun] = []
    for each in lines:
        values = _column(each.batch, dim).values
        parts = np.searchsorted(edges, each.starts, side="right")
        is_first = each.is_new_line
        is_first[1:] |= parts[1:] != parts[:-1]
        for rows in np.split(each.rows, np.flatnonzero(is_first)[1:]):
            if len(rows) > 1:
                leader = rows[np.argmin(each.batch.numbers[rows])]
                runs.append(SourceRun(each.batch.batch, rows, group, dim, values[rows], int(leader)))
    return runs


def _column(each: _Batch, dim: str) -> _Column:
    column = each.column(dim)
    assert column is not None
    return column


def _direction(each: _Batch, dim: str) -> int:
    """Return 1 if coordinates rise with the positions of sources, -1 if they fall, 0 if they cannot be in runs."""
    starts, values = each.batch.starts[each.group or "", dim], _column(each, dim).values
    first, last = values[np.argmin(starts), 0], values[np.argmax(starts), 0]
    if first == last or (values.shape[1] == 1 and last < first):
        # If sources of one value each fall, another source made them fall. Without it, they rise.
        return 0
    return 1 if last > first else -1


def _find_lines(each: _Batch, dim: str, group: str, sign: int) -> _Lines:
    """Return the sources of a batch without the first one among the sorted names, by line and position."""
    starts, numbers = each.batch.starts[group, dim], each.lines(dim)
    rows = np.lexsort((starts, numbers))
    rows = rows[rows != np.argmin(each.numbers)]
    # The negative of unsigned numbers and of the least integer is another number.
    cells = _column(each, dim).values[rows].astype(np.float64) * sign
    return _Lines(each, rows, numbers[rows], starts[rows], cells.min(axis=1), cells.max(axis=1), cells.shape[1])


@dataclass(frozen=True, slots=True)
class _Positions:
    """The sources of all lines along a dimension, by position. Sources at one position are one row."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]

    def edges_between(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return the cells at which sources begin or end that meet the cells [start, end)."""
        first, last = np.searchsorted(self.ends, start, side="right"), np.searchsorted(self.starts, end)
        return self._edges(int(first), int(last))

    def edges_at(
        self, low: npt.NDArray[np.float64], high: npt.NDArray[np.float64], sign: int, limit: float
    ) -> list[npt.NDArray[np.int64]]:
        """Return the cells at which sources begin or end that have coordinates within ranges, or next to them."""
        low, high = np.sort(np.stack([low, high]) * sign, axis=0)
        first = np.searchsorted(self.high, low - limit).tolist()
        last = np.searchsorted(self.low, high + limit, side="right").tolist()
        return [self._edges(a, b) for a, b in zip(first, last, strict=True)]

    def _edges(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return the edges of rows, and the edge at which rows would be inserted."""
        if first >= last:
            return self.starts[first : first + 1]
        return np.concatenate([self.starts[first:last], self.ends[first:last]])


def _join_lines(lines: Sequence[_Lines]) -> _Positions | None:
    """Return the positions of all lines, or None if coordinates do not rise with them."""
    starts = np.concatenate([each.starts for each in lines])
    lengths = np.concatenate([np.full(len(each.rows), each.length, dtype=np.int64) for each in lines])
    low, high = (np.concatenate(part) for part in ([each.low for each in lines], [each.high for each in lines]))
    order = np.argsort(starts, kind="stable")
    starts, ends, low, high = starts[order], (starts + lengths)[order], low[order], high[order]
    is_new = np.append(True, starts[1:] != starts[:-1])
    again = ~is_new[1:]
    for column in (ends, low, high):
        # Sources at one position have the same coordinates.
        if bool((column[1:][again] != column[:-1][again]).any()):
            return None
    found = _Positions(starts[is_new], ends[is_new], low[is_new], high[is_new])
    rises = (found.low[1:] > found.high[:-1]).all() and (found.starts[1:] >= found.ends[:-1]).all()
    return found if bool(rises) else None


def _tolerance(dim: str, each: _Batch, options: IngestOptions) -> float:
    """Return by how much coordinates of different sources may differ that are the same."""
    if isinstance(options.tolerance, Mapping):
        return float(options.tolerance.get(dim, 0.0))
    return 0.0 if options.tolerance is None or is_time_units(_column(each, dim).units[0]) else float(options.tolerance)


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The least and the greatest coordinates of some sources."""

    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    units: _Units


def _find_ranges(
    dim: str,
    batches: Sequence[_Batch],
    chosen: Mapping[int, npt.NDArray[np.intp]],
    singles: Iterable[CataloguedSource],
    options: IngestOptions,
) -> list[_Ranges] | None:
    """Return the coordinates of all sources that are not in lines. None if some of them are not known."""
    found: list[_Ranges] = []
    for each in batches:
        rest = np.ones(len(each.batch), dtype=bool)
        if id(each) in chosen:
            rest[chosen[id(each)]] = False
        if not rest.any() or not each.has(dim):
            continue
        if (column := each.column(dim)) is None:
            return None
        cells = column.values[rest].astype(np.float64)
        found.append(_Ranges(cells.min(axis=1), cells.max(axis=1), column.units))
    for source in singles:
        if (own := _range_of(source, dim, options)) is None:
            return None
        found += own
    return found


def _range_of(source: CataloguedSource, dim: str, options: IngestOptions) -> list[_Ranges] | None:
    """Return the coordinates of one source along a dimension, or None if they are not known as numbers."""
    schema = source.schema
    if schema is None:
        return None
    named = {} if options.pattern is None else name_values(source.file.url, options.pattern)
    if dim in named:
        column = _named_column([named[dim]])
        return None if column is None else [_single_range(column.values, column.units)]
    if not _has_dimension(schema, dim, options):
        return []
    own = _own_paths(schema, dim, options)
    found: list[_Ranges] = []
    for path in own:
        values = schema.coordinates[path].values if path in schema.coordinates else None
        if values is None or values.dtype.kind not in "iuf" or bool(np.isnan(values).any()):
            return None
        found.append(_single_range(values, _units(schema, path)))
    return found if own else None


def _single_range(values: npt.NDArray[Any], units: _Units) -> _Ranges:
    wide = values.astype(np.float64)
    ends: npt.NDArray[np.float64] = np.array([wide.min(), wide.max()] if wide.size else [], dtype=np.float64)
    return _Ranges(ends[:1], ends[1:], units)


_SHORTEST_RUN = 16
"""Fewer new sources are planned one by one."""
_NAMES_AT_ONCE = 1024
"""Names whose coordinates are Python objects at the same time."""


def plan_table(
    table: SchemaTable,
    options: IngestOptions,
    *,
    failures: Sequence[SourceFailure] = (),
    existing: Existing | None = None,
) -> IngestPlan:
    """Plan an ingest as `plan_ingest` does. Sources that follow each other are planned like one source.

    The plan is the same. Its files and its tasks may have runs, which `PlacedFile.files` turns into files.
    """
    kinds = None if failures else table.kinds()
    found = _new_runs(kinds, table.described(), options) if kinds else {}
    if kinds and found:
        leaders = {run.batch.urls[run.leader]: run for runs in found.values() for run in runs}
        schemas: list[SourceSchema] = []
        for alike in kinds:
            is_single = np.ones(len(alike), dtype=bool)
            for run in found.get(alike, ()):
                is_single[run.rows] = False
                is_single[run.leader] = True
            schemas += alike.schemas(np.flatnonzero(is_single).tolist(), table.described())
        try:
            plan = plan_ingest(schemas, options, existing=existing, runs=leaders)
        except InvalidInputError:
            # The error of a plan of every source names the source that does not fit.
            pass
        else:
            if _is_plan_of_files(plan, leaders):
                files = table.files()
                return replace(
                    plan,
                    tasks=plan_tasks(plan.datasets, options),
                    sources=files.urls,
                    source_bytes=files.total_bytes(),
                )
    return plan_ingest(list(table), options, failures=failures, existing=existing)


def can_be_divided(placed: PlacedFile, run: SourceRun, arrays: Mapping[str, ArrayPlan]) -> bool:
    """Return whether the cells of a planned run are those of its files, one after the other, in all arrays."""
    for path, variable in placed.variables.items():
        array = arrays[path]
        if run.dim not in variable.dims or variable.dims != array.dims or variable.whole is not None:
            return False
        # References need chunks that end where files end.
        if array.kind == "virtual" and run.length % array.chunks[array.dims.index(run.dim)] != 0:
            return False
    return True


def _is_plan_of_files(plan: IngestPlan, leaders: Mapping[str, SourceRun]) -> bool:
    """Return whether a plan with runs is the plan of their sources."""
    if plan.report.errors or any(issue.file in leaders for issue in plan.report.issues):
        return False
    if any(placed is not None and placed.file.url in leaders for r in plan.repeated for placed in (r.kept, r.other)):
        return False
    for dataset in plan.datasets:
        arrays = {array.path: array for array in dataset.arrays}
        placed = [file for file in dataset.files if file.run is not None]
        # Chunks of different lengths depend on the length of each file.
        if placed and not all(array.is_regular for array in arrays.values()):
            return False
        for file in placed:
            run = file.run
            assert run is not None
            if {*file.origin} != {run.dim} or not can_be_divided(file, run, arrays):
                return False
    return True


@dataclass(frozen=True, slots=True)
class _NewLine:
    """Sources with equal schemas along a dimension: the coordinate of each, and whether they can be in runs."""

    alike: AlikeSources
    values: npt.NDArray[Any]
    units: _Units
    can_run: bool
    is_stacked: bool
    """The sources do not have the dimension. They are stacked along a scalar, or along a coordinate in their names."""


def _new_runs(
    kinds: Sequence[AlikeSources], files: SourceFiles, options: IngestOptions
) -> dict[AlikeSources, list[SourceRun]]:
    """Return runs of new sources by kind. There are none unless all sources follow each other along one dimension."""
    arranged = options.sort or options.flip or options.longitudes is not None or options.rename
    is_apart = options.group_pattern is not None or options.tolerance is not None
    largest = max(kinds, key=len)
    if len(largest) < _SHORTEST_RUN or arranged or is_apart:
        return {}
    if options.overlap != "error" or options.region is not None:
        return {}
    dim = _new_dimension(largest, files, options)
    if dim is None:
        return {}
    lines: list[_NewLine] = []
    for alike in kinds:
        if (line := _new_line(alike, dim, files, options)) is None:
            return {}
        lines.append(line)
    if len({(line.units, line.is_stacked) for line in lines}) > 1:
        return {}
    low = np.concatenate([line.values[:, 0].astype(np.float64) for line in lines])
    high = np.concatenate([line.values[:, -1].astype(np.float64) for line in lines])
    kind = np.repeat(np.arange(len(lines)), [len(line.alike) for line in lines])
    rows = np.concatenate([np.arange(len(line.alike)) for line in lines])
    order = np.argsort(low, kind="stable")
    if not bool((low[order][1:] > high[order][:-1]).all()):
        return {}
    numbers = np.concatenate([line.alike.places for line in lines])
    first = np.array([line.alike.places.min() for line in lines])
    # Arrays take everything that is not joined from the first source of a kind.
    is_single = np.array([not line.can_run for line in lines])[kind] | (numbers == first[kind])
    kind, rows, numbers, is_single = kind[order], rows[order], numbers[order], is_single[order]
    # The sources of a run follow each other by name too, so that tasks have the same files as without runs.
    is_edge = np.append(True, (kind[1:] != kind[:-1]) | (np.diff(numbers) != 1) | is_single[1:] | is_single[:-1])
    runs: dict[AlikeSources, list[SourceRun]] = {}
    batches: dict[int, tuple[SourceBatch, str]] = {}
    for part in np.split(np.arange(len(order)), np.flatnonzero(is_edge)[1:]):
        if len(part) < _SHORTEST_RUN or is_single[part[0]]:
            continue
        line, own = lines[kind[part[0]]], rows[part]
        if id(line) not in batches:
            datasets = split_datasets([(0, line.alike.template)], options)
            groups = [group for group, members in datasets.items() if any(m.variables for m in members)]
            if len(groups) != 1:
                return {}
            batches[id(line)] = line.alike.batch(files), groups[0]
        batch, group = batches[id(line)]
        values = line.values[own[0] : own[-1] + 1] if is_range(own) else line.values[own]
        run = SourceRun(batch, own, group, dim, values, int(own[0]))
        runs.setdefault(line.alike, []).append(run)
    return runs


def _new_dimension(alike: AlikeSources, files: SourceFiles, options: IngestOptions) -> str | None:
    """Return the dimension along which sources differ, if it is one."""
    if options.pattern is not None:
        try:
            named = [*name_values(files[int(alike.places[0])].url, options.pattern)]
        except InvalidInputError:
            return None
        asked = options.append_dim in (None, *named) and options.concat_dims in (None, (*named,))
        return named[0] if len(named) == 1 and asked else None
    if options.append_dim is not None:
        return options.append_dim
    if options.concat_dims is not None:
        return options.concat_dims[0] if len(options.concat_dims) == 1 else None
    variables = alike.template.variables
    found = [path for path in alike.values() if variables[path].dims == (path,)]
    # Files are stacked along a scalar coordinate only if none of them differs along a dimension.
    found = found or [path for path in alike.values() if variables[path].dims == ()]
    return found[0] if len(found) == 1 else None


def _new_line(alike: AlikeSources, dim: str, files: SourceFiles, options: IngestOptions) -> _NewLine | None:
    """Return sources along a dimension, or None if their coordinate does not rise or is not known as numbers."""
    schema, values, hashes = alike.template, alike.values(), alike.hashes()
    has_dim = any(dim in each.dims for each in schema.variables.values())
    column = _stored_column(alike, dim) if options.pattern is None else _names_column(alike, dim, files, options)
    if column is None or (options.pattern is None and has_dim != (schema.variables[dim].dims == (dim,))):
        return None
    own = column.values
    # Rises without a gap for NaN, which is neither greater nor smaller.
    if not bool((own[:, 1:] > own[:, :-1]).all()) or bool(np.isnan(own.astype(np.float64)).any()):
        return None
    along = joined_variables(schema, {dim}, options.rename)
    # The coordinates of a run are made of columns, and what is not joined is equal in all sources.
    known = all(path in values for path in schema.coordinates if path in along)
    can_run = known and all(path in along for path in (*values, *hashes)) and all("/" not in path for path in along)
    return _NewLine(alike, own, column.units, can_run, not has_dim)


def _stored_column(alike: AlikeSources, dim: str) -> _Column | None:
    """Return the coordinate that sources have along a dimension, or as a scalar."""
    schema = alike.template
    variable, coordinate = schema.variables.get(dim), schema.coordinates.get(dim)
    if variable is None or coordinate is None or variable.dims not in ((dim,), ()):
        return None
    if coordinate.values is None or coordinate.values.dtype.kind not in "iuf" or not coordinate.size:
        return None
    own = alike.values().get(dim)
    if own is None:
        own = np.broadcast_to(coordinate.values, (len(alike), coordinate.size))
    return _Column(own, _units(schema, dim))


def _names_column(alike: AlikeSources, dim: str, files: SourceFiles, options: IngestOptions) -> _Column | None:
    """Return the coordinate that the names of sources give, or None if it is not one number of one kind."""
    assert options.pattern is not None
    urls, parts = files.take(alike.places).urls, list[_Column]()
    for first in range(0, len(urls), _NAMES_AT_ONCE):
        try:
            rows = [name_values(url, options.pattern) for url in urls[first : first + _NAMES_AT_ONCE]]
        except InvalidInputError:
            # The plan of every source says which name is wrong.
            return None
        column = _named_column([row[dim] for row in rows]) if all([*row] == [dim] for row in rows) else None
        if column is None:
            return None
        parts.append(column)
    kinds = {(part.values.dtype, part.units) for part in parts}
    return _Column(np.concatenate([part.values for part in parts]), parts[0].units) if len(kinds) == 1 else None
