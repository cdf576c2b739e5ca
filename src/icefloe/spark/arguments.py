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
    """What a job that writes did."""

    snapshot_id: str
    tasks: int
    references: int
    seconds: float


def open_places(source: Source, target: Target, branch: str) -> tuple[Session, Callable[[], Session]]:
    """The session that a job reads, and a way to the one that it writes.

    Where a job reads and writes one branch, both stand on the same snapshot: a commit that lands while the job runs is
    rebased over or conflicts. A target that is not there is created when the writer is asked for.
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
    """The error for a name that is not there, with the nearest one that is; `option` is where it was given."""
    names = [str(each) for each in known]
    near = suggest(str(name), names)
    where = f"{option}: " if option else ""
    return InvalidInputError(f"{where}there is no {what} {name!r}{near}; there are {', '.join(names) or 'none'}")


def reading_session(source: Source) -> Session:
    """A read-only session; a repository stands for the tip of its branch `main`."""
    if isinstance(source, Session):
        if not source.read_only:
            raise InvalidInputError("jobs read committed data: commit, then give a read-only session or the repository")
        return source
    return existing_repository(source).readonly_session("main")


def existing_repository(place: Target) -> Repository:
    """A repository that is there, given itself or by its path or URL."""
    return place if isinstance(place, Repository) else Repository.open(resolve_storage(os.fspath(place)))


def writing_repository(target: Target) -> Repository:
    """A repository to write to; one that is not there is created."""
    if isinstance(target, Repository):
        return target
    return Repository.open_or_create(resolve_storage(os.fspath(target)))


def open_dataset(session: Session, group: str = "", variables: Sequence[str] | None = None) -> xr.Dataset:
    """The arrays of a group as a lazy dataset, decoded by CF rules."""
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
    """The path of an array in a group."""
    return "/" + "/".join([*filter(None, group.split("/")), name])


def select_region(dataset: xr.Dataset, region: Bounds | None) -> xr.Dataset:
    """The cells of a region, given as [first, end) by dimension."""
    if not region:
        return dataset
    return dataset.isel(parse_bounds(region, {str(d): n for d, n in dataset.sizes.items()}))


def parse_bounds(region: Bounds, sizes: Mapping[str, int]) -> dict[str, slice]:
    """Bounds as slices with both ends, checked against the sizes."""
    parsed: dict[str, slice] = {}
    for dim, bounds in region.items():
        if dim not in sizes:
            raise unknown_name("dimension", dim, sizes, option="region")
        part: Any = bounds if isinstance(bounds, slice) else slice(*bounds)
        first, end, step = part.indices(sizes[dim])
        if step != 1 or end <= first:
            raise InvalidInputError(f"the region {bounds} along {dim} has no cells, or leaves some out")
        parsed[dim] = slice(first, end)
    return parsed
