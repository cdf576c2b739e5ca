"""The schemas of many sources, read by Spark tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from icefloe.ingest.access import SourceAccess
from icefloe.ingest.local import read_schemas
from icefloe.ingest.source_model import SourceFailure, SourceFile, SourceSchema, intern_schemas
from icefloe.spark.tasks import SparkJob, parallelism, run_tasks

FILES_FOR_SPARK = 32
"""Fewer files are read by the driver faster than tasks start."""
_MOST_FILES_PER_TASK = 128
_TASKS_PER_CORE = 2

Schemas = tuple[list[SourceSchema], list[SourceFailure]]


@dataclass(frozen=True, slots=True)
class _ReadSchemas:
    access: SourceAccess
    format: str | None

    def __call__(self, files: Sequence[SourceFile]) -> Schemas:
        schemas, failures = read_schemas(files, self.access, self.format)
        # Alike files share most of what they say: the answer carries it once.
        return intern_schemas(schemas), failures


def fetch_schemas(
    spark: SparkSession, files: Sequence[SourceFile], access: SourceAccess, format: str | None, shown: bool | None
) -> Schemas:
    """Schemas of the files that can be read, and why the others cannot."""
    if len(files) < FILES_FOR_SPARK:
        return read_schemas(files, access, format)
    step = min(_MOST_FILES_PER_TASK, -(-len(files) // (parallelism(spark) * _TASKS_PER_CORE)))
    batches = [files[start : start + step] for start in range(0, len(files), step)]
    job = SparkJob(_ReadSchemas(access, format), f"reading {len(files):,} schemas", shown)
    answers = run_tasks(spark, job, batches)
    return [s for schemas, _ in answers for s in schemas], [f for _, failures in answers for f in failures]
