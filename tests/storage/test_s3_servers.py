"""The S3 servers that other tests stand on keep their own promises."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import time
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store
from tests.servers.ministack import ministack_missing, ministack_server
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.s3


@pytest.fixture(params=["ministack", "seaweedfs"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


def open_bucket(server: S3Server, bucket: str) -> S3Store:
    return S3Store(
        bucket,
        endpoint=server.endpoint_url,
        region=server.region,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def test_what_is_put_can_be_read_and_listed(server: S3Server) -> None:
    store = open_bucket(server, server.make_bucket())
    obstore.put(store, "a/b", b"bytes")
    assert bytes(obstore.get(store, "a/b").bytes()) == b"bytes"
    assert [item["path"] for item in obstore.list(store).collect()] == ["a/b"]


def test_buckets_are_fresh(server: S3Server) -> None:
    first, second = server.make_bucket(), server.make_bucket()
    obstore.put(open_bucket(server, first), "key", b"1")
    assert obstore.list(open_bucket(server, second)).collect() == []


def test_of_many_creators_of_one_key_exactly_one_wins(server: S3Server) -> None:
    store = open_bucket(server, server.make_bucket())

    def create(number: int) -> bool:
        try:
            obstore.put(store, "key", str(number).encode(), mode="create")
        except AlreadyExistsError:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 1


def test_a_server_is_gone_after_its_use() -> None:
    if reason := ministack_missing():
        pytest.skip(reason)
    with ministack_server() as server:
        assert server.request("GET", "/")[0] == 200
    time.sleep(0.05)
    with pytest.raises(ConnectionRefusedError):
        server.request("GET", "/")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_server_does_not_outlive_a_killed_test_process(repository_root: Path, tmp_path: Path) -> None:
    if reason := ministack_missing():
        pytest.skip(reason)
    script = (
        "import time; from tests.servers.ministack import ministack_server\n"
        "with ministack_server() as server: print(server.endpoint_url, flush=True); time.sleep(60)"
    )
    # The killed process cannot delete its server's folder; pytest does it.
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", script], cwd=repository_root, env=variables, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        server = S3Server("orphan", owner.stdout.readline().strip())
        assert server.request("GET", "/")[0] == 200
        owner.kill()
    time.sleep(0.5)
    with pytest.raises(ConnectionRefusedError):
        server.request("GET", "/")
