"""Where a joined dimension starts in the target: at its end, in a region, or at zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.ingest.cf import format_coordinate, format_step
from icefloe.ingest.existing import Existing, find_run
from icefloe.ingest.members import join_path
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.placement import JoinedDimension
from icefloe.ingest.source_model import summarise_coordinate


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
    if first < 0:
        raise InvalidInputError(f"the region {first}:{end} along {joined.name} starts before the first cell")
    if end is not None and end - first != joined.size:
        raise InvalidInputError(
            f"the region {first}:{end} along {joined.name} has {end - first} cells, the sources have {joined.size}"
        )
    return int(first)


def _found_region(group: str, joined: JoinedDimension, existing: Existing) -> int:
    coordinate = existing.coordinate(join_path(group, joined.name))
    values = joined.values()
    if coordinate is None or values is None:
        raise InvalidInputError(
            f"region='auto' needs a coordinate {joined.name} in the repository and in every file; give the bounds"
        )
    start = find_run(coordinate, values)
    if start is None:
        ends = f"{_shown(joined, values[0])} .. {_shown(joined, values[-1])}"
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
    if stored is not None and len(stored) and joined.filled:
        if options.append_order == "any" or stored.dtype.kind not in "iufM":
            _refuse_repeated(joined, stored)
        else:
            _refuse_earlier(joined, stored)
    return lengths.pop()


def _refuse_earlier(joined: JoinedDimension, stored: npt.NDArray[Any]) -> None:
    """Appended in order, values follow all of the repository's, in the direction in which those run."""
    found = summarise_coordinate(stored)
    # Values that were appended in any order, or a single one, leave the direction to the files.
    direction = found.direction or joined.direction or 1
    block = joined.filled[0]
    first = None if block.coordinate is None else block.coordinate.first
    if first is None:
        return
    told = "skip_ingested leaves out sources that are there already, region='auto' overwrites"
    if joined.direction not in (0, direction):
        raise InvalidInputError(
            f"cannot append along {joined.name}: its values {'rise' if direction > 0 else 'fall'} in the repository, "
            f"and not in {block.urls[0]}",
            dim=joined.name,
        )
    edge = (stored.max() if direction > 0 else stored.min()).item()
    if not (first > edge if direction > 0 else first < edge):
        ends = "ends at" if found.direction or len(stored) == 1 else "reaches to"
        raise InvalidInputError(
            f"cannot append along {joined.name}: the repository {ends} {_shown(joined, edge)}, "
            f"{block.urls[0]} starts at {_shown(joined, first)}; {told}",
            dim=joined.name,
        )


def find_append_gap(group: str, joined: JoinedDimension, options: IngestOptions, existing: Existing) -> str | None:
    """What lies between the end of the repository and the first file that is appended to it, if anything does."""
    stored = existing.coordinate(join_path(group, joined.name))
    if options.append_dim != joined.name or options.append_order == "any" or not joined.filled:
        return None
    block = joined.filled[0]
    if block.coordinate is None or stored is None or len(stored) < 2 or stored.dtype.kind not in "iuf":
        return None
    wide = np.sort(stored.astype(np.float64))
    step = float(np.median(np.diff(wide)))
    direction = summarise_coordinate(stored).direction or joined.direction or 1
    last = (stored.max() if direction > 0 else stored.min()).item()
    if not step or abs(float(block.coordinate.first) - float(last)) <= 1.5 * step:
        return None
    return (
        f"gap along {joined.name}: the repository ends at {_shown(joined, last)}, "
        f"{block.urls[0].rsplit('/', 1)[-1]} starts at {_shown(joined, block.coordinate.first)} "
        f"(a step is {format_step(step, joined.units)})"
    )


def _shown(joined: JoinedDimension, value: Any) -> str:
    return format_coordinate(value, joined.units, joined.calendar)


def _refuse_repeated(joined: JoinedDimension, stored: npt.NDArray[Any]) -> None:
    """Appended out of order, a value may not be there a second time."""
    for block in joined.filled:
        values = block.coordinate.values if block.coordinate is not None else None
        if values is None:
            continue
        if stored.dtype.kind in "iufM":
            again = values[np.isin(values, stored)]
        else:
            known = set(stored.tolist())
            again = values[[value in known for value in values.tolist()]]
        if len(again):
            raise InvalidInputError(
                f"cannot append along {joined.name}: the repository has {len(again)} of the values of {block.urls[0]} "
                f"already, such as {_shown(joined, again[0])}; use region='auto' to overwrite",
                dim=joined.name,
            )
