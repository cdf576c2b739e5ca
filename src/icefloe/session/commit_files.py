"""The files of a commit: manifests, attributes, snapshot and transaction log of a change set.

No ref points at them yet. `commit` moves the branch. A writer that loses a race uses the manifests and attributes files
of its first try again (`EarlierFiles`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from icefloe.blocking import current_time, gather_each, start_task, wait_for_all
from icefloe.ids import NodeId, ObjectId, new_object_id
from icefloe.manifests.cells import ArrayEdits, BulkEdits, contains, in_box
from icefloe.manifests.list_plan import plan_lists
from icefloe.manifests.manifest_plan import (
    BuiltManifest,
    ManifestPlan,
    PlannedManifest,
    build_output,
    edited_rows,
    link_manifests,
    output_sources,
    plan_manifests,
)
from icefloe.model.chunk_table import NO_TABLES
from icefloe.model.manifest_lists import ListedFiles, ListedRefs, ManifestList
from icefloe.model.snapshot import (
    REWRITTEN_PARENT_KEY,
    ArrayNode,
    AttributesRef,
    Manifest,
    ManifestFileInfo,
    ManifestRef,
    Node,
    Snapshot,
    SnapshotInfo,
    TransactionLog,
    inherit_metadata,
    later_than,
    manifest_ids,
)
from icefloe.model.zarr_document import split_attributes
from icefloe.session.ancestry import merge_logs
from icefloe.session.change_set import (
    ChangeSet,
    GatheredEdits,
    box_chunks,
    gather_edits,
    summarise,
    transaction_log,
)
from icefloe.session.races import WrittenCommit
from icefloe.session.rebase import ConflictSolver
from icefloe.session.session_state import SessionState


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """What a caller asks for when committing."""

    message: str
    metadata: Mapping[str, Any]
    rebase_with: ConflictSolver | None = None
    rebase_tries: int = 1000
    records_rebases: bool = False
    """Whether the number of rebases goes to the metadata of the commit."""
    only_moves_chunks: bool = False
    """Whether the new references lead to the same bytes as the old ones. Without logs, the metadata shows it."""

    def after_rebases(self, count: int) -> CommitRequest:
        """The request with the number of rebases in its metadata, under the key of the official package."""
        if count == 0 or not self.records_rebases:
            return self
        own = {**self.metadata.get("__icechunk", {}), "rebase_attempts": count}
        return replace(self, metadata={**self.metadata, "__icechunk": own})


WrittenOutput = list[tuple[BuiltManifest, ManifestFileInfo]]


class EarlierFiles:
    """The manifests, manifest lists and attributes files that earlier tries of a commit wrote.

    A try that lost a race to another writer uses them again where that writer did not change what they were made of.
    """

    def __init__(self) -> None:
        self._manifests: dict[object, tuple[list[Any], WrittenOutput]] = {}
        self._attributes: dict[tuple[bytes, ...], ObjectId] = {}
        self.lists: dict[tuple[ObjectId, ...], ManifestList] = {}
        """Manifest lists by their manifests."""
        self._unsorted: list[tuple[PlannedManifest, Mapping[NodeId, ArrayEdits], WrittenOutput]] = []
        self.reused: set[str] = set()
        """The keys of the files that the present try uses again."""
        self.written = WrittenCommit(TransactionLog(), ())
        """What the present try wrote."""

    def forget(self) -> None:
        """Use none of the files again, because garbage was collected meanwhile."""
        for each in (self._manifests, self._attributes, self.lists, self._unsorted, self.reused):
            each.clear()

    def add_manifests(
        self, output: PlannedManifest, edits: Mapping[NodeId, ArrayEdits], written: WrittenOutput
    ) -> None:
        """Remember what was written for an output."""
        self._unsorted.append((output, edits, written))

    def find_manifests(self, output: PlannedManifest, edits: Mapping[NodeId, ArrayEdits]) -> WrittenOutput | None:
        """What was written for an output with the same sources and the same edits. None if there is nothing."""
        while self._unsorted:
            # Most commits win their first race, so outputs are compared when the first race is lost.
            earlier, its_edits, written = self._unsorted.pop()
            self._manifests[output_sources(earlier)] = edited_rows(earlier, its_edits), written
        if not self._manifests:
            return None
        rows, found = self._manifests.get(output_sources(output), ([], None))
        return found if found is not None and rows == edited_rows(output, edits) else None

    def add_attributes(self, rows: Sequence[bytes], attributes_id: ObjectId) -> None:
        """Remember an attributes file."""
        self._attributes[tuple(rows)] = attributes_id

    def find_attributes(self, rows: Sequence[bytes]) -> ObjectId | None:
        """The attributes file with these rows, if one was written."""
        return self._attributes.get(tuple(rows)) if self._attributes else None


_IN_FLIGHT = 4
"""Outputs that are built and written at the same time: memory holds their tables."""


@dataclass(frozen=True, slots=True)
class WrittenManifests:
    """The manifests of every array whose references changed, and the files behind them."""

    refs: Mapping[NodeId, Sequence[ManifestRef]] = field(default_factory=dict)
    files: Mapping[ObjectId, ManifestFileInfo] = field(default_factory=dict)


def collect_edits(changes: ChangeSet, gathered: GatheredEdits, arrays: Iterable[ArrayNode]) -> BulkEdits:
    """The non-empty chunk edits of a change set. Arrays without manifests share common columns."""
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
        if change.has_changes():
            edits[node_id] = change
    return BulkEdits(edits, fresh)


Start = Callable[[Coroutine[Any, Any, object]], object]
"""Runs a write in the background."""


@contextlib.asynccontextmanager
async def background_writes() -> AsyncIterator[Start]:
    """Run writes in the background of a block. All of them have ended when the block is left, also after an error."""
    tasks: list[asyncio.Task[object]] = []
    try:
        yield lambda write: tasks.append(start_task(write))
    except BaseException:
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    await wait_for_all(tasks)


async def write_manifests(
    state: SessionState,
    gathered: GatheredEdits | None = None,
    nodes: Iterable[Node] | None = None,
    start: Start | None = None,
    earlier: EarlierFiles | None = None,
) -> WrittenManifests:
    """Write what the edits of a change set ask for; untouched manifests stay linked.

    Pass the edits and the nodes of the hierarchy if they are listed already. See `apply_plan` for `start`.
    """
    gathered = gathered or gather_edits(state.changes.edits)
    if not state.changes.parts and not gathered.alone and not len(gathered.together):
        return WrittenManifests()
    arrays = [node for node in (state.tree.nodes() if nodes is None else nodes) if isinstance(node, ArrayNode)]
    edits = collect_edits(state.changes, gathered, arrays)
    if not edits:
        return WrittenManifests()
    config, files = state.context.manifest_config, state.context.metadata_files
    plan = await files.with_lists(lambda: plan_manifests(arrays, state.base.manifests, edits, config))
    return await apply_plan(state, plan, edits, start, earlier)


async def apply_plan(
    state: SessionState,
    plan: ManifestPlan,
    edits: Mapping[NodeId, ArrayEdits],
    start: Start | None = None,
    earlier: EarlierFiles | None = None,
) -> WrittenManifests:
    """Build and write the outputs of a plan, a few at a time.

    With `start`, a few manifests are written in the background. Many are not, because memory would hold all of them.
    """
    limit = asyncio.Semaphore(_IN_FLIGHT)
    in_background = start if len(plan.outputs) <= _IN_FLIGHT else None

    async def write_one(output: PlannedManifest) -> WrittenOutput:
        found = None if earlier is None else earlier.find_manifests(output, edits)
        if found is not None and earlier is not None:
            earlier.reused.update(state.context.format.manifest_key(info.id) for _, info in found)
            return found
        async with limit:
            return await _write_output(state, output, edits, in_background)

    made = await gather_each(write_one, plan.outputs)
    if earlier is not None:
        for output, pairs in zip(plan.outputs, made, strict=True):
            earlier.add_manifests(output, edits, pairs)
    written = [pair for pairs in made for pair in pairs]
    files = {info.id: info for _, info in written} | {part.manifest_id: part.info for part in plan.linked_parts}
    linked = await state.context.metadata_files.with_lists(
        lambda: link_manifests(plan, (built.refs for built, _ in written))
    )
    return WrittenManifests(linked, files)


async def _write_output(
    state: SessionState, output: PlannedManifest, edits: Mapping[NodeId, ArrayEdits], start: Start | None
) -> WrittenOutput:
    fetched = await gather_each(state.lookup.fetch, output.fetch)
    sources: dict[ObjectId, Manifest] = dict(zip(output.fetch, fetched, strict=True))
    new_id = partial(new_object_id, state.context.capabilities.object_id_bytes)
    written: WrittenOutput = []
    for built in build_output(output, sources.__getitem__, edits, new_id):
        # The references are small: keep them, not the tables, while the next manifest is built.
        info = await state.context.metadata_files.write_manifest(built.manifest, start)
        written.append((BuiltManifest(Manifest(built.manifest.id, {}), built.refs), info))
        start = None  # an output of several manifests is a large one
    return written


HISTORY_LENGTH = 32
"""Ancestors that a snapshot carries with it, where its generation keeps any: a bound, so commits do not grow."""


def with_parent(snapshot: Snapshot, parent: Snapshot) -> Snapshot:
    """The snapshot with quotes of its parent and of the ancestors that the parent quotes."""
    total = None if parent.total_ancestors is None else parent.total_ancestors + 1
    return replace(snapshot, parent_id=parent.id, history=_quotes(parent), total_ancestors=total)


def _quotes(parent: Snapshot) -> tuple[SnapshotInfo, ...]:
    return (replace(parent.info, manifests=()), *parent.history)[:HISTORY_LENGTH]


async def write_snapshot(
    state: SessionState,
    request: CommitRequest,
    *,
    onto: Snapshot | None = None,
    earlier: TransactionLog | None = None,
    manifests: WrittenManifests | None = None,
    files: EarlierFiles | None = None,
) -> Snapshot:
    """Write manifests, attributes, snapshot and log of the changes; no ref points at them yet.

    Pass `manifests` if they are written already, and `files` if earlier tries may have written some of the files. All
    files are written at the same time: nobody reads them before a ref points at the snapshot.
    """
    context = state.context
    summary = summarise(state.base, state.changes)
    log = transaction_log(summary)
    if log.updated_boxes and context.capabilities.transaction_logs and not context.capabilities.boxes_in_logs:
        log = await _list_boxes(state, log)
    if context.capabilities.boxes_in_logs:
        log = box_chunks(log, summary.edits)
    log = await _list_cleared(state, log)
    if earlier is not None:
        log = merge_logs(earlier, log)
    if log.moves:
        await context.ledger.check_feature("move_node")
    nodes = list(state.tree.nodes())
    async with background_writes() as start:
        if manifests is None:
            manifests = await write_manifests(state, summary.edits, nodes, start, files)
        if files is not None:
            files.written = WrittenCommit(log, tuple(manifests.files))
        attributes = _write_attributes(state, summary.new.keys() | summary.updated.keys(), start, files)
        linked = _link_nodes(nodes, manifests, attributes)
        built = manifests
        snapshot = await context.metadata_files.with_lists(lambda: _build_snapshot(state, request, linked, built, onto))
        if context.capabilities.manifest_lists:
            snapshot = await _write_lists(state, snapshot, start, files)
        start(context.metadata_files.write_snapshot(snapshot))
        if context.format.capabilities.transaction_logs:
            start(context.metadata_files.write_transaction_log(snapshot.id, log))
    return snapshot


async def _list_boxes(state: SessionState, log: TransactionLog) -> TransactionLog:
    """The log with every coordinate that workers wrote, for readers that know nothing of boxes."""
    chunks = dict(log.updated_chunks)
    for node_id, parts in state.changes.parts.items():
        manifests = await asyncio.gather(*(state.lookup.fetch(part.manifest_id) for part in parts))
        written = [manifest.tables[node_id].coords for manifest in manifests]
        chunks[node_id] = np.unique(
            np.concatenate([*written, *([chunks[node_id]] if node_id in chunks else [])]), axis=0
        )
    for node_id, cleared in state.changes.cleared.items():
        written = [each.coords() for each in cleared]
        chunks[node_id] = np.unique(
            np.concatenate([*written, *([chunks[node_id]] if node_id in chunks else [])]), axis=0
        )
    return replace(log, updated_chunks=chunks, updated_boxes={})


async def _list_cleared(state: SessionState, log: TransactionLog) -> TransactionLog:
    """The log with the chunks that an array lost when it was made smaller and then larger again."""
    resized = {node_id: edits for node_id, edits in state.changes.edits.items() if edits.base_box is not None}
    if not resized:
        return log
    chunks = dict(log.updated_chunks)
    for node_id, edits in resized.items():
        assert edits.base_box is not None
        path = state.changes.origin.get(node_id)
        base = state.base.nodes.get(path) if path is not None else None
        now = next((n for n in state.changes.added.values() if n.id == node_id), base)
        if not isinstance(base, ArrayNode) or not isinstance(now, ArrayNode):
            continue
        grid = tuple((0, n) for n in now.grid)
        if contains(edits.base_box, grid):
            continue
        stored = (await state.lookup.table(base, grid)).coords
        cleared = stored[~in_box(stored, edits.base_box)]
        if len(cleared):
            known = chunks.get(node_id)
            chunks[node_id] = cleared if known is None else np.unique(np.concatenate([known, cleared]), axis=0)
    return replace(log, updated_chunks=chunks)


def _write_attributes(
    state: SessionState, changed: Container[NodeId], start: Start, earlier: EarlierFiles | None
) -> Mapping[NodeId, tuple[bytes, AttributesRef]]:
    """Begin to write large attributes of changed nodes to one file; returns document and reference of each.

    A node that was only moved keeps its document: the log records no change of it.
    """
    if not state.context.format.capabilities.attributes_files:
        return {}
    threshold = state.context.attributes_bytes
    rows: list[bytes] = []
    stripped: dict[NodeId, bytes] = {}
    for node in state.changes.added.values():
        if node.id not in changed or node.attributes is not None or len(node.document) <= threshold:
            continue
        parts = split_attributes(node.document)
        if parts is not None and len(parts[1]) > threshold:
            stripped[node.id] = parts[0]
            rows.append(parts[1])
    if not rows:
        return {}
    attributes_id = None if earlier is None else earlier.find_attributes(rows)
    if attributes_id is not None and earlier is not None:
        earlier.reused.add(state.context.format.attributes_key(attributes_id))
    else:
        attributes_id = new_object_id(state.context.format.capabilities.object_id_bytes)
        start(state.context.metadata_files.write_attributes(attributes_id, rows))
        if earlier is not None:
            earlier.add_attributes(rows, attributes_id)
    return {
        node_id: (document, AttributesRef(attributes_id, row))
        for row, (node_id, document) in enumerate(stripped.items())
    }


async def _write_lists(state: SessionState, snapshot: Snapshot, start: Start, earlier: EarlierFiles | None) -> Snapshot:
    """Begin to write the manifest lists that the base does not have; returns the snapshot with these lists."""
    files = state.context.metadata_files
    written = {} if earlier is None else earlier.lists
    listed = await files.with_lists(lambda: plan_lists(snapshot, state.base, written))
    for made in listed.new:
        start(files.write_list(made))
    if earlier is not None:
        earlier.reused.update(files.format.manifest_list_key(each.id) for each in listed.reused)
        earlier.lists.update((tuple(made.columns.ids), made) for made in listed.new)
    return listed.snapshot


def _link_nodes(
    nodes: Iterable[Node], manifests: WrittenManifests, attributes: Mapping[NodeId, tuple[bytes, AttributesRef]]
) -> dict[str, Node]:
    """The nodes of the new snapshot, which know the files that were written for them."""
    linked: dict[str, Node] = {}
    for node in nodes:
        if attributes and node.id in attributes:
            document, place = attributes[node.id]
            node = replace(node, document=document, attributes=place)
        refs = manifests.refs.get(node.id)
        if refs is not None and isinstance(node, ArrayNode):
            node = node.with_manifests(refs)
        linked[node.path] = node
    return linked


def _changed_paths(state: SessionState, nodes: Mapping[str, Node]) -> set[str]:
    """The paths of the nodes that the changes add, remove or write."""
    changes = state.changes
    written = {*changes.edits, *changes.parts, *changes.cleared}
    paths = {path for path, node in nodes.items() if node.id in written} if written else set()
    return paths | set(changes.added) | set(changes.removed)


def _build_snapshot(
    state: SessionState,
    request: CommitRequest,
    nodes: Mapping[str, Node],
    manifests: WrittenManifests,
    onto: Snapshot | None,
) -> Snapshot:
    base, capabilities = state.base, state.context.format.capabilities
    parent = onto or base
    links = {id(node.manifests): node.manifests for node in nodes.values() if isinstance(node, ArrayNode)}
    total = None if parent.total_ancestors is None else parent.total_ancestors + 1
    now = current_time()
    metadata = inherit_metadata(base.metadata, request.metadata, lambda: _changed_paths(state, nodes))
    if request.only_moves_chunks:
        metadata = {**metadata, REWRITTEN_PARENT_KEY: parent.id}
    return Snapshot(
        id=new_object_id(capabilities.object_id_bytes),
        parent_id=parent.id,
        written_at=later_than(base.written_at, now),
        message=request.message,
        metadata=metadata,
        nodes=nodes,
        manifests=_manifest_files(base.manifests, manifests.files, links.values()),
        attribute_files=tuple(
            dict.fromkeys(n.attributes.object_id for n in nodes.values() if n.attributes is not None)
        ),
        history=_quotes(parent) if capabilities.history_in_snapshot else (),
        total_ancestors=total,
        started_at=now,
    )


def _manifest_files(
    base: Mapping[ObjectId, ManifestFileInfo],
    written: Mapping[ObjectId, ManifestFileInfo],
    links: Iterable[Sequence[ManifestRef]],
) -> Mapping[ObjectId, ManifestFileInfo]:
    """The files of the manifests that arrays link. Those in lists that did not change stay there."""
    lists: dict[int, ManifestList] = {}
    used: dict[ObjectId, None] = {}
    for refs in links:
        if not isinstance(refs, ListedRefs):
            used |= dict.fromkeys(manifest_ids(refs))
            continue
        for each in refs.lists:
            if isinstance(each, ManifestList):
                lists[id(each)] = each
            else:
                used |= dict.fromkeys(each.columns.ids)
    files = {}
    for manifest_id in used:
        info = written.get(manifest_id) or base.get(manifest_id)
        if info is not None:
            files[manifest_id] = info
    return ListedFiles(files, lists.values()) if lists else files
