"""Ten million new references in one session stay within a stated amount of memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

BYTES_PER_REFERENCE = 100
"""Columns, keys and one merge of the largest runs; two dimensions, virtual."""

PROGRAM = """
import resource, sys
import numpy as np
from icefloe.manifests.manifest_plan import build_output
from icefloe.manifests.chunk_columns import table_from_columns
from icefloe.session.change_set import EditBuffer
from icefloe.manifests.cells import ArrayEdits
from icefloe.manifests.manifest_plan import plan_manifests
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.manifest_config import ManifestConfig
from icefloe.model.snapshot import ArrayNode

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
node = ArrayNode(b"12345678", "/t", b"", (10_000, 1000), (10_000, 1000))
buffer = EditBuffer(2)
order = np.random.default_rng(0).permutation(100)
for block in order.tolist():
    coords = np.stack(np.unravel_index(np.arange(100_000), (100, 1000)), axis=1).astype(np.uint32)
    coords[:, 0] += 100 * block
    location = np.array([f"s3://bucket/{block}-{i}" for i in range(100)])
    buffer.add_table(table_from_columns(
        coords, kind=ChunkKind.VIRTUAL, offset=np.arange(100_000), length=5, location=location[coords[:, 1] // 10],
    ))
edits = {node.id: ArrayEdits(buffer.to_table())}
plan = plan_manifests([node], {}, edits, ManifestConfig())
count = sum(len(built.manifest) for output in plan.outputs for built in build_output(output, {}.__getitem__, edits))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(count, (peak - before) * (1 if sys.platform == "darwin" else 1024))
"""


@pytest.mark.slow
def test_ten_million_references_take_a_hundred_bytes_each() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    count, peak_bytes = map(int, answer.stdout.split())
    assert count == 10_000_000
    assert peak_bytes < count * BYTES_PER_REFERENCE
