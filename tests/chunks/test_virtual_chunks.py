"""Virtual chunks are found in the right container, read only where authorised, and never outside."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.s3 import S3Server

from icefloe.chunks.reader import ChunkReader
from icefloe.chunks.virtual_containers import VirtualContainers, normalise_location, normalise_locations
from icefloe.errors import IcefloeError, InvalidInputError, VirtualChunkError
from icefloe.model.chunk_table import ChunkKind, ChunkRef, table_from_rows
from icefloe.model.virtual_chunk_container import (
    ObjectStoreConfig,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.storage.credentials import s3_credentials
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.remote import ObstoreStorage


def containers(*given: VirtualChunkContainer, authorized: dict[str, object] | None = None) -> VirtualContainers:
    allowed = {c.url_prefix: None for c in given} if authorized is None else authorized
    return VirtualContainers({c.url_prefix: c for c in given}, allowed)


def local(prefix: str, path: str | Path, name: str | None = None) -> VirtualChunkContainer:
    return VirtualChunkContainer(prefix, local_filesystem_store(str(path)), name)


def virtual_ref(location: str, offset: int, length: int, **checks: object) -> ChunkRef:
    return ChunkRef(ChunkKind.VIRTUAL, offset, length, location=location, **checks)  # type: ignore[arg-type]


def fetch(found: VirtualContainers, ref: ChunkRef) -> bytes:
    reader = ChunkReader(MemoryStorage(), lambda chunk_id: f"chunks/{chunk_id.hex()}", containers=found)
    return asyncio.run(reader.fetch(ref, where="/t2m c/0"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.nc").write_bytes(bytes(range(256)))
    (folder / "deep" / "b c#1.nc").write_bytes(b"deep file")
    (tmp_path / "secret.nc").write_bytes(b"secret")
    return folder


def test_a_local_file_is_read_through_its_container(data: Path) -> None:
    found = containers(local(f"file://{data}/", data))
    assert fetch(found, virtual_ref(f"file://{data}/a.nc", 10, 5)) == bytes(range(10, 15))
    assert fetch(found, virtual_ref(f"file://{data}/deep/b%20c%231.nc", 0, 4)) == b"deep"
    assert fetch(found, virtual_ref(f"FILE://{data}//deep/../a.nc", 0, 1)) == b"\0"


def test_files_that_moved_are_read_where_the_store_points(data: Path) -> None:
    found = containers(local("file:///gone/away/", data))
    assert fetch(found, virtual_ref("file:///gone/away/a.nc", 1, 2)) == b"\1\2"


@pytest.mark.parametrize("store_path", ["/", "", "file:///", "file://{data}/"])
def test_a_store_that_contains_the_prefix_reads_paths_as_they_are(data: Path, store_path: str) -> None:
    found = containers(local(f"file://{data}/", store_path.format(data=data)))
    assert fetch(found, virtual_ref(f"file://{data}/a.nc", 1, 2)) == b"\1\2"


def test_the_longest_prefix_wins(data: Path) -> None:
    found = containers(
        local("file:///x/", "/nowhere"), local("file:///x/y/", data), local("file:///x/y/z/", "/nor-here")
    )
    assert fetch(found, virtual_ref("file:///x/y/a.nc", 3, 1)) == b"\3"
    assert found.find_container("file:///x/q") == local("file:///x/", "/nowhere")
    assert found.find_container("file:///xy/q") is None


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=4), min_size=1, max_size=6), st.text("ab/", max_size=9))
def test_matching_is_by_the_longest_prefix_for_any_containers(paths: list[list[str]], rest: str) -> None:
    prefixes = {"s3://bucket/" + "".join(f"{part}/" for part in path) for path in paths}
    found = containers(*(VirtualChunkContainer(prefix, s3_store()) for prefix in prefixes))
    location = f"s3://bucket/{rest}"
    expected = max((p for p in prefixes if location.startswith(p)), key=len, default=None)
    container = found.find_container(location)
    assert (container.url_prefix if container else None) == expected


def test_relative_locations_are_read_below_the_named_container(data: Path) -> None:
    found = containers(local(f"file://{data}/", data, "here"))
    assert fetch(found, virtual_ref("vcc://here/a.nc", 9, 2)) == b"\x09\x0a"
    moved = containers(local("file:///old/", data, "here"))
    assert fetch(moved, virtual_ref("vcc://here/deep/b c%231.nc", 0, 4)) == b"deep"
    assert moved.absolute("vcc://here/x.nc") == "file:///old/x.nc"
    by_name = containers(local(f"file://{data}/", data, "here"), authorized={"here": None})
    assert fetch(by_name, virtual_ref("vcc://here/a.nc", 0, 1)) == b"\0"
    with pytest.raises(VirtualChunkError, match=r"named 'there'; named containers: here"):
        fetch(found, virtual_ref("vcc://there/a.nc", 0, 1))


def test_a_location_without_a_container_tells_what_to_write(data: Path) -> None:
    with pytest.raises(VirtualChunkError) as raised:
        fetch(containers(), virtual_ref(f"file://{data}/a.nc", 0, 1))
    assert f"VirtualChunkContainer('file://{data}/', icefloe.local_filesystem_store('{data}/'))" in raised.value.message
    with pytest.raises(VirtualChunkError, match=r"VirtualChunkContainer\('s3://bucket/', icefloe.s3_store"):
        fetch(containers(), virtual_ref("s3://bucket/a/b.nc", 0, 1))


def test_a_container_without_authorisation_is_never_read(data: Path) -> None:
    ref = virtual_ref(f"file://{data}/a.nc", 0, 1)
    with pytest.raises(VirtualChunkError) as raised:
        fetch(containers(local(f"file://{data}/", data), authorized={}), ref)
    assert f"containers_credentials({{'file://{data}/': None}})" in raised.value.message
    other = containers(local(f"file://{data}/", data), authorized={"file:///elsewhere/": None})
    with pytest.raises(VirtualChunkError, match=r"without\s+authorisation"):
        fetch(other, ref)
    spelled = containers(local(f"file://{data}/", data), authorized={f"file://{data}": None})
    assert fetch(spelled, ref) == b"\0"


@pytest.mark.parametrize(
    "escape",
    [
        "../secret.nc",
        "deep/../../secret.nc",
        "%2e%2e/secret.nc",
        "deep/%2E%2E/%2e./secret.nc",
        "link.nc",
        "linked/secret.nc",
    ],
)
def test_nothing_outside_a_container_is_read(data: Path, escape: str) -> None:
    os.symlink(data.parent / "secret.nc", data / "link.nc")
    os.symlink(data.parent, data / "linked")
    for prefix in (f"file://{data}/", "file:///moved/data/"):
        with pytest.raises(VirtualChunkError, match=r"is outside|in no virtual chunk container"):
            fetch(containers(local(prefix, data, "here")), virtual_ref(prefix + escape, 0, 3))
        with pytest.raises(VirtualChunkError, match=r"is outside|in no virtual chunk container"):
            fetch(containers(local(prefix, data, "here")), virtual_ref(f"vcc://here/{escape}", 0, 3))


def test_a_link_inside_the_container_is_followed(data: Path) -> None:
    os.symlink(data / "a.nc", data / "same.nc")
    assert fetch(containers(local(f"file://{data}/", data)), virtual_ref(f"file://{data}/same.nc", 7, 1)) == b"\7"


def test_a_file_that_changed_is_refused(data: Path) -> None:
    found = containers(local(f"file://{data}/", data))
    location = f"file://{data}/a.nc"
    now = int(time.time())
    assert fetch(found, virtual_ref(location, 0, 1, last_modified=now + 5)) == b"\0"
    with pytest.raises(VirtualChunkError, match="changed"):
        fetch(found, virtual_ref(location, 0, 1, last_modified=now - 100))
    etag = asyncio.run(LocalStorage(data, encoded=False).head("a.nc")).version.etag
    assert etag is not None
    assert fetch(found, virtual_ref(location, 0, 1, etag=etag)) == b"\0"
    (data / "a.nc").write_bytes(b"replaced by something else")
    with pytest.raises(VirtualChunkError, match="changed"):
        fetch(found, virtual_ref(location, 0, 1, etag=etag))


def test_missing_and_truncated_files_are_told_apart(data: Path) -> None:
    found = containers(local(f"file://{data}/", data))
    with pytest.raises(VirtualChunkError, match=r"missing\.nc is not in .*wanted by /t2m c/0"):
        fetch(found, virtual_ref(f"file://{data}/missing.nc", 0, 1))
    with pytest.raises(VirtualChunkError, match="6 of the 10 bytes"):
        fetch(found, virtual_ref(f"file://{data}/a.nc", 250, 10))
    with pytest.raises(IcefloeError):
        fetch(found, virtual_ref(f"file://{data}/a.nc", 1000, 10))


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("file:///a//b/./c/../d", "file:///a/b/d"),
        ("FILE://localhost/a", "file:///a"),
        ("file:////a", "file:///a"),
        ("S3://Bucket//a/../b", "s3://Bucket//a/../b"),
        ("https://host/a?b", "https://host/a?b"),
        ("file:///../../a", "file:///a"),
    ],
)
def test_locations_have_one_spelling(given: str, normal: str) -> None:
    assert normalise_location(given) == normal == normalise_location(normal)
    assert list(normalise_locations([normal, given])) == [normal, normal]


@pytest.mark.parametrize("bad", ["", "/a/b", "a", "s3:/b", "://x", "file://host/a", "s3://", "1s://a", "file:/a"])
def test_what_is_no_url_is_refused(bad: str) -> None:
    with pytest.raises(InvalidInputError):
        normalise_location(bad)
    with pytest.raises(InvalidInputError):
        normalise_locations(["s3://fine/x", bad])


@given(st.lists(st.text("abAF:/.s3ile", max_size=20)))
def test_a_column_is_normalised_like_its_rows(texts: list[str]) -> None:
    texts = [f"file:///{t}" for t in texts] + ["S3://b/" + t for t in texts]
    assert list(normalise_locations(texts)) == [normalise_location(t) for t in texts]


def test_a_column_of_locations_is_checked_at_once() -> None:
    found = containers(VirtualChunkContainer("s3://bucket/a/", s3_store(), "named"), authorized={})
    column = [f"s3://bucket/a/{i}.nc" for i in range(100_000)] + ["vcc://named/x.nc"]
    started = time.perf_counter()
    assert len(found.check_locations(column)) == 100_001
    assert time.perf_counter() - started < 2
    with pytest.raises(VirtualChunkError, match=r"s3://bucket/b.nc \(and 1 more\)"):
        found.check_locations([*column, "s3://bucket/b.nc", "gs://q/b.nc"])
    with pytest.raises(VirtualChunkError, match="'other'"):
        found.check_locations(["vcc://other/x"])


@pytest.mark.parametrize(
    ("prefix", "store", "location", "url", "key"),
    [
        ("s3://bucket/p/", s3_store(region="us-east-1"), "s3://bucket/p/a%3Fb.nc?x#y", "s3://bucket/", "p/a?b.nc"),
        ("s3://", s3_store(region="us-east-1"), "s3://other/a.nc", "s3://other/", "a.nc"),
        ("gs://bucket/", gcs_store(), "gs://bucket/a.nc", "gs://bucket/", "a.nc"),
        ("az://box/", azure_store({"account": "me"}), "az://box/d/a.nc", "az://me/box/", "d/a.nc"),
        ("az://me/box/", azure_store(), "az://me/box/d/a.nc", "az://me/box/", "d/a.nc"),
        ("https://host:8000/d/", http_store(), "https://host:8000/d/a.nc", "https://host:8000/", "d/a.nc"),
    ],
)
def test_remote_locations_become_a_store_and_a_key(
    prefix: str, store: ObjectStoreConfig, location: str, url: str, key: str
) -> None:
    source = containers(VirtualChunkContainer(prefix, store)).resolve(location)
    assert isinstance(source.storage, ObstoreStorage)
    assert (source.storage.url, source.key) == (url, key)


def test_early_repositories_name_containers_by_scheme_alone(data: Path) -> None:
    found = containers(local("file", ""), authorized={"file": None})
    assert fetch(found, virtual_ref(f"file://{data}/a.nc", 2, 1)) == b"\2"


def test_a_memory_container_is_read_in_its_process() -> None:
    asyncio.run(MemoryStorage.named("virtual-tests").put("x/a.nc", b"hello"))
    found = containers(VirtualChunkContainer("memory://virtual-tests/x/", ObjectStoreConfig.InMemory()))
    assert fetch(found, virtual_ref("memory://virtual-tests/x/a.nc", 1, 3)) == b"ell"


def test_containers_pickle_with_what_was_authorised(data: Path) -> None:
    found = pickle.loads(pickle.dumps(containers(local(f"file://{data}/", data))))
    assert fetch(found, virtual_ref(f"file://{data}/a.nc", 2, 1)) == b"\2"


def test_many_virtual_chunks_of_a_file_need_few_requests(data: Path) -> None:
    location = f"file://{data}/a.nc"
    rows = [((i,), virtual_ref(location, 2 * i, 2)) for i in range(100)]
    found = containers(local(f"file://{data}/", data))
    reader = ChunkReader(MemoryStorage(), bytes.hex, containers=found)
    chunks = asyncio.run(reader.fetch_many(table_from_rows(rows, 1), np.arange(99, -1, -1)))
    assert chunks == [bytes([2 * i, 2 * i + 1]) for i in range(99, -1, -1)]
    assert reader.counts.requests == 1


@pytest.mark.s3
def test_virtual_chunks_are_read_from_s3_if_unchanged(s3_server: S3Server, s3_bucket: str) -> None:
    assert s3_server.request("PUT", f"/{s3_bucket}/dir/a.nc", bytes(range(200)))[0] == 200
    store = s3_store(
        region=s3_server.region,
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        s3_compatible=True,
        force_path_style=True,
    )
    prefix = f"s3://{s3_bucket}/dir/"
    given = s3_credentials(access_key_id=s3_server.access_key, secret_access_key=s3_server.secret_key)
    found = containers(VirtualChunkContainer(prefix, store, "data"), authorized={prefix: given})
    assert fetch(found, virtual_ref(f"{prefix}a.nc", 10, 4)) == bytes(range(10, 14))
    assert fetch(found, virtual_ref("vcc://data/a.nc", 10, 4)) == bytes(range(10, 14))
    info = asyncio.run(found.resolve(f"{prefix}a.nc").storage.head("dir/a.nc"))
    assert fetch(found, virtual_ref(f"{prefix}a.nc", 0, 2, etag=info.version.etag)) == b"\0\1"
    with pytest.raises(VirtualChunkError, match="changed"):
        fetch(found, virtual_ref(f"{prefix}a.nc", 0, 2, etag="0123456789abcdef0123456789abcdef"))
    before = int((info.last_modified - dt.timedelta(hours=1)).timestamp())
    assert fetch(found, virtual_ref(f"{prefix}a.nc", 0, 2, last_modified=before + 7200)) == b"\0\1"
    with pytest.raises(VirtualChunkError, match="changed"):
        fetch(found, virtual_ref(f"{prefix}a.nc", 0, 2, last_modified=before))
    with pytest.raises(VirtualChunkError, match="is not in"):
        fetch(found, virtual_ref(f"{prefix}none.nc", 0, 2))
