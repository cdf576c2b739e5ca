"""Mixed ingest: what cannot be referenced faithfully is written by value, and the rest is referenced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe import Repository
from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.sources import IngestOptions
from icefloe.model.chunk_table import ChunkKind

pytestmark = pytest.mark.filterwarnings("ignore")
_MIXED = IngestOptions(mode="mixed", native_below_bytes=0)
_ENCODINGS: dict[str, dict[str, Any]] = {
    "plain": {"chunksizes": (2, 4, 6)},
    "deflate": {"chunksizes": (2, 4, 6), "zlib": True},
    "chunks": {"chunksizes": (1, 2, 3)},
    "contiguous": {"contiguous": True},
    "narrow": {"chunksizes": (2, 4, 6), "dtype": "f4"},
    "fill": {"chunksizes": (2, 4, 6), "_FillValue": -99.0},
}


def _write(path: Path, day: int, encoding: str, *, times: int = 4) -> Path:
    rng = np.random.default_rng(day)
    values = rng.integers(-1000, 1000, (times, 4, 6)) / 8.0
    values[rng.random(values.shape) < 0.1] = np.nan
    time = 24.0 * day + np.arange(times)
    dataset = xr.Dataset({"t": (("time", "y", "x"), values)}, {"time": ("time", time), "y": np.arange(4.0)})
    dataset.time.attrs["units"] = "hours since 2000-01-01"
    dataset.t.attrs["long_name"] = f"day {day}"
    dataset.to_netcdf(path, encoding={"t": {"_FillValue": np.nan, **_ENCODINGS[encoding]}}, engine="netcdf4")
    return path


def _read(folder: Path, name: str = "repo") -> xr.Dataset:
    allowed = {f"file://{folder}/": None}
    repository = Repository.open(str(folder / name), authorize_virtual_chunk_access=allowed)
    return xr.open_zarr(repository.readonly_session("main").store, consolidated=False).load()


def _kinds(folder: Path, path: str = "/t") -> dict[Any, int]:
    state = Repository.open(str(folder / "repo")).readonly_session("main").state
    table = run_blocking(state.chunk_table(state.tree.array(path)))
    return {ChunkKind(k): int(n) for k, n in zip(*np.unique(table.kind, return_counts=True), strict=True)}


def _check(folder: Path, paths: list[Path]) -> None:
    expected = xr.concat([xr.load_dataset(path) for path in sorted(paths)], "time")
    found = _read(folder)
    np.testing.assert_array_equal(found["t"].values, expected["t"].values.astype("f8"))
    np.testing.assert_array_equal(found["time"].values, expected["time"].values)
    assert found["t"].attrs["long_name"] == "day 0"


@pytest.mark.long
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(sorted(_ENCODINGS)), min_size=1, max_size=5), st.integers(0, 3))
def test_any_mix_of_encodings_equals_what_xarray_reads(
    tmp_path_factory: pytest.TempPathFactory, encodings: list[str], later: int
) -> None:
    folder = tmp_path_factory.mktemp("mixed")
    paths = [_write(folder / f"{day}.nc", day, encoding) for day, encoding in enumerate(encodings)]
    cut = max(1, len(paths) - later)
    repository = Repository.create(str(folder / "repo"))
    options = IngestOptions(mode="mixed", native_below_bytes=0, append_dim="time")
    ingest_local(paths[:cut], repository, options)
    if paths[cut:]:
        later_types = {encoding != "narrow" for encoding in encodings[cut:]}
        if set(encodings[:cut]) == {"narrow"} and True in later_types:
            with pytest.raises(InvalidInputError, match="dtype"):
                ingest_local(paths[cut:], Repository.open(str(folder / "repo")), options)
            paths = paths[:cut]
        else:
            ingest_local(paths[cut:], Repository.open(str(folder / "repo")), options)
    _check(folder, paths)


def test_only_the_files_with_another_encoding_are_written_by_value(tmp_path: Path) -> None:
    encodings = ["deflate", "plain", "plain", "chunks", "plain"]
    paths = [_write(tmp_path / f"{day}.nc", day, encoding) for day, encoding in enumerate(encodings)]
    result = ingest_local(paths, Repository.create(str(tmp_path / "repo")), _MIXED)
    _check(tmp_path, paths)
    kinds = _kinds(tmp_path)
    assert kinds.pop(ChunkKind.VIRTUAL) == 6
    assert sum(kinds.values()) == 4
    assert result.plan is not None
    said = {
        issue.file.rsplit("/", 1)[1]: str(issue) for issue in result.plan.report.issues if issue.facet == "references"
    }
    assert set(said) == {"0.nc", "3.nc"}
    assert "codecs" in said["0.nc"] and "written by value" in said["0.nc"]
    with pytest.raises(InvalidInputError, match="codecs"):
        ingest_local(paths, Repository.create(str(tmp_path / "strict")), IngestOptions(mode="virtual"))


def test_an_append_references_what_fits_the_array_and_writes_the_rest(tmp_path: Path) -> None:
    paths = [
        _write(tmp_path / f"{day}.nc", day, encoding) for day, encoding in enumerate(["plain", "deflate", "plain"])
    ]
    repository = Repository.create(str(tmp_path / "repo"))
    options = IngestOptions(mode="mixed", native_below_bytes=0, append_dim="time")
    ingest_local(paths[0], repository, options)
    ingest_local(paths[1:], Repository.open(str(tmp_path / "repo")), options)
    _check(tmp_path, paths)
    assert _kinds(tmp_path)[ChunkKind.VIRTUAL] == 4


def test_an_array_is_written_by_value_if_a_file_begins_within_a_chunk(tmp_path: Path) -> None:
    paths = [_write(tmp_path / f"{day}.nc", day, "plain", times=3) for day in range(3)]
    ingest_local(paths, Repository.create(str(tmp_path / "repo")), _MIXED)
    _check(tmp_path, paths)
    assert ChunkKind.VIRTUAL not in _kinds(tmp_path)
