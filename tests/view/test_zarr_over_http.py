"""Zarr over HTTP: keys, ranges, ETags, cache headers, and clients that open a revision by its URL."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import xarray
import zarr
from obstore.store import HTTPStore
from tests.view.samples import Client, temperature, weather
from zarr.storage import ObjectStore

import icefloe
from icefloe.view.server import ViewServer


@pytest.fixture(scope="module")
def repo() -> icefloe.Repository:
    return weather("icechunk2")


@pytest.fixture(scope="module")
def client(repo: icefloe.Repository) -> Iterator[Client]:
    with ViewServer(repo, origins=["https://viewer.example"]) as server:
        yield Client(server)


def test_zarr_and_xarray_open_a_revision_by_its_url(client: Client) -> None:
    store = ObjectStore(
        HTTPStore(client.server.url + "zarr/main/", client_options={"allow_http": True}), read_only=True
    )
    group = zarr.open_group(store, mode="r")
    assert set(group.array_keys()) == {"t2m", "time", "latitude", "longitude", "humidity", "flags"}
    assert group["model/run/steps"][:].tolist() == [0, 1, 2, 3, 4]
    data = xarray.open_zarr(store, consolidated=True)
    np.testing.assert_allclose(data["t2m"].values, temperature(), rtol=1e-6)
    assert str(data["time"].values[1]) == "2020-01-01T06:00:00.000000000"


def test_a_range_is_a_part_of_the_whole(client: Client) -> None:
    whole = client.request("/zarr/main/t2m/c/0/0/0")
    size = len(whole.body)
    assert whole.status == 200 and whole.headers["accept-ranges"] == "bytes"
    for text, part in (
        ("bytes=0-9", whole.body[:10]),
        ("bytes=5-", whole.body[5:]),
        ("bytes=-7", whole.body[-7:]),
        (f"bytes={size - 1}-{size + 99}", whole.body[-1:]),
    ):
        reply = client.request("/zarr/main/t2m/c/0/0/0", Range=text)
        assert (reply.status, reply.body) == (206, part)
        assert reply.headers["content-range"].endswith(f"/{size}")
    beyond = client.request("/zarr/main/t2m/c/0/0/0", Range=f"bytes={size}-")
    assert beyond.status == 416 and beyond.headers["content-range"] == f"bytes */{size}"
    assert client.request("/zarr/main/t2m/c/0/0/0", Range="bytes=0-1,4-5").body == whole.body
    head = client.request("/zarr/main/t2m/c/0/0/0", "HEAD")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(size))
    document = client.request("/zarr/main/t2m/zarr.json", Range="bytes=0-0")
    assert document.body == b"{" and document.headers["content-type"].startswith("application/json")


def test_the_etag_of_a_chunk_stays_until_the_chunk_changes(client: Client, repo: icefloe.Repository) -> None:
    key = "t2m/c/0/0/0"
    old, new = client.request(f"/zarr/v1/{key}"), client.request(f"/zarr/main/{key}")
    assert old.headers["etag"] == new.headers["etag"]
    assert client.request(f"/zarr/warmer/{key}").headers["etag"] != old.headers["etag"]
    unchanged = client.request(f"/zarr/main/{key}", If_None_Match=old.headers["etag"])
    assert (unchanged.status, unchanged.body) == (304, b"")
    assert client.request(f"/zarr/main/{key}", If_None_Match='"other"').status == 200
    part = client.request(f"/zarr/main/{key}", Range="bytes=0-1", If_Range='"other"')
    assert part.status == 200


def test_refs_are_validated_and_snapshots_are_for_ever(client: Client, repo: icefloe.Repository) -> None:
    snapshot = repo.lookup_branch("main")
    for ref in ("main", "v1"):
        assert client.request(f"/zarr/{ref}/zarr.json").headers["cache-control"] == "no-cache"
    kept = client.request(f"/zarr/{snapshot}/zarr.json").headers
    assert "immutable" in kept["cache-control"] and kept["icefloe-snapshot"] == snapshot


def test_a_branch_with_a_slash_is_written_as_an_escape(client: Client, repo: icefloe.Repository) -> None:
    if "a/b" not in repo.list_branches():
        repo.create_branch("a/b", repo.lookup_tag("v1"))
    assert client.request("/zarr/a%2Fb/t2m/zarr.json").status == 200
    assert client.request("/zarr/a/b/t2m/zarr.json").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/zarr/main/../../../../etc/passwd",
        "/zarr/main/%2e%2e/%2e%2e/etc/passwd",
        "/zarr/..%2f..%2fetc/passwd",
        "/zarr/main//etc/passwd",
        "/zarr/main/t2m/c/99/0/0",
        "/zarr/main/t2m/c/0/0/0/zarr.json",
        "/zarr/main/.zgroup",
        "/zarr/main/config.yaml",
        "/zarr/main/",
        "/zarr/",
        "/zarr/main/%00",
    ],
)
def test_no_key_leaves_the_repository(client: Client, path: str) -> None:
    reply = client.request(path)
    assert reply.status == 404 and b"root:" not in reply.body


def test_pages_of_an_allowed_origin_can_read(client: Client) -> None:
    allowed = client.request("/zarr/main/zarr.json", Origin="https://viewer.example")
    assert allowed.headers["access-control-allow-origin"] == "https://viewer.example"
    assert allowed.headers["cross-origin-resource-policy"] == "cross-origin"
    assert "etag" in allowed.headers["access-control-expose-headers"].lower()
    asked = client.request("/zarr/main/zarr.json", "OPTIONS", Origin="https://viewer.example")
    assert asked.status == 204 and "Range" in asked.headers["access-control-allow-headers"]
    other = client.request("/zarr/main/zarr.json", Origin="https://evil.example")
    assert "access-control-allow-origin" not in other.headers
    assert "access-control-allow-origin" not in client.request("/", Origin="https://viewer.example").headers
