"""A history as an object that draws itself wherever it is shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cached_property

from icefloe.display.amounts import format_count
from icefloe.display.card import Card
from icefloe.display.graph import Commit, Layout, Ref, plan_graph
from icefloe.display.graph_svg import graph_svg
from icefloe.display.graph_text import ansi_text, graph_lines, plain_text, rich_markup

_MOST_ROWS_IN_A_PAGE = 500


class AncestryGraph:
    """A drawing of commits, branches and tags.

    `print` shows it with colours where the output is a terminal, a notebook shows it as a picture, `to_svg` saves it.

    Examples
    --------
    >>> import datetime as dt
    >>> day = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    >>> commits = [Commit("B", "A", day, "second"), Commit("A", None, day, "first")]
    >>> print(AncestryGraph(commits, [Ref("main", "branch", "B")]).text(times=False))
    ● B (main) second
    ○ A first
    """

    def __init__(self, commits: Iterable[Commit], refs: Iterable[Ref], *, plain: bool = False) -> None:
        self.commits = tuple(commits)
        self.refs = tuple(refs)
        self.plain = plain

    @cached_property
    def layout(self) -> Layout:
        """Where everything is drawn."""
        trunk = next((ref.snapshot_id for ref in self.refs if ref.kind == "branch" and ref.name == "main"), None)
        return plan_graph(self.commits, trunk)

    def text(self, *, colour: bool = False, times: bool = True) -> str:
        """The graph as text, with the colour codes of a terminal if asked for."""
        lines = graph_lines(self.layout, self.refs, times=times)
        return ansi_text(lines) if colour else plain_text(lines)

    def to_svg(self) -> str:
        """The graph as an SVG document."""
        return graph_svg(self.layout, self.refs, plain=self.plain)

    def __len__(self) -> int:
        return len(self.commits)

    def __str__(self) -> str:
        return self.text(colour=not self.plain and _wants_colour())

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
        picture = graph_svg(shown, self.refs, plain=self.plain, standalone=False)
        return Card("History", self._summary()).html(picture + note)

    def _summary(self) -> str:
        branches = sum(ref.kind == "branch" for ref in self.refs)
        parts = [format_count(len(self), "commit"), format_count(branches, "branch", "branches")]
        return ", ".join([*parts, format_count(len(self.refs) - branches, "tag")])


def _wants_colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
