"""Whether two repositories hold the same, snapshot by snapshot, told from what their own readers read."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from icefloe.archive.files import Archive
from icefloe.conversion.chunk_objects import ChunkCopies, SeenIds, native_ids
from icefloe.conversion.commit_words import same_words
from icefloe.conversion.losses import LossKind, expands_locations
from icefloe.conversion.progress import Progress
from icefloe.conversion.rewriting import ROOT_MARKS, is_kept, spell_out
from icefloe.conversion.transfer import Transfer
from icefloe.errors import FormatError
from icefloe.ids import encode_base32
from icefloe.model.chunk_table import ChunkTable
from icefloe.model.nodes import ArrayNode, Node
from icefloe.model.snapshot import Snapshot
from icefloe.model.zarr_document import join_attributes
from icefloe.session.lookup import ChunkLookup

_SPOTS = 32
_AT_ONCE = 16


class Verify(enum.Enum):
    """How closely a conversion is looked at before it takes the place of the source."""

    MODEL = "model"
    """Every snapshot, node and reference."""
    SPOT = "spot"
    """Also the bytes of some chunk objects that were copied."""
    ALL = "all"
    """Also the bytes of every chunk object, copied or shared."""


class Verification:
    """Compares what was written with what it was made from; FormatError names the first difference."""

    def __init__(self, transfer: Transfer, how: Verify, progress: Progress) -> None:
        self._work = transfer.work
        self._chunks = transfer.chunks
        self._absolute = transfer.absolute
        self._how = how
        self._progress = progress
        self._source = ChunkLookup(self._work.survey.engine.archive)
        # A reader of its own: what was written is read back, not remembered.
        target = self._work.target
        self._archive = Archive(target.storage, target.format)
        self._target = ChunkLookup(self._archive)
        self._same: set[tuple[object, ...]] = set()
        self._objects = SeenIds()
        self._chosen: list[bytes] = []
        self._random = np.random.default_rng(0)

    async def run(self) -> None:
        """Compare everything that was asked for."""
        survey = self._work.survey
        advance = self._progress.start("verifying snapshots", len(survey.history))
        async for snapshot in survey.snapshots():
            found = await self._archive.fetch_snapshot(self._work.identities.file(snapshot.id))
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
                [path for path, node in wanted.nodes.items() if is_kept(node, self._work.drops)], list(found.nodes),
            ),
        }  # fmt: skip
        if found.parent_id is not None:
            # Where parents are kept elsewhere the file names none.
            pairs["parent"] = (parent, found.parent_id)
        for what, (before, after) in pairs.items():
            if not same_words(before, after):
                raise _differs(wanted, what, before, after)

    async def _compare_nodes(self, wanted: Snapshot, found: Snapshot) -> None:
        for path, node in wanted.nodes.items():
            if not is_kept(node, self._work.drops):
                continue
            other = found.nodes[path]
            if (type(node), self._work.identities.node(node.id)) != (type(other), other.id):
                raise _differs(wanted, f"node {path}", node.id, other.id)
            mine = await _document(node, self._work.survey.engine.archive)
            theirs = await _document(other, self._archive)
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
        """The references that the target has to hold."""
        ids = self._work.identities
        if table.object_id is not None:
            table = replace(table, object_id=ids.chunks(table.object_id))
        if LossKind.CHECKSUMS in self._work.drops:
            table = replace(table, etag=None, etags=(), last_modified=None)
        if expands_locations(self._work.target.format):
            table = spell_out(table, self._absolute)
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
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(chunk_id: bytes) -> None:
            async with slots:
                await compare_object(self._chunks, chunk_id)
                advance(1)

        await asyncio.gather(*(one(chunk_id) for chunk_id in chosen))


async def compare_object(chunks: ChunkCopies, chunk_id: bytes) -> None:
    """FormatError when an object does not hold the same bytes on both sides."""
    mine, theirs = await chunks.fetch_both(chunk_id)
    if mine != theirs:
        raise FormatError(
            f"the chunk object {encode_base32(chunk_id)} has {len(mine)} bytes in the source, and {len(theirs)} other "
            "ones in the target; nothing points at the target yet: delete it and convert again"
        )


def _sample(ids: Sequence[bytes], random: np.random.Generator) -> list[bytes]:
    if len(ids) <= _SPOTS:
        return list(ids)
    return [ids[i] for i in random.choice(len(ids), _SPOTS, replace=False)]


def _unmarked(snapshot: Snapshot) -> dict[str, object]:
    if snapshot.parent_id is not None:
        return dict(snapshot.metadata)
    return {key: value for key, value in snapshot.metadata.items() if key not in ROOT_MARKS}


async def _document(node: Node, archive: Archive) -> bytes:
    if node.attributes is None:
        return node.document
    attributes = await archive.fetch_attributes(node.attributes.object_id, node.attributes.row)
    return join_attributes(node.document, attributes)


def _differs(snapshot: Snapshot, what: str, before: object, after: object) -> FormatError:
    return FormatError(
        f"snapshot {snapshot.id} ({snapshot.message!r:.40}) came out with another {what}: {before!r:.120} became "
        f"{after!r:.120}; the source is as it was"
    )
