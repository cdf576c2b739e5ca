"""Virtual files are read where they are, and only while they are unchanged."""

from __future__ import annotations

import datetime as dt
import functools
import http.server
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.web import serving

from icefloe.errors import (
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    StorageError,
    UnsupportedError,
    VirtualChunkError,
)
from icefloe.model.virtual_chunk_container import (
    ObjectStoreConfig,
    S3Options,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.storage.build import http_storage, open_object_store, s3_storage
from icefloe.storage.credentials import HttpAccess, LocalFileSystemAccess, s3_credentials

CONFIGS = [
    s3_store(region="us-east-1", anonymous=True),
    s3_store(endpoint_url="http://h:1", allow_http=True, s3_compatible=True, force_path_style=True),
    ObjectStoreConfig.Tigris(S3Options(region="x")),
    gcs_store({"k": "v"}),
    azure_store({"account_name": "a"}),
    http_store({"allow_http": "true"}, {"a": "b"}),
    http_store(),
    local_filesystem_store("/some/where"),
    ObjectStoreConfig.InMemory(),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.tag)
def test_a_store_config_comes_back_from_its_stored_form(config: ObjectStoreConfig) -> None:
    stored = config.to_dict()
    assert list(stored) == [config.tag]
    again = ObjectStoreConfig.from_dict(stored)
    assert again == config and hash(again) == hash(config) and type(again) is type(config)
    assert pickle.loads(pickle.dumps(config)) == config


def test_older_tags_unknown_options_and_nonsense() -> None:
    assert ObjectStoreConfig.from_dict({"LocalFileSystem": "/x"}) == local_filesystem_store("/x")
    assert ObjectStoreConfig.from_dict("in_memory") == ObjectStoreConfig.InMemory()
    parsed = ObjectStoreConfig.from_dict({"S3Compatible": {"region": "r", "new_option": 1, "endpoint_url": None}})
    assert parsed == ObjectStoreConfig.S3Compatible(S3Options(region="r"))
    for bad in ({"ftp": {}}, {}, {"s3": {}, "gcs": {}}, {"s3": "text"}, {"local_file_system": 5}):
        with pytest.raises(InvalidInputError):
            ObjectStoreConfig.from_dict(bad)


async def test_local_virtual_files_keep_their_own_names(tmp_path: Path) -> None:
    (tmp_path / "año #1?.nc").write_bytes(b"0123456789")
    store = open_object_store(local_filesystem_store(str(tmp_path)), LocalFileSystemAccess(), tmp_path.as_uri() + "/")
    assert await store.get_range("año #1?.nc", 2, 5) == b"234"
    assert await open_object_store(local_filesystem_store(str(tmp_path)), None, "").get("año #1?.nc") == b"0123456789"
    assert await store.list_names("") == ["año #1?.nc"]
    with pytest.raises(InvalidInputError):
        await store.get_range("../x", 0, 1)


async def test_a_changed_local_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(0, 1_700_000_000_700_000_000))
    store = open_object_store(local_filesystem_store(str(tmp_path)), None, "")
    etag = (await store.head("f")).version.etag
    written = dt.datetime.fromtimestamp(1_700_000_001, dt.UTC)
    assert await store.get_range_if("f", 0, 3, etag=etag, not_modified_after=written) == b"012"
    assert await store.get_range_if("f", 0, 3, etag=f'"{etag}"') == b"012"
    path.write_bytes(b"9876543210")
    for condition in ({"etag": etag}, {"not_modified_after": written}):
        with pytest.raises(VirtualChunkError, match="changed"):
            await store.get_range_if("f", 0, 3, **condition)


@pytest.mark.s3
async def test_a_changed_object_is_refused(s3_server) -> None:
    options = s3_server.storage_options(s3_server.make_bucket(), "data")
    storage = s3_storage(**options)
    await storage.put("dir/f.nc", b"0123456789")
    config = s3_store(
        region=options["region"], endpoint_url=options["endpoint_url"], allow_http=True, s3_compatible=True
    )
    credentials = s3_credentials(access_key_id=options["access_key_id"], secret_access_key=options["secret_access_key"])
    store = open_object_store(config, credentials, f"s3://{options['bucket']}/data/")
    info = await store.head("dir/f.nc")
    for etag in (info.version.etag, f'"{info.version.etag}"', None):
        for time in (info.last_modified, None):
            assert await store.get_range_if("dir/f.nc", 2, 4, etag=etag, not_modified_after=time) == b"23"
    early = info.last_modified - dt.timedelta(hours=1)
    await storage.put("dir/f.nc", b"9876543210")
    for condition in ({"etag": info.version.etag}, {"not_modified_after": early}):
        with pytest.raises(VirtualChunkError, match="changed"):
            await store.get_range_if("dir/f.nc", 0, 3, **condition)
    with pytest.raises(ReadOnlyError):
        await store.put("x", b"")
    assert pickle.loads(pickle.dumps(store)) == store


def test_credentials_of_another_kind_are_refused() -> None:
    with pytest.raises(VirtualChunkError, match="authorised"):
        open_object_store(s3_store(region="x"), HttpAccess(), "s3://b/")
    with pytest.raises(VirtualChunkError, match="authorised"):
        open_object_store(local_filesystem_store("/x"), s3_credentials(access_key_id="a", secret_access_key="b"), "")
    with pytest.raises(InvalidInputError):
        open_object_store(s3_store(region="x"), None, "s3:///")


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Files with ranges and redirects, as web servers offer them; `/whole/` has no ranges."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(True)

    def do_HEAD(self) -> None:
        self.answer(False)

    def answer(self, with_body: bool) -> None:
        path = self.path
        if path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", path.replace("/moved/", "/files/"))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        ranged = not path.startswith("/whole/")
        file = Path(self.directory) / path.split("/", 2)[2]
        if not file.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = file.read_bytes()
        wanted = self.headers.get("Range")
        if ranged and wanted:
            low, _, high = wanted.removeprefix("bytes=").partition("-")
            if int(low) >= len(data):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            end = min(int(high or len(data)), len(data) - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {low}-{end}/{len(data)}")
            data = data[int(low) : end + 1]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"fixed"')
        self.send_header("Last-Modified", self.date_time_string(file.stat().st_mtime))
        self.end_headers()
        if with_body:
            self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "f.nc").write_bytes(bytes(range(100)))
    handler = functools.partial(RangeHandler, directory=str(tmp_path))
    (tmp_path / "f").write_bytes(bytes(range(100)))
    with serving(handler) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize("folder", ["files", "moved", "whole"])
async def test_a_web_server_is_read_in_ranges_through_redirects(web: str, folder: str) -> None:
    storage = http_storage(f"{web}/{folder}")
    assert await storage.get("f") == bytes(range(100))
    assert await storage.get_range("f", 10, 20) == bytes(range(10, 20))
    assert await storage.get_ranges("f", [0, 90], [5, 200]) == [bytes(range(5)), bytes(range(90, 100))]
    assert (await storage.head("f")).size_bytes == 100
    with pytest.raises(ObjectNotFoundError):
        await storage.get("absent")
    with pytest.raises(StorageError):
        await storage.get_range("f", 200, 201)
    with pytest.raises(UnsupportedError, match="list"):
        await storage.list_names("")
    store = open_object_store(http_store(), HttpAccess(), f"{web}/{folder}/")
    now = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=5)
    assert await store.get_range_if("f", 1, 3, etag="fixed", not_modified_after=now) == bytes([1, 2])
    with pytest.raises(VirtualChunkError):
        await store.get_range_if("f", 1, 3, etag="other")
    with pytest.raises(VirtualChunkError):
        await store.get_range_if("f", 1, 3, not_modified_after=now - dt.timedelta(hours=1))
