"""Branches and tags may have every name that the generation can store. Other names are refused clearly."""

from __future__ import annotations

from pathlib import Path

import pytest
import zarr

import icefloe
from icefloe.cli.app import main

NAMES = ["feature/x", "rel/1.0", "a/b/c", "/leading", "trailing/", "a//b", "a/../b", "ünï/cødé", "with space/and more"]


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    repo = icefloe.Repository.create(str(tmp_path / "repo"), spec_version="icechunk2")
    with repo.transaction("main", message="first") as store:
        zarr.create_group(store).create_array("a", shape=4, chunks=2, dtype="i4")[:] = 1
    return repo


@pytest.mark.parametrize("name", NAMES)
def test_every_method_takes_a_name_with_slashes(repo: icefloe.Repository, name: str) -> None:
    first = repo.lookup_branch("main")
    repo.create_branch(name, first)
    repo.create_tag(name, first)
    with repo.transaction(name, message="on the branch") as store:
        zarr.open_group(store)["a"][:] = 2
    again = icefloe.Repository.open(repo.storage)
    assert again.list_branches() == {"main", name} and again.list_tags() == {name}
    tip = again.lookup_branch(name)
    assert again.lookup_tag(name) == first != tip
    assert again.readonly_session(name).snapshot_id == tip
    assert again.readonly_session(tag=name).snapshot_id == first
    assert next(again.ancestry(branch=name)).message == "on the branch"
    assert again.diff(from_tag=name, to_branch=name).updated_chunks == {"/a": [[0], [1]]}
    assert name in again.ancestry_graph().text()
    again.reset_branch(name, first, from_snapshot_id=tip)
    again.delete_branch(name)
    again.delete_tag(name)
    assert again.list_branches() == {"main"} and again.list_tags() == set()


def test_every_verb_takes_a_name_with_slashes(repo: icefloe.Repository, capsys: pytest.CaptureFixture[str]) -> None:
    url = repo.storage.url
    repo.create_branch("feature/x", repo.lookup_branch("main"))
    repo.create_tag("rel/1.0", repo.lookup_branch("main"))
    for verb in (
        ["log", url],
        ["log", url, "--graph"],
        ["log", url, "-b", "feature/x"],
        ["branch", url],
        ["tag", url],
        ["diff", url, "main", "feature/x"],
        ["diff", url, "rel/1.0", "feature/x"],
        ["show", url, "feature/x"],
        ["tree", url, "-b", "feature/x"],
        ["info", url],
        ["verify", url],
        ["branch", url, "another/one"],
    ):
        assert main(verb) == 0, capsys.readouterr().err
        capsys.readouterr()
    assert "another/one" in repo.list_branches()


@pytest.mark.parametrize("generation", ["dataset", "store", "repository", "icechunk1"])
def test_generations_with_a_file_for_each_ref_refuse_slashes(generation: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=generation)
    tip = repo.lookup_branch("main")
    for call in (repo.create_branch, repo.create_tag):
        with pytest.raises(icefloe.InvalidInputError, match="only in icechunk2") as refused:
            call("feature/x", tip)
        assert refused.value.kind == icefloe.ErrorKind.INVALID_REF_NAME
    assert repo.list_branches() == {"main"} and [info.message for info in repo.ancestry(branch="main")]


@pytest.mark.compat
def test_the_official_package_sees_the_same_names(repo: icefloe.Repository) -> None:
    icechunk = pytest.importorskip("icechunk", minversion="2")
    for name in NAMES:
        repo.create_branch(name, repo.lookup_branch("main"))
        repo.create_tag(name, repo.lookup_branch("main"))
    path = repo.storage.url.removeprefix("file://")
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    assert theirs.list_branches() == repo.list_branches() and theirs.list_tags() == repo.list_tags()
    theirs.create_branch("their/own", repo.lookup_branch("main"))
    assert repo.lookup_branch("their/own") == repo.lookup_branch("main")
