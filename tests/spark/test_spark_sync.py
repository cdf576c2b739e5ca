"""Syncs on Spark: the archive is equal to a new ingest of its files, whatever happened before."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.ingest.living_archives import LivingArchive

import icefloe
from icefloe.ingest import IngestOptions, SyncResult
from icefloe.spark import sync

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]
HISTORIES = int(os.environ.get("ICEFLOE_SPARK_HISTORIES", "100"))


def live(spark: Any, folder: Path, seed: int) -> None:
    def run(sources: str, repo: icefloe.Repository, options: IngestOptions, **more: Any) -> SyncResult:
        chosen = {field.name: getattr(options, field.name) for field in fields(options)}
        return sync(spark, sources, repo, **chosen, **more, progress=False)

    (folder / "files").mkdir(parents=True)
    storage = icefloe.local_filesystem_storage(str(folder / "repo"), fsync=False)
    LivingArchive(folder / "files", seed, run, storage).live()


@pytest.mark.parametrize("seed", range(5))
def test_a_living_archive_on_spark_is_equal_to_a_new_ingest(spark: Any, tmp_path: Path, seed: int) -> None:
    live(spark, tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(HISTORIES // 10))
def test_many_living_archives_on_spark_are_equal_to_new_ingests(spark: Any, tmp_path: Path, part: int) -> None:
    for seed in range(100 + 10 * part, 110 + 10 * part):
        live(spark, tmp_path / str(seed), seed)
