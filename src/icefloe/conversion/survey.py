"""What a repository holds, found before anything is converted: history, refs, nodes, and who uses which manifest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace

from icefloe.errors import SnapshotNotFoundError
from icefloe.ids import NodeId, ObjectId
from icefloe.ledger.names import MAIN
from icefloe.ledger.whole_history import Administration, fetch_administration, fetch_deleted_tags
from icefloe.model.config import RepositoryConfig
from icefloe.model.nodes import ArrayNode
from icefloe.model.snapshot import Snapshot, SnapshotInfo
from icefloe.session.engine import Engine
from icefloe.session.opening import fetch_stored_config

Grid = tuple[int, ...]
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Refs:
    """Where every branch and tag points."""

    branches: Mapping[str, ObjectId]
    tags: Mapping[str, ObjectId]
    deleted_tags: frozenset[str]


@dataclass(frozen=True, slots=True)
class Survey:
    """A repository as a conversion sees it."""

    engine: Engine
    standing: Refs
    """Refs as they were found."""
    refs: Refs
    """The same refs, by the ids that history tells."""
    history: tuple[SnapshotInfo, ...]
    """Every snapshot that refs reach or the repository lists, parents first; ids are those that history tells."""
    files: Mapping[ObjectId, ObjectId | None]
    """The file of each snapshot. Early repositories keep the first one under another name, or quote one that no file
    has: None."""
    config: RepositoryConfig | None
    administration: Administration | None
    manifests: Mapping[ObjectId, Mapping[NodeId, Grid]] = field(default_factory=dict)
    """Which arrays look into each manifest, and the largest grid they do it with."""
    nodes: tuple[NodeId, ...] = ()
    """In the order of their first appearance."""
    attribute_files: tuple[ObjectId, ...] = ()

    @property
    def root(self) -> ObjectId:
        """The first snapshot of the main branch: what tells one repository from another."""
        return self.history[0].id

    async def fetch_snapshot(self, info: SnapshotInfo) -> Snapshot:
        """A snapshot with the parent, message and metadata that history tells."""
        file = self.files[info.id]
        if file is None:
            return Snapshot(
                info.id, info.parent_id, info.written_at, info.message, info.metadata, {}, {},
            )  # fmt: skip
        snapshot = await self.engine.archive.fetch_snapshot(file)
        return replace(
            snapshot,
            id=info.id,
            parent_id=info.parent_id,
            written_at=info.written_at,
            message=info.message,
            metadata=info.metadata,
        )

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Every snapshot, parents first; several are fetched ahead."""
        waiting: list[asyncio.Task[Snapshot]] = []
        remaining = iter(self.history)
        try:
            while True:
                for info in remaining:
                    waiting.append(asyncio.ensure_future(self.fetch_snapshot(info)))
                    if len(waiting) >= _AT_ONCE:
                        break
                if not waiting:
                    return
                yield await waiting.pop(0)
        finally:
            for task in waiting:
                task.cancel()


async def fetch_refs(engine: Engine) -> Refs:
    """Where everything points now."""
    ledger = engine.ledger
    branches, tags = await asyncio.gather(ledger.list_branches(), ledger.list_tags())
    ordered = sorted(branches, key=lambda name: (name != MAIN, name))
    return Refs(
        {name: (await ledger.fetch_tip(name)).snapshot_id for name in ordered},
        {name: await ledger.fetch_tag(name) for name in sorted(tags)},
        await fetch_deleted_tags(ledger),
    )


async def survey(engine: Engine) -> Survey:
    """Look at every snapshot once; chunks and references are left alone."""
    refs = await fetch_refs(engine)
    history, files, named = await _walk(engine, refs)
    found = Survey(
        engine,
        refs,
        Refs(
            {name: named[tip] for name, tip in refs.branches.items()},
            {name: named[target] for name, target in refs.tags.items()},
            refs.deleted_tags,
        ),
        history,
        files,
        await fetch_stored_config(engine.storage),
        await fetch_administration(engine.ledger),
    )
    manifests: dict[ObjectId, dict[NodeId, Grid]] = {}
    nodes: dict[NodeId, None] = {}
    attributes: dict[ObjectId, None] = {}
    async for snapshot in found.snapshots():
        for node in snapshot.nodes.values():
            nodes.setdefault(node.id)
            if node.attributes is not None:
                attributes.setdefault(node.attributes.object_id)
            if isinstance(node, ArrayNode):
                for ref in node.manifests:
                    _note(manifests.setdefault(ref.manifest_id, {}), node)
    return replace(found, manifests=manifests, nodes=tuple(nodes), attribute_files=tuple(attributes))


def _note(users: dict[NodeId, Grid], node: ArrayNode) -> None:
    known = users.get(node.id)
    if known is None or len(known) != len(node.grid):
        users[node.id] = node.grid
    elif known != node.grid:
        users[node.id] = tuple(map(max, known, node.grid))


async def _walk(
    engine: Engine, refs: Refs
) -> tuple[tuple[SnapshotInfo, ...], dict[ObjectId, ObjectId | None], dict[ObjectId, ObjectId]]:
    """History, parents first; the file of each snapshot; and the id that history gives to what refs name."""
    ordered: dict[ObjectId, SnapshotInfo] = {}
    files: dict[ObjectId, ObjectId | None] = {}
    named: dict[ObjectId, ObjectId] = {}
    standing = dict.fromkeys([*refs.branches.values(), *refs.tags.values()])
    # Without a list of snapshots, one that no ref reaches cannot be told from what failed commits leave behind.
    listed = await engine.ledger.fetch_listed() or {}
    for start in dict.fromkeys([*standing, *listed]):
        if start not in standing and (start in ordered or not await _has_file(engine, start)):
            continue
        fresh: list[SnapshotInfo] = []
        first = True
        async for info in engine.ledger.ancestry(start):
            if first:
                named[start], files[info.id] = info.id, start
                first = False
            if info.id in ordered:
                break
            fresh.append(replace(info, manifests=()))
        for info in reversed(fresh):
            ordered[info.id] = info
            files.setdefault(info.id, info.id)
    for info in ordered.values():
        if info.parent_id is None and files[info.id] == info.id and not await _has_file(engine, info.id):
            files[info.id] = None
    return tuple(ordered.values()), files, named


async def _has_file(engine: Engine, snapshot_id: ObjectId) -> bool:
    try:
        await engine.archive.fetch_snapshot(snapshot_id)
    except SnapshotNotFoundError:
        return False
    return True
