"""Benchmarks write their figures into the pages, with the place where they were measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import harness, report
from benchmarks.harness import Measured, Row


def row(step: str, official: float | None, ours: float, goal: float | str | None = None, unit: str = "s") -> Row:
    measured = Measured(ours, ours / 2, 100.0, 3, 0.0, {})
    other = None if official is None else Measured(official, official, 200.0, 9, 1.0, {})
    return Row("load", step, other, measured, goal, unit)


def test_a_run_replaces_its_block_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures a: begin -->\nold\n<!-- figures a: end -->\nafter\n")
    for text in ("new", "newer"):
        report.replace_block(page, "a", text)
        assert page.read_text() == f"before\n<!-- figures a: begin -->\n\n{text}\n\n<!-- figures a: end -->\nafter\n"
    assert report.read_block(page, "a").strip() == "newer"
    with pytest.raises(SystemExit, match="no block 'b'"):
        report.replace_block(page, "b", "text")


def test_facts_of_a_step_have_rows_with_their_units(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counted = {harness.OFFICIAL: {"reads": 9.0, "other": 1.0}, harness.OURS: {"reads": 3.0, "writes": 2.0}}

    def run_step(module: str, workload: str, step: str, library: str, folder: Path, scale: float) -> Measured:
        return Measured(1.0, 1.0, 1.0, 1, 1.0, counted[library])

    monkeypatch.setattr(harness, "_run_step", run_step)
    load = harness.Workload(
        "load", "?", {"prepare": lambda *_: None}, {"reads": "≤ 4"}, {"reads": "requests", "writes": "MB"}
    )
    _, reads, writes = harness.run_workload("engine", load, 1.0, tmp_path)
    assert (reads.step, reads.unit, reads.goal, reads.ours.seconds) == ("reads", "requests", "≤ 4", 3.0)
    assert reads.official is not None and reads.official.seconds == 9.0
    assert (writes.step, writes.official, writes.ours.seconds) == ("writes", None, 2.0)


@pytest.mark.long
def test_ratios_are_official_by_ours_and_a_missing_package_has_none(tmp_path: Path) -> None:
    rows = [row("prepare", 1, 1), row("read", 3.0, 1.5), row("verify", None, 250.0), row("slow", 1.0, 2.0, 1.5)]
    rows += [row("fast", 0.5, 0.02, "≤ 1 s"), row("open", 24, 4, unit="requests")]
    table = report.ratios(rows)
    assert table == [
        ["load: read", "3.00 s", "1.50 s", "2.00", "", "4.00", "2.00", "-", "3.00"],
        ["load: verify", "-", "250 s", "-", "", "-", "-", "-", "-"],
        ["load: slow", "1.00 s", "2.00 s", "0.50", "1.5", "1.00", "2.00", "-", "3.00"],
        ["load: fast", "0.50 s", "20.0 ms", "25.0", "≤ 1 s", "50.0", "2.00", "-", "3.00"],
        ["load: open", "24 requests", "4 requests", "6.00", "", "12.0", "2.00", "-", "3.00"],
    ]
    text = report.markdown(report.COLUMNS, table)
    assert report.read_table(f"Some words.\n\n{text}\n\n![bars](ratios.svg)") == table
    for name in ("one.svg", "two.svg"):
        report.draw_ratios(table, tmp_path / name)
    assert (tmp_path / "one.svg").stat().st_size > 1000


def test_the_page_names_the_commit_the_versions_and_the_load_of_its_figures() -> None:
    told = report.where_measured((1.5, 0.0, 0.0))
    for part in ("commit `", "Python 3.", "zarr", "official package", "cores", "load of the machine was 1.5"):
        assert part in told
    page = report.PAGE.read_text()
    names = ("ratios", "limits", "growth", "requests", "sharding", "durability", "writers threads", "writers processes")
    for name in names:
        assert page.count(f"<!-- figures {name}: begin -->") == page.count(f"<!-- figures {name}: end -->") == 1
        assert "Measured at commit `" in report.read_block(report.PAGE, name)
