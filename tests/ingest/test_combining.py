"""Files combined into arrays: laws, orders, gaps, differences, regions."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ingest.memory_sink import MemorySink

from icefloe import Repository, in_memory_storage
from icefloe.errors import InvalidInputError
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.parsers.registry import parse_schema, try_schema
from icefloe.ingest.placement import Existing, ExistingArray
from icefloe.ingest.plan import IngestPlan, plan_ingest
from icefloe.ingest.source_model import SourceFailure
from icefloe.ingest.sources import IngestOptions, expand_sources
from icefloe.ingest.write_tasks import plan_pieces, run_task

pytestmark = pytest.mark.filterwarnings("ignore")


def write(
    path: Path,
    cube: np.ndarray,
    *,
    time: np.ndarray,
    lat: np.ndarray | None = None,
    units: str = "hours since 2000-01-01",
    chunks: tuple[int, ...] | None = None,
    attributes: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    name: str = "v",
) -> Path:
    """A file of one cube over time, lat and lon."""
    axes = {
        "time": time,
        "lat": np.linspace(-60, 60, cube.shape[1]) if lat is None else lat,
        "lon": np.arange(cube.shape[2], dtype="f4"),
    }
    with h5py.File(path, "w") as file:
        for axis, values in axes.items():
            file.create_dataset(axis, data=values).make_scale(axis)
        file["time"].attrs["units"] = units
        for key, values in {name: cube, **(extra or {})}.items():
            data = file.create_dataset(key, data=values, chunks=chunks, compression="gzip" if chunks else None)
            for number, axis in enumerate(axes):
                data.dims[number].attach_scale(file[axis])
            data.attrs.update(attributes or {"units": "K"})
    return path


def opened(sink: MemorySink, **options: Any) -> xr.Dataset:
    return xr.open_zarr(sink.store(), consolidated=False, **options)


def plan_of(folder: Path, **options: Any) -> IngestPlan:
    found = [try_schema(file) for file in expand_sources(folder)]
    failures = [f for f in found if isinstance(f, SourceFailure)]
    existing = options.pop("existing", None)
    schemas = [s for s in found if not isinstance(s, SourceFailure)]
    return plan_ingest(schemas, IngestOptions(**options), failures=failures, existing=existing)


def carry_out(plan: IngestPlan, sink: MemorySink | None = None) -> MemorySink:
    plan.report.raise_on_errors()
    plan = pickle.loads(pickle.dumps(plan))
    sink = sink or MemorySink()
    sink.begin(plan)
    for task in plan.tasks:
        run_task(task, plan.arrays, sink)
    return sink


def existing_of(sink: MemorySink) -> Existing:
    arrays = {}
    for key, content in sink.contents.items():
        document = json.loads(content.to_bytes()) if key.endswith("zarr.json") else {}
        if document.get("node_type") == "array":
            path = key.removesuffix("/zarr.json")
            is_coordinate = document.get("dimension_names") == [path]
            values = np.asarray(zarr.open_array(sink.store(), path=path)[...]) if is_coordinate else None
            arrays[path] = ExistingArray(path, document, values)
    return Existing(arrays, frozenset({""}))


@st.composite
def cuts(draw: st.DrawFn, length: int, most: int = 5) -> list[int]:
    inner = draw(st.lists(st.integers(1, length - 1), unique=True, max_size=most))
    return [0, *sorted(inner), length]


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), mode=st.sampled_from(["native", "mixed"]))
def test_any_split_into_files_recombines_to_the_same_array(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, mode: str
) -> None:
    folder = tmp_path_factory.mktemp("split")
    cube = np.random.default_rng(data.draw(st.integers(0, 9))).normal(size=(13, 11, 4)).astype("f4")
    time, lat = np.arange(13.0), np.linspace(50, -50, 11)
    times, lats = data.draw(cuts(13)), data.draw(cuts(11, 2))
    source_chunks = data.draw(st.none() | st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4)))
    names = data.draw(st.permutations(range((len(times) - 1) * (len(lats) - 1))))
    number = iter(names)
    for t0, t1 in itertools.pairwise(times):
        for y0, y1 in itertools.pairwise(lats):
            part = cube[t0:t1, y0:y1]
            chunks = source_chunks and tuple(min(c, n) for c, n in zip(source_chunks, part.shape, strict=True))
            write(folder / f"f{next(number)}.h5", part, time=time[t0:t1], lat=lat[y0:y1], chunks=chunks)
    chunks = data.draw(st.dictionaries(st.sampled_from(["time", "lat", "lon"]), st.integers(1, 14)))
    task_bytes = data.draw(st.sampled_from([1, 64, 500, 10**9]))
    small = data.draw(st.sampled_from([0, 10**9]))
    plan = plan_of(folder, mode=mode, chunks=chunks, task_bytes=task_bytes, native_below_bytes=small)
    result = opened(carry_out(plan))
    np.testing.assert_array_equal(result.v.values, cube)
    np.testing.assert_array_equal(result.lat.values, lat)
    assert result.sizes == {"time": 13, "lat": 11, "lon": 4}
    _no_chunk_is_written_twice(plan)


def _no_chunk_is_written_twice(plan: IngestPlan) -> None:
    owner: dict[Any, int] = {}
    for task in plan.tasks:
        if task.kind != "native":
            continue
        for path in task.arrays:
            array = plan.arrays[path]
            for piece in plan_pieces(array, task):
                first = [s.start // c for s, c in zip(piece.target, array.chunks, strict=True)]
                last = [(s.stop - 1) // c for s, c in zip(piece.target, array.chunks, strict=True)]
                for coords in np.ndindex(*[b - a + 1 for a, b in zip(first, last, strict=True)]):
                    key = (path, *(a + i for a, i in zip(first, coords, strict=True)))
                    assert owner.setdefault(key, task.id) == task.id


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_files_on_one_chunk_grid_recombine_by_reference(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("grid")
    chunk = data.draw(st.integers(1, 4))
    lengths = [chunk * n for n in data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))]
    lengths.append(data.draw(st.integers(1, chunk)))
    total = sum(lengths)
    cube = np.random.default_rng(0).normal(size=(total, 5, 6))
    start = 0
    for number, length in enumerate(lengths):
        write(
            folder / f"f{number}.h5",
            cube[start : start + length],
            time=np.arange(start, start + length) * 1.0,
            chunks=(min(chunk, length), 3, 4) if length >= chunk else None,
        )
        start += length
    plan = plan_of(folder, mode="virtual", files_per_task=2)
    if plan.report.errors:
        # A short last file was written whole, with codecs of its own.
        assert any(i.facet in ("codecs", "chunks") for i in plan.report.errors)
        return
    np.testing.assert_array_equal(opened(carry_out(plan)).v.values, cube)


def test_contiguous_files_of_different_lengths_are_cut_to_a_common_chunk(tmp_path: Path) -> None:
    cube = np.random.default_rng(0).normal(size=(31 + 28 + 31, 3, 2))
    for number, (a, b) in enumerate([(0, 31), (31, 59), (59, 90)]):
        write(tmp_path / f"m{number}.h5", cube[a:b], time=np.arange(a, b) * 1.0)
    plan = plan_of(tmp_path, mode="virtual")
    assert plan.arrays["v"].chunks == (1, 3, 2)
    np.testing.assert_array_equal(opened(carry_out(plan)).v.values, cube)


def test_gaps_are_noted_and_overlaps_refused(tmp_path: Path) -> None:
    cube = np.zeros((4, 2, 2))
    write(tmp_path / "a.h5", cube, time=np.arange(4.0))
    write(tmp_path / "b.h5", cube, time=np.arange(4.0) + 10)
    notes = [i for i in plan_of(tmp_path).report.issues if "gap" in i.found]
    assert len(notes) == 1 and notes[0].severity == "note"
    write(tmp_path / "c.h5", cube, time=np.arange(4.0) + 12)
    with pytest.raises(InvalidInputError, match="overlap along time"):
        plan_of(tmp_path)


def test_a_gap_behind_the_end_of_the_repository_is_noted_in_dates(tmp_path: Path) -> None:
    cube = np.zeros((4, 2, 2))
    hours = {"units": "hours since 2020-01-01"}
    write(tmp_path / "a.h5", cube, time=np.arange(4.0), **hours)
    existing = existing_of(carry_out(plan_of(tmp_path / "a.h5")))
    write(tmp_path / "b.h5", cube, time=np.arange(4.0) + 4, **hours)
    assert not plan_of(tmp_path / "b.h5", append_dim="time", existing=existing).report.issues
    write(tmp_path / "c.h5", cube, time=np.arange(4.0) + 30, **hours)
    [gap] = plan_of(tmp_path / "c.h5", append_dim="time", existing=existing).report.issues
    assert "ends at 2020-01-01 03:00, c.h5 starts at 2020-01-02 06:00 (a step is 1 hour)" in str(gap)
    with pytest.raises(InvalidInputError, match=r"ends at 2020-01-01 03:00, .*a\.h5 starts at 2020-01-01 00:00"):
        plan_of(tmp_path / "a.h5", append_dim="time", existing=existing)


def _ingested(*sources: Path, **options: Any) -> xr.Dataset:
    repository = Repository.create(in_memory_storage())
    result = ingest_local(sources, repository, IngestOptions(**options))
    assert result.plan is not None
    authorised = Repository.open(
        repository.storage, authorize_virtual_chunk_access=dict.fromkeys(result.plan.containers)
    )
    return xr.open_zarr(authorised.readonly_session("main").store, consolidated=False).load()


@pytest.mark.parametrize("concat_dims", [None, ("time",)])
def test_other_values_at_the_same_cells_of_two_files_are_refused(tmp_path: Path, concat_dims: Any) -> None:
    write(tmp_path / "a.h5", np.zeros((4, 2, 2)), time=np.arange(4.0))
    write(tmp_path / "b.h5", np.ones((4, 2, 2)), time=np.arange(4.0))
    with pytest.raises(InvalidInputError, match=r"/v has other values in .*b.h5 than in .*a.h5, at the same coord"):
        _ingested(tmp_path, concat_dims=concat_dims)


def test_large_variables_at_the_same_cells_of_two_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.ingest.plan.COMPARED_BYTES", 100)
    for name in "ab":
        write(tmp_path / f"{name}.h5", np.zeros((4, 2, 2)), time=np.arange(4.0))
    with pytest.raises(InvalidInputError, match="expected one file, found also in"):
        _ingested(tmp_path)


@pytest.mark.parametrize("mode", ["native", "virtual", "mixed"])
@pytest.mark.parametrize("days", [1, 2])
def test_files_of_different_variables_may_share_bounds_and_two_dimensional_coordinates(
    tmp_path: Path, mode: str, days: int
) -> None:
    for day in range(days):
        times = xr.date_range("2020-01-01", periods=3, freq="8h") + np.timedelta64(day, "D")
        bounds = np.stack([times, times + np.timedelta64(8, "h")], 1)
        for name in ("t", "u"):
            data = xr.Dataset(
                {name: (("time", "y", "x"), np.random.default_rng(day).random((3, 2, 2)))},
                {
                    "time": ("time", times, {"bounds": "time_bnds"}),
                    "time_bnds": (("time", "nv"), bounds),
                    "lat": (("y", "x"), np.array([[1.0, np.nan], [3.0, 4.0]])),
                },
            )
            data.to_netcdf(tmp_path / f"{name}{day}.nc", encoding={"time": {"units": "hours since 2020-01-01"}})
    theirs = xr.combine_by_coords([xr.open_dataset(p) for p in sorted(tmp_path.glob("*.nc"))], coords="minimal")
    ours = _ingested(tmp_path, mode=mode)
    xr.testing.assert_equal(ours.reset_coords().drop_encoding(), theirs.reset_coords().drop_encoding())


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_files_of_different_variables_with_other_bounds_are_refused_by_name(tmp_path: Path, mode: str) -> None:
    for name, length in (("t", 1), ("u", 2)):
        xr.Dataset(
            {name: ("time", [0.0, 1.0]), "time_bnds": (("time", "nv"), [[0, length], [1, 1 + length]])},
            {"time": ("time", [0, 1], {"units": "days since 2020-01-01", "bounds": "time_bnds"})},
        ).to_netcdf(tmp_path / f"{name}.nc")
    with pytest.raises(InvalidInputError, match=r"/time_bnds has other values in .*u.nc than in .*t.nc"):
        _ingested(tmp_path, mode=mode)
    assert set(_ingested(tmp_path, mode=mode, drop_variables=("time_bnds",)).data_vars) == {"t", "u"}


def test_tiles_of_one_time_with_other_bounds_are_refused(tmp_path: Path) -> None:
    for tile, day in itertools.product(range(2), range(2)):
        ends = [day + 1 + 0.5 * (tile and day)]
        xr.Dataset(
            {"t": (("time", "x"), [[0.0]]), "time_bnds": (("time", "nv"), [[float(day), *ends]])},
            {"time": ("time", [float(day)], {"bounds": "time_bnds"}), "x": [tile]},
        ).to_netcdf(tmp_path / f"{tile}{day}.nc")
    with pytest.raises(InvalidInputError, match=r"/time_bnds has other values in .*11.nc than in .*01.nc"):
        _ingested(tmp_path)


@pytest.mark.parametrize("mode", ["native", "virtual"])
@pytest.mark.parametrize("is_text", [False, True])
def test_named_variables_without_a_joined_dimension_must_be_the_same(tmp_path: Path, mode: str, is_text: bool) -> None:
    for day, last in enumerate((4.0, 4.0, 5.0)):
        values = np.array([[1.0, np.nan], [3.0, last]])
        xr.Dataset(
            {"t": (("time", "y", "x"), np.zeros((1, 2, 2)))},
            {"time": [day], "area": (("y", "x"), values.astype("U") if is_text else values)},
        ).to_netcdf(tmp_path / f"{day}.nc")
    if is_text and mode == "virtual":
        mode = "mixed"
    assert _ingested(tmp_path / "0.nc", tmp_path / "1.nc", mode=mode).sizes["time"] == 2
    with pytest.raises(InvalidInputError, match=r"/area has other values in .*2.nc than in .*0.nc"):
        _ingested(tmp_path, mode=mode)


def test_files_with_different_variables_are_merged(tmp_path: Path) -> None:
    for name, value in (("t", 1.0), ("u", 2.0)):
        for day in range(2):
            cube = np.full((3, 2, 2), value + day)
            write(tmp_path / f"{name}{day}.h5", cube, time=np.arange(3.0) + 3 * day, name=name)
    result = opened(carry_out(plan_of(tmp_path)))
    assert result.t.values[:, 0, 0].tolist() == [1, 1, 1, 2, 2, 2]
    assert result.u.values[:, 0, 0].tolist() == [2, 2, 2, 3, 3, 3]


def test_files_with_a_scalar_time_are_stacked_by_value_and_by_reference(tmp_path: Path) -> None:
    cubes = np.random.default_rng(0).normal(size=(3, 4, 5))
    for number in (2, 0, 1):
        with h5py.File(tmp_path / f"z{9 - number}.h5", "w") as file:
            file.create_dataset("time", data=float(number)).attrs["units"] = "days since 2000-01-01"
            file.create_dataset("y", data=np.arange(4.0)).make_scale("y")
            file.create_dataset("x", data=np.arange(5.0)).make_scale("x")
            data = file.create_dataset("v", data=cubes[number], chunks=(2, 5))
            data.dims[0].attach_scale(file["y"])
            data.dims[1].attach_scale(file["x"])
    for mode in ("native", "virtual"):
        result = opened(carry_out(plan_of(tmp_path, mode=mode)))
        assert result.v.dims == ("time", "y", "x")
        np.testing.assert_array_equal(result.v.values, cubes)
        assert result.time.values[1] == np.datetime64("2000-01-02")


def test_times_in_different_units_are_one_coordinate(tmp_path: Path) -> None:
    cube = np.arange(48.0).reshape(12, 2, 2)
    write(tmp_path / "a.h5", cube[:6], time=np.arange(6.0))
    write(tmp_path / "b.h5", cube[6:], time=np.arange(6) * 60, units="minutes since 2000-01-01 06:00:00")
    result = opened(carry_out(plan_of(tmp_path)))
    assert (np.diff(result.time.values) == np.timedelta64(1, "h")).all()
    np.testing.assert_array_equal(result.v.values, cube)
    with pytest.raises(InvalidInputError, match="not re-encoded by reference"):
        plan_of(tmp_path, mode="virtual").report.raise_on_errors()


def test_time_bounds_are_converted_with_their_coordinate(tmp_path: Path) -> None:
    for number, unit in enumerate(("hours since 2000-01-01", "hours since 2000-01-02")):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("time", data=np.arange(24.0)).make_scale("time")
            file["time"].attrs.update({"units": unit, "bounds": "time_bnds"})
            file.create_dataset("nv", data=np.arange(2)).make_scale("nv")
            bounds = file.create_dataset("time_bnds", data=np.stack([np.arange(24.0), np.arange(24.0) + 1], axis=1))
            for axis, name in enumerate(("time", "nv")):
                bounds.dims[axis].attach_scale(file[name])
    sink = carry_out(plan_of(tmp_path))
    stored = zarr.open_group(sink.store())
    np.testing.assert_array_equal(stored["time"][...], np.arange(48))
    hours = np.datetime64("2000-01-01", "h") + np.arange(48)
    np.testing.assert_array_equal(opened(sink).time_bnds.values[:, 0], hours)


def test_a_file_of_constants_beside_the_days_is_kept_as_it_is(tmp_path: Path) -> None:
    for day in range(2):
        write(tmp_path / f"{day}.h5", np.full((3, 2, 2), float(day)), time=np.arange(3.0) + 3 * day)
    with h5py.File(tmp_path / "constants.h5", "w") as file:
        file.create_dataset("lat", data=np.linspace(-60, 60, 2)).make_scale("lat")
        file.create_dataset("mask", data=np.array([1, 0])).dims[0].attach_scale(file["lat"])
    for mode in ("native", "virtual"):
        result = opened(carry_out(plan_of(tmp_path, mode=mode)))
        assert result.mask.dims == ("lat",) and result.mask.values.tolist() == [1, 0]
        assert result.v.shape == (6, 2, 2)


@pytest.mark.parametrize(
    ("change", "facet", "severity"),
    [
        ({"attributes": {"units": "degC"}}, "units", {"native": "error", "virtual": "error"}),
        ({"dtype": "f8"}, "dtype", {"native": "handled", "virtual": "error"}),
        ({"chunks": (2, 2, 2)}, "chunks", {"native": None, "virtual": "error"}),
        ({"attributes": {"units": "K", "history": "x"}}, "history", {"native": "note", "virtual": "note"}),
        ({"attributes": {"units": "K", "scale_factor": 2.0}}, "scale_factor", {"native": "error", "virtual": "error"}),
        ({"lon": 5}, "length of lon", {"native": "error", "virtual": "error"}),
    ],
)
@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_differences_are_reported_with_file_and_variable(
    tmp_path: Path, change: dict[str, Any], facet: str, severity: dict[str, Any], mode: str
) -> None:
    cube = np.ones((4, 2, 4), "f4")
    write(tmp_path / "a.h5", cube, time=np.arange(4.0), chunks=(1, 2, 4))
    other = np.ones((4, 2, change.get("lon", 4)), change.get("dtype", "f4"))
    write(
        tmp_path / "b.h5",
        other,
        time=np.arange(4.0) + 4,
        chunks=change.get("chunks", (1, 2, change.get("lon", 4))),
        attributes=change.get("attributes"),
    )
    report = plan_of(tmp_path, mode=mode, concat_dims=("time",)).report
    found = [i for i in report.issues if i.facet == facet and i.variable == "v"]
    assert [i.severity for i in found] == ([severity[mode]] if severity[mode] else [])
    assert all(i.file.endswith("b.h5") for i in found)


def test_packed_files_with_different_scales_are_unpacked(tmp_path: Path) -> None:
    stored = np.arange(16, dtype="i2").reshape(4, 2, 2)
    for number, scale in enumerate((0.5, 0.25)):
        attributes = {"units": "K", "scale_factor": scale, "add_offset": 3.0, "_FillValue": np.int16(7)}
        write(tmp_path / f"{number}.h5", stored, time=np.arange(4.0) + 4 * number, attributes=attributes)
    result = opened(carry_out(plan_of(tmp_path, unpack=True)))
    expected = np.concatenate([stored * 0.5 + 3, stored * 0.25 + 3])
    expected[np.concatenate([stored, stored]) == 7] = np.nan
    np.testing.assert_allclose(result.v.values, expected)
    assert "scale_factor" not in result.v.encoding


def test_a_missing_variable_is_an_error_or_stays_missing(tmp_path: Path) -> None:
    cube = np.ones((4, 2, 2))
    write(tmp_path / "a.h5", cube, time=np.arange(4.0), extra={"w": cube})
    write(tmp_path / "b.h5", cube, time=np.arange(4.0) + 4)
    with pytest.raises(InvalidInputError, match=r"b\.h5: w: missing variable"):
        plan_of(tmp_path).report.raise_on_errors()
    result = opened(carry_out(plan_of(tmp_path, allow_missing=True)))
    assert result.w.values[:4].min() == 1 and np.isnan(result.w.values[4:]).all()


def test_a_broken_file_between_others_leaves_its_region_missing(tmp_path: Path) -> None:
    cube = np.ones((4, 2, 2))
    for number in range(4):
        write(tmp_path / f"{number}.h5", cube, time=np.arange(4.0) + 4 * number, extra={"n": cube.astype("i4")})
    for broken in ("1.h5", "2.h5"):
        good = (tmp_path / broken).read_bytes()
        (tmp_path / broken).write_bytes(good[:1000])
        with pytest.raises(InvalidInputError, match=broken):
            plan_of(tmp_path)
        plan = plan_of(tmp_path, on_error="skip")
        result = opened(carry_out(plan))
        first = 4 * int(broken[0])
        assert result.sizes["time"] == 16
        for name in ("v", "n"):
            assert np.isnan(result[name].values[first : first + 4]).all()
            assert np.nansum(result[name].values) == 12 * 4
        assert (np.diff(result.time.values) == np.timedelta64(1, "h")).all()
        assert len(plan.skipped) == 1
        (tmp_path / broken).write_bytes(good)


@pytest.mark.parametrize("broken", ["0.h5", "3.h5"])
def test_a_broken_file_at_either_end_is_left_out_and_no_times_are_invented(tmp_path: Path, broken: str) -> None:
    cube = np.ones((4, 2, 2))
    for number, day in enumerate((1, 2, 3, 10)):
        write(tmp_path / f"{number}.h5", cube, time=np.arange(4.0) * 6 + 24 * day)
    (tmp_path / broken).write_bytes((tmp_path / broken).read_bytes()[:1000])
    plan = plan_of(tmp_path, on_error="skip")
    [issue] = [i for i in plan.report.issues if i.severity == "handled"]
    assert broken in issue.file and "left out" in issue.resolution
    times = opened(carry_out(plan)).time.values
    days = (1, 2, 3, 10)
    readable = [day for number, day in enumerate(days) if broken != f"{number}.h5"]
    wanted = np.datetime64("2000-01-01", "h") + np.concatenate([np.arange(4) * 6 + 24 * day for day in readable])
    np.testing.assert_array_equal(times, wanted)


def test_a_broken_file_whose_place_is_unknown_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "0.h5", np.ones((4, 2, 2)), time=np.arange(4.0))
    write(tmp_path / "2.h5", np.ones((3, 2, 2)), time=np.arange(3.0) + 9)
    (tmp_path / "1.h5").write_bytes(b"\x89HDF\r\n\x1a\nbroken")
    with pytest.raises(InvalidInputError, match=r"1\.h5.*position along time is not known"):
        plan_of(tmp_path, on_error="skip")


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(first=st.integers(1, 12), chunk=st.integers(1, 7))
def test_appending_equals_ingesting_at_once(tmp_path_factory: pytest.TempPathFactory, first: int, chunk: int) -> None:
    cube = np.random.default_rng(0).normal(size=(20, 2, 3))
    folders = [tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")]
    write(folders[0] / "a.h5", cube[:first], time=np.arange(first) * 1.0)
    half = (first + 20) // 2
    write(folders[1] / "b.h5", cube[first:half], time=np.arange(first, half) * 1.0)
    write(folders[1] / "c.h5", cube[half:], time=np.arange(half, 20) * 1.0)
    sink = carry_out(plan_of(folders[0], chunks={"time": chunk}))
    plan = plan_of(folders[1], append_dim="time", existing=existing_of(sink), task_bytes=100)
    carry_out(plan, sink)
    result = opened(sink)
    np.testing.assert_array_equal(result.v.values, cube)
    assert len(result.time) == 20
    _no_chunk_is_written_twice(plan)


def test_appending_what_is_there_or_another_grid_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    write(tmp_path / "a.h5", np.ones((4, 2, 2)), time=np.arange(4.0))
    existing = existing_of(carry_out(plan_of(tmp_path / "a.h5")))
    with pytest.raises(InvalidInputError, match="cannot append along time"):
        plan_of(tmp_path / "a.h5", append_dim="time", existing=existing)
    write(tmp_path / "new" / "b.h5", np.ones((4, 3, 2)), time=np.arange(4.0) + 4)
    with pytest.raises(InvalidInputError, match="length of lat"):
        plan_of(tmp_path / "new", append_dim="time", existing=existing).report.raise_on_errors()
    write(tmp_path / "new" / "b.h5", np.ones((4, 2, 2)), time=np.arange(4.0) + 4, lat=np.array([1.0, 2.0]))
    with pytest.raises(InvalidInputError, match="grids differ"):
        plan_of(tmp_path / "new", append_dim="time", existing=existing).report.raise_on_errors()


@pytest.mark.parametrize("region", ["auto", {"time": (5, 9), "lat": slice(1, 3)}])
def test_a_region_is_found_from_coordinates_or_given(tmp_path: Path, region: Any) -> None:
    (tmp_path / "part").mkdir()
    lat = np.linspace(-60, 60, 4)
    write(tmp_path / "whole.h5", np.zeros((12, 4, 3)), time=np.arange(12.0), lat=lat)
    sink = carry_out(plan_of(tmp_path / "whole.h5", chunks={"time": 4, "lat": 3}))
    write(tmp_path / "part" / "p.h5", np.ones((4, 2, 3)), time=np.arange(5.0, 9.0), lat=lat[1:3])
    plan = plan_of(tmp_path / "part", region=region, existing=existing_of(sink), task_bytes=1)
    expected = np.zeros((12, 4, 3))
    expected[5:9, 1:3] = 1
    np.testing.assert_array_equal(opened(carry_out(plan, sink)).v.values, expected)
    _no_chunk_is_written_twice(plan)
    with pytest.raises(InvalidInputError, match="cells"):
        plan_of(tmp_path / "part", region={"time": (0, 3)}, existing=existing_of(sink))


def test_variables_are_selected_renamed_retyped_and_grouped_by_path(tmp_path: Path) -> None:
    for place in ("north", "south"):
        (tmp_path / place).mkdir()
        cube = np.full((2, 2, 2), 1.0 if place == "north" else 2.0)
        for day in range(2):
            write(tmp_path / place / f"{day}.h5", cube, time=np.arange(2.0) + 2 * day, extra={"w": cube, "x": cube})
    plan = plan_of(
        tmp_path,
        group_pattern=r"/(\w+)/\d+\.h5$",
        group="g",
        variables=("v", "w"),
        drop_variables=("w",),
        rename={"v": "t2m", "lon": "longitude"},
        dtypes={"t2m": "f4"},
    )
    sink = carry_out(plan)
    assert set(zarr.open_group(sink.store())["g"].group_keys()) == {"north", "south"}
    result = opened(sink, group="g/south")
    assert set(result.data_vars) == {"t2m"} and result.t2m.dims == ("time", "lat", "longitude")
    assert result.t2m.dtype == "f4" and result.t2m.values.max() == 2
    with pytest.raises(InvalidInputError, match="no source has a variable 'nope'"):
        plan_of(tmp_path, variables=("nope",))


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "magic"},
        {"append_dim": "time", "region": "auto"},
        {"mode": "virtual", "chunks": {"time": 3}},
        {"chunks": {"time": 0}},
        {"group_pattern": "("},
        {"group_pattern": "abc"},
        {"dtypes": {"x": "nonsense"}},
        {"on_error": "ignore"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        IngestOptions(**options)


def test_two_variables_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", np.ones((4, 2, 2)), time=np.arange(4.0), extra={"w": np.zeros((4, 2, 2))})
    with pytest.raises(InvalidInputError, match=r"two variables of .*a\.h5 would be named 'w'"):
        plan_of(tmp_path, rename={"v": "w"})
    plan = plan_of(tmp_path, rename={"v": "w", "w": "v"})
    assert (opened(carry_out(plan)).w == 1).all() and (opened(carry_out(plan)).v == 0).all()


def test_plans_of_many_alike_files_stay_small(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", np.zeros((4, 20, 30)), time=np.arange(4.0))
    template = parse_schema(expand_sources(tmp_path / "a.h5")[0])
    schemas = pickle.loads(pickle.dumps([template] * 2))
    assert len(pickle.dumps(plan_ingest(schemas[:1], IngestOptions()))) < 20_000


@pytest.mark.parametrize("mode", ["native", "virtual", "mixed"])
@pytest.mark.parametrize("texts", [(["a", "b"], ["ä", "ö"]), (["d"], ["c"]), (["d", "c"], ["b", "a"])])
def test_files_are_joined_along_text(tmp_path: Path, mode: str, texts: tuple[list[str], list[str]]) -> None:
    for number, own in enumerate(texts):
        data = xr.Dataset({"v": ("x", np.arange(len(own)) + 10.0 * number)}, {"x": np.array(own, object)})
        data.to_netcdf(tmp_path / f"{number}.nc", encoding={"v": {"chunksizes": (1,)}})
    theirs = xr.combine_by_coords([xr.open_dataset(p) for p in sorted(tmp_path.glob("*.nc"))])
    ours = _ingested(tmp_path, mode=mode)
    assert ours.x.values.tolist() == theirs.x.values.tolist()
    assert ours.v.values.tolist() == theirs.v.values.tolist()


def test_files_that_repeat_or_mix_texts_are_refused(tmp_path: Path) -> None:
    def write_texts(name: str, texts: list[str]) -> None:
        xr.Dataset({"v": ("x", np.zeros(len(texts)))}, {"x": np.array(texts, object)}).to_netcdf(tmp_path / name)

    write_texts("a.nc", ["a", "b"])
    write_texts("b.nc", ["b", "c"])
    with pytest.raises(InvalidInputError, match=r"overlap along x: a.nc ends at b, b.nc starts at b"):
        _ingested(tmp_path)
    write_texts("b.nc", ["d", "c", "e"])
    with pytest.raises(InvalidInputError, match="the coordinate x is not monotone"):
        _ingested(tmp_path)


@pytest.mark.parametrize("mode", ["native", "mixed", "virtual"])
def test_a_variable_with_other_dimensions_in_a_file_is_refused_by_name(tmp_path: Path, mode: str) -> None:
    xr.Dataset({"v": (("time", "x"), [[1.0, 2.0]])}, {"time": [0.0], "x": [0, 1]}).to_netcdf(tmp_path / "a.nc")
    other = xr.Dataset({"v": ("x", [1.0, 2.0]), "w": (("time", "x"), [[1.0, 2.0]])}, {"time": [1.0], "x": [0, 1]})
    other.to_netcdf(tmp_path / "b.nc")
    with pytest.raises(InvalidInputError, match=r"b.nc: v: dimensions: expected \('time', 'x'\), found \('x',\)"):
        plan_of(tmp_path, mode=mode).report.raise_on_errors()
