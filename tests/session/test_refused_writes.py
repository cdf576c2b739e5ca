"""What a repository could not hold, or others could not read, is refused when it is written, in every generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import SpecVersion

SURROGATE = "file-\udce9.nc"
"""What os.fsdecode makes of b"file-\\xe9.nc"."""


@pytest.fixture(params=[version.value for version in SpecVersion])
def repo(request: pytest.FixtureRequest) -> icefloe.Repository:
    return icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=request.param)


def create(session: icefloe.Session, name: str = "a", **more: Any) -> zarr.Array[Any]:
    return zarr.create_array(session.store, name=name, shape=(4,), chunks=(2,), dtype="i4", **more)


TEXTS: dict[str, Callable[[icefloe.Repository, icefloe.Session], object]] = {
    "array": lambda repo, session: create(session, SURROGATE),
    "group": lambda repo, session: zarr.create_group(session.store, path=f"a/{SURROGATE}"),
    "dimension": lambda repo, session: create(session, dimension_names=[SURROGATE]),
    "move": lambda repo, session: (zarr.create_group(session.store, path="g"), session.move("/g", "/" + SURROGATE)),
    "branch": lambda repo, session: repo.create_branch(SURROGATE, repo.lookup_branch("main")),
    "tag": lambda repo, session: repo.create_tag(SURROGATE, repo.lookup_branch("main")),
    "looked up branch": lambda repo, session: repo.lookup_branch(SURROGATE),
    "location": lambda repo, session: (
        create(session),
        session.store.set_virtual_ref("a/c/0", "s3://b/" + SURROGATE, offset=0, length=8, validate_container=False),
    ),
    "locations": lambda repo, session: (
        create(session),
        session.store.set_virtual_refs_arr(
            "a", (2,), ["s3://b/" + SURROGATE] * 2, [0, 0], [8, 8], validate_containers=False
        ),
    ),
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_lone_surrogate_is_refused_when_it_is_written(repo: icefloe.Repository, what: str) -> None:
    session = repo.writable_session("main")
    with pytest.raises(icefloe.InvalidInputError, match="not valid Unicode"):
        TEXTS[what](repo, session)
    zarr.create_group(session.store, path="fine")
    session.commit("what was refused is not in it")
    again = icefloe.Repository.open(repo.storage)
    assert "fine" in zarr.open_group(again.readonly_session("main").store, mode="r")


def test_attributes_may_hold_any_json_text(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    create(session, attributes={"source": SURROGATE, SURROGATE: 1})
    session.commit("attributes")
    store = icefloe.Repository.open(repo.storage).readonly_session("main").store
    assert dict(zarr.open_array(store, path="a", mode="r").attrs) == {"source": SURROGATE, SURROGATE: 1}


def test_a_grid_has_no_more_chunks_than_there_are_coordinates(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    for chunks in (2**32, 2**33):
        with pytest.raises(icefloe.InvalidInputError, match="At most 4294967295"):
            zarr.create_array(session.store, name="a", shape=(2, chunks), chunks=(1, 1), dtype="i1")
    array = zarr.create_array(session.store, name="a", shape=(2**32 - 1,), chunks=(1,), dtype="i1", fill_value=3)
    with pytest.raises(icefloe.InvalidInputError, match="At most 4294967295"):
        array.resize((2**32,))
    array = zarr.open_array(session.store, path="a")
    array[2**32 - 2] = 7
    session.commit("the last chunk")
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert array[-2:].tolist() == [3, 7]


def test_a_box_of_references_outside_the_grid_is_refused(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    create(session)
    for first in ((1,), (2**32 - 1,), (2**32,), (-1,)):
        with pytest.raises(icefloe.InvalidInputError, match="outside the grid"):
            session.store.set_virtual_refs_arr(
                "a", (2,), ["s3://b/x"] * 2, [0, 0], [8, 8], arr_offset=first, validate_containers=False
            )


def test_keys_of_another_encoding_are_refused_where_the_official_package_cannot_read_them(
    repo: icefloe.Repository,
) -> None:
    session = repo.writable_session("main")
    for encoding in (("default", "."), ("v2", "."), ("v2", "/")):
        asked = {"name": encoding[0], "separator": encoding[1]}
        if repo.context.capabilities.any_key_encoding:
            create(session, f"a{encoding}", chunk_key_encoding=asked)[:] = np.arange(4)
        else:
            with pytest.raises(icefloe.InvalidInputError, match="chunk key encoding"):
                create(session, f"a{encoding}", chunk_key_encoding=asked)
