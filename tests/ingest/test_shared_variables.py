"""Variables that all files of an archive share: masks, areas, bounds, scalars. They are the same, or refused."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe import Repository, in_memory_storage
from icefloe.errors import InvalidInputError
from icefloe.ingest import local_ingest
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.parsers import registry
from icefloe.ingest.sources import IngestOptions

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True)
class _Shared:
    """How a file holds the variables that have no time."""

    shift: int = 0
    """Added to one cell of each."""
    dtype: str = "i2"
    fill: int | None = -99
    units: str = "days since 2020-01-01"
    """Of the scalar."""
    cells: int = 6


def _write(path: Path, hour: int, shared: _Shared) -> Path:
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("y", 2)
        file.createDimension("x", shared.cells)
        file.createVariable("time", "i4", ("time",))[:] = [hour, hour + 1]
        file["time"].units = "hours since 2020-01-01"
        file.createVariable("v", "f4", ("time", "y", "x"))[:] = np.arange(4.0 * shared.cells).reshape(2, 2, -1) + hour
        # Nothing names the mask. The area has missing cells. The scalar is a time.
        values = np.arange(2 * shared.cells).reshape(2, -1) % 100
        values[1, 2] += shared.shift
        mask = file.createVariable("mask", shared.dtype, ("y", "x"))
        area = file.createVariable("area", shared.dtype, ("y", "x"), fill_value=shared.fill)
        for each in (mask, area):
            each.set_auto_mask(False)
            each[:] = values
        if shared.fill is not None:
            area[0, 1] = shared.fill
        start = file.createVariable("start", "f8", ())
        start.units = shared.units
        start[...] = shared.shift
    return path


def _decoded(path: Path) -> xr.Dataset:
    with xr.open_dataset(path) as dataset:
        return dataset[["mask", "area", "start"]].load()


_MODES = ("native", "virtual", "mixed")
_FIRST = _Shared()


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(
        st.builds(
            _Shared,
            st.sampled_from([0, 0, 0, 1]),
            st.sampled_from(["i2", "i2", "i4", "f4"]),
            st.sampled_from([-99, -99, -77]),
            st.sampled_from(["days since 2020-01-01", "hours since 2020-01-01", "days since 2020-01-02"]),
            st.sampled_from([6, 6, 6, 7]),
        ),
        min_size=1,
        max_size=2,
    ),
    st.sampled_from(_MODES),
    st.sampled_from(["once", "append", "region"]),
)
def test_shared_variables_are_those_of_every_file_or_the_ingest_is_refused(
    others: list[_Shared], mode: Any, how: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [_write(Path(folder) / f"f{i}.nc", 2 * i, each) for i, each in enumerate([_FIRST, *others])]
        files = [_decoded(path) for path in paths]
        is_same = all(files[0].equals(each) for each in files)
        repository = Repository.create(in_memory_storage())
        try:
            if how == "once":
                ingest_local(paths, repository, IngestOptions(mode=mode))
            else:
                ingest_local(paths[:1], repository, IngestOptions(mode=mode))
                options = IngestOptions(mode=mode, append_dim="time")
                if how == "region":
                    paths = [_write(Path(folder) / f"g{i}.nc", 0, each) for i, each in enumerate(others[:1])]
                    options = IngestOptions(mode=mode, region="auto")
                    is_same = files[0].equals(files[1])
                ingest_local(paths if how == "region" else paths[1:], repository, options)
        except InvalidInputError:
            assert not is_same or any(other != _FIRST for other in others)
            return
        assert is_same
        store = repository.readonly_session("main").store
        if mode == "native":
            result = xr.open_zarr(store, consolidated=False)[["mask", "area", "start"]].load()
            xr.testing.assert_equal(result, files[0])


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("cells", [6, 70_000], ids=["small", "large"])
@pytest.mark.parametrize("how", ["once", "append"])
def test_a_changed_cell_of_a_shared_variable_is_refused_by_name(
    tmp_path: Path, mode: Any, cells: int, how: str
) -> None:
    first = replace(_FIRST, cells=cells)
    paths = [_write(tmp_path / f"f{i}.nc", 2 * i, replace(first, shift=int(i == 2))) for i in range(3)]
    repository = Repository.create(in_memory_storage())
    if how == "append":
        ingest_local(paths[:2], repository, IngestOptions(mode=mode))
        paths = paths[2:]
    options = IngestOptions(mode=mode, append_dim="time" if how == "append" else None)
    before = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match=r"/(mask|area|start) has other values in .*f2.nc than in"):
        ingest_local(paths, repository, options)
    assert repository.lookup_branch("main") == before
    ingest_local(paths, repository, replace(options, drop_variables=("mask", "area", "start")))


def test_differing_shared_variables_are_those_of_the_first_file_if_checks_are_declined(tmp_path: Path) -> None:
    paths = [_write(tmp_path / f"f{i}.nc", 2 * i, replace(_FIRST, shift=i)) for i in range(2)]
    repository = Repository.create(in_memory_storage())
    ingest_local(paths, repository, IngestOptions(unchecked=True))
    result = xr.open_zarr(repository.readonly_session("main").store, consolidated=False).load()
    xr.testing.assert_equal(result[["mask", "area", "start"]], _decoded(paths[0]))


def test_the_values_of_a_large_shared_variable_do_not_depend_on_its_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.ingest.write_tasks.COMPARED_BLOCK_BYTES", 8)
    monkeypatch.setattr(registry, "DIGESTED_BYTES", 0)
    paths = [
        _write(tmp_path / "a.nc", 0, _FIRST),
        _write(tmp_path / "b.nc", 2, replace(_FIRST, dtype="i4")),
        _write(tmp_path / "c.nc", 4, _FIRST),
    ]
    repository = Repository.create(in_memory_storage())
    ingest_local(paths[:2], repository)
    ingest_local(paths[2:], repository, IngestOptions(append_dim="time"))
    _write(tmp_path / "d.nc", 6, replace(_FIRST, shift=1))
    with pytest.raises(InvalidInputError, match="than in the repository"):
        ingest_local(tmp_path / "d.nc", repository, IngestOptions(append_dim="time"))


def test_small_shared_variables_are_compared_without_opening_the_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError("a file was read for a comparison")

    monkeypatch.setattr(local_ingest, "digest_variables", fail)
    paths = [_write(tmp_path / f"f{i}.nc", 2 * i, _FIRST) for i in range(4)]
    repository = Repository.create(in_memory_storage())
    ingest_local(paths[:2], repository)
    ingest_local(paths[2:], repository, IngestOptions(append_dim="time"))
