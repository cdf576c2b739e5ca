"""The shapes in which cells travel: one row per cell, per row of cells, or per chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icefloe.tables.grids import Grid, Variable
from icefloe.tables.matching import Mask
from icefloe.tables.sql_literals import has_literals

START = "__start_"
LENGTH = "__length_"
PICKED = "__picked"
"""Positions of the cells of a list in its run, where some of the run are left out."""
LITERAL_COORDINATES = 4096
"""Longest coordinate that is looked up in a constant of the plan; longer ones travel with the rows."""
_SHORTEST_LIST = 64


@dataclass(frozen=True, slots=True)
class RowsLayout:
    """Rows of cells as lists: outer dimensions as values, the last ones folded into the lists."""

    folded: int
    """How many of the last dimensions the lists run over."""
    looked_up: tuple[int, ...]
    """Folded axes whose coordinate is found from its position; the others travel as lists of their own."""
    picked: bool = False
    """Whether cells may be left out of the lists."""


def plan_rows(grid: Grid, masks: Sequence[Mask | None], *, picked: bool = False) -> RowsLayout:
    """Fold as many dimensions as make lists worth their while; a position tells a coordinate where cells are runs."""
    rank = len(grid.shape)
    folded, length = 0, 1
    while folded < rank and (folded == 0 or length < _SHORTEST_LIST):
        folded += 1
        length *= min(grid.block[rank - folded], grid.shape[rank - folded])
    axes = range(rank - folded, rank)
    short = [a for a in axes if grid.shape[a] <= LITERAL_COORDINATES and has_literals(grid.dimensions[a].type)]
    return RowsLayout(folded, tuple(axis for axis in short if _is_run(masks[axis])), picked)


def _is_run(mask: Mask | None) -> bool:
    if mask is None:
        return True
    found = np.flatnonzero(mask)
    return not len(found) or int(found[-1]) - int(found[0]) + 1 == len(found)


def list_type(value: pa.DataType, *, nulls: bool = True) -> pa.DataType:
    """A list as Spark names its element."""
    return pa.list_(pa.field("element", value, nullable=nulls))


PICKED_TYPE = list_type(pa.int32(), nulls=False)


def rows_schema(grid: Grid, layout: RowsLayout | None = None) -> pa.Schema:
    """Columns of rows of cells; without a layout: the last dimension as lists, with its coordinate."""
    rank = len(grid.shape)
    folded = 1 if layout is None else layout.folded
    looked_up = () if layout is None else layout.looked_up
    fields = [pa.field(d.name, d.type) for d in grid.dimensions[: rank - folded]] if rank else []
    for axis in range(max(0, rank - folded), rank):
        dimension = grid.dimensions[axis]
        if axis in looked_up:
            fields.append(pa.field(START + dimension.name, pa.int32()))
        else:
            fields.append(pa.field(dimension.name, list_type(dimension.type)))
        if layout is not None:
            fields.append(pa.field(LENGTH + dimension.name, pa.int32()))
    if layout is not None and layout.picked:
        fields.append(pa.field(PICKED, PICKED_TYPE))
    for variable in grid.variables:
        nulls = layout is None or lists_have_nulls(variable)
        fields.append(pa.field(variable.name, list_type(variable.coding.type, nulls=nulls)))
    return pa.schema(fields)


def lists_have_nulls(variable: Variable) -> bool:
    """Whether lists that have a layout hold nulls; NaN stands for missing floats there.

    The JVM takes a list of which it knows that it has none apart in two thirds of the time.
    """
    return variable.coding.has_missing and not variable.coding.missing_is_nan


def chunks_schema(grid: Grid, tensor: str) -> pa.Schema:
    """Columns of the layout `chunks`."""
    fields = [
        pa.field("chunk", list_type(pa.int32())),
        pa.field("start", list_type(pa.int64())),
        pa.field("shape", list_type(pa.int32())),
    ]
    for dimension in grid.dimensions:
        fields += [
            pa.field(f"{dimension.name}_first", dimension.type),
            pa.field(f"{dimension.name}_last", dimension.type),
        ]
    for variable in grid.variables:
        fields += _tensor_fields(variable, tensor)
    return pa.schema(fields)


def _tensor_fields(variable: Variable, tensor: str) -> list[pa.Field]:
    if tensor == "list":
        return [pa.field(variable.name, list_type(variable.coding.type))]
    return [pa.field(variable.name, pa.binary()), pa.field(f"{variable.name}_dtype", pa.string())]
