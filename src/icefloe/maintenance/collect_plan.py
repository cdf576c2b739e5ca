"""Which objects are garbage: those that nothing names and that are older than the cut-off by the store's clock."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from icefloe.display.amounts import format_bytes, format_count
from icefloe.ids import ObjectId
from icefloe.maintenance.listing import Ids, Listed, id_keys, is_among, text_ids
from icefloe.maintenance.marking import Marked
from icefloe.maintenance.side_objects import unnamed
from icefloe.storage.contract import ObjectInfo

KINDS = ("snapshots", "transaction_logs", "manifests", "attributes", "chunks")
"""In the order in which they are deleted: what names others goes before what it names."""


@dataclass(frozen=True, slots=True)
class GCSummary:
    """What a collection deleted, or would delete."""

    bytes_deleted: int = 0
    chunks_deleted: int = 0
    manifests_deleted: int = 0
    snapshots_deleted: int = 0
    attributes_deleted: int = 0
    transaction_logs_deleted: int = 0
    lists_deleted: int = 0
    """Lists of ingested sources, which are objects beside the repository's own."""
    cutoff: dt.datetime | None = field(default=None, compare=False)
    """Objects were judged that the store last modified before this time, by its own clock."""
    objects_in_use: int = field(default=0, compare=False)
    """Objects that branches and tags lead to; a Spark job does not count chunk objects among them."""
    objects_too_young: int = field(default=0, compare=False)
    """Objects that nothing names, but that were modified since the cut-off."""

    def judged(self) -> str:
        """What the collection looked at, for people."""
        before = "any age" if self.cutoff is None else f"{self.cutoff.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
        return f"judged by {before}: {self.objects_in_use:,} in use, {self.objects_too_young:,} too young"

    def __str__(self) -> str:
        counts = [
            (self.snapshots_deleted, "snapshot"), (self.transaction_logs_deleted, "transaction log"),
            (self.manifests_deleted, "manifest"), (self.attributes_deleted, "attributes file"),
            (self.chunks_deleted, "chunk object"), (self.lists_deleted, "list of sources"),
        ]  # fmt: skip
        told = ", ".join(format_count(count, name) for count, name in counts if count)
        return f"{told}; {format_bytes(self.bytes_deleted)}" if told else "nothing"


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The objects to delete, per kind, and what is left alone."""

    cutoff: dt.datetime
    garbage: Mapping[str, Listed]
    live: Mapping[str, int]
    young: Mapping[str, int]
    """Objects that nothing names, but that are too young to be judged."""
    beside: tuple[ObjectInfo, ...] = ()
    """Objects beside the repository's own that no commit names, see `side_objects`."""

    def summary(self) -> GCSummary:
        """What the plan comes to."""
        return GCSummary(
            bytes_deleted=sum(int(listed.size.sum()) for listed in self.garbage.values())
            + sum(item.size_bytes for item in self.beside),
            lists_deleted=len(self.beside),
            cutoff=self.cutoff,
            objects_in_use=sum(self.live.values()),
            objects_too_young=sum(self.young.values()),
            **{f"{kind}_deleted": len(self.garbage[kind]) for kind in KINDS},
        )

    def without(self, marked: Marked) -> CollectionPlan:
        """The plan without what is in use by now."""
        garbage = {
            kind: listed.take(~is_among(listed.ids, _live_keys(kind, marked, listed.ids.shape[1])))
            for kind, listed in self.garbage.items()
        }
        beside = tuple(item for item in self.beside if item.key not in marked.beside)
        return replace(self, garbage=garbage, beside=beside)

    def is_empty(self) -> bool:
        return not self.beside and not any(len(listed) for listed in self.garbage.values())

    def __str__(self) -> str:
        lines = [f"to delete, not modified since {self.cutoff:%Y-%m-%d %H:%M:%S}: {self.summary()}"]
        for kind in KINDS:
            listed = self.garbage[kind]
            lines.append(
                f"  {kind.replace('_', ' '):17}{len(listed):>10,} to delete {format_bytes(int(listed.size.sum())):>10}"
                f" {self.live.get(kind, 0):>10,} in use {self.young.get(kind, 0):>10,} too young"
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class AgeLimits:
    """Which objects may be judged by their age, in microseconds since 1970."""

    before: int
    not_before: int | None = None


def plan_collection(
    listings: Mapping[str, Listed],
    marked: Marked,
    ages: AgeLimits,
    cutoff: dt.datetime,
    beside: Sequence[ObjectInfo] = (),
) -> CollectionPlan:
    """Everything listed that nothing names and that is old enough."""
    garbage, live, young = {}, {}, {}
    for kind in KINDS:
        listed = listings[kind]
        named = is_among(listed.ids, _live_keys(kind, marked, listed.ids.shape[1]))
        old = listed.modified < ages.before
        if ages.not_before is not None:
            old &= listed.modified >= ages.not_before
        garbage[kind] = listed.take(~named & old)
        live[kind] = int(np.count_nonzero(named))
        young[kind] = int(np.count_nonzero(~named & (listed.modified >= ages.before)))
    left = unnamed(beside, marked.beside, ages.before, ages.not_before)
    return CollectionPlan(cutoff, garbage, live, young, left)


def _live_keys(kind: str, marked: Marked, width: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    if kind == "chunks":
        return marked.chunks
    texts: Mapping[str, list[ObjectId]] = {
        "snapshots": list(marked.snapshots),
        "transaction_logs": list(marked.logs),
        "manifests": list(marked.manifests),
        "attributes": list(marked.attributes),
    }
    return np.sort(id_keys(_ids(texts[kind], width)))


def _ids(texts: list[ObjectId], width: int) -> Ids:
    return text_ids(texts, width)
