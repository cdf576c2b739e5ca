"""Parse the arguments of jobs: repositories and sessions, groups, regions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import xarray as xr

from icefloe.errors import InvalidInputError, NodeNotFoundError, suggest
from icefloe.repository import Repository
from icefloe.session.session import Session
from icefloe.storage.build import resolve_storage

Source: TypeAlias = "Session | Repository | str | os.PathLike[str]"
Target: TypeAlias = "Repository | str | os.PathLike[str]"
Bounds: TypeAlias = Mapping[str, "slice | tuple[int, int]"]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job that writes.

    Attributes
    ----------
    snapshot_id
        The new snapshot.
    tasks
        The number of tasks.
    references
        The number of chunk references written.
    seconds
        The duration of the job.

    Examples
    --------
    >>> JobOutcome("J0YW0WNV6JWY3RH21G7G", tasks=8, references=64, seconds=1.5).tasks
    8
    """

    snapshot_id: str
    tasks: int
    references: int
    seconds: float


def open_source_and_target(source: Source, target: Target, branch: str) -> tuple[Session, Callable[[], Session]]:
    """Return the session that a job reads, and a function that returns the session it writes.

    If a job reads and writes one branch, both sessions use the same snapshot. A commit that is made while the job runs
    is rebased over or is a conflict. A target that does not exist is created when the writing session is requested.
    """
    origin = source if isinstance(source, Session) else existing_repository(source)
    storage = target.storage if isinstance(target, Repository) else resolve_storage(os.fspath(target))
    if not isinstance(target, Repository) and not Repository.exists(storage):
        return reading_session(origin), lambda: writing_repository(target).writable_session(branch)
    repository = existing_repository(target)
    writer = repository.writable_session(branch)
    if isinstance(origin, Repository) and branch == "main" and origin.storage == repository.storage:
        return origin.readonly_session(snapshot_id=writer.snapshot_id), lambda: writer
    return reading_session(origin), lambda: writer


def unknown_name(what: str, name: str, known: Iterable[Any], *, option: str = "") -> InvalidInputError:
    """Return the error for an unknown name in the argument `option`, with the most similar known name."""
    names = [str(each) for each in known]
    near = suggest(str(name), names)
    where = f"{option}: " if option else ""
    return InvalidInputError(f"{where}there is no {what} {name!r}{near}. There are: {', '.join(names) or 'none'}")


def reading_session(source: Source) -> Session:
    """Return a read-only session. For a repository, it is at the tip of the branch `main`."""
    if isinstance(source, Session):
        if not source.read_only:
            raise InvalidInputError(
                "jobs only read committed data. Commit the session, then pass a read-only session or the repository"
            )
        return source
    return existing_repository(source).readonly_session("main")


def existing_repository(target: Target) -> Repository:
    """Return an existing repository, or open it from its path or URL."""
    return target if isinstance(target, Repository) else Repository.open(resolve_storage(os.fspath(target)))


def writing_repository(target: Target) -> Repository:
    """Return a repository for writing. If it does not exist, it is created."""
    if isinstance(target, Repository):
        return target
    return Repository.open_or_create(resolve_storage(os.fspath(target)))


def open_dataset(session: Session, group: str = "", variables: Sequence[str] | None = None) -> xr.Dataset:
    """Open the arrays of a group as a lazy dataset, decoded by the CF conventions."""
    path = group.strip("/")
    try:
        dataset: xr.Dataset = xr.open_zarr(session.store, group=path or None, consolidated=False, chunks=None)
    except (FileNotFoundError, KeyError) as error:
        raise NodeNotFoundError(f"there is no group /{path} in snapshot {session.snapshot_id}", path=path) from error
    if variables is None:
        return dataset
    missing = [name for name in variables if name not in dataset.variables]
    if missing:
        raise NodeNotFoundError(
            str(unknown_name("variable", missing[0], dataset.data_vars, option=f"/{path}")), path=path
        )
    return dataset[list(variables)]


def node_path(group: str, name: str) -> str:
    """Return the path of an array in a group."""
    return "/" + "/".join([*filter(None, group.split("/")), name])


def select_region(dataset: xr.Dataset, region: Bounds | None) -> xr.Dataset:
    """Select the cells of a region, given as [first, end) by dimension."""
    if not region:
        return dataset
    return dataset.isel(parse_bounds(region, {str(d): n for d, n in dataset.sizes.items()}))


def parse_bounds(region: Bounds, sizes: Mapping[str, int]) -> dict[str, slice]:
    """Return bounds as slices with both ends, checked against the sizes."""
    parsed: dict[str, slice] = {}
    for dim, bounds in region.items():
        if dim not in sizes:
            raise unknown_name("dimension", dim, sizes, option="region")
        part: Any = bounds if isinstance(bounds, slice) else slice(*bounds)
        first, end, step = part.indices(sizes[dim])
        if step != 1 or end <= first:
            raise InvalidInputError(f"the region {bounds} along {dim} is empty, or has a step")
        parsed[dim] = slice(first, end)
    return parsed
