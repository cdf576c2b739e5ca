"""Writing Dask arrays: each block is written where it is computed, the changes are merged in a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
import zarr
from dask.base import compute
from dask.delayed import delayed

from icefloe.distributed import extract_session, merge_sessions
from icefloe.errors import InvalidInputError
from icefloe.session.session import Session

Region = tuple[slice, ...]
_SPLIT_EVERY = 8


def store_dask(
    *,
    sources: Sequence[da.Array],
    targets: Sequence[zarr.Array[Any]],
    regions: Sequence[Region | None] | None = None,
    split_every: int | None = None,
    **compute_kwargs: Any,
) -> Session:
    """Write Dask arrays into Zarr arrays of one session and return the session that holds all changes.

    With threads, the targets' own session has everything already. With processes or a cluster the targets must belong
    to a `session.fork()`; merge what is returned into the session it came from.

    Parameters
    ----------
    sources, targets
        What goes where. Blocks must line up with the chunks of their target, so that no two tasks write one chunk.
    regions
        Where in each target; the whole of it when not given.
    split_every
        How many sessions are merged at a time.
    compute_kwargs
        For `dask.compute`, such as `scheduler="processes"`.
    """
    places = list(regions) if regions is not None else [None] * len(sources)
    if not len(sources) == len(targets) == len(places):
        raise InvalidInputError(
            f"{len(sources)} sources, {len(targets)} targets and {len(places)} regions do not pair up"
        )
    writes: list[Any] = []
    for source, target, region in zip(sources, targets, places, strict=True):
        start = _starts(region, target)
        _check_alignment(source, target, start)
        blocks = source.to_delayed()  # type: ignore[no-untyped-call]
        for index in np.ndindex(blocks.shape):
            writes.append(_write_block(target, _place(source.chunks, index, start), blocks[index]))
    if not writes:
        raise InvalidInputError("there is nothing to write: no source has blocks")
    (session,) = compute(_merge_tree(writes, split_every or _SPLIT_EVERY), **compute_kwargs)  # type: ignore[no-untyped-call]
    result: Session = session
    return result


@delayed  # type: ignore[untyped-decorator]
def _write_block(target: zarr.Array[Any], place: Region, block: Any) -> Session:
    target[place if place else ...] = block
    return extract_session(target)


_merge = delayed(merge_sessions)


def _merge_tree(writes: list[Any], width: int) -> Any:
    while len(writes) > 1:
        writes = [_merge(*writes[i : i + width]) for i in range(0, len(writes), width)]
    return writes[0]


def _starts(region: Region | None, target: zarr.Array[Any]) -> tuple[int, ...]:
    if region is None:
        return (0,) * target.ndim
    return tuple(piece.indices(length)[0] for piece, length in zip(region, target.shape, strict=True))


def _place(chunks: tuple[tuple[int, ...], ...], index: tuple[int, ...], start: tuple[int, ...]) -> Region:
    """The part of the target that one block fills."""
    place = []
    for sizes, position, first in zip(chunks, index, start, strict=True):
        low = first + sum(sizes[:position])
        place.append(slice(low, low + sizes[position]))
    return tuple(place)


def _check_alignment(source: da.Array, target: zarr.Array[Any], start: tuple[int, ...]) -> None:
    """Two blocks in one chunk would be two tasks that overwrite each other's half."""
    widths = target.shards or target.chunks
    for axis, (sizes, width, first) in enumerate(zip(source.chunks, widths, start, strict=True)):
        inner = first + np.cumsum(sizes)[:-1]
        if (inner % width).any():
            raise InvalidInputError(
                f"along axis {axis} the blocks {sizes[:5]} of the source do not end at the chunks of "
                f"{target.name or '/'} (every {width} elements): two tasks would write one chunk; rechunk the source "
                "first"
            )


__all__ = ["store_dask"]
