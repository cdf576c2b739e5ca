"""The graph of a history: its layout, drawn as text or as SVG."""

from __future__ import annotations

import datetime as dt
import heapq
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Literal, TypeAlias

from icefloe.display.card import COLOURS, Card, first_line, format_count, short_length
from icefloe.errors import printable


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the graph."""

    id: str
    parent_id: str | None
    written_at: dt.datetime
    message: str
    merged_id: str | None = None
    """The tip of the branch that the commit merged."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or a tag."""

    name: str
    kind: Literal["branch", "tag"]
    snapshot_id: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line in a column; lines of one colour belong to one branch."""

    column: int
    colour: int


@dataclass(frozen=True, slots=True)
class Row:
    """One commit and the lines next to it.

    Lines in `joins` come from above and end here. They are always to the right of the commit. Lines in `passing`
    continue.
    """

    commit: Commit
    own: Line
    from_above: bool
    """Whether a line from above leads to the commit in its own column."""
    joins: tuple[Line, ...]
    passing: tuple[Line, ...]
    cut: bool
    """Whether the parent exists but is not in the graph."""
    merges: Line | None = None
    """The line that leads to the merged commit."""
    opens: bool = False
    """Whether the line to the merged commit begins here. Otherwise it is one of `passing`."""

    @property
    def goes_on(self) -> bool:
        """Whether a line continues below."""
        return self.commit.parent_id is not None and not self.cut


@dataclass(frozen=True, slots=True)
class Edge:
    """The edge from a commit to its parent or to the commit that it merged, as row indexes."""

    child: int
    parent: int
    merge: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a graph, newest commit first."""

    rows: tuple[Row, ...]
    edges: tuple[Edge, ...]
    width: int
    """Number of columns."""


@dataclass(slots=True)
class _Lane:
    waits_for: str
    colour: int
    drawn: bool = True


@dataclass(slots=True)
class _Lanes:
    """The state of the columns during the layout, from the newest to the oldest row."""

    columns: list[_Lane | None] = field(default_factory=list)
    colours: int = 0

    def waiting_for(self, commit_id: str) -> list[int]:
        return [i for i, lane in enumerate(self.columns) if lane is not None and lane.waits_for == commit_id]

    def open(self, commit_id: str, *, drawn: bool) -> int:
        lane = _Lane(commit_id, self.colours, drawn)
        self.colours += 1
        for column, occupant in enumerate(self.columns):
            if occupant is None:
                self.columns[column] = lane
                return column
        self.columns.append(lane)
        return len(self.columns) - 1

    def line(self, column: int) -> Line:
        lane = self.columns[column]
        assert lane is not None
        return Line(column, lane.colour)

    def is_drawn(self, column: int) -> bool:
        lane = self.columns[column]
        return lane is not None and lane.drawn


def newest_first(commits: Iterable[Commit]) -> list[Commit]:
    """Sort commits by time, with children before parents."""
    known = {commit.id: commit for commit in commits}
    ordered = _sorted(known)
    if len(ordered) == len(known):
        return ordered
    # What a commit merged is metadata, which anybody can write. Merges that form a cycle are not drawn.
    return _sorted({commit.id: replace(commit, merged_id=None) for commit in known.values()})


def _sorted(known: Mapping[str, Commit]) -> list[Commit]:
    children = Counter(parent for commit in known.values() for parent in _parents(commit) if parent in known)
    ready = [_entry(commit) for commit in known.values() if not children[commit.id]]
    heapq.heapify(ready)
    ordered: list[Commit] = []
    while ready:
        commit = known[heapq.heappop(ready)[1]]
        ordered.append(commit)
        for parent in _parents(commit):
            if parent in known:
                children[parent] -= 1
                if not children[parent]:
                    heapq.heappush(ready, _entry(known[parent]))
    return ordered


def _parents(commit: Commit) -> list[str]:
    """The parent and the merged commit."""
    return list(dict.fromkeys(parent for parent in (commit.parent_id, commit.merged_id) if parent is not None))


def _entry(commit: Commit) -> tuple[float, str]:
    return -commit.written_at.timestamp(), commit.id


def plan_graph(commits: Iterable[Commit], trunk: str | None = None) -> Layout:
    """Lay out commits. The commit `trunk`, the tip of the main branch, is in the first column."""
    ordered = newest_first(commits)
    known = {commit.id for commit in ordered}
    lanes = _Lanes()
    if trunk in known:
        assert trunk is not None
        lanes.open(trunk, drawn=False)
    rows = [_layout_row(commit, lanes, known) for commit in ordered]
    return Layout(tuple(rows), _edges(rows), width=len(lanes.columns))


def _layout_row(commit: Commit, lanes: _Lanes, known: set[str]) -> Row:
    waiting = lanes.waiting_for(commit.id)
    column = waiting[0] if waiting else lanes.open(commit.id, drawn=False)
    own, from_above = lanes.line(column), lanes.is_drawn(column)
    joins = tuple(lanes.line(other) for other in waiting[1:])
    for other in waiting[1:]:
        lanes.columns[other] = None
    passing = tuple(lanes.line(i) for i in range(len(lanes.columns)) if i != column and lanes.is_drawn(i))
    parent = commit.parent_id
    goes_on = parent is not None and parent in known
    lanes.columns[column] = _Lane(parent, own.colour) if goes_on and parent is not None else None
    merged = commit.merged_id if commit.merged_id in known and commit.merged_id not in (parent, commit.id) else None
    merges, opens = _merge_line(merged, lanes) if merged is not None else (None, False)
    cut = parent is not None and not goes_on
    return Row(commit, own, from_above, joins, passing, cut, merges, opens)


def _merge_line(merged: str, lanes: _Lanes) -> tuple[Line, bool]:
    """The line to a merged commit, and whether it is new."""
    for column in lanes.waiting_for(merged):
        lane = lanes.columns[column]
        assert lane is not None
        opens, lane.drawn = not lane.drawn, True
        return lanes.line(column), opens
    return lanes.line(lanes.open(merged, drawn=True)), True


def _edges(rows: Sequence[Row]) -> tuple[Edge, ...]:
    position = {row.commit.id: index for index, row in enumerate(rows)}
    found = []
    for index, row in enumerate(rows):
        if row.commit.parent_id is not None and row.goes_on:
            found.append(Edge(index, position[row.commit.parent_id]))
        if row.commit.merged_id is not None and row.merges is not None:
            found.append(Edge(index, position[row.commit.merged_id], merge=True))
    return tuple(found)


Piece: TypeAlias = tuple[str, str]
"""Text and its style: a lane colour (`lane0`...), `id`, `branch`, `tag`, `time`, `dim`, or nothing."""

LANES = ("red", "green", "yellow", "blue", "magenta", "cyan")
RICH_STYLES: Mapping[str, str] = {
    **{f"lane{i}": name for i, name in enumerate(LANES)},
    "id": "yellow",
    "branch": "bold green",
    "tag": "bold cyan",
    "time": "dim",
    "dim": "dim",
}
_ANSI: Mapping[str, str] = {
    **{f"lane{i}": f"\x1b[{31 + i}m" for i in range(len(LANES))},
    "id": "\x1b[33m",
    "branch": "\x1b[1;32m",
    "tag": "\x1b[1;36m",
    "time": "\x1b[2m",
    "dim": "\x1b[2m",
}
_RESET = "\x1b[0m"
_ALIGNED_COLUMNS = 8
"""Up to this many columns, labels are aligned. With more columns, each label follows its lines."""


def graph_lines(layout: Layout, refs: Iterable[Ref], *, times: bool = True) -> Iterator[list[Piece]]:
    """The graph as lines. Each line is a list of pieces."""
    names = _by_snapshot(refs)
    length = short_length([row.commit.id for row in layout.rows]) if layout.rows else 0
    for row in layout.rows:
        width = layout.width if layout.width <= _ALIGNED_COLUMNS else _width(row)
        if row.joins:
            yield _joining(row, width)
        yield [*_lanes(row, width), *_label(row, names.get(row.commit.id, ()), length, times=times)]
        if row.merges is not None and row.merges.column != row.own.column:
            yield _merging(row, row.merges, width)
        if row.cut:
            yield [*_cut(row, width), ("older commits", "dim")]


def plain_text(lines: Iterable[Sequence[Piece]]) -> str:
    """The graph as text without colours."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def ansi_text(lines: Iterable[Sequence[Piece]]) -> str:
    """The graph as text with terminal colours."""
    return "\n".join(
        "".join(f"{_ANSI[style]}{text}{_RESET}" if style and text.strip() else text for text, style in line)
        for line in lines
    )


def rich_markup(lines: Iterable[Sequence[Piece]]) -> str:
    """The graph as rich markup."""
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
    """The style of a line. Colours repeat."""
    return f"lane{line.colour % len(LANES)}"


def _width(row: Row) -> int:
    lines = [row.own, *row.joins, *row.passing]
    if row.merges is not None:
        lines.append(row.merges)
    return 1 + max(line.column for line in lines)


def _lanes(row: Row, width: int) -> list[Piece]:
    cells = _passing(row, width)
    cells[row.own.column] = ("●" if row.commit.parent_id is not None else "○", lane_style(row.own))
    return _spaced(cells)


def _cut(row: Row, width: int) -> list[Piece]:
    cells = _passing(row, width)
    if row.merges is not None:
        cells[row.merges.column] = ("│", lane_style(row.merges))
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
    """The text line above a commit that joins lines from the right."""
    cells = _passing(row, width)
    joins = {line.column: line for line in row.joins}
    last = max(joins)
    pieces: list[Piece] = []
    for column in range(width):
        # The stroke has the colour of the nearest joining line.
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


def _merging(row: Row, merged: Line, width: int) -> list[Piece]:
    """The text line below a commit that connects it with the line of the commit that it merged."""
    cells = _passing(row, width)
    left, right = sorted((row.own.column, merged.column))
    own = ("├╰", "┤╯")[row.own.column == right][not (row.goes_on or row.cut)]
    end = ("┤╮", "├╭")[merged.column == left][row.opens]
    pieces: list[Piece] = []
    for column in range(width):
        if column == row.own.column:
            pieces.append((own, lane_style(row.own)))
        elif column == merged.column:
            pieces.append((end, lane_style(merged)))
        elif left < column < right:
            pieces.append(("┼", cells[column][1]) if cells[column][0] == "│" else ("─", lane_style(merged)))
        else:
            pieces.append(cells[column])
        pieces.append(("─", lane_style(merged)) if left <= column < right else (" ", ""))
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


_ROW_PX, _LANE_PX, _MARGIN_PX, _RADIUS_PX, _CHARACTER_PX = 24, 18, 14, 5, 7.3
_LANE_COLOURS = ("#e5534b", "#2da44e", "#c69026", "#4184e4", "#a371f7", "#1b9ab8")
_FONT = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:12px"
# A standalone file cannot inherit the text colour of a page.
_STANDALONE = "<style>svg{color:#24292f}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>"


def graph_svg(layout: Layout, refs: Iterable[Ref], *, plain: bool = False, standalone: bool = True) -> str:
    """The graph as one SVG element. `plain` uses the colours of the page."""
    names: dict[str, list[Ref]] = {}
    for ref in refs:
        names.setdefault(ref.snapshot_id, []).append(ref)
    length = short_length([row.commit.id for row in layout.rows]) if layout.rows else 0
    text_x = 2 * _MARGIN_PX + _LANE_PX * max(layout.width - 1, 0)
    lines = [_edge(layout, edge, plain) for edge in layout.edges]
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
        label, characters = _svg_label(row.commit.id[:length], found, first_line(row.commit.message), plain)
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


def _edge(layout: Layout, edge: Edge, plain: bool) -> str:
    child, parent = edge.child, edge.parent
    start, end = layout.rows[child].own, layout.rows[parent].own
    # The first commit is a ring. The line stops at its edge.
    into = 0 if layout.rows[parent].commit.parent_id is not None else _RADIUS_PX
    x, y, to_x, to_y = _x(start), _y(child), _x(end), _y(parent) - into
    lane = layout.rows[child].merges if edge.merge else None
    if lane is not None:
        colour = _colour(lane, plain)
        if parent == child + 1:
            return _stroke(f"M{x} {y}C{x} {y + _ROW_PX // 2} {to_x} {y + _ROW_PX // 2} {to_x} {to_y}", colour)
        start_x, x, y = x, _x(lane), y + _ROW_PX
        path = f"M{start_x} {y - _ROW_PX}C{start_x} {y - _ROW_PX // 2} {x} {y - _ROW_PX // 2} {x} {y}"
    else:
        colour, path = _colour(start, plain), f"M{x} {y}"
    if x == to_x:
        return _stroke(f"{path}V{to_y}", colour)
    bend, middle = _y(parent) - _ROW_PX, _y(parent) - _ROW_PX // 2
    return _stroke(f"{path}V{bend}C{x} {middle} {to_x} {middle} {to_x} {to_y}", colour)


def _stroke(path: str, colour: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="2 3"' if dashed else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'


def _svg_label(short_id: str, refs: list[Ref], message: str, plain: bool) -> tuple[str, int]:
    """The text of a row, and its width in characters."""
    spans, characters = [f'<tspan fill-opacity="0.65">{escape(printable(short_id))}</tspan>'], len(short_id)
    for index, ref in enumerate(refs):
        name = ref.name if ref.kind == "branch" else f"tag: {ref.name}"
        name += "," if index + 1 < len(refs) else ""
        colour = "currentColor" if plain else COLOURS[ref.kind]
        spans.append(f'<tspan fill="{colour}" font-weight="bold"> {escape(printable(name))}</tspan>')
        characters += len(name) + 2
    spans.append(f" {escape(printable(message))}")
    return "".join(spans), characters + len(message) + 1


_MOST_ROWS_IN_A_PAGE = 500


class AncestryGraph:
    """A drawing of commits, branches and tags.

    `print` writes it as text, with colours on a terminal. Notebooks show it as SVG. `to_svg` returns an SVG document.

    Parameters
    ----------
    commits
        The commits to draw.
    refs
        The branches and tags to draw.
    plain
        Whether to draw without colours. None uses colours in notebooks and on terminals.

    Examples
    --------
    >>> import datetime as dt
    >>> day = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    >>> commits = [Commit("B", "A", day, "second"), Commit("A", None, day, "first")]
    >>> print(AncestryGraph(commits, [Ref("main", "branch", "B")]).text(times=False))
    ● B (main) second
    ○ A first
    """

    def __init__(self, commits: Iterable[Commit], refs: Iterable[Ref], *, plain: bool | None = None) -> None:
        self.commits = tuple(commits)
        self.refs = tuple(refs)
        self.plain = plain

    @cached_property
    def layout(self) -> Layout:
        """The layout of the graph."""
        trunk = next((ref.snapshot_id for ref in self.refs if ref.kind == "branch" and ref.name == "main"), None)
        return plan_graph(self.commits, trunk)

    def text(self, *, colour: bool = False, times: bool = True) -> str:
        """Return the graph as text.

        Parameters
        ----------
        colour
            Whether to use the colours of a terminal.
        times
            Whether to show the times of the commits.

        Returns
        -------
        str
            One line per commit, newest first.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> print(repo.ancestry_graph().text(times=False))
        ○ ... (main) Repository initialized
        """
        lines = graph_lines(self.layout, self.refs, times=times)
        return ansi_text(lines) if colour else plain_text(lines)

    def to_svg(self) -> str:
        """Return the graph as an SVG document.

        Returns
        -------
        str
            The document.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.ancestry_graph().to_svg()[:4]
        '<svg'
        """
        return graph_svg(self.layout, self.refs, plain=bool(self.plain))

    def __len__(self) -> int:
        return len(self.commits)

    def __str__(self) -> str:
        return self.text(colour=_wants_colour() if self.plain is None else not self.plain)

    def __repr__(self) -> str:
        return f"<icefloe.AncestryGraph {self._summary()}>"

    def __rich__(self) -> str:
        return rich_markup(graph_lines(self.layout, self.refs))

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _repr_html_(self) -> str:
        shown = self.layout
        note = ""
        if len(shown.rows) > _MOST_ROWS_IN_A_PAGE:
            rest = len(shown.rows) - _MOST_ROWS_IN_A_PAGE
            note = f"<div>… {rest:,} older commits: print the graph, or see <code>to_svg()</code></div>"
            edges = tuple(edge for edge in shown.edges if edge.parent < _MOST_ROWS_IN_A_PAGE)
            shown = Layout(shown.rows[:_MOST_ROWS_IN_A_PAGE], edges, shown.width)
        picture = graph_svg(shown, self.refs, plain=bool(self.plain), standalone=False)
        return Card("History", self._summary()).html(picture + note)

    def _summary(self) -> str:
        branches = sum(ref.kind == "branch" for ref in self.refs)
        parts = [format_count(len(self), "commit"), format_count(branches, "branch", "branches")]
        return ", ".join([*parts, format_count(len(self.refs) - branches, "tag")])


def _wants_colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
