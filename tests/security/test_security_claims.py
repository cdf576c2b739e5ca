"""Every claim of docs/security.md, tried."""

from __future__ import annotations

import http.server
import logging
import pickle
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
import zarr
import zstandard
from tests.servers.web import serving

import icefloe
from icefloe.blocking import run_blocking
from icefloe.errors import FormatError, IcefloeError, InvalidInputError, VirtualChunkError
from icefloe.formats.config_yaml import decode_yaml
from icefloe.formats.format import get_format
from icefloe.formats.header import FileType, encode_header
from icefloe.maintenance.collect import KEY
from icefloe.model.capabilities import SpecVersion

SECRET = "s3cr3t-key-that-nobody-may-see"


# -- hostile repositories -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['touch /tmp/never']",
        "!!python/object/new:subprocess.Popen [['true']]",
        "a: !!python/name:os.system ''",
    ],
)
def test_yaml_makes_no_python_objects(text: str) -> None:
    try:
        found = decode_yaml(text)
    except IcefloeError:
        return
    assert all(isinstance(value, dict | list | str | int | float | bool | None) for value in found.values())


@pytest.mark.parametrize(
    "text",
    ["[" * 5000, "a: &a [x, x]\nb: &b [*a, *a]\n" + "c: {" * 3000, "- just\n- a list"],
    ids=["brackets", "aliases", "list"],
)
def test_nonsense_yaml_is_refused(text: str) -> None:
    with pytest.raises(IcefloeError):
        decode_yaml(text)


def test_a_yaml_of_a_billion_laughs_takes_no_memory() -> None:
    lines = ["l0: &l0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    for level in range(1, 12):
        lines.append(f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 9)}]")
    repo_files = "\n".join(lines)
    tracemalloc.start()
    with suppress(IcefloeError):
        decode_yaml(repo_files)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20


@pytest.mark.parametrize("file_type", [FileType.SNAPSHOT, FileType.MANIFEST, FileType.TRANSACTION_LOG])
@pytest.mark.parametrize(
    "body", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 100_000]
)
def test_messagepack_that_promises_too_much_is_refused(file_type: FileType, body: bytes) -> None:
    layout = get_format(SpecVersion.REPOSITORY)
    data = encode_header(file_type, 1) + zstandard.compress(body)
    decode = {
        FileType.SNAPSHOT: layout.decode_snapshot,
        FileType.MANIFEST: layout.decode_manifest,
        FileType.TRANSACTION_LOG: layout.decode_transaction_log,
    }[file_type]
    tracemalloc.start()
    with pytest.raises(FormatError):
        decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.parametrize(
    ("version", "limit"),
    [(SpecVersion.REPOSITORY, 16 << 20), (SpecVersion.ICECHUNK1, 256 << 20), (SpecVersion.ICECHUNK2, 256 << 20)],
)
def test_a_decompression_bomb_is_refused_early(version: SpecVersion, limit: int) -> None:
    layout = get_format(version)
    number = 2 if version is SpecVersion.ICECHUNK2 else 1
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    block = bytes(32 << 20)
    bomb = (
        encode_header(FileType.MANIFEST, number) + b"".join(packer.compress(block) for _ in range(16)) + packer.flush()
    )
    assert len(bomb) < 64 << 10
    del block
    tracemalloc.start()
    with pytest.raises(FormatError):
        layout.decode_manifest(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < limit + (64 << 20)


@pytest.mark.parametrize("snapshot", ["../../outside", "/etc/passwd", "A" * 19, 7, None, ["x"]])
def test_a_ref_file_names_nothing_but_a_snapshot(snapshot: object) -> None:
    import json

    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    run_blocking(repo.storage.put("refs/branch.main/ZZZZZZZY.json", json.dumps({"snapshot": snapshot}).encode()))
    with pytest.raises(FormatError):
        icefloe.Repository.open(repo.storage).readonly_session("main")


@pytest.mark.parametrize("name", ["../x", "a/b", "/", ""])
def test_names_do_not_leave_their_folder(name: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    tip = repo.lookup_branch("main")
    with pytest.raises(InvalidInputError):
        repo.create_branch(name, tip)
    with pytest.raises(InvalidInputError):
        repo.create_tag(name, tip)


@pytest.mark.parametrize("version", list(SpecVersion))
def test_a_branch_of_dots_stays_among_the_refs(version: SpecVersion) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=version)
    with suppress(IcefloeError):
        repo.create_branch("..", repo.lookup_branch("main"))

    async def keys() -> list[str]:
        return [item.key async for page in repo.storage.list("") for item in page]

    assert not [key for key in run_blocking(keys()) if ".." in key.split("/")]


@pytest.mark.parametrize("path", ["..", "a/../../b", "a//b", "./a"])
def test_nodes_do_not_leave_the_hierarchy(path: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    zarr.group(session.store)
    with pytest.raises(InvalidInputError):
        session.move("/", f"/{path}")


def test_keys_do_not_leave_a_folder_of_the_file_system(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    for key in ("../secret", "a/../../secret", "/etc/hostname"):
        with pytest.raises(IcefloeError):
            run_blocking(storage.get(key))


@pytest.mark.parametrize("data", [b"", b"x" * 100, b"\0" * 33])
def test_a_forged_collection_mark_is_ignored(data: bytes) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    run_blocking(repo.storage.put(KEY, data))
    import datetime as dt

    assert repo.garbage_collect(dt.timedelta(0), incremental=True).snapshots_deleted == 0


# -- virtual chunks -------------------------------------------------------------------------------------------------


def _virtual(tmp_path: Path, location: str, authorized: bool = True, container: bool = True) -> bytes:
    inside = tmp_path / "inside"
    inside.mkdir(exist_ok=True)
    (tmp_path / "secret").write_bytes(b"secret!!" * 4)
    (inside / "open").write_bytes(b"open!!!!" * 4)
    if not (inside / "link").exists():
        (inside / "link").symlink_to(tmp_path / "secret")
    prefix = f"file://{inside}/"
    config = icefloe.RepositoryConfig.default()
    if container:
        store = icefloe.local_filesystem_store(str(inside))
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    access = icefloe.containers_credentials({prefix: None}) if authorized else None
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, access)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="v", shape=(8,), chunks=(8,), dtype="u1", compressors=None)
    session.store.set_virtual_ref(
        "v/c/0", location.format(prefix=prefix, folder=tmp_path), offset=0, length=8, validate_container=False
    )
    return bytes(zarr.open_array(session.store, path="v", mode="r")[:].tobytes())


def test_an_authorised_container_is_read(tmp_path: Path) -> None:
    assert _virtual(tmp_path, "{prefix}open") == b"open!!!!"


@pytest.mark.parametrize(
    "location",
    ["{prefix}../secret", "{prefix}%2e%2e/secret", "{prefix}link", "file://{folder}/secret", "file:///etc/hostname"],
)
def test_nothing_outside_an_authorised_container_is_read(tmp_path: Path, location: str) -> None:
    with pytest.raises(VirtualChunkError):
        _virtual(tmp_path, location)


@pytest.mark.parametrize(("authorized", "container"), [(False, True), (False, False)])
def test_a_repository_cannot_authorise_itself(tmp_path: Path, authorized: bool, container: bool) -> None:
    with pytest.raises(VirtualChunkError):
        _virtual(tmp_path, "{prefix}open", authorized, container)


class _Redirecting(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", "file:///etc/hostname")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def redirecting() -> Iterator[str]:
    with serving(_Redirecting) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_a_web_server_cannot_redirect_to_local_files(redirecting: str) -> None:
    storage = icefloe.http_storage(redirecting)
    with pytest.raises(IcefloeError):
        run_blocking(storage.get("anything"))


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    """Another host, which notes what it was told."""

    heard: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        self.heard.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(b"data")

    def log_message(self, *args: object) -> None:
        pass


def test_a_redirect_to_another_host_takes_no_credentials_along() -> None:
    _Elsewhere.heard.clear()
    with serving(_Elsewhere) as elsewhere:
        address = f"http://localhost:{elsewhere.server_port}/there"

        class Sending(_Redirecting):
            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("Location", address)
                self.send_header("Content-Length", "0")
                self.end_headers()

        with serving(Sending) as server:
            headers = {"Authorization": f"Bearer {SECRET}", "Cookie": f"key={SECRET}"}
            storage = icefloe.http_storage(f"http://127.0.0.1:{server.server_port}", headers=headers)
            assert run_blocking(storage.get("anything")) == b"data"
    (heard,) = _Elsewhere.heard
    assert SECRET not in str(heard) and "authorization" not in heard and "cookie" not in heard


def test_a_web_server_takes_no_writes(redirecting: str) -> None:
    storage = icefloe.http_storage(redirecting)
    with pytest.raises(IcefloeError):
        run_blocking(storage.put("a", b"x"))
    with pytest.raises(IcefloeError):
        run_blocking(storage.delete(["a"]))


# -- credentials ----------------------------------------------------------------------------------------------------


def _secret_storage() -> icefloe.Storage:
    return icefloe.s3_storage(
        bucket="b",
        region="us-east-1",
        endpoint_url="http://127.0.0.1:9",
        allow_http=True,
        access_key_id="AKIAEXAMPLE",
        secret_access_key=SECRET,
    )


def test_secrets_are_in_no_text_of_a_storage() -> None:
    storage = _secret_storage()
    assert SECRET not in repr(storage) + str(storage) + storage.url


def test_secrets_are_in_no_error_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    from icefloe.storage.requests import RetryPolicy

    storage = icefloe.s3_storage(
        bucket="b",
        region="us-east-1",
        endpoint_url="http://127.0.0.1:9",
        allow_http=True,
        access_key_id="AKIAEXAMPLE",
        secret_access_key=SECRET,
        retries=RetryPolicy(1, 0, 0),
    )
    with caplog.at_level(logging.DEBUG), pytest.raises(IcefloeError) as raised:
        icefloe.Repository.open(storage)
    assert SECRET not in str(raised.value) + repr(raised.value.__cause__) + caplog.text


def test_credentials_of_the_environment_are_not_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    storage = icefloe.s3_storage(bucket="b", region="us-east-1", from_env=True)
    assert SECRET.encode() not in pickle.dumps(storage)


def test_credentials_are_never_written_into_a_repository() -> None:
    config = icefloe.RepositoryConfig.default()
    prefix = "s3://data/"
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, icefloe.s3_store(region="us-east-1")))
    access = icefloe.containers_credentials(
        {prefix: icefloe.s3_credentials(access_key_id="AKIAEXAMPLE", secret_access_key=SECRET)}
    )
    for version in SpecVersion:
        repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, access, spec_version=version)
        repo.save_config()
        session = repo.writable_session("main")
        zarr.group(session.store)
        session.commit("first")

        async def everything(repo: icefloe.Repository = repo) -> bytes:
            keys = [item.key async for page in repo.storage.list("") for item in page]
            return b"".join([await repo.storage.get(key) for key in keys])

        assert SECRET.encode() not in run_blocking(everything())
        assert SECRET not in repr(repo) + repr(repo.config)
