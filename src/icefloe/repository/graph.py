"""Gathers the commits and refs of a drawing of history, newest first and never more than asked for."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator

from icefloe.display.ancestry_graph import AncestryGraph
from icefloe.display.graph import Commit, Ref
from icefloe.errors import InvalidInputError
from icefloe.ids import ObjectId
from icefloe.model.snapshot import SnapshotInfo
from icefloe.session.engine import Engine
from icefloe.session.history import RefChoice, resolve

_REFS_AT_ONCE = 64


async def fetch_graph(engine: Engine, choice: RefChoice, *, plain: bool, limit: int | None) -> AncestryGraph:
    """The graph of everything that branches and tags reach, or of the history of one choice."""
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit={limit}: a graph shows at least one commit; None shows all")
    refs = await fetch_refs(engine)
    chosen = choice.branch or choice.tag or choice.snapshot_id
    # A tag often names the tip of a branch: each snapshot is walked from once.
    starts = [await resolve(engine, choice)] if chosen else list(dict.fromkeys(ref.snapshot_id for ref in refs))
    infos = await newest_commits(engine, starts, limit)
    shown = {info.id for info in infos}
    commits = [Commit(info.id, info.parent_id, info.written_at, info.message) for info in infos]
    return AncestryGraph(commits, [ref for ref in refs if ref.snapshot_id in shown], plain=plain)


async def fetch_refs(engine: Engine) -> list[Ref]:
    """All branches (main first), then all tags, and where they point."""
    branches, tags = await asyncio.gather(engine.ledger.list_branches(), engine.ledger.list_tags())
    slots = asyncio.Semaphore(_REFS_AT_ONCE)

    async def branch(name: str) -> Ref:
        async with slots:
            return Ref(name, "branch", (await engine.ledger.fetch_tip(name)).snapshot_id)

    async def tag(name: str) -> Ref:
        async with slots:
            return Ref(name, "tag", await engine.ledger.fetch_tag(name))

    ordered = sorted(branches, key=lambda name: (name != "main", name))
    return await asyncio.gather(*(branch(name) for name in ordered), *(tag(name) for name in sorted(tags)))


async def newest_commits(engine: Engine, starts: list[ObjectId], limit: int | None) -> list[SnapshotInfo]:
    """The newest commits of several histories, each once; a history is left where another one was there before."""
    walks = [engine.ledger.ancestry(start) for start in starts]
    heads: list[tuple[float, int, SnapshotInfo]] = []
    await asyncio.gather(*(_advance(heads, index, walk) for index, walk in enumerate(walks)))
    found: dict[ObjectId, SnapshotInfo] = {}
    while heads and (limit is None or len(found) < limit):
        _, index, info = heapq.heappop(heads)
        if info.id not in found:
            found[info.id] = info
            await _advance(heads, index, walks[index])
    for walk in walks:
        close = getattr(walk, "aclose", None)
        if close is not None:
            await close()
    return list(found.values())


async def _advance(heads: list[tuple[float, int, SnapshotInfo]], index: int, walk: AsyncIterator[SnapshotInfo]) -> None:
    info = await anext(walk, None)
    if info is not None:
        heapq.heappush(heads, (-info.written_at.timestamp(), index, info))
