"""HTML for notebooks: cards of facts and lists that read well on dark and light pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

# Colours come from the page (inherit, currentColor) or stand in the middle, so that both kinds of page can be read.
_CARD = (
    "display:inline-block;max-width:100%;overflow-x:auto;border:1px solid rgba(128,128,128,.4);border-radius:6px;"
    "padding:.55em .9em .7em;font-size:13px;line-height:1.5;color:inherit;background:transparent"
)
_HEAD = "margin-bottom:.35em;white-space:nowrap"
_KIND = "opacity:.65"
_LABEL = "text-align:left;vertical-align:top;padding:0 1.2em 0 0;opacity:.65;font-weight:normal;white-space:nowrap"
_VALUE = "text-align:left;vertical-align:top;padding:0"
_TABLE = "border:none;border-collapse:collapse;margin:0;background:transparent;color:inherit"
_ROW = "background:transparent;border:none"
_CODE = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.95em;background:none;color:inherit"
_PILL = "border-radius:9px;padding:0 .6em;margin-right:.4em;border:1px solid {colour};color:{colour};white-space:nowrap"
COLOURS = {"branch": "#2da44e", "tag": "#1b9ab8", "added": "#2da44e", "removed": "#e5534b", "changed": "#c69026"}


@dataclass(frozen=True, slots=True)
class Html:
    """Text that is HTML already; everything else is escaped."""

    text: str


Fact: TypeAlias = tuple[str, str | Html]
"""A label and what is said about it."""


def html_of(value: str | Html) -> str:
    """A value as HTML."""
    return value.text if isinstance(value, Html) else escape(value)


def code(text: str) -> Html:
    """An id, path or address."""
    return Html(f'<code style="{_CODE}">{escape(text)}</code>')


def pill(text: str, kind: str) -> Html:
    """A small label: `branch`, `tag`, `added`, `removed` or `changed`."""
    return Html(f'<span style="{_PILL.format(colour=COLOURS[kind])}">{escape(text)}</span>')


def joined(parts: Iterable[str | Html], separator: str = " ") -> Html:
    """Several values one after the other."""
    return Html(separator.join(html_of(part) for part in parts))


def card(kind: str, title: str | Html, facts: Iterable[Fact], body: Html | None = None) -> str:
    """A framed card: what it is, its name, its facts, and anything below them."""
    rows = "".join(
        f'<tr style="{_ROW}"><th style="{_LABEL}">{escape(label)}</th><td style="{_VALUE}">{html_of(value)}</td></tr>'
        for label, value in facts
    )
    table = f'<table style="{_TABLE}">{rows}</table>' if rows else ""
    return (
        f'<div class="icefloe-card" style="{_CARD}"><div style="{_HEAD}">'
        f'<span style="{_KIND}">{escape(kind)}</span> <b>{html_of(title)}</b></div>'
        f"{table}{body.text if body is not None else ''}</div>"
    )


def listing(title: str, entries: Sequence[str | Html], *, kind: str, limit: int = 20) -> Html:
    """A list that can be folded; open when it is short."""
    shown = "".join(f"<li>{html_of(entry)}</li>" for entry in entries[:limit])
    more = f"<li>… {len(entries) - limit:,} more</li>" if len(entries) > limit else ""
    is_open = " open" if len(entries) <= limit else ""
    return Html(
        f'<details{is_open} style="margin:.2em 0"><summary style="cursor:pointer">'
        f'<span style="color:{COLOURS[kind]}">{escape(title)}</span> ({len(entries):,})</summary>'
        f'<ul style="margin:.1em 0 .3em 1.2em;padding:0;list-style:none">{shown}{more}</ul></details>'
    )
