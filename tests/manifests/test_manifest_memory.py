"""New references stay within a stated amount of memory: ten million in one session, or one in each of many commits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from icefloe.ids import new_object_id
from icefloe.manifests.chunk_columns import merge_edits
from icefloe.manifests.manifest_plan import build_manifest
from icefloe.model.chunk_table import ChunkKind, ChunkRef, table_from_rows

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


def _inline(data: bytes) -> ChunkRef:
    return ChunkRef(ChunkKind.INLINE, 0, len(data), data=data)


def test_a_chunk_that_is_written_often_leaves_no_bytes_behind() -> None:
    node, size, commits = b"12345678", 400, 100
    tables = {node: table_from_rows([((number,), _inline(bytes(size))) for number in range(5)], 1)}
    for number in range(commits):
        data = bytes([number]) * size
        edit = table_from_rows([((number % 5,), _inline(data))], 1)
        built = build_manifest({node: merge_edits(tables[node], edit)}, new_object_id())
        tables = dict(built.manifest.tables)
        table = tables[node]
        assert len(table.inline) <= max(2 * 5 * size + size, 1 << 12), "at most half of it, or a little, is unused"
        assert table.row(number % 5).data == data
    assert [table.row(row).data for row in range(5)] == [bytes([commits - 5 + row]) * size for row in range(5)]
