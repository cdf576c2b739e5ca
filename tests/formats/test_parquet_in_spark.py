"""Spark reads structure and manifest files as ordinary Parquet, and prunes row groups by array and coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.formats.dataset.manifest import encode_coord

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_spark_reads_nodes_and_chunks_of_a_dataset(spark: Any, tmp_path: Path) -> None:
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(tmp_path / "d"), spec_version="dataset")
    session = repository.writable_session("main")
    group = zarr.group(session.store, attributes={"title": "x"})
    group.create_array("a", shape=(600, 20), chunks=(1, 10), dtype="i4")[:] = np.arange(12_000).reshape(600, 20)
    session.commit("data")
    nodes = spark.read.parquet(str(tmp_path / "d" / "s"))
    chunks = spark.read.parquet(str(tmp_path / "d" / "i"))
    joined = nodes.where("path = '/a'").join(chunks, nodes.id == chunks.array_id)
    assert joined.count() == 1200
    assert nodes.where("type = 'array'").select("array_metadata.shape").head()[0] == [600, 20]
    low, high = encode_coord((300, 0)), encode_coord((301, 1))
    found = chunks.where((chunks.coord >= low) & (chunks.coord <= high))
    assert found.count() == 4
    assert "PushedFilters: [IsNotNull(coord)" in found._jdf.queryExecution().toString()
