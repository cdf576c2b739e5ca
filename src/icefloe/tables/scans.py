"""The plan of a table read: a grid at a snapshot, the blocks that can match, and their distribution over tasks."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError, suggest
from icefloe.session.session import Session
from icefloe.tables.evaluate import CellTest, Mask, ValueRanges, check_decidable
from icefloe.tables.grids import Dimension, Grid, find_grid, longest_cells, read_coordinate
from icefloe.tables.predicates import And, Predicate, columns_of, find_unknown, parse_predicate
from icefloe.tables.selection import (
    BlockPart,
    Selection,
    Surroundings,
    common_blocks,
    in_any_zone,
    parse_region,
    select,
)
from icefloe.tables.statistics import load_ranges
from icefloe.tables.table_options import RepositoryAddress, TableOptions, session_at

log = logging.getLogger("icefloe.tables")
_SMALLEST_PART_BYTES = 4 << 20
"""The amount of data that is read and converted in about the time that starting a task takes."""
_READ_TO_ROWS = 4
"""The number of bytes of chunks that are read in the time of converting one byte of cells to rows."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Everything that a task needs to read its share of a table. It can be pickled."""

    address: RepositoryAddress
    snapshot_id: str
    grid: Grid
    masks: tuple[Mask | None, ...]
    layout: str = "cells"
    tensor: str = "bytes"
    exact: Predicate | None = None
    """A condition that cells must satisfy before they leave the task."""
    zone: dt.tzinfo | None = dt.UTC
    """The zone of times without one in `exact`. If None, it must be set with `in_zone` before the scan is read."""
    beyond: tuple[int, ...] | None = None
    """Only cells outside of this former shape are read, in the layouts with cells."""
    test: CellTest | None = None
    """A test that removes cells from lists before Spark filters the others."""
    decode_ahead: bool = False
    """Whether threads decode the chunks of a share, because there are fewer shares than cores."""

    def session(self) -> Session:
        return session_at(self.address, self.snapshot_id)

    @property
    def needs_zone(self) -> bool:
        """Whether the condition has times without a zone, and the zone is not known yet."""
        return self.zone is None and self.exact is not None and in_any_zone(self.grid, self.exact) != self.exact

    def in_zone(self, part: BlockPart, zone: dt.tzinfo) -> tuple[Scan, BlockPart]:
        """Return the scan and a part of it for a time zone that was not known when it was planned."""
        coordinates = [self.coordinate(axis) for axis in range(len(self.grid.dimensions))]
        selection = select(self.grid, self.exact, Surroundings(coordinates, zone=zone))
        return replace(self, masks=selection.masks, zone=zone), common_blocks(part, selection.blocks)

    def coordinate(self, axis: int) -> pa.Array:
        return coordinate_at(self.address, self.snapshot_id, self.grid.dimensions[axis])


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """A scan and its shares."""

    scan: Scan
    parts: tuple[BlockPart, ...]
    chunks: int
    total_chunks: int
    decided: bool = False
    """Whether the cells that are read are exactly those that match."""
    cells: int = 0
    """The approximate number of cells within the masks."""

    def in_one_stream(self) -> ScanPlan:
        """Return the plan for a reader that reads one share after the other. Idle cores decode the next chunks."""
        return replace(self, scan=replace(self.scan, decode_ahead=self.chunks > 1))

    def describe(self) -> str:
        """Describe what is read, in one line."""
        names = ", ".join(variable.name for variable in self.scan.grid.variables)
        return (
            f"{names} at {self.scan.snapshot_id}: {self.chunks:,} of {self.total_chunks:,} chunks "
            f"in {len(self.parts):,} partitions"
        )


@dataclass(frozen=True, slots=True)
class _Spelled:
    """A dimension that is compared by its text. A dimension with the fill value NaN is not equal to itself."""

    dimension: Dimension = field(compare=False)
    spelling: str


def coordinate_at(address: RepositoryAddress, snapshot_id: str, dimension: Dimension) -> pa.Array:
    """Return the coordinate of a dimension. It is read once per process."""
    return _coordinate(address, snapshot_id, _Spelled(dimension, repr(dimension)))


@lru_cache(maxsize=64)
def _coordinate(address: RepositoryAddress, snapshot_id: str, spelled: _Spelled) -> pa.Array:
    return read_coordinate(session_at(address, snapshot_id), spelled.dimension)


@lru_cache(maxsize=64)
def grid_at(
    address: RepositoryAddress, snapshot_id: str, group: str, variables: tuple[str, ...] | None, raw: bool
) -> Grid:
    """Return the grid of a table. It is determined once per process."""
    return find_grid(session_at(address, snapshot_id), group, variables, raw=raw)


def plan_scan(
    options: TableOptions,
    *,
    zone: dt.tzinfo | None = dt.UTC,
    loose: Predicate | None = None,
    tasks: int = 1,
    columns: Sequence[str] | None = None,
) -> ScanPlan:
    """Resolve the snapshot and determine what must be read.

    `where` and the regions of the options are applied exactly. `loose` only excludes what cannot match, for callers
    that filter again. There are at least `tasks` shares, unless they would be very small. Without a zone, the plan is
    right for every zone: see `Scan.needs_zone`. Only the given columns are read, by default all. Columns of
    dimensions alone are read without chunks.
    """
    session = options.pin()
    grid = grid_at(options.address, session.snapshot_id, options.group, options.variables, options.raw)
    if columns is not None:
        tested = set() if loose is None else columns_of(loose)
        kept = tuple(v for v in grid.variables if v.name in columns or v.name.lower() in tested)
        block = max((v.chunks for v in kept), key=longest_cells, default=grid.block)
        grid = replace(grid, variables=kept, block=block)
    coordinates = [coordinate_at(options.address, session.snapshot_id, dimension) for dimension in grid.dimensions]
    region = parse_region(grid, options.region, options.region_index)
    exact = _exact(grid, options)
    wanted = [part for part in (region, exact) if part is not None]
    given = [part if zone is not None else in_any_zone(grid, part) for part in wanted]
    given += [] if loose is None else [loose]
    predicate = And(tuple(given)) if given else None
    ranges = _ranges(session, grid, predicate, options)
    selection = select(grid, predicate, Surroundings(coordinates, ranges, zone))
    scan = Scan(
        options.address,
        session.snapshot_id,
        grid,
        selection.masks,
        options.layout,
        options.tensor,
        And(tuple(wanted)) if wanted else None,
        zone,
        test=_cell_test(grid, loose, zone),
    )
    plan = share_out(scan, selection, options.partition_bytes, tasks)
    log.info("reading %s", plan.describe())
    return plan


def _cell_test(grid: Grid, loose: Predicate | None, zone: dt.tzinfo | None) -> CellTest | None:
    """Return a test for the part of a condition that concerns values. Masks cover the part on coordinates."""
    if loose is None or not columns_of(loose) & {variable.name.lower() for variable in grid.variables}:
        return None
    return CellTest(loose, zone)


def _exact(grid: Grid, options: TableOptions) -> Predicate | None:
    if options.where is None:
        return None
    advice = (
        "Compare columns with constants here and use WHERE for the rest, or use icefloe.spark.table(..., where=...)"
    )
    return parse_exact(grid, options.where, "the option where", advice)


def parse_exact(grid: Grid, where: str, name: str, advice: str) -> Predicate:
    """Parse a condition that must be evaluated completely. Anything that only SQL can evaluate is refused."""
    predicate = parse_predicate(where)
    unknown = find_unknown(predicate)
    if unknown is not None:
        raise InvalidInputError(f"{name} contains {unknown!r}, which only SQL can evaluate. {advice}")
    check_columns(grid, predicate)
    check_decidable(grid.schema(), predicate)
    return predicate


def check_columns(grid: Grid, predicate: Predicate) -> None:
    """Raise an error for conditions on unknown columns."""
    known = {name.lower() for name in grid.schema().names}
    wrong = sorted(columns_of(predicate) - known)
    if wrong:
        near = suggest(wrong[0], known)
        raise InvalidInputError(f"there is no column {wrong[0]!r}{near}. There are: {', '.join(grid.schema().names)}")


def _ranges(
    session: Session, grid: Grid, predicate: Predicate | None, options: TableOptions
) -> Mapping[str, ValueRanges]:
    if predicate is None or options.raw or not options.statistics:
        return {}
    asked = columns_of(predicate)
    wanted = [v for v in grid.variables if v.name.lower() in asked and v.chunks == grid.block]
    found = {variable.name: load_ranges(session, variable) for variable in wanted}
    return {name: ranges for name, ranges in found.items() if ranges is not None}


def share_out(scan: Scan, selection: Selection, partition_bytes: int, tasks: int = 1) -> ScanPlan:
    """Divide the blocks into shares of about the wanted size, at least one per task unless they would be very small."""
    count = len(selection.blocks)
    cells = _selected_cells(scan.grid, selection)
    selected = cells * scan.grid.cell_bytes
    read = count * scan.grid.block_bytes
    worthwhile = min(tasks, (selected + read // _READ_TO_ROWS) // _SMALLEST_PART_BYTES)
    parts = min(count, max(1, -(-selected // partition_bytes), worthwhile))
    bounds = np.linspace(0, count, parts + 1).astype(np.int64).tolist() if parts else [0]
    made = tuple(selection.blocks.part(a, b) for a, b in pairwise(bounds) if b > a)
    idle = count > 1 and len(made) < tasks
    return ScanPlan(replace(scan, decode_ahead=idle), made, count, selection.total_blocks, selection.decided, cells)


def _selected_cells(grid: Grid, selection: Selection) -> int:
    """Estimate the number of cells that the selected blocks have after cropping."""
    per_block = 1.0
    for axis, (length, block) in enumerate(zip(grid.shape, grid.block, strict=True)):
        mask = selection.masks[axis]
        first, end = selection.blocks.box[axis]
        cells = length if mask is None else int(mask.sum())
        held = min(length, block.start(end)) - block.start(first) if mask is None else cells
        per_block *= max(1, held) / max(1, end - first)
    return int(per_block * len(selection.blocks))
