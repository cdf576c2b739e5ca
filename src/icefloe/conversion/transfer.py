"""Write the files of the target: chunks first, then manifests, then snapshots. Then compare both repositories."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icefloe.chunks.reader import ChunkLookup
from icefloe.conversion.survey import LossKind, Survey, expands_locations, json_equal
from icefloe.conversion.translate import (
    ROOT_MARKS,
    ConvertedManifest,
    IdMapping,
    Ids,
    convert_info,
    convert_log,
    convert_manifest,
    convert_node,
    convert_snapshot,
    is_kept,
    make_locations_absolute,
    without_nodes,
)
from icefloe.errors import FormatError, ObjectNotFoundError, VirtualChunkError
from icefloe.formats.format import Format
from icefloe.ids import NodeId, ObjectId, encode_base32
from icefloe.metadata_files import MetadataFiles
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import (
    ArrayNode,
    ManifestFileInfo,
    Node,
    Snapshot,
    SnapshotInfo,
    TransactionLog,
    named_objects,
)
from icefloe.model.zarr_document import join_attributes
from icefloe.session.ancestry import chunks_in_boxes, compare_snapshots, fetch_shown_log
from icefloe.session.commit_files import HISTORY_LENGTH
from icefloe.session.open_repository import RepositoryContext
from icefloe.storage.contract import Storage

Report = Callable[[str, int, int], None]
"""Called with the name of a stage, the number of finished steps, and the number of all steps."""


class Progress:
    """Counts the steps of each stage."""

    def __init__(self, report: Report | None = None) -> None:
        self._report = report

    def start(self, stage: str, total: int) -> Callable[[int], None]:
        """Start a stage. The returned function counts its steps."""
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if self._report is not None:
                self._report(stage, done, total)

        advance(0)
        return advance


_AT_ONCE = 32


class SeenIds:
    """A set of ids in sorted columns, which take few bytes per id."""

    def __init__(self) -> None:
        self._levels: list[npt.NDArray[np.void]] = []

    def add_new(self, ids: Ids) -> Ids:
        """Add ids. Returns the new ones, distinct and sorted."""
        rows = np.unique(np.ascontiguousarray(ids).view(np.dtype((np.void, ids.shape[1]))).ravel())
        for level in self._levels:
            position = np.searchsorted(level, rows)
            position[position == len(level)] = 0
            rows = rows[level[position] != rows]
        if len(rows):
            self._push(rows)
        return rows.view(np.uint8).reshape(len(rows), ids.shape[1])

    def _push(self, rows: npt.NDArray[np.void]) -> None:
        """Merge columns of similar size, so that there are few columns and each id is copied rarely."""
        while self._levels and len(self._levels[-1]) <= 2 * len(rows):
            rows = np.sort(np.concatenate([self._levels.pop(), rows]))
        self._levels.append(rows)


def native_ids(table: ChunkTable) -> Ids | None:
    """The objects of the native chunks of a table, with duplicates."""
    if table.object_id is None:
        return None
    rows = table.kind == ChunkKind.NATIVE
    return table.object_id[rows] if not rows.all() else table.object_id


class ChunkCopies:
    """Copies chunk objects from one repository to another. Objects that exist already are not copied."""

    def __init__(
        self,
        source: tuple[Storage, Format],
        target: tuple[Storage, Format],
        identities: IdMapping,
        *,
        same_root: bool,
    ) -> None:
        self._source, self._source_format = source
        self._target, self._target_format = target
        self._identities = identities
        self._same_root = same_root
        self._seen = SeenIds()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.objects = 0
        self.copied = 0
        self.copied_bytes = 0

    @property
    def shared(self) -> bool:
        """Whether both generations find chunks under the same names in the same storage."""
        return self._same_root and (
            self._source_format.chunks_folder == self._target_format.chunks_folder
            and self._identities.source_bytes == self._identities.target_bytes
        )

    def new_objects(self, table: ChunkTable) -> list[bytes]:
        """The objects of a table that are new."""
        ids = native_ids(table)
        if ids is None or not len(ids):
            return []
        found = [row.tobytes() for row in self._seen.add_new(ids)]
        self.objects += len(found)
        return found

    async def copy(self, chunk_ids: list[bytes], done: Callable[[int], None]) -> None:
        """Copy objects concurrently. Objects that an earlier run copied are skipped."""
        if self.shared or not chunk_ids:
            done(len(chunk_ids))
            return

        async def one(chunk_id: bytes) -> None:
            async with self._slots:
                await self._copy_one(chunk_id)
                done(1)

        await asyncio.gather(*(one(chunk_id) for chunk_id in chunk_ids))

    def keys(self, chunk_id: bytes) -> tuple[str, str]:
        """The keys of a chunk object in the source and in the target."""
        return (
            self._source_format.chunk_key(chunk_id),
            self._target_format.chunk_key(self._identities.chunk(chunk_id)),
        )

    async def _copy_one(self, chunk_id: bytes) -> None:
        source, target = self.keys(chunk_id)
        if await self._target.exists(target):
            return
        if self._same_root and self._source is self._target:
            await self._target.copy(source, target)
        else:
            data = await self._source.get(source)
            await self._target.put(target, data)
            self.copied_bytes += len(data)
        self.copied += 1

    async def fetch_both(self, chunk_id: bytes) -> tuple[bytes, bytes]:
        """Fetch the bytes of an object from both sides."""
        source, target = self.keys(chunk_id)
        return await self._source.get(source), await self._target.get(target)


Coordinates = npt.NDArray[np.uint32]
_MANIFESTS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Work:
    """The plan of a conversion."""

    survey: Survey
    target: RepositoryContext
    identities: IdMapping
    drops: frozenset[LossKind]
    same_root: bool


class Transfer:
    """Writes the files of the target. After an interruption, another run continues."""

    def __init__(self, work: Work, progress: Progress) -> None:
        self.work = work
        self.progress = progress
        source, target = work.survey.context, work.target
        self.chunks = ChunkCopies(
            (source.storage, source.format), (target.storage, target.format), work.identities, same_root=work.same_root
        )
        self.manifests: dict[ObjectId, ConvertedManifest | None] = {}
        self.infos: dict[ObjectId, SnapshotInfo] = {}
        """Commits of the target by id, parents first."""
        self._depths: dict[ObjectId, int] = {}
        self._history = {info.id: info for info in work.survey.history}
        self._root_mark = dict(target.format.initial_snapshot(work.survey.history[0].written_at).metadata)

    async def run(self) -> None:
        """Write all files. No ref points to them yet."""
        await self._transfer_lists()
        await self._transfer_attributes()
        await self._transfer_manifests()
        await self._transfer_snapshots()

    def take_over(self) -> None:
        """Use the files of the source, which the target can read. Nothing is written."""
        self.infos = {info.id: info for info in self.work.survey.history}

    async def _transfer_lists(self) -> None:
        """Copy the objects in commit metadata: lists of ingested sources."""
        source, target = self.work.survey.context.storage, self.work.target.storage
        named = dict.fromkeys(key for info in self.work.survey.history for key in named_objects(info.metadata))
        for key in named:
            if not await target.exists(key):
                await target.put(key, await source.get(key))

    # -- attributes and references --------------------------------------------------------------------------------

    async def _transfer_attributes(self) -> None:
        target = self.work.target
        if not target.capabilities.attributes_files:
            return
        source = self.work.survey.context
        for attributes_id in self.work.survey.attribute_files:
            new_id = self.work.identities.file(attributes_id)
            if not await target.storage.exists(target.format.attributes_key(new_id)):
                data = await source.storage.get(source.format.attributes_key(attributes_id))
                await target.metadata_files.write_attributes(new_id, source.format.decode_attributes(data))

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
        manifest = await survey.context.metadata_files.fetch_manifest(manifest_id)
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
        return ConvertedManifest(await target.metadata_files.write_manifest(converted), extents)

    def absolute(self, location: str) -> str | None:
        """The URL of a relative location. None if the container is unknown."""
        try:
            return self.work.survey.context.containers.absolute(location)
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
            ancestors = self._ancestors(info) if target.capabilities.history_in_snapshot else ()
            is_written = target.format.snapshot_key(info.id) in written
            if not is_written or not await self._has_parent(info, ancestors):
                nodes = await self._convert_nodes(snapshot)
                converted = convert_snapshot(snapshot, info, nodes, files, ancestors, depth)
                await self._write_log(snapshot, info)
                await target.metadata_files.write_snapshot(converted)
            advance(1)

    async def _has_parent(self, info: SnapshotInfo, ancestors: Sequence[SnapshotInfo]) -> bool:
        """Whether a snapshot of an earlier run has this history. History may have expired since that run."""
        found = await self.work.target.metadata_files.fetch_snapshot(info.id, anew=True)
        quoted = [each.id for each in ancestors] if self.work.target.capabilities.history_in_snapshot else []
        return found.parent_id == info.parent_id and [each.id for each in found.history] == quoted

    async def _convert_nodes(self, snapshot: Snapshot) -> dict[str, Node]:
        keeps_files = self.work.target.capabilities.attributes_files
        metadata_files = self.work.survey.context.metadata_files
        nodes: dict[str, Node] = {}
        for path, node in snapshot.nodes.items():
            if not is_kept(node, self.work.drops):
                continue
            document = None
            if node.attributes is not None and not keeps_files:
                attributes = await metadata_files.fetch_attributes(node.attributes.object_id, node.attributes.row)
                document = join_attributes(node.document, attributes)
            nodes[path] = convert_node(node, document, self.work.identities, self.manifests)
        return nodes

    def _ancestors(self, info: SnapshotInfo) -> tuple[SnapshotInfo, ...]:
        """The newest ancestors that a snapshot stores."""
        found: list[SnapshotInfo] = []
        current = info.parent_id
        while current is not None and len(found) < HISTORY_LENGTH:
            found.append(self.infos[current])
            current = found[-1].parent_id
        return tuple(found)

    async def _write_log(self, snapshot: Snapshot, info: SnapshotInfo) -> None:
        """Write the log, then the snapshot. So a snapshot that exists is complete."""
        target = self.work.target
        if not target.capabilities.transaction_logs:
            return
        if info.parent_id is None:
            if target.format.logs_initial_snapshot:
                await target.metadata_files.write_transaction_log(info.id, TransactionLog())
            return
        log = await self._source_log(snapshot)
        if log.updated_boxes and not target.capabilities.boxes_in_logs:
            boxed = await chunks_in_boxes(snapshot, [log], self.work.survey.context.metadata_files)
            log = replace(log, updated_chunks=_joined(log.updated_chunks, boxed), updated_boxes={})
        gone = frozenset(node.id for node in snapshot.nodes.values() if not is_kept(node, self.work.drops))
        log = convert_log(without_nodes(log, gone), self.work.identities)
        await target.metadata_files.write_transaction_log(info.id, log)

    async def _source_log(self, snapshot: Snapshot) -> TransactionLog:
        """The changes of a snapshot, from its log or from a comparison with its parent."""
        survey = self.work.survey
        if survey.context.capabilities.transaction_logs and survey.files[snapshot.id] == snapshot.id:
            try:
                await survey.context.metadata_files.fetch_transaction_log(snapshot.id)
                written = await survey.context.metadata_files.fetch_snapshot(snapshot.id)
                return await fetch_shown_log(survey.context, written, snapshot.parent_id)
            except ObjectNotFoundError:
                pass
        assert snapshot.parent_id is not None
        parent = await survey.fetch_snapshot(self._history[snapshot.parent_id])
        return await compare_snapshots(parent, snapshot, survey.context.metadata_files)


def _joined(known: Mapping[NodeId, Coordinates], boxed: Mapping[NodeId, Coordinates]) -> dict[NodeId, Coordinates]:
    """All changed coordinates, listed or in boxes, as one column per array."""
    joined = dict(known)
    for node_id, coords in boxed.items():
        joined[node_id] = (
            coords if node_id not in known else np.unique(np.concatenate([known[node_id], coords]), axis=0)
        )
    return joined


_SPOTS = 32
_CHECKS_AT_ONCE = 16


class Verify(enum.Enum):
    """What to compare before a conversion replaces the source."""

    MODEL = "model"
    """Every snapshot, node and reference."""
    SPOT = "spot"
    """Also the bytes of some chunk objects that were copied."""
    ALL = "all"
    """Also the bytes of every chunk object, copied or shared."""


class Verification:
    """Compares the target with the source. FormatError describes the first difference."""

    def __init__(self, transfer: Transfer, how: Verify, progress: Progress) -> None:
        self._work = transfer.work
        self._chunks = transfer.chunks
        self._absolute = transfer.absolute
        self._how = how
        self._progress = progress
        self._source = ChunkLookup(self._work.survey.context.metadata_files)
        # Without a shared cache, so that the files are read from storage.
        target = self._work.target
        self._metadata_files = MetadataFiles(target.storage, target.format)
        self._target = ChunkLookup(self._metadata_files)
        self._same: set[tuple[object, ...]] = set()
        self._objects = SeenIds()
        self._chosen: list[bytes] = []
        self._random = np.random.default_rng(0)

    async def run(self) -> None:
        """Compare what the options ask for."""
        survey = self._work.survey
        advance = self._progress.start("verifying snapshots", len(survey.history))
        async for snapshot in survey.snapshots():
            found = await self._metadata_files.fetch_snapshot(self._work.identities.file(snapshot.id))
            self._compare_commits(snapshot, found)
            await self._compare_nodes(snapshot, found)
            advance(1)
        await self._compare_objects()

    def _compare_commits(self, wanted: Snapshot, found: Snapshot) -> None:
        ids = self._work.identities
        parent = None if wanted.parent_id is None else ids.file(wanted.parent_id)
        pairs: dict[str, tuple[object, object]] = {
            "id": (ids.file(wanted.id), found.id),
            "message": (wanted.message, found.message),
            "time": (wanted.written_at, found.written_at),
            "metadata": (_unmarked(wanted), _unmarked(found)),
            "paths": (
                [path for path, node in wanted.nodes.items() if is_kept(node, self._work.drops)],
                list(found.nodes),
            ),
        }
        if found.parent_id is not None:
            # Some generations do not store the parent in this file.
            pairs["parent"] = (parent, found.parent_id)
        for what, (before, after) in pairs.items():
            if not json_equal(before, after):
                raise _differs(wanted, what, before, after)

    async def _compare_nodes(self, wanted: Snapshot, found: Snapshot) -> None:
        for path, node in wanted.nodes.items():
            if not is_kept(node, self._work.drops):
                continue
            other = found.nodes[path]
            if (type(node), self._work.identities.node(node.id)) != (type(other), other.id):
                raise _differs(wanted, f"node {path}", node.id, other.id)
            mine = await _document(node, self._work.survey.context.metadata_files)
            theirs = await _document(other, self._metadata_files)
            if mine != theirs:
                raise _differs(wanted, f"document of {path}", mine, theirs)
            if isinstance(node, ArrayNode) and isinstance(other, ArrayNode):
                await self._compare_arrays(wanted, node, other)

    async def _compare_arrays(self, snapshot: Snapshot, node: ArrayNode, other: ArrayNode) -> None:
        grids = (node.shape, node.grid, node.dimension_names), (other.shape, other.grid, other.dimension_names)
        if grids[0] != grids[1]:
            raise _differs(snapshot, f"shape of {node.path}", *grids)
        key = (node.id, node.grid, node.manifests, other.manifests)
        if key in self._same:
            return
        mine, theirs = await asyncio.gather(self._source.table(node), self._target.table(other))
        expected = self._expected(mine)
        if expected != theirs:
            raise _differs(snapshot, f"references of {node.path}", f"{len(mine)} rows", f"{len(theirs)} rows")
        self._same.add(key)
        self._choose_objects(mine)

    def _expected(self, table: ChunkTable) -> ChunkTable:
        """The references that the target must contain."""
        ids = self._work.identities
        if table.object_id is not None:
            table = replace(table, object_id=ids.chunks(table.object_id))
        if LossKind.CHECKSUMS in self._work.drops:
            table = replace(table, etag=None, etags=(), last_modified=None)
        if expands_locations(self._work.target.format):
            table = make_locations_absolute(table, self._absolute)
        return table

    def _choose_objects(self, table: ChunkTable) -> None:
        ids = native_ids(table)
        if self._how is Verify.MODEL or ids is None or not len(ids):
            return
        fresh = self._objects.add_new(ids)
        if self._how is Verify.SPOT and len(fresh) > _SPOTS:
            fresh = fresh[self._random.choice(len(fresh), _SPOTS, replace=False)]
        self._chosen += [row.tobytes() for row in fresh]

    async def _compare_objects(self) -> None:
        chosen = self._chosen
        if self._how is Verify.SPOT:
            chosen = [] if self._chunks.shared else _sample(chosen, self._random)
        if not chosen:
            return
        advance = self._progress.start("verifying chunks", len(chosen))
        slots = asyncio.Semaphore(_CHECKS_AT_ONCE)

        async def one(chunk_id: bytes) -> None:
            async with slots:
                await compare_object(self._chunks, chunk_id)
                advance(1)

        await asyncio.gather(*(one(chunk_id) for chunk_id in chosen))


async def compare_object(chunks: ChunkCopies, chunk_id: bytes) -> None:
    """Raise FormatError if an object differs between source and target."""
    mine, theirs = await chunks.fetch_both(chunk_id)
    if mine != theirs:
        raise FormatError(
            f"the chunk object {encode_base32(chunk_id)} differs: {len(mine)} bytes in the source, {len(theirs)} bytes "
            "in the target. No ref points to the target yet. Delete the target and convert again"
        )


def _sample(ids: Sequence[bytes], random: np.random.Generator) -> list[bytes]:
    if len(ids) <= _SPOTS:
        return list(ids)
    return [ids[i] for i in random.choice(len(ids), _SPOTS, replace=False)]


def _unmarked(snapshot: Snapshot) -> dict[str, object]:
    if snapshot.parent_id is not None:
        return dict(snapshot.metadata)
    return {key: value for key, value in snapshot.metadata.items() if key not in ROOT_MARKS}


async def _document(node: Node, metadata_files: MetadataFiles) -> bytes:
    if node.attributes is None:
        return node.document
    attributes = await metadata_files.fetch_attributes(node.attributes.object_id, node.attributes.row)
    return join_attributes(node.document, attributes)


def _differs(snapshot: Snapshot, what: str, before: object, after: object) -> FormatError:
    return FormatError(
        f"snapshot {snapshot.id} ({snapshot.message!r:.40}) differs after the conversion: {what} was {before!r:.120}, "
        f"is {after!r:.120}. The source did not change"
    )
