"""The definition of settings, and the base of the configuration classes.

A configuration class is a dataclass. Each field is annotated with a `Setting`: type, default, bounds and description.
Everything else follows from it: the check when a value is assigned, the JSON and YAML document, the bounds of stored
settings, the tables in docs/configuration.md, and the `icefloe config` command.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from icefloe.display.card import ShownField, WithFields
from icefloe.errors import InvalidInputError

Self = TypeVar("Self", bound="ConfigValue")


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number inside bounds."""

    least: int = 0
    most: int = 2**63 - 1

    def describe(self) -> str:
        """The allowed values, for a table."""
        end = f" to {self.most:,}" if self.most != 2**63 - 1 else ""
        return f"from {self.least:,}{end}"

    def encode(self, value: int) -> Any:
        """The value in a document."""
        return value

    def parse(self, where: str, value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or isinstance(value, bool) or not self.least <= number <= self.most:
            raise refused(where, value, f"a whole number from {self.least} to {self.most}")
        return number


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    def describe(self) -> str:
        """The allowed values, for a table."""
        return "true, false"

    def encode(self, value: bool) -> Any:
        """The value in a document."""
        return value

    def parse(self, where: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise refused(where, value, "true or false")
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not empty."""

    def describe(self) -> str:
        """The allowed values, for a table."""
        return "text"

    def encode(self, value: str) -> Any:
        """The value in a document."""
        return value

    def parse(self, where: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise refused(where, value, "a text that is not empty")
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """A member of an enumeration, or its name in any case."""

    members: type[enum.Enum]

    def describe(self) -> str:
        """The allowed values, for a table."""
        return ", ".join(member.name.lower() for member in self.members)

    def encode(self, value: enum.Enum) -> Any:
        """The value in a document."""
        return value.name.lower()

    def parse(self, where: str, value: Any) -> enum.Enum:
        if isinstance(value, self.members):
            return value
        for member in self.members:
            if isinstance(value, str) and value.lower() == member.name.lower():
                return member
        raise refused(where, value, " or ".join(member.name.lower() for member in self.members))


@dataclass(frozen=True, slots=True)
class Nested:
    """Another configuration value."""

    cls: type[Any]

    def parse(self, where: str, value: Any) -> Any:
        if not isinstance(value, self.cls):
            raise refused(where, value, f"a {self.cls.__name__}")
        return value


@dataclass(frozen=True, slots=True)
class Anything:
    """A field that its class checks and encodes."""

    def describe(self) -> str:
        """The allowed values, for a table."""
        return "see below"

    def encode(self, value: Any) -> Any:
        """The value in a document."""
        return value

    def parse(self, where: str, value: Any) -> Any:
        return value


Kind = Count | Flag | Text | Choice | Nested | Anything


@dataclass(frozen=True, slots=True)
class Setting:
    """The definition of a setting."""

    kind: Kind
    default: Any = None
    """The value in effect if the setting is not set."""
    doc: str = ""
    """What the setting does, in Markdown."""
    stored: tuple[int, int] | None = None
    """Bounds of a value that is stored in a repository, which another person may have written."""
    unused: str | None = None
    """Not None if Icefloe only stores the setting, for the official package. The text says what to use instead."""


def refused(where: str, value: Any, allowed: str) -> InvalidInputError:
    """The error for an invalid value of a setting."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return InvalidInputError(f"{where} is {shown}. Allowed: {allowed}", setting=where)


_SETTINGS: dict[type[Any], Mapping[str, Setting]] = {}


def settings_of(cls: type[Any]) -> Mapping[str, Setting]:
    """The settings of a configuration class by name."""
    found = _SETTINGS.get(cls)
    if found is None:
        # `typing.get_type_hints` would compile and evaluate texts, which takes longer than opening a repository.
        hints = {
            name: hint for base in reversed(cls.__mro__) for name, hint in getattr(base, "__annotations__", {}).items()
        }
        marks = {name: getattr(hint, "__metadata__", (None,))[0] for name, hint in hints.items()}
        found = _SETTINGS[cls] = {name: mark for name, mark in marks.items() if isinstance(mark, Setting)}
    return found


def all_settings(cls: type[Any]) -> dict[str, Setting]:
    """The settings of a configuration class and of the values nested in it, by dotted name."""
    found: dict[str, Setting] = {}
    for name, setting in settings_of(cls).items():
        inner = settings_of(setting.kind.cls) if isinstance(setting.kind, Nested) else {}
        if not inner:
            found[name] = setting
            continue
        assert isinstance(setting.kind, Nested)
        for below, each in all_settings(setting.kind.cls).items():
            # One class can be nested in several settings. Only some of them may be in use.
            own = each if setting.unused is None else replace(each, unused=setting.unused, stored=None)
            found[f"{name}.{below}"] = own
    return found


def unused_remarks(config: ConfigValue) -> list[str]:
    """A sentence for each setting that is set and that Icefloe does not use."""
    remarks = []
    for name, setting in all_settings(type(config)).items():
        if setting.unused is None:
            continue
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part, None)
        if value is not None:
            instead = f" {setting.unused[0].upper()}{setting.unused[1:]}." if setting.unused else ""
            remarks.append(f"The setting {name} is stored for the official package. Icefloe does not use it.{instead}")
    return remarks


def settings_table(cls: type[Any], *, unused: bool) -> str:
    """The Markdown table of the settings that are in use, or of those that are not."""
    rows = ["| setting | default | allowed | effect |", "|---|---|---|---|"]
    if unused:
        rows = ["| setting | default | allowed | use instead |", "|---|---|---|---|"]
    for name, setting in all_settings(cls).items():
        if (setting.unused is not None) == unused and not isinstance(setting.kind, Nested):
            effect = setting.unused if setting.unused is not None else setting.doc
            rows.append(f"| `{name}` | {default_text(setting)} | {setting.kind.describe()} | {effect} |")
    return "\n".join(rows)


def default_text(setting: Setting) -> str:
    """The default of a setting as text."""
    if setting.default is None:
        return "unset"
    if isinstance(setting.default, enum.Enum):
        return setting.default.name.lower()
    return str(setting.default).lower() if isinstance(setting.default, bool) else f"{setting.default:,}"


class ConfigValue(WithFields):
    """Base of the configuration classes: dataclasses with slots whose unset fields are None."""

    __slots__ = ()
    _is_code: ClassVar[bool] = True
    _own_settings: ClassVar[frozenset[str]] = frozenset()
    """Settings that the official package does not have. They are shown if they are set."""

    def __setattr__(self, name: str, value: Any) -> None:
        if value is not None and (setting := settings_of(type(self)).get(name)) is not None:
            value = setting.kind.parse(f"{type(self).__name__}.{name}", value)
        object.__setattr__(self, name, value)

    @classmethod
    def default(cls: type[Self]) -> Self:
        """Return a configuration without settings. The defaults apply.

        Returns
        -------
        ConfigValue
            The configuration.

        Examples
        --------
        >>> import icefloe
        >>> icefloe.CachingConfig.default() == icefloe.CachingConfig()
        True
        """
        return cls()

    def merge(self: Self, other: Self) -> Self:
        """Return a configuration with the settings of both. The settings of `other` take precedence.

        Parameters
        ----------
        other
            A configuration of the same kind.

        Returns
        -------
        ConfigValue
            The merged configuration.

        Examples
        --------
        >>> import icefloe
        >>> merged = icefloe.CachingConfig(num_snapshot_nodes=5).merge(icefloe.CachingConfig(num_chunk_refs=7))
        >>> merged.num_snapshot_nodes, merged.num_chunk_refs
        (5, 7)
        """
        names = settings_of(type(self))
        return type(self)(**{name: _merged(getattr(self, name), getattr(other, name)) for name in names})

    def effective(self, name: str) -> Any:
        """Return the value of a setting, or its default if it is not set.

        Parameters
        ----------
        name
            The name of the setting.

        Returns
        -------
        Any
            The value in effect.

        Examples
        --------
        >>> import icefloe
        >>> icefloe.CachingConfig(num_chunk_refs=7).effective("num_chunk_refs")
        7
        """
        value = getattr(self, name)
        return settings_of(type(self))[name].default if value is None else value

    def _shown_fields(self) -> Iterator[ShownField]:
        for name, setting in settings_of(type(self)).items():
            value = getattr(self, name)
            if value is None and name in self._own_settings:
                continue
            default = setting.kind.cls() if isinstance(setting.kind, Nested) else setting.default
            yield ShownField(name, value, default)


def _merged(mine: Any, theirs: Any) -> Any:
    if mine is None or theirs is None:
        return mine if theirs is None else theirs
    merge = getattr(mine, "merge", None)
    return theirs if merge is None else merge(theirs)
