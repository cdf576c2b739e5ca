"""Write Dask arrays. Each block is written where it is computed, and the changes are merged as a tree."""

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
from icefloe.model.zarr_document import parse_grid
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
    """Write Dask arrays into Zarr arrays of one session.

    With threads, the session of the targets has all changes. With processes or a cluster, the targets must belong to a
    `session.fork()`. Merge the returned session into the original one.

    Parameters
    ----------
    sources
        The Dask arrays.
    targets
        The Zarr array of each source. Blocks must align with the chunks of the target, so that no two tasks write the
        same chunk.
    regions
        The region of each target. None is the whole array.
    split_every
        The number of sessions that are merged at a time.
    **compute_kwargs
        Arguments of `dask.compute`, such as `scheduler="processes"`.

    Returns
    -------
    Session
        The session with all changes.

    Raises
    ------
    InvalidInputError
        The numbers of sources, targets and regions differ, blocks are not aligned, or there is nothing to write.

    Examples
    --------
    >>> import icefloe
    >>> session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    >>> target = zarr.create_array(session.store, name="a", shape=(4,), chunks=(2,), dtype="i8")
    >>> merged = store_dask(sources=[da.arange(4, chunks=2)], targets=[target], scheduler="threads")
    >>> merged is session
    True
    >>> target[:]
    array([0, 1, 2, 3])
    """
    places = list(regions) if regions is not None else [None] * len(sources)
    if not len(sources) == len(targets) == len(places):
        raise InvalidInputError(
            f"{len(sources)} sources, {len(targets)} targets and {len(places)} regions were given. Give one target and "
            "one region for every source"
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
    """Return the region of the target that one block fills."""
    place = []
    for sizes, position, first in zip(chunks, index, start, strict=True):
        low = first + sum(sizes[:position])
        place.append(slice(low, low + sizes[position]))
    return tuple(place)


def _check_alignment(source: da.Array, target: zarr.Array[Any], start: tuple[int, ...]) -> None:
    """Check that no chunk holds two blocks. Their tasks would overwrite each other."""
    grid = parse_grid(target.metadata.to_dict())
    for axis, (sizes, lengths, first) in enumerate(zip(source.chunks, grid, start, strict=True)):
        inner = np.asarray(first + np.cumsum(sizes)[:-1], dtype=np.int64)
        if not np.isin(inner, lengths.starts(int(first + sum(sizes)))).all():
            width = f"every {lengths}" if lengths.is_regular else f"of {lengths}"
            raise InvalidInputError(
                f"along axis {axis} the blocks {sizes[:5]} of the source do not end at the chunks of "
                f"{target.name or '/'} ({width} elements): two tasks would write one chunk. Rechunk the source first"
            )


__all__ = ["store_dask"]
