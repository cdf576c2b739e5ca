"""The grids of GRIB messages: dimensions, coordinates and the map projection, from ecCodes' latitudes and longitudes.

Regular grids have one-dimensional coordinates `latitude` and `longitude`. Rotated and projected grids have the
dimensions `y` and `x` with two-dimensional coordinates and a CF grid mapping. Reduced, HEALPix and other unstructured
grids have one dimension `values`. Spectral fields, and grids that a message only names, have no coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import eccodes
import numpy as np
import numpy.typing as npt

_NORTH = {"standard_name": "latitude", "long_name": "latitude", "units": "degrees_north"}
_EAST = {"standard_name": "longitude", "long_name": "longitude", "units": "degrees_east"}
_GRID_KEYS = (
    "Nx",
    "Ny",
    "iScansNegatively",
    "jScansPositively",
    "jPointsAreConsecutive",
    "DxInMetres",
    "DyInMetres",
    "iDirectionIncrementInDegrees",
    "jDirectionIncrementInDegrees",
    "latitudeOfFirstGridPointInDegrees",
    "longitudeOfFirstGridPointInDegrees",
    "latitudeOfLastGridPointInDegrees",
    "longitudeOfLastGridPointInDegrees",
    "latitudeOfSouthernPoleInDegrees",
    "longitudeOfSouthernPoleInDegrees",
    "angleOfRotationInDegrees",
    "LaDInDegrees",
    "LoVInDegrees",
    "Latin1InDegrees",
    "Latin2InDegrees",
    "orientationOfTheGridInDegrees",
    "standardParallelInDegrees",
    "centralLongitudeInDegrees",
    "projectionCentreFlag",
    "N",
    "Nside",
    "orderingConvention",
    "numberOfGridUsed",
    "numberOfGridInReference",
    "uuidOfHGrid",
    "J",
    "K",
    "M",
)
_UNDEFINED = (2147483647, "MISSING")


@dataclass(frozen=True, slots=True)
class GridCoordinate:
    """Latitudes or longitudes."""

    name: str
    dims: tuple[str, ...]
    values: npt.NDArray[np.float64]
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid, and the order of the values of a message on it."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    coordinates: tuple[GridCoordinate, ...] = ()
    is_transposed: bool = False
    """Whether the points of one column are consecutive in the message."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    mapping: Mapping[str, Any] | None = None
    """Attributes of the CF grid mapping variable."""
    mapping_name: str = ""

    def shaped(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A message's values as an array over the grid's dimensions."""
        return values.reshape(self.shape[::-1]).T if self.is_transposed else values.reshape(self.shape)

    def numbered(self, number: int) -> Grid:
        """The grid with numbered names, if it is not the first one of its file."""
        if number == 0:
            return self
        names = {name: f"{name}_{number + 1}" for name in (*self.dims, *(c.name for c in self.coordinates))}
        coordinates = tuple(
            replace(c, name=names[c.name], dims=tuple(names[d] for d in c.dims)) for c in self.coordinates
        )
        mapping_name = f"{self.mapping_name}_{number + 1}" if self.mapping_name else ""
        return replace(
            self, dims=tuple(names[d] for d in self.dims), coordinates=coordinates, mapping_name=mapping_name
        )


def describe_grid(handle: Any) -> Grid:
    """The grid of a message."""
    kind = str(_find(handle, "gridType"))
    count = int(eccodes.codes_get_size(handle, "values"))
    columns, rows = _find(handle, "Nx"), _find(handle, "Ny")
    facts = {f"GRIB_{k}": v for k in _GRID_KEYS if (v := _find(handle, k)) is not None}
    latitudes, longitudes = _positions(handle, count)
    has_mesh = isinstance(columns, int) and isinstance(rows, int) and columns * rows == count
    if has_mesh and kind in ("regular_ll", "regular_gg") and latitudes is not None and longitudes is not None:
        found = _separable(latitudes, longitudes, (int(rows), int(columns)))
        if found is not None:
            return replace(found, attributes=facts)
    # Two-dimensional coordinates are equal if the sections that they are computed from are.
    facts["GRIB_md5GridSection"] = str(_find(handle, "md5GridSection"))
    mapping = _grid_mapping(handle, kind)
    grid = Grid(("values",), (count,))
    if has_mesh:
        is_transposed = bool(_find(handle, "jPointsAreConsecutive")) and _follows_columns(handle, latitudes, longitudes)
        grid = Grid(("y", "x"), (int(rows), int(columns)), is_transposed=is_transposed)
    coordinates: tuple[GridCoordinate, ...] = ()
    if latitudes is not None and longitudes is not None:
        coordinates = (
            GridCoordinate("latitude", grid.dims, grid.shaped(latitudes), _NORTH),
            GridCoordinate("longitude", grid.dims, grid.shaped(longitudes), _EAST),
        )
    name = str(mapping["grid_mapping_name"]) if mapping else ""
    return replace(grid, coordinates=coordinates, attributes=facts, mapping=mapping, mapping_name=name)


def _find(handle: Any, key: str) -> Any:
    if not eccodes.codes_is_defined(handle, key):
        return None
    try:
        value = eccodes.codes_get(handle, key)
    except eccodes.CodesInternalError:
        return None
    return None if value in _UNDEFINED else value


def _positions(handle: Any, count: int) -> tuple[npt.NDArray[np.float64] | None, npt.NDArray[np.float64] | None]:
    """Latitude and longitude of every value. None if ecCodes does not know them."""
    try:
        latitudes = np.asarray(eccodes.codes_get_array(handle, "latitudes"), dtype=np.float64)
        longitudes = np.asarray(eccodes.codes_get_array(handle, "longitudes"), dtype=np.float64)
    except eccodes.CodesInternalError:
        return None, None
    return (latitudes, longitudes) if len(latitudes) == len(longitudes) == count else (None, None)


def _separable(
    latitudes: npt.NDArray[np.float64], longitudes: npt.NDArray[np.float64], shape: tuple[int, int]
) -> Grid | None:
    """The grid with one latitude per row and one longitude per column, for any order of the values."""
    for is_transposed in (False, True):
        grid = Grid(("latitude", "longitude"), shape, is_transposed=is_transposed)
        north, east = grid.shaped(latitudes), grid.shaped(longitudes)
        if (north == north[:, :1]).all() and (east == east[:1]).all():
            rows = GridCoordinate("latitude", ("latitude",), north[:, 0].copy(), _NORTH)
            columns = GridCoordinate("longitude", ("longitude",), east[0].copy(), _EAST)
            return replace(grid, coordinates=(rows, columns))
    return None


def _follows_columns(handle: Any, latitudes: Any, longitudes: Any) -> bool:
    """Whether ecCodes' coordinates follow `jPointsAreConsecutive`. For some projections they do not."""
    if latitudes is None:
        return True
    other = eccodes.codes_clone(handle)
    try:
        eccodes.codes_set(other, "jPointsAreConsecutive", 0)
        by_rows = _positions(other, len(latitudes))
    except eccodes.CodesInternalError:
        return True
    finally:
        eccodes.codes_release(other)
    same = all(a is not None and np.array_equal(a, b) for a, b in zip(by_rows, (latitudes, longitudes), strict=True))
    return not same


def _grid_mapping(handle: Any, kind: str) -> dict[str, Any] | None:
    """The CF grid mapping of a projection."""

    def get(key: str) -> float:
        return float(_find(handle, key) or 0.0)

    match kind:
        case "rotated_ll" | "rotated_gg" | "reduced_rotated_gg":
            mapping: dict[str, Any] = {
                "grid_mapping_name": "rotated_latitude_longitude",
                "grid_north_pole_latitude": -get("latitudeOfSouthernPoleInDegrees"),
                "grid_north_pole_longitude": (get("longitudeOfSouthernPoleInDegrees") + 180.0) % 360.0,
                "north_pole_grid_longitude": get("angleOfRotationInDegrees"),
            }
        case "polar_stereographic":
            south = int(get("projectionCentreFlag")) & 128 or int(get("southPoleOnProjectionPlane"))
            mapping = {
                "grid_mapping_name": "polar_stereographic",
                "latitude_of_projection_origin": -90.0 if south else 90.0,
                "straight_vertical_longitude_from_pole": get("orientationOfTheGridInDegrees"),
                "standard_parallel": _find(handle, "LaDInDegrees") or (-60.0 if south else 60.0),
            }
        case "lambert" | "albers":
            name = "lambert_conformal_conic" if kind == "lambert" else "albers_conical_equal_area"
            mapping = {
                "grid_mapping_name": name,
                "standard_parallel": sorted({get("Latin1InDegrees"), get("Latin2InDegrees")}),
                "longitude_of_central_meridian": get("LoVInDegrees"),
                "latitude_of_projection_origin": _find(handle, "LaDInDegrees") or get("Latin1InDegrees"),
            }
        case "mercator":
            mapping = {
                "grid_mapping_name": "mercator",
                "standard_parallel": get("LaDInDegrees"),
                "longitude_of_projection_origin": 0.0,
            }
        case "lambert_azimuthal_equal_area":
            mapping = {
                "grid_mapping_name": "lambert_azimuthal_equal_area",
                "latitude_of_projection_origin": get("standardParallelInDegrees"),
                "longitude_of_projection_origin": get("centralLongitudeInDegrees"),
            }
        case _:
            return None
    return {**mapping, **_earth(handle)}


def _earth(handle: Any) -> dict[str, float]:
    """The figure of the Earth, in metres."""
    radius = _find(handle, "radius")
    if radius:
        return {"earth_radius": float(radius)}
    major, minor = (_find(handle, k) for k in ("earthMajorAxisInMetres", "earthMinorAxisInMetres"))
    if major and minor:
        return {"semi_major_axis": float(major), "semi_minor_axis": float(minor)}
    return {}
