"""NetCDF classic files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

from icefloe.errors import FormatError
from icefloe.ingest.parsers.registry import open_source, parse_schema, parse_source
from icefloe.testing.synthetic_weather import write_netcdf3

_FORMATS = {"NETCDF3_CLASSIC": 1, "NETCDF3_64BIT_OFFSET": 2, "NETCDF3_64BIT_DATA": 5}


def _write(path: Path, format: str, record_variables: int) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    values: dict[str, Any] = {}
    with netCDF4.Dataset(path, "w", format=format) as file:
        file.title = "odd length"
        file.createDimension("time", None)
        file.createDimension("x", 5)
        fixed = file.createVariable("fixed", "f8", ("x",))
        values["fixed"] = rng.random(5)
        fixed[:] = values["fixed"]
        for number in range(record_variables):
            dtype = ["i2", "f4", "i1", "S1"][number % 4]
            name = f"r{number}"
            data = rng.integers(0, 100, (7, 5)).astype("i2" if dtype == "S1" else dtype)
            if dtype == "S1":
                data = np.full((7, 5), b"q", dtype="S1")
            file.createVariable(name, dtype, ("time", "x"))[:] = data
            values[name] = data
    return values


@pytest.mark.parametrize("format", _FORMATS)
@pytest.mark.parametrize("record_variables", [0, 1, 4])
def test_classic_files_of_the_netcdf_library_are_read_by_value_and_by_reference(
    tmp_path: Path, describe: Any, check_references: Any, format: str, record_variables: int
) -> None:
    values = _write(tmp_path / "a.nc", format, record_variables)
    schema = check_references(describe(tmp_path / "a.nc"))
    assert schema.groups[""] == {"title": "odd length"}
    with open_source(describe(tmp_path / "a.nc")) as source:
        for name, expected in values.items():
            variable = schema.variables[name]
            np.testing.assert_array_equal(source.values(variable, tuple(slice(0, n) for n in variable.shape)), expected)
            part = tuple(slice(1, n - 1) for n in variable.shape)
            np.testing.assert_array_equal(source.values(variable, part), expected[part])


@pytest.mark.parametrize("version", [1, 2, 5])
def test_the_netcdf_library_reads_what_the_writer_makes(tmp_path: Path, version: int) -> None:
    time, cube = np.arange(3.0), np.arange(3 * 5, dtype=np.int16).reshape(3, 5)
    variables = {
        "time": (("time",), time, {"units": "days since 2000-01-01"}),
        "cube": (("time", "x"), cube, {"scale_factor": 0.1, "_FillValue": np.int16(-1)}),
        "x": (("x",), np.arange(5, dtype=np.float32), {}),
    }
    write_netcdf3(tmp_path / "a.nc", variables, {"title": "t"}, record_dim="time", version=version)
    with netCDF4.Dataset(tmp_path / "a.nc") as file:
        file.set_auto_maskandscale(False)
        assert file.title == "t"
        np.testing.assert_array_equal(file["cube"][:], cube)
        np.testing.assert_array_equal(file["time"][:], time)
        assert file["cube"].scale_factor == 0.1


def test_records_are_referenced_one_chunk_each(tmp_path: Path, describe: Any) -> None:
    _write(tmp_path / "a.nc", "NETCDF3_CLASSIC", 2)
    found = parse_source(describe(tmp_path / "a.nc")).references["r0"].table
    assert len(found) == 7
    assert len(set(np.diff(found.offset.astype(np.int64)).tolist())) == 1


@pytest.mark.parametrize("keep", [2, 20, 60, 200])
def test_a_truncated_classic_file_is_a_format_error(tmp_path: Path, describe: Any, keep: int) -> None:
    _write(tmp_path / "a.nc", "NETCDF3_CLASSIC", 2)
    data = (tmp_path / "a.nc").read_bytes()
    (tmp_path / "b.nc").write_bytes(data[:keep] if keep < len(data) else data[:-40])
    with pytest.raises(FormatError, match=r"b\.nc"):
        parse_schema(describe(tmp_path / "b.nc"))


def test_a_header_with_absurd_counts_is_refused_without_allocating(tmp_path: Path, describe: Any) -> None:
    (tmp_path / "a.nc").write_bytes(b"CDF\x01" + b"\x00" * 4 + b"\x00\x00\x00\x0a" + b"\x7f\xff\xff\xff" + b"\x00" * 64)
    with pytest.raises(FormatError, match="counts"):
        parse_schema(describe(tmp_path / "a.nc"))
