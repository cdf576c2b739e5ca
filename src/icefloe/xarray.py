"""Write xarray objects into a session. Dask-backed variables are written in parallel."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, MutableMapping
from typing import Any, Literal

import numpy as np
import xarray as xr
from xarray.backends.common import ArrayWriter
from xarray.backends.writers import dump_to_store
from xarray.backends.zarr import ZarrStore

from icefloe.dask import store_dask
from icefloe.errors import InvalidInputError
from icefloe.session.session import ForkSession, Session

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
    target = session if isinstance(session, ForkSession) or not _is_lazy(dataset) else session.fork()
    store = ZarrStore.open_group(
        store=target.store,
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
    if writer.sources:
        merged = store_dask(
            sources=writer.sources,
            targets=writer.targets,
            regions=writer.regions,
            split_every=split_every,
            **(chunkmanager_store_kwargs or {}),
        )
        if merged is not target:
            target.merge(merged)  # type: ignore[arg-type]
    if target is not session:
        session.merge(target)  # type: ignore[arg-type]


def _as_dataset(obj: xr.DataArray | xr.Dataset) -> xr.Dataset:
    if isinstance(obj, xr.Dataset):
        return obj
    if not isinstance(obj, xr.DataArray):
        raise InvalidInputError(f"to_icechunk writes Dataset and DataArray objects, got {type(obj).__name__}")
    if obj.name is None:
        raise InvalidInputError("the data array has no name; give it one with da.rename('name')")
    if obj.name in obj.coords or obj.name in obj.dims:
        raise InvalidInputError(f"the data array is named {obj.name!r} like one of its coordinates; rename it first")
    return obj.to_dataset()


def _is_lazy(dataset: xr.Dataset) -> bool:
    return any(hasattr(variable.data, "__dask_graph__") for variable in dataset.variables.values())


def _choose_mode(mode: Mode | None, append_dim: Hashable | None, region: Region) -> Mode:
    """Return the mode that `to_zarr` uses if none is given."""
    if mode is None:
        return "a" if append_dim is not None else "r+" if region is not None else "w-"
    if append_dim is not None and mode not in ("a", "a-"):
        raise InvalidInputError(f"mode={mode!r} with append_dim: use 'a'")
    if region is not None and mode not in ("a", "a-", "r+"):
        raise InvalidInputError(f"mode={mode!r} with region: use 'a' or 'r+'")
    return mode


to_icefloe = to_icechunk

__all__ = ["to_icechunk", "to_icefloe"]
