"""Lists of ingested sources live as long as a commit names them."""

from __future__ import annotations

import base64
import datetime as dt
import os

import pytest
import zarr
from tests.maintenance.histories import GENERATIONS, now

import icefloe
from icefloe.blocking import run_blocking
from icefloe.ingest.ingested import ingested_sources, keep_record
from icefloe.ingest.record import METADATA_KEY
from icefloe.maintenance.side_objects import FOLDER, list_side_objects

WIDTH = 8


def _ingest(repo: icefloe.Repository, name: str) -> bytes:
    """A commit such as an ingest makes; the fingerprints of its sources."""
    marks = os.urandom(800 * WIDTH)
    metadata = keep_record(repo, {METADATA_KEY: {"job": name, "fingerprints": base64.b64encode(marks).decode()}})
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group(name)
    session.commit(f"ingest {name}", metadata=metadata)
    return marks


def _lists(repo: icefloe.Repository) -> list[str]:
    return [item.key for item in run_blocking(list_side_objects(repo.storage))]


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("version", GENERATIONS)
def test_a_list_goes_with_the_last_commit_that_names_it(version: str, incremental: bool) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=version)
    for name in "abc":
        marks = _ingest(repo, name)
    before = _lists(repo)
    assert len(before) == 3 and all(key.startswith(FOLDER) for key in before)
    assert repo.garbage_collect(now(), incremental=incremental) == icefloe.GCSummary()
    assert _lists(repo) == before
    repo.create_tag("second", list(repo.ancestry(branch="main"))[1].id)
    repo.expire_snapshots(retain_last=1)
    planned = repo.garbage_collect(now(), dry_run=True)
    assert planned.lists_deleted == 1 and _lists(repo) == before
    done = repo.garbage_collect(now(), incremental=incremental)
    assert done.lists_deleted == 1 and done.snapshots_deleted == 1
    assert len(_lists(repo)) == 2 and set(_lists(repo)) < set(before)
    found = ingested_sources(icefloe.Repository.open(repo.storage), "main")
    assert {marks[low : low + WIDTH] for low in range(0, len(marks), WIDTH)} <= found
    assert repo.verify().is_clean


def test_the_list_of_an_ingest_under_way_stays() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    marks = base64.b64encode(os.urandom(800 * WIDTH)).decode()
    keep_record(repo, {METADATA_KEY: {"job": "x", "fingerprints": marks}})
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
    run_blocking(repo.storage.put(f"{FOLDER}{'0' * 32}", b"left behind"))
    report = repo.verify()
    assert report.is_clean and report.orphans["lists"] == 1 and report.orphan_bytes == 11
