"""Copy snapshots to another repository, rechunk arrays, and build overviews of arrays."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from pyspark.sql import SparkSession

from icefloe.blocking import run_blocking
from icefloe.codec_pipeline import check_grid
from icefloe.errors import AlreadyExistsError, InvalidInputError, NodeNotFoundError
from icefloe.ingest.derived_arrays import (
    Method,
    PyramidPlan,
    PyramidRequest,
    PyramidResult,
    Work,
    begin_pyramid,
    commit_pyramid,
    plan_pyramid,
    pyramid_local,
    write_levels,
)
from icefloe.ingest.local_ingest import SessionSink
from icefloe.model.chunk_table import Coords
from icefloe.model.snapshot import ArrayNode
from icefloe.model.zarr_document import ChunkLengths, grid_document, parse_grid
from icefloe.session.rebase import ConflictDetector
from icefloe.session.session import ForkSession, Session
from icefloe.session.session_state import SessionState
from icefloe.spark.jobs import (
    Bounds,
    JobOutcome,
    Source,
    Target,
    existing_repository,
    open_source_and_target,
    parse_bounds,
    unknown_name,
)
from icefloe.spark.map_blocks import TASK_BYTES
from icefloe.spark.tasks import OpenFork, WriteJob, link, write_with_tasks
from icefloe.storage.contract import Buffer

Box = tuple[tuple[int, int], ...]
"""[first, end) chunk coordinates of the target, by dimension."""


@dataclass(frozen=True, slots=True)
class CopySelection:
    """What is copied: a group, its variables, a region by dimension, and optional new chunks."""

    group: str = ""
    variables: tuple[str, ...] | None = None
    region: Bounds | None = None
    chunks: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ArrayCopy:
    """The copy of one array. Chunks that keep their cells are copied without decoding."""

    source: str
    target: str
    document: bytes
    start: tuple[int, ...]
    shape: tuple[int, ...]
    chunks: tuple[ChunkLengths, ...]
    """The chunks of the target."""
    shift: tuple[int, ...]
    """How many chunks of the source come before the first copied one."""
    stored: Box
    """The chunks of the target that have the same cells and codecs as a chunk of the source."""

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks of the target, by dimension."""
        return tuple(each.count(n) for each, n in zip(self.chunks, self.shape, strict=True))

    @property
    def as_stored(self) -> bool:
        """Whether no chunk is decoded."""
        return self.keeps(tuple((0, n) for n in self.grid))

    def keeps(self, box: Box) -> bool:
        """Whether the chunks of a box are copied without decoding."""
        return all(low <= first and end <= high for (first, end), (low, high) in zip(box, self.stored, strict=True))

    def cells(self, box: Box) -> tuple[slice, ...]:
        """Return the cells of the target in a box."""
        bounds = zip(box, self.chunks, self.shape, strict=True)
        return tuple(slice(each.start(first), min(each.start(end), n)) for (first, end), each, n in bounds)

    def source_cells(self, box: Box) -> tuple[slice, ...]:
        """Return the cells of the source for a box."""
        return tuple(slice(c.start + s, c.stop + s) for c, s in zip(self.cells(box), self.start, strict=True))

    def boxes(self, chunks_per_box: int) -> list[Box]:
        """Return boxes that cover the grid. Each is copied without decoding, or by value."""
        parts = []
        for count, (low, high) in zip(self.grid, self.stored, strict=True):
            bounds = [0, low, high, count] if high > low else [0, count]
            parts.append([(first, end) for first, end in itertools.pairwise(bounds) if end > first])
        found: list[Box] = []
        for outer in itertools.product(*parts):
            inner = cut_grid([end - first for first, end in outer], chunks_per_box)
            found += [tuple((f + a, f + b) for (f, _), (a, b) in zip(outer, box, strict=True)) for box in inner]
        return found


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Chunks of one array."""

    array: ArrayCopy
    box: Box

    @property
    def as_stored(self) -> bool:
        """Whether the chunks are copied without decoding."""
        return self.array.keeps(self.box)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Documents by path below the target's root, and the tasks."""

    groups: Mapping[str, bytes]
    arrays: tuple[ArrayCopy, ...]
    tasks: tuple[CopyTask, ...]
    bytes: int


def plan_copy(session: Session, selection: CopySelection, target_group: str, task_bytes: int) -> CopyPlan:
    """Read the documents and plan the copy."""
    root = "/" + selection.group.strip("/")
    nodes = session.state.tree.subtree(root)
    if not nodes:
        raise NodeNotFoundError(f"there is no group {root} in snapshot {session.snapshot_id}", path=root)
    documents = {node.path: run_blocking(session.state.fetch_document(node.path)) or b"" for node in nodes}
    arrays = [node for node in nodes if isinstance(node, ArrayNode)]
    chosen = _choose(arrays, selection.variables, root)
    _check_names(chosen, selection)
    copies, tasks, size = [], [], 0
    for node in chosen:
        copy = _plan_array(node, documents[node.path], selection, _moved(node.path, root, target_group))
        itemsize = _itemsize(json.loads(copy.document))
        copies.append(copy)
        size += math.prod(copy.shape) * itemsize
        unit = math.prod(each.longest for each in copy.chunks) * itemsize
        tasks += [CopyTask(copy, box) for box in copy.boxes(max(1, task_bytes // max(1, unit)))]
        if not copy.as_stored:
            check_grid(node.path.strip("/"), json.loads(documents[node.path]))
            check_grid(copy.target, json.loads(copy.document))
    groups = {
        _moved(node.path, root, target_group): documents[node.path]
        for node in nodes
        if not isinstance(node, ArrayNode) and any(_is_below(copy.path, node.path) for copy in chosen)
    }
    return CopyPlan(groups, tuple(copies), tuple(tasks), size)


def _is_below(path: str, group: str) -> bool:
    return group == "/" or path.startswith(group + "/")


def _moved(path: str, root: str, target_group: str) -> str:
    inside = path[len(root) :].strip("/") if root != "/" else path.strip("/")
    return "/".join(part for part in (target_group.strip("/"), inside) if part)


def _choose(arrays: Sequence[ArrayNode], names: Sequence[str] | None, root: str) -> list[ArrayNode]:
    """Return the requested arrays and the coordinates of their dimensions."""
    if names is None:
        return list(arrays)
    inside = {node.path[len(root) :].strip("/") if root != "/" else node.path.strip("/"): node for node in arrays}
    missing = [name for name in names if name not in inside]
    if missing:
        raise NodeNotFoundError(str(unknown_name("array", missing[0], sorted(inside), option=root)))
    wanted = dict.fromkeys(names)
    for name in names:
        folder = name.rpartition("/")[0]
        for dim in inside[name].dimension_names or ():
            label = f"{folder}/{dim}" if folder else str(dim)
            if dim is not None and label in inside:
                wanted.setdefault(label)
    return [inside[name] for name in wanted]


def _check_names(arrays: Sequence[ArrayNode], selection: CopySelection) -> None:
    known = {dim for node in arrays for dim in node.dimension_names or () if dim is not None}
    for what, asked in (("region", selection.region), ("chunks", selection.chunks)):
        unknown = sorted(set(asked or {}) - known)
        if unknown:
            raise unknown_name("dimension", unknown[0], sorted(known), option=what)


def _plan_array(node: ArrayNode, document: bytes, selection: CopySelection, target: str) -> ArrayCopy:
    parsed: dict[str, Any] = json.loads(document)
    grid = parse_grid(parsed)
    dims = [name if name is not None else f"dim_{axis}" for axis, name in enumerate(node.dimension_names or ())]
    dims = dims or [f"dim_{axis}" for axis in range(len(node.shape))]
    sizes = dict(zip(dims, node.shape, strict=True))
    bounds = parse_bounds({d: b for d, b in (selection.region or {}).items() if d in sizes}, sizes)
    axes = [
        _plan_axis(d, lengths, sizes[d], bounds.get(d, slice(0, sizes[d])), selection)
        for d, lengths in zip(dims, grid, strict=True)
    ]
    shape, wanted = tuple(axis.size for axis in axes), tuple(axis.chunks for axis in axes)
    changes = wanted != grid
    parsed["shape"] = list(shape)
    codecs = parsed["codecs"]
    if changes:
        parsed["chunk_grid"] = grid_document(wanted)
    if not all(axis.keeps_lengths for axis in axes):
        parsed["codecs"] = _without_shards(codecs)
    text = json.dumps(parsed, indent=2).encode() if changes or shape != node.shape else document
    stored = tuple(axis.stored if parsed["codecs"] == codecs else (0, 0) for axis in axes)
    start, shift = tuple(axis.start for axis in axes), tuple(axis.shift for axis in axes)
    return ArrayCopy(node.path, target, text, start, shape, wanted, shift, stored)


@dataclass(frozen=True, slots=True)
class _AxisCopy:
    """The copy of an array along one dimension."""

    start: int
    size: int
    chunks: ChunkLengths
    shift: int
    stored: tuple[int, int]
    keeps_lengths: bool
    """Whether all lengths are lengths of the source, so that shards can be divided as before."""


def _plan_axis(dim: str, lengths: ChunkLengths, size: int, part: slice, selection: CopySelection) -> _AxisCopy:
    """Find the chunks of the target, and which of them have the cells of a chunk of the source.

    A part of a variable grid keeps its bounds between chunks, so only the chunks at both ends can be shorter.
    """
    asked = (selection.chunks or {}).get(dim)
    start, end = part.start, part.stop
    # The last chunk can be longer than the array.
    full = max(end, lengths.start(lengths.count(size))) if end == size else end
    if asked is not None:
        chunks = ChunkLengths(_chunk(dim, asked, end - start))
    elif lengths.is_regular or (start, end) == (0, size):
        chunks = lengths
    else:
        chunks = lengths.part(start, full)
    shift, count = lengths.index(start), chunks.count(end - start)
    first = chunks.starts(end - start)
    numbers = np.arange(count, dtype=np.int64)
    own = chunks.lengths(numbers)
    # The target can have more chunks than the source.
    theirs = np.full(count, -1, dtype=np.int64)
    found = lengths.starts(size)[shift : shift + count]
    theirs[: len(found)] = found
    is_same = (first + start == theirs) & (own == lengths.lengths(numbers + shift)) & (first + own + start <= full)
    runs = np.split(numbers[is_same], np.flatnonzero(np.diff(numbers[is_same]) != 1) + 1)
    longest = max(runs, key=len)
    stored = (int(longest[0]), int(longest[-1]) + 1) if len(longest) else (0, 0)
    known = {lengths.each} if isinstance(lengths.each, int) else set(lengths.each)
    new = {chunks.each} if isinstance(chunks.each, int) else set(chunks.each)
    return _AxisCopy(start, end - start, chunks, shift, stored, new <= known)


def _chunk(dim: str, asked: int, size: int) -> int:
    if asked < 1 and asked != -1:
        raise InvalidInputError(
            f"the chunk length along {dim} is {asked}, expected at least 1, or -1 for the whole dimension"
        )
    return max(1, size) if asked == -1 else asked


def _without_shards(codecs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Replace shards by their inner codecs, because shards do not divide the new grid evenly."""
    found: list[Mapping[str, Any]] = []
    for codec in codecs:
        found += codec["configuration"]["codecs"] if codec["name"] == "sharding_indexed" else [codec]
    return found


def _itemsize(document: Mapping[str, Any]) -> int:
    kind = document["data_type"]
    try:
        return np.dtype(kind).itemsize if isinstance(kind, str) else 8
    except TypeError:
        return 16


def cut_grid(grid: Sequence[int], chunks_per_box: int) -> list[Box]:
    """Return boxes with a limited number of chunks that cover a grid, as long as possible along the last dimensions."""
    steps = [1] * len(grid)
    room = chunks_per_box
    for axis in reversed(range(len(grid))):
        steps[axis] = max(1, min(grid[axis], room))
        room = max(1, room // steps[axis])
        if steps[axis] < grid[axis]:
            break
    ranges = [[(low, min(low + step, n)) for low in range(0, n, step)] for n, step in zip(grid, steps, strict=True)]
    return list(itertools.product(*ranges))


_AT_ONCE = 32
"""The number of chunks of a task that are in flight at the same time."""


@dataclass(frozen=True, slots=True)
class _CopyWork:
    source: Session

    def __call__(self, open_fork: OpenFork, task: CopyTask) -> tuple[ForkSession, None]:
        fork = open_fork()
        array = task.array
        if task.as_stored:
            run_blocking(self._copy_chunks(fork.state, task))
        else:
            target = zarr.open_array(fork.store, path=array.target, mode="r+", zarr_format=3)
            target[array.cells(task.box) or ...] = read_cells(self.source, array, task.box)
        return fork, None

    async def _copy_chunks(self, target: SessionState, task: CopyTask) -> None:
        node = target.tree.array("/" + task.array.target)
        for batch in await list_chunks(self.source, task.array, task.box):
            found = await fetch_chunks(self.source, task.array, batch)
            for coords, data in zip(batch, found, strict=True):
                await target.write_chunk(node, coords, data)


def read_cells(source: Session, array: ArrayCopy, box: Box) -> Any:
    """Read the values for a box of the target."""
    return zarr.open_array(source.store, path=array.source.strip("/"), mode="r")[array.source_cells(box) or ...]


async def list_chunks(source: Session, array: ArrayCopy, box: Box) -> list[list[Coords]]:
    """Yield the target coordinates of the existing chunks of a box, in batches."""
    node = source.state.tree.array(array.source)
    shift = array.shift
    wanted = tuple((first + s, end + s) for (first, end), s in zip(box, shift, strict=True))
    table = await source.state.chunk_table(node, wanted)
    coords = table.coords.astype(np.int64) - np.array(shift, dtype=np.int64).reshape(1, len(shift))
    rows: list[Coords] = [tuple(row) for row in coords.tolist()]
    return [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]


async def fetch_chunks(source: Session, array: ArrayCopy, batch: Sequence[Coords]) -> list[Buffer]:
    """Fetch the stored bytes of chunks."""
    node = source.state.tree.array(array.source)
    shift = array.shift
    places = [tuple(c + s for c, s in zip(coords, shift, strict=True)) for coords in batch]
    found = await asyncio.gather(*(source.state.fetch_chunk(node, place) for place in places))
    return [data for data in found if data is not None]


def copy(
    spark: SparkSession,
    source: Source,
    target: Target,
    *,
    group: str = "",
    target_group: str | None = None,
    variables: Sequence[str] | None = None,
    region: Bounds | None = None,
    chunks: Mapping[str, int] | None = None,
    overwrite: bool = False,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    task_bytes: int = TASK_BYTES,
    progress: bool | None = None,
) -> JobOutcome:
    """Copy a snapshot, or a group, variables or a region of it, to a repository with one commit.

    Parameters
    ----------
    spark
        The Spark session.
    source
        A repository (the tip of `main`), its path or URL, or a read-only session.
    target
        The target repository, or its path or URL. If it does not exist, it is created.
    group
        The group to copy.
    target_group
        The target group. The default is `group`.
    variables
        Only these arrays (paths below the group), with the coordinates of their dimensions.
    region
        Only the cells [first, end) by dimension. A variable chunk grid keeps its bounds between chunks. Chunks that are
        cut are written by value, the others are copied without decoding.
    chunks
        New chunk lengths by dimension. -1 is the whole dimension. Chunks that do not change are copied without
        decoding.
    overwrite
        Replace existing arrays.
    branch
        The target branch.
    message, metadata
        The message and metadata of the commit.
    task_bytes
        The approximate decoded bytes of a task.
    progress
        Whether to show a progress bar. None shows it in terminals and notebooks.

    Returns
    -------
    JobOutcome
        The new snapshot and the counts of the job.

    Examples
    --------
    >>> copy(spark, "s3://bucket/weather", "/data/copy", variables=["t2m"])  # doctest: +SKIP
    """
    session, begin_writing = open_source_and_target(source, target, branch)
    return _copy(
        spark,
        session,
        begin_writing,
        group=group,
        target_group=target_group,
        variables=variables,
        region=region,
        chunks=chunks,
        overwrite=overwrite,
        message=message,
        metadata=metadata,
        task_bytes=task_bytes,
        progress=progress,
    )


def _copy(
    spark: SparkSession,
    session: Session,
    begin_writing: Callable[[], Session],
    *,
    group: str = "",
    target_group: str | None = None,
    variables: Sequence[str] | None = None,
    region: Bounds | None = None,
    chunks: Mapping[str, int] | None = None,
    overwrite: bool = False,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    task_bytes: int = TASK_BYTES,
    progress: bool | None = None,
) -> JobOutcome:
    started = time.monotonic()
    selection = CopySelection(group, tuple(variables) if variables is not None else None, region, chunks)
    plan = plan_copy(session, selection, group if target_group is None else target_group, task_bytes)
    writer = begin_writing()
    _create(writer, plan, overwrite=overwrite)
    job = WriteJob(_CopyWork(session), f"copying {len(plan.arrays):,} arrays", progress, plan.bytes)
    written = write_with_tasks(spark, writer, job, plan.tasks)
    link(writer, written)
    facts = {"icefloe.copy": {"source": str(session.snapshot_id), "arrays": len(plan.arrays)}, **(metadata or {})}
    text = message or f"Copy {len(plan.arrays):,} arrays of snapshot {session.snapshot_id}"
    snapshot = writer.commit(text, facts, rebase_with=ConflictDetector())
    references = sum(each.parts.chunks for each in written)
    return JobOutcome(str(snapshot), len(plan.tasks), references, time.monotonic() - started)


def rechunk(
    spark: SparkSession,
    source: Source,
    chunks: Mapping[str, int],
    target: Target | None = None,
    *,
    group: str = "",
    target_group: str | None = None,
    variables: Sequence[str] | None = None,
    branch: str = "main",
    message: str | None = None,
    **options: Any,
) -> JobOutcome:
    """Change the chunks of arrays, in place with one commit, or into another group or repository.

    Parameters
    ----------
    spark
        The Spark session.
    source
        A repository (the tip of `main`), its path or URL, or a read-only session.
    chunks
        Chunk lengths by dimension. -1 is the whole dimension.
    target
        Another repository. The default is the repository of the source.
    group
        The group of the arrays.
    target_group
        The target group. The default is `group`.
    variables
        Only these arrays.
    branch
        The target branch.
    message
        The commit message.
    **options
        Further arguments of `copy`.

    Returns
    -------
    JobOutcome
        The new snapshot and the counts of the job.

    Raises
    ------
    InvalidInputError
        The arguments contradict each other.

    Examples
    --------
    >>> rechunk(spark, repo, {"time": -1, "latitude": 16, "longitude": 16})  # doctest: +SKIP
    """
    in_place = target is None
    if target is None:
        if isinstance(source, Session):
            raise InvalidInputError("a session has no target branch. Pass the repository, or a target")
        # The rewritten branch is the one that is read, at the same snapshot.
        repository = existing_repository(source)
        writer = repository.writable_session(branch)
        session = repository.readonly_session(snapshot_id=writer.snapshot_id)
        begin_writing: Callable[[], Session] = lambda: writer  # noqa: E731
    else:
        session, begin_writing = open_source_and_target(source, target, branch)
    same = in_place and (target_group is None or target_group.strip("/") == group.strip("/"))
    return _copy(
        spark,
        session,
        begin_writing,
        group=group,
        target_group=target_group,
        variables=variables,
        chunks=chunks,
        overwrite=same or bool(options.pop("overwrite", False)),
        message=message or f"Rechunk to {', '.join(f'{dim}={n}' for dim, n in chunks.items())}",
        **options,
    )


def _create(session: Session, plan: CopyPlan, *, overwrite: bool) -> None:
    work = session.state
    for array in plan.arrays:
        if work.tree.find("/" + array.target) is None:
            continue
        if not overwrite:
            raise AlreadyExistsError(
                f"the array /{array.target} exists. Choose another target_group, or pass overwrite=True"
            )
        # A new grid needs a new node, or old chunks would become chunks of the new grid.
        work.delete_node("/" + array.target)
    fresh = {path: document for path, document in plan.groups.items() if work.tree.find("/" + path) is None}
    documents = {**_parents(plan, fresh, work), **fresh, **{array.target: array.document for array in plan.arrays}}
    SessionSink(session).write_documents(dict(sorted(documents.items())))


def _parents(plan: CopyPlan, fresh: Mapping[str, bytes], work: SessionState) -> dict[str, bytes]:
    """Return the groups above the target group that do not exist."""
    found: dict[str, bytes] = {}
    for path in [*plan.groups, *(array.target for array in plan.arrays)]:
        parts = path.split("/")[:-1]
        for depth in range(len(parts) + 1):
            above = "/".join(parts[:depth])
            if above not in fresh and work.tree.find("/" + above) is None:
                found[above] = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
    return found


@dataclass(frozen=True, slots=True)
class _LevelWork:
    """Computes chunks of the levels in a fork."""

    plan: PyramidPlan

    def __call__(self, open_fork: OpenFork, work: Work) -> tuple[ForkSession, int]:
        fork = open_fork()
        write_levels(fork, self.plan, work)
        return fork, len(work)


def pyramid(
    spark: SparkSession,
    repo: Target,
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
    task_bytes: int = TASK_BYTES,
    progress: bool | None = None,
) -> PyramidResult:
    """Build the overviews of an array, or update them, with Spark tasks and one commit.

    Parameters
    ----------
    spark
        The Spark session.
    repo
        A repository, or its path or URL.
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
        A cloud-optimised GeoTIFF that the array is equal to. The levels are its overviews, as in `pyramid_local`. The
        driver writes them, without tasks.
    source_options
        Options of the storage of `source`, such as `endpoint_url` and `anonymous` of `s3_storage`.
    branch
        The branch.
    message
        The commit message.
    task_bytes
        The approximate size of the cells that a task reads.
    progress
        Whether to show a progress bar. None shows it in terminals and notebooks.

    Returns
    -------
    PyramidResult
        The new snapshot, and how many chunks were computed and kept.

    Raises
    ------
    NodeNotFoundError
        The array does not exist.
    InvalidInputError
        The method does not fit the data type, or a dimension does not exist.

    Examples
    --------
    >>> pyramid(spark, repo, "t2m", 4).written  # doctest: +SKIP
    680
    """
    repository = existing_repository(repo)
    if source is not None:
        return pyramid_local(
            repository,
            array,
            levels,
            target=target,
            source=source,
            source_options=source_options,
            branch=branch,
            message=message,
        )
    session = repository.writable_session(branch)
    plan = plan_pyramid(repository, session, PyramidRequest(array, levels, method, dims, target))
    if plan.is_empty:
        return PyramidResult(None, plan.paths, 0, plan.kept)
    begin_pyramid(session, plan)
    job = WriteJob(_LevelWork(plan), f"computing {plan.written:,} chunks of overviews", progress)
    link(session, write_with_tasks(spark, session, job, plan.work(task_bytes)))
    return commit_pyramid(session, plan, message)
