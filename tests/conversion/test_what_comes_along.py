"""Snapshots without a ref, the operations log, and words of commits: carried over, told anew, or dropped when told."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr
from tests.conversion.repositories import contents
from tests.conversion.test_conversion_promises import files

import icefloe
from icefloe import SpecVersion, UpdateType
from icefloe.blocking import run_blocking

VERSIONS = [version.value for version in SpecVersion]
LISTING = ["dataset", "icechunk2"]
"""Generations that list their snapshots, those without a ref too."""
RAGGED = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [6],
    "data_type": "uint8",
    "fill_value": 0,
    "attributes": {},
    "chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[[2, 1], 4]]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [{"name": "bytes"}],
}


def with_detached(place: Path, version: str) -> tuple[icefloe.Repository, str, str]:
    """A repository, a snapshot that was flushed without a commit, and one that lost its branch."""
    repo = icefloe.Repository.create(place, spec_version=version)
    with repo.transaction("main", message="one") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="i4")[:] = 1
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 2
    flushed = session.flush("flushed")
    repo.create_branch("side", repo.lookup_branch("main"))
    with repo.transaction("side", message="aside") as store:
        zarr.create_group(store, path="g")
    lost = repo.lookup_branch("side")
    repo.delete_branch("side")
    return repo, flushed, lost


@pytest.mark.parametrize("new", VERSIONS)
@pytest.mark.parametrize("old", LISTING)
def test_listed_snapshots_without_a_ref_come_along(tmp_path: Path, old: str, new: str) -> None:
    source, flushed, lost = with_detached(tmp_path / "source", old)
    done = icefloe.convert(source, tmp_path / "target", new, drop=["operations-log"], verify="all")
    assert done.snapshots == 4 and done.repository is not None
    found = icefloe.Repository.open(tmp_path / "target")
    assert found.list_branches() == {"main"}
    for snapshot_id in (flushed, lost):
        name = snapshot_id if new != "store" else find_widened(tmp_path / "target", found, snapshot_id)
        assert contents(found, snapshot_id=name) == contents(source, snapshot_id=snapshot_id)
        mine, other = (
            [info.message for info in repo.ancestry(snapshot_id=which)]
            for repo, which in ((source, snapshot_id), (found, name))
        )
        assert mine == other


def find_widened(place: Path, repo: icefloe.Repository, snapshot_id: str) -> str:
    """The id of 16 bytes that a snapshot got: it starts like the one of 12 bytes, up to the last, shared character."""
    return next(
        path.name.partition(".")[0]
        for path in (place / repo.context.format.snapshots_folder).iterdir()
        if path.name.startswith(snapshot_id[:19])
    )


def test_in_place_they_come_along_too(tmp_path: Path) -> None:
    source, _, _ = with_detached(tmp_path / "place", "icechunk2")
    done = icefloe.upgrade(source, "dataset", drop=["operations-log"])
    assert done.snapshots == 4
    back = icefloe.upgrade(tmp_path / "place", "icechunk2").repository
    assert back is not None
    listed = run_blocking(back.context.ledger.fetch_listed())
    assert listed is not None
    assert {info.message for info in listed.values()} == {"Repository initialized", "one", "flushed", "aside"}


def test_the_operations_log_tells_of_snapshots_that_have_no_branch(tmp_path: Path) -> None:
    source, flushed, lost = with_detached(tmp_path / "source", "dataset")
    done = icefloe.convert(source, tmp_path / "target", "icechunk2")
    assert done.repository is not None
    kinds = [update.kind for update in done.repository.ops_log()]
    detached = {kind.new_snap_id for kind in kinds if isinstance(kind, UpdateType.NewDetachedSnapshot)}
    assert detached == {flushed, lost}
    assert kinds[-1] == UpdateType.RepoInitialized()
    times = [update.updated_at for update in done.repository.ops_log()]
    assert times == sorted(times, reverse=True) and len(set(times)) == len(times)


def test_an_operations_log_that_history_does_not_tell_is_dropped_only_when_told(tmp_path: Path) -> None:
    source, _, _ = with_detached(tmp_path / "source", "icechunk2")
    with pytest.raises(icefloe.UnsupportedError, match=r"operations log \(1: branch deleted\)"):
        icefloe.convert(source, tmp_path / "target", "repository")
    assert not (tmp_path / "target").exists() or not list((tmp_path / "target").iterdir())


def test_an_operations_log_is_carried_over_where_there_is_a_place_for_it(tmp_path: Path) -> None:
    source, _, _ = with_detached(tmp_path / "source", "icechunk2")
    source.set_metadata({"a": 1})
    done = icefloe.convert(source, tmp_path / "target", "icechunk2")
    assert done.repository is not None and done.losses == ()
    told = [[(u.kind, u.updated_at) for u in repo.ops_log()] for repo in (source, done.repository)]
    assert told[0] == told[1]
    done.repository.set_metadata({"b": 2})
    assert [u.kind for u in done.repository.ops_log()][1:] == [kind for kind, _ in told[0]]


@pytest.mark.parametrize(
    ("old", "new", "unfit"),
    [
        ("dataset", "icechunk2", {"big": 2**70, "key": {"a\0b": 1}}),
        ("dataset", "icechunk1", {"big": 2**70}),
        ("store", "repository", {"text": "\ud800"}),
        ("icechunk1", "icechunk2", {"key": {"a\0b": 1}}),
        ("icechunk2", "dataset", {"nan": math.nan}),
        ("repository", "store", {"deep": [{"inf": math.inf}]}),
    ],
)
def test_commit_metadata_that_cannot_be_written_is_refused_or_left_out(
    tmp_path: Path, old: str, new: str, unfit: dict[str, Any]
) -> None:
    source = icefloe.Repository.create(tmp_path / "source", spec_version=old)
    session = source.writable_session("main")
    zarr.create_group(session.store)
    session.commit("words", {"fits": [1, 2.5, None, "ü"], **unfit})
    with pytest.raises(icefloe.UnsupportedError, match=f"commit-metadata.*{next(iter(unfit))}"):
        icefloe.convert(source, tmp_path / "target", new)
    assert not (tmp_path / "target").exists() or not list((tmp_path / "target").iterdir())
    done = icefloe.convert(source, tmp_path / "target", new, drop=["commit-metadata"])
    assert done.repository is not None
    tip = next(iter(done.repository.ancestry(branch="main")))
    assert (tip.message, dict(tip.metadata)) == ("words", {"fits": [1, 2.5, None, "ü"]})


def with_everything(place: Path, version: str) -> icefloe.Repository:
    """Whatever a generation can hold that some other one cannot."""
    repo = icefloe.Repository.create(place, spec_version=version)
    able = repo.context.capabilities
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("v", shape=(8,), chunks=(4,), dtype="u1", compressors=None)
    checksum = {"checksum": '"etag"'} if able.checksums else {}
    session.store.set_virtual_ref("v/c/0", "s3://bucket/x.nc", offset=0, length=4, validate_container=False, **checksum)
    if able.any_chunk_grid:
        session.state.write_document("/ragged", json.dumps(RAGGED).encode())
    if able.any_key_encoding:
        encoding = {"name": "v2", "separator": "."}
        root.create_array("dotted", shape=(4,), chunks=(2,), dtype="u1", chunk_key_encoding=encoding)
    tip = session.commit("everything", commit_metadata(version))
    for name in ("x.json", "both"):
        with contextlib.suppress(icefloe.InvalidInputError):
            repo.create_branch(name, tip)
    with contextlib.suppress(icefloe.AlreadyExistsError):
        repo.create_tag("both", tip)
    repo.create_tag("gone", tip)
    if able.deletable_tags:
        repo.delete_tag("gone")
    if able.repository_metadata:
        repo.set_metadata({"team": "ice"})
        repo.set_feature_flag("create_tag", False)
        repo.reset_branch("both", tip)
    return repo


def commit_metadata(version: str) -> dict[str, Any]:
    if version in ("dataset", "store"):
        return {"big": 2**70, "nul": {"a\0b": 1}}
    return {"nan": math.nan, **({} if version == "icechunk2" else {"nul": {"a\0b": 1}})}


def lossy(run: Callable[..., icefloe.Conversion]) -> list[str]:
    """What would be lost; each of them has to be named."""
    words = [loss.kind.value for loss in run(dry_run=True).losses]
    for left_out in words:
        with pytest.raises(icefloe.UnsupportedError, match=left_out):
            run(drop=[word for word in words if word != left_out])
    return words


@pytest.mark.every_generation
@pytest.mark.parametrize(("old", "new"), list(itertools.permutations(VERSIONS, 2)))
def test_for_every_pair_what_does_not_fit_is_refused_with_nothing_written(tmp_path: Path, old: str, new: str) -> None:
    place, target = tmp_path / "source", tmp_path / "target"
    source = with_everything(place, old)
    before = files(place)
    elsewhere = lossy(lambda **how: icefloe.convert(source, target, new, **how))
    in_place = lossy(lambda **how: icefloe.upgrade(source, new, **how))
    assert not files(target) and files(place) == before
    done = icefloe.convert(source, target, new, drop=elsewhere)
    assert [loss.kind.value for loss in done.losses] == elsewhere
    done = icefloe.upgrade(source, new, drop=in_place)
    assert {loss.kind.value for loss in done.losses} == set(in_place)
    for made in (target, place):
        found = icefloe.Repository.open(made)
        assert found.spec_version.value == new
        assert [info.message for info in found.ancestry(branch="main")] == ["everything", "Repository initialized"]
