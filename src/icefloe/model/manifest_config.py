"""How chunk references are divided into manifest files: sets, rules, splitting and preloading."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from icefloe.display.card import ShownField, WithFields
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
"""A larger array is split into cells of at most this number of references.

A commit rewrites the changed cell (about ten bytes a reference, compressed) and the list of cells in the snapshot
(about sixty bytes a cell, of at most 512). For n references, their sum has its minimum near sqrt(6 n): 2,500 for a
million. 16,384 is larger, so that a cold read of a whole array makes few requests.
"""
SHARED_CELLS = 8
"""Smaller arrays share a manifest up to the references of this number of cells.

A commit to one of them rewrites all of it, so a smaller number makes small commits cheaper. Arrays that are filled from
the same files share their locations, so a larger number makes commits to all of them cheaper. A commit that appends to
175 arrays of 11,760 references takes 2.2 times the processor time with 1, 1.25 times with 4, and as much as in
manifests of a million references with 8.
"""

Range = tuple[int | None, int | None]
"""Smallest and largest value, both included. None is no limit."""


@dataclass(frozen=True, slots=True)
class ManifestSet:
    """A set of manifests into which arrays are packed.

    Exactly one of `max_manifest_size` and `arrays_per_manifest` is set.

    Parameters
    ----------
    name
        The name of the set.
    max_manifest_size
        The largest number of references in a manifest.
    arrays_per_manifest
        The largest number of arrays in a manifest.
    overflow_to
        The set for arrays that do not fit.
    cardinality
        The largest number of manifests in the set. None is no limit.
    split_size
        Arrays with more chunks than this have manifests of their own, one for each cell of their grid. None splits only
        arrays that do not fit. In the default set, smaller arrays share manifests of at most eight times this number,
        as long as `max_manifest_size` is not changed.

    Examples
    --------
    >>> ManifestSet("coordinates", max_manifest_size=50_000).overflow_to
    'default'
    """

    name: str
    max_manifest_size: int | None = None
    arrays_per_manifest: int | None = None
    overflow_to: str | None = DEFAULT_SET
    cardinality: int | None = 1
    split_size: int | None = None

    @classmethod
    def default(cls, **changes: Any) -> ManifestSet:
        """Create the default set. It must exist and accepts every array.

        Parameters
        ----------
        **changes
            Fields that differ from the default.

        Returns
        -------
        ManifestSet
            The set with the name `default`.

        Examples
        --------
        >>> ManifestSet.default(split_size=1000).split_size
        1000
        """
        values: dict[str, Any] = {
            "max_manifest_size": None if changes.get("arrays_per_manifest") else DEFAULT_MAX_MANIFEST_SIZE,
            "overflow_to": None,
            "cardinality": None,
            "split_size": DEFAULT_SPLIT_SIZE,
        }
        return cls(DEFAULT_SET, **(values | changes))

    @property
    def shared_size(self) -> int | None:
        """The largest number of references of a manifest that several arrays share. None is no limit.

        It is `max_manifest_size`. A default set whose `max_manifest_size` was not changed fills shared manifests only
        up to eight times `split_size`, so that a commit to a small array does not rewrite a million references of
        other arrays.

        Examples
        --------
        >>> ManifestSet.default().shared_size, ManifestSet.default(max_manifest_size=200_000).shared_size
        (131072, 200000)
        """
        limit, split = self.max_manifest_size, self.split_size
        if self.name != DEFAULT_SET or limit != DEFAULT_MAX_MANIFEST_SIZE or split is None:
            return limit
        return min(limit, SHARED_CELLS * split)


ANY_PATH = ".*"


@dataclass(frozen=True, slots=True)
class ManifestRule:
    """Assigns the arrays that meet all its conditions to a set.

    Parameters
    ----------
    target
        The name of the set.
    path
        A regular expression that matches the whole path of the array.
    metadata_chunks
        The smallest and largest number of chunks in the array's grid. None is no limit.
    initialized_chunks
        The smallest and largest number of chunks that have been written. None is no limit.

    Examples
    --------
    >>> ManifestRule("coordinates", path=".*/time").matches("/model/time", 10, 10)
    True
    """

    target: str
    path: str | None = None
    metadata_chunks: Range | None = None
    initialized_chunks: Range | None = None

    def matches(self, path: str, metadata_chunks: int, initialized_chunks: int) -> bool:
        """Return whether the rule applies to an array.

        Parameters
        ----------
        path
            The path of the array.
        metadata_chunks
            The number of chunks in its grid.
        initialized_chunks
            The number of chunks that have been written.

        Returns
        -------
        bool
            True if all conditions hold.

        Examples
        --------
        >>> ManifestRule("coordinates", metadata_chunks=(0, 5000)).matches("/temperature", 5001, 0)
        False
        """
        if self.path not in (None, ANY_PATH) and not pattern_fits(self.path or ANY_PATH, path):
            return False
        return _within(metadata_chunks, self.metadata_chunks) and _within(initialized_chunks, self.initialized_chunks)


def _within(count: int, limits: Range | None) -> bool:
    if limits is None:
        return True
    return (limits[0] is None or count >= limits[0]) and (limits[1] is None or count <= limits[1])


@dataclass(frozen=True, slots=True)
class PreloadRules:
    """Selects the manifests that are fetched in the background when a session starts, by the paths of their arrays.

    Parameters
    ----------
    max_manifest_size
        Only manifests with at most this number of references. None is no limit.
    max_manifests
        Only arrays with at most this number of manifests. None is no limit.
    paths
        Regular expressions that match the whole path of the array.

    Examples
    --------
    >>> PreloadRules(paths=(".*/time",)).matches("/model/time")
    True
    """

    max_manifest_size: int | None = 50_000
    max_manifests: int | None = 1
    paths: tuple[str, ...] = (".*/time", ".*/latitude", ".*/longitude")

    def matches(self, path: str) -> bool:
        """Return whether the manifests of an array are preloaded.

        Parameters
        ----------
        path
            The path of the array.

        Returns
        -------
        bool
            True if an expression matches the whole path.

        Examples
        --------
        >>> PreloadRules().matches("/model/temperature")
        False
        """
        return _matches_any(self.paths, path)

    def fitting(self, paths: Iterable[str]) -> Iterator[str]:
        """Return the arrays whose manifests are preloaded.

        Parameters
        ----------
        paths
            Paths of arrays.

        Returns
        -------
        iterator of str
            The paths that match.

        Examples
        --------
        >>> list(PreloadRules().fitting(["/model/time", "/model/temperature"]))
        ['/model/time']
        """
        if not _are_plain(self.paths):
            return paths_fitting(self.paths, list(paths))
        # A repository can have many thousands of arrays, so each is compared once.
        whole = frozenset(pattern for pattern in self.paths if not pattern.startswith(".*"))
        endings = tuple(pattern[2:] for pattern in self.paths if pattern.startswith(".*"))
        return (path for path in paths if path in whole or (path.endswith(endings) and self.matches(path)))


@functools.lru_cache(1 << 10)
def _are_plain(patterns: tuple[str, ...]) -> bool:
    return all(map(is_plain_pattern, patterns))


@functools.lru_cache(1 << 16)
def _matches_any(patterns: tuple[str, ...], path: str) -> bool:
    """Return whether a pattern matches the path. Cached, because sessions ask again for mostly the same paths."""
    return any(pattern_fits(pattern, path) for pattern in patterns)


@dataclass(slots=True, repr=False)
class ManifestPreloadConfig(WithFields):
    """The preload setting of the official configuration. If it is set, it replaces the preload rules.

    Parameters
    ----------
    max_total_refs
        The largest number of references to preload.
    preload_if
        Which manifests are preloaded.
    max_arrays_to_scan
        The largest number of arrays for which the condition is tested.

    Examples
    --------
    >>> from icefloe.model.manifest_conditions import ManifestPreloadCondition
    >>> ManifestPreloadConfig(preload_if=ManifestPreloadCondition.name_matches("time")).max_total_refs is None
    True
    """

    _full_name = "icechunk.config.ManifestPreloadConfig"
    _is_code = True

    max_total_refs: int | None = None
    preload_if: ManifestPreloadCondition | None = None
    max_arrays_to_scan: int | None = None

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("max_total_refs", self.max_total_refs, 10_000)
        yield ShownField("preload_if", self.preload_if)
        yield ShownField("max_arrays_to_scan", self.max_arrays_to_scan, 50)


SplitSizes = Sequence[tuple[ManifestSplitCondition, Sequence[tuple[ManifestSplitDimCondition, int]]]]


@dataclass(frozen=True, slots=True, repr=False)
class ManifestSplittingConfig(WithFields):
    """The sizes of the cells into which chunk grids are split, by array and dimension. The first match applies.

    Parameters
    ----------
    split_sizes
        Pairs of an array condition and its sizes. The sizes are pairs of a dimension condition and a number of chunks.

    Examples
    --------
    >>> time = ManifestSplitDimCondition.DimensionName("time")
    >>> ManifestSplittingConfig([(ManifestSplitCondition.any_array(), [(time, 1000)])]).find_sizes("/a", ["time", "x"])
    (1000, None)
    """

    _full_name = "icechunk.config.ManifestSplittingConfig"
    _is_code = True

    split_sizes: tuple[tuple[ManifestSplitCondition, tuple[tuple[ManifestSplitDimCondition, int], ...]], ...] = ()

    def __init__(self, split_sizes: SplitSizes | None = None) -> None:
        frozen = tuple((condition, tuple((d, int(n)) for d, n in sizes)) for condition, sizes in split_sizes or ())
        object.__setattr__(self, "split_sizes", frozen)
        for index, (condition, sizes) in enumerate(frozen):
            condition.check(f"splitting[{index}]")
            for dimension, size in sizes:
                if size < 1:
                    raise InvalidInputError(f"splitting[{index}]: {dimension!r} has size {size}, expected at least 1")

    @classmethod
    def from_dict(
        cls, split_sizes: Mapping[ManifestSplitCondition, Mapping[ManifestSplitDimCondition, int]]
    ) -> ManifestSplittingConfig:
        """Create the configuration from nested mappings.

        Parameters
        ----------
        split_sizes
            `{array condition: {dimension condition: chunks}}`. The order of the keys counts.

        Returns
        -------
        ManifestSplittingConfig
            The configuration.

        Examples
        --------
        >>> sizes = {ManifestSplitCondition.any_array(): {ManifestSplitDimCondition.Axis(0): 10}}
        >>> ManifestSplittingConfig.from_dict(sizes).to_dict() == sizes
        True
        """
        return cls([(condition, list(sizes.items())) for condition, sizes in split_sizes.items()])

    def to_dict(self) -> dict[ManifestSplitCondition, dict[ManifestSplitDimCondition, int]]:
        """Return nested mappings, the inverse of `from_dict`.

        Returns
        -------
        dict
            `{array condition: {dimension condition: chunks}}`.

        Examples
        --------
        >>> ManifestSplittingConfig().to_dict()
        {}
        """
        return {condition: dict(sizes) for condition, sizes in self.split_sizes}

    def find_sizes(self, path: str, names: Sequence[str | None]) -> tuple[int | None, ...] | None:
        """Return the cell size of an array by the first rule that matches.

        Parameters
        ----------
        path
            The path of the array.
        names
            The name of each dimension, or None.

        Returns
        -------
        tuple or None
            The length of a cell along each axis, in chunks. None along an axis means that it is not split. None
            instead of a tuple means that no rule matches.

        Examples
        --------
        >>> ManifestSplittingConfig().find_sizes("/temperature", ["time"]) is None
        True
        """
        for condition, sizes in self.split_sizes:
            if condition.matches(ArrayFacts(path)):
                return tuple(
                    next((size for dimension, size in sizes if dimension.matches_axis(axis, name)), None)
                    for axis, name in enumerate(names)
                )
        return None


@dataclass(slots=True, repr=False)
class ManifestVirtualChunkLocationCompressionConfig(WithFields):
    """How the official package compresses the locations of virtual chunks. Icefloe stores these settings.

    Parameters
    ----------
    min_num_chunks
        The least number of virtual chunks in a manifest whose locations are compressed.
    dictionary_max_training_samples
        The largest number of locations that the dictionary is trained with.
    dictionary_max_size_bytes
        The largest size of the dictionary.
    compression_level
        The compression level of Zstandard.

    Examples
    --------
    >>> ManifestVirtualChunkLocationCompressionConfig(500).min_num_chunks
    500
    """

    _full_name = "icechunk.config.ManifestVirtualChunkLocationCompressionConfig"
    _is_code = True

    min_num_chunks: int | None = None
    dictionary_max_training_samples: int | None = field(default=None, kw_only=True)
    dictionary_max_size_bytes: int | None = field(default=None, kw_only=True)
    compression_level: int | None = field(default=None, kw_only=True)

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("min_num_chunks", self.min_num_chunks, 1000)
        yield ShownField("dictionary_max_training_samples", self.dictionary_max_training_samples, 100)
        yield ShownField("dictionary_max_size_bytes", self.dictionary_max_size_bytes, 2048)
        yield ShownField("compression_level", self.compression_level, 3)


@dataclass(slots=True, repr=False)
class ManifestConfig(WithFields):
    """How chunk references are divided into manifest files. The defaults are those of the specification.

    Fields can be changed one by one. An invalid change raises `InvalidInputError` and is undone.

    Parameters
    ----------
    preload
        The preload setting of the official configuration. It replaces `preload_rules`.
    splitting
        Sizes of the cells into which chunk grids are split. It replaces the split sizes of the sets.
    virtual_chunk_location_compression
        A setting of the official configuration. It is preserved and has no effect.
    max_concurrent_manifest_fetches_during_commit
        A setting of the official configuration. It is preserved and has no effect.
    sets
        The sets of manifests. The default set is added if it is missing.
    rules
        Which arrays go to which set. The first match applies.
    preload_rules
        Which manifests are fetched in the background when a session starts.

    Examples
    --------
    >>> ManifestConfig().find_set("default").split_size
    16384
    """

    _full_name = "icechunk.config.ManifestConfig"
    _is_code = True

    preload: ManifestPreloadConfig | None = None
    splitting: ManifestSplittingConfig | None = None
    virtual_chunk_location_compression: ManifestVirtualChunkLocationCompressionConfig | None = None
    max_concurrent_manifest_fetches_during_commit: int | None = None
    sets: tuple[ManifestSet, ...] = (ManifestSet("coordinates", max_manifest_size=50_000), ManifestSet.default())
    rules: tuple[ManifestRule, ...] = (ManifestRule("coordinates", path=".*", metadata_chunks=(0, 5000)),)
    preload_rules: PreloadRules = field(default_factory=PreloadRules)

    def __setattr__(self, name: str, value: Any) -> None:
        before = getattr(self, name, None)
        object.__setattr__(self, name, value)
        if not hasattr(self, "preload_rules"):
            return  # the constructor has not set the last field yet
        try:
            self._normalise()
        except InvalidInputError:
            object.__setattr__(self, name, before)
            raise

    def _normalise(self) -> None:
        sets = tuple(self.sets)
        if all(s.name != DEFAULT_SET for s in sets):
            sets = (*sets, ManifestSet.default())
        object.__setattr__(self, "sets", sets)
        object.__setattr__(self, "rules", tuple(self.rules))
        validate(self)

    def _shown_fields(self) -> Iterator[ShownField]:
        yield ShownField("preload", self.preload, ManifestPreloadConfig())
        yield ShownField("splitting", self.splitting)
        yield ShownField(
            "virtual_chunk_location_compression",
            self.virtual_chunk_location_compression,
            ManifestVirtualChunkLocationCompressionConfig(),
        )
        fetches = self.max_concurrent_manifest_fetches_during_commit
        yield ShownField("max_concurrent_manifest_fetches_during_commit", fetches, 1)
        for name in ("sets", "rules", "preload_rules"):
            # The official package does not have them.
            if getattr(self, name) != getattr(SPECIFIED, name):
                yield ShownField(name, getattr(self, name))

    def find_set(self, name: str) -> ManifestSet:
        """Return the set with a name.

        Parameters
        ----------
        name
            The name of the set.

        Returns
        -------
        ManifestSet
            The set.

        Examples
        --------
        >>> ManifestConfig().find_set("coordinates").max_manifest_size
        50000
        """
        return next(s for s in self.sets if s.name == name)


def validate(config: ManifestConfig) -> None:
    """Check a configuration. The error contains the invalid entry."""
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
            f"{where}: expected exactly one of max-manifest-size and arrays-per-manifest, found {found}"
        )
    if entry.name == DEFAULT_SET:
        if entry.cardinality is not None:
            raise InvalidInputError(
                f"{where}: the default set must accept every array, so it cannot have a cardinality"
            )
        if entry.overflow_to is not None:
            raise InvalidInputError(f"{where}: the default set is the last one, so it cannot have overflow-to")
    elif entry.overflow_to not in names:
        raise InvalidInputError(f"{where}: overflow-to {entry.overflow_to!r} is not a set. There are: {sorted(names)}")


def _check_no_loop(entry: ManifestSet, config: ManifestConfig) -> None:
    seen = [entry.name]
    while entry.overflow_to is not None:
        entry = config.find_set(entry.overflow_to)
        if entry.name in seen:
            raise InvalidInputError(
                f"chunk-manifests.sets: overflow-to has a cycle: {' -> '.join([*seen, entry.name])}"
            )
        seen.append(entry.name)


def _check_rule(rule: ManifestRule, where: str, names: Sequence[str]) -> None:
    if rule.target not in names:
        raise InvalidInputError(f"{where}: target {rule.target!r} is not a set. There are: {sorted(names)}")
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
        raise InvalidInputError(f"{where}: expected a whole number of at least {least}, or null, found {value!r}")


SPECIFIED: Final = ManifestConfig()
"""The configuration of a repository without a stored one. Do not modify it."""
ARRAY_PER_MANIFEST: Final = ManifestConfig(
    sets=(ManifestSet.default(arrays_per_manifest=1, split_size=None),), rules=()
)
"""The layout of the official package: every array has a manifest of its own. Do not modify it."""
