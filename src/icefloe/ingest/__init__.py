"""Files of many formats in, one consistent repository out; usable without Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe.ingest.access import SourceAccess
    from icefloe.ingest.execution import BlockSink, TaskResult, run_task
    from icefloe.ingest.existing import Existing, ExistingArray
    from icefloe.ingest.local import IngestResult, ingest_local, read_existing
    from icefloe.ingest.options import IngestOptions
    from icefloe.ingest.parsers.registry import FORMATS, open_source, parse_schema, parse_source, try_schema
    from icefloe.ingest.plan import IngestPlan, plan_ingest
    from icefloe.ingest.record import ingest_metadata, not_ingested
    from icefloe.ingest.schema_report import SchemaIssue, SchemaReport
    from icefloe.ingest.session_sink import SessionSink
    from icefloe.ingest.source_model import ParsedSource, SourceFailure, SourceFile, SourceSchema, SourceVariable
    from icefloe.ingest.sources import expand_sources
    from icefloe.ingest.tasks import IngestTask
    from icefloe.ingest.virtual_places import explain_authorisation, store_containers, with_stored_containers

_HOMES = {
    "FORMATS": "parsers.registry",
    "BlockSink": "execution",
    "Existing": "existing",
    "ExistingArray": "existing",
    "IngestOptions": "options",
    "IngestPlan": "plan",
    "IngestResult": "local",
    "IngestTask": "tasks",
    "ParsedSource": "source_model",
    "SchemaIssue": "schema_report",
    "SchemaReport": "schema_report",
    "SessionSink": "session_sink",
    "SourceAccess": "access",
    "SourceFailure": "source_model",
    "SourceFile": "source_model",
    "SourceSchema": "source_model",
    "SourceVariable": "source_model",
    "TaskResult": "execution",
    "expand_sources": "sources",
    "explain_authorisation": "virtual_places",
    "ingest_local": "local",
    "ingest_metadata": "record",
    "not_ingested": "record",
    "open_source": "parsers.registry",
    "parse_schema": "parsers.registry",
    "parse_source": "parsers.registry",
    "plan_ingest": "plan",
    "read_existing": "local",
    "run_task": "execution",
    "store_containers": "virtual_places",
    "try_schema": "parsers.registry",
    "with_stored_containers": "virtual_places",
}
"""The module of each public name. They load when used: workers start with what their task needs."""

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

if not TYPE_CHECKING:
    # A type checker that saw this function would believe in any name.
    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
