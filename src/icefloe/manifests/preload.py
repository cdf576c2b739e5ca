"""Which manifests are fetched in the background when a session starts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from icefloe.ids import ObjectId
from icefloe.model.manifest_conditions import ArrayFacts
from icefloe.model.manifest_config import SPECIFIED, ManifestConfig, ManifestPreloadConfig, PreloadRules
from icefloe.model.nodes import ArrayNode
from icefloe.model.snapshot import Snapshot

_DEFAULT_ARRAYS_TO_SCAN = 50
_DEFAULT_TOTAL_REFS = 10_000


def manifests_to_preload(snapshot: Snapshot, config: ManifestConfig | None) -> list[ObjectId]:
    """The manifests that the configuration names, in the order in which they are wanted."""
    chosen = config or SPECIFIED
    if chosen.preload is not None:
        return list(_by_condition(snapshot, chosen.preload))
    return list(_by_rules(snapshot, chosen.preload_rules))


def _by_rules(snapshot: Snapshot, rules: PreloadRules) -> Iterator[ObjectId]:
    if not rules.paths:
        return
    seen: set[ObjectId] = set()
    for path in rules.fitting(snapshot.nodes):
        for manifest_id, count in _manifests(snapshot, path):
            if rules.max_manifests is not None and len(seen) >= rules.max_manifests:
                return
            if manifest_id not in seen and (rules.max_manifest_size is None or count <= rules.max_manifest_size):
                seen.add(manifest_id)
                yield manifest_id


def _by_condition(snapshot: Snapshot, config: ManifestPreloadConfig) -> Iterator[ObjectId]:
    condition = config.preload_if
    if condition is None:
        return
    left = _DEFAULT_TOTAL_REFS if config.max_total_refs is None else config.max_total_refs
    scan = _DEFAULT_ARRAYS_TO_SCAN if config.max_arrays_to_scan is None else config.max_arrays_to_scan
    seen: set[ObjectId] = set()
    for path in snapshot.nodes:
        node = snapshot.nodes[path]
        if not isinstance(node, ArrayNode):
            continue
        scan -= 1
        if scan < 0:
            return
        for manifest_id, count in _manifests(snapshot, path):
            if manifest_id not in seen and count <= left and condition.matches(ArrayFacts(path, count)):
                seen.add(manifest_id)
                left -= count
                yield manifest_id


def _manifests(snapshot: Snapshot, path: str) -> Iterator[tuple[ObjectId, int]]:
    """The manifests of an array and how many references each holds, at most, where the snapshot does not say."""
    node = snapshot.nodes[path]
    if isinstance(node, ArrayNode):
        for ref in node.manifests:
            info = snapshot.manifests.get(ref.manifest_id)
            known = info is not None and info.num_chunk_refs > 0
            yield ref.manifest_id, info.num_chunk_refs if info is not None and known else math.prod(node.grid)
