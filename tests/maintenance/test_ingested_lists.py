"""What was ingested is known as long as the data is there, whatever becomes of the history."""

from __future__ import annotations

import base64
import datetime as dt
import os

import pytest
import zarr
from tests.maintenance.histories import GENERATIONS, now

import icefloe
from icefloe.blocking import run_blocking
from icefloe.ingest.record import METADATA_KEY, MOST_TEXTS, ingested_sources, keep_record
from icefloe.maintenance.inventory import list_side_objects
from icefloe.model.snapshot import INGESTED_FOLDER, INGESTED_KEY
from icefloe.session import commit_files

WIDTH = 8


def _ingest(repo: icefloe.Repository, name: str, *, sources: int = 800, branch: str = "main") -> frozenset[bytes]:
    """A commit such as an ingest makes; the fingerprints of its sources."""
    marks = os.urandom(sources * WIDTH)
    session = repo.writable_session(branch)
    own = {METADATA_KEY: {"job": name, "fingerprints": base64.b64encode(marks).decode()}}
    metadata = keep_record(repo, session.state.base, own)
    zarr.open_group(session.store, mode="a").create_group(name)
    session.commit(f"ingest {name}", metadata=metadata)
    return frozenset(marks[low : low + WIDTH] for low in range(0, len(marks), WIDTH))


def _write(repo: icefloe.Repository, name: str, branch: str = "main") -> None:
    """A commit of another kind."""
    session = repo.writable_session(branch)
    zarr.open_group(session.store, mode="a").create_group(name)
    session.commit(f"write {name}")


def _lists(repo: icefloe.Repository) -> list[str]:
    return [item.key for item in run_blocking(list_side_objects(repo.storage))]


def _known(repo: icefloe.Repository, branch: str = "main") -> frozenset[bytes]:
    return ingested_sources(icefloe.Repository.open(repo.storage), branch)


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("version", GENERATIONS)
def test_a_list_goes_with_the_last_commit_that_holds_its_sources(version: str, incremental: bool) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=version)
    marks = {name: _ingest(repo, name) for name in "abc"}
    before = _lists(repo)
    assert len(before) == 3 and all(key.startswith(INGESTED_FOLDER) for key in before)
    repo.expire_snapshots(retain_last=1)
    assert repo.garbage_collect(now(), incremental=incremental).lists_deleted == 0
    assert _known(repo) == marks["a"] | marks["b"] | marks["c"]
    d = _ingest(repo, "d")
    repo.reset_branch("main", list(repo.ancestry(branch="main"))[1].id)
    planned = repo.garbage_collect(now(), dry_run=True)
    assert planned.lists_deleted == 1 and set(_lists(repo)) > set(before)
    done = repo.garbage_collect(now(), incremental=incremental)
    assert done.lists_deleted == 1 and _lists(repo) == before and not d & _known(repo)
    assert repo.verify().is_clean


@pytest.mark.parametrize("sources", [1, 40])
@pytest.mark.parametrize("version", GENERATIONS)
def test_what_was_ingested_is_known_whatever_becomes_of_the_history(version: str, sources: int) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=version)
    wanted: frozenset[bytes] = frozenset()
    root = repo.lookup_branch("main")
    for number in range(7):
        wanted |= _ingest(repo, f"i{number}", sources=sources)
        _write(repo, f"w{number}")
    assert _known(repo) == wanted
    assert len(repo.lookup_snapshot(repo.lookup_branch("main")).metadata[INGESTED_KEY]) <= MOST_TEXTS
    repo.expire_snapshots(retain_last=1)
    repo.garbage_collect(now())
    assert _known(repo) == wanted and len(list(repo.ancestry(branch="main"))) == 2
    wanted |= _ingest(repo, "after", sources=sources)
    _write(repo, "later")
    repo.squash("main", root, message="one")
    repo.garbage_collect(now())
    assert _known(repo) == wanted
    amending = repo.writable_session("main")
    zarr.open_group(amending.store, mode="a").create_group("amended")
    amending.amend("one and a bit")
    repo.rewrite_manifests("again", branch="main")
    assert _known(repo) == wanted and repo.verify().is_clean


def test_a_long_list_is_not_written_again_for_a_few_more_sources() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    wanted = _ingest(repo, "years", sources=5000)
    for number in range(40):
        sizes = {item.key: item.size_bytes for item in run_blocking(list_side_objects(repo.storage))}
        wanted |= _ingest(repo, f"night{number}", sources=3)
        written = [i for i in run_blocking(list_side_objects(repo.storage)) if i.key not in sizes]
        assert sum(item.size_bytes for item in written) < 2000
    assert _known(repo) == wanted
    assert len(repo.lookup_snapshot(repo.lookup_branch("main")).metadata[INGESTED_KEY]) <= MOST_TEXTS


@pytest.mark.parametrize("version", GENERATIONS)
def test_lists_come_along_to_other_generations_and_mirrors(version: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version="repository")
    wanted = _ingest(repo, "a") | _ingest(repo, "b", sources=2)
    if version != "repository":
        there = icefloe.in_memory_storage()
        converted = icefloe.convert(repo.storage, there, version)
        assert _known(converted.repository) == wanted and converted.repository.verify().is_clean
    mirrored = icefloe.in_memory_storage()
    repo.mirror(mirrored)
    assert _known(icefloe.Repository.open(mirrored)) == wanted


def test_merged_and_picked_ingests_are_known_and_reverted_ones_are_not() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    first = _ingest(repo, "a")
    repo.create_branch("side", repo.lookup_branch("main"))
    _write(repo, "b")
    more = _ingest(repo, "c", branch="side") | _ingest(repo, "d", sources=1, branch="side")
    picked = _ingest(repo, "e", branch="side")
    repo.create_branch("other", repo.lookup_branch("main"))
    repo.cherry_pick(repo.lookup_branch("side"), "other")
    assert _known(repo, "other") == first | picked
    repo.merge("side", "main")
    assert _known(repo) == first | more | picked
    repo.revert(repo.lookup_branch("other"), "other")
    # The commit that picked it says what it picked, so undoing that is undoing the ingest.
    assert _known(repo, "other") == first
    last = _ingest(repo, "f", sources=1)
    undone = repo.lookup_branch("main")
    repo.revert(undone, "main")
    assert not last & _known(repo)
    repo.revert(repo.lookup_branch("main"), "main")
    assert last <= _known(repo) and repo.verify().is_clean


def test_commits_of_somebody_who_does_not_take_the_list_over_do_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    first = _ingest(repo, "a")
    tip = repo.lookup_branch("main")
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("foreign")
    with monkeypatch.context() as patched:
        patched.setattr(commit_files, "inherit_metadata", lambda parent, own, changed: own)
        session.commit("as another package commits")
    assert INGESTED_KEY not in repo.lookup_snapshot(repo.lookup_branch("main")).metadata
    assert repo.lookup_branch("main") != tip and _known(repo) == first
    second = _ingest(repo, "b")
    repo.expire_snapshots(retain_last=1)
    assert _known(repo) == first | second


def test_the_list_of_an_ingest_under_way_stays() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    marks = base64.b64encode(os.urandom(800 * WIDTH)).decode()
    base = repo.writable_session("main").state.base
    keep_record(repo, base, {METADATA_KEY: {"job": "x", "fingerprints": marks}})
    assert repo.garbage_collect(dt.timedelta(hours=1)).lists_deleted == 0
    assert len(_lists(repo)) == 1
    assert repo.garbage_collect(now()).lists_deleted == 1
    assert _lists(repo) == []


@pytest.mark.parametrize(("damage", "kind"), [("gone", "missing"), ("junk", "unreadable"), ("half", "unreadable")])
def test_a_list_that_cannot_be_read_is_damage(damage: str, kind: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    for name in "ab":
        _ingest(repo, name)
    clean = repo.verify()
    assert clean.is_clean and clean.checked["lists"] == 2
    key = repo.lookup_snapshot(repo.lookup_branch("main")).metadata[METADATA_KEY]["fingerprints_object"]
    whole = run_blocking(repo.storage.get(key))
    if damage == "gone":
        run_blocking(repo.storage.delete([key]))
    else:
        run_blocking(repo.storage.put(key, b"junk" * 9 if damage == "junk" else whole[: len(whole) // 2]))
    (found,) = repo.verify().damages
    assert (found.what, found.kind.value, found.key, found.refs) == ("list", kind, key, ("branch main",))


def test_a_list_that_no_commit_names_is_an_orphan() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    run_blocking(repo.storage.put(f"{INGESTED_FOLDER}{'0' * 32}", b"left behind"))
    report = repo.verify()
    assert report.is_clean and report.orphans["lists"] == 1 and report.orphan_bytes == 11
