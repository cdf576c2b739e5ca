"""A function over the blocks of a whole dataset, its results committed once."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xarray as xr
from pyspark.sql import SparkSession

from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.session.conflicts import ConflictDetector
from icefloe.session.session import ForkSession, Session
from icefloe.spark.block_target import BlockTarget, create_target, plan_target
from icefloe.spark.blocks import TASK_BYTES, Window, block_bytes, plan_blocks, whole_chunks
from icefloe.spark.distributed import OpenFork, WriteJob, link, write_with_tasks
from icefloe.spark.places import JobOutcome, Source, Target, open_dataset, open_places, unknown_name
from icefloe.spark.tasks import SparkJob, run_tasks

BlockFunction = Callable[[xr.Dataset], "xr.Dataset | xr.DataArray"]


@dataclass(frozen=True, slots=True)
class BlockReader:
    """Reads a block with its halo, applies the function, and takes the halo off again."""

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
            raise InvalidInputError(f"the function returned {type(result).__name__}; it returns xarray objects")
        _refuse_changed(block, result, where)
        return _trimmed(result, window, wide, where)


def _refuse_changed(block: xr.Dataset, result: xr.Dataset, where: str) -> None:
    """Coordinates of the source are written once, as they are; those that a function changed would be lost."""
    for name, coordinate in result.coords.items():
        known = block.coords.get(name)
        if known is not None and known.shape == coordinate.shape and not known.variable.equals(coordinate.variable):
            raise InvalidInputError(
                f"the function changed the values of the coordinate {name} (block {where}); coordinates of the source "
                "keep theirs: give it another name, or change it after the job"
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
                f"the function made {result.sizes[dim]} cells of {length} along {dim} (block {where}); a dimension of "
                "the source keeps its length, is dropped, or gets another name"
            )
        first = part.start - wide[dim].start
        inner[dim] = slice(first, first + part.stop - part.start)
    return result.isel(inner)


def _check_names(dataset: xr.Dataset, halo: Mapping[str, int]) -> None:
    for dim, cells in halo.items():
        if dim not in dataset.sizes:
            raise unknown_name("dimension", dim, dataset.sizes, option="halo")
        if cells < 0:
            raise InvalidInputError(f"the halo of {cells} cells along {dim} is negative")


@dataclass(frozen=True, slots=True)
class _Describe:
    """The first block's result, cut to one cell along dimensions of the source: all that a target's arrays need."""

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
    source
        A repository (the tip of `main`), its path or URL, or a read-only session on any snapshot.
    func
        Gets an xarray dataset with coordinates and returns one. Dimensions of the source keep their length, or are
        dropped when a block has all of them; dimensions with other names are new.
    target, target_group, branch
        Where the results go; the group of the source by default.
    blocks
        Length of a block by dimension, -1 for all of it; by default whole chunks of about `task_bytes`.
    halo
        Cells that a block is given in addition on both sides, as far as there are any; cut off from the result.
    chunks
        Chunk length of the results by dimension; those of the source by default. Blocks are multiples of it.
    overwrite
        Replace arrays that are there.

    Examples
    --------
    >>> map_blocks(spark, repo, lambda block: block - 273.15, repo, target_group="celsius")  # doctest: +SKIP
    """
    started = time.monotonic()
    session, begin_writing = open_places(source, target, branch)
    dataset = open_dataset(session, group, variables)
    _check_names(dataset, halo or {})
    grid = whole_chunks(plan_blocks(dataset, asked=blocks, task_bytes=task_bytes), chunks or {}, blocks or {})
    read = BlockReader(session, group, tuple(variables) if variables is not None else None, func, dict(halo or {}))
    windows = grid.windows()
    [sketch] = run_tasks(spark, SparkJob(_Describe(read), "trying the first block", progress), windows[:1])
    place = plan_target(dataset, sketch, grid, chunks or {}, group if target_group is None else target_group)
    writer = begin_writing()
    create_target(writer, place, dataset, sketch, overwrite=overwrite)
    size = block_bytes(dataset, grid.lengths) * len(windows)
    job = WriteJob(_MapWork(read, place), f"mapping {len(windows):,} blocks", progress, size)
    written = write_with_tasks(spark, writer, job, windows)
    link(writer, written)
    facts = {"icefloe.map_blocks": {"source": str(session.snapshot_id), "blocks": len(windows)}, **(metadata or {})}
    text = message or f"Map {getattr(func, '__name__', 'a function')} over {len(windows):,} blocks"
    snapshot = writer.commit(text, facts, rebase_with=ConflictDetector())
    references = sum(each.parts.chunks for each in written)
    return JobOutcome(str(snapshot), len(windows), references, time.monotonic() - started)
