"""Icefloe on Apache Spark: sessions, distributed jobs, tables. The only room that imports pyspark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from icefloe.spark.workers import end_quietly

if TYPE_CHECKING:
    from icefloe.spark.analysis import Analysis, analyze
    from icefloe.spark.cells import table
    from icefloe.spark.connection import connect
    from icefloe.spark.copying import copy, rechunk
    from icefloe.spark.exporting import ExportOutcome, export
    from icefloe.spark.ingesting import IngestOutcome, ingest
    from icefloe.spark.maintenance import collect_garbage, compact
    from icefloe.spark.mapping import map_blocks
    from icefloe.spark.places import JobOutcome
    from icefloe.spark.publishing import AuditReport, write_audit_publish
    from icefloe.spark.reduction import reduce
    from icefloe.spark.registration import register
    from icefloe.spark.shipping import ship_package
    from icefloe.spark.streaming import write_stream
    from icefloe.spark.tasks import SparkJob, run_tasks
    from icefloe.spark.views import register_views
    from icefloe.spark.writing import WriteOutcome, write

_HOMES = {
    "Analysis": "analysis",
    "AuditReport": "publishing",
    "ExportOutcome": "exporting",
    "IngestOutcome": "ingesting",
    "JobOutcome": "places",
    "SparkJob": "tasks",
    "WriteOutcome": "writing",
    "analyze": "analysis",
    "collect_garbage": "maintenance",
    "compact": "maintenance",
    "connect": "connection",
    "copy": "copying",
    "export": "exporting",
    "ingest": "ingesting",
    "map_blocks": "mapping",
    "rechunk": "copying",
    "reduce": "reduction",
    "register": "registration",
    "register_views": "views",
    "run_tasks": "tasks",
    "ship_package": "shipping",
    "table": "cells",
    "write": "writing",
    "write_audit_publish": "publishing",
    "write_stream": "streaming",
}
"""The module of each public name. They load when used: workers start with what their task needs."""

__all__ = [
    "Analysis",
    "AuditReport",
    "ExportOutcome",
    "IngestOutcome",
    "JobOutcome",
    "SparkJob",
    "WriteOutcome",
    "analyze",
    "collect_garbage",
    "compact",
    "connect",
    "copy",
    "export",
    "ingest",
    "map_blocks",
    "rechunk",
    "reduce",
    "register",
    "register_views",
    "run_tasks",
    "ship_package",
    "table",
    "write",
    "write_audit_publish",
    "write_stream",
]

# Whatever of this package a worker of Spark gets to do, it imports this first. In other processes it does nothing.
end_quietly()

if not TYPE_CHECKING:
    # A type checker that saw this function would believe in any name.
    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
