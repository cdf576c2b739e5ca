"""A small world to query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import icefloe
from icefloe.xarray import to_icechunk


@pytest.fixture(scope="session")
def weather() -> xr.Dataset:
    """Temperatures with gaps, packed wind, on one grid; an altitude on another."""
    rng = np.random.default_rng(7)
    shape = (12, 7, 9)
    t2m = rng.uniform(250, 310, shape).astype("f4")
    t2m[rng.uniform(size=shape) < 0.05] = np.nan
    wind = np.round(rng.uniform(0, 30, shape), 1)
    wind[rng.uniform(size=shape) < 0.05] = np.nan
    coords = {
        "time": pd.date_range("2020-01-01", periods=12, freq="6h"),
        "lat": np.linspace(-90, 90, 7),
        "lon": np.arange(9) * 40.0,
    }
    dims = ("time", "lat", "lon")
    return xr.Dataset(
        {"t2m": (dims, t2m), "wind": (dims, wind), "altitude": (("lat", "lon"), rng.uniform(0, 4000, shape[1:]))},
        coords=coords,
    )


ENCODING: dict[str, Any] = {
    "t2m": {"chunks": (4, 3, 5)},
    "wind": {"chunks": (4, 3, 5), "dtype": "i2", "scale_factor": 0.1, "_FillValue": -999},
}


@pytest.fixture
def place(tmp_path: Path, weather: xr.Dataset) -> str:
    """A repository with the weather, at a path."""
    path = str(tmp_path / "repo")
    repo = icefloe.Repository.create(path)
    session = repo.writable_session("main")
    to_icechunk(weather, session, encoding=ENCODING)
    session.commit("weather")
    return path


@pytest.fixture
def stored() -> Callable[..., xr.Dataset]:
    """Opens a branch of a repository as a loaded dataset."""

    def open_dataset(place: str, branch: str = "main") -> xr.Dataset:
        store = icefloe.Repository.open(place).readonly_session(branch).store
        return xr.open_zarr(store, consolidated=False).load()

    return open_dataset
