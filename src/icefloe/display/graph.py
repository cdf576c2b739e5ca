"""Where each commit of a history is drawn: its row, its column, and the lines that lead to it."""

from __future__ import annotations

import datetime as dt
import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as a picture needs it."""

    id: str
    parent_id: str | None
    written_at: dt.datetime
    message: str


@dataclass(frozen=True, slots=True)
class Ref:
    """A name that points at a commit."""

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
    """One commit and what surrounds it.

    Lines in `joins` come from above and end here; they are always to the right of the commit. Those in `passing` go by.
    """

    commit: Commit
    own: Line
    from_above: bool
    """Whether a line comes down to the commit in its own column."""
    joins: tuple[Line, ...]
    passing: tuple[Line, ...]
    cut: bool
    """Whether the parent exists and is not part of the picture."""

    @property
    def goes_on(self) -> bool:
        """Whether a line leaves downwards."""
        return self.commit.parent_id is not None and not self.cut


@dataclass(frozen=True, slots=True)
class Edge:
    """From a commit down to its parent, by index of their rows."""

    child: int
    parent: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole picture, newest commit first."""

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
    """The columns while rows are laid out from the newest to the oldest."""

    columns: list[_Lane | None] = field(default_factory=list)
    colours: int = 0

    def waiting_for(self, commit_id: str) -> list[int]:
        return [i for i, lane in enumerate(self.columns) if lane is not None and lane.waits_for == commit_id]

    def open(self, commit_id: str, *, drawn: bool) -> int:
        lane = _Lane(commit_id, self.colours, drawn)
        self.colours += 1
        for column, held in enumerate(self.columns):
            if held is None:
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
    """Commits so that no parent comes before its children, otherwise by time."""
    known = {commit.id: commit for commit in commits}
    children = Counter(c.parent_id for c in known.values() if c.parent_id in known)
    ready = [_entry(commit) for commit in known.values() if not children[commit.id]]
    heapq.heapify(ready)
    ordered: list[Commit] = []
    while ready:
        commit = known[heapq.heappop(ready)[1]]
        ordered.append(commit)
        parent = known.get(commit.parent_id) if commit.parent_id is not None else None
        if parent is not None:
            children[parent.id] -= 1
            if not children[parent.id]:
                heapq.heappush(ready, _entry(parent))
    return ordered


def _entry(commit: Commit) -> tuple[float, str]:
    return -commit.written_at.timestamp(), commit.id


def plan_graph(commits: Iterable[Commit], trunk: str | None = None) -> Layout:
    """Lay out a forest of commits; the commit `trunk` (the tip of the main branch) stands in the first column."""
    ordered = newest_first(commits)
    known = {commit.id for commit in ordered}
    lanes = _Lanes()
    if trunk in known:
        assert trunk is not None
        lanes.open(trunk, drawn=False)
    rows = [_place(commit, lanes, known) for commit in ordered]
    return Layout(tuple(rows), _edges(rows), width=len(lanes.columns))


def _place(commit: Commit, lanes: _Lanes, known: set[str]) -> Row:
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
    return Row(commit, own, from_above, joins, passing, cut=parent is not None and not goes_on)


def _edges(rows: Sequence[Row]) -> tuple[Edge, ...]:
    place = {row.commit.id: index for index, row in enumerate(rows)}
    return tuple(
        Edge(index, place[row.commit.parent_id])
        for index, row in enumerate(rows)
        if row.commit.parent_id is not None and row.goes_on
    )
