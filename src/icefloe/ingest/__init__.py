"""Files of many formats in, one consistent repository out; usable without Spark."""

from __future__ import annotations

from icefloe.ingest.access import SourceAccess
from icefloe.ingest.execution import BlockSink, TaskResult, run_task
from icefloe.ingest.existing import Existing, ExistingArray
from icefloe.ingest.local import IngestResult, ingest_local, read_existing
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.parsers.registry import FORMATS, open_source, parse_schema, parse_source, try_schema
from icefloe.ingest.plan import IngestPlan, plan_ingest
from icefloe.ingest.record import ingest_metadata, ingested_before, not_ingested
from icefloe.ingest.schema_report import SchemaIssue, SchemaReport
from icefloe.ingest.session_sink import SessionSink
from icefloe.ingest.source_model import ParsedSource, SourceFailure, SourceFile, SourceSchema, SourceVariable
from icefloe.ingest.sources import expand_sources
from icefloe.ingest.tasks import IngestTask
from icefloe.ingest.virtual_places import explain_authorisation, store_containers, with_stored_containers

__all__ = [
    "FORMATS",
    "BlockSink",
    "Existing",
    "ExistingArray",
    "IngestOptions",
    "IngestPlan",
    "IngestResult",
    "IngestTask",
    "ParsedSource",
    "SchemaIssue",
    "SchemaReport",
    "SessionSink",
    "SourceAccess",
    "SourceFailure",
    "SourceFile",
    "SourceSchema",
    "SourceVariable",
    "TaskResult",
    "expand_sources",
    "explain_authorisation",
    "ingest_local",
    "ingest_metadata",
    "ingested_before",
    "not_ingested",
    "open_source",
    "parse_schema",
    "parse_source",
    "plan_ingest",
    "read_existing",
    "run_task",
    "store_containers",
    "try_schema",
    "with_stored_containers",
]
