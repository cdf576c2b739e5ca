"""Maintenance of repositories to which the official package has committed, or whose history it has expired."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe

icechunk = pytest.importorskip("icechunk")
OFFICIAL = int(icechunk.__version__.split(".")[0])
SPECS = [1] if OFFICIAL < 2 else [1, 2]
pytestmark = pytest.mark.compat

CHANGES: dict[str, Callable[[Any], Any]] = {
    "shrink": lambda array: array.resize((5,)),
    "write and clear": lambda array: (array.__setitem__(slice(6, 8), 5), array.__setitem__(slice(6, 8), 0)),
    "attributes": lambda array: array.update_attributes({"a": 1}),
}


def official(path: Path) -> Any:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))


def create_official(path: Path, spec: int) -> Any:
    options = {"spec_version": spec} if OFFICIAL >= 2 else {}
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)), **options)


def official_history(path: Path, spec: int, change: str) -> None:
    """Four commits of the official package; the third is the given change."""
    create_official(path, spec)
    with official(path).transaction("main", message="array") as store:
        zarr.create_group(store)
        zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i4")[:4] = 7
    for message, edit in (
        ("write", lambda array: array.__setitem__(slice(0, 2), 9)),
        (change, CHANGES[change]),
        ("write again", lambda array: array.__setitem__(slice(0, 2), 8)),
    ):
        with official(path).transaction("main", message=message) as store:
            edit(zarr.open_array(store, path="a"))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("how", ["expire", "squash", "amend"])
@pytest.mark.parametrize("spec", SPECS)
def test_logs_of_the_official_package_can_be_joined(tmp_path: Path, spec: int, how: str, change: str) -> None:
    official_history(tmp_path, spec, change)
    repo = icefloe.Repository.open(str(tmp_path))
    history = [info.id for info in repo.ancestry(branch="main")]
    if how == "expire":
        assert repo.expire_snapshots(dt.datetime.now(dt.UTC)) == set(history[1:-1])
    elif how == "squash":
        repo.squash("main", history[-1], message="squashed")
    else:
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a")[4] = 3
        session.amend("amended")
    again = icefloe.Repository.open(str(tmp_path))
    assert again.verify().is_clean, str(again.verify())
    assert zarr.open_array(again.readonly_session("main").store, path="a", mode="r")[:4].tolist() == [8, 8, 7, 7]
    assert zarr.open_array(official(tmp_path).readonly_session("main").store, path="a", mode="r")[0] == 8


@pytest.mark.parametrize("spec", SPECS)
def test_a_history_that_the_official_package_expired_is_no_damage(tmp_path: Path, spec: int) -> None:
    official_history(tmp_path, spec, "attributes")
    late = icefloe.Repository.open(str(tmp_path))
    official(tmp_path).expire_snapshots(dt.datetime.now(dt.UTC))
    assert len(list(late.ancestry(branch="main"))) == 2
    assert late.verify().is_clean, str(late.verify())
    assert late.verify(repair=True).is_clean


@pytest.mark.parametrize("spec", SPECS)
def test_a_writer_on_the_first_snapshot_meets_what_the_official_package_expired(tmp_path: Path, spec: int) -> None:
    create_official(tmp_path, spec)
    late = icefloe.Repository.open(str(tmp_path)).writable_session("main")
    zarr.create_array(late.store, name="a", shape=(2,), chunks=(2,), dtype="i4")
    with official(tmp_path).transaction("main", message="array") as store:
        zarr.create_group(store)
        zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i4")[:4] = 7
    with official(tmp_path).transaction("main", message="write") as store:
        zarr.open_array(store, path="a")[:2] = 9
    official(tmp_path).expire_snapshots(dt.datetime.now(dt.UTC))
    with pytest.raises(icefloe.RebaseFailedError):
        late.commit("late", rebase_with=icefloe.ConflictDetector())
