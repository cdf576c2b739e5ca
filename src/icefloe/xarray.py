"""Write xarray objects into a session. Dask-backed variables are written in parallel."""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable, Mapping, MutableMapping
from typing import Any, Literal

import numpy as np
import xarray as xr
import zarr
from xarray.backends.common import ArrayWriter, BackendEntrypoint
from xarray.backends.writers import dump_to_store
from xarray.backends.zarr import ZarrBackendEntrypoint, ZarrStore

from icefloe.dask import store_dask
from icefloe.errors import InvalidInputError
from icefloe.repository import Repository
from icefloe.repository.url import RepositoryUrl
from icefloe.session.session import Session
from icefloe.storage.build import REPOSITORY_PART, storage_from_url

Mode = Literal["w", "w-", "a", "a-", "r+", "r"]
Region = Mapping[str, slice | Literal["auto"]] | Literal["auto"] | None


class _Collector(ArrayWriter):
    """Collects lazy variables and variables in memory separately, instead of writing them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.eager: list[tuple[Any, Any, Any]] = []

    def add(self, source: Any, target: Any, region: Any = None) -> None:
        if hasattr(source, "__dask_graph__"):
            self.sources.append(source)
            self.targets.append(target)
            self.regions.append(region)
        else:
            self.eager.append((source, target, region))


def to_icechunk(
    obj: xr.DataArray | xr.Dataset,
    session: Session,
    *,
    group: str | None = None,
    mode: Mode | None = None,
    safe_chunks: bool = True,
    align_chunks: bool = False,
    append_dim: Hashable | None = None,
    region: Region = None,
    encoding: Mapping[Any, Any] | None = None,
    chunkmanager_store_kwargs: MutableMapping[Any, Any] | None = None,
    split_every: int | None = None,
    **kwargs: Any,
) -> None:
    """Write an xarray object into a session. Commit the session afterwards.

    All Dask schedulers are supported. Workers write chunks to the storage and send back only references.

    Parameters
    ----------
    obj
        The dataset or data array.
    session
        A writable session, or a fork of one.
    group, mode, safe_chunks, align_chunks, append_dim, region, encoding
        As in `xarray.Dataset.to_zarr`.
    chunkmanager_store_kwargs
        Arguments of `dask.compute`, such as `{"scheduler": "processes"}`.
    split_every
        The number of worker sessions that are merged at a time.
    **kwargs
        Further arguments of xarray's `ZarrStore.open_group`.

    Raises
    ------
    InvalidInputError
        The object is not a dataset or a named data array, or `mode` contradicts `append_dim` or `region`.

    Examples
    --------
    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> to_icechunk(xr.Dataset({"t": ("x", [1.0, 2.0])}), session)
    >>> snapshot = session.commit("Write t")
    >>> xr.open_zarr(repo.readonly_session("main").store, consolidated=False)["t"].values
    array([1., 2.])
    """
    dataset = _as_dataset(obj)
    store = ZarrStore.open_group(
        store=session.store,
        group=group,
        mode=_choose_mode(mode, append_dim, region),
        zarr_format=3,
        append_dim=append_dim,
        write_region=region,
        safe_chunks=safe_chunks,
        align_chunks=align_chunks,
        consolidated=False,
        consolidate_on_close=False,
        **kwargs,
    )
    dataset = store._validate_and_autodetect_region(dataset)
    store._validate_encoding(encoding or {})
    writer = _Collector()
    dump_to_store(dataset, store, writer, encoding=dict(encoding or {}))  # type: ignore[no-untyped-call]
    for source, array, part in writer.eager:
        array[part if part is not None else ...] = np.asarray(source)
    if not writer.sources:
        return
    # The session creates and resizes the arrays. Its forks only write chunks, so that they never exclude each other.
    fork = Session.fork(session)
    merged = store_dask(
        sources=writer.sources,
        targets=[zarr.open_array(fork.store, path=target.path, mode="r+") for target in writer.targets],
        regions=writer.regions,
        split_every=split_every,
        **(chunkmanager_store_kwargs or {}),
    )
    session.merge(merged)  # type: ignore[arg-type]


def _as_dataset(obj: xr.DataArray | xr.Dataset) -> xr.Dataset:
    if isinstance(obj, xr.Dataset):
        return obj
    if not isinstance(obj, xr.DataArray):
        raise InvalidInputError(f"to_icechunk writes Dataset and DataArray objects, got {type(obj).__name__}")
    if obj.name is None or obj.name in obj.coords or obj.name in obj.dims:
        # xarray has names for these, and gives the array its own name back when it is read.
        named = obj.to_dataset(name="__xarray_dataarray_variable__")
        return named if obj.name is None else named.assign_attrs({"__xarray_dataarray_name__": obj.name})
    return obj.to_dataset()


def _choose_mode(mode: Mode | None, append_dim: Hashable | None, region: Region) -> Mode:
    """Return the mode that `to_zarr` uses if none is given."""
    if mode is None:
        return "a" if append_dim is not None else "r+" if region is not None else "w-"
    if append_dim is not None and mode not in ("a", "a-"):
        raise InvalidInputError(f"mode={mode!r} with append_dim: use 'a'")
    if region is not None and mode not in ("a", "a-", "r+"):
        raise InvalidInputError(f"mode={mode!r} with region: use 'a' or 'r+'")
    return mode


class IcefloeBackendEntrypoint(BackendEntrypoint):
    """The engine `icefloe` of xarray: `xr.open_dataset("s3://bucket/repo", engine="icefloe", branch="main")`.

    Examples
    --------
    >>> import icefloe, numpy as np, xarray as xr
    >>> repo = icefloe.Repository.create("memory://engine-example/repo")
    >>> session = repo.writable_session("main")
    >>> to_icechunk(xr.Dataset({"t": ("x", np.arange(3.0))}), session)
    >>> _ = session.commit("first")
    >>> xr.open_dataset("memory://engine-example/repo", engine=IcefloeBackendEntrypoint).t.values.tolist()
    [0.0, 1.0, 2.0]
    """

    description = "Open repositories of Icefloe and Icechunk"
    supports_groups = True
    open_dataset_parameters = ("filename_or_obj", "drop_variables", "group", "branch", "tag", "snapshot_id", "as_of")

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        group: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: dt.datetime | None = None,
        storage_options: Mapping[str, Any] | None = None,
        authorize_virtual_chunk_access: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> xr.Dataset:
        """Open a group of a repository as a dataset.

        Parameters
        ----------
        filename_or_obj
            The URL or path of the repository, or a storage, a repository or a session. A URL can also contain what to
            read: `s3://bucket/repo|icechunk://tag.v1/group` (see `RepositoryUrl`).
        group
            Path of the group. None means the root.
        branch, tag, snapshot_id, as_of
            What to read, as in `Repository.readonly_session`. By default the newest snapshot of `main`.
        storage_options
            Options of `icefloe.storage_from_url`, for a URL.
        authorize_virtual_chunk_access
            Credentials for each virtual chunk container, by URL prefix.
        **kwargs
            Options of xarray's Zarr engine, such as `decode_times`.

        Returns
        -------
        xarray.Dataset
            The dataset. Its variables are read when they are needed.
        """
        choice = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
        store, group = _open_store(
            filename_or_obj, storage_options, authorize_virtual_chunk_access, choice=choice, group=group
        )
        return ZarrBackendEntrypoint().open_dataset(store, group=group, consolidated=False, zarr_format=3, **kwargs)

    def open_datatree(
        self,
        filename_or_obj: Any,
        *,
        group: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: dt.datetime | None = None,
        storage_options: Mapping[str, Any] | None = None,
        authorize_virtual_chunk_access: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> xr.DataTree:
        """Open a group of a repository, with all groups below it. The arguments are those of `open_dataset`."""
        choice = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
        store, group = _open_store(
            filename_or_obj, storage_options, authorize_virtual_chunk_access, choice=choice, group=group
        )
        return ZarrBackendEntrypoint().open_datatree(store, group=group, consolidated=False, zarr_format=3, **kwargs)

    def open_groups_as_dict(self, filename_or_obj: Any, **kwargs: Any) -> dict[str, xr.Dataset]:
        """Open all groups of a repository. The arguments are those of `open_dataset`."""
        choice = {name: kwargs.pop(name, None) for name in ("branch", "tag", "snapshot_id", "as_of")}
        options = [kwargs.pop(name, None) for name in ("storage_options", "authorize_virtual_chunk_access")]
        store, group = _open_store(filename_or_obj, *options, choice=choice, group=kwargs.pop("group", None))
        return ZarrBackendEntrypoint().open_groups_as_dict(
            store, group=group, consolidated=False, zarr_format=3, **kwargs
        )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether the object is a repository, a session or a URL with `|icechunk:`. Other URLs do not tell."""
        if isinstance(filename_or_obj, str):
            return REPOSITORY_PART.search(filename_or_obj) is not None
        return isinstance(filename_or_obj, Repository | Session)


def _open_store(
    place: Any,
    storage_options: Mapping[str, Any] | None,
    authorized: Mapping[str, Any] | None,
    *,
    choice: Mapping[str, Any],
    group: str | None,
) -> tuple[Any, str | None]:
    """Return the store of the chosen snapshot, and the path of the group."""
    given = {name: value for name, value in choice.items() if value is not None}
    if isinstance(place, Session):
        return place.store, group
    if isinstance(place, Repository):
        repo = place
    else:
        if isinstance(place, str):
            url = RepositoryUrl.parse(place)
            place, given, group = url.location, url.choose(given), url.choose_path(group)
        storage = storage_from_url(str(place), **storage_options) if storage_options else place
        repo = Repository.open(storage, authorize_virtual_chunk_access=authorized)
    if not given.keys() & {"branch", "tag", "snapshot_id"}:
        given["branch"] = "main"
    return repo.readonly_session(**given).store, group


to_icefloe = to_icechunk

__all__ = ["to_icechunk", "to_icefloe"]
