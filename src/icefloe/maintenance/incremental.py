"""Collecting what became garbage since the last time, without listing or reading what was known then.

Objects that were live at the last mark and are not any more are known by name; so are those that nothing named and
that were too young to go. What dead writers left since is not: the next full collection lists and finds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from icefloe.formats.contract import Format
from icefloe.ids import ObjectId
from icefloe.maintenance.collect_plan import KINDS, AgeLimits, CollectionPlan, plan_collection
from icefloe.maintenance.listing import (
    Listed,
    empty_listing,
    first_rows,
    id_keys,
    is_among,
    join_listings,
    list_folder,
    text_ids,
)
from icefloe.maintenance.marking import Known, Marked
from icefloe.maintenance.reading import Reading
from icefloe.maintenance.saved_mark import SavedMark


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What may be garbage, per kind, and which snapshots need not be read again."""

    listings: dict[str, Listed]
    known: Known


async def list_candidates(reading: Reading, mark: SavedMark) -> Candidates:
    """Snapshot files as they are now, and everything else as the mark knows it."""
    width = reading.format.capabilities.object_id_bytes
    layout = reading.format
    files = await list_folder(reading.storage, layout.snapshots_folder, layout.metadata_extension, width)
    times = dict(zip(files.texts(), files.modified.tolist(), strict=True))
    same = {key: f for key, f in mark.known.snapshots.items() if times.get(key) == mark.snapshot_times.get(key, -1)}
    listings = {"snapshots": files}
    for kind in KINDS[1:]:
        parts = [part for part in (mark.live.get(kind), mark.pending.get(kind)) if part is not None and len(part)]
        listings[kind] = parts[0] if len(parts) == 1 else _distinct(join_listings(parts, width))
    return Candidates(listings, Known(same, mark.known.manifests))


def _distinct(listed: Listed) -> Listed:
    if not len(listed):
        return listed
    return listed.take(first_rows(listed.ids))


def next_mark(layout: Format, marked: Marked, plan: CollectionPlan, listings: dict[str, Listed], now: int) -> SavedMark:
    """The mark after a collection: what is live, and what nothing names but had to stay."""
    width = listings["snapshots"].ids.shape[1]
    files = listings["snapshots"]
    times = dict(zip(files.texts(), files.modified.tolist(), strict=True))
    logs = [each for each in marked.logs if each in times] if layout.capabilities.transaction_logs else []
    live = {
        "transaction_logs": _as_listed(logs, listings["transaction_logs"], now, width),
        "manifests": _as_listed(list(marked.manifests), listings["manifests"], now, width),
        "attributes": _as_listed(list(marked.attributes), listings["attributes"], now, width),
        "chunks": _live_objects(marked, listings["chunks"], now, width),
    }
    pending = {}
    everything = plan_collection(listings, marked, AgeLimits(1 << 62), plan.cutoff)
    for kind in KINDS:
        left = everything.garbage[kind]
        gone = np.sort(id_keys(plan.garbage[kind].ids))
        pending[kind] = empty_listing(width) if kind == "snapshots" else left.take(~is_among(left.ids, gone))
    return SavedMark(layout.spec_version.value, Known(marked.snapshots, marked.manifests), times, live, pending)


def _as_listed(texts: list[ObjectId], listed: Listed, now: int, width: int) -> Listed:
    """Objects by name with the sizes and times that a listing knows; others are as if written now."""
    ids = text_ids(texts, width)
    return _look_up(ids, np.zeros(len(ids), dtype=np.int64), listed, now)


def _live_objects(marked: Marked, listed: Listed, now: int, width: int) -> Listed:
    filled = [facts for facts in marked.manifests.values() if len(facts.objects)]
    if not filled:
        return empty_listing(width)
    ids = np.concatenate([facts.objects for facts in filled])
    sizes = np.concatenate([facts.sizes for facts in filled])
    first = first_rows(ids)
    return _look_up(ids[first], sizes[first], listed, now)


def _look_up(ids: np.ndarray, sizes: np.ndarray, listed: Listed, now: int) -> Listed:
    listed = listed.seen()
    modified = np.full(len(ids), now, dtype=np.int64)
    size = sizes.astype(np.int64)
    if len(listed) and len(ids):
        keys, held = id_keys(ids), id_keys(listed.ids)
        order = np.argsort(held)
        there = held[order]
        places = np.minimum(np.searchsorted(there, keys), len(there) - 1)
        found = there[places] == keys
        modified[found] = listed.modified[order][places][found]
        size[found] = listed.size[order][places][found]
    return Listed(ids, size, modified)
