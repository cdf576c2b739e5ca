"""Writes the files of the target: chunks, then the references to them, then the snapshots that name those."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icefloe.conversion.chunk_objects import ChunkCopies
from icefloe.conversion.identities import Identities
from icefloe.conversion.losses import LossKind, expands_locations
from icefloe.conversion.progress import Progress
from icefloe.conversion.rewriting import (
    ConvertedManifest,
    convert_info,
    convert_log,
    convert_manifest,
    convert_node,
    convert_snapshot,
    is_kept,
    without_nodes,
)
from icefloe.conversion.survey import Survey
from icefloe.errors import ObjectNotFoundError, VirtualChunkError
from icefloe.ids import NodeId, ObjectId
from icefloe.maintenance.side_objects import named_objects
from icefloe.model.nodes import Node
from icefloe.model.snapshot import ManifestFileInfo, Snapshot, SnapshotInfo
from icefloe.model.transaction_log import TransactionLog
from icefloe.model.zarr_document import join_attributes
from icefloe.session.commit import HISTORY_LENGTH
from icefloe.session.compare import chunks_in_boxes, compare_snapshots
from icefloe.session.engine import Engine
from icefloe.session.history import fetch_log

Coordinates = npt.NDArray[np.uint32]
_MANIFESTS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Work:
    """A conversion that was planned."""

    survey: Survey
    target: Engine
    identities: Identities
    drops: frozenset[LossKind]
    same_root: bool


class Transfer:
    """Carries the files over; a run that was interrupted finds what it wrote and goes on."""

    def __init__(self, work: Work, progress: Progress) -> None:
        self.work = work
        self.progress = progress
        source, target = work.survey.engine, work.target
        self.chunks = ChunkCopies(
            (source.storage, source.format), (target.storage, target.format), work.identities, same_root=work.same_root
        )
        self.manifests: dict[ObjectId, ConvertedManifest | None] = {}
        self.infos: dict[ObjectId, SnapshotInfo] = {}
        """Commits of the target, by their id there, parents first."""
        self._depths: dict[ObjectId, int] = {}
        self._history = {info.id: info for info in work.survey.history}
        self._root_mark = dict(target.format.initial_snapshot(work.survey.history[0].written_at).metadata)

    async def run(self) -> None:
        """Write every file; no ref points at them yet."""
        await self._transfer_lists()
        await self._transfer_attributes()
        await self._transfer_manifests()
        await self._transfer_snapshots()

    def take_over(self) -> None:
        """The target reads the files of the source as they are: nothing is written, history stays as it is."""
        self.infos = {info.id: info for info in self.work.survey.history}

    async def _transfer_lists(self) -> None:
        """Objects that commits name in their metadata: lists of ingested sources."""
        source, target = self.work.survey.engine.storage, self.work.target.storage
        named = dict.fromkeys(key for info in self.work.survey.history for key in named_objects(info.metadata))
        for key in named:
            if not await target.exists(key):
                await target.put(key, await source.get(key))

    # -- attributes and references --------------------------------------------------------------------------------

    async def _transfer_attributes(self) -> None:
        target = self.work.target
        if not target.capabilities.attributes_files:
            return
        source = self.work.survey.engine
        for attributes_id in self.work.survey.attribute_files:
            new_id = self.work.identities.file(attributes_id)
            if not await target.storage.exists(target.format.attributes_key(new_id)):
                data = await source.storage.get(source.format.attributes_key(attributes_id))
                await target.archive.flush_attributes(new_id, source.format.decode_attributes(data))

    async def _transfer_manifests(self) -> None:
        target = self.work.target
        written: dict[str, int] = {}
        async for page in target.storage.list(target.format.manifests_folder):
            written.update((item.key, item.size_bytes) for item in page)
        slots = asyncio.Semaphore(_MANIFESTS_AT_ONCE)
        advance = self.progress.start("references", len(self.work.survey.manifests))

        async def one(manifest_id: ObjectId) -> None:
            async with slots:
                self.manifests[manifest_id] = await self._transfer_manifest(manifest_id, written)
                advance(1)

        await asyncio.gather(*(one(manifest_id) for manifest_id in self.work.survey.manifests))

    async def _transfer_manifest(self, manifest_id: ObjectId, written: dict[str, int]) -> ConvertedManifest | None:
        survey, target = self.work.survey, self.work.target
        manifest = await survey.engine.archive.fetch_manifest(manifest_id)
        users = survey.manifests[manifest_id]
        absolute = self.absolute if expands_locations(target.format) else None
        converted, extents = await asyncio.to_thread(
            convert_manifest, manifest_id, manifest, users, self.work.identities, self.work.drops, absolute
        )
        if not converted.tables:
            return None
        for node_id in extents:
            # Only objects that references of the target need.
            await self.chunks.copy(self.chunks.new_objects(manifest.tables[node_id]), lambda count: None)
        key = target.format.manifest_key(converted.id)
        if key in written:
            return ConvertedManifest(ManifestFileInfo(converted.id, written[key], len(converted)), extents)
        return ConvertedManifest(await target.archive.flush_manifest(converted), extents)

    def absolute(self, location: str) -> str | None:
        """The URL of a location by name; None when nobody knows the container."""
        try:
            return self.work.survey.engine.containers.absolute(location)
        except VirtualChunkError:
            return None

    # -- snapshots ------------------------------------------------------------------------------------------------

    async def _transfer_snapshots(self) -> None:
        work = self.work
        target = work.target
        written: set[str] = set()
        async for page in target.storage.list(target.format.snapshots_folder):
            written.update(item.key for item in page)
        advance = self.progress.start("snapshots", len(work.survey.history))
        files = {made.file.id: made.file for made in self.manifests.values() if made is not None}
        async for snapshot in work.survey.snapshots():
            info = convert_info(snapshot.info, work.identities, self._root_mark)
            self.infos[info.id] = info
            depth = 0 if info.parent_id is None else self._depths[info.parent_id] + 1
            self._depths[info.id] = depth
            if target.format.snapshot_key(info.id) not in written:
                nodes = await self._convert_nodes(snapshot)
                ancestors = self._ancestors(info) if target.capabilities.history_in_snapshot else ()
                converted = convert_snapshot(snapshot, info, nodes, files, ancestors, depth)
                await self._flush_log(snapshot, info)
                await target.archive.flush_snapshot(converted)
            advance(1)

    async def _convert_nodes(self, snapshot: Snapshot) -> dict[str, Node]:
        keeps_files = self.work.target.capabilities.attributes_files
        archive = self.work.survey.engine.archive
        nodes: dict[str, Node] = {}
        for path, node in snapshot.nodes.items():
            if not is_kept(node, self.work.drops):
                continue
            document = None
            if node.attributes is not None and not keeps_files:
                attributes = await archive.fetch_attributes(node.attributes.object_id, node.attributes.row)
                document = join_attributes(node.document, attributes)
            nodes[path] = convert_node(node, document, self.work.identities, self.manifests)
        return nodes

    def _ancestors(self, info: SnapshotInfo) -> tuple[SnapshotInfo, ...]:
        """The newest ancestors, as many as a snapshot carries with it."""
        found: list[SnapshotInfo] = []
        current = info.parent_id
        while current is not None and len(found) < HISTORY_LENGTH:
            found.append(self.infos[current])
            current = found[-1].parent_id
        return tuple(found)

    async def _flush_log(self, snapshot: Snapshot, info: SnapshotInfo) -> None:
        """The log comes before the snapshot: a snapshot that is there has everything that belongs to it."""
        target = self.work.target
        if not target.capabilities.transaction_logs:
            return
        if info.parent_id is None:
            if target.format.logs_initial_snapshot:
                await target.archive.flush_transaction_log(info.id, TransactionLog())
            return
        log = await self._source_log(snapshot)
        if log.updated_boxes and not target.capabilities.boxes_in_logs:
            boxed = await chunks_in_boxes(snapshot, [log], self.work.survey.engine.archive)
            log = replace(log, updated_chunks=_joined(log.updated_chunks, boxed), updated_boxes={})
        gone = frozenset(node.id for node in snapshot.nodes.values() if not is_kept(node, self.work.drops))
        log = convert_log(without_nodes(log, gone), self.work.identities)
        await target.archive.flush_transaction_log(info.id, log)

    async def _source_log(self, snapshot: Snapshot) -> TransactionLog:
        """What a snapshot changed: told by its log, or found by comparing with its parent."""
        survey = self.work.survey
        if survey.engine.capabilities.transaction_logs and survey.files[snapshot.id] == snapshot.id:
            try:
                await survey.engine.archive.fetch_transaction_log(snapshot.id)
                return await fetch_log(survey.engine, snapshot)
            except ObjectNotFoundError:
                pass
        assert snapshot.parent_id is not None
        parent = await survey.fetch_snapshot(self._history[snapshot.parent_id])
        return await compare_snapshots(parent, snapshot, survey.engine.archive)


def _joined(known: Mapping[NodeId, Coordinates], boxed: Mapping[NodeId, Coordinates]) -> dict[NodeId, Coordinates]:
    """Listed coordinates and those found in boxes, as one column per array."""
    joined = dict(known)
    for node_id, coords in boxed.items():
        joined[node_id] = (
            coords if node_id not in known else np.unique(np.concatenate([known[node_id], coords]), axis=0)
        )
    return joined
