"""Which arrays, dimensions and manifests a splitting or preload setting is about."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

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
