"""A small world of files, and ways to open what became of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from icefloe import Repository

GRID: dict[str, Any] = {"nlat": 19, "nlon": 36, "variables": ("t2m", "tp")}
"""A small world: one file is a few dozen kilobytes."""


@pytest.fixture
def opened() -> Callable[..., xr.Dataset]:
    """Opens a branch of a repository as a loaded dataset."""

    def open_dataset(place: object, *containers: str, group: str | None = None, branch: str = "main") -> xr.Dataset:
        repository = Repository.open(str(place), authorize_virtual_chunk_access=dict.fromkeys(containers))
        store = repository.readonly_session(branch).store
        return xr.open_zarr(store, group=group, consolidated=False).load()

    return open_dataset


@pytest.fixture
def expected() -> Callable[..., xr.Dataset]:
    """Opens NetCDF files together, as xarray reads them."""

    def open_files(*folders: Path) -> xr.Dataset:
        paths = sorted(str(path) for folder in folders for path in folder.glob("*.nc"))
        return xr.open_mfdataset(
            paths, engine="netcdf4", data_vars="minimal", coords="minimal", compat="override"
        ).load()

    return open_files
