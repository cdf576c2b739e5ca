"""Secrets of a storage travel to tasks, but are in no plan, no description, no log and no error of a Spark job."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from tests.maintenance.histories import now
from tests.servers.s3 import S3Server

import icefloe
from icefloe.blocking import run_blocking
from icefloe.maintenance.compact import CompactRequest

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.slow]

SECRET = "s3cr3t-key-that-nobody-may-see"


def _told(spark) -> str:  # type: ignore[no-untyped-def]
    """All that Spark keeps of queries and jobs: what its pages and its event log show."""
    store = spark._jsparkSession.sharedState().statusStore()
    executions, texts = store.executionsList(), []
    for index in range(executions.size()):
        found = executions.apply(index)
        texts += [found.physicalPlanDescription(), found.description(), found.details(), str(found.modifiedConfigs())]
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    texts += [str(jobs.apply(index).description()) for index in range(jobs.size())]
    gateway = spark.sparkContext._gateway
    nothing = gateway.new_array(gateway.jvm.double, 0)
    stages = spark.sparkContext._jsc.sc().statusStore().stageList(None, False, False, nothing, None)
    for index in range(stages.size()):
        texts += [str(stages.apply(index).details()), str(stages.apply(index).failureReason())]
    return "\n".join(texts)


def test_jobs_of_maintenance_and_ingest_tell_no_secret(  # type: ignore[no-untyped-def]
    spark, s3_server: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from icefloe.spark import ingest, maintenance

    options = {**s3_server.storage_options(s3_server.make_bucket()), "secret_access_key": SECRET}
    storage = icefloe.s3_storage(**options)
    for number in range(2):
        times = np.arange(4 * number, 4 * number + 4)
        data = xr.Dataset({"t": (("time", "x"), np.ones((4, 300)))}, coords={"time": times})
        data.to_netcdf(tmp_path / f"{number}.nc")
    before = spark._jsparkSession.sharedState().statusStore().executionsCount()
    with caplog.at_level(logging.DEBUG):
        repo = icefloe.Repository.create(storage, icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0))
        ingest(spark, [str(tmp_path / "*.nc")], repo, concat_dims=["time"])
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="t", mode="r+")[:] = 2
        session.commit("replaced")
        maintenance.compact(spark, repo, CompactRequest())
        repo.expire_snapshots(retain_last=1)
        done = maintenance.collect_garbage(spark, repo, now())
        assert done.chunks_deleted > 0
        manifest = repo.inspect_snapshot(repo.lookup_branch("main"))["manifests"][0]["id"]
        run_blocking(storage.put(repo.context.format.manifest_key(manifest), b"damaged"))
        with pytest.raises(icefloe.StorageError) as raised:
            maintenance.collect_garbage(spark, repo, now())
    assert spark._jsparkSession.sharedState().statusStore().executionsCount() > before
    told = _told(spark)
    assert "MapInArrow" in told and "collecting garbage" in told
    assert SECRET not in told
    assert SECRET not in caplog.text
    assert SECRET not in f"{raised.value} {raised.value!r} {raised.value.__cause__}"
