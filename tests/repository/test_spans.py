"""Where OpenTelemetry is installed, operations are spans."""

from __future__ import annotations

import datetime as dt

import pytest
import zarr

import icefloe

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


def test_operations_are_spans_below_the_span_of_the_caller() -> None:
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    storage = icefloe.in_memory_storage()
    with trace.get_tracer("test").start_as_current_span("job") as job:
        repo = icefloe.Repository.create(storage)
        with repo.transaction("main", message="array") as store:
            zarr.create_array(store, name="a", shape=4, chunks=2, dtype="i4")[:] = 1
        again = icefloe.Repository.open(storage)
        zarr.open_array(again.readonly_session("main").store, path="a", mode="r")[:]
        repo.garbage_collect(dt.timedelta(days=1))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    wanted = {"create_repository", "open_repository", "commit", "fetch_snapshot", "fetch_manifest", "garbage_collect"}
    assert {f"icefloe.{name}" for name in wanted} - spans.keys() == set()
    assert all(span.context.trace_id == job.get_span_context().trace_id for span in spans.values())
