"""Whatever happened to a file of a repository, verify and repair end and say what is, and what is called whole is."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

import icefloe
from icefloe.cli.app import build_app

GENERATIONS = ("repository", "icechunk2", "icechunk1", "store", "dataset")
HARMS = ("empty", "cut", "zeros", "garbage", "gone")
MAIN_FILE = {
    "repository": "refs/branch.main/*.json",
    "icechunk1": "refs/branch.main/ref.json",
    "icechunk2": "repo",
    "store": "r/main/*.json",
    "dataset": "state.json",
}


def _harm(path: Path, harm: str) -> None:
    data = path.read_bytes()
    if harm == "gone":
        path.unlink()
    elif harm == "garbage":
        path.write_bytes(random.Random(len(data)).randbytes(max(len(data), 9)))
    else:
        path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "zeros": bytes(len(data))}[harm])


@pytest.fixture(scope="module", params=GENERATIONS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A repository with a branch, a tag, packs and some history."""
    path = tmp_path_factory.mktemp(request.param) / "repo"
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(path, fsync=False), config, spec_version=request.param
    )
    for number in range(3):
        with repo.transaction("main", message=f"commit {number}") as store:
            if number == 0:
                checked = zarr.codecs.Crc32cCodec()
                zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i4", compressors=[checked])
            zarr.open_array(store, path="a")[:] = np.arange(8) + 10 * number + 1
        if number == 1:
            repo.create_tag("first", repo.lookup_branch("main"))
    return request.param, path


def _check(place: Path, key: str, harm: str) -> None:
    """Verify, repair, and hold the last report to its word."""
    try:
        repo = icefloe.Repository.open(place)
    except icefloe.IcefloeError:
        found = icefloe.Repository.recover(place, dry_run=True)
        if not found:
            return  # nothing of a repository is left that anybody could recognise
        assert found == icefloe.Repository.recover(place)
        if not all(damage.repairable for damage in found):
            assert any(
                "copy" in damage.detail or "--tip" in damage.detail or "tag" in damage.detail for damage in found
            )
            return
        repo = icefloe.Repository.open(place)
    before = repo.verify(decode=True)
    after = repo.verify(decode=True, repair=True)
    assert len(after.damages) <= len(before.damages)
    repo = icefloe.Repository.open(place)
    assert repo.verify(decode=True).damages == after.damages
    assert not any(damage.repairable for damage in after.damages), f"{key} {harm}: {after}"
    if after.is_clean:
        assert list(repo.ancestry(branch="main"))
        for branch in repo.list_branches():
            values = zarr.open_array(repo.readonly_session(branch).store, path="a", mode="r")[:]
            assert values.tolist() in [(np.arange(8) + 10 * number + 1).tolist() for number in range(3)]
        with repo.transaction("main", message="goes on") as store:
            zarr.open_array(store, path="a")[:] = 7
        assert repo.verify().is_clean


@pytest.mark.every_generation
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "every"])
@pytest.mark.parametrize("harm", HARMS)
def test_whatever_happened_to_any_file_verify_and_repair_end_with_a_report(
    whole: tuple[str, Path], harm: str, every: bool, tmp_path: Path
) -> None:
    _, path = whole
    keys = sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())
    if not every:  # the first of each folder, which is the newest where order tells
        keys = list({key.rpartition("/")[0] or key: key for key in reversed(keys)}.values())
    failures = []
    for number, key in enumerate(keys):
        place = tmp_path / str(number)
        shutil.copytree(path, place)
        _harm(place / key, harm)
        try:
            _check(place, key, harm)
        except Exception as error:
            failures.append((key, repr(error)))
        shutil.rmtree(place)
    assert not failures


@pytest.mark.every_generation
@pytest.mark.parametrize("harm", HARMS)
def test_the_command_recovers_a_repository_whose_newest_ref_is_unreadable(
    whole: tuple[str, Path], harm: str, tmp_path: Path
) -> None:
    version, path = whole
    place = tmp_path / "repo"
    shutil.copytree(path, place)
    if (version, harm) == ("dataset", "gone"):
        return  # what is left could be anything
    _harm(sorted(place.glob(MAIN_FILE[version]))[0], harm)
    ran = CliRunner().invoke(build_app(), ["verify", "--repair", str(place)])
    repo = icefloe.Repository.open(place)
    assert repo.verify().is_clean, ran.output
    kept = len(list(repo.ancestry(branch="main")))
    # Where older states are kept the branch goes back to the newest, elsewhere the only possible tip is found.
    assert kept in ((3, 4) if version in ("repository", "store", "icechunk2") else (4,)), ran.output


def test_a_branch_whose_tip_is_not_known_is_told_by_the_user(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(tmp_path / "repo", spec_version="icechunk1")
    tips = []
    for branch in ("main", "other"):
        if branch != "main":
            repo.create_branch(branch, list(repo.ancestry(branch="main"))[-1].id)
        with repo.transaction(branch, message=branch) as store:
            zarr.create_group(store, path=branch)
        tips.append(repo.lookup_branch(branch))
    for branch in ("main", "other"):
        (tmp_path / f"repo/refs/branch.{branch}/ref.json").write_bytes(b"")
    ran = CliRunner().invoke(build_app(), ["verify", "--repair", str(tmp_path / "repo")])
    assert ran.exit_code == 1 and "--tip main=" in ran.output.replace("\n", "")
    told = [f"--tip={branch}={tip}" for branch, tip in zip(("main", "other"), tips, strict=True)]
    ran = CliRunner().invoke(build_app(), ["verify", "--repair", str(tmp_path / "repo"), *told])
    assert ran.exit_code == 0, ran.output
    repo = icefloe.Repository.open(tmp_path / "repo")
    assert [repo.lookup_branch("main"), repo.lookup_branch("other")] == tips
