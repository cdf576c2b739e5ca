"""GRIB messages of every grid for tests, and the comparison of a dataset with what ecCodes reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

eccodes = pytest.importorskip("eccodes")

_MISSING = 9999.0
_LATLON = {"Ni": 5, "Nj": 4, "iDirectionIncrementInDegrees": 10, "jDirectionIncrementInDegrees": 10}
_PROJECTED = {
    "Nx": 5,
    "Ny": 4,
    "DxInMetres": 100000,
    "DyInMetres": 100000,
    "latitudeOfFirstGridPointInDegrees": 40,
    "longitudeOfFirstGridPointInDegrees": 10,
    "LaDInDegrees": 50,
}
GRIDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "regular_ll": ("regular_ll_sfc_grib2", _LATLON, 20),
    "regular_ll_grib1": ("regular_ll_sfc_grib1", _LATLON, 20),
    "rotated_ll": ("rotated_ll_sfc_grib2", _LATLON, 20),
    "rotated_ll_grib1": ("rotated_ll_sfc_grib1", _LATLON, 20),
    "regular_gg": ("regular_gg_sfc_grib2", {}, 0),
    "reduced_gg": ("reduced_gg_pl_32_grib2", {}, 0),
    "reduced_gg_grib1": ("reduced_gg_pl_32_grib1", {}, 0),
    "reduced_ll": ("reduced_ll_sfc_grib2", {}, 0),
    "polar_stereographic": ("polar_stereographic_sfc_grib2", {**_PROJECTED, "orientationOfTheGridInDegrees": 10}, 20),
    "lambert": (
        "GRIB2",
        {"gridType": "lambert", **_PROJECTED, "LoVInDegrees": 10, "Latin1InDegrees": 45, "Latin2InDegrees": 55},
        20,
    ),
    "lambert_azimuthal": (
        "GRIB2",
        {
            "gridType": "lambert_azimuthal_equal_area",
            "Nx": 5,
            "Ny": 4,
            "xDirectionGridLengthInMillimetres": 10**8,
            "yDirectionGridLengthInMillimetres": 10**8,
            "standardParallelInDegrees": 50,
            "centralLongitudeInDegrees": 10,
            "latitudeOfFirstGridPointInDegrees": 40,
            "longitudeOfFirstGridPointInDegrees": 10,
        },
        20,
    ),
    "mercator": (
        "GRIB2",
        {
            "gridType": "mercator",
            **_PROJECTED,
            "DiInMetres": 100000,
            "DjInMetres": 100000,
            "latitudeOfLastGridPointInDegrees": 43,
            "longitudeOfLastGridPointInDegrees": 15,
        },
        20,
    ),
    "healpix": (
        "GRIB2",
        {"gridType": "healpix", "Nside": 2, "orderingConvention": "ring", "longitudeOfFirstGridPointInDegrees": 45},
        48,
    ),
    "unstructured": ("GRIB2", {"gridType": "unstructured_grid"}, 30),
    "spectral": ("sh_pl_grib2", {}, 0),
}


@dataclass(frozen=True)
class Spec:
    """A message to write."""

    name: str = "2t"
    date: int = 20200101
    time: int = 0
    step: str = "0"
    level: int | None = None
    number: int | None = None
    grid: str = "regular_ll"
    scanning: tuple[int, int, int, int] = (0, 0, 0, 0)
    """i negatively, j positively, j consecutive, alternative rows."""
    west: float = 0.0
    missing: bool = False
    keys: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


def make_message(spec: Spec) -> bytes:
    sample, grid, count = GRIDS[spec.grid]
    handle = eccodes.codes_grib_new_from_samples(sample)
    try:
        is_accumulated = "-" in spec.step
        if spec.number is not None or is_accumulated:
            template = (11 if is_accumulated else 1) if spec.number is not None else 8
            if eccodes.codes_get(handle, "edition") == 2:
                eccodes.codes_set(handle, "productDefinitionTemplateNumber", template)
        for key, value in grid.items():
            eccodes.codes_set(handle, key, value)
        _set_scanning(handle, spec)
        eccodes.codes_set(handle, "dataDate", spec.date)
        eccodes.codes_set(handle, "dataTime", spec.time)
        eccodes.codes_set(handle, "shortName", spec.name)
        if spec.level is not None:
            eccodes.codes_set(handle, "typeOfLevel", "isobaricInhPa")
            eccodes.codes_set(handle, "level", spec.level)
        if spec.number is not None:
            eccodes.codes_set(handle, "number", spec.number)
        if spec.step.endswith("m"):
            eccodes.codes_set(handle, "stepUnits", "m")
            eccodes.codes_set(handle, "step", int(spec.step[:-1]))
        else:
            eccodes.codes_set(handle, "stepRange", spec.step)
        for key, value in spec.keys.items():
            eccodes.codes_set(handle, key, value)
        size = count or eccodes.codes_get_size(handle, "values")
        values = np.random.default_rng(spec.seed).normal(280, 10, size)
        if spec.grid != "spectral":
            eccodes.codes_set(handle, "bitsPerValue", 16)
            if spec.missing:
                eccodes.codes_set(handle, "bitmapPresent", 1)
                eccodes.codes_set(handle, "missingValue", _MISSING)
                values[:: 1 + spec.seed % 5] = _MISSING
        eccodes.codes_set_values(handle, values)
        return bytes(eccodes.codes_get_message(handle))
    finally:
        eccodes.codes_release(handle)


def _set_scanning(handle: Any, spec: Spec) -> None:
    i_negative, j_positive, j_consecutive, alternative = spec.scanning
    if spec.grid in ("unstructured", "spectral", "healpix"):
        return
    for key, value in (
        ("iScansNegatively", i_negative),
        ("jScansPositively", j_positive),
        ("jPointsAreConsecutive", j_consecutive),
    ):
        eccodes.codes_set(handle, key, value)
    if alternative and eccodes.codes_get(handle, "edition") == 2:
        eccodes.codes_set(handle, "alternativeRowScanning", 1)
    if spec.grid.startswith(("regular_ll", "rotated_ll")):
        north, south, west, east = 60.0, 30.0, spec.west, spec.west + 40.0
        for key, value in (
            ("latitudeOfFirstGridPointInDegrees", south if j_positive else north),
            ("latitudeOfLastGridPointInDegrees", north if j_positive else south),
            ("longitudeOfFirstGridPointInDegrees", east if i_negative else west),
            ("longitudeOfLastGridPointInDegrees", west if i_negative else east),
        ):
            eccodes.codes_set(handle, key, value)


def write_messages(path: Path, *specs: Spec) -> Path:
    path.write_bytes(b"".join(make_message(spec) for spec in specs))
    return path


def read_messages(paths: list[Path]) -> list[dict[str, Any]]:
    """Every message as ecCodes has it."""
    found = []
    for path in paths:
        with path.open("rb") as file:
            while (handle := eccodes.codes_grib_new_from_file(file)) is not None:

                def get(key: str, kind: Any = None, handle: Any = handle) -> Any:
                    return eccodes.codes_get(handle, key, kind) if eccodes.codes_is_defined(handle, key) else None

                eccodes.codes_set(handle, "missingValue", 1e30)
                message = {k: get(k) for k in ("shortName", "paramId", "stepType", "typeOfLevel", "number")}
                message["level"] = get("level", float)
                message["layer"] = (get("topLevel", float), get("bottomLevel", float))
                message["steps"] = tuple(_hours(get(k)) for k in ("startStep", "endStep"))
                message["time"] = np.datetime64(
                    f"{get('year'):04d}-{get('month'):02d}-{get('day'):02d}T{get('hour'):02d}:{get('minute'):02d}", "ns"
                )
                values = eccodes.codes_get_array(handle, "values")
                message["values"] = np.where(values == 1e30, np.nan, values)
                try:
                    message["points"] = [eccodes.codes_get_array(handle, k) for k in ("latitudes", "longitudes")]
                except eccodes.CodesInternalError:
                    message["points"] = []
                found.append(message)
                eccodes.codes_release(handle)
    return found


def _hours(step: Any) -> float:
    text = str(step)
    return int(text[:-1]) / 60 if text.endswith("m") else float(text)


def _cells(*columns: Any) -> list[tuple[float, ...]]:
    """Points and values as a sorted list, missing values as the largest."""
    rows = zip(*[np.where(np.isnan(c), np.inf, c).ravel().tolist() for c in columns], strict=True)
    return sorted(rows)


def _matching_cells(dataset: xr.Dataset, message: dict[str, Any]) -> list[xr.DataArray]:
    """The fields of a dataset whose coordinates are those of a message."""
    found = []
    for array in dataset.data_vars.values():
        wanted = {f"GRIB_{k}": message[k] for k in ("paramId", "shortName", "stepType", "typeOfLevel")}
        if any(array.attrs.get(key) != value for key, value in wanted.items()):
            continue
        chosen: xr.DataArray | None = array
        for dim in array.dims:
            name = str(dim).partition("_")[0]
            if name == "time":
                hits = array[dim].values == message["time"]
            elif name == "step":
                steps = array[dim].values
                hits = np.isclose(
                    steps / np.timedelta64(1, "h") if steps.dtype.kind == "m" else steps, message["steps"][1]
                )
                bounds = f"{array.name}_step_bounds"
                if bounds in dataset:
                    hits &= np.isclose(dataset[bounds].values[:, 0], message["steps"][0])
            elif name == "number":
                hits = array[dim].values == message["number"]
            elif name == message["typeOfLevel"]:
                bounds = array[dim].attrs.get("bounds")
                hits = array[dim].values == message["level"]
                if bounds is not None:
                    hits = (dataset[bounds].values == message["layer"]).all(axis=1)
            else:
                continue
            chosen = chosen.isel({dim: np.flatnonzero(hits)}) if chosen is not None and hits.sum() == 1 else None
        if chosen is not None:
            found.append(chosen)
    return found


def check_equals_eccodes(dataset: xr.Dataset, paths: list[Path]) -> None:
    """Every message is in the dataset once, with ecCodes' latitudes, longitudes and values."""
    messages = read_messages(paths)
    for message in messages:
        found = _matching_cells(dataset, message)
        fields = []
        for array in found:
            values = array.values.reshape(-1) if not message["points"] else array.values
            points = []
            for name in ("latitude", "longitude") if message["points"] else ():
                own = next(c for c in array.coords if str(c).startswith(name))
                full = xr.broadcast(array.coords[own].drop_vars(array.coords[own].coords), array)[0]
                points.append(full.transpose(*array.dims).values)
            if values.size == message["values"].size:
                fields.append(_cells(*points, values))
        wanted = _cells(*message["points"], message["values"])
        assert fields.count(wanted) == 1, {k: v for k, v in message.items() if k not in ("values", "points")}


def join_fields(first: bytes, second: bytes, repeats_bitmap: bool = False) -> bytes:
    """One GRIB 2 message with the fields of two; the second starts again at its product section."""

    def sections(content: bytes) -> list[bytes]:
        found, start = [], 16
        while start < len(content) - 4:
            size = int.from_bytes(content[start : start + 4], "big")
            found.append(content[start : start + size])
            start += size
        return found

    again = [s for s in sections(second) if s[4] >= 4]
    if repeats_bitmap:
        again = [b"\x00\x00\x00\x06\x06\xfe" if s[4] == 6 else s for s in again]
    body = b"".join([*sections(first), *again]) + b"7777"
    return first[:8] + (16 + len(body)).to_bytes(8, "big") + body


def write_inventory(path: Path, **changes: str) -> Path:
    """The index of a GRIB file as wgrib2 writes it, beside the file. `changes` are texts to replace, by new texts."""
    lines = []
    for number, message in enumerate(_index_keys(path), 1):
        kind = {"isobaricInhPa": f"{message['level']} mb", "hybrid": f"{message['level']} hybrid level"}
        level = kind.get(message["typeOfLevel"], f"{message['typeOfLevel']} {message['level']}")
        start, end = str(message["startStep"]), str(message["endStep"])
        unit = "min" if end.endswith("m") else "hour"
        step = f"{end.rstrip('m')} {unit} fcst" if start == end else f"{start}-{end} {unit} {message['stepType']} fcst"
        date = f"d={message['dataDate']}{message['dataTime'] // 100:02d}"
        member = "" if message["number"] is None else f"ENS=+{message['number']}:"
        name = f"{message['shortName']}_{message['edition']}"
        lines.append(f"{number}:{message['offset']}:{date}:{name}:{level}:{'anl' if end == '0' else step}:{member}")
    return _write_index(path, ".idx", lines, changes)


def write_index(path: Path, **changes: str) -> Path:
    """The index of a GRIB file as ECMWF writes it, beside the file."""
    lines = []
    for message in _index_keys(path):
        is_pressure = message["typeOfLevel"] == "isobaricInhPa"
        keys = {
            "date": str(message["dataDate"]),
            "time": f"{message['dataTime']:04d}",
            "step": str(message["endStep"]),
            "levtype": "pl" if is_pressure else f"{message['typeOfLevel']}",
            "levelist": str(message["level"]),
            "param": message["shortName"],
            "edition": message["edition"],
            "stepType": message["stepType"],
        }
        if message["number"] is not None:
            keys["number"] = str(message["number"])
        lines.append(json.dumps({**keys, "_offset": message["offset"], "_length": message["totalLength"]}))
    return _write_index(path, ".index", lines, changes)


def _write_index(path: Path, suffix: str, lines: list[str], changes: dict[str, str]) -> Path:
    text = "\n".join(lines) + "\n"
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    target = path.with_name(path.name + suffix)
    target.write_text(text)
    return target


def _index_keys(path: Path) -> list[dict[str, Any]]:
    wanted = ("dataDate", "dataTime", "startStep", "endStep", "stepType", "typeOfLevel", "level", "shortName", "number")
    found = []
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            keys = {k: eccodes.codes_get(handle, k) if eccodes.codes_is_defined(handle, k) else None for k in wanted}
            keys["edition"] = eccodes.codes_get(handle, "edition")
            keys["totalLength"] = eccodes.codes_get(handle, "totalLength")
            keys["offset"] = int(eccodes.codes_get_message_offset(handle))
            found.append(keys)
            eccodes.codes_release(handle)
    return found
