"""Icefloe on Apache Spark: sessions, distributed jobs, tables. The only package that imports pyspark."""

from icefloe.spark.connect import connect as connect
from icefloe.spark.connect import ship_package as ship_package
from icefloe.spark.copy import copy as copy
from icefloe.spark.copy import rechunk as rechunk
from icefloe.spark.export import ExportOutcome as ExportOutcome
from icefloe.spark.export import export as export
from icefloe.spark.ingest import IngestOutcome as IngestOutcome
from icefloe.spark.ingest import ingest as ingest
from icefloe.spark.ingest import sync as sync
from icefloe.spark.jobs import JobOutcome as JobOutcome
from icefloe.spark.maintenance import Analysis as Analysis
from icefloe.spark.maintenance import analyze as analyze
from icefloe.spark.maintenance import collect_garbage as collect_garbage
from icefloe.spark.maintenance import compact as compact
from icefloe.spark.map_blocks import map_blocks as map_blocks
from icefloe.spark.publish import AuditReport as AuditReport
from icefloe.spark.publish import write_audit_publish as write_audit_publish
from icefloe.spark.reduce import reduce as reduce
from icefloe.spark.source import register as register
from icefloe.spark.source import write_stream as write_stream
from icefloe.spark.table import register_views as register_views
from icefloe.spark.table import table as table
from icefloe.spark.tasks import SparkJob as SparkJob
from icefloe.spark.tasks import run_tasks as run_tasks
from icefloe.spark.write import WriteOutcome as WriteOutcome
from icefloe.spark.write import write as write
