"""Real files of every format, and a check that references decode to the source's values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.ingest.memory_sink import MemorySink

from icefloe.ingest.access import SourceAccess, normalise_url
from icefloe.ingest.parsers.registry import decode_references, open_source, parse_schema
from icefloe.ingest.plan import IngestPlan, plan_ingest
from icefloe.ingest.source_model import SourceFile, SourceSchema
from icefloe.ingest.sources import IngestOptions, expand_sources
from icefloe.ingest.write_tasks import run_task


@pytest.fixture
def describe() -> Callable[[Path], SourceFile]:
    return lambda path: SourceAccess().describe(normalise_url(path))


@pytest.fixture
def check_references() -> Callable[[SourceFile], SourceSchema]:
    """Every variable that can be referenced decodes, chunk by chunk, to what its own library reads."""

    def check(file: SourceFile) -> SourceSchema:
        access = SourceAccess()
        with open_source(file, access) as source:
            schema = source.schema()
            for variable in schema.variables.values():
                whole = tuple(slice(0, n) for n in variable.shape)
                values = source.values(variable, whole)
                assert values.shape == variable.shape
                if variable.not_virtual is not None:
                    continue
                found = source.references(variable)
                decoded = decode_references(variable, found.table, whole, access)
                by_value = np.zeros(variable.shape, dtype=bool)
                for coords in found.by_value:
                    box = tuple(
                        slice(i * c, (i + 1) * c) for i, c in zip(coords.tolist(), variable.chunks, strict=True)
                    )
                    by_value[box] = True
                np.testing.assert_array_equal(decoded[~by_value], values[~by_value], err_msg=variable.path)
        return schema

    return check


@pytest.fixture
def combine() -> Callable[..., tuple[IngestPlan, MemorySink]]:
    """Plan and carry out an ingest of files into memory."""

    def run(sources: Any, existing: Any = None, sink: MemorySink | None = None, **options: Any) -> Any:
        chosen = IngestOptions(**options)
        schemas = [parse_schema(file) for file in expand_sources(sources)]
        plan = plan_ingest(schemas, chosen, existing=existing)
        plan.report.raise_on_errors()
        sink = sink or MemorySink()
        sink.begin(plan)
        for task in plan.tasks:
            run_task(task, plan.arrays, sink)
        return plan, sink

    return run
