"""Icefloe on Apache Spark: sessions, distributed jobs, tables. The only room that imports pyspark."""

from __future__ import annotations

from icefloe.spark.connect import connect
from icefloe.spark.ingest import IngestOutcome, ingest
from icefloe.spark.tasks import SparkJob, run_tasks

__all__ = ["IngestOutcome", "SparkJob", "connect", "ingest", "run_tasks"]
