"""Apply a function to the blocks of a dataset and commit the results."""

from __future__ import annotations

import itertools
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask.array
import numpy as np
import xarray as xr
from pyspark.sql import SparkSession

from icefloe.errors import AlreadyExistsError, IcefloeError, InvalidInputError
from icefloe.session.rebase import ConflictDetector
from icefloe.session.session import ForkSession, Session
from icefloe.spark.jobs import JobOutcome, Source, Target, open_dataset, open_source_and_target, unknown_name
from icefloe.spark.tasks import OpenFork, SparkJob, WriteJob, link, run_tasks, write_with_tasks
from icefloe.xarray import to_icechunk

TASK_BYTES = 64 << 20

Window = Mapping[str, slice]


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """The length of a block by dimension."""

    sizes: Mapping[str, int]
    lengths: Mapping[str, int]

    def windows(self, dims: Sequence[str] | None = None) -> list[Window]:
        """Yield every block along the dimensions, as slices by dimension."""
        chosen = list(self.sizes) if dims is None else list(dims)
        ranges = [
            [slice(low, min(low + self.lengths[d], self.sizes[d])) for low in range(0, self.sizes[d], self.lengths[d])]
            for d in chosen
        ]
        return [dict(zip(chosen, combination, strict=True)) for combination in itertools.product(*ranges)]


def stored_chunks(dataset: xr.Dataset) -> dict[str, int]:
    """Return the chunk length along each dimension, of the largest variable that has it."""
    found: dict[str, int] = {}
    for variable in sorted(dataset.variables.values(), key=lambda v: -v.nbytes):
        chunks = variable.encoding.get("shards") or variable.encoding.get("chunks") or variable.shape
        for dim, length in zip(variable.dims, chunks, strict=True):
            # A variable grid has the lengths of all chunks.
            found.setdefault(str(dim), max(1, *length) if isinstance(length, tuple) else max(1, int(length)))
    return found


def plan_blocks(
    dataset: xr.Dataset,
    *,
    asked: Mapping[str, int] | None = None,
    grow_first: Sequence[str] = (),
    task_bytes: int = TASK_BYTES,
) -> BlockGrid:
    """Return blocks of whole chunks with about `task_bytes`.

    Given lengths are used as they are, -1 is the whole dimension.
    """
    sizes = {str(dim): int(n) for dim, n in dataset.sizes.items()}
    unknown = sorted(set(asked or {}) - set(sizes))
    if unknown:
        raise unknown_name("dimension", unknown[0], sizes, option="blocks")
    for dim, length in (asked or {}).items():
        if length < 1 and length != -1:
            raise InvalidInputError(
                f"blocks of {length} cells along {dim} are not possible. Give at least 1, or -1 for the whole dimension"
            )
    chunks = stored_chunks(dataset)
    fixed = {dim: sizes[dim] if n == -1 else min(n, max(1, sizes[dim])) for dim, n in (asked or {}).items()}
    lengths = {dim: fixed.get(dim, min(chunks.get(dim, n), max(1, n))) for dim, n in sizes.items()}
    order = [*grow_first, *(dim for dim in reversed(list(sizes)) if dim not in grow_first)]
    for dim in order:
        if dim in fixed:
            continue
        room = task_bytes // max(1, block_bytes(dataset, lengths))
        steps = min(max(1, room), -(-sizes[dim] // lengths[dim]))
        lengths[dim] = max(1, min(lengths[dim] * steps, sizes[dim]))
    return BlockGrid(sizes, lengths)


def whole_chunks(grid: BlockGrid, chunks: Mapping[str, int], asked: Mapping[str, int]) -> BlockGrid:
    """Return blocks that are multiples of the requested chunks."""
    lengths = dict(grid.lengths)
    for dim, chunk in chunks.items():
        if dim not in lengths or lengths[dim] >= grid.sizes[dim]:
            continue
        if lengths[dim] % chunk and dim in asked:
            raise InvalidInputError(f"blocks of {lengths[dim]} along {dim} are not whole chunks of {chunk}")
        lengths[dim] = max(chunk, lengths[dim] // chunk * chunk)
    return BlockGrid(grid.sizes, lengths)


def block_bytes(dataset: xr.Dataset, lengths: Mapping[str, int]) -> int:
    """Return the decoded bytes of all variables in one block."""
    return sum(
        math.prod(min(lengths.get(str(d), n), n) for d, n in zip(v.dims, v.shape, strict=True)) * v.dtype.itemsize
        for v in dataset.variables.values()
    )


@dataclass(frozen=True, slots=True)
class BlockTarget:
    """A group, and the chunk lengths of its arrays by variable."""

    group: str
    chunks: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    """Data types of the arrays. A block with a wider type is refused."""

    def write(self, session: Session, block: xr.Dataset, window: Window) -> None:
        """Write the result of one block to its region."""
        block = block.reset_coords([name for name in block.coords if name in self.chunks])
        region = {dim: part for dim, part in window.items() if dim in block.sizes}
        chosen = block[[name for name in self.chunks if name in block]].drop_vars(list(block.coords), errors="ignore")
        missing = [name for name in self.chunks if name not in block]
        if missing:
            raise InvalidInputError(f"the function returned no {missing[0]!r} for a block, but did for the first one")
        more = [str(name) for name in block.data_vars if name not in self.chunks]
        if more:
            raise InvalidInputError(f"the function returned {more[0]!r} for a block, but not for the first one")
        for name in chosen.variables:
            chosen[name].encoding = {}
            found, expected = chosen[name].dtype, self.dtypes.get(str(name), chosen[name].dtype)
            if not np.can_cast(found, expected, "safe"):
                raise InvalidInputError(
                    f"the function returned {name} as {found} for a block, but as {expected} for the first one. Return "
                    "the same type for all blocks (astype)"
                )
        to_icechunk(chosen, session, group=self.group or None, region=region, mode="r+")


def plan_target(
    source: xr.Dataset, sketch: xr.Dataset, grid: BlockGrid, chunks: Mapping[str, int], group: str
) -> BlockTarget:
    """Return the variables that tasks write, and their chunks.

    Variables without a dimension of the source are an error.
    """
    stored = stored_chunks(source)
    found: dict[str, tuple[int, ...]] = {}
    for name, variable in sketch.variables.items():
        if name in sketch.sizes or (name in sketch.coords and name in source.coords):
            continue
        placed = [str(dim) for dim in variable.dims if dim in grid.sizes]
        cut = [dim for dim in grid.sizes if dim not in placed and grid.lengths[dim] < grid.sizes[dim]]
        if cut and name in sketch.coords:
            if placed:
                raise InvalidInputError(
                    f"the function returns a coordinate {name} along {', '.join(placed)}, but blocks are also split "
                    f"along {cut[0]!r}, so several blocks would write it. Pass blocks={{{cut[0]!r}: -1}}, or drop the "
                    "coordinate"
                )
            continue
        if cut:
            raise InvalidInputError(
                f"the function drops {cut[0]!r} from {name}, but a block has only {grid.lengths[cut[0]]} of its "
                f"{grid.sizes[cut[0]]} cells. Pass blocks={{{cut[0]!r}: -1}}, or use icefloe.spark.reduce"
            )
        found[str(name)] = tuple(
            chunk_length(str(dim), length, grid, chunks, stored)
            for dim, length in zip(variable.dims, variable.shape, strict=True)
        )
    if not found:
        raise InvalidInputError("the function returned no variable to write")
    return BlockTarget(group.strip("/"), found, {name: sketch[name].dtype for name in found})


def chunk_length(dim: str, length: int, grid: BlockGrid, chunks: Mapping[str, int], stored: Mapping[str, int]) -> int:
    """Return the chunk length along a dimension: as requested, as in the source, or the length of a block."""
    if dim not in grid.sizes:
        return max(1, min(chunks.get(dim, length), length))
    block = grid.lengths[dim]
    if dim in chunks:
        return min(chunks[dim], grid.sizes[dim])
    return stored[dim] if dim in stored and block % stored[dim] == 0 else block


def create_target(
    session: Session, target: BlockTarget, source: xr.Dataset, sketch: xr.Dataset, *, overwrite: bool
) -> None:
    """Create the empty arrays, with their coordinates."""
    _delete_existing(session, target, overwrite=overwrite)
    template = xr.Dataset(attrs=sketch.attrs)
    for name, chunks in target.chunks.items():
        variable = sketch[name].variable
        shape = tuple(source.sizes.get(dim, sketch.sizes[dim]) for dim in variable.dims)
        empty = dask.array.zeros(shape, dtype=variable.dtype, chunks=chunks or -1)
        template[name] = (variable.dims, empty, variable.attrs)
    for label, coordinate in sketch.coords.items():
        if label in target.chunks:
            continue
        values: Any = source[label].load() if label in source.coords else coordinate
        if set(values.dims) <= set(template.dims):
            template = template.assign_coords({label: values.variable.copy()})
    template = template.drop_vars(_known(session, target, template))
    encoding: dict[Any, Any] = {name: {"chunks": chunks} for name, chunks in target.chunks.items() if chunks}
    for coordinate in template.coords.values():
        kept = ("units", "calendar", "dtype")
        coordinate.encoding = {key: value for key, value in coordinate.encoding.items() if key in kept}
    template.to_zarr(
        session.store,
        group=target.group or None,
        mode="a",
        encoding=encoding,
        compute=False,
        consolidated=False,
        zarr_format=3,
    )


def _known(session: Session, target: BlockTarget, template: xr.Dataset) -> list[str]:
    """Return coordinates that the group already has with the same values. They are not written again."""
    if session.state.tree.find(f"/{target.group}") is None:
        return []
    there = xr.open_zarr(session.store, group=target.group or None, consolidated=False, chunks=None)
    return [
        str(dim)
        for dim in template.dims
        if dim in template.coords and dim in there.coords and there[dim].variable.equals(template[dim].variable)
    ]


def _delete_existing(session: Session, target: BlockTarget, *, overwrite: bool) -> None:
    work = session.state
    for name in target.chunks:
        path = f"/{target.group}/{name}" if target.group else f"/{name}"
        if work.tree.find(path) is None:
            continue
        if not overwrite:
            raise AlreadyExistsError(f"the array {path} exists. Choose another target_group, or pass overwrite=True")
        work.delete_node(path)


BlockFunction = Callable[[xr.Dataset], "xr.Dataset | xr.DataArray"]


@dataclass(frozen=True, slots=True)
class BlockReader:
    """Reads a block with its halo, applies the function, and removes the halo."""

    session: Session
    group: str
    variables: tuple[str, ...] | None
    function: BlockFunction
    halo: Mapping[str, int]

    def __call__(self, window: Window) -> xr.Dataset:
        dataset = open_dataset(self.session, self.group, self.variables)
        wide = {d: _widened(part, self.halo.get(d, 0), dataset.sizes[d]) for d, part in window.items()}
        block = dataset.isel(wide).load()
        where = ", ".join(f"{d}={part.start}:{part.stop}" for d, part in window.items())
        try:
            result = self.function(block)
        except IcefloeError:
            raise
        except Exception as error:
            trace = traceback.format_exc(limit=-3)
            raise InvalidInputError(f"the function failed on the block {where}: {error!r}\n{trace}") from error
        if isinstance(result, xr.DataArray):
            result = result.to_dataset(name=result.name or "result")
        if not isinstance(result, xr.Dataset):
            raise InvalidInputError(
                f"the function returned {type(result).__name__}, expected an xarray Dataset or DataArray"
            )
        _refuse_changed(block, result, where)
        return _trimmed(result, window, wide, where)


def _refuse_changed(block: xr.Dataset, result: xr.Dataset, where: str) -> None:
    """Raise an error if a function changes coordinates of the source. They are written once, unchanged."""
    for name, coordinate in result.coords.items():
        known = block.coords.get(name)
        if known is not None and known.shape == coordinate.shape and not known.variable.equals(coordinate.variable):
            raise InvalidInputError(
                f"the function changed the values of the coordinate {name} (block {where}). Coordinates of the source "
                "cannot change. Give it another name, or change it after the job"
            )


def _widened(part: slice, halo: int, size: int) -> slice:
    return slice(max(0, part.start - halo), min(size, part.stop + halo))


def _trimmed(result: xr.Dataset, window: Window, wide: Window, where: str) -> xr.Dataset:
    inner: dict[str, slice] = {}
    for dim, part in window.items():
        if dim not in result.sizes:
            continue
        length = wide[dim].stop - wide[dim].start
        if result.sizes[dim] != length:
            raise InvalidInputError(
                f"the function made {result.sizes[dim]} cells of {length} along {dim} (block {where}). Keep the length "
                "of a dimension of the source, drop the dimension, or rename it"
            )
        first = part.start - wide[dim].start
        inner[dim] = slice(first, first + part.stop - part.start)
    return result.isel(inner)


def _check_names(dataset: xr.Dataset, halo: Mapping[str, int]) -> None:
    for dim, cells in halo.items():
        if dim not in dataset.sizes:
            raise unknown_name("dimension", dim, dataset.sizes, option="halo")
        if cells < 0:
            raise InvalidInputError(f"the halo along {dim} is {cells}. It must not be negative")


@dataclass(frozen=True, slots=True)
class _Describe:
    """The result of the first block, with one cell along dimensions of the source. It defines the target."""

    read: BlockReader

    def __call__(self, window: Window) -> xr.Dataset:
        result = self.read(window)
        return result.isel({dim: slice(0, 1) for dim in window if dim in result.sizes})


@dataclass(frozen=True, slots=True)
class _MapWork:
    read: BlockReader
    target: BlockTarget

    def __call__(self, open_fork: OpenFork, window: Window) -> tuple[ForkSession, None]:
        fork = open_fork()
        self.target.write(fork, self.read(window), window)
        return fork, None


def map_blocks(
    spark: SparkSession,
    source: Source,
    func: BlockFunction,
    target: Target,
    *,
    group: str = "",
    target_group: str | None = None,
    variables: Sequence[str] | None = None,
    blocks: Mapping[str, int] | None = None,
    halo: Mapping[str, int] | None = None,
    chunks: Mapping[str, int] | None = None,
    overwrite: bool = False,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    task_bytes: int = TASK_BYTES,
    progress: bool | None = None,
) -> JobOutcome:
    """Apply a function to every block of a dataset, and commit the results once.

    Parameters
    ----------
    spark
        The Spark session.
    source
        A repository (the tip of `main`), its path or URL, or a read-only session.
    func
        A function of an xarray dataset with coordinates that returns a dataset. Dimensions of the source keep their
        length, or are dropped if a block covers them completely. Dimensions with other names are new.
    target
        The target repository, or its path or URL. If it does not exist, it is created.
    group
        The group of the source.
    target_group
        The target group. The default is `group`.
    variables
        Only these variables.
    blocks
        The length of a block by dimension. -1 is the whole dimension. The default is whole chunks of about
        `task_bytes`.
    halo
        The number of additional cells on both sides of a block, where they exist. They are cut from the result.
    chunks
        Chunk lengths of the results by dimension. The default is those of the source. Blocks are multiples of them.
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

    Raises
    ------
    InvalidInputError
        The arguments are invalid, or a result has the wrong shape.

    Examples
    --------
    >>> map_blocks(spark, repo, lambda block: block - 273.15, repo, target_group="celsius")  # doctest: +SKIP
    """
    started = time.monotonic()
    session, begin_writing = open_source_and_target(source, target, branch)
    dataset = open_dataset(session, group, variables)
    _check_names(dataset, halo or {})
    grid = whole_chunks(plan_blocks(dataset, asked=blocks, task_bytes=task_bytes), chunks or {}, blocks or {})
    read = BlockReader(session, group, tuple(variables) if variables is not None else None, func, dict(halo or {}))
    windows = grid.windows()
    [sketch] = run_tasks(spark, SparkJob(_Describe(read), "trying the first block", progress), windows[:1])
    planned = plan_target(dataset, sketch, grid, chunks or {}, group if target_group is None else target_group)
    writer = begin_writing()
    create_target(writer, planned, dataset, sketch, overwrite=overwrite)
    size = block_bytes(dataset, grid.lengths) * len(windows)
    job = WriteJob(_MapWork(read, planned), f"mapping {len(windows):,} blocks", progress, size)
    written = write_with_tasks(spark, writer, job, windows)
    link(writer, written)
    facts = {"icefloe.map_blocks": {"source": str(session.snapshot_id), "blocks": len(windows)}, **(metadata or {})}
    text = message or f"Map {getattr(func, '__name__', 'a function')} over {len(windows):,} blocks"
    snapshot = writer.commit(text, facts, rebase_with=ConflictDetector())
    references = sum(each.parts.chunks for each in written)
    return JobOutcome(str(snapshot), len(windows), references, time.monotonic() - started)
