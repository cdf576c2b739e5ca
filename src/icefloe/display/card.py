"""Numbers and times as text, and cards of facts for notebooks (HTML) and terminals (rich markup)."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

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
_LIST = "margin:.1em 0 .3em 1.2em;padding:0;list-style:none"
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

    def html(self, picture: str = "") -> str:
        """The card as HTML. `picture` is HTML below the facts."""
        rows = "".join(
            f'<tr style="{_ROW}"><th style="{_LABEL}">{_html(label)}</th><td style="{_VALUE}">{_html(words)}</td></tr>'
            for label, words in self.facts
        )
        table = f'<table style="{_TABLE}">{rows}</table>' if rows else ""
        lists = "".join(_listing_html(listing) for listing in self.listings)
        return (
            f'<div class="icefloe-card" style="{_CARD}"><div style="{_HEAD}">'
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


class Described:
    """Base of objects with a card. Notebooks and rich call these two methods."""

    __slots__ = ()

    def _card(self) -> Card:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self._card().html()

    def __rich__(self) -> str:
        return self._card().markup()


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
