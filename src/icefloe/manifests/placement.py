"""Where an array belongs: which set packs it, or into what cells it is cut."""

from __future__ import annotations

import math
from dataclasses import dataclass

from icefloe.manifests.cells import configured_cell_shape
from icefloe.manifests.packing import find_target
from icefloe.manifests.regions import Cutting
from icefloe.model.manifest_config import ANY_PATH, ManifestConfig
from icefloe.model.nodes import ArrayNode


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an array belongs: packed by a set, or cut into cells of its own."""

    target: str
    cutting: Cutting | None


def place(node: ArrayNode, initialized: int, config: ManifestConfig) -> Placement:
    """Follow the rules and, by size, the overflow, until a set takes the array whole or cuts it."""
    size = math.prod(node.grid)
    target = find_target(config, node.path, size, initialized)
    asked = configured_cell_shape(node, config)
    if asked is not None and any(n < length for n, length in zip(asked, node.grid, strict=True)):
        return Placement(target, Cutting(asked, None))
    return _place_by_size(target, size, config)


def _place_by_size(target: str, size: int, config: ManifestConfig) -> Placement:
    entry = config.find_set(target)
    while True:
        if entry.split_size is not None and size > entry.split_size:
            return Placement(target, Cutting(None, min(entry.split_size, entry.max_manifest_size or entry.split_size)))
        if entry.max_manifest_size is None or size <= entry.max_manifest_size:
            return Placement(target, None)
        if entry.overflow_to is None:
            return Placement(target, Cutting(None, entry.max_manifest_size))
        entry = config.find_set(entry.overflow_to)


def can_alike(config: ManifestConfig) -> bool:
    """Whether path and grid alone decide where an array belongs."""
    return config.splitting is None and not any(rule.initialized_chunks for rule in config.rules)


class AlikePlacements:
    """Placements by path and grid: thousands of arrays are alike in all that matters."""

    def __init__(self, config: ManifestConfig) -> None:
        self._config = config
        self._by_path = any(rule.path not in (None, ANY_PATH) for rule in config.rules)
        self._by_size: dict[tuple[str, int], Placement] = {}
        self._by_grid: dict[tuple[int, ...], tuple[int, Placement]] = {}

    def place(self, node: ArrayNode) -> tuple[int, Placement]:
        """The number of chunks in the grid of an array, and where it belongs."""
        known = self._by_grid.get(node.grid)
        if known is not None:
            return known
        size = math.prod(node.grid)
        target = find_target(self._config, node.path, size, size)
        found = self._by_size.get((target, size))
        if found is None:
            found = self._by_size[target, size] = _place_by_size(target, size, self._config)
        if not self._by_path:
            self._by_grid[node.grid] = (size, found)
        return size, found
