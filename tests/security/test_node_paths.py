"""A snapshot file names nodes inside of the hierarchy, or is refused; in every generation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, IcefloeError
from icefloe.formats.format import get_format
from icefloe.model.capabilities import SpecVersion
from icefloe.model.snapshot import GroupNode
from icefloe.model.zarr_document import find_bad_path, is_node_path

BAD = ["/../evil", "/..", "/.", "/a/../b", "/a/./b", "//a", "/a//b", "/a/", "a", "", "../evil", "/a/.."]


def _nodes(path: str, others: int) -> dict[str, GroupNode]:
    document = b'{"zarr_format":3,"node_type":"group"}'
    paths = ["/", *(f"/n{n}" for n in range(others)), path]
    return {
        each: GroupNode(index.to_bytes(8, "big"), each, document) for index, each in enumerate(dict.fromkeys(paths))
    }


@pytest.mark.parametrize("version", list(SpecVersion))
@pytest.mark.parametrize("path", BAD)
@pytest.mark.parametrize("others", [0, 300])
def test_a_node_path_that_leads_out_is_refused(version: SpecVersion, path: str, others: int) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=version)
    base = run_blocking(repo.context.metadata_files.fetch_snapshot(repo.lookup_branch("main")))
    layout = get_format(version)
    nodes = dict(sorted(_nodes(path, others).items(), key=lambda item: item[0].encode()))
    try:
        data = layout.encode_snapshot(replace(base, nodes=nodes))
    except IcefloeError:
        return  # not even written
    with pytest.raises(FormatError):
        list(layout.decode_snapshot(data).nodes.values())


@pytest.mark.parametrize("version", list(SpecVersion))
def test_ordinary_paths_are_read(version: SpecVersion) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=version)
    names = [".hidden", "..x", "x..", "a.b", "a b", "é", "a\nb", "..."]
    with repo.transaction("main", message="x") as store:
        for name in names:
            zarr.create_group(store, path=name)
    opened = icefloe.Repository.open(repo.storage).readonly_session("main")
    assert sorted(zarr.open_group(opened.store, mode="r").keys()) == sorted(names)


@given(st.lists(st.text("/.ab\n", max_size=6), max_size=5, unique=True))
def test_many_paths_are_judged_like_each(paths: list[str]) -> None:
    bad = [path for path in paths if not is_node_path(path)]
    assert (find_bad_path(paths) is None) == (not bad)
    assert find_bad_path(paths) in [*bad, None]


@pytest.mark.parametrize("key", ["../evil/zarr.json", "a/../../evil/zarr.json", "./zarr.json", "../c/0"])
def test_keys_of_zarr_name_nothing_outside(key: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    buffer = zarr.core.buffer.cpu.Buffer.from_bytes(b'{"zarr_format":3,"node_type":"group"}')
    prototype = zarr.core.buffer.default_buffer_prototype()
    assert run_blocking(session.store.get(key, prototype)) is None
    with pytest.raises(IcefloeError):
        run_blocking(session.store.set(key, buffer))
