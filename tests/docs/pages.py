"""Parsing of the project's Markdown pages: code blocks, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+)(?P<info>[^\n`]*)$")
_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+)\)")
_HEADING = re.compile(r"^#+ +(?P<text>.+?) *#*$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. `words` are the words after the language."""

    language: str
    words: frozenset[str]
    line: int
    text: str


def pages() -> list[Path]:
    """Return all pages."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """Return the fenced blocks of a page, in order."""
    lines = page.read_text().splitlines()
    index = 0
    while index < len(lines):
        opening = _FENCE.match(lines[index])
        index += 1
        if opening is None:
            continue
        first = index
        closing = opening["indent"] + opening["fence"]
        while index < len(lines) and lines[index].rstrip() != closing:
            index += 1
        info = opening["info"].split()
        indent = len(opening["indent"])
        text = "\n".join(line[indent:] for line in lines[first:index])
        yield Block(info[0] if info else "", frozenset(info[1:]), first + 1, text + "\n")
        index += 1


def prose(page: Path) -> str:
    """Return a page without its fenced blocks and code spans."""
    kept, fence = [], None
    for line in page.read_text().splitlines():
        match = _FENCE.match(line)
        if fence is None and match is not None:
            fence = match["indent"] + match["fence"]
        elif fence is not None and line.rstrip() == fence:
            fence = None
        elif fence is None:
            kept.append(re.sub(r"`[^`]*`", "``", line))
    return "\n".join(kept)


def links(page: Path) -> list[str]:
    """Return the link targets of a page."""
    return [match["target"] for match in _LINK.finditer(prose(page))]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    found = set()
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading is not None:
            plain = re.sub(r"[^\w\- ]", "", heading["text"].lower())
            found.add(plain.replace(" ", "-"))
    return found
