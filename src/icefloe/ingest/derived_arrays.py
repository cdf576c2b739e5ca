"""Arrays that are made of others: best-estimate views of forecasts, and overviews of large arrays.

Best estimates. An array of a forecast has a dimension of reference times (runs) and one of forecast steps. A valid time
is a reference time plus a step. The view is an array over valid times, with the values of the newest run. Its chunks
are the chunks of the forecast: only references are written, so nothing is copied. This needs chunks of one run and one
step each.

Overviews. Level 1 has half as many cells as the array along two dimensions, level 2 half as many as level 1. A cell is
made of 2 × 2 cells of the level before it. The levels are arrays in groups of their own: `TARGET/1/NAME`,
`TARGET/2/NAME`. The group `TARGET` has the attribute `multiscales` of the Zarr convention that GeoZarr uses. If the
array has changed, only the chunks of the levels that depend on changed chunks are computed again. The levels of a
cloud-optimised GeoTIFF can also be its own overviews. The chunks of a level have one length along the two dimensions,
the longest of the array. Along the others they have the lengths of the array, so a chunk of a level depends on one
chunk of the array along them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import zarr

from icefloe.blocking import run_blocking
from icefloe.codec_pipeline import check_grid
from icefloe.errors import IcefloeError, InvalidInputError, NodeNotFoundError
from icefloe.ingest.access import choose_access
from icefloe.ingest.catalogue import version_of
from icefloe.ingest.cf import NO_TIME, find_time_units, halve, packing_of, whole_nanoseconds
from icefloe.ingest.chunk_grids import LevelGrids, all_coords
from icefloe.ingest.local_ingest import SessionSink
from icefloe.ingest.parsers.registry import OpenSource, open_source
from icefloe.ingest.placement import ExistingArray
from icefloe.ingest.source_model import SourceVariable
from icefloe.ingest.sources import expand_sources
from icefloe.ingest.zarr_documents import array_document, fill_attribute
from icefloe.manifests.chunk_columns import take
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.zarr_document import ChunkLengths, as_lengths, grid_document, parse_document, parse_grid
from icefloe.repository import Repository
from icefloe.session.references import set_table
from icefloe.session.session import Session

_UNITS_NS = {
    "days": 86_400_000_000_000,
    "hours": 3_600_000_000_000,
    "minutes": 60_000_000_000,
    "seconds": 1_000_000_000,
    "milliseconds": 1_000_000,
    "microseconds": 1_000,
}
_ALIASES = {"day": "days", "d": "days", "hour": "hours", "h": "hours", "hrs": "hours", "minute": "minutes"}
_ALIASES |= {"min": "minutes", "second": "seconds", "s": "seconds"}
_SHAPELESS = ("bytes", "blosc", "zstd", "gzip", "crc32c", "vlen-utf8", "vlen-bytes")
"""Codecs that do not depend on the number of dimensions of a chunk."""


@dataclass(frozen=True, slots=True)
class BestEstimate:
    """The result of `best_estimate`.

    Attributes
    ----------
    snapshot_id
        The new snapshot.
    variables
        The number of valid times of each variable of the view.
    references
        The number of chunk references of the view.

    Examples
    --------
    >>> BestEstimate("J0YW0WNV6JWY3RH21G7G", {"t": 48}, 48).variables
    {'t': 48}
    """

    snapshot_id: str
    variables: Mapping[str, int]
    references: int


@dataclass(frozen=True, slots=True)
class _Choice:
    """Where the values of a variable come from: a run and a step for each of its valid times."""

    valid: npt.NDArray[np.int64]
    """Nanoseconds since the reference time of the units, ascending."""
    run: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    table: ChunkTable
    """The references of the chosen runs and steps, at their old positions."""


def best_estimate(
    repository: Repository,
    *,
    group: str = "",
    target: str = "best",
    variables: Sequence[str] | None = None,
    time: str = "time",
    step: str = "step",
    branch: str = "main",
    message: str | None = None,
) -> BestEstimate:
    """Write a view of a forecast that has, for every valid time, the values of the newest run.

    The view is a group with the dimension `valid_time`. The coordinates `NAME_reference_time` and `NAME_step` say where
    the values of a variable come from. If they are the same for all variables, they are `reference_time` and `step`.
    Call it again after the forecast has grown: the view is replaced, with one commit. No chunk is read or copied.

    Parameters
    ----------
    repository
        The repository.
    group
        The group of the forecast.
    target
        The group of the view, below `group`.
    variables
        The variables of the view. None is every variable with both dimensions.
    time
        The dimension of the reference times.
    step
        The dimension of the forecast steps.
    branch
        The branch.
    message
        The commit message.

    Returns
    -------
    BestEstimate
        The new snapshot, and the size of the view.

    Raises
    ------
    InvalidInputError
        A chunk of a variable has several runs or steps, or its codecs depend on the shape, or times and steps cannot be
        added.
    NodeNotFoundError
        A variable or coordinate does not exist.

    Examples
    --------
    >>> import icefloe, xarray
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> forecast = xarray.Dataset(
    ...     {"t": (("time", "step"), [[10.0, 11.0], [20.0, 21.0]])},
    ...     {
    ...         "time": ("time", [0, 6], {"units": "hours since 2024-01-01"}),
    ...         "step": ("step", [0, 6], {"units": "hours"}),
    ...     },
    ... )
    >>> session = repo.writable_session("main")
    >>> _ = forecast.to_zarr(session.store, encoding={"t": {"chunks": (1, 1)}}, consolidated=False)
    >>> _ = session.commit("two runs")
    >>> best_estimate(repo).variables
    {'t': 3}
    >>> zarr.open_array(repo.readonly_session("main").store, path="best/t", mode="r")[:]
    array([10., 20., 21.])
    """
    session = repository.writable_session(branch)
    root, place = group.strip("/"), _join(group.strip("/"), target.strip("/"))
    if place == root:
        raise InvalidInputError("the view needs a group of its own: target must not be empty")
    documents = _read_documents(session, root)
    axes = _Axes.read(session, documents, root, time, step)
    names = _choose_variables(documents, variables, axes)
    choices = {name: _choose(session, documents[name], _join(root, name), axes) for name in names}
    every = np.unique(np.concatenate([choice.valid for choice in choices.values()]))
    unit, valid = axes.encode(every)
    run_blocking(session.store.delete_dir(place))
    _write_document(session, place, {"zarr_format": 3, "node_type": "group", "attributes": {}})
    for name, document in documents.items():
        dims = document.get("dimension_names") or ()
        if name in choices:
            moved = _move(document, choices[name], every, axes)
            _write_document(session, _join(place, name), moved[0])
            set_table(session.state, _join(place, name), moved[1])
        elif time not in dims and step not in dims:
            # Latitudes, levels and the like: the same chunks.
            _write_document(session, _join(place, name), document)
            node = session.state.tree.array(f"/{_join(root, name)}")
            set_table(session.state, _join(place, name), run_blocking(session.state.chunk_table(node)))
    view = zarr.open_group(session.store, path=place, mode="r+")
    _write_coordinate(view, "valid_time", valid, {**axes.time_attributes, "units": unit, "standard_name": "time"})
    is_same = len({(c.valid.tobytes(), c.run.tobytes(), c.step.tobytes()) for c in choices.values()}) == 1
    for name, choice in [("", next(iter(choices.values())))] if is_same else choices.items():
        at, prefix = np.searchsorted(every, choice.valid), f"{name}_" if name else ""
        runs = _spread(axes.times[choice.run], at, len(every), NO_TIME)
        _write_coordinate(view, f"{prefix}reference_time", runs, axes.time_attributes)
        steps = _spread(axes.steps[choice.step].astype(np.float64), at, len(every), np.nan)
        _write_coordinate(view, f"{prefix}step", steps, axes.step_attributes)
    counts = {name: len(choice.valid) for name, choice in choices.items()}
    said = message or f"Best estimate of {len(counts)} variables for {len(every)} valid times"
    snapshot_id = session.commit(said, {"icefloe.best_estimate": {"group": f"/{root}", "target": f"/{place}"}})
    return BestEstimate(str(snapshot_id), counts, sum(len(choice.table) for choice in choices.values()))


@dataclass(frozen=True, slots=True)
class _Axes:
    """The reference times and the steps of a forecast."""

    time: str
    step: str
    times: npt.NDArray[Any]
    steps: npt.NDArray[Any]
    time_attributes: Mapping[str, Any]
    step_attributes: Mapping[str, Any]
    valid: npt.NDArray[np.int64]
    """int64[run, step]: nanoseconds since the reference time of the units."""
    unit: str

    @classmethod
    def read(
        cls, session: Session, documents: Mapping[str, Mapping[str, Any]], root: str, time: str, step: str
    ) -> _Axes:
        for name in (time, step):
            if name not in documents:
                raise NodeNotFoundError(f"/{root} has no coordinate {name!r}. It has {sorted(documents)}")
        values = [
            np.asarray(zarr.open_array(session.store, path=_join(root, name), mode="r")[...]) for name in (time, step)
        ]
        attributes = [dict(documents[name].get("attributes") or {}) for name in (time, step)]
        for each in attributes:
            each.pop("_FillValue", None)
        units, word = find_time_units(attributes[0]), str(attributes[1].get("units", "")).lower()
        if units is None:
            raise InvalidInputError(f"/{_join(root, time)} has no units such as `hours since 2020-01-01`")
        word = _ALIASES.get(word, word)
        if word not in _UNITS_NS:
            raise InvalidInputError(f"/{_join(root, step)} has the units {word!r}. Known: {', '.join(_UNITS_NS)}")
        parts = [whole_nanoseconds(v, unit) for v, unit in zip(values, (units.unit_ns, _UNITS_NS[word]), strict=True)]
        valid = parts[0][:, np.newaxis] + parts[1][np.newaxis, :]
        unit = str(attributes[0]["units"])
        return cls(time, step, values[0], values[1], attributes[0], attributes[1], valid, unit)

    def encode(self, valid: npt.NDArray[np.int64]) -> tuple[str, npt.NDArray[np.int64]]:
        """Units of which all valid times are whole multiples, and the times in these units."""
        own, _, since = self.unit.partition(" since ")
        own = _ALIASES.get(own.lower(), own.lower())
        for word in dict.fromkeys((own, *_UNITS_NS)):
            if word in _UNITS_NS and not (valid % _UNITS_NS[word]).any():
                return f"{word} since {since}", valid // _UNITS_NS[word]
        return f"nanoseconds since {since}", valid


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _read_documents(session: Session, root: str) -> dict[str, dict[str, Any]]:
    """The documents of the arrays of a group, by name."""
    found: dict[str, dict[str, Any]] = {}
    for path in list(session.state.tree.paths()):
        folder, _, name = path.strip("/").rpartition("/")
        content = run_blocking(session.state.fetch_document(path)) if folder == root and name else None
        document = None if content is None else parse_document(content, f"{path}/zarr.json")
        if document is not None and document["node_type"] == "array":
            found[name] = dict(document)
    return found


def _choose_variables(
    documents: Mapping[str, Mapping[str, Any]], asked: Sequence[str] | None, axes: _Axes
) -> list[str]:
    having = [
        name for name, each in documents.items() if {axes.time, axes.step} <= set(each.get("dimension_names") or ())
    ]
    for name in asked or ():
        if name not in having:
            raise NodeNotFoundError(
                f"no array {name!r} has the dimensions {axes.time} and {axes.step}. Those are {having}"
            )
    names = list(asked) if asked is not None else having
    if not names:
        raise NodeNotFoundError(f"no array has the dimensions {axes.time} and {axes.step}")
    return names


def _choose(session: Session, document: Mapping[str, Any], path: str, axes: _Axes) -> _Choice:
    """The newest run for every valid time that a variable has chunks for."""
    dims = list(document["dimension_names"])
    run_axis, step_axis = dims.index(axes.time), dims.index(axes.step)
    grid = parse_grid(document)
    if (grid[run_axis].longest, grid[step_axis].longest) != (1, 1):
        raise InvalidInputError(
            f"a chunk of /{path} has several runs or steps, so its reference cannot be part of a view. Rechunk it: "
            f"icefloe.spark.rechunk(spark, repo, {{{axes.time!r}: 1, {axes.step!r}: 1}})",
            path=path,
        )
    shaped = [c["name"] for c in document["codecs"] if not _is_shapeless(c["name"])]
    if shaped:
        raise InvalidInputError(f"the codec {shaped[0]} of /{path} depends on the shape of its chunks", path=path)
    node = session.state.tree.array(f"/{path}")
    table = run_blocking(session.state.chunk_table(node))
    runs, steps = (table.coords[:, axis].astype(np.int64) for axis in (run_axis, step_axis))
    inside = (runs < len(axes.times)) & (steps < len(axes.steps))
    pairs = np.unique(np.stack([runs[inside], steps[inside]], axis=1), axis=0)
    valid = axes.valid[pairs[:, 0], pairs[:, 1]]
    # The last row of each valid time is that of the newest run.
    order = np.lexsort((axes.valid[pairs[:, 0], 0], valid))
    pairs, valid = pairs[order], valid[order]
    is_last = np.append(valid[1:] != valid[:-1], np.ones(min(1, len(valid)), dtype=bool))
    pairs, valid = pairs[is_last], valid[is_last]
    width = max(1, len(axes.steps))
    kept = np.flatnonzero(inside & np.isin(runs * width + steps, pairs[:, 0] * width + pairs[:, 1]))
    return _Choice(valid, pairs[:, 0], pairs[:, 1], take(table, kept))


def _is_shapeless(codec: str) -> bool:
    return codec in _SHAPELESS or codec.startswith(("numcodecs.", "icefloe."))


def _move(
    document: Mapping[str, Any], choice: _Choice, every: npt.NDArray[np.int64], axes: _Axes
) -> tuple[dict[str, Any], ChunkTable]:
    """The document and the references of a variable of the view.

    Chunks have one run and one step, so their bytes are the same without these dimensions.
    """
    dims = list(document["dimension_names"])
    run_axis, step_axis = dims.index(axes.time), dims.index(axes.step)
    first = min(run_axis, step_axis)
    kept = [axis for axis in range(len(dims)) if axis not in (run_axis, step_axis)]

    def without(values: Sequence[Any], new: Any) -> list[Any]:
        rest = [values[axis] for axis in kept]
        return [*rest[:first], new, *rest[first:]]

    attributes = dict(document.get("attributes") or {})
    named = [n for n in str(attributes.pop("coordinates", "")).split() if n not in ("valid_time", axes.step, axes.time)]
    if named:
        attributes["coordinates"] = " ".join(named)
    changed = {
        **document,
        "shape": without(document["shape"], len(every)),
        "chunk_grid": grid_document(without(parse_grid(document), ChunkLengths(1))),
        "dimension_names": without(dims, "valid_time"),
        "attributes": attributes,
    }
    coords = choice.table.coords
    valid = axes.valid[coords[:, run_axis].astype(np.int64), coords[:, step_axis].astype(np.int64)]
    at = np.searchsorted(every, valid).astype(np.uint32)
    columns = without([coords[:, axis] for axis in range(len(dims))], at)
    moved = np.stack(columns, axis=1).astype(np.uint32)
    order = np.lexsort(moved.T[::-1])
    return changed, take(replace(choice.table, coords=moved), order)


def _write_document(session: Session, path: str, document: Mapping[str, Any]) -> None:
    SessionSink(session).write_documents({path: json.dumps(document).encode()})


def _write_coordinate(view: zarr.Group, name: str, values: npt.NDArray[Any], attributes: Mapping[str, Any]) -> None:
    given = dict(attributes)
    if name != "valid_time":
        given["_FillValue"] = fill_attribute(values.dtype.str, np.nan if values.dtype.kind == "f" else NO_TIME)
    chunks = (max(1, min(len(values), 1 << 13)),)
    fill = np.nan if values.dtype.kind == "f" else 0 if name == "valid_time" else NO_TIME
    view.create_array(
        name,
        shape=values.shape,
        chunks=chunks,
        dtype=values.dtype,
        fill_value=fill,
        attributes=given,
        dimension_names=["valid_time"],
        overwrite=True,
    )[...] = values


def _spread(values: npt.NDArray[Any], at: npt.NDArray[np.intp], length: int, missing: Any) -> npt.NDArray[Any]:
    """Values at their positions, and a missing value elsewhere."""
    is_float = values.dtype.kind == "f"
    result = np.full(length, np.nan if is_float else missing, dtype=np.float64 if is_float else np.int64)
    result[at] = values
    return result


# -- overviews -------------------------------------------------------------------------------------------------------


Method: TypeAlias = Literal["mean", "min", "max", "nearest"]
_RESAMPLING = {"mean": "average", "min": "min", "max": "max", "nearest": "nearest"}
"""The methods by GDAL's names, which the convention uses."""
PYRAMID_KEY = "icefloe_pyramid"
Regions: TypeAlias = npt.NDArray[np.int64]
"""Coordinates of chunks, int64[n, ndim]."""


@dataclass(frozen=True, slots=True)
class PyramidResult:
    """The result of `pyramid_local`.

    Attributes
    ----------
    snapshot_id
        The new snapshot. None if the levels were up to date.
    paths
        The paths of the levels.
    written
        The number of chunks that were computed.
    kept
        The number of chunks that did not change.

    Examples
    --------
    >>> PyramidResult(None, ("t_levels/1/t",), 0, 12).kept
    12
    """

    snapshot_id: str | None
    paths: tuple[str, ...]
    written: int
    kept: int


@dataclass(frozen=True, slots=True)
class _Base:
    """The array of which the levels are made."""

    path: str
    document: Mapping[str, Any]
    variable: SourceVariable
    levels: LevelGrids

    @property
    def axes(self) -> tuple[int, int]:
        """The dimensions that are halved."""
        return self.levels.axes


def pyramid_local(
    repository: Repository,
    array: str,
    levels: int,
    method: Method = "mean",
    *,
    dims: Sequence[str] | None = None,
    target: str | None = None,
    source: str | None = None,
    source_options: Mapping[str, Any] | None = None,
    branch: str = "main",
    message: str | None = None,
) -> PyramidResult:
    """Build the overviews of an array, or update them, with one commit.

    They are computed, or taken from the file that the array was ingested from.

    Parameters
    ----------
    repository
        The repository.
    array
        The path of the array.
    levels
        The number of levels.
    method
        How a cell is made of 2 × 2 cells: `mean`, `min` or `max` of those that are not missing, or `nearest`, which
        takes the first. Integers and packed numbers only have `nearest`.
    dims
        The two dimensions that are halved. None is the last two.
    target
        The group of the levels. None is the path of the array with `_levels`.
    source
        A cloud-optimised GeoTIFF that the array is equal to. The levels are its overviews, and `method` and `dims` are
        not used. They are referenced if the array consists of references, and copied otherwise.
    source_options
        Options of the storage of `source`, such as `endpoint_url` and `anonymous` of `s3_storage`.
    branch
        The branch.
    message
        The commit message.

    Returns
    -------
    PyramidResult
        The new snapshot, and how many chunks were computed and kept.

    Raises
    ------
    NodeNotFoundError
        The array does not exist.
    InvalidInputError
        The method does not fit the data type, or a dimension does not exist. Or the file has not enough overviews, or
        is not equal to the array.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> data = zarr.create_array(session.store, name="t", shape=(4, 4), dtype="f8", dimension_names=["y", "x"])
    >>> data[:] = np.arange(16.0).reshape(4, 4)
    >>> _ = session.commit("an array")
    >>> pyramid_local(repo, "t", 1).paths
    ('t_levels/1/t',)
    >>> zarr.open_array(repo.readonly_session("main").store, path="t_levels/1/t", mode="r")[:]
    array([[ 2.5,  4.5],
           [10.5, 12.5]])
    """
    session = repository.writable_session(branch)
    request = PyramidRequest(array, levels, method, dims, target)
    if source is not None:
        [file], access = expand_sources(source), choose_access(None, source_options, None)
        with open_source(access.describe(file.url), access) as opened:
            return _pyramid_of_source(repository, session, request, opened, message)
    plan = plan_pyramid(repository, session, request)
    if plan.is_empty:
        return PyramidResult(None, plan.paths, 0, plan.kept)
    begin_pyramid(session, plan)
    for work in plan.work(TASK_BYTES):
        write_levels(session, plan, work)
    return commit_pyramid(session, plan, message)


@dataclass(frozen=True, slots=True)
class PyramidRequest:
    """What to build: the arguments of `pyramid_local`."""

    array: str
    levels: int
    method: Method = "mean"
    dims: Sequence[str] | None = None
    target: str | None = None


Work: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Chunks to compute, as level and coordinates, in ascending order of levels."""
TASK_BYTES = 128 << 20
"""The approximate size of the cells that a task reads."""


@dataclass(frozen=True, slots=True)
class PyramidPlan:
    """The chunks of all levels that have to be computed."""

    base: _Base
    place: str
    about: Mapping[str, Any]
    is_new: bool
    """The levels are built from the beginning."""
    coords: tuple[Regions, ...]
    """The chunks to compute, by level."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the levels."""
        name = self.base.path.rpartition("/")[2]
        return tuple(f"{self.place}/{level}/{name}" for level in range(1, len(self.coords) + 1))

    @property
    def written(self) -> int:
        """The number of chunks to compute."""
        return sum(map(len, self.coords))

    @property
    def kept(self) -> int:
        """The number of chunks that stay."""
        levels = range(1, len(self.coords) + 1)
        return sum(math.prod(self.base.levels.counts(level)) for level in levels) - self.written

    @property
    def is_empty(self) -> bool:
        """Whether the levels are up to date."""
        return not self.is_new and not self.written

    def work(self, task_bytes: int) -> list[Work]:
        """Split the chunks into parts that share no chunk and need no chunk of one another.

        A chunk of a level consists of whole chunks of the level before it, because all levels have the same chunk
        lengths. Level 1 reads the array, which does not change. So the chunks of all levels below one chunk of the last
        level are one part.
        """
        parts: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        last = len(self.coords)
        for level, coords in enumerate(self.coords, 1):
            above = coords.copy()
            above[:, list(self.base.axes)] >>= last - level
            for each, top in zip(coords.tolist(), above.tolist(), strict=True):
                parts.setdefault(tuple(top), []).append((level, tuple(each)))
        chunk_bytes = 4 * math.prod(self.base.variable.chunks) * np.dtype(self.base.variable.dtype).itemsize
        found: list[list[tuple[int, tuple[int, ...]]]] = []
        size = task_bytes
        for part in parts.values():
            if size + len(part) * chunk_bytes > task_bytes:
                found.append([])
                size = 0
            found[-1] += part
            size += len(part) * chunk_bytes
        return [tuple(sorted(part)) for part in found]


def plan_pyramid(repository: Repository, session: Session, request: PyramidRequest) -> PyramidPlan:
    """Find the chunks of the levels that have to be computed."""
    if request.method not in _RESAMPLING or request.levels < 1:
        raise InvalidInputError(f"expected at least one level and a method of {', '.join(_RESAMPLING)}")
    base = _read_base(session, request.array.strip("/"), request.method, request.dims)
    place = (request.target or f"{base.path}_levels").strip("/")
    about = {
        "array": f"/{base.path}",
        "method": request.method,
        "levels": request.levels,
        "axes": list(base.axes),
    }
    changed = _find_changed(repository, session, base, place, about)
    coords = tuple(
        all_coords(base.levels.counts(level)).astype(np.int64) if changed is None else base.levels.above(changed, level)
        for level in range(1, request.levels + 1)
    )
    return PyramidPlan(base, place, about, changed is None, coords)


def begin_pyramid(session: Session, plan: PyramidPlan) -> None:
    """Write the groups, arrays and coordinates of the levels."""
    if plan.is_new:
        run_blocking(session.store.delete_dir(plan.place))
    _write_metadata(session, plan.base, plan.place, plan.about, session.snapshot_id)


def write_levels(session: Session, plan: PyramidPlan, work: Work) -> None:
    """Compute chunks of the levels. Chunks of lower levels come first."""
    base, paths = plan.base, (plan.base.path, *plan.paths)
    arrays: dict[int, Any] = {}
    for level, coords in work:
        for each in (level - 1, level):
            if each not in arrays:
                arrays[each] = zarr.open_array(session.store, path=paths[each], mode="r+" if each else "r")
        region = base.levels.region(level, coords)
        finer = tuple(
            slice(2 * part.start, min(2 * part.stop, n)) if axis in base.axes else part
            for axis, (part, n) in enumerate(zip(region, base.levels.shape(level - 1), strict=True))
        )
        values = np.asarray(arrays[level - 1][finer])
        arrays[level][region] = halve(
            values, base.axes, str(plan.about["method"]), base.variable.attributes, base.variable.dtype
        )


def commit_pyramid(session: Session, plan: PyramidPlan, message: str | None) -> PyramidResult:
    """Commit the levels."""
    said = message or f"Overviews of /{plan.base.path}: {plan.written} chunks in {len(plan.paths)} levels"
    facts = {**plan.about, "target": f"/{plan.place}", "written": plan.written, "kept": plan.kept}
    snapshot_id = session.commit(said, {"icefloe.pyramid": facts})
    return PyramidResult(str(snapshot_id), plan.paths, plan.written, plan.kept)


def _read_base(session: Session, path: str, method: Method, dims: Sequence[str] | None) -> _Base:
    content = run_blocking(session.state.fetch_document(f"/{path}"))
    document = None if content is None else parse_document(content, f"{path}/zarr.json")
    if document is None or document["node_type"] != "array":
        raise NodeNotFoundError(f"there is no array /{path}")
    check_grid(path, document)
    variable = ExistingArray(path, document).variable()
    names = list(document.get("dimension_names") or [])
    if dims is None:
        axes = [len(variable.shape) - 2, len(variable.shape) - 1]
    else:
        unknown = [d for d in dims if d not in names]
        if unknown or len(set(dims)) != 2:
            raise InvalidInputError(f"/{path} has the dimensions {names}. Give two of them, not {list(dims)}")
        axes = sorted(names.index(d) for d in dims)
    if axes[0] < 0:
        raise InvalidInputError(f"/{path} has fewer than two dimensions")
    is_float = variable.dtype != "string" and np.dtype(variable.dtype).kind == "f"
    if method != "nearest" and not (is_float and packing_of(variable.attributes, variable.dtype).is_plain):
        raise InvalidInputError(
            f"/{path} has {variable.dtype} values that are not plain floats. Their {method} is not defined: use "
            "method='nearest'"
        )
    grid = tuple(
        ChunkLengths(chunk) if each.is_regular else each
        for each, chunk in zip(parse_grid(document), variable.chunks, strict=True)
    )
    return _Base(path, document, variable, LevelGrids(variable.shape, grid, (axes[0], axes[1])))


def _find_changed(
    repository: Repository, session: Session, base: _Base, place: str, about: Mapping[str, Any]
) -> Regions | None:
    """The chunks of the array that changed since the levels were built. None if everything has to be built."""
    content = run_blocking(session.state.fetch_document(f"/{place}"))
    if content is None:
        return None
    known = (parse_document(content, f"{place}/zarr.json").get("attributes") or {}).get(PYRAMID_KEY)
    if not isinstance(known, Mapping) or {k: known.get(k) for k in about} != dict(about):
        return None
    stored, lengths = known.get("document"), known.get("shape")
    ours = {k: v for k, v in base.document.items() if k not in ("shape", "chunk_grid")}
    theirs = json.loads(stored) if isinstance(stored, str) else {}
    grid_before = theirs.pop("chunk_grid", None)
    if grid_before is None or theirs != json.loads(json.dumps(ours)):
        return None
    if not isinstance(lengths, list) or any(lengths[axis] != base.variable.shape[axis] for axis in base.axes):
        return None
    if any(old > new for old, new in zip(lengths, base.variable.shape, strict=True)):
        return None
    first_new = base.levels.first_new(parse_grid({"chunk_grid": grid_before}), lengths)
    if first_new is None:
        return None
    try:
        diff = repository.diff(from_snapshot_id=str(known.get("snapshot_id")), to_snapshot_id=str(session.snapshot_id))
    except IcefloeError:
        # The snapshot has expired, or is not one of this branch.
        return None
    path = f"/{base.path}"
    replaced = {*diff.new_arrays, *diff.deleted_arrays, *(each for pair in diff.moved_nodes for each in pair)}
    if any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in replaced):
        return None
    found = diff.chunk_coords.get(path)
    coords = np.zeros((0, len(lengths)), dtype=np.int64) if found is None else np.asarray(found, dtype=np.int64)
    grid = np.array(base.levels.counts(0), dtype=np.int64)
    coords = coords.reshape(-1, len(lengths))
    if any(first < n for first, n in zip(first_new, base.levels.counts(0), strict=True)):
        every = all_coords(base.levels.counts(0)).astype(np.int64)
        coords = np.concatenate([coords, every[(every >= np.array(first_new)).any(axis=1)]])
    if lengths != list(base.variable.shape) and not len(coords):
        # It only grew: the levels grow too, at the last chunk.
        coords = (grid - 1).reshape(1, -1)
    return coords[(coords < grid).all(axis=1)]


def _write_metadata(session: Session, base: _Base, place: str, about: Mapping[str, Any], snapshot_id: str) -> None:
    """The groups and arrays of the levels, their coordinates, and the attribute of the convention."""
    levels, name = int(about["levels"]), base.path.rpartition("/")[2]
    folder, dims = base.path.rpartition("/")[0], list(base.document.get("dimension_names") or [])
    method = _RESAMPLING.get(str(about["method"]))
    up = "../" * (place.count("/") + 1)
    layout: list[dict[str, Any]] = [{"asset": f"{up}{base.path}", "transform": {"scale": [1.0, 1.0]}}]
    for level in range(1, levels + 1):
        # The centre of the first cell of a level lies between those of its 2 ** level cells.
        scale, shift = float(1 << level), ((1 << level) - 1) / 2
        transform = {"scale": [scale, scale], "translation": [shift, shift]}
        layout.append({"asset": f"{level}/{name}", "derived_from": layout[-1]["asset"], "transform": transform})
    document = json.dumps({k: v for k, v in base.document.items() if k != "shape"})
    record = {**about, "snapshot_id": str(snapshot_id), "shape": list(base.variable.shape), "document": document}
    # The overviews of a file do not tell how they were made.
    multiscales = {"layout": layout, **({} if method is None else {"resampling_method": method})}
    attributes = {"multiscales": multiscales, PYRAMID_KEY: record}
    _write_document(session, place, {"zarr_format": 3, "node_type": "group", "attributes": attributes})
    for level in range(1, levels + 1):
        own = {**base.document, "shape": list(base.levels.shape(level))}
        if not base.levels.is_regular:
            own["chunk_grid"] = grid_document(base.levels.chunks(level))
        _write_document(session, f"{place}/{level}", {"zarr_format": 3, "node_type": "group", "attributes": {}})
        _write_document(session, f"{place}/{level}/{name}", own)
        view = zarr.open_group(session.store, path=f"{place}/{level}", mode="r+")
        for axis, dim in enumerate(dims):
            text = run_blocking(session.state.fetch_document(f"/{folder}/{dim}" if folder else f"/{dim}"))
            found = None if text is None else parse_document(text, f"{dim}/zarr.json")
            if found is None or found["node_type"] != "array" or list(found["shape"]) != [base.variable.shape[axis]]:
                continue
            array = zarr.open_array(session.store, path=f"{folder}/{dim}" if folder else dim, mode="r")
            values = np.asarray(array[...])
            if values.dtype.kind not in "iufM":
                continue
            if axis in base.axes:
                if values.dtype.kind != "f":
                    values = values.astype(np.float64)
                values = _centres(values, level)
            view.create_array(
                dim,
                shape=values.shape,
                chunks=(max(1, min(len(values), 1 << 13)),),
                dtype=values.dtype,
                attributes=dict(found.get("attributes") or {}),
                dimension_names=[dim],
                overwrite=True,
            )[...] = values


def _centres(values: npt.NDArray[Any], level: int) -> npt.NDArray[Any]:
    """The centres of the cells of a level. The last cell may have fewer cells."""
    size = 1 << level
    starts = np.arange(0, len(values), size)
    counts = np.minimum(size, len(values) - starts)
    return (np.add.reduceat(values.astype(np.float64), starts) / counts).astype(values.dtype) if len(values) else values


def _pyramid_of_source(
    repository: Repository, session: Session, request: PyramidRequest, source: OpenSource, message: str | None
) -> PyramidResult:
    """Build levels that are the overviews of a file."""
    base = _read_base(session, request.array.strip("/"), "nearest", None)
    variable, overviews = _find_image(source, base)
    if not 1 <= request.levels <= len(overviews):
        raise InvalidInputError(
            f"{source.file.url} has {len(overviews)} overviews, and {request.levels} were asked for"
        )
    halved = [axis for axis, (n, m) in enumerate(zip(variable.shape, overviews[0].shape, strict=True)) if n != m]
    if len(halved) != 2:
        raise InvalidInputError(f"the first overview of {source.file.url} is not smaller along two dimensions")
    base = replace(base, levels=replace(base.levels, axes=(halved[0], halved[1])))
    for level, overview in enumerate(overviews[: request.levels], 1):
        if overview.shape != base.levels.shape(level):
            raise InvalidInputError(
                f"overview {level} of {source.file.url} has the shape {overview.shape}, expected "
                f"{base.levels.shape(level)}: every level has half as many cells as the one before it"
            )
    place = (request.target or f"{base.path}_levels").strip("/")
    about = {
        "array": f"/{base.path}",
        "method": "source",
        "levels": request.levels,
        "axes": list(base.axes),
        "source": [str(each) for each in version_of(source.file)],
    }
    changed = _find_changed(repository, session, base, place, about)
    nothing = np.zeros((0, len(variable.shape)), dtype=np.int64)
    plan = PyramidPlan(base, place, about, changed is None or bool(len(changed)), (nothing,) * request.levels)
    if plan.is_empty:
        return PyramidResult(None, plan.paths, 0, plan.kept)
    is_virtual = _check_image(session, base, source, variable)
    begin_pyramid(session, plan)
    counts = [
        _write_overview(session, base, path, source, overview, by_reference=is_virtual)
        for path, overview in zip(plan.paths, overviews, strict=False)
    ]
    said = message or f"Overviews of /{base.path} from {source.file.name}: {request.levels} levels"
    facts = {**about, "target": f"/{place}", "written": sum(counts)}
    return PyramidResult(str(session.commit(said, {"icefloe.pyramid": facts})), plan.paths, sum(counts), 0)


def _find_image(source: OpenSource, base: _Base) -> tuple[SourceVariable, Sequence[SourceVariable]]:
    """The variable of a file that an array is equal to, and its overviews."""
    found = source.schema().variables
    images = [name for name in found if source.overviews(name)]
    name = base.path.rpartition("/")[2]
    chosen = name if name in images else images[0] if len(images) == 1 else None
    if chosen is None:
        raise InvalidInputError(f"{source.file.url} has overviews of {images or 'nothing'}, not of {name!r}")
    own, theirs = base.variable, found[chosen]
    if own.shape != theirs.shape or own.dtype.lstrip("<>|") != theirs.dtype.lstrip("<>|"):
        raise InvalidInputError(
            f"/{base.path} has the shape {own.shape} and the type {own.dtype}, but {chosen} of {source.file.url} has "
            f"{theirs.shape} and {theirs.dtype}"
        )
    return theirs, source.overviews(chosen)


def _check_image(session: Session, base: _Base, source: OpenSource, variable: SourceVariable) -> bool:
    """Check that an array is equal to the image of a file. Return whether it consists of references to the file."""
    node = session.state.tree.array(f"/{base.path}")
    table = run_blocking(session.state.chunk_table(node))
    if variable.not_virtual is None and base.levels.grid == as_lengths(variable.chunks) and len(table):
        theirs = source.references(variable)
        own = {session.state.context.containers.absolute(str(each)) for each in table.locations}
        is_same = bool((table.kind == ChunkKind.VIRTUAL).all()) and not len(theirs.by_value)
        is_same = is_same and own == {source.file.url} and len(table) == len(theirs.table)
        columns = ("coords", "offset", "length")
        if is_same and all(np.array_equal(getattr(table, c), getattr(theirs.table, c)) for c in columns):
            return True
    array = zarr.open_array(session.store, path=base.path, mode="r")
    for coords in all_coords(base.levels.counts(0)).tolist():
        region = base.levels.region(0, coords)
        ours, theirs_values = np.asarray(array[region]), source.values(variable, region)
        if not np.array_equal(ours, theirs_values, equal_nan=ours.dtype.kind in "fc"):
            raise InvalidInputError(
                f"/{base.path} is not equal to {variable.path} of {source.file.url} in chunk {tuple(coords)}. Build "
                "the levels without source, which computes them"
            )
    return bool((table.kind == ChunkKind.VIRTUAL).any())


def _write_overview(
    session: Session, base: _Base, path: str, source: OpenSource, overview: SourceVariable, *, by_reference: bool
) -> int:
    """Write a level, by reference if that is possible. Return the number of its chunks."""
    sink, chunks = SessionSink(session), base.levels.chunks(1)
    coords = all_coords(tuple(each.count(n) for each, n in zip(chunks, overview.shape, strict=True)))
    count = 0
    if by_reference and overview.not_virtual is None:
        chunks = as_lengths(overview.chunks)
        document = array_document(
            shape=overview.shape,
            dtype=overview.dtype,
            chunks=overview.chunks,
            codecs=overview.codecs,
            fill_value=overview.fill_value,
            attributes=base.document.get("attributes") or {},
            dims=base.document.get("dimension_names"),
        )
        sink.write_documents({path: document})
        references = source.references(overview)
        sink.write_table(path, references.table)
        coords, count = references.by_value, len(references.table)
    for each in coords.tolist():
        found = zip(each, chunks, overview.shape, strict=True)
        region = tuple(slice(own.start(i), min(own.start(i + 1), n)) for i, own, n in found)
        sink.write_block(path, region, source.values(overview, region))
    return count + len(coords)
