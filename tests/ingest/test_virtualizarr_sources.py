"""Parsers of the VirtualiZarr package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from tests.ingest.memory_sink import MemorySink

from icefloe.errors import FormatError, InvalidInputError
from icefloe.ingest.parsers.registry import open_source, parse_schema
from icefloe.ingest.plan import plan_ingest
from icefloe.ingest.sources import IngestOptions, expand_sources
from icefloe.ingest.write_tasks import run_task
from icefloe.testing.synthetic_weather import write_month

pytestmark = pytest.mark.filterwarnings("ignore")
HDF = "virtualizarr.parsers:HDFParser"


@pytest.fixture(autouse=True)
def _installed() -> None:
    pytest.importorskip("virtualizarr")


def test_a_parser_of_virtualizarr_gives_the_same_values_as_ours(tmp_path: Path, describe: Any) -> None:
    (path,) = write_month(tmp_path, days=1, nlat=12, nlon=20, variables=("t2m", "tp"), packed=True)
    with open_source(describe(path)) as ours, open_source(describe(path), format=HDF) as theirs:
        assert set(theirs.schema().variables) == set(ours.schema().variables)
        for name, variable in theirs.schema().variables.items():
            whole = tuple(slice(0, n) for n in variable.shape)
            np.testing.assert_array_equal(theirs.values(variable, whole), ours.values(ours.find_variable(name), whole))


def test_files_of_a_virtualizarr_parser_are_combined_by_reference(tmp_path: Path) -> None:
    write_month(tmp_path, days=2, nlat=12, nlon=20, variables=("t2m",))
    schemas = [parse_schema(f, format=HDF) for f in expand_sources(tmp_path)]
    plan = plan_ingest(schemas, IngestOptions(mode="mixed", format=HDF, native_below_bytes=0))
    plan.report.raise_on_errors()
    sink = MemorySink()
    sink.begin(plan)
    for task in plan.tasks:
        run_task(task, plan.arrays, sink, format=HDF)
    assert plan.arrays["t2m"].kind == "virtual"
    expected = xr.open_mfdataset(sorted(str(p) for p in tmp_path.glob("*.nc")), engine="netcdf4")
    np.testing.assert_array_equal(xr.open_zarr(sink.store(), consolidated=False).t2m.values, expected.t2m.values)


def test_unknown_parsers_and_files_they_refuse_are_named(tmp_path: Path, describe: Any) -> None:
    (tmp_path / "a.nc").write_bytes(b"nothing")
    with pytest.raises(InvalidInputError, match="no parser"):
        open_source(describe(tmp_path / "a.nc"), format="virtualizarr.parsers:Nope")
    with pytest.raises(FormatError, match=r"a\.nc"):
        open_source(describe(tmp_path / "a.nc"), format=HDF)
