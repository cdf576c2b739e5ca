"""Merge the sessions that workers of a distributed write return."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import zarr

from icefloe.errors import InvalidInputError
from icefloe.session.session import Session


def extract_session(zarray: zarr.Array[Any] | zarr.Group) -> Session:
    """Return the session of a Zarr array or group.

    Parameters
    ----------
    zarray
        An array or group in the store of a session.

    Returns
    -------
    Session
        The session.

    Examples
    --------
    >>> import icefloe
    >>> session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    >>> extract_session(zarr.group(session.store)) is session
    True
    """
    session: Session = zarray.store.session  # type: ignore[attr-defined]
    return session


def merge_sessions(*sessions: Session | Iterable[Any]) -> Session:
    """Merge sessions into the first one. Nested lists are flattened.

    A session that is given several times counts once. Threads return the same session, processes return copies. Both
    can be passed as they are.

    Parameters
    ----------
    *sessions
        Forks of one session, in any nesting.

    Returns
    -------
    Session
        The first session, with the changes of all.

    Raises
    ------
    InvalidInputError
        No session is given, or a value is not a session.

    Examples
    --------
    >>> import icefloe
    >>> session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    >>> fork, other = session.fork(), session.fork()
    >>> a = zarr.create_array(fork.store, name="a", shape=(1,), dtype="i8")
    >>> b = zarr.create_array(other.store, name="b", shape=(1,), dtype="i8")
    >>> session.merge(merge_sessions([fork, other]))
    >>> sorted(zarr.open_group(session.store, mode="r").array_keys())
    ['a', 'b']
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
