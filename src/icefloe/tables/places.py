"""How a task reaches a repository: an address with options, or a repository that was opened elsewhere."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from icefloe.errors import InvalidInputError
from icefloe.repository import Repository
from icefloe.session.session import Session
from icefloe.storage.build import storage_from_url

DRIVER_VARIABLE = "ICEFLOE_DRIVER_PID"
"""The environment variable in which processes that Spark starts find the process id of the driver."""
_SECRETS = ("secret", "token", "password", "access_key", "account_key", "service_account_key", "bearer")


@dataclass(frozen=True, slots=True)
class Place:
    """What opens a repository in another process; never shows credentials."""

    url: str
    storage_options: tuple[tuple[str, Any], ...] = ()
    authorize: tuple[str, ...] = ()
    packed: bytes | None = None
    """A pickled repository, whose credentials travel with it."""

    def __repr__(self) -> str:
        return f"Place({self.url!r})"

    def __post_init__(self) -> None:
        for name, _ in self.storage_options:
            if any(word in name.lower() for word in _SECRETS):
                raise InvalidInputError(
                    f"the option storage.{name} would be shown in query plans and kept in tables; let every process "
                    "find its credentials in the environment, or pass an opened repository to icefloe.spark.table"
                )


def place_of(repository: Repository | str | os.PathLike[str]) -> Place:
    """The place of a repository: an opened one takes along everything it was opened with."""
    if not isinstance(repository, Repository):
        return Place(absolute_address(os.fspath(repository)))
    return Place(repository.storage.url, packed=pickle.dumps(repository))


def absolute_address(address: str) -> str:
    """A URL as it is; a path from the root on. A relative path is one in the working directory of the driver."""
    if "://" in address:
        return address
    path = os.path.expanduser(address.removeprefix("file:"))
    return os.path.abspath(path if os.path.isabs(path) else os.path.join(_driver_folder(path), path))


def _driver_folder(path: str) -> str:
    """The working directory of the driver.

    Spark plans the reads and writes of a data source in a Python process that the JVM starts: its working directory is
    the one that the driver had when the session started, or that of a server.
    """
    started_as = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None) or ""
    if not started_as.startswith("pyspark."):
        return os.getcwd()
    try:
        return os.readlink(f"/proc/{os.environ[DRIVER_VARIABLE]}/cwd")
    except (KeyError, OSError):
        raise InvalidInputError(
            f"the path {path!r} is relative, and the process in which Spark plans this cannot tell the working "
            "directory of the driver; give the whole path"
        ) from None


@lru_cache(maxsize=8)
def open_place(place: Place) -> Repository:
    """The repository; opened once per process."""
    if place.packed is not None:
        repository: Repository = pickle.loads(place.packed)
        return repository
    storage = storage_from_url(place.url, **dict(place.storage_options))
    return Repository.open(storage, authorize_virtual_chunk_access=dict.fromkeys(place.authorize))


@lru_cache(maxsize=8)
def session_at(place: Place, snapshot_id: str) -> Session:
    """A read-only session at a snapshot; opened once per process."""
    return open_place(place).readonly_session(snapshot_id=snapshot_id)
