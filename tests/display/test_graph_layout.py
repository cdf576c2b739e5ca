"""A drawing of history holds every commit once, and its lines connect each commit with its parent."""

from __future__ import annotations

import datetime as dt
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.display.graph import AncestryGraph, Commit, Layout, Ref, graph_lines, newest_first, plain_text, plan_graph

DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@st.composite
def histories(draw: st.DrawFn) -> list[Commit]:
    """Forests of commits; clocks go wrong, and some parents are unknown."""
    count = draw(st.integers(1, 30))
    commits = []
    for number in range(count):
        parent = draw(st.one_of(st.none(), st.integers(0, number - 1), st.just(-1))) if number else None
        known = None if parent is None else "unknown" if parent == -1 else f"C{parent:03}"
        minute = draw(st.integers(0, 50))
        commits.append(Commit(f"C{number:03}", known, DAY + dt.timedelta(minutes=minute), f"commit {number}"))
    return draw(st.permutations(commits))


@st.composite
def merged_histories(draw: st.DrawFn) -> list[Commit]:
    """Histories in which commits say that they merged others: older, newer, unknown or themselves."""
    commits = draw(histories())
    names = st.sampled_from([None, "unknown", *(commit.id for commit in commits)])
    return [replace(commit, merged_id=draw(names)) for commit in commits]


def check(layout: Layout, commits: list[Commit]) -> None:
    place = {row.commit.id: index for index, row in enumerate(layout.rows)}
    assert sorted(place) == sorted(commit.id for commit in commits)
    assert len(layout.rows) == len(commits)
    known = {(c.id, c.parent_id) for c in commits if c.parent_id in place}
    drawn = {(layout.rows[e.child].commit.id, layout.rows[e.parent].commit.id) for e in layout.edges if not e.merge}
    assert drawn == known
    for edge in layout.edges:
        assert edge.child < edge.parent
        child, parent = layout.rows[edge.child], layout.rows[edge.parent]
        if edge.merge:
            assert child.merges is not None and child.commit.merged_id == parent.commit.id
            column = child.merges.column
        else:
            column = child.own.column
        # The line runs down in its column, alone, and ends in the row of the parent.
        for row in layout.rows[edge.child + 1 : edge.parent]:
            assert column in [line.column for line in row.passing]
        ends = [line.column for line in parent.joins] + ([parent.own.column] if parent.from_above else [])
        assert column in ends
    for row in layout.rows:
        columns = [row.own.column, *(line.column for line in row.passing)]
        assert len(set(columns)) == len(columns)
        assert max(columns + [line.column for line in row.joins]) < layout.width
        assert all(line.column > row.own.column for line in row.joins)
        assert row.cut == (row.commit.parent_id is not None and row.commit.parent_id not in place)


@given(histories())
def test_every_commit_is_drawn_once_and_lines_connect(commits: list[Commit]) -> None:
    check(plan_graph(commits), commits)


@given(histories(), st.data())
def test_the_trunk_stands_in_the_first_column(commits: list[Commit], data: st.DataObject) -> None:
    trunk = data.draw(st.sampled_from(commits)).id
    layout = plan_graph(commits, trunk)
    check(layout, commits)
    assert next(row for row in layout.rows if row.commit.id == trunk).own.column == 0


@given(merged_histories())
def test_merges_are_lines_to_the_merged_commit(commits: list[Commit]) -> None:
    layout = plan_graph(commits)
    check(layout, commits)
    lines = list(graph_lines(layout, []))
    assert sum("●" in text or "○" in text for line in lines for text, _ in line) == len(commits)
    ElementTree.fromstring(AncestryGraph(commits, []).to_svg())


def test_a_merge_is_drawn_as_in_git() -> None:
    first = Commit("A", None, DAY, "first")
    side = Commit("B", "A", DAY + dt.timedelta(hours=1), "side")
    trunk = Commit("C", "A", DAY + dt.timedelta(hours=2), "trunk")
    merge = Commit("D", "C", DAY + dt.timedelta(hours=3), "merge", merged_id="B")
    graph = AncestryGraph([first, side, trunk, merge], [Ref("main", "branch", "D"), Ref("side", "branch", "B")])
    assert graph.text(times=False).splitlines() == [
        "●   D (main) merge",
        "├─╮",
        "● │ C trunk",
        "│ ● B (side) side",
        "├─╯",
        "○   A first",
    ]


@given(histories())
def test_no_parent_comes_before_its_children(commits: list[Commit]) -> None:
    ordered = newest_first(commits)
    place = {commit.id: index for index, commit in enumerate(ordered)}
    assert all(place[c.id] < place[c.parent_id] for c in ordered if c.parent_id in place)


@given(histories())
def test_text_and_picture_name_every_commit(commits: list[Commit]) -> None:
    graph = AncestryGraph(commits, [Ref("main", "branch", commits[0].id), Ref("v<1>", "tag", commits[-1].id)])
    text = graph.text()
    assert all(f"{commit.id} " in text for commit in commits)
    assert "\x1b" not in text
    assert "\x1b" in graph.text(colour=True)
    for picture in (graph.to_svg(), graph._repr_html_()):
        tree = ElementTree.fromstring(picture.replace("&nbsp;", " "))
        circles = [element for element in tree.iter() if element.tag.endswith("circle")]
        assert len(circles) == len(commits)


def commit(name: str, parent: str | None, minute: int) -> Commit:
    return Commit(name, parent, DAY + dt.timedelta(minutes=minute), name.lower())


def test_a_branch_leaves_to_the_right_of_main() -> None:
    commits = [commit("M2", "M1", 4), commit("X1", "M1", 3), commit("M1", "M0", 2), commit("M0", None, 1)]
    layout = plan_graph(commits, "M2")
    refs = [Ref("main", "branch", "M2"), Ref("fix", "branch", "X1"), Ref("v1", "tag", "M1")]
    assert plain_text(graph_lines(layout, refs, times=False)).splitlines() == [
        "●   M2 (main) m2",
        "│ ● X1 (fix) x1",
        "├─╯",
        "●   M1 (tag: v1) m1",
        "○   M0 m0",
    ]


def test_a_branch_that_is_ahead_of_main_comes_in_from_the_right() -> None:
    commits = [commit("X2", "X1", 9), commit("X1", "M0", 8), commit("M0", None, 1)]
    text = plain_text(graph_lines(plan_graph(commits, "M0"), [], times=False))
    assert text.splitlines() == ["  ● X2 x2", "  ● X1 x1", "╭─╯", "○   M0 m0"]


def test_a_plain_graph_has_no_colours() -> None:
    graph = AncestryGraph([commit("A", None, 1)], [Ref("main", "branch", "A")], plain=True)
    assert "\x1b" not in str(graph)
    assert "#" not in graph._repr_html_().partition("<svg")[2]


@pytest.mark.long
def test_ten_thousand_commits_on_fifty_branches_are_drawn_in_seconds() -> None:
    commits = [commit(f"{i:05}", f"{i - 50:05}" if i >= 50 else None, i) for i in range(10_000)]
    started = time.process_time()
    graph = AncestryGraph(commits, [Ref(f"b{i}", "branch", f"{9_950 + i:05}") for i in range(50)])
    assert len(graph.text().splitlines()) == 10_000
    assert len(graph._repr_html_()) < 2_000_000
    assert time.process_time() - started < 20
