"""A password or signature that was given in a URL never comes back in a text."""

from __future__ import annotations

import base64
import http.server
import pickle
import traceback
from collections.abc import Iterator

import pytest
import zarr
from tests.servers.web import serving

import icefloe
from icefloe.blocking import run_blocking
from icefloe.chunks.virtual_containers import normalise_location, normalise_locations
from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.ingest.access import normalise_url
from icefloe.storage.build import storage_from_url
from icefloe.storage.requests import RetryPolicy, without_userinfo

SECRET = "PASSWORD-that-nobody-may-see"


class _Noting(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.heard.append(self.headers.get("Authorization"))  # type: ignore[attr-defined]
        self.send_response(200 if self.path.startswith("/x/there") else 500)
        self.send_header("Content-Length", "2")
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    heard: list[str] = []
    with serving(_Noting, heard=heard) as served:
        yield f"127.0.0.1:{served.server_port}", heard


@pytest.mark.parametrize("form", ["http://user:{0}@{1}/x", "http://{0}@{1}/x", "http://{1}/x?sig={0}&sv=1"])
def test_secrets_of_an_address_are_in_no_text(server: tuple[str, list[str]], form: str) -> None:
    host, _ = server
    storage = icefloe.http_storage(form.format(SECRET, host), retries=RetryPolicy(1, 0, 0))
    for one in (storage, pickle.loads(pickle.dumps(storage)), storage.child("deep")):
        assert SECRET not in one.url + repr(one) + str(one)
        with pytest.raises(IcefloeError) as raised:
            run_blocking(one.get("broken"))
        told = "".join(traceback.format_exception(raised.value))
        assert SECRET not in told and base64.b64encode(f"user:{SECRET}".encode()).decode() not in told
    with pytest.raises(IcefloeError) as raised:
        icefloe.Repository.open(storage)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_user_and_password_are_still_sent(server: tuple[str, list[str]]) -> None:
    host, heard = server
    storage = storage_from_url(f"http://us%40er:{SECRET}@{host}/x")
    assert run_blocking(storage.get("there")) == b"ok"
    assert heard == [f"Basic {base64.b64encode(f'us@er:{SECRET}'.encode()).decode()}"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: storage_from_url(f"s3://user:{SECRET}@bucket/x"),
        lambda: storage_from_url(f"gs://user:{SECRET}@bucket/x"),
        lambda: storage_from_url(f"az://user:{SECRET}@account/container"),
        lambda: icefloe.s3_storage(bucket="b", endpoint_url=f"https://user:{SECRET}@minio.example"),
        lambda: icefloe.s3_store(endpoint_url=f"https://user:{SECRET}@minio.example"),
        lambda: icefloe.http_storage(f"ftp://user:{SECRET}@host/"),
        lambda: storage_from_url(f"ftp://user:{SECRET}@host/"),
        lambda: normalise_location(f"https://user:{SECRET}@host/file.nc"),
        lambda: normalise_locations([f"https://host/{n}.nc" for n in range(5000)] + [f"https://{SECRET}@host/x.nc"]),
        lambda: normalise_url(f"https://user:{SECRET}@host/file.nc"),
    ],
)
def test_places_that_take_no_password_refuse_one_without_showing_it(make: object) -> None:
    with pytest.raises(InvalidInputError) as raised:
        make()  # type: ignore[operator]
    assert SECRET not in "".join(traceback.format_exception_only(raised.value))


def test_references_hold_no_passwords() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    store = repo.writable_session("main").store
    zarr.create_array(store, name="a", shape=(4,), chunks=(4,), dtype="u1")
    with pytest.raises(InvalidInputError) as raised:
        store.set_virtual_ref("a/c/0", f"https://u:{SECRET}@h/x", offset=0, length=4)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:p@h/x", "https://h/x"),
        ("https://token@h:80/x", "https://h:80/x"),
        ("GET https://u:p@w@h/x?sig=1 failed", "GET https://h/x failed"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("s3://u:p@bucket/x", "s3://bucket/x"),
        ("file:///home/a@b/x?y", "file:///home/a@b/x?y"),
        ("https://h/a@b", "https://h/a@b"),
    ],
)
def test_texts_for_people_lose_what_is_secret(text: str, shown: str) -> None:
    assert without_userinfo(text) == shown
