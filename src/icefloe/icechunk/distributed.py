"""Sessions of distributed writes, as `icechunk.distributed`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import zarr

from icefloe.icechunk.session import ForkSession, Session
from icefloe.icechunk.store import IcechunkStore
from icefloe.session.session import ForkSession as AnyForkSession


def extract_session(zarray: zarr.Array[Any], axis: Any = None, keepdims: Any = None) -> Session:
    """Return the session that an array is written with. `axis` and `keepdims` are ignored: reductions pass them."""
    session: Session = zarray.store.session  # type: ignore[attr-defined]
    return session


def merge_sessions(*sessions: Any) -> ForkSession:
    """Merge forks, also in nested lists, into the first one and return it."""
    first, *others = _flat(sessions)
    for each in (first, *others):
        if not isinstance(each, AnyForkSession):
            raise TypeError(
                f"Received {type(each).__name__!r}, but merge_sessions takes ForkSession objects. To merge forks into "
                "their session, use Session.merge(*forks)"
            )
    first.merge(*(each for each in others if each is not first))
    merged: ForkSession = first
    return merged


def _flat(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, list | tuple):
            yield from _flat(item)
        else:
            yield item


__all__ = ["ForkSession", "IcechunkStore", "Session", "extract_session", "merge_sessions"]
