"""A snapshot: every node of the hierarchy at one commit, and how it came about."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from icefloe.display.amounts import format_bytes, format_count, format_time
from icefloe.display.card import Card, Described, Fact, Styled
from icefloe.ids import NodeId, ObjectId
from icefloe.model.chunk_table import ChunkTable
from icefloe.model.chunk_tables import ChunkTables
from icefloe.model.nodes import Node

INGESTED_KEY = "icefloe.ingested"
"""Metadata that a commit takes over from the one below it: a list of texts that tells which sources were ingested.

History may be shortened, squashed or converted: the list of what a snapshot holds is in the snapshot itself.
"""

REWRITTEN_PARENT_KEY = "icefloe_rewritten_parent"
"""Metadata of a compaction where there are no logs: the snapshot whose chunks it holds, at other places.

It says nothing once expiry gave the commit another parent. No other commit has it, whatever metadata it is given.
"""


def inherit_metadata(parent: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata of a commit on top of another: its own, and what it takes over.

    A commit adds to the list by giving a list, or changes it by giving a mapping of texts to `add` and to `drop`. Later
    texts count more, so what is added stands last.
    """
    if REWRITTEN_PARENT_KEY in own:
        own = {key: value for key, value in own.items() if key != REWRITTEN_PARENT_KEY}
    if INGESTED_KEY not in parent and INGESTED_KEY not in own:
        return own
    change = own.get(INGESTED_KEY)
    added, dropped = change, ()
    if isinstance(change, Mapping):
        added, dropped = change.get("add"), change.get("drop") or ()
    more = _texts(added)
    kept = [text for text in ingested_texts(parent) if text not in dropped and text not in more]
    return {**own, INGESTED_KEY: [*kept, *more]}


def ingested_texts(metadata: Mapping[str, Any]) -> list[str]:
    """The list of a commit; empty where there is none."""
    return _texts(metadata.get(INGESTED_KEY))


def _texts(value: Any) -> list[str]:
    # Metadata may have been written by anybody.
    return [text for text in value if isinstance(text, str)] if isinstance(value, list | tuple) else []


@dataclass(frozen=True, slots=True)
class ManifestFileInfo:
    """A manifest file named by a snapshot."""

    id: ObjectId
    size_bytes: int
    num_chunk_refs: int


@dataclass(frozen=True, slots=True)
class SnapshotInfo(Described):
    """A commit as history shows it."""

    id: ObjectId
    parent_id: ObjectId | None
    written_at: dt.datetime
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    manifests: tuple[ManifestFileInfo, ...] = ()

    def _card(self) -> Card:
        size = sum(manifest.size_bytes for manifest in self.manifests)
        refs = sum(manifest.num_chunk_refs for manifest in self.manifests)
        metadata: list[Fact] = [(key, str(value)) for key, value in sorted(self.metadata.items())]
        told = f"{format_count(len(self.manifests), 'manifest')}, {format_bytes(size)}, {format_count(refs, 'chunk')}"
        manifests: list[Fact] = [("holds", told)] if self.manifests else []
        return Card("Snapshot", Styled(self.id, "code"), [
            ("message", self.message),
            ("written", format_time(self.written_at)),
            ("parent", Styled(self.parent_id, "code") if self.parent_id else "none: the first one"),
            *metadata, *manifests,
        ])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a snapshot file says. `nodes` is ordered by path (raw UTF-8 bytes)."""

    id: ObjectId
    parent_id: ObjectId | None
    written_at: dt.datetime
    message: str
    metadata: Mapping[str, Any]
    nodes: Mapping[str, Node]
    manifests: Mapping[ObjectId, ManifestFileInfo]
    attribute_files: tuple[ObjectId, ...] = ()
    history: tuple[SnapshotInfo, ...] = ()
    """Newest ancestors, newest first, where the generation keeps them in the file; may be cut short."""
    total_ancestors: int | None = None
    started_at: dt.datetime | None = None

    @property
    def info(self) -> SnapshotInfo:
        return SnapshotInfo(
            self.id, self.parent_id, self.written_at, self.message, self.metadata, tuple(self.manifests.values())
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The chunk references of one or several arrays, as one file holds them."""

    id: ObjectId
    tables: Mapping[NodeId, ChunkTable]

    def __len__(self) -> int:
        if isinstance(self.tables, ChunkTables):
            return len(self.tables.rows)
        return sum(len(table) for table in self.tables.values())

    @property
    def nbytes(self) -> int:
        """Memory held, for caches."""
        if isinstance(self.tables, ChunkTables):
            return self.tables.nbytes
        return sum(table.nbytes for table in self.tables.values())
