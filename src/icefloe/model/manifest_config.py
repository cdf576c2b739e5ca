"""How chunk references are spread over manifest files: sets, rules, splitting and preload."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from icefloe.errors import InvalidInputError
from icefloe.model.manifest_conditions import (
    ArrayFacts,
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    check_pattern,
    is_plain_pattern,
    paths_fitting,
    pattern_fits,
)

DEFAULT_SET = "default"
DEFAULT_MAX_MANIFEST_SIZE = 1_000_000
DEFAULT_SPLIT_SIZE = 16_384
"""An array larger than this is cut into cells of at most this many references.

A commit rewrites the touched cell (about ten bytes a reference, compressed) and the list of cells in the snapshot
(about sixty bytes a cell). For n references their sum is least near sqrt(6 n): 2,500 for a million, 25,000 for a
hundred million. 16,384 is near the optimum for the large ones and keeps the requests of a cold read few.
"""

Range = tuple[int | None, int | None]
"""Both ends belong to it; None is open."""


@dataclass(frozen=True, slots=True)
class ManifestSet:
    """A group of manifests that arrays are packed into.

    Exactly one of `max_manifest_size` (references in a manifest) and `arrays_per_manifest` is set. `cardinality` is the
    most manifests the set may have, None is any number. `split_size`: arrays with more chunks get manifests of their
    own, one for each cell of their grid; None leaves arrays whole as long as they fit.
    """

    name: str
    max_manifest_size: int | None = None
    arrays_per_manifest: int | None = None
    overflow_to: str | None = DEFAULT_SET
    cardinality: int | None = 1
    split_size: int | None = None

    @classmethod
    def default(cls, **changes: Any) -> ManifestSet:
        """The set that must exist, where every array finds a place in the end."""
        values: dict[str, Any] = {
            "max_manifest_size": None if changes.get("arrays_per_manifest") else DEFAULT_MAX_MANIFEST_SIZE,
            "overflow_to": None,
            "cardinality": None,
            "split_size": DEFAULT_SPLIT_SIZE,
        }
        return cls(DEFAULT_SET, **(values | changes))


ANY_PATH = ".*"


@dataclass(frozen=True, slots=True)
class ManifestRule:
    """Arrays that meet all conditions go to the set `target`. `path` matches the whole path of the array."""

    target: str
    path: str | None = None
    metadata_chunks: Range | None = None
    initialized_chunks: Range | None = None

    def matches(self, path: str, metadata_chunks: int, initialized_chunks: int) -> bool:
        """Whether an array with that many chunks in its grid, and that many written, is meant."""
        if self.path not in (None, ANY_PATH) and not pattern_fits(self.path or ANY_PATH, path):
            return False
        return _within(metadata_chunks, self.metadata_chunks) and _within(initialized_chunks, self.initialized_chunks)


def _within(count: int, limits: Range | None) -> bool:
    if limits is None:
        return True
    return (limits[0] is None or count >= limits[0]) and (limits[1] is None or count <= limits[1])


@dataclass(frozen=True, slots=True)
class PreloadRules:
    """Manifests of arrays whose whole path matches are fetched in the background when a session starts."""

    max_manifest_size: int | None = 50_000
    max_manifests: int | None = 1
    paths: tuple[str, ...] = (".*/time", ".*/latitude", ".*/longitude")

    def matches(self, path: str) -> bool:
        """Whether the manifests of an array are to be preloaded."""
        return _matches_any(self.paths, path)

    def fitting(self, paths: Iterable[str]) -> Iterator[str]:
        """The arrays, among those at some paths, whose manifests are to be preloaded."""
        if all(is_plain_pattern(pattern) for pattern in self.paths):
            return (path for path in paths if self.matches(path))
        return paths_fitting(self.paths, list(paths))


@functools.lru_cache(1 << 16)
def _matches_any(patterns: tuple[str, ...], path: str) -> bool:
    """Every session asks the same of mostly the same paths."""
    return any(pattern_fits(pattern, path) for pattern in patterns)


@dataclass(slots=True)
class ManifestPreloadConfig:
    """The preload setting by conditions; where it is given it replaces the preload rules."""

    max_total_refs: int | None = None
    preload_if: ManifestPreloadCondition | None = None
    max_arrays_to_scan: int | None = None


SplitSizes = Sequence[tuple[ManifestSplitCondition, Sequence[tuple[ManifestSplitDimCondition, int]]]]


@dataclass(frozen=True, slots=True)
class ManifestSplittingConfig:
    """Sizes of the cells an array's chunk grid is cut into, by array and dimension; first match wins."""

    split_sizes: tuple[tuple[ManifestSplitCondition, tuple[tuple[ManifestSplitDimCondition, int], ...]], ...] = ()

    def __init__(self, split_sizes: SplitSizes | None = None) -> None:
        frozen = tuple((condition, tuple((d, int(n)) for d, n in sizes)) for condition, sizes in split_sizes or ())
        object.__setattr__(self, "split_sizes", frozen)
        for index, (condition, sizes) in enumerate(frozen):
            condition.check(f"splitting[{index}]")
            for dimension, size in sizes:
                if size < 1:
                    raise InvalidInputError(f"splitting[{index}]: {dimension!r} has size {size}, must be at least 1")

    @classmethod
    def from_dict(
        cls, split_sizes: Mapping[ManifestSplitCondition, Mapping[ManifestSplitDimCondition, int]]
    ) -> ManifestSplittingConfig:
        """From `{array condition: {dimension condition: chunks}}`, in the order given."""
        return cls([(condition, list(sizes.items())) for condition, sizes in split_sizes.items()])

    def to_dict(self) -> dict[ManifestSplitCondition, dict[ManifestSplitDimCondition, int]]:
        """The inverse of from_dict."""
        return {condition: dict(sizes) for condition, sizes in self.split_sizes}

    def find_sizes(self, path: str, names: Sequence[str | None]) -> tuple[int | None, ...] | None:
        """The cell's length per axis (None = whole) by the first rule for the array; None when there is no rule."""
        for condition, sizes in self.split_sizes:
            if condition.matches(ArrayFacts(path)):
                return tuple(
                    next((size for dimension, size in sizes if dimension.matches_axis(axis, name)), None)
                    for axis, name in enumerate(names)
                )
        return None


@dataclass(slots=True)
class ManifestConfig:
    """Everything about manifests that a repository can be configured for; the default is that of the specification.

    Like the other configuration values it can be changed field by field; what cannot be carried out is refused then.
    """

    preload: ManifestPreloadConfig | None = None
    splitting: ManifestSplittingConfig | None = None
    sets: tuple[ManifestSet, ...] = (ManifestSet("coordinates", max_manifest_size=50_000), ManifestSet.default())
    rules: tuple[ManifestRule, ...] = (ManifestRule("coordinates", path=".*", metadata_chunks=(0, 5000)),)
    preload_rules: PreloadRules = field(default_factory=PreloadRules)
    virtual_chunk_location_compression: Any = None
    max_concurrent_manifest_fetches_during_commit: int | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        before = getattr(self, name, None)
        object.__setattr__(self, name, value)
        if not hasattr(self, "max_concurrent_manifest_fetches_during_commit"):
            return  # the constructor has not set the last field yet
        try:
            self._settle()
        except InvalidInputError:
            object.__setattr__(self, name, before)
            raise

    def _settle(self) -> None:
        sets = tuple(self.sets)
        if all(s.name != DEFAULT_SET for s in sets):
            sets = (*sets, ManifestSet.default())
        object.__setattr__(self, "sets", sets)
        object.__setattr__(self, "rules", tuple(self.rules))
        validate(self)

    def find_set(self, name: str) -> ManifestSet:
        """The set of that name."""
        return next(s for s in self.sets if s.name == name)


def validate(config: ManifestConfig) -> None:
    """Refuse a configuration that cannot be carried out, naming the entry at fault."""
    names = [s.name for s in config.sets]
    for index, entry in enumerate(config.sets):
        where = f"chunk-manifests.sets[{index}] ({entry.name})"
        if not entry.name or names.count(entry.name) > 1:
            raise InvalidInputError(f"{where}: the name is {'given twice' if entry.name else 'empty'}")
        _check_set(entry, where, names)
    for entry in config.sets:
        _check_no_loop(entry, config)
    for index, rule in enumerate(config.rules):
        _check_rule(rule, f"chunk-manifests.rules[{index}]", names)
    preload = config.preload_rules
    _check_count(preload.max_manifest_size, "chunk-manifests.preload.max-manifest-size", 0)
    _check_count(preload.max_manifests, "chunk-manifests.preload.max-manifests", 0)
    for index, path in enumerate(preload.paths):
        _check_pattern(path, f"chunk-manifests.preload.arrays[{index}].path")


def _check_set(entry: ManifestSet, where: str, names: Sequence[str]) -> None:
    _check_count(entry.max_manifest_size, f"{where}.max-manifest-size", 1)
    _check_count(entry.arrays_per_manifest, f"{where}.arrays-per-manifest", 1)
    _check_count(entry.cardinality, f"{where}.cardinality", 1)
    _check_count(entry.split_size, f"{where}.split-size", 1)
    if (entry.max_manifest_size is None) == (entry.arrays_per_manifest is None):
        found = "neither" if entry.max_manifest_size is None else "both"
        raise InvalidInputError(
            f"{where}: needs exactly one of max-manifest-size and arrays-per-manifest, {found} is given"
        )
    if entry.name == DEFAULT_SET:
        if entry.cardinality is not None:
            raise InvalidInputError(f"{where}: the default set takes every array, it cannot have a cardinality")
        if entry.overflow_to is not None:
            raise InvalidInputError(f"{where}: the default set is the last one, it cannot have overflow-to")
    elif entry.overflow_to not in names:
        raise InvalidInputError(f"{where}: overflow-to {entry.overflow_to!r} is not a set; there are {sorted(names)}")


def _check_no_loop(entry: ManifestSet, config: ManifestConfig) -> None:
    seen = [entry.name]
    while entry.overflow_to is not None:
        entry = config.find_set(entry.overflow_to)
        if entry.name in seen:
            raise InvalidInputError(
                f"chunk-manifests.sets: overflow-to goes in a loop: {' -> '.join([*seen, entry.name])}"
            )
        seen.append(entry.name)


def _check_rule(rule: ManifestRule, where: str, names: Sequence[str]) -> None:
    if rule.target not in names:
        raise InvalidInputError(f"{where}: target {rule.target!r} is not a set; there are {sorted(names)}")
    if rule.path is not None:
        _check_pattern(rule.path, f"{where}.path")
    for name, limits in (("metadata-chunks", rule.metadata_chunks), ("initialized-chunks", rule.initialized_chunks)):
        if limits is None:
            continue
        if not isinstance(limits, tuple) or len(limits) != 2:
            raise InvalidInputError(f"{where}.{name}: expected [from, to], found {limits!r}")
        for end in limits:
            _check_count(end, f"{where}.{name}", 0)
        if limits[0] is not None and limits[1] is not None and limits[0] > limits[1]:
            raise InvalidInputError(f"{where}.{name}: [{limits[0]}, {limits[1]}] is empty")


def _check_pattern(regex: object, where: str) -> None:
    if not isinstance(regex, str):
        raise InvalidInputError(f"{where}: expected a regular expression, found {regex!r}")
    check_pattern(regex, where)


def _check_count(value: object, where: str, least: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise InvalidInputError(f"{where}: expected a whole number from {least} on, or null; found {value!r}")


SPECIFIED: Final = ManifestConfig()
"""What a repository that says nothing is configured for; to be read, never changed."""
