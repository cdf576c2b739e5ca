"""A URL names a repository, a branch, tag or snapshot of it, and a node."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import InvalidInputError, RepositoryUrl, open_url
from icefloe.cli.app import main
from icefloe.model.capabilities import SpecVersion
from icefloe.tables.table_options import normalise_options, parse_options
from icefloe.xarray import IcefloeBackendEntrypoint

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1)
SEGMENTS = st.lists(NAMES.map(lambda name: name.replace("/", "-")), max_size=3).map("/".join)
ID = "1CECHNKREP0F1RSTCMT0"


@given(
    location=st.sampled_from(["s3://bucket/repo", "/data/a repo", "memory://x", "s3://bucket/odd|name"]),
    ref=st.one_of(
        st.just({}),
        NAMES.map(lambda name: {"branch": name}),
        NAMES.map(lambda name: {"tag": name}),
        st.just({"snapshot_id": ID}),
    ),
    path=SEGMENTS,
)
def test_a_url_comes_back_as_it_was_written(location: str, ref: dict[str, str], path: str) -> None:
    url = RepositoryUrl(location, **ref, path=path)
    assert RepositoryUrl.parse(str(url)) == url


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("s3://b/r", ("s3://b/r", None, None, None, "")),
        ("s3://b/r|icechunk", ("s3://b/r", None, None, None, "")),
        ("s3://b/r/|icechunk:", ("s3://b/r/", None, None, None, "")),
        ("s3://b/r | ICECHUNK:a/b/", ("s3://b/r", None, None, None, "a/b")),
        ("s3://b/r|icechunk:/a", ("s3://b/r", None, None, None, "a")),
        ("s3://b/r|icechunk://branch.x", ("s3://b/r", "x", None, None, "")),
        ("s3://b/r|icechunk://branch.feature%2Fx/a", ("s3://b/r", "feature/x", None, None, "a")),
        ("s3://b/r|icechunk://tag.v1.0/a%20b", ("s3://b/r", None, "v1.0", None, "a b")),
        (f"/r|icechunk://{ID}/a", ("/r", None, None, ID, "a")),
        ("/r|icechunk://tag.v1/|zarr3:a/b/", ("/r", None, "v1", None, "a/b")),
        ("/r|icechunk|zarr3:a", ("/r", None, None, None, "a")),
        ("/r|icechunk:@tag.v1/a", ("/r", None, "v1", None, "a")),
    ],
)
def test_the_forms_of_url_pipelines_are_read(text: str, parts: tuple[str | None, ...]) -> None:
    url = RepositoryUrl.parse(text)
    assert (url.location, url.branch, url.tag, url.snapshot_id, url.path) == parts


@pytest.mark.parametrize(
    "text", ["/r|icechunk://main/a", "/r|icechunk://branch./a", "/r|icechunk:a?tag=v1", "/r|icechunk:|zip:a"]
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="not the URL of a repository at a ref"):
        RepositoryUrl.parse(text)


@pytest.fixture
def repo(tmp_path: Path, request: pytest.FixtureRequest) -> icefloe.Repository:
    repo = icefloe.Repository.create(str(tmp_path / "repo"), spec_version=getattr(request, "param", "icechunk2"))
    for value in (1, 2):
        session = repo.writable_session("main")
        xr.Dataset({"t": ("x", np.full(3, value))}).to_zarr(session.store, group="g/h", mode="w", consolidated=False)
        session.commit(str(value))
        if value == 1:
            repo.create_tag("v1", repo.lookup_branch("main"))
            repo.create_branch("first", repo.lookup_branch("main"))
    return repo


@pytest.mark.parametrize("repo", list(SpecVersion), indirect=True)
def test_every_reader_takes_a_url(repo: icefloe.Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    location = str(tmp_path / "repo")
    first = repo.lookup_tag("v1")
    for ref, value in (("", 2), ("//branch.first/", 1), ("//tag.v1/", 1), (f"//{first}/", 1)):
        url = f"{location}|icechunk:{ref}g/h"
        array = open_url(f"{url}/t")
        assert isinstance(array, zarr.Array) and array[0] == value and array.store.read_only
        assert xr.open_dataset(url, engine=IcefloeBackendEntrypoint).t.values.tolist() == [value] * 3
        assert xr.open_datatree(url, engine=IcefloeBackendEntrypoint)["t"].values.tolist() == [value] * 3
        assert IcefloeBackendEntrypoint().guess_can_open(url)
        options = parse_options(normalise_options({"path": url}))
        assert options.group == "/g/h" and options.address.url == location
        assert (options.pin().snapshot_id == first) is (value == 1)
        assert main(["tree", url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["nodes"][0]["path"] == "/g/h"


def test_a_url_and_an_argument_do_not_contradict_each_other(
    repo: icefloe.Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{tmp_path / 'repo'}|icechunk://tag.v1/g"
    with pytest.raises(InvalidInputError, match="Give one of them"):
        xr.open_dataset(url, engine=IcefloeBackendEntrypoint, branch="main")
    with pytest.raises(InvalidInputError, match="Give one of them"):
        xr.open_dataset(url, engine=IcefloeBackendEntrypoint, group="g/h")
    with pytest.raises(InvalidInputError, match="Give one of them"):
        parse_options({"path": url, "tag": "v1"})
    assert main(["tree", url, "--tag", "v1"]) == 1
    assert "Give one of them" in capsys.readouterr().err


def test_what_works_on_a_whole_repository_refuses_a_ref(
    repo: icefloe.Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    location = str(tmp_path / "repo")
    for attempt in (icefloe.Repository.open, icefloe.Repository.create, icefloe.storage_from_url):
        with pytest.raises(InvalidInputError, match="names a snapshot of a repository"):
            attempt(f"{location}|icechunk://tag.v1")
    assert not list(tmp_path.glob("*|*"))
    for arguments in (["gc", "--older-than", "1d"], ["branch"], ["compact"]):
        assert main([arguments[0], f"{location}|icechunk://branch.main", *arguments[1:]]) == 1
        assert "whole repository" in capsys.readouterr().err
