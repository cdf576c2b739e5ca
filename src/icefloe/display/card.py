"""Numbers and times as text, cards of facts for notebooks (HTML) and terminals (rich markup), and lists of fields."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar, NamedTuple, TypeAlias

from icefloe.errors import printable

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SHORTEST_ID = 8


def format_bytes(count: int) -> str:
    """A number of bytes with a binary unit.

    >>> format_bytes(512), format_bytes(1536), format_bytes(5 << 30)
    ('512 B', '1.5 KiB', '5.0 GiB')
    """
    if abs(count) < 1024:
        return f"{count} B"
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if abs(value) < 1023.95 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}"


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> format_count(1, "chunk"), format_count(12000, "chunk"), format_count(2, "branch", "branches")
    ('1 chunk', '12,000 chunks', '2 branches')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_time(moment: dt.datetime) -> str:
    """A time to the second, in UTC."""
    return f"{moment.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"


def short_length(ids: Sequence[str]) -> int:
    """The number of leading characters that distinguishes these ids."""
    ordered = sorted(set(ids))
    shared = (_shared(a, b) + 1 for a, b in itertools.pairwise(ordered))
    return max(_SHORTEST_ID, *shared, 0)


def _shared(a: str, b: str) -> int:
    length = 0
    for x, y in zip(a, b):
        if x != y:
            break
        length += 1
    return length


def first_line(message: str, width: int = 72) -> str:
    """The first line of a message, cut to a width."""
    line = printable(message).strip().partition("\n")[0].strip()
    return line if len(line) <= width else line[: width - 1] + "…"


# Colours come from the page (inherit, currentColor) or are mid-tones, which are readable on light and dark pages.
_CARD = (
    "display:inline-block;max-width:100%;overflow-x:auto;border:1px solid rgba(128,128,128,.4);border-radius:6px;"
    "padding:.55em .9em .7em;font-size:13px;line-height:1.5;color:inherit;background:transparent"
)
_HEAD = "margin-bottom:.35em;white-space:nowrap"
_DIM = "opacity:.65"
_LABEL = "text-align:left;vertical-align:top;padding:0 1.2em 0 0;opacity:.65;font-weight:normal;white-space:nowrap"
_VALUE = "text-align:left;vertical-align:top;padding:0"
_TABLE = "font-size:inherit;border:none;border-collapse:collapse;margin:0;background:transparent;color:inherit"
_ROW = "background:transparent;border:none"
_CODE = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.95em;background:none;color:inherit"
_LIST = "margin:.1em 0 .3em 1.2em;padding:0;list-style:none;white-space:pre"
_MOST_ENTRIES = 20

COLOURS = {"branch": "#2da44e", "tag": "#1b9ab8", "added": "#2da44e", "removed": "#e5534b", "changed": "#c69026"}
_MARKUP = {
    "branch": "bold green",
    "tag": "bold cyan",
    "added": "green",
    "removed": "red",
    "changed": "yellow",
    "code": "yellow",
    "dim": "dim",
}


@dataclass(frozen=True, slots=True)
class Styled:
    """Text in a style: `code`, `dim`, `branch`, `tag`, `added`, `removed` or `changed`."""

    text: str
    style: str


Words: TypeAlias = str | Styled
Fact: TypeAlias = tuple[str, Words]
"""A label and its value."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries below the facts. HTML folds long lists."""

    title: str
    style: str
    entries: Sequence[str]


@dataclass(frozen=True, slots=True)
class Card:
    """The representation of an object: kind, name, facts and lists."""

    kind: str
    name: Words
    facts: Sequence[Fact] = ()
    listings: Sequence[Listing] = ()
    path: str = ""
    """The full name of the class, for the tool tip of the card."""

    def html(self, picture: str = "") -> str:
        """The card as HTML. `picture` is HTML below the facts."""
        rows = "".join(
            f'<tr style="{_ROW}"><th style="{_LABEL}">{_html(label)}</th><td style="{_VALUE}">{_html(words)}</td></tr>'
            for label, words in self.facts
        )
        table = f'<table style="{_TABLE}">{rows}</table>' if rows else ""
        lists = "".join(_listing_html(listing) for listing in self.listings)
        title = f' title="{escape(self.path)}"' if self.path else ""
        return (
            f'<div class="icefloe-card"{title} style="{_CARD}"><div style="{_HEAD}">'
            f'<span style="{_DIM}">{escape(self.kind)}</span> <b>{_html(self.name)}</b></div>'
            f"{table}{lists}{picture}</div>"
        )

    def markup(self) -> str:
        """The card as rich markup."""
        width = max((len(label) for label, _ in self.facts), default=0)
        lines = [f"[dim]{_escaped(self.kind)}[/] [bold]{_markup(self.name)}[/]"]
        lines += [f"  [dim]{label:<{width}}[/]  {_markup(words)}" for label, words in self.facts]
        for listing in self.listings:
            lines.append(f"  {_markup(Styled(listing.title, listing.style))} ({len(listing.entries):,})")
            lines += [f"    {_escaped(entry)}" for entry in listing.entries[:_MOST_ENTRIES]]
            if len(listing.entries) > _MOST_ENTRIES:
                lines.append(f"    … {len(listing.entries) - _MOST_ENTRIES:,} more")
        return "\n".join(lines)


class CardMixin:
    """Base class of objects with a card. Notebooks and rich call these two methods."""

    __slots__ = ()

    def _card(self) -> Card:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self._card().html()

    def __rich__(self) -> str:
        return self._card().markup()


class TextCardMixin(CardMixin):
    """Base class of plans, summaries and reports, whose text is for people.

    The first line is the name of the card, and the others are listed below it.
    """

    __slots__ = ()

    def _card_text(self) -> str:
        return str(self)

    def _card(self) -> Card:
        first, *others = self._card_text().splitlines() or [""]
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(self).__name__).capitalize()
        details = [Listing("details", "tag", [line.strip() for line in others])] if others else []
        return Card(kind, first, (), details)


def _html(words: Words) -> str:
    if isinstance(words, str):
        return escape(printable(words))
    text = escape(printable(words.text))
    if words.style == "code":
        return f'<code style="{_CODE}">{text}</code>'
    style = _DIM if words.style == "dim" else f"color:{COLOURS[words.style]};font-weight:600"
    return f'<span style="{style}">{text}</span>'


def _listing_html(listing: Listing) -> str:
    entries, colour = listing.entries, COLOURS[listing.style]
    shown = "".join(f"<li>{_html(Styled(entry, 'code'))}</li>" for entry in entries[:_MOST_ENTRIES])
    more = f"<li>… {len(entries) - _MOST_ENTRIES:,} more</li>" if len(entries) > _MOST_ENTRIES else ""
    is_open = ' open="open"' if len(entries) <= _MOST_ENTRIES else ""
    return (
        f'<details{is_open} style="margin:.2em 0"><summary style="cursor:pointer">'
        f'<span style="color:{colour}">{escape(printable(listing.title))}</span> ({len(entries):,})</summary>'
        f'<ul style="{_LIST}">{shown}{more}</ul></details>'
    )


def _markup(words: Words) -> str:
    if isinstance(words, str):
        return _escaped(words)
    return f"[{_MARKUP[words.style]}]{_escaped(words.text)}[/]"


def _escaped(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace("[", "\\[")


# Values as lists of their fields
# ------------------------------
# A value of the official package prints its full name there, such as `icechunk.config.CachingConfig`. The `repr` of a
# configuration is Python code: `eval` gives an equal value if `icechunk` is the official package or `icefloe.icechunk`.
# `str` is for people. It has a line for each field, and shows the value in effect where a setting is not set. HTML is
# for notebooks, with nested values folded.

_INDENT = "    "
_FIELDS_BOX = "font-size:13px;line-height:1.5;color:inherit;background:transparent"
_FIELD_ROW = "background:transparent;border:none;text-align:left;vertical-align:top"


class ShownField(NamedTuple):
    """A field of a value: its name, its value, and the value in effect if it is None."""

    name: str
    value: Any
    default: Any = None


class WithFields:
    """Base of values that print their fields.

    A subclass sets `_full_name`, its full name in the official package. `_is_code` says whether the fields are
    arguments of the class, so that the `repr` can be evaluated.
    """

    __slots__ = ()
    _full_name: ClassVar[str] = ""
    _is_code: ClassVar[bool] = False

    def _shown_fields(self) -> Iterator[ShownField]:
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            yield ShownField(each.name, getattr(self, each.name))

    def __repr__(self) -> str:
        if (text := _value_text(self)) is not None:
            return text
        if not self._is_code:
            return fields_text(self._full_name, self._shown_fields())
        arguments = "".join(f"\n{_INDENT}{each.name}={_indented(code(each.value))}," for each in self._shown_fields())
        return f"{self._full_name}({arguments}\n)" if arguments else f"{self._full_name}()"

    def __str__(self) -> str:
        if (text := _value_text(self)) is not None:
            return text
        return fields_text(self._full_name, self._shown_fields(), quoted=self._is_code)

    def _repr_html_(self) -> str:
        return fields_html(self._full_name, self._shown_fields(), quoted=self._is_code)


_value_texts: list[Callable[[WithFields], str | None]] = []


def set_value_text(make: Callable[[WithFields], str | None] | None) -> None:
    """Print values as a function says in this process. Where it returns None, and without one, their fields."""
    _value_texts[:] = [] if make is None else [make]


def _value_text(value: WithFields) -> str | None:
    return _value_texts[0](value) if _value_texts else None


def code(value: Any) -> str:
    """Python code of a value. Texts have double quotes."""
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        # With an apostrophe and no double quote in it, `repr` chooses double quotes.
        return repr(value) if '"' in value else '"' + repr("'" + value)[2:]
    if isinstance(value, enum.Enum):
        return f"icechunk.config.{type(value).__name__}.{value.name}"
    if isinstance(value, Mapping):
        items = "".join(f"\n{_INDENT}{code(key)}: {_indented(code(each))}," for key, each in value.items())
        return "{" + items + "\n}" if items else "{}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(code(each) for each in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    return repr(value)


def fields_text(path: str, shown: Iterator[ShownField], *, quoted: bool = False) -> str:
    """A line with the class, and a line for each field. Nested values are indented below their name."""
    lines = [f"<{path}>"]
    for each in shown:
        value = each.default if each.value is None else each.value
        nested = _nested_texts(value)
        if nested is None:
            mark = " (default)" if each.value is None and value is not None else ""
            lines.append(f"{each.name}: {_plain(value, quoted)}{mark}")
        else:
            lines += [f"{each.name}:", *(_INDENT + _indented(text) for text in nested)]
    return "\n".join([*lines, ""])


def fields_html(path: str, shown: Iterator[ShownField], *, quoted: bool = False) -> str:
    """The fields as a table. Nested values are folded."""
    rows = []
    for each in shown:
        value = each.default if each.value is None else each.value
        inner = _nested_html(value)
        if inner is None:
            mark = " (default)" if each.value is None and value is not None else ""
            shown_value = escape(printable(f"{_plain(value, quoted)}{mark}"))
        else:
            shown_value = f"<details><summary>{escape(type(value).__name__)}</summary>{inner}</details>"
        name = escape(each.name)
        cells = f'<th style="{_FIELD_ROW}">{name}</th><td style="{_FIELD_ROW}">{shown_value}</td>'
        rows.append(f'<tr style="{_FIELD_ROW}">{cells}</tr>')
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    head = f"<code>{escape(f'<{path}>')}</code>"
    return f'<div class="icechunk-repr"><div style="{_FIELDS_BOX}">{head}{table}</div></div>'


def _nested_texts(value: Any) -> list[str] | None:
    if isinstance(value, WithFields):
        return [str(value).rstrip("\n")]
    if isinstance(value, Mapping) and any(isinstance(each, WithFields) for each in value.values()):
        return [f"{printable(str(key))}:\n{_INDENT}{_indented(str(each).rstrip())}" for key, each in value.items()]
    return None


def _nested_html(value: Any) -> str | None:
    if isinstance(value, WithFields):
        return value._repr_html_()
    if isinstance(value, Mapping) and any(isinstance(each, WithFields) for each in value.values()):
        return "".join(f"<div>{escape(printable(str(key)))}</div>{_nested_html(each)}" for key, each in value.items())
    return None


def _plain(value: Any, quoted: bool) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, str):
        return code(value) if quoted else printable(value).replace("\n", "\n" + _INDENT)
    return printable(repr(value) if not isinstance(value, tuple) else repr(list(value)))


def _indented(text: str) -> str:
    return text.replace("\n", "\n" + _INDENT)
