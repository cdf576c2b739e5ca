"""Objects describe themselves in notebooks and terminals, whatever people write into messages."""

from __future__ import annotations

import datetime as dt
import io
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import zarr
from rich.console import Console

import icefloe
from icefloe.display.card import CardMixin, first_line, format_bytes, short_length

HOSTILE = "</div><script>alert('x')</script> [bold]not bold[/] \\[red]"


@pytest.fixture(scope="module")
def repository() -> icefloe.Repository:
    made = icefloe.Repository.create(icefloe.in_memory_storage())
    with made.transaction("main", message=HOSTILE, metadata={"who": HOSTILE}) as store:
        zarr.create_array(store, name="a", shape=(4, 4), chunks=(2, 2), dtype="f4")[:] = 1
    return made


def described(repository: icefloe.Repository) -> dict[str, CardMixin]:
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[0] = 2
    session.move("/a", "/b")
    read = repository.readonly_session("main")
    return {
        "repository": repository,
        "reading": read,
        "writing": session,
        "store": read.store,
        "status": session.status(),
        "nothing": icefloe.Diff(),
        "snapshot": repository.lookup_snapshot(read.snapshot_id),
    }


def test_every_card_is_well_formed_html_and_escapes(repository: icefloe.Repository) -> None:
    for name, value in described(repository).items():
        html = value._repr_html_()
        ElementTree.fromstring(html)
        assert "<script" not in html, name
        # A page decides its own colours: what is fixed must be readable on black and on white.
        assert "background:transparent" in html, name


def test_every_card_prints_in_a_terminal_as_it_was_written(repository: icefloe.Repository) -> None:
    for name, value in described(repository).items():
        out = io.StringIO()
        Console(file=out, width=200).print(value)
        if name in ("reading", "snapshot", "store"):
            assert "[bold]not bold[/]" in out.getvalue(), name


def test_a_card_says_what_matters(repository: icefloe.Repository) -> None:
    cards = {name: value._repr_html_() for name, value in described(repository).items()}
    assert "uncommitted" in cards["writing"]
    assert "main" in cards["writing"]
    assert "/a → /b" in cards["status"]
    assert "no changes" in cards["nothing"]
    assert "repository" in cards["repository"]
    assert "1 group, 1 array, 4 chunks, 64 B decoded" in cards["repository"]
    assert "/a  float32 (4, 4) 64 B" in cards["repository"]
    assert repository.lookup_branch("main") in cards["snapshot"]


def test_the_card_of_a_repository_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    made = icefloe.Repository.create(str(tmp_path / "repo"))
    shutil.rmtree(tmp_path / "repo")
    assert "cannot be read" in made._repr_html_()


def test_plans_and_reports_have_cards(repository: icefloe.Repository, tmp_path: Path) -> None:
    shown = {
        "Expiry plan": repository.plan_expiry(dt.timedelta(days=1)),
        "Collection plan": repository.plan_garbage_collection(dt.timedelta(days=1)),
        "Compaction plan": repository.plan_compaction(),
        "Verify report": repository.verify(),
        "Mirror plan": repository.plan_mirror(str(tmp_path / "copy")),
    }
    for kind, value in shown.items():
        html = value._repr_html_()
        ElementTree.fromstring(html)
        assert kind in html
    for value in (repository.config, repository.storage, repository.garbage_collect(dt.timedelta(days=1))):
        assert value._repr_html_()


def test_a_diff_shows_a_replaced_array_as_changed() -> None:
    made = icefloe.Repository.create(icefloe.in_memory_storage())
    for number in range(2):
        with made.transaction("main", message=f"{number}") as store:
            zarr.create_array(store, name="t", shape=(3,), dtype="f4", overwrite=True)[:] = number + 1
    after, before, *_ = made.ancestry(branch="main")
    diff = made.diff(from_snapshot_id=before.id, to_snapshot_id=after.id)
    assert diff.replaced_arrays == {"/t"}
    html = diff._repr_html_()
    assert "replaced arrays" in html and "deleted arrays" not in html and "new arrays" not in html


def test_reprs_are_one_short_line(repository: icefloe.Repository) -> None:
    for value in (repository, repository.readonly_session("main"), repository.ancestry_graph()):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 120


def test_the_graph_of_a_repository_shows_all_refs_or_one_history(repository: icefloe.Repository) -> None:
    made = icefloe.Repository.create(icefloe.in_memory_storage())
    first = made.lookup_branch("main")
    made.create_branch("side", first)
    for branch in ("main", "side"):
        with made.transaction(branch, message=f"on {branch}") as store:
            zarr.create_group(store)
    made.create_tag("v1", made.lookup_branch("side"))
    graph = made.ancestry_graph()
    assert len(graph) == 3
    assert {(ref.name, ref.kind) for ref in graph.refs} == {("main", "branch"), ("side", "branch"), ("v1", "tag")}
    assert [c.message for c in made.ancestry_graph(branch="main").commits] == ["on main", "Repository initialized"]
    assert len(made.ancestry_graph(tag="v1")) == 2
    assert len(made.ancestry_graph(limit=2)) == 2
    assert "older commits" in made.ancestry_graph(limit=2).text()
    with pytest.raises(icefloe.InvalidInputError):
        made.ancestry_graph(limit=0)


async def test_the_graph_can_be_awaited() -> None:
    made = await icefloe.Repository.create_async(icefloe.in_memory_storage())
    assert len(await made.ancestry_graph_async(plain=True)) == 1


def test_amounts_read_well() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 1048575, 1 << 30)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
        "1.0 GiB",
    ]
    assert first_line("one\ntwo") == "one"
    assert first_line("x" * 100).endswith("…")
    assert short_length(["ABCDEFGHIJ1", "ABCDEFGHIJ2"]) == 11
    assert short_length([]) == short_length(["A"]) == 8


def test_times_are_told_in_utc() -> None:
    info = icefloe.SnapshotInfo("A", None, dt.datetime(2026, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))), "m")
    assert "2026-01-01 00:00:00 UTC" in info._repr_html_()


@pytest.mark.long
def test_the_library_names_load_when_they_are_used() -> None:
    code = (
        "import sys, icefloe; own = 'icefloe.repository.repository'; assert own not in sys.modules; "
        "icefloe.Repository; assert own in sys.modules and 'zarr' not in sys.modules; "
        "assert set(icefloe.__all__) <= set(dir(icefloe)); from icefloe import *; Repository; "
        "assert not hasattr(icefloe, 'nothing_like_it')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
