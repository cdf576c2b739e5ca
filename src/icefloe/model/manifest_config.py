"""How chunk references are divided into manifest files: sets, rules, splitting, preload, and their conditions."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

from icefloe.errors import InvalidInputError

_MOST_PATTERN_CHARACTERS = 4096
_REPEATS = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_ENDING = re.compile(r"(?:\.\*)?[\w/ -]*", re.ASCII)
"""Expressions that need no engine: a plain text, and `.*` before one."""


def check_pattern(regex: str, entry: str) -> None:
    """Refuse a text that is no regular expression; the error names the entry it stands in.

    The syntax is that of RE2, which is that of Rust's regex crate but for details: no look-around, no backreferences.
    """
    if len(regex) > _MOST_PATTERN_CHARACTERS:
        raise InvalidInputError(
            f"{entry}: a regular expression of {len(regex)} characters; allowed: at most {_MOST_PATTERN_CHARACTERS}"
        )
    try:
        _search(regex, "")
    except ValueError as error:
        raise InvalidInputError(
            f"{entry}: {regex!r} is not a regular expression of RE2, which knows no look-around and no "
            f"backreferences: {error}"
        ) from error


def pattern_cost(regex: str) -> int:
    """About how many instructions RE2 makes of a regular expression; it makes them anew for each match.

    Each character counts once, times the product of all counted repetitions, which may be nested. With a Unicode class
    in it, it counts two hundred times.

    >>> pattern_cost(".*/time"), pattern_cost("[ab]{3}"), pattern_cost("x{2,50}"), pattern_cost("\\\\pL{200}")
    (7, 21, 350, 320000)
    """
    repeats = math.prod(max(map(int, filter(None, found)), default=1) or 1 for found in _REPEATS.findall(regex))
    return len(regex) * repeats * (200 if "\\p" in regex or "\\P" in regex else 1)


def pattern_found(regex: str, text: str) -> bool:
    """Whether a regular expression matches anywhere in a text."""
    return _search(regex, text)


def pattern_fits(regex: str, text: str) -> bool:
    """Whether a regular expression matches the whole of a text."""
    if _ENDING.fullmatch(regex) and "\n" not in text:
        return text.endswith(regex[2:]) if regex.startswith(".*") else text == regex
    return _search(rf"\A(?:{regex})\z", text)


def is_plain_pattern(regex: str) -> bool:
    """Whether a regular expression is a plain text, or `.*` before one, so that no engine is needed."""
    return _ENDING.fullmatch(regex) is not None


def paths_fitting(patterns: Sequence[str], paths: Sequence[str]) -> Iterator[str]:
    """The paths of which the whole matches one of the regular expressions, in order.

    RE2 compiles an expression at each call, which can take longer than to match thousands of paths.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    column = pa.array([path.encode("utf-8", "replace").decode() for path in paths], pa.string())
    found: set[int] = set()
    for regex in patterns:
        fits = pc.match_substring_regex(column, rf"\A(?:{regex})\z")
        found.update(pc.indices_nonzero(fits).to_pylist())
    return (paths[index] for index in sorted(found))


@functools.lru_cache(1 << 16)
def _search(regex: str, text: str) -> bool:
    """Whether RE2 finds a match: its time grows with the text only, whatever the expression.

    Expressions come from stored configurations and are matched on the event loop. Python's own engine can take
    exponential time.
    """
    if _ENDING.fullmatch(regex):
        return regex.removeprefix(".*") in text
    # Arrow brings RE2 along; loading it takes a twentieth of a second that most configurations do not need.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    valid = text if text.isascii() else text.encode("utf-8", "replace").decode()
    return bool(pc.match_substring_regex(pa.scalar(valid, pa.string()), regex).as_py())


def _name_of(path: str) -> str:
    return path.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class ArrayFacts:
    """What a condition can ask about an array: its path and, for preload, the references of its manifest."""

    path: str
    num_refs: int = 0


class _Condition:
    """The base of conditions on arrays; `matches` is true for the arrays meant."""

    __slots__ = ()
    _owner: ClassVar[str] = ""

    def matches(self, facts: ArrayFacts) -> bool:
        raise NotImplementedError

    def check(self, entry: str) -> None:
        """Refuse expressions that do not compile."""

    def to_document(self) -> Any:
        """The form the official configuration file has: a tagged map or a word."""
        raise NotImplementedError


class ManifestSplitCondition(_Condition):
    """Which arrays a splitting rule is about."""

    __slots__ = ()
    AnyArray: ClassVar[type[_SplitAny]]
    Or: ClassVar[type[_SplitOr]]
    And: ClassVar[type[_SplitAnd]]
    PathMatches: ClassVar[type[_SplitPath]]
    NameMatches: ClassVar[type[_SplitName]]

    @staticmethod
    def or_conditions(conditions: Sequence[ManifestSplitCondition]) -> ManifestSplitCondition:
        """Arrays for which any of the conditions holds."""
        return _SplitOr(tuple(conditions))

    @staticmethod
    def and_conditions(conditions: Sequence[ManifestSplitCondition]) -> ManifestSplitCondition:
        """Arrays for which all of the conditions hold."""
        return _SplitAnd(tuple(conditions))

    @staticmethod
    def path_matches(regex: str) -> ManifestSplitCondition:
        """Arrays whose path, such as /model/outputs/temperature, matches a regular expression anywhere."""
        return _SplitPath(regex)

    @staticmethod
    def name_matches(regex: str) -> ManifestSplitCondition:
        """Arrays whose last path component matches a regular expression anywhere."""
        return _SplitName(regex)

    @staticmethod
    def any_array() -> ManifestSplitCondition:
        """All arrays."""
        return _SplitAny()

    def __and__(self, other: ManifestSplitCondition) -> ManifestSplitCondition:
        return _SplitAnd((self, other))

    def __or__(self, other: ManifestSplitCondition) -> ManifestSplitCondition:
        return _SplitOr((self, other))


class ManifestPreloadCondition(_Condition):
    """Which manifests are fetched in the background when a session starts."""

    __slots__ = ()

    @staticmethod
    def or_conditions(conditions: Sequence[ManifestPreloadCondition]) -> ManifestPreloadCondition:
        """Manifests for which any of the conditions holds."""
        return _PreloadOr(tuple(conditions))

    @staticmethod
    def and_conditions(conditions: Sequence[ManifestPreloadCondition]) -> ManifestPreloadCondition:
        """Manifests for which all of the conditions hold."""
        return _PreloadAnd(tuple(conditions))

    @staticmethod
    def path_matches(regex: str) -> ManifestPreloadCondition:
        """Manifests of arrays whose path matches a regular expression anywhere."""
        return _PreloadPath(regex)

    @staticmethod
    def name_matches(regex: str) -> ManifestPreloadCondition:
        """Manifests of arrays whose last path component matches a regular expression anywhere."""
        return _PreloadName(regex)

    @staticmethod
    def num_refs(from_refs: int | None = None, to_refs: int | None = None) -> ManifestPreloadCondition:
        """Manifests with a number of references from `from_refs` (inclusive) to `to_refs` (exclusive)."""
        return _PreloadRefs(from_refs, to_refs)

    @staticmethod
    def true() -> ManifestPreloadCondition:
        """Every manifest."""
        return _PreloadConstant(True)

    @staticmethod
    def false() -> ManifestPreloadCondition:
        """No manifest."""
        return _PreloadConstant(False)

    def __and__(self, other: ManifestPreloadCondition) -> ManifestPreloadCondition:
        return _PreloadAnd((self, other))

    def __or__(self, other: ManifestPreloadCondition) -> ManifestPreloadCondition:
        return _PreloadOr((self, other))


@dataclass(frozen=True, slots=True)
class _Many(_Condition):
    conditions: tuple[Any, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "conditions", tuple(self.conditions))

    def check(self, entry: str) -> None:
        for condition in self.conditions:
            condition.check(entry)


@dataclass(frozen=True, slots=True)
class _Or(_Many):
    def matches(self, facts: ArrayFacts) -> bool:
        return any(c.matches(facts) for c in self.conditions)

    def to_document(self) -> Any:
        return {"or": [c.to_document() for c in self.conditions]}

    def __repr__(self) -> str:
        return f"{self._owner}.or_conditions([{', '.join(map(repr, self.conditions))}])"


@dataclass(frozen=True, slots=True)
class _And(_Many):
    def matches(self, facts: ArrayFacts) -> bool:
        return all(c.matches(facts) for c in self.conditions)

    def to_document(self) -> Any:
        return {"and": [c.to_document() for c in self.conditions]}

    def __repr__(self) -> str:
        return f"{self._owner}.and_conditions([{', '.join(map(repr, self.conditions))}])"


@dataclass(frozen=True, slots=True)
class _Path(_Condition):
    regex: str

    def matches(self, facts: ArrayFacts) -> bool:
        return pattern_found(self.regex, facts.path)

    def check(self, entry: str) -> None:
        check_pattern(self.regex, entry)

    def to_document(self) -> Any:
        return {"path_matches": {"regex": self.regex}}

    def __repr__(self) -> str:
        return f"{self._owner}.path_matches({self.regex!r})"


@dataclass(frozen=True, slots=True)
class _Name(_Condition):
    regex: str

    def matches(self, facts: ArrayFacts) -> bool:
        return pattern_found(self.regex, _name_of(facts.path))

    def check(self, entry: str) -> None:
        check_pattern(self.regex, entry)

    def to_document(self) -> Any:
        return {"name_matches": {"regex": self.regex}}

    def __repr__(self) -> str:
        return f"{self._owner}.name_matches({self.regex!r})"


_SPLIT, _PRELOAD = "ManifestSplitCondition", "ManifestPreloadCondition"


class _SplitOr(_Or, ManifestSplitCondition):
    __slots__ = ()
    _owner = _SPLIT


class _SplitAnd(_And, ManifestSplitCondition):
    __slots__ = ()
    _owner = _SPLIT


class _SplitPath(_Path, ManifestSplitCondition):
    __slots__ = ()
    _owner = _SPLIT


class _SplitName(_Name, ManifestSplitCondition):
    __slots__ = ()
    _owner = _SPLIT


@dataclass(frozen=True, slots=True, repr=False)
class _SplitAny(ManifestSplitCondition):
    def matches(self, facts: ArrayFacts) -> bool:
        return True

    def to_document(self) -> Any:
        return "any_array"

    def __repr__(self) -> str:
        return f"{_SPLIT}.AnyArray()"


ManifestSplitCondition.AnyArray = _SplitAny
ManifestSplitCondition.Or, ManifestSplitCondition.And = _SplitOr, _SplitAnd
ManifestSplitCondition.PathMatches, ManifestSplitCondition.NameMatches = _SplitPath, _SplitName


class _PreloadOr(_Or, ManifestPreloadCondition):
    __slots__ = ()
    _owner = _PRELOAD


class _PreloadAnd(_And, ManifestPreloadCondition):
    __slots__ = ()
    _owner = _PRELOAD


class _PreloadPath(_Path, ManifestPreloadCondition):
    __slots__ = ()
    _owner = _PRELOAD


class _PreloadName(_Name, ManifestPreloadCondition):
    __slots__ = ()
    _owner = _PRELOAD


@dataclass(frozen=True, slots=True)
class _PreloadRefs(ManifestPreloadCondition):
    from_refs: int | None
    to_refs: int | None

    def matches(self, facts: ArrayFacts) -> bool:
        above = self.from_refs is None or facts.num_refs >= self.from_refs
        return above and (self.to_refs is None or facts.num_refs < self.to_refs)

    def to_document(self) -> Any:
        return {"num_refs": {"from": self.from_refs, "to": self.to_refs}}

    def __repr__(self) -> str:
        return f"{_PRELOAD}.num_refs({self.from_refs}, {self.to_refs})"


@dataclass(frozen=True, slots=True)
class _PreloadConstant(ManifestPreloadCondition):
    value: bool

    def matches(self, facts: ArrayFacts) -> bool:
        return self.value

    def to_document(self) -> Any:
        return "true" if self.value else "false"

    def __repr__(self) -> str:
        return f"{_PRELOAD}.{'true' if self.value else 'false'}()"


class ManifestSplitDimCondition:
    """Which dimension of an array a split size is about."""

    __slots__ = ()
    Axis: ClassVar[type[_Axis]]
    DimensionName: ClassVar[type[_DimensionName]]
    Any: ClassVar[type[_AnyDimension]]

    def matches_axis(self, axis: int, name: str | None) -> bool:
        """Whether an axis, with this dimension name, is meant."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Axis(ManifestSplitDimCondition):
    axis: int

    def matches_axis(self, axis: int, name: str | None) -> bool:
        return axis == self.axis

    def __repr__(self) -> str:
        return f"ManifestSplitDimCondition.Axis({self.axis})"


@dataclass(frozen=True, slots=True)
class _DimensionName(ManifestSplitDimCondition):
    regex: str

    def matches_axis(self, axis: int, name: str | None) -> bool:
        return name is not None and pattern_found(self.regex, name)

    def __repr__(self) -> str:
        return f"ManifestSplitDimCondition.DimensionName({self.regex!r})"


@dataclass(frozen=True, slots=True)
class _AnyDimension(ManifestSplitDimCondition):
    def matches_axis(self, axis: int, name: str | None) -> bool:
        return True

    def __repr__(self) -> str:
        return "ManifestSplitDimCondition.Any()"


ManifestSplitDimCondition.Axis = _Axis
ManifestSplitDimCondition.DimensionName = _DimensionName
ManifestSplitDimCondition.Any = _AnyDimension

_Word: TypeAlias = str


def _untag(document: Any, entry: str) -> tuple[_Word, Any]:
    """A condition as a word and its value, from a word, a one-key map, or the official tagged form."""
    if document is True or document is False:
        return str(document).lower(), None
    if isinstance(document, str):
        return document, None
    if isinstance(document, Mapping) and len(document) == 1:
        ((word, value),) = document.items()
        return str(word).lstrip("!"), value
    raise InvalidInputError(f"{entry}: {document!r} is not a condition")


def _regex(value: Any, entry: str) -> str:
    regex = value.get("regex") if isinstance(value, Mapping) else value
    if not isinstance(regex, str):
        raise InvalidInputError(f"{entry}: expected a regular expression, found {value!r}")
    check_pattern(regex, entry)
    return regex


def _condition(document: Any, entry: str, kind: Any) -> Any:
    word, value = _untag(document, entry)
    if word in ("or", "and"):
        parts = [_condition(v, f"{entry}.{word}[{i}]", kind) for i, v in enumerate(value or [])]
        return kind.or_conditions(parts) if word == "or" else kind.and_conditions(parts)
    if word in ("path_matches", "name_matches"):
        return getattr(kind, word)(_regex(value, entry))
    if kind is ManifestSplitCondition and word == "any_array":
        return _SplitAny()
    if kind is ManifestPreloadCondition and word in ("true", "false"):
        return _PreloadConstant(word == "true")
    if kind is ManifestPreloadCondition and word == "num_refs" and isinstance(value, Mapping):
        return _PreloadRefs(value.get("from"), value.get("to"))
    raise InvalidInputError(f"{entry}: unknown condition {word!r}")


def parse_split_condition(document: Any, entry: str) -> ManifestSplitCondition:
    """The array condition of a splitting rule in a configuration document."""
    condition: ManifestSplitCondition = _condition(document, entry, ManifestSplitCondition)
    return condition


def parse_preload_condition(document: Any, entry: str) -> ManifestPreloadCondition:
    """The condition of the official preload setting in a configuration document."""
    condition: ManifestPreloadCondition = _condition(document, entry, ManifestPreloadCondition)
    return condition


def parse_dim_condition(document: Any, entry: str) -> ManifestSplitDimCondition:
    """The dimension condition of a splitting rule in a configuration document."""
    word, value = _untag(document, entry)
    if word == "Axis" and isinstance(value, int) and value >= 0:
        return _Axis(value)
    if word == "DimensionName":
        return _DimensionName(_regex(value, entry))
    if word == "Any":
        return _AnyDimension()
    raise InvalidInputError(f"{entry}: {document!r} is not a dimension; use Axis, DimensionName or Any")


def dim_document(condition: ManifestSplitDimCondition) -> Any:
    """The inverse of parse_dim_condition."""
    if isinstance(condition, _Axis):
        return {"Axis": condition.axis}
    if isinstance(condition, _DimensionName):
        return {"DimensionName": condition.regex}
    return "Any"


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
