"""A repository's own containers are data: what is read, and where credentials go, is what the caller wrote."""

from __future__ import annotations

import http.server
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zarr
from tests.servers.web import serving

import icefloe
from icefloe.errors import VirtualChunkError
from icefloe.formats.config_document import encode_config
from icefloe.model.capabilities import SpecVersion
from icefloe.model.virtual_chunk_container import (
    AzureObjectStore,
    GcsObjectStore,
    HttpObjectStore,
    ObjectStoreConfig,
    S3CompatibleObjectStore,
    S3ObjectStore,
    S3Options,
    TigrisObjectStore,
)

SECRET = "s3cr3t-key-that-nobody-may-see"


class _Attacker(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.heard.append(dict(self.headers.items()))  # type: ignore[attr-defined]
        self.send_response(206)
        self.send_header("Content-Length", "16")
        self.send_header("Content-Range", "bytes 0-15/16")
        self.send_header("Last-Modified", "Tue, 15 Nov 1994 12:45:26 GMT")
        self.end_headers()
        self.wfile.write(b"x" * 16)

    do_HEAD = do_POST = do_PUT = do_CONNECT = do_GET  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def attacker() -> Iterator[tuple[str, list[dict[str, str]]]]:
    heard: list[dict[str, str]] = []
    with serving(_Attacker, heard=heard) as server:
        yield f"http://127.0.0.1:{server.server_port}", heard


def hostile(
    container: icefloe.VirtualChunkContainer, location: str, version: Any = "repository", key: str | None = None
) -> icefloe.Storage:
    """A repository whose configuration was written by a stranger, unchecked."""
    storage = icefloe.in_memory_storage()
    config = icefloe.RepositoryConfig(virtual_chunk_containers={key or container.url_prefix: container})
    repo = icefloe.Repository.create(storage, config, spec_version=version)
    with repo.transaction("main", message="x") as store:
        zarr.create_array(store, name="a", shape=(16,), chunks=(16,), dtype="u1", compressors=None)
        store.set_virtual_ref("a/c/0", location, offset=0, length=16, validate_container=False)
    return storage


def read(repo: icefloe.Repository) -> bytes:
    session = pickle.loads(pickle.dumps(repo.readonly_session("main")))
    return bytes(zarr.open_array(session.store, path="a", mode="r")[:])


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    for name, content in (("data", b"innocent bytes.."), ("secret", b"TOPSECRETBYTES!!")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").write_bytes(content)
    return str(tmp_path / "data"), str(tmp_path / "secret")


@pytest.mark.parametrize("version", list(SpecVersion))
@pytest.mark.parametrize("store_path", ["{secret}", "{data}", "/", "", "/nowhere"])
def test_the_prefix_that_the_caller_wrote_is_the_folder_that_is_read(
    folders: tuple[str, str], version: SpecVersion, store_path: str
) -> None:
    data, secret = folders
    store = icefloe.local_filesystem_store(store_path.format(data=data, secret=secret))
    storage = hostile(icefloe.VirtualChunkContainer(f"file://{data}/", store), f"file://{data}/key", version)
    repo = icefloe.Repository.open(storage, authorize_virtual_chunk_access={f"file://{data}/": None})
    assert read(repo) == b"innocent bytes.."
    again = repo.reopen(icefloe.Repository.fetch_config(storage))
    assert read(again) == b"innocent bytes.."


@pytest.mark.parametrize("version", list(SpecVersion))
def test_a_name_of_a_stored_container_unlocks_nothing(folders: tuple[str, str], version: SpecVersion) -> None:
    data, secret = folders
    for name in (f"file://{data}/", "friendly", f"{data}/"):
        container = icefloe.VirtualChunkContainer("file:///", icefloe.local_filesystem_store("/"), name)
        storage = hostile(container, f"file://{secret}/key", version)
        repo = icefloe.Repository.open(storage, authorize_virtual_chunk_access={f"file://{data}/": None, name: None})
        with pytest.raises(VirtualChunkError, match="authorisation"):
            read(repo)


def test_a_container_of_the_caller_wins_over_a_stored_one(folders: tuple[str, str]) -> None:
    data, secret = folders
    prefix = "file:///moved/"
    stored = icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(secret), "here")
    own = icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(data), "here")
    for key in (prefix, "another key"):
        for location in (f"{prefix}key", "vcc://here/key"):
            storage = hostile(stored, location, key=key)
            config = icefloe.RepositoryConfig(virtual_chunk_containers={prefix: own})
            for allowed in ({prefix: None}, {"here": None}):
                repo = icefloe.Repository.open(storage, config, allowed)
                assert read(repo) == b"innocent bytes.."
                stale = icefloe.Repository.fetch_config(storage)
                assert read(repo.reopen(stale)) == b"innocent bytes.."


def _hostile_stores(evil: str) -> dict[str, tuple[str, ObjectStoreConfig, Any]]:
    s3 = icefloe.s3_static_credentials(access_key_id="AKIA", secret_access_key=SECRET, session_token=SECRET)
    azure = icefloe.azure_static_credentials(bearer_token=SECRET)
    gcs = icefloe.gcs_credentials(bearer_token=SECRET)
    host = evil.removeprefix("http://")
    plain = S3Options("us-east-1", evil, allow_http=True, force_path_style=True)
    return {
        "s3": ("s3://trusted/", S3ObjectStore(plain), s3),
        "s3 compatible": ("s3://trusted/", S3CompatibleObjectStore(plain), s3),
        "s3 region": ("s3://trusted/", S3ObjectStore(S3Options(f"x@{host}/", allow_http=True)), s3),
        "tigris": ("s3://trusted/", TigrisObjectStore(S3Options("auto")), s3),
        "tigris endpoint": ("tigris://trusted/", TigrisObjectStore(plain), s3),
        "azure": ("az://acct/cont/", AzureObjectStore({"endpoint": evil, "allow_http": "true"}), azure),
        "azure account": ("az://acct/cont/", AzureObjectStore({"account": "evil"}), azure),
        "azure authority": ("az://acct/cont/", AzureObjectStore({"authority_host": evil}), azure),
        "azure proxy": ("az://acct/cont/", AzureObjectStore({"proxy_url": evil}), azure),
        "gcs": ("gs://trusted/", GcsObjectStore({"base_url": evil, "allow_http": "true"}), gcs),
        "gcs proxy": ("gs://trusted/", GcsObjectStore({"proxy_url": evil}), gcs),
        "gcs file": ("gs://trusted/", GcsObjectStore({"application_credentials": "/etc/hostname"}), None),
        "http proxy": ("http://127.0.0.1:9/", HttpObjectStore({"proxy_url": evil}), None),
        "other kind": ("s3://trusted/", HttpObjectStore(), None),
        "local for s3": ("s3://trusted/", icefloe.local_filesystem_store("/"), None),
        "anonymous http": ("s3://trusted/", S3ObjectStore(plain), None),
    }


@pytest.mark.parametrize("kind", sorted(_hostile_stores("http://x")))
def test_no_request_goes_where_only_the_repository_says(
    attacker: tuple[str, list[dict[str, str]]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a stranger's writer would store it: nothing is left out.
    monkeypatch.setattr("icefloe.model.virtual_chunk_container._SECRET", __import__("re").compile("$^"))
    evil, heard = attacker
    prefix, store, credentials = _hostile_stores(evil)[kind]
    for version in ("repository", "icechunk1"):
        storage = hostile(icefloe.VirtualChunkContainer(prefix, store), f"{prefix}key", version)
        repo = icefloe.Repository.open(storage, authorize_virtual_chunk_access={prefix: credentials})
        with pytest.raises(VirtualChunkError) as raised:
            read(repo)
        assert SECRET not in str(raised.value)
    assert heard == []


def test_the_caller_names_an_endpoint_with_a_container_of_their_own(
    attacker: tuple[str, list[dict[str, str]]],
) -> None:
    evil, heard = attacker
    prefix, store, credentials = _hostile_stores(evil)["s3"]
    container = icefloe.VirtualChunkContainer(prefix, store)
    storage = hostile(container, f"{prefix}key")
    config = icefloe.RepositoryConfig(virtual_chunk_containers={prefix: container})
    assert read(icefloe.Repository.open(storage, config, {prefix: credentials})) == b"x" * 16
    assert heard


def test_the_environment_names_an_endpoint_for_its_credentials(
    attacker: tuple[str, list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    evil, heard = attacker
    prefix, store, _ = _hostile_stores(evil)["s3"]
    storage = hostile(icefloe.VirtualChunkContainer(prefix, store), f"{prefix}key")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    allowed = {prefix: icefloe.s3_from_env_credentials()}
    with pytest.raises(VirtualChunkError):
        read(icefloe.Repository.open(storage, authorize_virtual_chunk_access=allowed))
    assert heard == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", evil)
    assert read(icefloe.Repository.open(storage, authorize_virtual_chunk_access=allowed)) == b"x" * 16


@pytest.mark.parametrize(
    "location",
    ["s3://localhost:80#/key", "s3://user@host/key", "s3://a?b/key", "s3://evil.example\\/key", "gs://a b/key"],
)
def test_the_bucket_of_a_location_stays_a_name(location: str) -> None:
    scheme = location.partition("://")[0]
    store = icefloe.s3_store(region="us-east-1") if scheme == "s3" else icefloe.gcs_store()
    container = icefloe.VirtualChunkContainer(f"{scheme}://", store)
    storage = hostile(container, location)
    config = icefloe.RepositoryConfig(virtual_chunk_containers={f"{scheme}://": container})
    with pytest.raises(VirtualChunkError, match="name of a bucket|is outside"):
        read(icefloe.Repository.open(storage, config, {f"{scheme}://": None}))


def test_secrets_of_containers_are_not_stored() -> None:
    config = icefloe.RepositoryConfig.default()
    for container in (
        icefloe.VirtualChunkContainer("https://host/", icefloe.http_store({}, {"X-Api-Key": SECRET})),
        icefloe.VirtualChunkContainer(
            "az://box/", icefloe.azure_store({"account": "me", "access_key": SECRET, "sas_token": SECRET})
        ),
        icefloe.VirtualChunkContainer("gs://box/", icefloe.gcs_store({"service_account_key": SECRET})),
    ):
        config.set_virtual_chunk_container(container)
    document = str(encode_config(config))
    assert SECRET not in document and "'account': 'me'" in document
    with pytest.raises(icefloe.IcefloeError) as raised:
        config.set_virtual_chunk_container(
            icefloe.VirtualChunkContainer(f"https://user:{SECRET}@host/", icefloe.http_store())
        )
    assert SECRET not in str(raised.value)
