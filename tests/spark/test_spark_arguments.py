"""Every job takes a repository as a path, as a URL and as an object."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import icefloe.spark as jobs
from icefloe import Repository
from icefloe.spark.publish import MissingShare

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]
_WITHOUT_REPOSITORY = {"connect", "ship_package", "register", "run_tasks"}


def _days(*numbers: int) -> xr.Dataset:
    times = np.datetime64("2020-01-01", "ns") + np.array(numbers) * np.timedelta64(1, "D")
    return xr.Dataset({"v": (("time", "x"), np.add.outer(np.array(numbers), np.arange(4.0)))}, {"time": times})


def _write_file(folder: Path, *numbers: int) -> str:
    path = folder / "new" / "day.nc"
    path.parent.mkdir(exist_ok=True)
    _days(*numbers).to_netcdf(path, encoding={"time": {"units": "days since 2020-01-01"}})
    return str(path)


def _repository(folder: Path) -> Path:
    """A repository that holds two days, which came from a file."""
    _days(0, 1).to_netcdf(folder / "first.nc", encoding={"time": {"units": "days since 2020-01-01"}})
    repository = Repository.create(str(folder / "repo"))
    session = repository.writable_session("main")
    _days(0, 1).to_zarr(session.store, consolidated=False, encoding={"v": {"chunks": (1, 2)}})
    session.commit("two days")
    return folder / "repo"


def _map(spark: Any, repo: Any, folder: Path) -> Any:
    return jobs.map_blocks(spark, repo, lambda block: block[["v"]] * 2, repo, target_group="doubled")


def _stream(spark: Any, repo: Any, folder: Path) -> Any:
    (folder / "rows").mkdir()
    spark.sql("select timestamp '2020-01-03' time, id x, 2.0d + id v from range(4)").write.mode("overwrite").parquet(
        str(folder / "rows")
    )
    rows = spark.readStream.schema("time timestamp, x bigint, v double").parquet(str(folder / "rows"))
    writer = jobs.write_stream(rows, repo, query="q", dims=["time", "x"])
    writer = writer.option("checkpointLocation", str(folder / "check")).trigger(availableNow=True)
    writer.start().awaitTermination()
    return Repository.open(str(folder / "repo")).lookup_branch("main")


def _publish(spark: Any, repo: Any, folder: Path) -> Any:
    def write(branch: str) -> None:
        jobs.ingest(spark, _write_file(folder, 2), repo, append_dim="time", branch=branch)

    return jobs.write_audit_publish(spark, repo, write, [MissingShare("v", 0.5)]).published


JOBS: dict[str, Callable[[Any, Any, Path], Any]] = {
    "analyze": lambda spark, repo, folder: jobs.analyze(spark, repo).chunks,
    "collect_garbage": lambda spark, repo, folder: jobs.collect_garbage(spark, repo, dt.timedelta(hours=1)),
    "compact": lambda spark, repo, folder: jobs.compact(spark, repo, dry_run=True),
    "copy": lambda spark, repo, folder: jobs.copy(spark, repo, repo, target_group="copy").snapshot_id,
    "export": lambda spark, repo, folder: jobs.export(spark, repo, folder / "export"),
    "ingest": lambda spark, repo, folder: (
        jobs.ingest(spark, _write_file(folder, 2), repo, append_dim="time").snapshot_id
    ),
    "map_blocks": _map,
    "pyramid": lambda spark, repo, folder: jobs.pyramid(spark, repo, "v", 1).snapshot_id,
    "rechunk": lambda spark, repo, folder: jobs.rechunk(spark, repo, {"time": 2}).snapshot_id,
    "reduce": lambda spark, repo, folder: jobs.reduce(spark, repo, "sum", "time").v.values.tolist() == [1, 3, 5, 7],
    "register_views": lambda spark, repo, folder: jobs.register_views(spark, repo)["v"],
    "sql": lambda spark, repo, folder: jobs.sql(spark, repo, "select max(v) as top from v").head()[0] == 4.0,
    "sync": lambda spark, repo, folder: jobs.sync(
        spark, _write_file(folder, 0, 1, 2), repo, group="synced", append_dim="time"
    ),
    "verify_sources": lambda spark, repo, folder: jobs.verify_sources(spark, repo).is_clean,
    "table": lambda spark, repo, folder: jobs.table(spark, repo, variables="v").count() == 8,
    "write": lambda spark, repo, folder: jobs.write(
        spark.sql("select timestamp '2020-01-03' time, id x, 2.0d + id v from range(4)"), repo, append_dim="time"
    ),
    "write_audit_publish": _publish,
    "write_stream": _stream,
}
FORMS: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "text": str,
    "url": Path.as_uri,
    "object": lambda path: Repository.open(str(path)),
}
_GROWS = {"ingest", "write", "write_audit_publish", "write_stream"}


def test_every_public_job_is_tried() -> None:
    functions = {name for name in jobs.__all__ if inspect.isfunction(getattr(jobs, name))}
    assert functions == set(JOBS) | _WITHOUT_REPOSITORY


@pytest.mark.parametrize("job", JOBS)
def test_a_job_takes_a_path_a_url_and_a_repository(spark: Any, tmp_path: Path, job: str) -> None:
    for form, given in FORMS.items():
        folder = tmp_path / form
        folder.mkdir()
        path = _repository(folder)
        assert JOBS[job](spark, given(path), folder), form
        found = xr.open_zarr(Repository.open(str(path)).readonly_session("main").store, consolidated=False).load()
        xr.testing.assert_equal(found, _days(0, 1, 2) if job in _GROWS else _days(0, 1))
