"""Which arrays share a manifest: closure, rules, and bin packing by sets."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

from icefloe.ids import NodeId
from icefloe.model.manifest_config import DEFAULT_SET, ManifestConfig, ManifestSet

A = TypeVar("A")
M = TypeVar("M")
A_contra = TypeVar("A_contra", contravariant=True)
M_co = TypeVar("M_co", covariant=True)


class Dragging(Protocol[A_contra, M_co]):
    """The manifests of arrays, asked for one array at a time."""

    def get(self, key: A_contra, default: tuple[()] = (), /) -> Iterable[M_co]: ...


def closure(modified: Iterable[A], manifests_of: Dragging[A, M], arrays_of: Mapping[M, Iterable[A]]) -> set[A]:
    """All arrays whose manifests would be rewritten if these arrays were; a new array has none and drags nobody."""
    found = set(modified)
    waiting = list(found)
    seen: set[M] = set()
    while waiting:
        for manifest in manifests_of.get(waiting.pop(), ()):
            if manifest not in seen:
                seen.add(manifest)
                for array in arrays_of[manifest]:
                    if array not in found:
                        found.add(array)
                        waiting.append(array)
    return found


class Package(NamedTuple):
    """An array to be packed: its size in chunks and the set its rule sends it to."""

    node_id: NodeId
    path: str
    size: int
    target: str


@dataclass(frozen=True, slots=True)
class Bin:
    """One manifest to be: its set and its arrays."""

    set_name: str
    packages: tuple[Package, ...]


_PATH, _SIZE = attrgetter("path"), attrgetter("size")


def find_target(config: ManifestConfig, path: str, metadata_chunks: int, initialized_chunks: int) -> str:
    """The set of the first rule that matches, or the default set."""
    for rule in config.rules:
        if rule.matches(path, metadata_chunks, initialized_chunks):
            return rule.target
    return DEFAULT_SET


def topological_order(sets: Sequence[ManifestSet]) -> list[ManifestSet]:
    """Sets such that overflow always goes to a later one; ties in the order of the configuration."""
    remaining = list(sets)
    ordered: list[ManifestSet] = []
    while remaining:
        targets = {s.overflow_to for s in remaining}
        chosen = next(s for s in remaining if s.name not in targets)
        ordered.append(chosen)
        remaining.remove(chosen)
    return ordered


def pack(packages: Iterable[Package], config: ManifestConfig, untouched: Mapping[str, int]) -> list[Bin]:
    """Every package in exactly one bin. `untouched` counts the manifests each set keeps as they are."""
    waiting: dict[str, list[Package]] = {s.name: [] for s in config.sets}
    for package in packages:
        waiting[package.target].append(package)
    result: list[Bin] = []
    for entry in topological_order(config.sets):
        oversized, groups = _pack_set(waiting[entry.name], entry)
        if entry.overflow_to is None:
            result += [Bin(entry.name, (package,)) for package in oversized]
        else:
            waiting[entry.overflow_to] += oversized
        allowed = len(groups)
        if entry.cardinality is not None:
            allowed = max(0, entry.cardinality - untouched.get(entry.name, 0))
        result += [Bin(entry.name, tuple(group)) for group in groups[:allowed]]
        for group in groups[allowed:]:
            assert entry.overflow_to is not None, "only the default set has no overflow, and it has no cardinality"
            waiting[entry.overflow_to] += group
    return result


def _pack_set(packages: list[Package], entry: ManifestSet) -> tuple[list[Package], list[list[Package]]]:
    """The arrays too large for the set, and the bins of the others, fullest first."""
    ordered = sorted(sorted(packages, key=_PATH), key=_SIZE, reverse=True)
    if entry.arrays_per_manifest is not None:
        return [], _pair(ordered, entry.arrays_per_manifest)
    assert entry.max_manifest_size is not None
    limit = entry.max_manifest_size
    oversized = [p for p in ordered if p.size > limit]
    return oversized, _fit([p for p in ordered if p.size <= limit], limit)


def _fit(ordered: Sequence[Package], limit: int) -> list[list[Package]]:
    """Best fit decreasing: into the fullest bin that still has room, found by bisection."""
    bins: list[list[Package]] = []
    room: list[tuple[int, int]] = []  # (room left, -bin) so that among equals the first bin is the last entry
    for size, alike in groupby(ordered, key=_SIZE):
        waiting = list(alike)
        while waiting:
            position = bisect.bisect_left(room, (size, -len(bins)))
            if position == len(room):
                bins.append([])
                left, index = limit, len(bins) - 1
            else:
                left, negative = room.pop(position)
                index = -negative
            # The bin that took one of this size is the best for the next ones of it, until they do not fit.
            taken = min(left // size, len(waiting)) if size else len(waiting)
            bins[index] += waiting[:taken]
            del waiting[:taken]
            bisect.insort(room, (left - taken * size, -index))
    return sorted(bins, key=lambda group: -sum(p.size for p in group))


def _pair(ordered: Sequence[Package], count: int) -> list[list[Package]]:
    """`count` arrays a bin, the biggest together with the smallest, so that bins come out alike."""
    left = deque(ordered)
    bins: list[list[Package]] = []
    while left:
        group: list[Package] = []
        while left and len(group) < count:
            group.append(left.popleft() if len(group) % 2 == 0 else left.pop())
        bins.append(group)
    return bins
