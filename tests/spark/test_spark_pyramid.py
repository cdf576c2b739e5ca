"""Overviews computed by tasks are those computed alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.ingest import pyramid_local

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_overviews_of_tasks_equal_those_of_one_process(spark: Any, tmp_path: Path) -> None:
    from icefloe.spark import pyramid

    found = []
    for name in ("alone", "tasks"):
        repository = icefloe.Repository.create(str(tmp_path / name))
        session = repository.writable_session("main")
        values = np.random.default_rng(3).random((3, 21, 18))
        values[0, :3] = np.nan
        zarr.create_array(session.store, name="t", data=values, chunks=(1, 4, 5), dimension_names=["time", "y", "x"])
        session.commit("data")

        def build(repository: Any = repository, name: str = name) -> Any:
            if name == "alone":
                return pyramid_local(repository, "t", 3)
            return pyramid(spark, repository, "t", 3, task_bytes=4000)

        first = build()
        session = repository.writable_session("main")
        zarr.open_array(session.store, path="t", mode="r+")[1, 10, 10] = 5.0
        session.commit("correct a cell")
        second = build()
        store = repository.readonly_session("main").store
        levels = [zarr.open_array(store, path=path, mode="r")[...] for path in second.paths]
        found.append((first.written, second.written, second.kept, build().written, [each.tobytes() for each in levels]))
        assert repository.verify(decode=True).is_clean
    assert found[0] == found[1]
