"""Where a joined dimension starts in the target: at its end, in a region, or at zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.ingest.cf import format_coordinate, format_step
from icefloe.ingest.existing import Existing, find_run
from icefloe.ingest.members import join_path
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.placement import JoinedDimension


def find_offset(group: str, joined: JoinedDimension, options: IngestOptions, existing: Existing) -> int:
    """The first cell of the target that the joined files write along one dimension."""
    if options.append_dim == joined.name:
        return _append_offset(group, joined, options, existing)
    if options.region is None:
        return 0
    if options.region == "auto":
        return _found_region(group, joined, existing)
    if joined.name not in options.region:
        known = existing.coordinate(join_path(group, joined.name)) is not None
        return _found_region(group, joined, existing) if known else 0
    bounds = options.region[joined.name]
    first, end = (bounds.start or 0, bounds.stop) if isinstance(bounds, slice) else bounds
    if end is not None and end - first != joined.size:
        raise InvalidInputError(
            f"the region {first}:{end} along {joined.name} has {end - first} cells, the sources have {joined.size}"
        )
    return int(first)


def _found_region(group: str, joined: JoinedDimension, existing: Existing) -> int:
    coordinate = existing.coordinate(join_path(group, joined.name))
    blocks = [b.coordinate.values for b in joined.blocks if b.coordinate is not None]
    values = [v for v in blocks if v is not None]
    if coordinate is None or len(values) != len(joined.blocks):
        raise InvalidInputError(
            f"region='auto' needs a coordinate {joined.name} in the repository and in every file; give the bounds"
        )
    start = find_run(coordinate, np.concatenate(values))
    if start is None:
        ends = f"{_shown(joined, values[0][0])} .. {_shown(joined, values[-1][-1])}"
        raise InvalidInputError(f"the values of {joined.name} ({ends}) are not a run of the repository's {joined.name}")
    return start


def _append_offset(group: str, joined: JoinedDimension, options: IngestOptions, existing: Existing) -> int:
    name = joined.name
    lengths: set[int] = set()
    for array in existing.arrays.values():
        names = list(array.document.get("dimension_names") or [])
        if array.path.rpartition("/")[0] == group and name in names:
            lengths.add(int(array.document["shape"][names.index(name)]))
    if not lengths:
        return 0
    if len(lengths) > 1:
        raise InvalidInputError(
            f"arrays of /{group} have different lengths along {name}: {sorted(lengths)}; cannot append"
        )
    stored = existing.coordinate(join_path(group, name))
    if options.append_order == "any":
        if stored is not None:
            _refuse_repeated(joined, stored)
        return lengths.pop()
    first = joined.blocks[0].coordinate
    if stored is not None and len(stored) and first is not None and stored.dtype.kind in "iuf":
        last, before = float(stored[-1]), float(stored[-2]) if len(stored) > 1 else -math.inf
        sign = 1 if last >= before else -1
        if sign * (float(first.first) - last) <= 0:
            raise InvalidInputError(
                f"cannot append along {name}: the repository ends at {_shown(joined, last)}, "
                f"{joined.blocks[0].urls[0]} starts at {_shown(joined, first.first)}; "
                "skip_ingested leaves out sources that are there already, region='auto' overwrites",
                dim=name,
            )
    return lengths.pop()


def find_append_gap(group: str, joined: JoinedDimension, options: IngestOptions, existing: Existing) -> str | None:
    """What lies between the end of the repository and the first file that is appended to it, if anything does."""
    stored = existing.coordinate(join_path(group, joined.name))
    first = joined.blocks[0].coordinate
    if options.append_dim != joined.name or options.append_order == "any" or first is None:
        return None
    if stored is None or len(stored) < 2 or stored.dtype.kind not in "iuf":
        return None
    last, step = float(stored[-1]), abs(float(stored[-1]) - float(stored[-2]))
    if not step or abs(float(first.first) - last) <= 1.5 * step:
        return None
    return (
        f"gap along {joined.name}: the repository ends at {_shown(joined, last)}, "
        f"{joined.blocks[0].urls[0].rsplit('/', 1)[-1]} starts at {_shown(joined, first.first)} "
        f"(a step is {format_step(step, joined.units)})"
    )


def _shown(joined: JoinedDimension, value: Any) -> str:
    return format_coordinate(value, joined.units, joined.calendar)


def _refuse_repeated(joined: JoinedDimension, stored: npt.NDArray[Any]) -> None:
    """Appended out of order, a value may not be there a second time."""
    for block in joined.blocks:
        values = block.coordinate.values if block.coordinate is not None else None
        if values is None:
            continue
        again = values[np.isin(values, stored)]
        if len(again):
            raise InvalidInputError(
                f"cannot append along {joined.name}: the repository has {len(again)} of the values of {block.urls[0]} "
                f"already, such as {_shown(joined, again[0])}; use region='auto' to overwrite",
                dim=joined.name,
            )
