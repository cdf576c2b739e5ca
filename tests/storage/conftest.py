"""The storages that every contract test runs on."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.s3 import S3Server

from icefloe.storage.build import in_memory_storage, local_filesystem_storage, s3_storage
from icefloe.storage.contract import Storage


@pytest.fixture(
    params=[
        "memory",
        "local",
        "local-fsync",
        pytest.param("ministack", marks=pytest.mark.s3),
        pytest.param("seaweedfs", marks=[pytest.mark.s3, pytest.mark.slow]),
    ]
)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """An empty storage of each kind."""
    if request.param == "memory":
        yield in_memory_storage()
    elif request.param.startswith("local"):
        yield local_filesystem_storage(tmp_path / "repo", fsync=request.param == "local-fsync")
    else:
        server: S3Server = request.getfixturevalue("s3_server" if request.param == "ministack" else "seaweed_server")
        bucket = _bucket_of(server)
        yield s3_storage(**server.storage_options(bucket, f"test/{secrets.token_hex(6)}"))


_buckets: dict[str, str] = {}


def _bucket_of(server: S3Server) -> str:
    if server.endpoint_url not in _buckets:
        _buckets[server.endpoint_url] = server.make_bucket()
    return _buckets[server.endpoint_url]
