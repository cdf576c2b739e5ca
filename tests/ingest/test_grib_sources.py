"""GRIB files, compared message by message with what ecCodes reads from them."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError, InvalidInputError
from icefloe.ingest.parsers.registry import open_source, parse_schema

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
_GRIDS: dict[str, tuple[str, dict[str, Any], int]] = {
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
class _Spec:
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


def _message(spec: _Spec) -> bytes:
    sample, grid, count = _GRIDS[spec.grid]
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


def _set_scanning(handle: Any, spec: _Spec) -> None:
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


def _write(path: Path, *specs: _Spec) -> Path:
    path.write_bytes(b"".join(_message(spec) for spec in specs))
    return path


def _read(paths: list[Path]) -> list[dict[str, Any]]:
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
    messages = _read(paths)
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


def _ingested(combine: Any, folder: Path, **options: Any) -> xr.Dataset:
    _, sink = combine(folder, **options)
    return xr.open_zarr(sink.store(), consolidated=False, decode_timedelta=False).load()


_MODES = list(itertools.product((0, 1), repeat=4))


@pytest.mark.parametrize("grid", sorted(_GRIDS))
def test_every_grid_and_scanning_mode_lies_where_eccodes_puts_it(tmp_path: Path, combine: Any, grid: str) -> None:
    modes = _MODES if _GRIDS[grid][2] == 20 else _MODES[:1]
    for mode in modes:
        folder = tmp_path / "".join(map(str, mode))
        folder.mkdir()
        path = _write(folder / "a.grib", _Spec(name="t", grid=grid, scanning=mode, missing=True, seed=3))
        check_equals_eccodes(_ingested(combine, folder), [path])


def test_longitudes_that_cross_the_meridian_are_those_of_eccodes(tmp_path: Path, combine: Any) -> None:
    path = _write(tmp_path / "a.grib", _Spec(west=-20.0))
    dataset = _ingested(combine, tmp_path)
    check_equals_eccodes(dataset, [path])
    assert dataset.longitude.values.tolist() == [-20, -10, 0, 10, 20]


@st.composite
def _archives(draw: st.DrawFn) -> tuple[list[_Spec], str]:
    """Messages over a product of keys, and the key by which they are cut into files."""
    grid = draw(st.sampled_from(["regular_ll", "regular_ll_grib1", "rotated_ll", "lambert", "healpix"]))
    names = draw(st.lists(st.sampled_from(["t", "u", "q"]), min_size=1, max_size=2, unique=True))
    dates = draw(st.lists(st.sampled_from([20200101, 20200102, 20240229]), min_size=1, max_size=2, unique=True))
    steps = draw(st.lists(st.sampled_from(["0", "3", "6", "12", "27"]), min_size=1, max_size=3, unique=True))
    if grid != "regular_ll_grib1" and draw(st.booleans()):
        steps = draw(st.lists(st.sampled_from(["15m", "30m", "90m"]), min_size=1, max_size=3, unique=True))
    levels = draw(st.lists(st.sampled_from([1000, 850, 500, 10]), min_size=1, max_size=3, unique=True))
    is_ensemble = grid != "regular_ll_grib1" and draw(st.booleans())
    members: list[int | None] = [None]
    if is_ensemble:
        members = list(draw(st.lists(st.integers(0, 4), min_size=1, max_size=2, unique=True)))
    scanning = draw(st.sampled_from(_MODES)) if grid in ("regular_ll", "rotated_ll") else (0, 1, 0, 0)
    seeds = itertools.count(draw(st.integers(0, 1000)))
    specs = [
        _Spec(name, date, 600, step, level, member, grid, scanning, missing=draw(st.booleans()), seed=next(seeds))
        for name, date, step, level, member in itertools.product(names, dates, steps, levels, members)
    ]
    return draw(st.permutations(specs)), draw(st.sampled_from(["", "name", "date", "step", "level", "number"]))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(_archives())
def test_any_archive_equals_eccodes_however_it_is_cut_into_files(
    combine: Any, archive: tuple[list[_Spec], str]
) -> None:
    specs, cut = archive
    files: dict[Any, list[_Spec]] = {}
    for spec in specs:
        files.setdefault(getattr(spec, cut) if cut else "all", []).append(spec)
    with tempfile.TemporaryDirectory() as folder:
        paths = [_write(Path(folder) / f"f{i}.grib2", *part) for i, part in enumerate(files.values())]
        check_equals_eccodes(_ingested(combine, Path(folder)), paths)


_PRODUCTS: tuple[tuple[str, str, dict[str, Any], tuple[str, ...]], ...] = (
    ("t", "regular_ll", {"typeOfLevel": "isobaricInhPa", "level": 500}, ("0", "3", "6")),
    ("t", "regular_ll", {"typeOfLevel": "isobaricInhPa", "level": 850}, ("0", "3", "6")),
    ("t", "regular_ll_grib1", {"typeOfLevel": "isobaricInhPa", "level": 500}, ("0", "3")),
    ("t", "regular_ll", {"typeOfLevel": "isobaricInPa", "level": 50}, ("0", "3")),
    ("t", "regular_ll", {"typeOfLevel": "heightAboveGround", "level": 2}, ("0", "3")),
    ("t", "regular_ll", {"typeOfLevel": "hybrid", "level": 60}, ("0", "3")),
    ("t", "lambert", {"typeOfLevel": "isobaricInhPa", "level": 500}, ("0", "3")),
    ("u", "regular_ll", {"typeOfLevel": "heightAboveGround", "level": 10}, ("0", "3", "9")),
    ("2t", "regular_ll", {}, ("0", "3")),
    ("2t", "regular_ll_grib1", {}, ("0", "3")),
    ("tp", "regular_ll", {}, ("0-3", "0-6", "3-6", "1-2")),
    ("tprate", "regular_ll", {"stepType": "avg"}, ("0-3", "3-6")),
    ("tprate", "regular_ll", {}, ("0", "3")),
    ("pv", "regular_ll", {"typeOfLevel": "potentialVorticity", "level": 1500}, ("0",)),
)
"""Name, grid, keys and steps. Several differ in one of these only."""


@st.composite
def _mixes(draw: st.DrawFn) -> list[_Spec]:
    """Messages of several products in one file, in any order, with holes and with messages that are there twice."""
    specs: list[_Spec] = []
    seeds = itertools.count(draw(st.integers(0, 1000)))
    for name, grid, keys, steps in draw(st.lists(st.sampled_from(_PRODUCTS), min_size=1, max_size=4, unique_by=repr)):
        dates = draw(st.lists(st.sampled_from([20200101, 20200102, 20240229]), min_size=1, max_size=2, unique=True))
        members: list[int | None] = [None]
        if not grid.endswith("grib1") and draw(st.integers(0, 3)) == 0:
            members = [1, 2]
        scanning = draw(st.sampled_from(_MODES)) if grid == "regular_ll" and draw(st.booleans()) else (0, 0, 0, 0)
        for date, step, member in itertools.product(dates, steps, members):
            if draw(st.integers(0, 4)):
                missing = draw(st.booleans())
                specs.append(
                    _Spec(name, date, 600, step, None, member, grid, scanning, 0.0, missing, keys, next(seeds))
                )
    if not specs:
        specs.append(_Spec())
    if draw(st.booleans()):
        specs.append(draw(st.sampled_from(specs)))
    return draw(st.permutations(specs))


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(_mixes(), st.sampled_from(["native", "mixed"]))
def test_any_mix_of_messages_in_one_file_equals_eccodes(combine: Any, specs: list[_Spec], mode: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = _write(Path(folder) / "a.grib", *specs)
        dataset = _ingested(combine, Path(folder), mode=mode)
        check_equals_eccodes(dataset, [path])
        # No cell has a value that no message has.
        distinct = {message["values"].tobytes(): message["values"] for message in _read([path])}
        expected = sum(int(np.isfinite(values).sum()) for values in distinct.values())
        fields = [v for v in dataset.data_vars.values() if "GRIB_paramId" in v.attrs]
        assert sum(int(np.isfinite(field.values).sum()) for field in fields) == expected


def test_accumulations_that_end_together_are_kept_apart(tmp_path: Path, combine: Any) -> None:
    specs = [_Spec("tp", step=step, seed=i) for i, step in enumerate(["6-12", "0-12", "0-6", "12-18", "0-18"])]
    path = _write(tmp_path / "a.grib2", *specs)
    dataset = _ingested(combine, tmp_path)
    check_equals_eccodes(dataset, [path])
    assert dataset["tp_step_bounds"].values.tolist() == [[0, 6], [0, 12], [0, 18]]
    assert dataset["tp_6h_step_bounds"].values.tolist() == [[6, 12], [12, 18]]


def test_averages_and_instants_of_one_parameter_are_kept_apart(tmp_path: Path, combine: Any) -> None:
    # ecCodes has no name for this number, so both fields have the same one.
    numbers = {"parameterCategory": 191, "parameterNumber": 7}
    average = {**numbers, "typeOfStatisticalProcessing": 0}
    path = _write(
        tmp_path / "a.grib2", _Spec("tp", step="6", keys=numbers, seed=1), _Spec("tp", step="0-6", keys=average, seed=2)
    )
    dataset = _ingested(combine, tmp_path)
    check_equals_eccodes(dataset, [path])
    assert set(dataset.data_vars) == {"unknown_0_191_7", "unknown_0_191_7_avg"}


def test_layers_are_told_apart_by_both_of_their_bounds(tmp_path: Path, combine: Any) -> None:
    soil = {
        "discipline": 2,
        "parameterCategory": 0,
        "parameterNumber": 2,
        "typeOfFirstFixedSurface": 106,
        "typeOfSecondFixedSurface": 106,
        "scaleFactorOfFirstFixedSurface": 1,
        "scaleFactorOfSecondFixedSurface": 1,
    }
    specs = []
    for top, bottom in ((0, 1), (1, 4), (4, 10), (0, 10)):
        layer = {"scaledValueOfFirstFixedSurface": top, "scaledValueOfSecondFixedSurface": bottom}
        specs.append(_Spec(keys={**soil, **layer}, seed=top * 100 + bottom))
    path = _write(tmp_path / "a.grib2", *specs)
    dataset = _ingested(combine, tmp_path)
    check_equals_eccodes(dataset, [path])
    assert dataset["depthBelowLandLayer_bounds"].values.tolist() == [[0, 0.1], [0, 1], [0.1, 0.4], [0.4, 1]]
    assert len(set(dataset["depthBelowLandLayer"].values.tolist())) == 4


def test_parameters_without_a_name_are_named_by_their_numbers(tmp_path: Path, combine: Any) -> None:
    numbers = [(0, 191, 200), (0, 191, 201), (2, 10, 250)]
    keys = [dict(zip(("discipline", "parameterCategory", "parameterNumber"), n, strict=True)) for n in numbers]
    _write(tmp_path / "a.grib2", *(_Spec(keys=k, seed=i) for i, k in enumerate(keys)))
    dataset = _ingested(combine, tmp_path)
    assert set(dataset.data_vars) == {f"unknown_{'_'.join(map(str, n))}_centre98" for n in numbers}


def test_products_that_differ_in_a_percentile_get_a_dimension(tmp_path: Path, combine: Any) -> None:
    template = {"productDefinitionTemplateNumber": 6}
    _write(
        tmp_path / "a.grib2",
        *(_Spec("t", keys={**template, "percentileValue": p}, seed=p) for p in (90, 10, 50)),
    )
    dataset = _ingested(combine, tmp_path)
    assert dataset["percentileValue"].values.tolist() == [10, 50, 90]
    assert len(np.unique(dataset["t"].values)) == 60


def test_files_of_different_products_are_not_joined(tmp_path: Path, combine: Any) -> None:
    for i, derived in enumerate((0, 4)):
        keys = {"productDefinitionTemplateNumber": 2, "derivedForecast": derived}
        _write(tmp_path / f"a{i}.grib2", _Spec("t", date=20200101 + i, keys=keys))
    with pytest.raises(InvalidInputError, match="GRIB_derivedForecast"):
        combine(tmp_path)


def test_two_messages_for_one_cell_are_refused_by_name(tmp_path: Path, describe: Any) -> None:
    path = _write(tmp_path / "a.grib2", _Spec(seed=1), _Spec("10u"), _Spec(seed=2))
    with pytest.raises(FormatError, match=r"a\.grib2 has two messages .* 2t at 2020-01-01 00:00.*messages 1 and 3"):
        parse_schema(describe(path))


def test_a_message_that_is_there_twice_is_taken_once(tmp_path: Path, combine: Any) -> None:
    path = _write(tmp_path / "a.grib2", _Spec(seed=1), _Spec(seed=1))
    dataset = _ingested(combine, tmp_path)
    check_equals_eccodes(dataset, [path])


def test_messages_that_only_their_type_tells_apart_become_two_variables(tmp_path: Path, combine: Any) -> None:
    path = _write(
        tmp_path / "a.grib2",
        _Spec(keys={"typeOfProcessedData": 0}, seed=1),
        _Spec(keys={"typeOfProcessedData": 1}, seed=2),
    )
    dataset = _ingested(combine, tmp_path)
    assert set(dataset.data_vars) == {"2t_an", "2t_fc"}
    np.testing.assert_array_equal(dataset["2t_an"].values.ravel(), _read([path])[0]["values"])
    np.testing.assert_array_equal(dataset["2t_fc"].values.ravel(), _read([path])[1]["values"])


def test_two_grids_in_one_file_have_coordinates_of_their_own(tmp_path: Path, combine: Any) -> None:
    path = _write(
        tmp_path / "a.grib2", _Spec("t", seed=1), _Spec("u", west=100.0, seed=2), _Spec("q", grid="lambert", seed=3)
    )
    check_equals_eccodes(_ingested(combine, tmp_path), [path])


def _joined(first: bytes, second: bytes, repeats_bitmap: bool = False) -> bytes:
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


@pytest.mark.parametrize("has_bitmap", [False, True])
def test_all_fields_of_a_message_with_several_are_read(tmp_path: Path, combine: Any, has_bitmap: bool) -> None:
    u, v = (_Spec(name, level=850, missing=has_bitmap, seed=seed) for name, seed in (("u", 5), ("v", 10)))
    single = _write(tmp_path / "single.keep", u, v)
    (tmp_path / "a.grib2").write_bytes(_joined(_message(u), _message(v), has_bitmap) + _message(_Spec(seed=3)))
    check_equals_eccodes(_ingested(combine, tmp_path), [single])


def test_files_on_another_projected_grid_are_not_joined(tmp_path: Path, combine: Any) -> None:
    _write(tmp_path / "a0.grib2", _Spec("t", grid="lambert"))
    _write(tmp_path / "a1.grib2", _Spec("t", grid="lambert", date=20200102, keys={"LoVInDegrees": 20}))
    with pytest.raises(InvalidInputError, match="latitude|md5GridSection"):
        combine(tmp_path)


def test_variables_and_coordinates_have_the_attributes_that_cfgrib_gives_them(tmp_path: Path, describe: Any) -> None:
    path = _write(tmp_path / "a.grib2", _Spec("t", level=850, number=3, grid="lambert"))
    with open_source(describe(path)) as source:
        schema = source.schema()
    variable = schema.variables["t"]
    assert variable.dims == ("time", "step", "number", "isobaricInhPa", "y", "x")
    facts = {"GRIB_paramId": 130, "GRIB_gridType": "lambert", "long_name": "Temperature", "units": "K"}
    assert facts.items() <= dict(variable.attributes).items()
    assert variable.attributes["coordinates"] == "latitude longitude"
    mapping = schema.variables[variable.attributes["grid_mapping"]]
    assert mapping.attributes["standard_parallel"] == [45.0, 55.0]
    assert schema.variables["isobaricInhPa"].attributes["units"] == "hPa"


def test_a_date_that_does_not_exist_is_named(tmp_path: Path, describe: Any) -> None:
    content = bytearray(_message(_Spec()))
    content[16 + 14] = 13  # the month in section 1
    (tmp_path / "a.grib2").write_bytes(bytes(content))
    with pytest.raises(FormatError, match=r"a\.grib2.*message 1 .*20201301"):
        parse_schema(describe(tmp_path / "a.grib2"))


def test_a_part_of_an_array_is_read(tmp_path: Path, describe: Any) -> None:
    specs = [_Spec("t", time=time, level=level) for time in (0, 600) for level in (1000, 850, 500)]
    path = _write(tmp_path / "a.grib2", *specs)
    with open_source(describe(path)) as source:
        variable = source.schema().variables["t"]
        whole = source.values(variable, tuple(slice(0, n) for n in variable.shape))
        region = (slice(1, 2), slice(0, 1), slice(0, 2), slice(1, 3), slice(2, 5))
        np.testing.assert_array_equal(source.values(variable, region), whole[region])
        assert "GRIB" in str(variable.not_virtual)


def test_a_broken_grib_file_is_named(tmp_path: Path, describe: Any) -> None:
    data = _message(_Spec()) + _message(_Spec("10u"))
    for length in (50, len(data) // 3, len(data) - 40):
        (tmp_path / "cut.grib2").write_bytes(data[:length])
        with pytest.raises(FormatError, match=r"cut\.grib2"):
            parse_schema(describe(tmp_path / "cut.grib2"))
