"""What all configuration values share: fields that may be unset, checked when assigned, merged one by one."""

from __future__ import annotations

import enum
import inspect
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from icefloe.errors import InvalidInputError

Self = TypeVar("Self", bound="ConfigValue")


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number inside bounds."""

    least: int = 0
    most: int = 2**63 - 1

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

    def parse(self, where: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise refused(where, value, "true or false")
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not empty."""

    def parse(self, where: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise refused(where, value, "a text that is not empty")
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """A member of an enumeration, or its name in any case."""

    members: type[enum.Enum]

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
    """A field whose owner checks it."""

    def parse(self, where: str, value: Any) -> Any:
        return value


Kind = Count | Flag | Text | Choice | Nested | Anything


@dataclass(frozen=True, slots=True)
class Setting:
    """Marks a field: what it takes, and what the engine uses where it is unset."""

    kind: Kind
    default: Any = None


def refused(where: str, value: Any, allowed: str) -> InvalidInputError:
    """The error for a value that a setting does not take."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return InvalidInputError(f"{where} is {shown}; allowed: {allowed}", setting=where)


_SETTINGS: dict[type[Any], Mapping[str, Setting]] = {}


def settings_of(cls: type[Any]) -> Mapping[str, Setting]:
    """The settings of a configuration class by name."""
    found = _SETTINGS.get(cls)
    if found is None:
        # `typing.get_type_hints` would compile and evaluate texts: more than opening a repository takes otherwise.
        hints = {name: hint for base in reversed(cls.__mro__) for name, hint in inspect.get_annotations(base).items()}
        marks = {name: getattr(hint, "__metadata__", (None,))[0] for name, hint in hints.items()}
        found = _SETTINGS[cls] = {name: mark for name, mark in marks.items() if isinstance(mark, Setting)}
    return found


class ConfigValue:
    """Base of the configuration classes: dataclasses with slots whose unset fields are None."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        setting = settings_of(type(self)).get(name)
        if setting is not None and value is not None:
            value = setting.kind.parse(f"{type(self).__name__}.{name}", value)
        object.__setattr__(self, name, value)

    @classmethod
    def default(cls: type[Self]) -> Self:
        """Everything unset: the engine's defaults apply."""
        return cls()

    def merge(self: Self, other: Self) -> Self:
        """A new value: what `other` sets wins, what it leaves unset stays as here."""
        names = settings_of(type(self))
        return type(self)(**{name: _merged(getattr(self, name), getattr(other, name)) for name in names})

    def effective(self, name: str) -> Any:
        """What the engine uses for a setting: its value, or the default where it is unset."""
        value = getattr(self, name)
        return settings_of(type(self))[name].default if value is None else value

    def __repr__(self) -> str:
        parts = []
        for name, setting in settings_of(type(self)).items():
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name}={value!r}")
            elif setting.default is not None:
                parts.append(f"{name}=None (default {setting.default!r})")
        return f"{type(self).__name__}({', '.join(parts)})"


def _merged(mine: Any, theirs: Any) -> Any:
    if mine is None or theirs is None:
        return mine if theirs is None else theirs
    merge = getattr(mine, "merge", None)
    return theirs if merge is None else merge(theirs)
