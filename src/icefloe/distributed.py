"""Merging the sessions that workers of a distributed write send back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import zarr

from icefloe.errors import InvalidInputError
from icefloe.session.session import Session


def extract_session(zarray: zarr.Array[Any] | zarr.Group) -> Session:
    """The session that a Zarr array or group writes to."""
    session: Session = zarray.store.session  # type: ignore[attr-defined]
    return session


def merge_sessions(*sessions: Session | Iterable[Any]) -> Session:
    """One session with the changes of all; lists of sessions are taken apart.

    The first one takes over the others. Copies that never left the process are one and the same session and count
    once, so that threads and processes can be treated alike.

    Parameters
    ----------
    sessions
        Forks of one session, in any nesting.
    """
    distinct: list[Session] = []
    for session in _flatten(sessions):
        if not isinstance(session, Session):
            raise InvalidInputError(f"merge_sessions takes sessions, got {type(session).__name__}")
        if all(session is not known for known in distinct):
            distinct.append(session)
    if not distinct:
        raise InvalidInputError("merge_sessions needs at least one session")
    first, *others = distinct
    first.merge(*others)  # type: ignore[arg-type]
    return first


def _flatten(items: Iterable[Any]) -> Iterable[Any]:
    for item in items:
        if isinstance(item, (list, tuple, set, frozenset)) or hasattr(item, "__array__"):
            yield from _flatten(list(item))
        else:
            yield item


__all__ = ["extract_session", "merge_sessions"]
