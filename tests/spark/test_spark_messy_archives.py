"""Messy archives through Spark: the same law as without it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.ingest.archive_oracle import check_archive
from tests.ingest.messy_archives import MessyArchive, archives

from icefloe import Repository
from icefloe.spark import ingest

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


class SparkIngest:
    """Ingests with Spark into a repository on disk, which its workers can reach."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def repository(self, folder: Path) -> Repository:
        return Repository.create(str(folder / "repository"))

    def __call__(self, paths: list[Path], repository: Repository, options: dict[str, Any]) -> Any:
        return ingest(self._spark, paths, repository, progress=False, **options)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(archive=archives())
def test_an_archive_is_ingested_by_spark_as_xarray_reads_it_or_refused(spark: Any, archive: MessyArchive) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_archive(Path(folder), archive, SparkIngest(spark))
