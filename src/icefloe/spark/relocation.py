"""Parts of a distributed write brought to other coordinates, for an append that came second; no data is read again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from icefloe.blocking import run_blocking
from icefloe.ingest.array_plan import ArrayPlan
from icefloe.ingest.chunk_grids import shift_table
from icefloe.ingest.plan import IngestPlan
from icefloe.ingest.tasks import IngestTask
from icefloe.session.parts import WrittenParts
from icefloe.session.session import ForkSession
from icefloe.session.workspace import Workspace
from icefloe.spark.distributed import OpenFork

ChunkOffsets = Mapping[str, tuple[int, ...]]
"""By array path: how many chunks its parts move along each dimension."""


def plan_relocation(before: IngestPlan, after: IngestPlan) -> ChunkOffsets | None:
    """How the parts of one plan become those of another that differs in its offsets only; None when they cannot.

    Parts move by whole chunks. One that shares its first chunk with cells that were there before cannot move.
    """
    if len(before.tasks) != len(after.tasks):
        return None
    offsets: dict[str, tuple[int, ...]] = {}
    for old, new in zip(before.tasks, after.tasks, strict=True):
        moved = _task_shift(old, new)
        if moved is None:
            return None
        for path in old.arrays:
            offset = _array_offset(before.arrays[path], after.arrays[path], moved)
            if offset is None or not _is_aligned(before.arrays[path], old):
                return None
            if offsets.setdefault(path, offset) != offset:
                return None
    return offsets


def _task_shift(old: IngestTask, new: IngestTask) -> Mapping[str, int] | None:
    """How far a task moved along each joined dimension, in cells; None when it is another task."""
    if (old.kind, old.arrays) != (new.kind, new.arrays) or len(old.files) != len(new.files):
        return None
    shifts: dict[str, int] = {}
    for a, b in zip(old.files, new.files, strict=True):
        if a.file != b.file or a.origin.keys() != b.origin.keys():
            return None
        for dim, origin in a.origin.items():
            if shifts.setdefault(dim, b.origin[dim] - origin) != b.origin[dim] - origin:
                return None
    expected = {dim: (first + shifts.get(dim, 0), end + shifts.get(dim, 0)) for dim, (first, end) in old.window.items()}
    return shifts if expected == dict(new.window) else None


def _array_offset(old: ArrayPlan, new: ArrayPlan, shifts: Mapping[str, int]) -> tuple[int, ...] | None:
    if _layout(old) != _layout(new):
        return None
    cells = [shifts.get(dim, 0) if dim in old.joined else 0 for dim in old.dims]
    if any(shift % chunk for shift, chunk in zip(cells, old.chunks, strict=True)):
        return None
    return tuple(shift // chunk for shift, chunk in zip(cells, old.chunks, strict=True))


def _layout(array: ArrayPlan) -> tuple[Any, ...]:
    """What must be the same for chunks of one array to be chunks of the other."""
    document = json.loads(array.document)
    facets = ("data_type", "chunk_grid", "chunk_key_encoding", "codecs", "fill_value", "dimension_names")
    return array.kind, tuple(json.dumps(document.get(facet), sort_keys=True) for facet in facets)


def _is_aligned(array: ArrayPlan, task: IngestTask) -> bool:
    starts = _starts(array, task)
    return all(start % chunk == 0 for start, chunk in starts)


def _starts(array: ArrayPlan, task: IngestTask) -> Iterator[tuple[int, int]]:
    for dim, chunk in zip(array.dims, array.chunks, strict=True):
        if dim not in array.joined:
            continue
        if task.kind == "native":
            yield task.window[dim][0], chunk
        else:
            yield from ((placed.origin.get(dim, 0), chunk) for placed in task.files)


@dataclass(frozen=True, slots=True)
class RelocateWork:
    """Writes the references of earlier parts again, at their new coordinates and for the arrays of a new session."""

    offsets: ChunkOffsets

    def __call__(self, open_fork: OpenFork, written: WrittenParts) -> tuple[ForkSession, None]:
        fork = open_fork()
        run_blocking(_relocate(fork.workspace, written, self.offsets))
        return fork, None


async def _relocate(work: Workspace, written: WrittenParts, offsets: ChunkOffsets) -> None:
    for part in written.parts:
        path = written.paths[part.node_id]
        manifest = await work.engine.archive.fetch_manifest(part.manifest_id)
        shifted = shift_table(manifest.tables[part.node_id], offsets[path.lstrip("/")])
        work.set_table(work.tree.array(path), shifted)
