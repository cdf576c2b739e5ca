"""What jobs read from and write to: repositories and sessions, however the caller names them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import xarray as xr

from icefloe.errors import InvalidInputError, NodeNotFoundError
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


def reading_session(source: Source) -> Session:
    """A read-only session; a repository stands for the tip of its branch `main`."""
    if isinstance(source, Session):
        if not source.read_only:
            raise InvalidInputError("jobs read committed data: commit, then give a read-only session or the repository")
        return source
    repository = source if isinstance(source, Repository) else Repository.open(resolve_storage(os.fspath(source)))
    return repository.readonly_session("main")


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
            f"/{path} has no variable {missing[0]!r}; it has {', '.join(map(str, dataset.data_vars))}", path=path
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
            raise InvalidInputError(f"the region names {dim!r}; the dimensions are {', '.join(sizes)}")
        part: Any = bounds if isinstance(bounds, slice) else slice(*bounds)
        first, end, step = part.indices(sizes[dim])
        if step != 1 or end <= first:
            raise InvalidInputError(f"the region {bounds} along {dim} has no cells, or leaves some out")
        parsed[dim] = slice(first, end)
    return parsed
