"""GRIB files, compared message by message with what ecCodes reads from them."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ingest.grib_messages import (
    GRIDS,
    Spec,
    check_equals_eccodes,
    join_fields,
    make_message,
    read_messages,
    write_messages,
)

from icefloe.errors import FormatError, InvalidInputError
from icefloe.ingest.parsers.registry import open_source, parse_schema

eccodes = pytest.importorskip("eccodes")


def _ingested(combine: Any, folder: Path, **options: Any) -> xr.Dataset:
    _, sink = combine(folder, **options)
    return xr.open_zarr(sink.store(), consolidated=False, decode_timedelta=False).load()


_MODES = list(itertools.product((0, 1), repeat=4))


@pytest.mark.long
@pytest.mark.parametrize("grid", sorted(GRIDS))
def test_every_grid_and_scanning_mode_lies_where_eccodes_puts_it(tmp_path: Path, combine: Any, grid: str) -> None:
    modes = _MODES if GRIDS[grid][2] == 20 else _MODES[:1]
    for mode in modes:
        folder = tmp_path / "".join(map(str, mode))
        folder.mkdir()
        path = write_messages(folder / "a.grib", Spec(name="t", grid=grid, scanning=mode, missing=True, seed=3))
        for stored in ("native", "virtual"):
            check_equals_eccodes(_ingested(combine, folder, mode=stored), [path])


def test_longitudes_that_cross_the_meridian_are_those_of_eccodes(tmp_path: Path, combine: Any) -> None:
    path = write_messages(tmp_path / "a.grib", Spec(west=-20.0))
    dataset = _ingested(combine, tmp_path)
    check_equals_eccodes(dataset, [path])
    assert dataset.longitude.values.tolist() == [-20, -10, 0, 10, 20]


@st.composite
def _archives(draw: st.DrawFn) -> tuple[list[Spec], str]:
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
        Spec(name, date, 600, step, level, member, grid, scanning, missing=draw(st.booleans()), seed=next(seeds))
        for name, date, step, level, member in itertools.product(names, dates, steps, levels, members)
    ]
    return draw(st.permutations(specs)), draw(st.sampled_from(["", "name", "date", "step", "level", "number"]))


@pytest.mark.long
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(_archives(), st.sampled_from(["native", "virtual"]))
def test_any_archive_equals_eccodes_however_it_is_cut_into_files(
    combine: Any, archive: tuple[list[Spec], str], mode: str
) -> None:
    specs, cut = archive
    files: dict[Any, list[Spec]] = {}
    for spec in specs:
        files.setdefault(getattr(spec, cut) if cut else "all", []).append(spec)
    with tempfile.TemporaryDirectory() as folder:
        paths = [write_messages(Path(folder) / f"f{i}.grib2", *part) for i, part in enumerate(files.values())]
        check_equals_eccodes(_ingested(combine, Path(folder), mode=mode), paths)


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
def _mixes(draw: st.DrawFn) -> list[Spec]:
    """Messages of several products in one file, in any order, with holes and with messages that are there twice."""
    specs: list[Spec] = []
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
                specs.append(Spec(name, date, 600, step, None, member, grid, scanning, 0.0, missing, keys, next(seeds)))
    if not specs:
        specs.append(Spec())
    if draw(st.booleans()):
        specs.append(draw(st.sampled_from(specs)))
    return draw(st.permutations(specs))


@pytest.mark.long
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(_mixes(), st.sampled_from(["native", "mixed", "virtual"]))
def test_any_mix_of_messages_in_one_file_equals_eccodes(combine: Any, specs: list[Spec], mode: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_messages(Path(folder) / "a.grib", *specs)
        dataset = _ingested(combine, Path(folder), mode=mode)
        check_equals_eccodes(dataset, [path])
        # No cell has a value that no message has.
        distinct = {message["values"].tobytes(): message["values"] for message in read_messages([path])}
        expected = sum(int(np.isfinite(values).sum()) for values in distinct.values())
        fields = [v for v in dataset.data_vars.values() if "GRIB_paramId" in v.attrs]
        assert sum(int(np.isfinite(field.values).sum()) for field in fields) == expected


def test_accumulations_that_end_together_are_kept_apart(tmp_path: Path, combine: Any) -> None:
    specs = [Spec("tp", step=step, seed=i) for i, step in enumerate(["6-12", "0-12", "0-6", "12-18", "0-18"])]
    path = write_messages(tmp_path / "a.grib2", *specs)
    dataset = _ingested(combine, tmp_path)
    check_equals_eccodes(dataset, [path])
    assert dataset["tp_step_bounds"].values.tolist() == [[0, 6], [0, 12], [0, 18]]
    assert dataset["tp_6h_step_bounds"].values.tolist() == [[6, 12], [12, 18]]


def test_averages_and_instants_of_one_parameter_are_kept_apart(tmp_path: Path, combine: Any) -> None:
    # ecCodes has no name for this number, so both fields have the same one.
    numbers = {"parameterCategory": 191, "parameterNumber": 7}
    average = {**numbers, "typeOfStatisticalProcessing": 0}
    path = write_messages(
        tmp_path / "a.grib2", Spec("tp", step="6", keys=numbers, seed=1), Spec("tp", step="0-6", keys=average, seed=2)
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
        specs.append(Spec(keys={**soil, **layer}, seed=top * 100 + bottom))
    path = write_messages(tmp_path / "a.grib2", *specs)
    dataset = _ingested(combine, tmp_path)
    check_equals_eccodes(dataset, [path])
    assert dataset["depthBelowLandLayer_bounds"].values.tolist() == [[0, 0.1], [0, 1], [0.1, 0.4], [0.4, 1]]
    assert len(set(dataset["depthBelowLandLayer"].values.tolist())) == 4


def test_parameters_without_a_name_are_named_by_their_numbers(tmp_path: Path, combine: Any) -> None:
    numbers = [(0, 191, 200), (0, 191, 201), (2, 10, 250)]
    keys = [dict(zip(("discipline", "parameterCategory", "parameterNumber"), n, strict=True)) for n in numbers]
    write_messages(tmp_path / "a.grib2", *(Spec(keys=k, seed=i) for i, k in enumerate(keys)))
    dataset = _ingested(combine, tmp_path)
    assert set(dataset.data_vars) == {f"unknown_{'_'.join(map(str, n))}_centre98" for n in numbers}


def test_products_that_differ_in_a_percentile_get_a_dimension(tmp_path: Path, combine: Any) -> None:
    template = {"productDefinitionTemplateNumber": 6}
    write_messages(
        tmp_path / "a.grib2",
        *(Spec("t", keys={**template, "percentileValue": p}, seed=p) for p in (90, 10, 50)),
    )
    dataset = _ingested(combine, tmp_path)
    assert dataset["percentileValue"].values.tolist() == [10, 50, 90]
    assert len(np.unique(dataset["t"].values)) == 60


def test_files_of_different_products_are_notjoin_fields(tmp_path: Path, combine: Any) -> None:
    for i, derived in enumerate((0, 4)):
        keys = {"productDefinitionTemplateNumber": 2, "derivedForecast": derived}
        write_messages(tmp_path / f"a{i}.grib2", Spec("t", date=20200101 + i, keys=keys))
    with pytest.raises(InvalidInputError, match="GRIB_derivedForecast"):
        combine(tmp_path)


def test_two_messages_for_one_cell_are_refused_by_name(tmp_path: Path, describe: Any) -> None:
    path = write_messages(tmp_path / "a.grib2", Spec(seed=1), Spec("10u"), Spec(seed=2))
    with pytest.raises(FormatError, match=r"a\.grib2 has two messages .* 2t at 2020-01-01 00:00.*messages 1 and 3"):
        parse_schema(describe(path))


def test_a_message_that_is_there_twice_is_taken_once(tmp_path: Path, combine: Any) -> None:
    path = write_messages(tmp_path / "a.grib2", Spec(seed=1), Spec(seed=1))
    dataset = _ingested(combine, tmp_path)
    check_equals_eccodes(dataset, [path])


def test_messages_that_only_their_type_tells_apart_become_two_variables(tmp_path: Path, combine: Any) -> None:
    path = write_messages(
        tmp_path / "a.grib2",
        Spec(keys={"typeOfProcessedData": 0}, seed=1),
        Spec(keys={"typeOfProcessedData": 1}, seed=2),
    )
    dataset = _ingested(combine, tmp_path)
    assert set(dataset.data_vars) == {"2t_an", "2t_fc"}
    np.testing.assert_array_equal(dataset["2t_an"].values.ravel(), read_messages([path])[0]["values"])
    np.testing.assert_array_equal(dataset["2t_fc"].values.ravel(), read_messages([path])[1]["values"])


def test_two_grids_in_one_file_have_coordinates_of_their_own(tmp_path: Path, combine: Any) -> None:
    path = write_messages(
        tmp_path / "a.grib2", Spec("t", seed=1), Spec("u", west=100.0, seed=2), Spec("q", grid="lambert", seed=3)
    )
    check_equals_eccodes(_ingested(combine, tmp_path), [path])


@pytest.mark.parametrize("has_bitmap", [False, True])
def test_all_fields_of_a_message_with_several_are_read(tmp_path: Path, combine: Any, has_bitmap: bool) -> None:
    u, v = (Spec(name, level=850, missing=has_bitmap, seed=seed) for name, seed in (("u", 5), ("v", 10)))
    single = write_messages(tmp_path / "single.keep", u, v)
    (tmp_path / "a.grib2").write_bytes(
        join_fields(make_message(u), make_message(v), has_bitmap) + make_message(Spec(seed=3))
    )
    check_equals_eccodes(_ingested(combine, tmp_path), [single])


def test_files_on_another_projected_grid_are_notjoin_fields(tmp_path: Path, combine: Any) -> None:
    write_messages(tmp_path / "a0.grib2", Spec("t", grid="lambert"))
    write_messages(tmp_path / "a1.grib2", Spec("t", grid="lambert", date=20200102, keys={"LoVInDegrees": 20}))
    with pytest.raises(InvalidInputError, match="latitude|md5GridSection"):
        combine(tmp_path)


def test_variables_and_coordinates_have_the_attributes_that_cfgrib_gives_them(tmp_path: Path, describe: Any) -> None:
    path = write_messages(tmp_path / "a.grib2", Spec("t", level=850, number=3, grid="lambert"))
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
    content = bytearray(make_message(Spec()))
    content[16 + 14] = 13  # the month in section 1
    (tmp_path / "a.grib2").write_bytes(bytes(content))
    with pytest.raises(FormatError, match=r"a\.grib2.*message 1 .*20201301"):
        parse_schema(describe(tmp_path / "a.grib2"))


def test_a_part_of_an_array_is_read(tmp_path: Path, describe: Any) -> None:
    specs = [Spec("t", time=time, level=level) for time in (0, 600) for level in (1000, 850, 500)]
    path = write_messages(tmp_path / "a.grib2", *specs)
    with open_source(describe(path)) as source:
        variable = source.schema().variables["t"]
        whole = source.values(variable, tuple(slice(0, n) for n in variable.shape))
        region = (slice(1, 2), slice(0, 1), slice(0, 2), slice(1, 3), slice(2, 5))
        np.testing.assert_array_equal(source.values(variable, region), whole[region])
        assert variable.not_virtual is None


def test_a_broken_grib_file_is_named(tmp_path: Path, describe: Any) -> None:
    data = make_message(Spec()) + make_message(Spec("10u"))
    for length in (50, len(data) // 3, len(data) - 40):
        (tmp_path / "cut.grib2").write_bytes(data[:length])
        with pytest.raises(FormatError, match=r"cut\.grib2"):
            parse_schema(describe(tmp_path / "cut.grib2"))
