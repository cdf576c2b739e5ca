"""GRIB messages by reference through Spark are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import icefloe
from icefloe.ingest import IngestOptions, ingest_local

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_an_ingest_of_index_files_on_spark_equals_one_alone(spark: Any, tmp_path: Path) -> None:
    from icefloe.spark import ingest, verify_sources

    messages = pytest.importorskip("tests.ingest.grib_messages")
    (tmp_path / "in").mkdir()
    for day in (1, 2, 3):
        specs = [
            messages.Spec("t", 20200100 + day, 0, step, level, missing=day == 2, seed=day + level + int(step))
            for step in ("0", "6")
            for level in (500, 850)
        ]
        messages.write_inventory(messages.write_messages(tmp_path / "in" / f"{day}.grib2", *specs))
    sources = str(tmp_path / "in" / "*.idx")
    allowed = {f"file://{tmp_path}/in/": None}
    found = []
    for name in ("alone", "tasks"):
        if name == "alone":
            ingest_local(sources, icefloe.Repository.create(str(tmp_path / name)), IngestOptions(mode="virtual"))
        else:
            ingest(spark, sources, str(tmp_path / name), mode="virtual")
        repository = icefloe.Repository.open(str(tmp_path / name), authorize_virtual_chunk_access=allowed)
        store = repository.readonly_session("main").store
        found.append(xr.open_zarr(store, consolidated=False, decode_timedelta=False).load())
        assert verify_sources(spark, repository, sample=2).counts == {"ok": 3}
    xr.testing.assert_identical(found[0], found[1])
    messages.check_equals_eccodes(found[1], sorted((tmp_path / "in").glob("*.grib2")))
