"""A history drawn as SVG, to be shown in a page or saved."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from icefloe.display.amounts import first_line, short_length
from icefloe.display.card import COLOURS
from icefloe.display.graph import Layout, Line, Ref
from icefloe.errors import printable

_ROW_PX, _LANE_PX, _MARGIN_PX, _RADIUS_PX, _CHARACTER_PX = 24, 18, 14, 5, 7.3
_LANE_COLOURS = ("#e5534b", "#2da44e", "#c69026", "#4184e4", "#a371f7", "#1b9ab8")
_FONT = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:12px"
# A file of its own has no page to take the colour of its text from.
_STANDALONE = "<style>svg{color:#24292f}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>"


def graph_svg(layout: Layout, refs: Iterable[Ref], *, plain: bool = False, standalone: bool = True) -> str:
    """The picture as one SVG element; `plain` leaves all colours to the page."""
    names: dict[str, list[Ref]] = {}
    for ref in refs:
        names.setdefault(ref.snapshot_id, []).append(ref)
    length = short_length([row.commit.id for row in layout.rows]) if layout.rows else 0
    text_x = 2 * _MARGIN_PX + _LANE_PX * max(layout.width - 1, 0)
    lines = [_edge(layout, edge.child, edge.parent, plain) for edge in layout.edges]
    dots, labels, widest = [], [], 0.0
    for index, row in enumerate(layout.rows):
        x, y = _x(row.own), _y(index)
        colour = _colour(row.own, plain)
        fill = colour if row.commit.parent_id is not None else "none"
        when = f"{row.commit.written_at:%Y-%m-%d %H:%M:%S} UTC"
        title = escape(printable(f"{row.commit.id}\n{when}\n{row.commit.message}"))
        dots.append(
            f'<circle cx="{x}" cy="{y}" r="{_RADIUS_PX}" fill="{fill}" stroke="{colour}" stroke-width="2">'
            f"<title>{title}</title></circle>"
        )
        if row.cut:
            dots.append(_stroke(f"M{x} {y + 5}V{y + _ROW_PX - 4}", colour, dashed=True))
        found = sorted(names.get(row.commit.id, ()), key=lambda ref: (ref.kind, ref.name != "main", ref.name))
        label, characters = _label(row.commit.id[:length], found, first_line(row.commit.message), plain)
        labels.append(f'<text x="{text_x}" y="{y + 4}" fill="currentColor">{label}</text>')
        widest = max(widest, characters * _CHARACTER_PX)
    width = round(text_x + widest + _MARGIN_PX)
    height = _ROW_PX * max(len(layout.rows), 1) + (_ROW_PX if layout.rows and layout.rows[-1].cut else 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="{_FONT};white-space:pre" role="img">'
        f"{_STANDALONE if standalone else ''}{''.join(lines)}{''.join(dots)}{''.join(labels)}</svg>"
    )


def _x(line: Line) -> int:
    return _MARGIN_PX + _LANE_PX * line.column


def _y(index: int) -> int:
    return _ROW_PX // 2 + _ROW_PX * index


def _colour(line: Line, plain: bool) -> str:
    return "currentColor" if plain else _LANE_COLOURS[line.colour % len(_LANE_COLOURS)]


def _edge(layout: Layout, child: int, parent: int, plain: bool) -> str:
    start, end = layout.rows[child].own, layout.rows[parent].own
    # The first commit is a ring: the line stops at its edge.
    into = 0 if layout.rows[parent].commit.parent_id is not None else _RADIUS_PX
    x, y, to_x, to_y = _x(start), _y(child), _x(end), _y(parent) - into
    colour = _colour(start, plain)
    if x == to_x:
        return _stroke(f"M{x} {y}V{to_y}", colour)
    bend, middle = _y(parent) - _ROW_PX, _y(parent) - _ROW_PX // 2
    return _stroke(f"M{x} {y}V{bend}C{x} {middle} {to_x} {middle} {to_x} {to_y}", colour)


def _stroke(path: str, colour: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="2 3"' if dashed else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'


def _label(short_id: str, refs: list[Ref], message: str, plain: bool) -> tuple[str, int]:
    """The text of a row, and how many characters wide it is."""
    spans, characters = [f'<tspan fill-opacity="0.65">{escape(printable(short_id))}</tspan>'], len(short_id)
    for index, ref in enumerate(refs):
        name = ref.name if ref.kind == "branch" else f"tag: {ref.name}"
        name += "," if index + 1 < len(refs) else ""
        colour = "currentColor" if plain else COLOURS[ref.kind]
        spans.append(f'<tspan fill="{colour}" font-weight="bold"> {escape(printable(name))}</tspan>')
        characters += len(name) + 2
    spans.append(f" {escape(printable(message))}")
    return "".join(spans), characters + len(message) + 1
