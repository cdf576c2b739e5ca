"""Functions over blocks, reductions and copies, against xarray doing the same in memory."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

from icefloe import Repository
from icefloe.errors import AlreadyExistsError, InvalidInputError, NodeNotFoundError, RebaseFailedError
from icefloe.spark import analyze, copy, export, map_blocks, rechunk, reduce, write_audit_publish
from icefloe.spark.partial_results import ReductionTree
from icefloe.spark.publish import AUDIT_KEY, ExpectedSizes, Holds, MissingShare, Monotone, ValueRange

# Modules that have the name of a public function of their package.
copying, mapping, reduction = (import_module(f"icefloe.spark.{name}") for name in ("copy", "map_blocks", "reduce"))

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]
Open = Callable[..., xr.Dataset]


@pytest.fixture(scope="module")
def weather() -> xr.Dataset:
    rng = np.random.default_rng(7)
    values = rng.normal(280, 10, (50, 12, 17)).astype("f4")
    values[rng.random(values.shape) < 0.1] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), values, {"units": "K"}),
            "wind": (("time", "lat", "lon"), rng.normal(0, 5, values.shape)),
        },
        coords={
            "time": np.datetime64("2020-01-01", "ns") + np.arange(50) * np.timedelta64(1, "h"),
            "lat": np.linspace(-60, 60, 12),
            "lon": np.arange(17.0),
        },
        attrs={"title": "noise"},
    )


@pytest.fixture
def place(tmp_path: Path, weather: xr.Dataset) -> Path:
    repository = Repository.create(str(tmp_path / "repo"))
    session = repository.writable_session("main")
    encoding = {name: {"chunks": (10, 5, 6)} for name in weather}
    weather.to_zarr(session.store, consolidated=False, encoding=encoding)
    session.commit("weather")
    return tmp_path / "repo"


def test_a_function_over_blocks_equals_the_function_over_all(
    spark: Any, place: Path, weather: xr.Dataset, opened: Open
) -> None:
    outcome = map_blocks(
        spark,
        place,
        lambda block: (block[["t2m"]] - 273.15).assign_attrs(unit="C"),
        place,
        target_group="celsius",
        task_bytes=8000,
        message="to celsius",
    )
    assert outcome.tasks > 5
    result = opened(place, group="celsius")
    xr.testing.assert_allclose(result, weather[["t2m"]] - 273.15)
    assert result.attrs["unit"] == "C" and result.t2m.encoding["chunks"] == (10, 5, 6)
    assert next(i.message for i in Repository.open(str(place)).ancestry(branch="main")) == "to celsius"


def test_coordinates_that_are_there_are_not_written_again(spark: Any, place: Path, weather: xr.Dataset) -> None:
    repository = Repository.open(str(place))
    before = repository.lookup_branch("main")
    map_blocks(spark, place, lambda block: block[["t2m"]] + 1, place, overwrite=True)
    changed = repository.diff(from_snapshot_id=before, to_branch="main")
    assert set(changed.updated_chunks) == {"/t2m"}
    after = xr.open_zarr(repository.readonly_session("main").store, consolidated=False)
    xr.testing.assert_allclose(after.t2m.load(), weather.t2m + 1)


def test_a_halo_makes_moving_windows_whole(spark: Any, place: Path, weather: xr.Dataset, opened: Open) -> None:
    def smooth(block: xr.Dataset) -> xr.Dataset:
        return block[["wind"]].rolling(time=5, center=True).mean()

    map_blocks(spark, place, smooth, place, target_group="smooth", halo={"time": 2}, blocks={"time": 20})
    xr.testing.assert_allclose(opened(place, group="smooth"), smooth(weather))


def test_dimensions_are_dropped_and_made_and_chunks_chosen(
    spark: Any, place: Path, weather: xr.Dataset, opened: Open, tmp_path: Path
) -> None:
    def quantiles(block: xr.Dataset) -> xr.Dataset:
        return block[["wind"]].quantile([0.1, 0.9], dim="time")

    target = tmp_path / "other"
    map_blocks(spark, place, quantiles, target, blocks={"time": -1, "lat": 6, "lon": 6}, chunks={"lat": 3, "lon": 6})
    result = opened(target)
    xr.testing.assert_allclose(result, quantiles(weather))
    assert result.wind.encoding["chunks"] == (2, 3, 6)


def test_mistakes_of_a_function_are_told(spark: Any, place: Path) -> None:
    def fail(block: xr.Dataset) -> xr.Dataset:
        if float(block.lat[0]) > 0:
            raise KeyError("no such thing")
        return block

    before = Repository.open(str(place)).lookup_branch("main")
    with pytest.raises(InvalidInputError, match="no such thing"):
        map_blocks(spark, place, fail, place, target_group="x", task_bytes=8000)
    with pytest.raises(InvalidInputError, match="drops 'time'"):
        map_blocks(spark, place, lambda b: b.mean("time"), place, target_group="x", blocks={"time": 10})
    with pytest.raises(InvalidInputError, match="1 cells of 10"):
        map_blocks(spark, place, lambda b: b.isel(time=[0]), place, target_group="x", blocks={"time": 10})
    with pytest.raises(AlreadyExistsError, match="/t2m exists"):
        map_blocks(spark, place, lambda b: b, place)
    assert Repository.open(str(place)).lookup_branch("main") == before


@pytest.mark.parametrize("how", ["mean", "sum", "min", "max", "count"])
@pytest.mark.parametrize("dims", ["time", ("lat", "lon"), None])
def test_a_reduction_equals_that_of_xarray(spark: Any, place: Path, weather: xr.Dataset, how: Any, dims: Any) -> None:
    result = reduce(spark, place, how, dims, task_bytes=6000)
    wanted = getattr(weather, how)(dims)
    xr.testing.assert_allclose(result.drop_attrs(), wanted.drop_attrs(), rtol=1e-5)


def test_a_tree_of_several_levels_gives_the_same(
    spark: Any, place: Path, weather: xr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduction, "_MOST_PARTIAL_BYTES", 0)
    monkeypatch.setattr("icefloe.spark.partial_results.FAN_IN", 3)
    for dims in (None, "time"):
        result = reduce(spark, place, "mean", dims, task_bytes=1000)
        xr.testing.assert_allclose(result.drop_attrs(), weather.mean(dims).drop_attrs(), rtol=1e-5)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, xr.Dataset]:
    """Variables in every way of storing numbers, some cells missing, some chunks never written."""
    place = tmp_path_factory.mktemp("encoded") / "repo"
    rng = np.random.default_rng(3)
    dims, shape = ("y", "x"), (23, 17)
    floats = np.round(rng.normal(10, 30, shape), 1)
    holed = np.where(rng.random(shape) < 0.2, np.nan, floats)
    data = xr.Dataset(
        {
            "plain": (dims, floats.astype("f4")),
            "holed": (dims, holed),
            "marked": (dims, holed.astype("f4")),
            "packed": (dims, holed),
            "counts": (dims, rng.integers(-5, 900, shape)),
            "swapped": (dims, floats),
            "small": (dims, rng.integers(0, 200, shape).astype("u1")),
            "some": (dims, np.round(holed)),
            "nothing": (dims, np.full(shape, np.nan)),
            "large": (dims, rng.integers(2**50, 2**53, shape)),
        }
    )
    encoding = {str(name): {"chunks": (5, 6)} for name in data}
    encoding["marked"] |= {"_FillValue": np.float32(-9999)}
    encoding["packed"] |= {"dtype": "int16", "scale_factor": 0.1, "add_offset": 4.0, "_FillValue": -32768}
    encoding["some"] |= {"dtype": "int32", "_FillValue": -1000}
    encoding["swapped"] |= {"dtype": ">f8"}
    session = Repository.create(str(place)).writable_session("main")
    data.to_zarr(session.store, consolidated=False, encoding=encoding)
    session.commit("encoded")
    stored = xr.open_zarr(Repository.open(str(place)).readonly_session("main").store, consolidated=False)
    return place, stored.load()


@pytest.mark.parametrize("how", ["mean", "sum", "min", "max", "count"])
def test_a_reduction_understands_every_encoding_with_and_without_statistics(
    spark: Any, encoded: tuple[Path, xr.Dataset], how: Any
) -> None:
    place, data = encoded
    for dims in (None, "y"):
        wanted = getattr(data, how)(dims)
        for region in (None, {"y": slice(3, None), "x": (1, 16)}):
            part = data if region is None else data.isel({"y": slice(3, None), "x": slice(1, 16)})
            found = reduce(spark, place, how, dims, region=region, statistics=False, task_bytes=1200)
            xr.testing.assert_allclose(found.drop_attrs(), getattr(part, how)(dims).drop_attrs(), rtol=1e-6)
            assert {n: v.dtype for n, v in found.items()} == {n: v.dtype for n, v in getattr(part, how)(dims).items()}
        analyze(spark, place)
        xr.testing.assert_allclose(reduce(spark, place, how, dims).drop_attrs(), wanted.drop_attrs(), rtol=1e-6)


def test_what_statistics_answer_is_not_read(
    spark: Any, encoded: tuple[Path, xr.Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, data = encoded
    analyze(spark, place)
    asked: list[tuple[str, ...]] = []

    def recorded(tree: Any, *given: Any) -> Any:
        asked.append(tuple(each.name for each in tree.partial.variables))
        return run(tree, *given)

    run = ReductionTree.run_flat
    monkeypatch.setattr(ReductionTree, "run_flat", recorded)
    found = reduce(spark, place, "sum")
    # Totals beyond what a double counts exactly are not kept, and nothing is of an array without chunks.
    assert asked == [("large", "nothing")]
    assert int(found.large) == int(data.large.sum()) and int(found.counts) == int(data.counts.sum())
    reduce(spark, place, "max", variables=["packed", "some"])
    assert len(asked) == 1
    reduce(spark, place, "sum", variables=["plain"], statistics=False)
    reduce(spark, place, "sum", "x", variables=["plain"])
    assert asked[1:] == [("plain",), ("plain",)]


def test_quantiles_are_exact_or_close(spark: Any, place: Path, weather: xr.Dataset) -> None:
    exact = reduce(spark, place, "quantile", "time", q=0.3, variables=["wind"])
    wanted = weather[["wind"]].quantile(0.3, "time", skipna=True).drop_vars("quantile")
    xr.testing.assert_allclose(exact.drop_attrs(), wanted.drop_attrs())
    sketched = reduce(spark, place, "quantile", q=0.9, exact=False, task_bytes=20_000, variables=["wind"])
    assert abs(float(sketched.wind) - float(weather.wind.quantile(0.9))) < 0.05


@pytest.mark.parametrize("dims", ["time", ("lat", "lon"), None])
def test_a_reduction_is_kept_by_a_repository(
    spark: Any, place: Path, weather: xr.Dataset, tmp_path: Path, opened: Open, dims: Any
) -> None:
    outcome = reduce(spark, place, "mean", dims, tmp_path / "means", target_group="a/b", task_bytes=6000)
    assert outcome.tasks > 5
    xr.testing.assert_allclose(opened(tmp_path / "means", group="a/b"), weather.mean(dims), rtol=1e-5)
    newest = next(iter(Repository.open(str(tmp_path / "means")).ancestry(branch="main")))
    assert newest.message.startswith("Mean over") and newest.metadata["icefloe.reduce"]["how"] == "mean"
    with pytest.raises(AlreadyExistsError, match="/a/b/t2m exists"):
        reduce(spark, place, "max", dims, tmp_path / "means", target_group="a/b")
    reduce(spark, place, "max", dims, target=tmp_path / "means", target_group="a/b", overwrite=True, message="again")
    xr.testing.assert_allclose(opened(tmp_path / "means", group="a/b"), weather.max(dims))


def test_a_kept_reduction_has_the_chunks_of_its_source_or_those_asked_for(
    spark: Any, place: Path, weather: xr.Dataset, opened: Open
) -> None:
    reduce(spark, place, "max", "time", place, target_group="as-it-was", task_bytes=1000)
    reduce(
        spark,
        place,
        "quantile",
        "time",
        place,
        q=0.3,
        exact=False,
        target_group="other",
        chunks={"lat": 12, "lon": 4},
        task_bytes=1000,
    )
    assert opened(place, group="as-it-was").wind.encoding["chunks"] == (5, 6)
    result = opened(place, group="other")
    assert result.wind.encoding["chunks"] == (12, 4)
    wanted = weather.quantile(0.3, "time", skipna=True).drop_vars("quantile")
    xr.testing.assert_allclose(result.drop_attrs(), wanted.drop_attrs(), rtol=0.01, atol=0.2)


@pytest.mark.parametrize("how", ["sum", "count", "max"])
def test_variables_without_some_of_the_dimensions_count_once(
    spark: Any, tmp_path: Path, weather: xr.Dataset, opened: Open, how: Any
) -> None:
    data = weather[["wind"]].assign(height=weather.wind[0].drop_vars("time"), trend=weather.wind[:, 0, 0] * 2)
    data = data.drop_vars([name for name in data.coords if name not in ("time", "lat", "lon")])
    session = Repository.create(str(tmp_path / "repo")).writable_session("main")
    data.chunk(time=10, lat=5, lon=6).to_zarr(session.store, consolidated=False)
    session.commit("three variables")
    for dims in (None, ("time", "lat")):
        wanted = getattr(data, how)(dims)
        xr.testing.assert_allclose(reduce(spark, tmp_path / "repo", how, dims, task_bytes=5000), wanted)
        reduce(spark, tmp_path / "repo", how, dims, tmp_path / "kept", task_bytes=5000, overwrite=True)
        xr.testing.assert_allclose(opened(tmp_path / "kept")[list(wanted)], wanted)


def test_a_reduction_of_a_region_of_an_older_snapshot(spark: Any, place: Path, weather: xr.Dataset) -> None:
    repository = Repository.open(str(place))
    old = repository.readonly_session("main")
    result = reduce(spark, old, "mean", "time", region={"time": (5, 15), "lat": slice(2, 4)})
    xr.testing.assert_allclose(result, weather.isel(time=slice(5, 15), lat=slice(2, 4)).mean("time"), rtol=1e-5)
    with pytest.raises(InvalidInputError, match="no dimension 'depth'"):
        reduce(spark, old, "mean", "depth")


def test_arrays_get_other_chunks_in_place(spark: Any, place: Path, weather: xr.Dataset, opened: Open) -> None:
    outcome = rechunk(spark, place, {"time": -1, "lat": 4, "lon": 4}, task_bytes=8000)
    result = opened(place)
    xr.testing.assert_identical(result, weather)
    assert result.t2m.encoding["chunks"] == (50, 4, 4) and outcome.tasks > 5
    old = next(iter(list(Repository.open(str(place)).ancestry(branch="main"))[1:])).id
    before = xr.open_zarr(Repository.open(str(place)).readonly_session(snapshot_id=old).store, consolidated=False)
    xr.testing.assert_identical(before.load(), weather)


@pytest.mark.parametrize("region", [None, {"time": (10, 30), "lat": (5, 12)}, {"time": (3, 18), "lon": slice(1, 9)}])
def test_a_copy_of_a_part_equals_the_part(
    spark: Any, place: Path, weather: xr.Dataset, opened: Open, tmp_path: Path, region: Any
) -> None:
    part = weather[["t2m"]]
    if region is not None:
        part = part.isel({d: b if isinstance(b, slice) else slice(*b) for d, b in region.items()})
    copy(spark, place, tmp_path / "copy", variables=["t2m"], region=region, target_group="a/b", task_bytes=8000)
    xr.testing.assert_identical(opened(tmp_path / "copy", group="a/b"), part)
    with pytest.raises(AlreadyExistsError):
        copy(spark, place, tmp_path / "copy", variables=["t2m"], target_group="a/b")


@pytest.mark.parametrize("chunks", [None, {"time": 7}])
def test_an_export_is_plain_zarr(spark: Any, place: Path, weather: xr.Dataset, tmp_path: Path, chunks: Any) -> None:
    outcome = export(spark, place, tmp_path / "plain", chunks=chunks, task_bytes=8000)
    assert outcome.objects > 10
    xr.testing.assert_identical(xr.open_zarr(str(tmp_path / "plain"), consolidated=True).load(), weather)
    with pytest.raises(AlreadyExistsError, match="not empty"):
        export(spark, place, tmp_path / "plain")


def test_an_export_to_parquet_is_a_row_a_cell(spark: Any, place: Path, weather: xr.Dataset, tmp_path: Path) -> None:
    part = weather.isel(time=slice(0, 20))
    export(spark, place, tmp_path / "table", format="parquet", region={"time": (0, 20)}, task_bytes=8000)
    frame = spark.read.parquet(str(tmp_path / "table"))
    assert frame.count() == part.t2m.size and set(frame.columns) == {"time", "lat", "lon", "t2m", "wind"}
    mean = frame.selectExpr("avg(t2m) as m", "count(t2m) as n").first()
    assert mean["n"] == int(part.t2m.count()) and abs(mean["m"] - float(part.t2m.mean())) < 1e-3


def test_only_what_passes_its_checks_is_published(spark: Any, place: Path, opened: Open) -> None:
    repository = Repository.open(str(place))

    def add(staging: str) -> None:
        map_blocks(spark, repository, lambda b: b[["wind"]] * 2, repository, target_group="twice", branch=staging)

    before = repository.lookup_branch("main")
    checks = [
        MissingShare("t2m", 0.2),
        Monotone("time"),
        ExpectedSizes({"lat": 12}),
        ValueRange("wind", -1, 1, "twice"),
    ]
    report = write_audit_publish(spark, repository, add, checks, staging="stage")
    assert [f.passed for f in report.findings] == [True, True, True, False] and not report.published
    assert repository.lookup_branch("main") == before and "stage" in repository.list_branches()
    assert repository.lookup_snapshot(report.snapshot_id).metadata[AUDIT_KEY]["passed"] is False

    checks[-1] = ValueRange("wind", -100, 100, "twice")
    checks.append(Holds("has a title", lambda dataset: (dataset.attrs.get("title") == "noise", "title")))
    report = write_audit_publish(spark, repository, add, checks)
    assert report.passed and report.published and "published" in str(report)
    assert "wind" in opened(place, group="twice") and repository.list_branches() == {"main", "stage"}
    newest = next(iter(repository.ancestry(branch="main")))
    assert len(newest.metadata[AUDIT_KEY]["findings"]) == 5


def _correct(place: Path) -> None:
    """Somebody's commit that lands while a job runs."""
    session = Repository.open(str(place)).writable_session("main")
    zarr.open_group(session.store)["t2m"][0, 0, 0] = 42.0
    session.commit("a correction")


@pytest.mark.parametrize("job", ["map", "rechunk", "copy", "reduce"])
def test_a_commit_that_lands_while_a_job_is_planned_is_never_lost(
    spark: Any, place: Path, job: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = {
        "map": (mapping, "plan_target"),
        "rechunk": (copying, "plan_copy"),
        "copy": (copying, "plan_copy"),
        "reduce": (reduction, "sketch_of"),
    }[job]
    real = getattr(module, name)

    def late(*given: Any, **more: Any) -> Any:
        _correct(place)
        return real(*given, **more)

    monkeypatch.setattr(module, name, late)
    run: dict[str, Callable[[], Any]] = {
        "map": lambda: map_blocks(spark, place, lambda b: b[["t2m"]] + 1, place, overwrite=True),
        "rechunk": lambda: rechunk(spark, place, {"time": 25}),
        "copy": lambda: copy(spark, place, Repository.open(str(place)), overwrite=True, chunks={"time": 25}),
        "reduce": lambda: reduce(spark, place, "max", "time", place, variables=["t2m"], overwrite=True),
    }
    with pytest.raises(RebaseFailedError):
        run[job]()
    assert float(opened(place).t2m[0, 0, 0]) == 42.0


def test_names_that_are_not_there_are_told_with_the_nearest(spark: Any, place: Path, tmp_path: Path) -> None:
    target = tmp_path / "other"
    with pytest.raises(InvalidInputError, match="did you mean 'lon'"):
        map_blocks(spark, place, lambda b: b, target, halo={"lonn": 1})
    with pytest.raises(InvalidInputError, match="did you mean 'time'"):
        map_blocks(spark, place, lambda b: b, target, blocks={"tiem": 1})
    with pytest.raises(InvalidInputError, match="negative"):
        map_blocks(spark, place, lambda b: b, target, halo={"lon": -1})
    with pytest.raises(InvalidInputError, match="blocks of 0"):
        map_blocks(spark, place, lambda b: b, target, blocks={"lon": 0})
    with pytest.raises(InvalidInputError, match="did you mean 'time'"):
        reduce(spark, place, "mean", "tme")
    with pytest.raises(InvalidInputError, match="did you mean 'time'"):
        rechunk(spark, place, {"times": 4})
    with pytest.raises(NodeNotFoundError, match="did you mean 't2m'"):
        copy(spark, place, target, variables=["tm"])
    assert not target.exists()


def test_what_a_function_changes_beside_its_variables_is_refused(spark: Any, place: Path, tmp_path: Path) -> None:
    def widen(block: xr.Dataset) -> xr.Dataset:
        return block[["t2m"]].astype("f8" if float(block.lon[0]) > 0 else "f4")

    def more(block: xr.Dataset) -> xr.Dataset:
        return block[["t2m"]] if float(block.lon[0]) == 0 else block[["t2m", "wind"]]

    target = tmp_path / "other"
    with pytest.raises(InvalidInputError, match="changed the values of the coordinate lon"):
        map_blocks(spark, place, lambda b: b[["t2m"]].assign_coords(lon=b.lon + 100), target)
    with pytest.raises(InvalidInputError, match="as float64 for a block"):
        map_blocks(spark, place, widen, target, blocks={"lon": 6})
    with pytest.raises(InvalidInputError, match="returned 'wind' for a block"):
        map_blocks(spark, place, more, target, blocks={"lon": 6})
    with pytest.raises(InvalidInputError, match="coordinate hour along time"):
        map_blocks(spark, place, lambda b: b[["t2m"]].assign_coords(hour=b.time.dt.hour), target, blocks={"lon": 6})


@pytest.fixture
def bounded(tmp_path: Path) -> Path:
    """A dataset as models write it: bounds of times beside the values, and variables on parts of the grid."""
    times = np.datetime64("2020-01-01", "ns") + np.arange(6) * np.timedelta64(1, "D")
    dataset = xr.Dataset(
        {
            "tas": (("time", "x"), np.arange(24, dtype="f4").reshape(6, 4)),
            "time_bnds": (("time", "bnds"), np.stack([times, times + np.timedelta64(1, "D")], 1)),
            "height": (("x",), np.arange(4.0)),
            "level": ((), 2.0),
        },
        coords={"time": times, "x": np.arange(4), "area": ("x", np.arange(4) * 10.0)},
    )
    session = Repository.create(str(tmp_path / "bounded")).writable_session("main")
    dataset.to_zarr(session.store, consolidated=False, encoding={"tas": {"chunks": (2, 2)}})
    session.commit("bounded")
    return tmp_path / "bounded"


def test_bounds_of_times_are_reduced_as_xarray_reduces_them(spark: Any, bounded: Path, opened: Open) -> None:
    wanted = opened(bounded)
    for how in ("mean", "min", "max"):
        result = reduce(spark, bounded, how, "time", task_bytes=64)  # type: ignore[call-overload]
        expected = getattr(wanted[["tas", "time_bnds"]], how)("time")
        xr.testing.assert_equal(result[["tas", "time_bnds"]], expected)
    assert set(reduce(spark, bounded, "sum", "time").data_vars) == {"tas"}
    with pytest.raises(InvalidInputError, match="time_bnds has values of type datetime64"):
        reduce(spark, bounded, "sum", "time", variables=["time_bnds"])
    reduce(spark, bounded, "mean", "time", bounded, target_group="mean")
    kept = opened(bounded, group="mean")
    xr.testing.assert_equal(kept.time_bnds, wanted.time_bnds.mean("time"))


def test_a_parquet_export_holds_every_variable_or_is_refused(
    spark: Any, bounded: Path, tmp_path: Path, opened: Open
) -> None:
    with pytest.raises(InvalidInputError, match="time_bnds has the dimensions"):
        export(spark, bounded, tmp_path / "all", format="parquet")
    names = ["tas", "height", "level"]
    export(spark, bounded, tmp_path / "rows", format="parquet", variables=names)
    found = pd.read_parquet(tmp_path / "rows").sort_values(["time", "x"]).reset_index(drop=True)
    expected = opened(bounded)[names].to_dataframe().reset_index().sort_values(["time", "x"]).reset_index(drop=True)
    assert set(found) == set(expected) == {"time", "x", "tas", "height", "level", "area"}
    for name in set(found) - {"time"}:
        np.testing.assert_array_equal(found[name], expected[name])
