"""Conditions on arrays and dimensions, for manifest splitting and preloading, and their regular expressions."""

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
    """Check a regular expression. The error contains the entry of the configuration.

    The syntax is that of RE2, which is nearly that of Rust's regex crate. There is no look-around and no backreference.
    """
    if len(regex) > _MOST_PATTERN_CHARACTERS:
        raise InvalidInputError(
            f"{entry}: the regular expression has {len(regex)} characters, expected at most {_MOST_PATTERN_CHARACTERS}"
        )
    try:
        _search(regex, "")
    except ValueError as error:
        raise InvalidInputError(
            f"{entry}: {regex!r} is not a regular expression of RE2, which has no look-around and no backreferences: "
            f"{error}"
        ) from error


def pattern_cost(regex: str) -> int:
    r"""Estimate the number of RE2 instructions of a regular expression. RE2 compiles it again for each match.

    Each character counts once, times the product of all counted repetitions, which can be nested. An expression with a
    Unicode class counts two hundred times.

    >>> pattern_cost(".*/time"), pattern_cost("[ab]{3}"), pattern_cost("x{2,50}"), pattern_cost(r"\pL{200}")
    (7, 21, 350, 320000)
    """
    repeats = math.prod(max(map(int, filter(None, found)), default=1) or 1 for found in _REPEATS.findall(regex))
    return len(regex) * repeats * (200 if "\\p" in regex or "\\P" in regex else 1)


def pattern_found(regex: str, text: str) -> bool:
    """Return whether a regular expression matches anywhere in a text."""
    return _search(regex, text)


def pattern_fits(regex: str, text: str) -> bool:
    """Return whether a regular expression matches the whole text."""
    if _ENDING.fullmatch(regex) and "\n" not in text:
        return text.endswith(regex[2:]) if regex.startswith(".*") else text == regex
    return _search(rf"\A(?:{regex})\z", text)


def is_plain_pattern(regex: str) -> bool:
    """Return whether a regular expression is plain text, or `.*` before plain text. These need no RE2."""
    return _ENDING.fullmatch(regex) is not None


def paths_fitting(patterns: Sequence[str], paths: Sequence[str]) -> Iterator[str]:
    """Return the paths that one of the regular expressions matches as a whole, in order.

    RE2 compiles an expression at each call. That can take longer than matching thousands of paths.
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
    """Return whether RE2 finds a match. The time is linear in the text for every expression.

    Expressions come from stored configurations and are matched on the event loop. Python's own engine can take
    exponential time.
    """
    if _ENDING.fullmatch(regex):
        return regex.removeprefix(".*") in text
    # Arrow contains RE2. Import it only if needed, because that takes 0.05 s.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    valid = text if text.isascii() else text.encode("utf-8", "replace").decode()
    return bool(pc.match_substring_regex(pa.scalar(valid, pa.string()), regex).as_py())


def _name_of(path: str) -> str:
    return path.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class ArrayFacts:
    """The properties of an array that conditions test: its path and, for preloading, the references of its manifest."""

    path: str
    num_refs: int = 0


class _Condition:
    """Base class of conditions on arrays."""

    __slots__ = ()
    _owner: ClassVar[str] = ""

    def matches(self, facts: ArrayFacts) -> bool:
        """Return whether the condition holds for an array.

        Parameters
        ----------
        facts
            The path of the array and the number of references of its manifest.

        Returns
        -------
        bool
            True if it holds.

        Examples
        --------
        >>> ManifestSplitCondition.name_matches("temp").matches(ArrayFacts("/model/temperature"))
        True
        """
        raise NotImplementedError

    def check(self, entry: str) -> None:
        """Check the regular expressions of the condition.

        Parameters
        ----------
        entry
            The entry of the configuration, for the error message.

        Raises
        ------
        InvalidInputError
            An expression is invalid.

        Examples
        --------
        >>> ManifestSplitCondition.name_matches("^t.*").check("splitting[0]")
        """

    def to_document(self) -> Any:
        """Return the condition in the form of the official configuration file: a tagged mapping or a word.

        Returns
        -------
        dict or str
            The document.

        Examples
        --------
        >>> ManifestSplitCondition.name_matches("temp").to_document()
        {'name_matches': {'regex': 'temp'}}
        """
        raise NotImplementedError


class ManifestSplitCondition(_Condition):
    """Selects the arrays of a splitting rule.

    Conditions are combined with `&` and `|`.

    Examples
    --------
    >>> ManifestSplitCondition.name_matches("temp") & ManifestSplitCondition.path_matches("/model/")
    icechunk.config.ManifestSplitCondition.and_conditions([...])
    """

    __slots__ = ()
    AnyArray: ClassVar[type[_SplitAny]]
    Or: ClassVar[type[_SplitOr]]
    And: ClassVar[type[_SplitAnd]]
    PathMatches: ClassVar[type[_SplitPath]]
    NameMatches: ClassVar[type[_SplitName]]

    @staticmethod
    def or_conditions(conditions: Sequence[ManifestSplitCondition]) -> ManifestSplitCondition:
        """Select arrays for which any of the conditions holds.

        Parameters
        ----------
        conditions
            The conditions.

        Returns
        -------
        ManifestSplitCondition
            The combined condition.

        Examples
        --------
        >>> ManifestSplitCondition.or_conditions([ManifestSplitCondition.any_array()])
        icechunk.config.ManifestSplitCondition.or_conditions([icechunk.config.ManifestSplitCondition.AnyArray()])
        """
        return _SplitOr(tuple(conditions))

    @staticmethod
    def and_conditions(conditions: Sequence[ManifestSplitCondition]) -> ManifestSplitCondition:
        """Select arrays for which all of the conditions hold.

        Parameters
        ----------
        conditions
            The conditions.

        Returns
        -------
        ManifestSplitCondition
            The combined condition.

        Examples
        --------
        >>> ManifestSplitCondition.and_conditions([ManifestSplitCondition.any_array()])
        icechunk.config.ManifestSplitCondition.and_conditions([icechunk.config.ManifestSplitCondition.AnyArray()])
        """
        return _SplitAnd(tuple(conditions))

    @staticmethod
    def path_matches(regex: str) -> ManifestSplitCondition:
        """Select arrays whose path matches a regular expression anywhere.

        Parameters
        ----------
        regex
            An expression in RE2 syntax. A path is for instance `/model/outputs/temperature`.

        Returns
        -------
        ManifestSplitCondition
            The condition.

        Examples
        --------
        >>> ManifestSplitCondition.path_matches("^/model/").matches(ArrayFacts("/model/temperature"))
        True
        """
        return _SplitPath(regex)

    @staticmethod
    def name_matches(regex: str) -> ManifestSplitCondition:
        """Select arrays whose name, the last part of the path, matches a regular expression anywhere.

        Parameters
        ----------
        regex
            An expression in RE2 syntax.

        Returns
        -------
        ManifestSplitCondition
            The condition.

        Examples
        --------
        >>> ManifestSplitCondition.name_matches("model").matches(ArrayFacts("/model/temperature"))
        False
        """
        return _SplitName(regex)

    @staticmethod
    def any_array() -> ManifestSplitCondition:
        """Select all arrays.

        Returns
        -------
        ManifestSplitCondition
            The condition.

        Examples
        --------
        >>> ManifestSplitCondition.any_array()
        icechunk.config.ManifestSplitCondition.AnyArray()
        """
        return _SplitAny()

    def __and__(self, other: ManifestSplitCondition) -> ManifestSplitCondition:
        return _SplitAnd((self, other))

    def __or__(self, other: ManifestSplitCondition) -> ManifestSplitCondition:
        return _SplitOr((self, other))


class ManifestPreloadCondition(_Condition):
    """Selects the manifests that are fetched in the background when a session starts.

    Conditions are combined with `&` and `|`.

    Examples
    --------
    >>> ManifestPreloadCondition.name_matches("time") | ManifestPreloadCondition.num_refs(0, 1000)
    icechunk.config.ManifestPreloadCondition.or_conditions([...])
    """

    __slots__ = ()

    Or: ClassVar[type[_PreloadOr]]
    And: ClassVar[type[_PreloadAnd]]
    PathMatches: ClassVar[type[_PreloadPath]]
    NameMatches: ClassVar[type[_PreloadName]]
    NumRefs: ClassVar[type[_PreloadRefs]]

    @staticmethod
    def or_conditions(conditions: Sequence[ManifestPreloadCondition]) -> ManifestPreloadCondition:
        """Select manifests for which any of the conditions holds.

        Parameters
        ----------
        conditions
            The conditions.

        Returns
        -------
        ManifestPreloadCondition
            The combined condition.

        Examples
        --------
        >>> ManifestPreloadCondition.or_conditions([ManifestPreloadCondition.true()])
        icechunk.config.ManifestPreloadCondition.or_conditions([icechunk.config.ManifestPreloadCondition.true()])
        """
        return _PreloadOr(tuple(conditions))

    @staticmethod
    def and_conditions(conditions: Sequence[ManifestPreloadCondition]) -> ManifestPreloadCondition:
        """Select manifests for which all of the conditions hold.

        Parameters
        ----------
        conditions
            The conditions.

        Returns
        -------
        ManifestPreloadCondition
            The combined condition.

        Examples
        --------
        >>> ManifestPreloadCondition.and_conditions([ManifestPreloadCondition.true()])
        icechunk.config.ManifestPreloadCondition.and_conditions([icechunk.config.ManifestPreloadCondition.true()])
        """
        return _PreloadAnd(tuple(conditions))

    @staticmethod
    def path_matches(regex: str) -> ManifestPreloadCondition:
        """Select manifests of arrays whose path matches a regular expression anywhere.

        Parameters
        ----------
        regex
            An expression in RE2 syntax.

        Returns
        -------
        ManifestPreloadCondition
            The condition.

        Examples
        --------
        >>> ManifestPreloadCondition.path_matches("/time$").matches(ArrayFacts("/model/time"))
        True
        """
        return _PreloadPath(regex)

    @staticmethod
    def name_matches(regex: str) -> ManifestPreloadCondition:
        """Select manifests of arrays whose name, the last part of the path, matches a regular expression anywhere.

        Parameters
        ----------
        regex
            An expression in RE2 syntax.

        Returns
        -------
        ManifestPreloadCondition
            The condition.

        Examples
        --------
        >>> ManifestPreloadCondition.name_matches("^time$").matches(ArrayFacts("/model/time"))
        True
        """
        return _PreloadName(regex)

    @staticmethod
    def num_refs(from_refs: int | None = None, to_refs: int | None = None) -> ManifestPreloadCondition:
        """Select manifests by their number of references.

        Parameters
        ----------
        from_refs
            The smallest number. None is no limit.
        to_refs
            The first number that is too large. None is no limit.

        Returns
        -------
        ManifestPreloadCondition
            The condition.

        Examples
        --------
        >>> ManifestPreloadCondition.num_refs(0, 1000).matches(ArrayFacts("/time", num_refs=1000))
        False
        """
        return _PreloadRefs(from_refs, to_refs)

    @staticmethod
    def true() -> ManifestPreloadCondition:
        """Select every manifest.

        Returns
        -------
        ManifestPreloadCondition
            The condition.

        Examples
        --------
        >>> ManifestPreloadCondition.true()
        icechunk.config.ManifestPreloadCondition.true()
        """
        return _PreloadTrue()

    @staticmethod
    def false() -> ManifestPreloadCondition:
        """Select no manifest.

        Returns
        -------
        ManifestPreloadCondition
            The condition.

        Examples
        --------
        >>> ManifestPreloadCondition.false()
        icechunk.config.ManifestPreloadCondition.false()
        """
        return _PreloadFalse()

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


_SPLIT, _PRELOAD = "icechunk.config.ManifestSplitCondition", "icechunk.config.ManifestPreloadCondition"
_DIMENSION = "icechunk.config.ManifestSplitDimCondition"


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


class _PreloadTrue(_PreloadConstant):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(True)


class _PreloadFalse(_PreloadConstant):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(False)


ManifestPreloadCondition.Or, ManifestPreloadCondition.And = _PreloadOr, _PreloadAnd
ManifestPreloadCondition.PathMatches, ManifestPreloadCondition.NameMatches = _PreloadPath, _PreloadName
ManifestPreloadCondition.NumRefs = _PreloadRefs
# These two names are keywords of Python.
setattr(ManifestPreloadCondition, "True", _PreloadTrue)
setattr(ManifestPreloadCondition, "False", _PreloadFalse)


class ManifestSplitDimCondition:
    """Selects the dimension of a split size: `Axis(n)`, `DimensionName(regex)` or `Any()`.

    Examples
    --------
    >>> ManifestSplitDimCondition.Axis(0)
    icechunk.config.ManifestSplitDimCondition.Axis(0)
    """

    __slots__ = ()
    Axis: ClassVar[type[_Axis]]
    DimensionName: ClassVar[type[_DimensionName]]
    Any: ClassVar[type[_AnyDimension]]

    def matches_axis(self, axis: int, name: str | None) -> bool:
        """Return whether the condition holds for a dimension.

        Parameters
        ----------
        axis
            The number of the dimension.
        name
            The name of the dimension, or None.

        Returns
        -------
        bool
            True if it holds.

        Examples
        --------
        >>> ManifestSplitDimCondition.DimensionName("^time$").matches_axis(0, "time")
        True
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Axis(ManifestSplitDimCondition):
    axis: int

    def matches_axis(self, axis: int, name: str | None) -> bool:
        return axis == self.axis

    def __repr__(self) -> str:
        return f"{_DIMENSION}.Axis({self.axis})"


@dataclass(frozen=True, slots=True)
class _DimensionName(ManifestSplitDimCondition):
    regex: str

    def matches_axis(self, axis: int, name: str | None) -> bool:
        return name is not None and pattern_found(self.regex, name)

    def __repr__(self) -> str:
        return f"{_DIMENSION}.DimensionName({self.regex!r})"


@dataclass(frozen=True, slots=True)
class _AnyDimension(ManifestSplitDimCondition):
    def matches_axis(self, axis: int, name: str | None) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{_DIMENSION}.Any()"


ManifestSplitDimCondition.Axis = _Axis
ManifestSplitDimCondition.DimensionName = _DimensionName
ManifestSplitDimCondition.Any = _AnyDimension

_Word: TypeAlias = str


def _untag(document: Any, entry: str) -> tuple[_Word, Any]:
    """Return a condition as a word and its value, from a word, a mapping with one key, or the official form."""
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
        return _PreloadTrue() if word == "true" else _PreloadFalse()
    if kind is ManifestPreloadCondition and word == "num_refs" and isinstance(value, Mapping):
        return _PreloadRefs(value.get("from"), value.get("to"))
    raise InvalidInputError(f"{entry}: unknown condition {word!r}")


def parse_split_condition(document: Any, entry: str) -> ManifestSplitCondition:
    """Parse the array condition of a splitting rule."""
    condition: ManifestSplitCondition = _condition(document, entry, ManifestSplitCondition)
    return condition


def parse_preload_condition(document: Any, entry: str) -> ManifestPreloadCondition:
    """Parse the condition of the official preload setting."""
    condition: ManifestPreloadCondition = _condition(document, entry, ManifestPreloadCondition)
    return condition


def parse_dim_condition(document: Any, entry: str) -> ManifestSplitDimCondition:
    """Parse the dimension condition of a splitting rule."""
    word, value = _untag(document, entry)
    if word == "Axis" and isinstance(value, int) and value >= 0:
        return _Axis(value)
    if word == "DimensionName":
        return _DimensionName(_regex(value, entry))
    if word == "Any":
        return _AnyDimension()
    raise InvalidInputError(f"{entry}: {document!r} is not a dimension. Use Axis, DimensionName or Any")


def dim_document(condition: ManifestSplitDimCondition) -> Any:
    """Return the document that `parse_dim_condition` parses."""
    if isinstance(condition, _Axis):
        return {"Axis": condition.axis}
    if isinstance(condition, _DimensionName):
        return {"DimensionName": condition.regex}
    return "Any"
