"""What the driver of an ingest holds for each source. Spark, which takes no part in it, is left out."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from icefloe.ingest import IngestOptions
from icefloe.ingest.plan import plan_tasks
from icefloe.ingest.record import Fingerprints, ingest_metadata
from icefloe.ingest.runs import plan_table
from icefloe.ingest.schema_table import SchemaTable
from icefloe.ingest.source_files import SourceFiles
from icefloe.ingest.source_model import SourceFile, SourceSchema, SourceVariable, summarise_coordinate

STEP = 128
"""Sources that a task reads."""
OPTIONS = {
    "plain": IngestOptions(mode="virtual", append_dim="time"),
    "native": IngestOptions(append_dim="time", chunks={"time": 16}, task_bytes=1 << 12),
    "scalar": IngestOptions(mode="virtual"),
    "named": IngestOptions(mode="virtual", pattern="{time:d}.nc"),
    "attributes": IngestOptions(mode="virtual", append_dim="time"),
}


def make_files(count: int) -> Iterator[SourceFile]:
    for number in range(count):
        url = f"file:///archive/of/a/centre/{number // 1000:04d}/{number:07d}.nc"
        yield SourceFile(url, 5000 + number % 7, None, 1763500000 + number, f"{1763500000123456789 + number}")


def make_schemas(kind: str, files: SourceFiles, first: int) -> Iterator[SourceSchema]:
    dims, length = ((), ()) if kind in ("scalar", "named") else (("time",), (1,))
    codec = {"name": "bytes", "configuration": {"endian": "little"}}
    lat = summarise_coordinate(np.arange(8.0))
    for number, file in enumerate(files, first):
        marks = {"made": f"at {number}"} if kind == "attributes" else {}
        variables = {
            "time": SourceVariable("time", dims, length, "<f8", length, {"units": "hours since 1970-01-01"}),
            "lat": SourceVariable("lat", ("lat",), (8,), "<f8", (8,)),
            "t2m": SourceVariable("t2m", (*dims, "lat"), (*length, 8), "<f8", (*length, 4), {"units": "K", **marks}),
        }
        variables = {path: replace(each, codecs=(codec,)) for path, each in variables.items()}
        coordinates = {"time": summarise_coordinate(np.array([float(number)])), "lat": lat}
        for each in (variables, coordinates) if kind == "named" else ():
            del each["time"]
        yield SourceSchema(file, "hdf5", variables, coordinates, {"": {"title": "a test"}})


def measure(kind: str, count: int) -> dict[str, int]:
    """The bytes that the driver holds after the last task, and the most that it held."""
    options, every = OPTIONS[kind], SourceFiles.of(make_files(count))
    tasks = [
        pickle.dumps(SchemaTable(make_schemas(kind, files, first), options).without_files(files))
        for first in range(0, count, STEP)
        for files in (pickle.loads(pickle.dumps(every[first : first + STEP])),)
    ]
    del every
    gc.collect()
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    files = SourceFiles.of(make_files(count)).in_natural_order()
    table = SchemaTable(options=options)
    for number, task in enumerate(tasks):
        table.join(pickle.loads(task), files[number * STEP : (number + 1) * STEP])
    plan = plan_table(table, options)
    plan = replace(plan, tasks=plan_tasks(plan.datasets, options))
    payload = max(len(pickle.dumps(task)) for task in plan.tasks)
    metadata = ingest_metadata(plan, files)
    _, peak = tracemalloc.get_traced_memory()
    gc.collect()  # also empties the lists of free objects
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    held += pa.total_allocated_bytes() - arrow
    assert metadata["icefloe.ingest"]["sources"] == len(Fingerprints.of(files)) == count
    return {"held": held, "peak": peak, "arrow peak": pa.default_memory_pool().max_memory(), "payload": payload}


def measure_each(kind: str) -> dict[str, float]:
    """What each further source needs."""
    measure(kind, 600)  # imports modules
    few, many = measure(kind, 1024), measure(kind, 6144)
    return {name: (many[name] - few[name]) / 5120 for name in few}


LIMITS = {
    "plain": {"held": 180, "peak": 200},
    "native": {"held": 180, "peak": 200},
    "scalar": {"held": 180, "peak": 200},
    "named": {"held": 180, "peak": 200},
    "attributes": {"held": 2000, "peak": 4600},
}


@pytest.mark.parametrize("kind", LIMITS)
def test_the_driver_holds_columns_of_its_sources(kind: str) -> None:
    command = [sys.executable, "-m", "tests.ingest.test_driver_memory", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, limit in LIMITS[kind].items():
        assert found[name] <= limit, (name, found)
    # While files are sorted, there are two copies of their URLs.
    assert found["arrow peak"] <= 200, found
    # A task receives its own sources only.
    assert found["payload"] <= 1, found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure_each(sys.argv[1])))
