"""Repositories on every kind of storage, for the store's tests."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.servers.s3 import S3Server

import icefloe
from icefloe.storage.contract import Storage

GENERATIONS = ("repository", "icechunk1", "icechunk2", "dataset", "store")


@pytest.fixture(
    params=[
        "memory",
        "local",
        pytest.param("ministack", marks=pytest.mark.s3),
        pytest.param("seaweedfs", marks=[pytest.mark.s3, pytest.mark.slow]),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty place for a repository."""
    if request.param == "memory":
        return icefloe.in_memory_storage()
    if request.param == "local":
        return icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    server, bucket = request.getfixturevalue(f"{request.param}_bucket")
    return icefloe.s3_storage(**server.storage_options(bucket, f"test/{secrets.token_hex(6)}"))


@pytest.fixture(scope="session")
def ministack_bucket(s3_server: S3Server) -> tuple[S3Server, str]:
    """One bucket for all of these tests: each has its own folder."""
    return s3_server, s3_server.make_bucket()


@pytest.fixture(scope="session")
def seaweedfs_bucket(seaweed_server: S3Server) -> tuple[S3Server, str]:
    """One bucket for all of these tests: every bucket takes volumes, of which there are few."""
    return seaweed_server, seaweed_server.make_bucket()


@pytest.fixture(params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> str:
    """A generation of the on-disk format."""
    name: str = request.param
    return name


@pytest.fixture
def make_repository(generation: str, tmp_path: Path) -> Callable[..., icefloe.Repository]:
    """Makes a repository on local files in the generation under test."""

    def make(**config: Any) -> icefloe.Repository:
        folder = tmp_path / secrets.token_hex(4)
        settings = icefloe.RepositoryConfig(**config) if config else None
        return icefloe.Repository.create(
            icefloe.local_filesystem_storage(str(folder)), settings, spec_version=generation
        )

    return make
