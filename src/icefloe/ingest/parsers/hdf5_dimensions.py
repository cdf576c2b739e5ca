"""Names of the dimensions of HDF5 datasets: NetCDF4's scales, or numbered names where there are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

NOT_A_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"


def name_dimensions(datasets: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Dimension names per dataset of one group."""
    names: dict[str, tuple[str, ...]] = {}
    phony: dict[tuple[int, int], str] = {}
    for name, dataset in datasets.items():
        if dataset.shape is not None:
            names[name] = _names(name, dataset, phony)
    return names


def _names(name: str, dataset: Any, phony: dict[tuple[int, int], str]) -> tuple[str, ...]:
    attributes = dataset.attrs
    if "DIMENSION_LIST" in attributes:
        lists = attributes["DIMENSION_LIST"]
        found = [_scale_name(dataset, scales) if len(scales) else None for scales in lists]
    elif dataset.ndim == 1 and _is_scale(attributes):
        found = [name]
    elif dataset.ndim > 1 and _is_scale(attributes) and "_Netcdf4Coordinates" in attributes:
        # A coordinate variable of several dimensions is the scale of its first one only.
        sizes = np.asarray(attributes["_Netcdf4Coordinates"]).reshape(-1)
        found = [name] + [None] * (len(sizes) - 1)
    else:
        found = [None] * dataset.ndim
    used: dict[int, int] = {}
    for axis, label in enumerate(found):
        if label is None:
            size = int(dataset.shape[axis])
            repeat = used.get(size, 0)
            used[size] = repeat + 1
            found[axis] = phony.setdefault((size, repeat), f"phony_dim_{len(phony)}")
    return tuple(str(label) for label in found)


def _is_scale(attributes: Any) -> bool:
    return bool(attributes.get("CLASS", b"") in (b"DIMENSION_SCALE", "DIMENSION_SCALE"))


def _scale_name(dataset: Any, scales: Any) -> str:
    path = h5py.h5r.get_name(scales[0], dataset.file.id)
    return str(path.decode()).rsplit("/", 1)[-1]
