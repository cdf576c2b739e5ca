"""Icefloe on Apache Spark: sessions, distributed jobs, tables. The only room that imports pyspark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe.spark.connection import connect
    from icefloe.spark.ingesting import IngestOutcome, ingest
    from icefloe.spark.mapping import map_blocks
    from icefloe.spark.reduction import reduce
    from icefloe.spark.tasks import SparkJob, run_tasks

_HOMES = {
    "IngestOutcome": "ingesting",
    "SparkJob": "tasks",
    "connect": "connection",
    "ingest": "ingesting",
    "map_blocks": "mapping",
    "reduce": "reduction",
    "run_tasks": "tasks",
}
"""The module of each public name. They load when used: workers start with what their task needs."""

__all__ = ["IngestOutcome", "SparkJob", "connect", "ingest", "map_blocks", "reduce", "run_tasks"]


if not TYPE_CHECKING:
    # A type checker that saw this function would believe in any name.
    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
