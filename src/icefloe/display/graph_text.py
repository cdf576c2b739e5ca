"""A history drawn with characters: pieces of text with a style each, then plain, coloured, or as rich markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from icefloe.display.amounts import first_line, short_length
from icefloe.display.graph import Layout, Line, Ref, Row
from icefloe.errors import printable

Piece: TypeAlias = tuple[str, str]
"""Text and its style: a lane colour (`lane0`...), `id`, `branch`, `tag`, `time`, `dim`, or nothing."""

LANES = ("red", "green", "yellow", "blue", "magenta", "cyan")
RICH_STYLES: Mapping[str, str] = {
    **{f"lane{i}": name for i, name in enumerate(LANES)},
    "id": "yellow", "branch": "bold green", "tag": "bold cyan", "time": "dim", "dim": "dim",
}  # fmt: skip
_ANSI: Mapping[str, str] = {
    **{f"lane{i}": f"\x1b[{31 + i}m" for i in range(len(LANES))},
    "id": "\x1b[33m", "branch": "\x1b[1;32m", "tag": "\x1b[1;36m", "time": "\x1b[2m", "dim": "\x1b[2m",
}  # fmt: skip
_RESET = "\x1b[0m"
_ALIGNED_COLUMNS = 8
"""Up to this many columns the labels stand below each other; beyond, each follows its own lines."""


def graph_lines(layout: Layout, refs: Iterable[Ref], *, times: bool = True) -> Iterator[list[Piece]]:
    """The picture line by line, each a list of pieces."""
    names = _by_snapshot(refs)
    length = short_length([row.commit.id for row in layout.rows]) if layout.rows else 0
    for row in layout.rows:
        width = layout.width if layout.width <= _ALIGNED_COLUMNS else _width(row)
        if row.joins:
            yield _joining(row, width)
        yield [*_lanes(row, width), *_label(row, names.get(row.commit.id, ()), length, times=times)]
        if row.cut:
            yield [*_cut(row, width), ("older commits", "dim")]


def plain_text(lines: Iterable[Sequence[Piece]]) -> str:
    """The picture without colours."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def ansi_text(lines: Iterable[Sequence[Piece]]) -> str:
    """The picture with the colours of a terminal."""
    return "\n".join(
        "".join(f"{_ANSI[style]}{text}{_RESET}" if style and text.strip() else text for text, style in line)
        for line in lines
    )


def rich_markup(lines: Iterable[Sequence[Piece]]) -> str:
    """The picture in the markup of rich."""
    return "\n".join(
        "".join(f"[{RICH_STYLES[style]}]{_escaped(text)}[/]" if style else _escaped(text) for text, style in line)
        for line in lines
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("[", "\\[")


def _by_snapshot(refs: Iterable[Ref]) -> dict[str, list[Ref]]:
    found: dict[str, list[Ref]] = {}
    for ref in sorted(refs, key=lambda ref: (ref.kind, ref.name != "main", ref.name)):
        found.setdefault(ref.snapshot_id, []).append(ref)
    return found


def lane_style(line: Line) -> str:
    """The style of a line; colours come round again."""
    return f"lane{line.colour % len(LANES)}"


def _width(row: Row) -> int:
    return 1 + max(line.column for line in (row.own, *row.joins, *row.passing))


def _lanes(row: Row, width: int) -> list[Piece]:
    cells = _passing(row, width)
    cells[row.own.column] = ("●" if row.commit.parent_id is not None else "○", lane_style(row.own))
    return _spaced(cells)


def _cut(row: Row, width: int) -> list[Piece]:
    cells = _passing(row, width)
    cells[row.own.column] = ("⋮", lane_style(row.own))
    return _spaced(cells)


def _passing(row: Row, width: int) -> list[Piece]:
    cells: list[Piece] = [(" ", "")] * width
    for line in row.passing:
        cells[line.column] = ("│", lane_style(line))
    return cells


def _spaced(cells: Sequence[Piece]) -> list[Piece]:
    return [piece for cell in cells for piece in (cell, (" ", ""))]


def _joining(row: Row, width: int) -> list[Piece]:
    """The line above a commit in which others come in from the right."""
    cells = _passing(row, width)
    joins = {line.column: line for line in row.joins}
    last = max(joins)
    pieces: list[Piece] = []
    for column in range(width):
        # The stroke takes the colour of the nearest line that comes in.
        incoming = next((joins[c] for c in sorted(joins) if c >= column), row.own)
        passes = cells[column][0] == "│"
        if column == row.own.column:
            pieces.append(("├" if row.from_above else "╭", lane_style(row.own)))
        elif column in joins:
            pieces.append(("╯" if column == last else "┴", lane_style(joins[column])))
        elif row.own.column < column < last:
            pieces.append(("┼" if passes else "─", cells[column][1] if passes else lane_style(incoming)))
        else:
            pieces.append(cells[column])
        inside = row.own.column <= column < last
        following = next((joins[c] for c in sorted(joins) if c > column), row.own)
        pieces.append(("─", lane_style(following)) if inside else (" ", ""))
    return pieces


def _label(row: Row, refs: Sequence[Ref], length: int, *, times: bool) -> Iterator[Piece]:
    yield (printable(row.commit.id[:length]), "id")
    if refs:
        yield (" (", "dim")
        for index, ref in enumerate(refs):
            if index:
                yield (", ", "dim")
            yield (printable(ref.name if ref.kind == "branch" else f"tag: {ref.name}"), ref.kind)
        yield (")", "dim")
    yield (f" {first_line(row.commit.message)}", "")
    if times:
        yield (f"  {row.commit.written_at:%Y-%m-%d %H:%M}", "time")
