"""Overviews of large arrays.

Level 1 has half as many cells as the array along two dimensions, level 2 half as many as level 1. A cell is made of
2 × 2 cells of the level before it. The levels are arrays in groups of their own: `TARGET/1/NAME`, `TARGET/2/NAME`. The
group `TARGET` has the attribute `multiscales` of the Zarr convention that GeoZarr uses. If the array has changed, only
the chunks of the levels that depend on changed chunks are computed again. The levels of a cloud-optimised GeoTIFF can
also be its own overviews.

The chunks of a level have one length along the two dimensions, the longest of the array. Along the others they have the
lengths of the array, so a chunk of a level depends on one chunk of the array along them.
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
from icefloe.ingest.cf import halve, packing_of
from icefloe.ingest.chunk_grids import ChunkRegion, all_coords
from icefloe.ingest.local_ingest import SessionSink
from icefloe.ingest.parsers.registry import OpenSource, open_source
from icefloe.ingest.placement import ExistingArray
from icefloe.ingest.source_model import SourceVariable
from icefloe.ingest.sources import expand_sources
from icefloe.ingest.zarr_documents import array_document
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.zarr_document import ChunkLengths, as_lengths, grid_document, parse_document, parse_grid
from icefloe.repository import Repository
from icefloe.session.session import Session

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
    axes: tuple[int, int]
    """The dimensions that are halved."""
    grid: tuple[ChunkLengths, ...]

    @property
    def is_regular(self) -> bool:
        return all(each.is_regular for each in self.grid)

    def shape(self, level: int) -> tuple[int, ...]:
        return tuple(-(-n // (1 << level)) if axis in self.axes else n for axis, n in enumerate(self.variable.shape))

    def chunks(self, level: int) -> tuple[ChunkLengths, ...]:
        """The chunk lengths of a level. Level 0 is the array."""
        if not level:
            return self.grid
        longest = as_lengths(self.variable.chunks)
        return tuple(longest[axis] if axis in self.axes else each for axis, each in enumerate(self.grid))

    def counts(self, level: int) -> tuple[int, ...]:
        """The number of chunks of a level along each dimension."""
        return tuple(each.count(n) for each, n in zip(self.chunks(level), self.shape(level), strict=True))

    def region(self, level: int, coords: Sequence[int]) -> ChunkRegion:
        """The cells of a chunk of a level."""
        found = zip(coords, self.chunks(level), self.shape(level), strict=True)
        return tuple(slice(each.start(i), min(each.start(i + 1), n)) for i, each, n in found)

    def above(self, changed: Regions, level: int) -> Regions:
        """The chunks of a level that depend on chunks of the array."""
        first, last = changed.copy(), changed.copy()
        for axis in self.axes:
            length, n = self.variable.chunks[axis], self.variable.shape[axis]
            bounds = np.append(self.grid[axis].starts(n), n)
            first[:, axis] = (bounds[changed[:, axis]] >> level) // length
            last[:, axis] = ((bounds[changed[:, axis] + 1] - 1) >> level) // length
        if not len(changed):
            return changed
        # In a variable grid, the cells of a chunk can be in several chunks of the level.
        steps = all_coords(((last - first).max(axis=0) + 1).tolist()).astype(np.int64)
        every = (first[:, np.newaxis] + steps).reshape(-1, changed.shape[1])
        return np.unique(every[(every <= np.repeat(last, len(steps), axis=0)).all(axis=1)], axis=0)


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
        return sum(math.prod(self.base.counts(level)) for level in levels) - self.written

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
        all_coords(base.counts(level)).astype(np.int64) if changed is None else base.above(changed, level)
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
        region = base.region(level, coords)
        finer = tuple(
            slice(2 * part.start, min(2 * part.stop, n)) if axis in base.axes else part
            for axis, (part, n) in enumerate(zip(region, base.shape(level - 1), strict=True))
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
    return _Base(path, document, variable, (axes[0], axes[1]), grid)


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
    first_new = _find_new_chunks(base, parse_grid({"chunk_grid": grid_before}), lengths)
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
    grid = np.array(base.counts(0), dtype=np.int64)
    coords = coords.reshape(-1, len(lengths))
    if any(first < n for first, n in zip(first_new, base.counts(0), strict=True)):
        every = all_coords(base.counts(0)).astype(np.int64)
        coords = np.concatenate([coords, every[(every >= np.array(first_new)).any(axis=1)]])
    if lengths != list(base.variable.shape) and not len(coords):
        # It only grew: the levels grow too, at the last chunk.
        coords = (grid - 1).reshape(1, -1)
    return coords[(coords < grid).all(axis=1)]


def _find_new_chunks(base: _Base, before: Sequence[ChunkLengths], shape: Sequence[int]) -> list[int] | None:
    """The first chunk along each dimension that has other cells than before. None if everything has to be built."""
    found = []
    for axis, (old, new, n, count) in enumerate(zip(before, base.grid, shape, base.counts(0), strict=True)):
        found.append(count)
        if old == new:
            continue
        was, now = old.of(n), new.of(n)
        differ = [index for index, pair in enumerate(zip(was, now, strict=False)) if pair[0] != pair[1]]
        if (differ and axis in base.axes) or len(now) < len(was) or old.is_regular != new.is_regular:
            return None
        if differ:
            found[-1] = differ[0]
    return found


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
        own = {**base.document, "shape": list(base.shape(level))}
        if not base.is_regular:
            own["chunk_grid"] = grid_document(base.chunks(level))
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


def _write_document(session: Session, path: str, document: Mapping[str, Any]) -> None:
    SessionSink(session).write_documents({path: json.dumps(document).encode()})


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
    base = replace(base, axes=(halved[0], halved[1]))
    for level, overview in enumerate(overviews[: request.levels], 1):
        if overview.shape != base.shape(level):
            raise InvalidInputError(
                f"overview {level} of {source.file.url} has the shape {overview.shape}, expected {base.shape(level)}: "
                "every level has half as many cells as the one before it"
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
    if variable.not_virtual is None and base.grid == as_lengths(variable.chunks) and len(table):
        theirs = source.references(variable)
        own = {session.state.context.containers.absolute(str(each)) for each in table.locations}
        is_same = bool((table.kind == ChunkKind.VIRTUAL).all()) and not len(theirs.by_value)
        is_same = is_same and own == {source.file.url} and len(table) == len(theirs.table)
        columns = ("coords", "offset", "length")
        if is_same and all(np.array_equal(getattr(table, c), getattr(theirs.table, c)) for c in columns):
            return True
    array = zarr.open_array(session.store, path=base.path, mode="r")
    for coords in all_coords(base.counts(0)).tolist():
        region = base.region(0, coords)
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
    sink, chunks = SessionSink(session), base.chunks(1)
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
