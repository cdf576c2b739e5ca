"""Writing the manifests that a change set asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from icefloe.ids import NodeId, ObjectId, new_object_id
from icefloe.manifests.build import BuiltManifest, build_output, link_manifests
from icefloe.manifests.edits import GatheredEdits, gather_edits
from icefloe.manifests.pieces import ArrayEdits, BulkEdits
from icefloe.manifests.plan import ManifestPlan, PlannedManifest, plan_manifests
from icefloe.model.chunk_tables import NO_TABLES
from icefloe.model.manifest_config import SPECIFIED
from icefloe.model.nodes import ArrayNode, ManifestRef, Node
from icefloe.model.snapshot import Manifest, ManifestFileInfo
from icefloe.session.change_set import ChangeSet
from icefloe.session.workspace import Workspace

_IN_FLIGHT = 4
"""Outputs that are built and written at the same time: memory holds their tables."""


@dataclass(frozen=True, slots=True)
class FlushedManifests:
    """The manifests of every array whose references changed, and the files behind them."""

    refs: Mapping[NodeId, tuple[ManifestRef, ...]] = field(default_factory=dict)
    files: Mapping[ObjectId, ManifestFileInfo] = field(default_factory=dict)


def collect_edits(changes: ChangeSet, gathered: GatheredEdits, arrays: Iterable[ArrayNode]) -> BulkEdits:
    """The chunk edits of a change set that say something, those of arrays without manifests together."""
    bare = {node.id for node in arrays if not node.manifests}.difference(changes.parts)
    together = gathered.together
    places = [place for place, node_id in enumerate(together.nodes) if node_id in bare]
    fresh = together.select(np.array(places, dtype=np.int64)) if places else NO_TABLES
    edits = {}
    for node_id in {*gathered.alone, *changes.parts, *together.nodes}.difference(fresh.nodes):
        buffer = changes.edits.get(node_id)
        table = buffer.to_table() if buffer is not None else None
        change = ArrayEdits(
            table=table if table is not None and len(table) else None,
            parts=tuple(changes.parts.get(node_id, ())),
            base_box=None if buffer is None else buffer.base_box,
        )
        if change.says_something():
            edits[node_id] = change
    return BulkEdits(edits, fresh)


async def flush_manifests(
    work: Workspace, gathered: GatheredEdits | None = None, nodes: Iterable[Node] | None = None
) -> FlushedManifests:
    """Write what the edits of a change set ask for; untouched manifests stay linked.

    The edits and the nodes of the hierarchy are given by who has listed them already.
    """
    gathered = gathered or gather_edits(work.changes.edits)
    if not work.changes.parts and not gathered.alone and not len(gathered.together):
        return FlushedManifests()
    arrays = [node for node in (work.tree.nodes() if nodes is None else nodes) if isinstance(node, ArrayNode)]
    edits = collect_edits(work.changes, gathered, arrays)
    if not edits:
        return FlushedManifests()
    plan = plan_manifests(arrays, work.base.manifests, edits, work.engine.config.manifest or SPECIFIED)
    return await apply_plan(work, plan, edits)


async def apply_plan(work: Workspace, plan: ManifestPlan, edits: Mapping[NodeId, ArrayEdits]) -> FlushedManifests:
    """Build and write the outputs of a plan, a few at a time."""
    limit = asyncio.Semaphore(_IN_FLIGHT)

    async def flush_one(output: PlannedManifest) -> list[tuple[BuiltManifest, ManifestFileInfo]]:
        async with limit:
            return await _flush_output(work, output, edits)

    written = [pair for pairs in await asyncio.gather(*map(flush_one, plan.outputs)) for pair in pairs]
    files = {info.id: info for _, info in written} | {part.manifest_id: part.info for part in plan.linked_parts}
    return FlushedManifests(link_manifests(plan, (built.refs for built, _ in written)), files)


async def _flush_output(
    work: Workspace, output: PlannedManifest, edits: Mapping[NodeId, ArrayEdits]
) -> list[tuple[BuiltManifest, ManifestFileInfo]]:
    fetched = await asyncio.gather(*(work.lookup.fetch(manifest_id) for manifest_id in output.fetch))
    sources: dict[ObjectId, Manifest] = dict(zip(output.fetch, fetched, strict=True))
    new_id = partial(new_object_id, work.engine.capabilities.object_id_bytes)
    build = build_output(output, sources.__getitem__, edits, new_id)
    written = []
    for built in build:
        # The references are small: keep them, not the tables, while the next manifest is built.
        info = await work.engine.archive.flush_manifest(built.manifest)
        written.append((BuiltManifest(Manifest(built.manifest.id, {}), built.refs), info))
    return written
