"""Writing dask arrays, as `icechunk.dask`."""

from __future__ import annotations

from typing import Any

import dask
from dask.array.core import Array
from dask.delayed import delayed

from icefloe.dask import store_dask
from icefloe.icechunk.distributed import extract_session, merge_sessions
from icefloe.icechunk.session import ForkSession

_SPLIT_EVERY = 8


def merge_sessions_array_kwargs(*sessions: Any, axis: Any = None, keepdims: Any = None) -> ForkSession:
    """Merge forks. `axis` and `keepdims` are ignored: reductions pass them."""
    return merge_sessions(*sessions)


def session_merge_reduction(
    arrays: Array | list[Array], *, split_every: int | None, **store_kwargs: Any
) -> ForkSession:
    """Compute arrays whose blocks are written Zarr arrays, and return the merge of their forks."""
    found = list(arrays) if isinstance(arrays, list | tuple) else [arrays]
    for each in found:
        if not isinstance(each, Array):
            raise TypeError(f"Expected a dask array, or a list of them, not {type(each).__name__}")
    extract, merge = delayed(extract_session), delayed(merge_sessions)
    level = [extract(block) for array in found for block in array.to_delayed().ravel()]  # type: ignore[no-untyped-call]
    width = split_every or _SPLIT_EVERY
    while len(level) > 1:
        level = [merge(*level[start : start + width]) for start in range(0, len(level), width)]
    (merged,) = dask.compute(level[0], **store_kwargs)  # type: ignore[attr-defined, no-untyped-call]
    session: ForkSession = merged
    return session


__all__ = [
    "ForkSession",
    "extract_session",
    "merge_sessions",
    "merge_sessions_array_kwargs",
    "session_merge_reduction",
    "store_dask",
]
