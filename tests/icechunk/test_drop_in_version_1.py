"""Programs for version 1 of the official package: `install(version=1)` follows its rules, and nothing else does."""

from __future__ import annotations

import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe import icechunk
from icefloe.icechunk.version_1 import follow_version
from icefloe.icechunk.xarray import to_icechunk


@pytest.fixture
def version_1() -> Iterator[None]:
    follow_version(1)
    yield
    follow_version(2)


@pytest.fixture
def session() -> icechunk.Session:
    opened: icechunk.Session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
    return opened


def add_group(session: Any, path: str) -> None:
    zarr.create_group(session.store, path=path)


def fork_and_write(session: icechunk.Session, path: str) -> icechunk.ForkSession:
    fork: icechunk.ForkSession = pickle.loads(pickle.dumps(session.fork()))
    add_group(fork, path)
    return fork


@pytest.mark.usefixtures("version_1")
def test_version_1_forks_only_sessions_without_changes(session: icechunk.Session) -> None:
    fork = session.fork()
    fork.fork()
    for each, path in ((session, "a"), (fork, "b")):
        add_group(each, path)
        with pytest.raises(ValueError, match="uncommitted changes"):
            each.fork()
    session.merge(fork)
    session.commit("both")
    with pytest.raises(ValueError, match="read-only"):
        session.fork()


@pytest.mark.usefixtures("version_1")
@pytest.mark.parametrize("write", [icechunk.Session.commit, icechunk.Session.flush])
def test_version_1_warns_of_a_commit_before_forks_are_merged(
    session: icechunk.Session, write: Callable[[icechunk.Session, str], str]
) -> None:
    fork = fork_and_write(session, "a")
    with pytest.warns(UserWarning, match="no fork was merged"), pytest.raises(icechunk.IcechunkError, match="cannot"):
        write(session, "nothing")
    session.merge(fork)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(session, "merged")
    assert "a" in zarr.open_group(session.store, mode="r")


@pytest.mark.usefixtures("version_1")
async def test_version_1_refuses_to_commit_a_fork(session: icechunk.Session) -> None:
    fork = fork_and_write(session, "a")
    for call in (fork.commit, fork.flush):
        with pytest.raises(TypeError, match=r"Cannot (commit|flush) a fork"):
            call("a fork")
    with pytest.raises(TypeError, match="Cannot commit a fork"):
        await fork.commit_async("a fork")
    with pytest.raises(TypeError, match="got Session"):
        session.merge(session)


@pytest.mark.usefixtures("version_1")
def test_datasets_are_written_with_dask_under_version_1(session: icechunk.Session) -> None:
    dataset = xr.Dataset({"t": ("x", np.arange(6))}).chunk(x=2)
    to_icechunk(dataset, session)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        session.commit("a dataset")
    assert xr.open_zarr(session.store, consolidated=False).equals(dataset)


@pytest.mark.usefixtures("version_1")
def test_version_1_prints_configurations_in_one_line() -> None:
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=7)
    config.compression = icechunk.CompressionConfig(level=2)
    config.storage = icechunk.in_memory_storage().default_settings()
    config.storage.storage_class = "COLD"
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer("s3://b/", icechunk.s3_store(region="r")))
    text = repr(config)
    assert "\n" not in text and text == str(config)
    names = re.findall(r"(\w+)=", re.sub(r"(?<==)\w+\(((?:[^()]|\([^()]*\))*)\)", "", text))
    assert names == [
        "inline_chunk_threshold_bytes",
        "get_partial_values_concurrency",
        "compression",
        "caching",
        "storage",
        "manifest",
    ]
    assert "compression=CompressionConfig(algorithm=None, level=2)" in text
    assert 'unsafe_use_metadata=None, storage_class="COLD"' in text


@pytest.mark.usefixtures("version_1")
def test_version_1_prints_storages_in_one_line(tmp_path: Path) -> None:
    cloud: dict[str, Any] = {"bucket": "b", "prefix": "p/q"}
    texts = {
        "ObjectStorage(backend=InMemoryObjectStoreBackend)": icechunk.in_memory_storage(),
        f"ObjectStorage(backend=LocalFileSystemObjectStoreBackend(path={tmp_path}))": (
            icechunk.local_filesystem_storage(str(tmp_path))
        ),
        "S3Storage(bucket=b, prefix=p/q, config=S3Options(region=r, endpoint_url=None, force_path_style=False))": (
            icechunk.s3_storage(region="r", anonymous=True, **cloud)
        ),
        "ObjectStorage(backend=GcsObjectStoreBackend(bucket=b, prefix=p/q))": (
            icechunk.gcs_storage(anonymous=True, **cloud)
        ),
        "ObjectStorage(backend=AzureObjectStoreBackend(account=a, container=c, prefix=p/q))": (
            icechunk.azure_storage(account="a", container="c", prefix="p/q", access_key="aGk=")
        ),
    }
    assert {repr(storage): storage for storage in texts.values()} == texts


@pytest.mark.usefixtures("version_1")
def test_version_1_reads_the_newest_snapshot_when_it_is_asked_for_the_history(tmp_path: Path) -> None:
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    assert len(list(icechunk.Repository.create(storage).ancestry(branch="main"))) == 1
    shutil.rmtree(tmp_path / "snapshots")
    repo = icechunk.Repository.open(storage)
    with pytest.raises(icechunk.IcechunkError, match="in fetch_snapshot, for ancestry"):
        repo.ancestry(branch="main")


def test_nothing_of_version_1_is_left_when_version_2_is_followed_again(
    session: icechunk.Session, tmp_path: Path
) -> None:
    follow_version(1)
    follow_version(2)
    add_group(session, "a")
    fork = session.fork()
    with pytest.raises(icechunk.IcechunkError, match="commits are not allowed"):
        fork.commit("a fork")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.commit("before the fork is merged")
    assert repr(icechunk.RepositoryConfig()).startswith("icechunk.config.RepositoryConfig(\n")
    assert repr(icechunk.in_memory_storage()).startswith("<icechunk.Storage>\n")
    assert icechunk.in_memory_storage().default_settings() == icefloe.in_memory_storage().default_settings()
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    icechunk.Repository.create(storage)
    shutil.rmtree(tmp_path / "snapshots")
    icechunk.Repository.open(storage).ancestry(branch="main")
