"""What was converted to an official generation is read, and committed to, by the official package."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.conversion.repositories import make_repository

import icefloe

icechunk = pytest.importorskip("icechunk")
OFFICIAL = int(icechunk.__version__.split(".")[0])
pytestmark = pytest.mark.compat
TARGETS = ["icechunk1"] if OFFICIAL < 2 else ["icechunk1", "icechunk2"]
SOURCES = ["dataset", "store", "repository", "icechunk1", "icechunk2"]


def official(folder: Path) -> Any:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))


def check_both(ours: icefloe.Repository, theirs: Any) -> None:
    assert ours.list_branches() == theirs.list_branches() and ours.list_tags() == theirs.list_tags()
    for branch in sorted(ours.list_branches()):
        mine, other = list(ours.ancestry(branch=branch)), list(theirs.ancestry(branch=branch))
        assert [(i.id, i.parent_id, i.message, i.written_at, dict(i.metadata)) for i in mine] == [
            (i.id, i.parent_id, i.message, i.written_at, i.metadata) for i in other
        ]
        for infos in zip(mine[:-1], other[:-1], strict=True):
            stores = [repo.readonly_session(snapshot_id=info.id).store for repo, info in zip((ours, theirs), infos)]
            groups = [zarr.open_group(store, mode="r") for store in stores]
            members = [dict(group.members(max_depth=None)) for group in groups]
            assert members[0].keys() == members[1].keys()
            for path, node in members[0].items():
                assert dict(node.attrs) == dict(members[1][path].attrs)
                if isinstance(node, zarr.Array):
                    np.testing.assert_array_equal(node[...], members[1][path][...])
        for newer, older in itertools.pairwise(mine[:-1]):
            diffs = [repo.diff(from_snapshot_id=older.id, to_snapshot_id=newer.id) for repo in (ours, theirs)]
            for field in ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays", "updated_arrays"):
                assert set(getattr(diffs[0], field)) == set(getattr(diffs[1], field)), (newer.message, field)


@pytest.mark.every_generation
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("in_place", [False, True])
def test_official_readers_and_writers_take_converted_repositories(
    tmp_path: Path, source: str, target: str, in_place: bool
) -> None:
    if source == target:
        pytest.skip("it is of that generation")
    repo = make_repository(tmp_path / "source", source)
    if in_place:
        done, place = icefloe.upgrade(repo, target), tmp_path / "source"
    else:
        done, place = icefloe.convert(repo, tmp_path / "target", target), tmp_path / "target"
    ours = done.repository
    assert ours is not None
    theirs = official(place)
    check_both(ours, theirs)
    session = theirs.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array("theirs", shape=(4,), chunks=(2,), dtype="i4")[:] = 5
    session.commit("theirs")
    session = ours.writable_session("main")
    zarr.open_group(session.store, mode="a")["theirs"][0] = 6
    session.commit("ours")
    check_both(icefloe.Repository.open(place), official(place))
    if target == "icechunk2":
        log = [(type(u.kind).__name__, u.updated_at) for u in ours.ops_log()]
        assert log == [(type(u.kind).__name__, u.updated_at) for u in official(place).ops_log()]


@pytest.mark.skipif(OFFICIAL < 2, reason="1.x does not upgrade")
def test_our_upgrade_says_what_the_official_one_says(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        make_repository(tmp_path / name, "icechunk1")
    icefloe.upgrade_icechunk_repository(icefloe.Repository.open(tmp_path / "ours"), dry_run=False)
    icechunk.upgrade_icechunk_repository(official(tmp_path / "theirs"), dry_run=False)
    mine, other = official(tmp_path / "ours"), icefloe.Repository.open(tmp_path / "theirs")
    kinds = [sorted(type(update.kind).__name__ for update in repo.ops_log()) for repo in (mine, other)]
    assert kinds[0] == kinds[1]
    assert sorted(p.name for p in (tmp_path / "ours").iterdir() if any(p.rglob("*")) or p.is_file()) == sorted(
        p.name for p in (tmp_path / "theirs").iterdir() if any(p.rglob("*")) or p.is_file()
    )
