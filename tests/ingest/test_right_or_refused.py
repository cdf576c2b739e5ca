"""Appends, regions, holes, names: what is written is what the files hold, or the ingest says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import Repository, in_memory_storage
from icefloe.errors import InvalidInputError
from icefloe.ingest.local_ingest import IngestResult, ingest_local
from icefloe.ingest.sources import IngestOptions
from icefloe.tables.columns import coding_of

pytestmark = pytest.mark.filterwarnings("ignore")
HOURS = "hours since 2020-01-01"


def write(path: Path, first: int, *, names: str = "v", hours: int = 4, dtype: str = "f4", **attributes: Any) -> Path:
    """Some hours of one or more variables over time and lat."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("lat", 2)
        file.createVariable("time", "i4", ("time",))[:] = np.arange(hours) + first
        file["time"].units = HOURS
        file.createVariable("lat", "f8", ("lat",))[:] = [10.0, 20.0]
        for name in names:
            made = file.createVariable(name, dtype, ("time", "lat"), fill_value=attributes.get("_FillValue"))
            made.set_auto_maskandscale(False)
            made.setncatts({k: v for k, v in attributes.items() if k != "_FillValue"})
            made[:] = np.arange(2 * hours).reshape(hours, 2) + first
    return path


@pytest.fixture
def repository() -> Repository:
    return Repository.create(in_memory_storage())


def run(repository: Repository, *paths: Path, **options: Any) -> IngestResult:
    return ingest_local(list(paths), repository, IngestOptions(**options))


def opened(repository: Repository, **options: Any) -> xr.Dataset:
    return xr.open_zarr(repository.readonly_session("main").store, consolidated=False, **options).load()


def test_an_append_without_a_variable_is_refused_or_leaves_it_missing(tmp_path: Path, repository: Repository) -> None:
    run(repository, write(tmp_path / "a.nc", 0, names="vu"))
    second = write(tmp_path / "b.nc", 4, names="v")
    with pytest.raises(InvalidInputError, match="u: missing variable"):
        run(repository, second, append_dim="time")
    run(repository, second, append_dim="time", allow_missing=True)
    result = opened(repository)
    assert result.u.shape == result.v.shape == (8, 2)
    assert np.isnan(result.u.values[4:]).all() and not np.isnan(result.v.values).any()


def test_an_append_that_leaves_integers_without_a_missing_value_out_is_refused(
    tmp_path: Path, repository: Repository
) -> None:
    run(repository, write(tmp_path / "a.nc", 0, names="vu", dtype="i4"))
    with pytest.raises(InvalidInputError, match="u: missing variable.*ordinary"):
        run(repository, write(tmp_path / "b.nc", 4, names="v", dtype="i4"), append_dim="time", allow_missing=True)


def test_a_variable_that_the_repository_lacks_is_refused_or_missing_before(
    tmp_path: Path, repository: Repository
) -> None:
    run(repository, write(tmp_path / "a.nc", 0, names="v"))
    second = write(tmp_path / "b.nc", 4, names="vu")
    with pytest.raises(InvalidInputError, match="u: new variable"):
        run(repository, second, append_dim="time")
    run(repository, second, append_dim="time", allow_missing=True)
    assert np.isnan(opened(repository).u.values[:4]).all() and not np.isnan(opened(repository).u.values[4:]).any()


@pytest.mark.parametrize(("stored", "given"), [("i2", "i4"), ("f4", "f8"), ("i4", "u4"), ("f8", "i8")])
def test_a_wider_type_is_not_appended_unless_it_is_asked_for(
    tmp_path: Path, repository: Repository, stored: str, given: str
) -> None:
    run(repository, write(tmp_path / "a.nc", 0, dtype=stored))
    second = write(tmp_path / "b.nc", 4, dtype=given)
    with pytest.raises(InvalidInputError, match=rf"v: dtype: expected {np.dtype(stored)}, found {np.dtype(given)}"):
        run(repository, second, append_dim="time")
    run(repository, second, append_dim="time", dtypes={"v": stored})
    assert opened(repository).v.values[4:].reshape(-1).tolist() == list(range(4, 12))
    with netCDF4.Dataset(tmp_path / "c.nc", "w") as file, netCDF4.Dataset(second) as like:
        for name, size in (("time", 4), ("lat", 2)):
            file.createDimension(name, size)
            file.createVariable(name, like[name].dtype, (name,))[:] = like[name][:] + (4 if name == "time" else 0)
        file["time"].units = HOURS
        file.createVariable("v", given, ("time", "lat"))[:] = 1e300 if given == "f8" else np.iinfo(given).max
    with pytest.raises(InvalidInputError, match=r"c\.nc: .* does not fit the type"):
        run(repository, tmp_path / "c.nc", append_dim="time", dtypes={"v": stored})
    assert opened(repository).sizes["time"] == 8


def test_missing_values_of_an_append_are_those_of_the_array(tmp_path: Path, repository: Repository) -> None:
    run(repository, write(tmp_path / "a.nc", 0, dtype="i4", _FillValue=np.int32(-1)))
    run(repository, write(tmp_path / "b.nc", 4, dtype="i4", _FillValue=np.int32(5)), append_dim="time")
    values = opened(repository).v.values
    assert np.isnan(values[4:].reshape(-1)[1]) and np.isnan(values).sum() == 1
    clash = write(tmp_path / "c.nc", -4, dtype="i4")
    with pytest.raises(InvalidInputError, match="mean missing in the array"):
        run(repository, clash, append_dim="time", append_order="any")


def test_order_is_judged_by_all_values_of_the_repository(tmp_path: Path, repository: Repository) -> None:
    run(repository, write(tmp_path / "a.nc", 0), write(tmp_path / "b.nc", 20))
    run(repository, write(tmp_path / "c.nc", 8), append_dim="time", append_order="any")
    for first in (0, 8, 12, 20):
        with pytest.raises(InvalidInputError, match="cannot append along time"):
            run(repository, write(tmp_path / "again.nc", first), append_dim="time")
    run(repository, write(tmp_path / "d.nc", 24), append_dim="time")
    assert np.unique(opened(repository).time.values).size == 16


def test_a_region_lies_where_the_coordinates_say_and_writes_no_coordinate(
    tmp_path: Path, repository: Repository
) -> None:
    run(repository, *(write(tmp_path / f"{n}.nc", 4 * n) for n in range(3)), chunks={"time": 4})
    correction = write(tmp_path / "x.nc", 4, valid_min=0)
    with pytest.raises(InvalidInputError, match=r"time: values: expected 2020-01-01 08:00"):
        run(repository, correction, region={"time": (8, 12)})
    with pytest.raises(InvalidInputError, match="starts before the first cell"):
        run(repository, correction, region={"time": (-4, 0)})
    for region in ("auto", {"time": (4, 8)}):
        plan = run(repository, correction, region=region).plan
        assert plan is not None and not plan.documents and not plan.values and set(plan.arrays) == {"v"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"append_dim": "tiem"}, "did you mean 'time'"),
        ({"concat_dims": ("tiem",)}, "did you mean 'time'"),
        ({"chunks": {"lta": 1}}, "did you mean 'lat'"),
        ({"dtypes": {"vv": "f8"}}, "did you mean 'v'"),
        ({"variables": ("vv",)}, "did you mean 'v'"),
        ({"drop_variables": ("lta",)}, "did you mean 'lat'"),
        ({"rename": {"tiem": "t"}}, "did you mean 'time'"),
    ],
)
def test_names_that_nothing_has_are_refused_with_the_nearest(
    tmp_path: Path, repository: Repository, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidInputError, match=told):
        run(repository, write(tmp_path / "a.nc", 0), write(tmp_path / "b.nc", 4), **options)


def test_an_empty_text_is_no_source(repository: Repository) -> None:
    with pytest.raises(InvalidInputError, match="empty string"):
        ingest_local("", repository)


def test_files_without_cells_bring_nothing(tmp_path: Path, repository: Repository) -> None:
    write(tmp_path / "a.nc", 0)
    write(tmp_path / "b.nc", 0, hours=0)
    write(tmp_path / "c.nc", 4)
    run(repository, tmp_path / "a.nc", tmp_path / "b.nc", tmp_path / "c.nc")
    assert opened(repository).time.size == 8
    run(repository, tmp_path / "b.nc", append_dim="time")
    assert opened(repository).time.size == 8


@pytest.mark.parametrize("mode", ["virtual", "mixed"])
def test_chunks_of_a_file_without_cells_do_not_matter(tmp_path: Path, repository: Repository, mode: str) -> None:
    for name, first, hours, chunk in (("a", 0, 0, 3), ("b", 0, 4, 2), ("c", 4, 0, 1), ("d", 4, 4, 2)):
        with netCDF4.Dataset(tmp_path / f"{name}.nc", "w") as file:
            file.createDimension("time", None)
            file.createVariable("time", "i4", ("time",), chunksizes=(chunk,))[:] = np.arange(hours) + first
            file["time"].units = HOURS
            file.createVariable("v", "f4", ("time",), chunksizes=(chunk,))[:] = np.arange(hours) + first
    result = run(repository, *sorted(tmp_path.glob("*.nc")), mode=mode, native_below_bytes=0)
    assert result.plan is not None
    opener = Repository.open(repository.storage, authorize_virtual_chunk_access=dict.fromkeys(result.plan.containers))
    np.testing.assert_array_equal(opened(opener)["v"], np.arange(8))


def _write_plain(path: Path, first: int, hours: int, chunk: int | None) -> Path:
    """A file without an unlimited dimension: its values lie in one run of bytes, or in chunks."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", hours)
        file.createVariable("time", "i4", ("time",))[:] = np.arange(hours) + first
        file["time"].units = HOURS
        chunks = None if chunk is None else (min(chunk, hours),)
        file.createVariable("v", "f4", ("time",), chunksizes=chunks, fill_value=-1)[:] = np.arange(hours) + first
    return path


@pytest.mark.parametrize("chunk", [None, 1, 2, 3])
@pytest.mark.parametrize("mode", ["virtual", "mixed"])
@pytest.mark.parametrize("lengths", [(3, 2, 3), (3, 2, 1), (2, 2, 3), (4, 1, 1)])
def test_references_are_only_appended_at_the_bounds_of_chunks(
    tmp_path: Path, repository: Repository, mode: str, lengths: tuple[int, int, int], chunk: int | None
) -> None:
    starts = np.cumsum([0, *lengths])
    paths = [_write_plain(tmp_path / f"{i}.nc", int(starts[i]), n, chunk) for i, n in enumerate(lengths)]
    taken, containers = 0, {}
    for part, more in ((paths[:2], {}), (paths[2:], {"append_dim": "time"})):
        try:
            result = run(repository, *part, mode=mode, native_below_bytes=0, **more)
        except InvalidInputError as error:
            if mode == "mixed" or "chunk" not in str(error):
                raise
            break
        taken += len(part)
        assert result.plan is not None
        containers.update(dict.fromkeys(result.plan.containers))
        repository = Repository.open(repository.storage, authorize_virtual_chunk_access=containers)
    if taken:
        np.testing.assert_array_equal(opened(repository)["v"], np.arange(starts[taken]))


@pytest.mark.parametrize("chunk", [None, 1, 2, 3])
@pytest.mark.parametrize("mode", ["virtual", "mixed"])
@pytest.mark.parametrize("region", [(0, 2), (2, 4), (3, 6), (1, 3), (4, 6)])
def test_references_that_end_within_a_chunk_leave_its_other_cells_alone(
    tmp_path: Path, repository: Repository, mode: str, region: tuple[int, int], chunk: int | None
) -> None:
    first = _write_plain(tmp_path / "all.nc", 0, 6, chunk)
    result = run(repository, first, mode=mode, native_below_bytes=0)
    assert result.plan is not None
    containers = dict.fromkeys(result.plan.containers)
    repository = Repository.open(repository.storage, authorize_virtual_chunk_access=containers)
    path = _write_plain(tmp_path / "part.nc", region[0], region[1] - region[0], chunk)
    with netCDF4.Dataset(path, "a") as file:
        file["v"][:] = file["v"][:] + 100
    wanted = np.arange(6.0)
    try:
        run(repository, path, mode=mode, native_below_bytes=0, region="auto")
        wanted[slice(*region)] += 100
    except InvalidInputError as error:
        if mode == "mixed" or "chunk" not in str(error):
            raise
    np.testing.assert_array_equal(opened(repository)["v"], wanted)


@pytest.mark.parametrize("mode", ["native", "virtual"])
@pytest.mark.parametrize("fill", [None, -1.0])
def test_a_variable_that_ends_before_its_unlimited_dimension_is_padded_as_netcdf_pads_it(
    tmp_path: Path, repository: Repository, mode: str, fill: float | None
) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", None)
        file.createDimension("record", None)
        file.createVariable("time", "i4", ("time",))[:] = np.arange(7)
        file["time"].units = HOURS
        # One that ends within a chunk, one at the end of a chunk, one without any, one in a group below.
        for name, length in (("v", 5), ("w", 4), ("none", 0)):
            file.createVariable(name, "f8", ("time",), fill_value=fill, chunksizes=(4,))[:length] = np.arange(length)
        file.createVariable("r", "i2", ("record", "time"))[:2, :3] = 1
        below = file.createGroup("below")
        below.createVariable("x", "i4", ("time",))[:2] = [1, 2]
    result = run(repository, tmp_path / "a.nc", mode=mode)
    assert result.plan is not None
    opener = Repository.open(repository.storage, authorize_virtual_chunk_access=dict.fromkeys(result.plan.containers))
    for group in (None, "below"):
        got, wanted = opened(opener, group=group), xr.open_dataset(tmp_path / "a.nc", group=group).load()
        # The NetCDF library mixes up cells where the dimension that is longer is not the first.
        xr.testing.assert_equal(got.drop_vars("r", errors="ignore"), wanted.drop_vars("r", errors="ignore"))
    np.testing.assert_array_equal(opened(opener)["r"], np.where(np.arange(7) < 3, 1, [[-32767], [-32767]]))


def test_a_chunk_that_a_file_never_stored_replaces_one_of_the_array(tmp_path: Path, repository: Repository) -> None:
    for name, first, hours in (("all", 0, 4), ("part", 2, 2)):
        with netCDF4.Dataset(tmp_path / f"{name}.nc", "w") as file:
            file.createDimension("time", hours)
            file.createVariable("time", "i4", ("time",))[:] = np.arange(hours) + first
            file["time"].units = HOURS
            values = file.createVariable("v", "f4", ("time",), chunksizes=(1,), fill_value=-1)
            if name == "all":
                values[:] = np.arange(hours)
    result = run(repository, tmp_path / "all.nc", mode="virtual")
    assert result.plan is not None
    containers = dict.fromkeys(result.plan.containers)
    repository = Repository.open(repository.storage, authorize_virtual_chunk_access=containers)
    run(repository, tmp_path / "part.nc", mode="virtual", region="auto")
    np.testing.assert_array_equal(opened(repository)["v"], [0, 1, np.nan, np.nan])


def test_cells_of_a_region_that_no_file_has_stay_as_they_are(tmp_path: Path, repository: Repository) -> None:
    write(tmp_path / "all.nc", 0, names="vw", hours=4, dtype="i4")
    run(repository, tmp_path / "all.nc")
    write(tmp_path / "a.nc", 1, names="v", hours=1, dtype="i4")
    write(tmp_path / "b.nc", 2, names="w", hours=1, dtype="i4")
    before = opened(repository)
    run(repository, tmp_path / "a.nc", tmp_path / "b.nc", region="auto", allow_missing=True)
    after = opened(repository)
    for name, hour in (("v", 1), ("w", 2)):
        wanted = before[name].values.copy()
        wanted[hour] = np.arange(2) + hour
        np.testing.assert_array_equal(after[name], wanted)


def test_a_broken_file_beside_a_single_one_is_left_out_and_said_to_be(tmp_path: Path, repository: Repository) -> None:
    write(tmp_path / "a.nc", 0)
    (tmp_path / "b.nc").write_bytes(b"CDF\x01")
    result = run(repository, tmp_path / "a.nc", tmp_path / "b.nc", on_error="skip")
    assert result.plan is not None
    (issue,) = (i for i in result.plan.report.issues if i.file.endswith("b.nc"))
    assert "left out" in issue.resolution


@pytest.mark.parametrize(
    ("first", "second"),
    [("360_day", "360_day"), ("standard", "proleptic_gregorian"), ("noleap", "noleap"), ("standard", "standard")],
)
def test_floating_bounds_in_other_units_are_joined_in_every_calendar(
    tmp_path: Path, repository: Repository, first: str, second: str
) -> None:
    units = (("days since 2000-01-01", first), ("minutes since 2001-03-04 06:00:00", second))
    for number, (text, calendar) in enumerate(units):
        with netCDF4.Dataset(tmp_path / f"{number}.nc", "w") as file:
            file.createDimension("time", None)
            file.createDimension("nv", 2)
            time = file.createVariable("time", "f8", ("time",))
            time.setncatts({"units": text, "calendar": calendar, "bounds": "time_bnds"})
            time[:] = np.arange(3) / 4 + number * 1e6
            file.createVariable("time_bnds", "f8", ("time", "nv"))[:] = time[:][:, None] + [0.0, 0.125]
    run(repository, *sorted(tmp_path.glob("*.nc")))
    got = opened(repository)
    files = [xr.open_dataset(path).load() for path in sorted(tmp_path.glob("*.nc"))]
    for name in ("time", "time_bnds"):
        wanted = [str(t) for f in files for t in f[name].values.ravel()]
        assert sorted(map(str, got[name].values.ravel())) == sorted(wanted)


def test_dates_before_the_reform_are_not_joined_with_those_of_another_calendar(
    tmp_path: Path, repository: Repository
) -> None:
    for number, calendar in enumerate(("standard", "proleptic_gregorian")):
        with netCDF4.Dataset(tmp_path / f"{number}.nc", "w") as file:
            file.createDimension("time", None)
            file.createVariable("time", "f8", ("time",))[:] = [number]
            file["time"].setncatts({"units": "days since 2000-01-01", "calendar": calendar})
            file.createVariable("seen", "f8", ("time",))[:] = [-200_000.0]
            file["seen"].setncatts({"units": "days since 2000-01-01", "calendar": calendar})
    with pytest.raises(InvalidInputError, match="different dates"):
        run(repository, *sorted(tmp_path.glob("*.nc")))


def test_a_hole_of_a_virtual_array_is_missing_and_unwritten_chunks_are_not(
    tmp_path: Path, repository: Repository
) -> None:
    for member in range(2):
        for part in range(2):
            if member and part:
                continue
            with h5py.File(tmp_path / f"m{member}_{part}.h5", "w") as file:
                for name, values in (("member", [member]), ("time", [2 * part, 2 * part + 1])):
                    file.create_dataset(name, data=values).make_scale(name)
                data = file.create_dataset("v", (1, 2), "f4", chunks=(1, 1), fillvalue=7.0)
                data[0, 0] = 1.0
                for axis, name in enumerate(("member", "time")):
                    data.dims[axis].attach_scale(file[name])
    result = run(repository, tmp_path, mode="virtual")
    assert result.plan is not None
    reader = Repository.open(repository.storage, authorize_virtual_chunk_access=dict.fromkeys(result.plan.containers))
    np.testing.assert_array_equal(opened(reader).v.values, [[1, 7, 1, 7], [1, 7, np.nan, np.nan]])


def test_groups_without_variables_and_attributes_that_are_not_finite_are_kept(
    tmp_path: Path, repository: Repository
) -> None:
    write(tmp_path / "a.nc", 0, valid_max=np.float32(np.inf), nothing=np.nan, several=np.array([1.0, np.nan]))
    with netCDF4.Dataset(tmp_path / "a.nc", "a") as file:
        file.createGroup("empty/inner").note = "kept"
    run(repository, tmp_path / "a.nc")
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert root["empty/inner"].attrs["note"] == "kept"
    attributes = opened(repository).v.attrs
    assert attributes["valid_max"] == np.inf and np.isnan(attributes["nothing"]) and np.isnan(attributes["several"][1])


@pytest.mark.parametrize("unpack", [False, True])
@pytest.mark.parametrize(
    ("dtype", "attributes"),
    [
        ("f4", {"missing_value": np.float32(np.nan)}),
        ("f4", {"missing_value": np.array([3, 5], "f4")}),
        ("i4", {"missing_value": np.array([3, 5], "i4")}),
        ("f4", {"_FillValue": np.float32(3), "missing_value": np.float32(5)}),
        ("i2", {"missing_value": np.array([3, 5], "i2"), "scale_factor": 0.5}),
        ("i2", {"_FillValue": np.int16(3), "missing_value": np.int16(5), "scale_factor": 0.5}),
        ("i1", {"_Unsigned": "true", "_FillValue": np.int8(-2)}),
        ("i1", {"_Unsigned": "true", "_FillValue": np.int8(-2), "scale_factor": 0.5}),
        ("i2", {"missing_value": 1e20}),
        ("f4", {"missing_value": "3"}),
    ],
)
def test_missing_values_are_those_of_xarray_in_arrays_and_in_tables(
    tmp_path: Path, repository: Repository, dtype: str, attributes: dict[str, Any], unpack: bool
) -> None:
    path = write(tmp_path / "a.nc", -3, dtype=dtype, **attributes)
    run(repository, path, unpack=unpack)
    wanted = xr.open_dataset(path).v.values.astype("f8")
    np.testing.assert_array_equal(opened(repository).v.values.astype("f8"), wanted)
    array = zarr.open_array(repository.readonly_session("main").store, path="v", mode="r")
    column = coding_of(array.dtype, array.attrs.asdict()).decode(np.asarray(array[...])).to_pylist()
    assert column == [None if np.isnan(value) else value for value in wanted.reshape(-1)]


def test_packed_coordinates_are_unpacked_with_the_rest(tmp_path: Path, repository: Repository) -> None:
    path = write(tmp_path / "a.nc", 0)
    with netCDF4.Dataset(path, "a") as file:
        file["lat"].set_auto_maskandscale(False)
        file["lat"].scale_factor = 0.5
    run(repository, path, unpack=True)
    assert opened(repository).lat.values.tolist() == [5.0, 10.0]


def test_a_missing_value_is_spelled_by_the_type_that_holds_all_files(tmp_path: Path, repository: Repository) -> None:
    write(tmp_path / "a.nc", 0, dtype="i2", _FillValue=np.int16(3))
    write(tmp_path / "b.nc", 4, dtype="f8", _FillValue=np.float64(3.0))
    run(repository, tmp_path / "a.nc", tmp_path / "b.nc")
    assert np.isnan(opened(repository).v.values).sum() == 1


@pytest.mark.parametrize("is_appended", [False, True])
@pytest.mark.parametrize("dtypes", [("i2", "i1"), ("i4", "i2"), ("i4", "i1")])
@pytest.mark.parametrize("fill", [None, 5])
def test_unsigned_numbers_of_another_width_keep_their_values(
    tmp_path: Path, repository: Repository, dtypes: tuple[str, str], fill: int | None, is_appended: bool
) -> None:
    more: dict[str, Any] = {} if fill is None else {"_FillValue": fill}
    first, second = (
        write(tmp_path / f"{dtype}.nc", 10 * number - 12, dtype=dtype, _Unsigned="true", **more)
        for number, dtype in enumerate(dtypes)
    )
    if is_appended:
        run(repository, first)
        run(repository, second, append_dim="time")
    else:
        run(repository, first, second)
    theirs = xr.concat([xr.open_dataset(path) for path in (first, second)], "time").v.values
    assert np.nanmax(theirs[:4].astype("f8")) > 2**15
    np.testing.assert_array_equal(opened(repository).v.values.astype("f8"), theirs.astype("f8"))


def test_a_variable_with_a_name_that_zarr_reserves_is_refused_or_renamed(
    tmp_path: Path, repository: Repository
) -> None:
    with netCDF4.Dataset(write(tmp_path / "a.nc", 0), "a") as file:
        file.createVariable("zarr.json", "f4", ("lat",))[:] = [1.0, 2.0]
    with pytest.raises(InvalidInputError, match=r"a.nc has a variable 'zarr.json', .* Use rename"):
        run(repository, tmp_path / "a.nc")
    run(repository, tmp_path / "a.nc", rename={"zarr.json": "document"})
    assert opened(repository).document.values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("fills", [("nan", "nan"), ("nan", None), (None, "nan")])
def test_floating_times_of_xarray_in_other_units_are_read_again(
    tmp_path: Path, repository: Repository, fills: tuple[str | None, str | None]
) -> None:
    # xarray gives floating times the missing value NaN, and the joined times are integers.
    for number, (units, fill) in enumerate(
        zip(("hours since 2020-01-01", "days since 1900-01-01"), fills, strict=True)
    ):
        times = np.datetime64("2020-01-01", "ns") + np.arange(4) * np.timedelta64(6, "h") + np.timedelta64(number, "D")
        data = xr.Dataset({"v": ("time", np.arange(4.0)), "read_at": ("time", times.copy())}, {"time": times})
        encoding = {"units": units, "dtype": "f8", "_FillValue": None if fill is None else np.nan}
        if fill is not None:
            data.read_at.values[1] = np.datetime64("NaT")
        data.to_netcdf(tmp_path / f"f{number}.nc", encoding={"time": encoding, "read_at": encoding})
    paths = sorted(tmp_path.glob("*.nc"))
    run(repository, *paths)
    expected = xr.open_mfdataset(paths).load()
    xr.testing.assert_equal(opened(repository), expected)
