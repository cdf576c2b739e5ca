"""Synthetic weather as files of several formats, the same for the same seed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt
import zarr

from icefloe.errors import InvalidInputError

_NUMBERS = {"i1": 1, "S1": 2, "i2": 3, "i4": 4, "f4": 5, "f8": 6, "u1": 7, "u2": 8, "u4": 9, "i8": 10, "u8": 11}

Variables = Mapping[str, tuple[tuple[str, ...], npt.NDArray[Any], Mapping[str, Any]]]
"""By name: dimensions, values, attributes."""


def write_netcdf3(
    path: str | Path,
    variables: Variables,
    attributes: Mapping[str, Any],
    *,
    record_dim: str | None = None,
    version: int = 2,
) -> None:
    """Write a CDF-1, CDF-2 or CDF-5 file; variables that start with `record_dim` are stored record by record."""
    if version not in (1, 2, 5):
        raise InvalidInputError(f"there is no NetCDF classic version {version}")
    sizes: dict[str, int] = {}
    for dims, values, _ in variables.values():
        sizes.update(zip(dims, values.shape, strict=True))
    records = sizes.get(record_dim, 0) if record_dim is not None else 0
    layout = {n: _record_bytes(d, v, record_dim) for n, (d, v, _) in variables.items()}
    of_records = [n for n, (d, _, _) in variables.items() if d and d[0] == record_dim]
    if len(of_records) == 1:
        layout[of_records[0]] = (layout[of_records[0]][1], layout[of_records[0]][1])
    fixed = [n for n in variables if n not in of_records]
    begins = dict.fromkeys(variables, 0)
    size = len(_header(variables, attributes, sizes, records, record_dim, version, begins, layout))
    for name in (*fixed, *of_records):
        begins[name] = size
        size += layout[name][0]
    with Path(path).open("wb") as file:
        file.write(_header(variables, attributes, sizes, records, record_dim, version, begins, layout))
        for name in fixed:
            file.write(_padded(_big(variables[name][1]).tobytes()))
        for record in range(records):
            for name in of_records:
                data = _big(variables[name][1][record]).tobytes()
                file.write(data.ljust(layout[name][0], b"\x00"))


def _record_bytes(dims: tuple[str, ...], values: npt.NDArray[Any], record_dim: str | None) -> tuple[int, int]:
    """Padded and plain bytes of one record (or of the whole)."""
    shape = values.shape[1:] if dims and dims[0] == record_dim else values.shape
    plain = int(np.prod(shape, dtype=np.int64)) * values.dtype.itemsize
    return -(-plain // 4) * 4, plain


def _big(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder(">"))


def _padded(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // 4) * 4, b"\x00")


def _header(
    variables: Variables,
    attributes: Mapping[str, Any],
    sizes: Mapping[str, int],
    records: int,
    record_dim: str | None,
    version: int,
    begins: Mapping[str, int],
    layout: Mapping[str, tuple[int, int]],
) -> bytes:
    wide = 8 if version == 5 else 4
    place = 4 if version == 1 else 8

    def number(value: int, size: int = wide) -> bytes:
        return value.to_bytes(size, "big")

    def text(value: str) -> bytes:
        data = value.encode()
        return number(len(data)) + _padded(data)

    def described(pairs: Mapping[str, Any]) -> bytes:
        if not pairs:
            return number(0, 4) + number(0)
        return number(12, 4) + number(len(pairs)) + b"".join(text(k) + _attribute(v, number) for k, v in pairs.items())

    dims = list(sizes)
    parts = [b"CDF" + bytes([version]), number(records), number(10, 4), number(len(dims))]
    parts += [text(d) + number(0 if d == record_dim else sizes[d]) for d in dims]
    parts += [described(attributes), number(11, 4), number(len(variables))]
    for name, (own, values, pairs) in variables.items():
        code = _NUMBERS[values.dtype.str[1:]]
        # The size field of a large variable does not fit in CDF-1 and CDF-2; readers compute it.
        stored = min(layout[name][0], (1 << (8 * wide)) - 1)
        parts += [text(name), number(len(own)), *(number(dims.index(d)) for d in own), described(pairs)]
        parts += [number(code, 4), number(stored), number(begins[name], place)]
    return b"".join(parts)


def _attribute(value: Any, number: Any) -> bytes:
    if isinstance(value, str):
        data = value.encode()
        return bytes(number(2, 4) + number(len(data)) + _padded(data))
    values = np.atleast_1d(value)
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        values = values.astype(np.int32)
    return bytes(number(_NUMBERS[values.dtype.str[1:]], 4) + number(len(values)) + _padded(_big(values).tobytes()))


EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TIME_UNITS = "hours since 1970-01-01 00:00:00"

_VARIABLES: Mapping[str, tuple[str, str, str]] = {
    "t2m": ("air_temperature", "2 metre temperature", "K"),
    "u10": ("eastward_wind", "10 metre wind towards the east", "m s-1"),
    "v10": ("northward_wind", "10 metre wind towards the north", "m s-1"),
    "msl": ("air_pressure_at_mean_sea_level", "Mean sea level pressure", "Pa"),
    "tp": ("precipitation_amount", "Total precipitation of the hour", "kg m-2"),
}
_PACKING: Mapping[str, tuple[float, float]] = {
    "t2m": (0.005, 270.0),
    "u10": (0.005, 0.0),
    "v10": (0.005, 0.0),
    "msl": (0.25, 100000.0),
    "tp": (0.002, 60.0),
}
PACKED_FILL = -32768


@dataclass(frozen=True, slots=True)
class Weather:
    """A world: its grid, orography and travelling systems. Made by `make_weather`."""

    latitude: npt.NDArray[np.float32]
    longitude: npt.NDArray[np.float32]
    orography: npt.NDArray[np.float32]
    systems: npt.NDArray[np.float64]
    """One row per system: latitude, longitude at the epoch, degrees per day, depth in Pa, radius in degrees, phase."""
    seed: int


def make_weather(*, nlat: int = 73, nlon: int = 144, seed: int = 0, systems: int = 14) -> Weather:
    """A world on a regular grid, poles included."""
    if nlat < 2 or nlon < 2:
        raise InvalidInputError(f"a grid of {nlat} by {nlon} points is too small")
    rng = np.random.default_rng(seed)
    latitude = np.linspace(90, -90, nlat, dtype=np.float32)
    longitude = np.linspace(0, 360, nlon, endpoint=False, dtype=np.float32)
    land = _smooth_noise(rng, nlat, nlon)
    orography = np.clip(land - 0.1, 0, None) ** 2 * 2600
    side = rng.choice([-1.0, 1.0], systems)
    rows = np.stack(
        [
            side * rng.uniform(30, 65, systems),
            rng.uniform(0, 360, systems),
            rng.uniform(6, 14, systems),
            rng.uniform(-3200, 1600, systems),
            rng.uniform(7, 16, systems),
            rng.uniform(0, 2 * np.pi, systems),
        ],
        axis=1,
    )
    return Weather(latitude, longitude, orography.astype(np.float32), rows, seed)


def _smooth_noise(rng: np.random.Generator, nlat: int, nlon: int) -> npt.NDArray[np.float64]:
    """Continents: a few long waves, periodic around the globe."""
    lat = np.linspace(-np.pi / 2, np.pi / 2, nlat)[:, None]
    lon = np.linspace(0, 2 * np.pi, nlon, endpoint=False)[None, :]
    total = np.zeros((nlat, nlon))
    for wave in range(1, 9):
        a, b, c = rng.normal(size=3)
        total += np.cos(lat) * (a * np.sin(wave * lon + c) + b * np.cos((wave + 1) * lat + c)) / wave
    return total


def weather_hours(weather: Weather, start: dt.datetime, hours: int) -> dict[str, npt.NDArray[np.float32]]:
    """Every variable for `hours` consecutive hours, as float32[hours, lat, lon]."""
    first = (start - EPOCH).total_seconds() / 3600
    when = (first + np.arange(hours, dtype=np.float32))[:, None, None]
    lat = np.deg2rad(weather.latitude)[None, :, None]
    lon = weather.longitude[None, None, :]
    season = np.cos(2 * np.pi * (when / 24 - 200) / 365.25)
    local = np.deg2rad(lon) + 2 * np.pi * (when % 24) / 24 - np.pi
    pressure, east, north, wet = _systems(weather, when)
    t2m = (
        300
        - 42 * np.sin(lat) ** 2
        + 13 * season * np.sin(lat)
        + 4.5 * np.cos(local - 0.6) * np.cos(lat) ** 2
        - 0.0065 * weather.orography
        + pressure / 900 * np.sin(lat)
    )
    jet = 9 * np.sin(2 * lat) ** 2 - 5 * np.exp(-((np.rad2deg(lat) / 14) ** 2))
    return {
        "t2m": t2m.astype(np.float32),
        "u10": (jet + east).astype(np.float32),
        "v10": (north + 0.7 * np.sin(local)).astype(np.float32),
        "msl": (101325 + pressure - 350 * np.cos(3 * lat)).astype(np.float32),
        "tp": np.clip(wet - 0.15, 0, None).astype(np.float32),
    }


def _systems(
    weather: Weather, when: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Pressure, wind and rain of the highs and lows, which move east and breathe."""
    shape = (len(when), len(weather.latitude), len(weather.longitude))
    pressure, east, north, wet = (np.zeros(shape, np.float32) for _ in range(4))
    lat = weather.latitude[None, :, None]
    lon = weather.longitude[None, None, :]
    for centre_lat, start, speed, depth, radius, phase in weather.systems.astype(np.float32):
        centre = start + speed * when / 24
        dx = (((lon - centre + 180) % 360) - 180) * np.cos(np.deg2rad(centre_lat))
        dy = lat - (centre_lat + 4 * np.sin(2 * np.pi * when / (24 * 9) + phase))
        shape_of = np.exp(-(dx**2 + dy**2) / (2 * radius**2))
        strength = depth * (1 + 0.35 * np.sin(2 * np.pi * when / (24 * 6) + phase))
        pressure += strength * shape_of
        turn = np.sign(centre_lat) * strength / 30 * shape_of / radius
        east += (turn * dy / radius).astype(np.float32)
        north -= (turn * dx / radius).astype(np.float32)
        if depth < 0:
            wet += (-strength / 900) * shape_of**2
    return pressure, east, north, wet


def attributes_of(name: str) -> dict[str, Any]:
    """CF attributes of a variable."""
    standard, long, units = _VARIABLES[name]
    return {"standard_name": standard, "long_name": long, "units": units}


def pack(name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    """Values as packed 16-bit integers."""
    scale, offset = _PACKING[name]
    packed: npt.NDArray[np.int16] = np.clip(np.rint((values - offset) / scale), -32767, 32767).astype(np.int16)
    return packed


def write_month(
    folder: str | Path,
    *,
    start: dt.date = dt.date(2020, 1, 1),
    days: int = 31,
    hours_per_file: int = 24,
    nlat: int = 73,
    nlon: int = 144,
    variables: Sequence[str] = tuple(_VARIABLES),
    packed: bool = False,
    chunks: tuple[int, int, int] | None = None,
    seed: int = 0,
    format: Literal["netcdf4", "netcdf3", "zarr"] = "netcdf4",
) -> list[Path]:
    """A month of hourly weather, one file a day (or as long as asked); returns the paths in order."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    weather = make_weather(nlat=nlat, nlon=nlon, seed=seed)
    paths: list[Path] = []
    total = days * 24
    for first in range(0, total, hours_per_file):
        when = dt.datetime.combine(start, dt.time(), dt.UTC) + dt.timedelta(hours=first)
        count = min(hours_per_file, total - first)
        fields = weather_hours(weather, when, count)
        chosen = {name: fields[name] for name in variables}
        stamp = when.strftime("%Y%m%d" if hours_per_file % 24 == 0 else "%Y%m%dT%H")
        ending = {"netcdf4": "nc", "netcdf3": "nc3", "zarr": "zarr"}[format]
        path = place / f"weather-{stamp}.{ending}"
        _WRITERS[format](path, weather, when, chosen, packed, chunks or (count, -(-nlat // 2), -(-nlon // 2)))
        paths.append(path)
    return paths


def _times(when: dt.datetime, count: int) -> npt.NDArray[np.float64]:
    return (when - EPOCH).total_seconds() / 3600 + np.arange(count, dtype=np.float64)


def _coordinate_attributes() -> dict[str, dict[str, Any]]:
    return {
        "time": {"standard_name": "time", "units": TIME_UNITS, "calendar": "proleptic_gregorian", "axis": "T"},
        "latitude": {"standard_name": "latitude", "units": "degrees_north", "axis": "Y"},
        "longitude": {"standard_name": "longitude", "units": "degrees_east", "axis": "X"},
    }


def _stored(
    name: str, values: npt.NDArray[np.float32], packed: bool
) -> tuple[npt.NDArray[Any], dict[str, Any], dict[str, Any]]:
    """Values, CF attributes and packing attributes as a file holds them."""
    if not packed:
        return values, attributes_of(name), {}
    scale, offset = _PACKING[name]
    return pack(name, values), attributes_of(name), {"scale_factor": scale, "add_offset": offset}


def _write_netcdf4(
    path: Path,
    weather: Weather,
    when: dt.datetime,
    fields: Mapping[str, npt.NDArray[np.float32]],
    packed: bool,
    chunks: tuple[int, int, int],
) -> None:
    count = len(next(iter(fields.values())))
    axes: dict[str, npt.NDArray[Any]] = {
        "time": _times(when, count),
        "latitude": weather.latitude,
        "longitude": weather.longitude,
    }
    with h5py.File(path, "w", libver="latest") as file:
        file.attrs.update({"Conventions": "CF-1.8", "title": "Synthetic weather", "source": f"seed {weather.seed}"})
        for name, values in axes.items():
            limit = (None,) if name == "time" else values.shape
            scale = file.create_dataset(name, data=values, maxshape=limit, chunks=(count,) if name == "time" else None)
            scale.make_scale(name)
            scale.attrs.update(_coordinate_attributes()[name])
        surface = file.create_dataset("orography", data=weather.orography)
        surface.attrs.update({"standard_name": "surface_altitude", "units": "m"})
        _attach(file, surface, ("latitude", "longitude"))
        for name, values in fields.items():
            stored, attributes, packing = _stored(name, values, packed)
            dataset = file.create_dataset(
                name,
                data=stored,
                chunks=tuple(min(c, n) for c, n in zip(chunks, stored.shape, strict=True)),
                maxshape=(None, *stored.shape[1:]),
                compression="gzip",
                compression_opts=1,
                shuffle=True,
                fillvalue=PACKED_FILL if packed else np.float32(np.nan),
            )
            dataset.attrs.update({**attributes, **packing})
            dataset.attrs["_FillValue"] = stored.dtype.type(PACKED_FILL if packed else np.nan)
            _attach(file, dataset, tuple(axes))


def _attach(file: Any, dataset: Any, names: Sequence[str]) -> None:
    for axis, name in enumerate(names):
        dataset.dims[axis].attach_scale(file[name])


def _write_netcdf3(
    path: Path,
    weather: Weather,
    when: dt.datetime,
    fields: Mapping[str, npt.NDArray[np.float32]],
    packed: bool,
    chunks: tuple[int, int, int],
) -> None:
    count = len(next(iter(fields.values())))
    of_axes = _coordinate_attributes()
    variables: dict[str, tuple[tuple[str, ...], npt.NDArray[Any], Mapping[str, Any]]] = {
        "time": (("time",), _times(when, count), of_axes["time"]),
        "latitude": (("latitude",), weather.latitude, of_axes["latitude"]),
        "longitude": (("longitude",), weather.longitude, of_axes["longitude"]),
    }
    for name, values in fields.items():
        stored, attributes, packing = _stored(name, values, packed)
        fill = stored.dtype.type(PACKED_FILL if packed else np.nan)
        variables[name] = (("time", "latitude", "longitude"), stored, {**attributes, **packing, "_FillValue": fill})
    write_netcdf3(path, variables, {"Conventions": "CF-1.8", "title": "Synthetic weather"}, record_dim="time")


def _write_zarr(
    path: Path,
    weather: Weather,
    when: dt.datetime,
    fields: Mapping[str, npt.NDArray[np.float32]],
    packed: bool,
    chunks: tuple[int, int, int],
) -> None:
    count = len(next(iter(fields.values())))
    root = zarr.open_group(str(path), mode="w", zarr_format=3, attributes={"Conventions": "CF-1.8"})
    axes: dict[str, npt.NDArray[Any]] = {
        "time": _times(when, count),
        "latitude": weather.latitude,
        "longitude": weather.longitude,
    }
    of_axes = _coordinate_attributes()
    for name, values in axes.items():
        array = root.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=values.shape,
            dimension_names=(name,),
            attributes=of_axes[name],
        )
        array[...] = values
    for name, values in fields.items():
        stored, attributes, packing = _stored(name, values, packed)
        array = root.create_array(
            name,
            shape=stored.shape,
            dtype=stored.dtype,
            fill_value=PACKED_FILL if packed else np.nan,
            chunks=tuple(min(c, n) for c, n in zip(chunks, stored.shape, strict=True)),
            dimension_names=tuple(axes),
            attributes={**attributes, **packing},
        )
        array[...] = stored


_WRITERS = {"netcdf4": _write_netcdf4, "netcdf3": _write_netcdf3, "zarr": _write_zarr}
