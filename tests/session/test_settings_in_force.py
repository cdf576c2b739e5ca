"""Settings of a configuration do what they say."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import CompressionConfig, RepositoryConfig, StorageRetriesSettings, StorageSettings
from icefloe.model.capabilities import SpecVersion
from icefloe.session.open_repository import build_context
from icefloe.storage.remote import ObstoreStorage
from icefloe.storage.requests import RetryPolicy


def manifest_bytes(level: int | None, generation: str) -> int:
    config = RepositoryConfig.default()
    config.compression = CompressionConfig(level=level)
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer("s3://a/", icefloe.s3_store(region="x")))
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, spec_version=generation)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="v", shape=(4000,), chunks=(1,), dtype="i1")
    lengths = np.random.default_rng(0).integers(1, 50, 4000)
    locations = [f"s3://a/part-{index // 3:05d}/file-{index % 7}.nc" for index in range(4000)]
    session.store.set_virtual_refs_arr("v", (4000,), locations, np.cumsum(lengths), lengths)
    snapshot_id = session.commit("references")
    assert len(list(repo.ancestry(branch="main"))) == 2
    opened = icefloe.Repository.open(repo.storage).readonly_session("main")
    assert opened.chunk_type("/v", (3999,)) is icefloe.ChunkType.VIRTUAL
    return sum(file.size_bytes for file in repo.list_manifest_files(snapshot_id))


@pytest.mark.parametrize("generation", ["repository", "icechunk1", "icechunk2"])
def test_the_compression_level_is_that_of_the_files_written(generation: str) -> None:
    fast, small = manifest_bytes(1, generation), manifest_bytes(19, generation)
    assert small < fast


def test_the_level_survives_pickling_and_default_formats_are_shared() -> None:
    config = RepositoryConfig(compression=CompressionConfig(level=7))
    context = build_context(icefloe.in_memory_storage(), SpecVersion.REPOSITORY, config, {})
    assert pickle.loads(pickle.dumps(context)).format.compression_level == 7
    usual = build_context(icefloe.in_memory_storage(), SpecVersion.REPOSITORY, RepositoryConfig(), {})
    assert usual.format.compression_level is None
    assert usual.metadata_files.format is usual.format


def test_retries_of_the_configuration_are_those_of_the_storage() -> None:
    storage = icefloe.s3_storage(
        bucket="b", region="us-east-1", anonymous=True, retries=RetryPolicy(max_tries=4, initial_backoff_ms=7)
    )
    settings = StorageSettings(retries=StorageRetriesSettings(max_tries=2, max_backoff_ms=900))
    context = build_context(storage, SpecVersion.REPOSITORY, RepositoryConfig(storage=settings), {})
    assert context.storage == storage
    for used in (context.storage, context.metadata_files.storage, pickle.loads(pickle.dumps(context)).storage):
        assert isinstance(used, ObstoreStorage)
        assert used.retries == RetryPolicy(max_tries=2, initial_backoff_ms=7, max_backoff_ms=900)
    untouched = build_context(storage, SpecVersion.REPOSITORY, RepositoryConfig(), {})
    assert untouched.storage is storage
