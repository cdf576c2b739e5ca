"""What was read once is not fetched again by other sessions of the repository, within limits by bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.session.journal import JournalStorage

import icefloe
from icefloe import CachingConfig, ManifestConfig, PreloadRules, RepositoryConfig
from icefloe.metadata_files import MetadataFiles

ARRAYS, CHUNKS = 6, 150


def settings(**caching: int) -> RepositoryConfig:
    """No preload, so that only reads fetch; small chunks have objects of their own."""
    return RepositoryConfig(
        caching=CachingConfig(**caching),
        inline_chunk_threshold_bytes=0,
        manifest=ManifestConfig(
            sets=(icefloe.ManifestSet("alone", arrays_per_manifest=1, cardinality=None),),
            rules=(icefloe.ManifestRule("alone"),),
            preload_rules=PreloadRules(paths=()),
        ),
    )


@pytest.fixture
def filled(storage: JournalStorage) -> JournalStorage:
    """Arrays with a manifest each, and one group with attributes large enough for a file of their own."""
    repo = icefloe.Repository.create(storage, settings())
    with repo.transaction("main", message="arrays") as store:
        root = zarr.group(store)
        root.create_group("noted", attributes={"note": "x" * 20_000})
        for index in range(ARRAYS):
            array = root.create_array(f"a{index}", shape=(CHUNKS,), chunks=(1,), dtype="i1", compressors=None)
            array[:] = np.ones(CHUNKS, dtype="i1")
    return storage


def first_chunk(session: icefloe.Session, name: str) -> int:
    return int(zarr.open_array(session.store, path=name, mode="r")[0])


def weights(repo: icefloe.Repository) -> tuple[int, int]:
    """Bytes held and allowed in the cache of manifests."""
    metadata_files: MetadataFiles = repo.context.metadata_files
    return metadata_files._manifests._bytes, metadata_files._manifests.limit_bytes


def test_a_second_session_fetches_no_file_again(
    filled: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    repo = reopen()
    for name in ("a0", "a1"):
        first_chunk(repo.readonly_session("main"), name)
    zarr.open_group(repo.readonly_session("main").store, path="noted", mode="r").attrs["note"]
    assert len(filled.journal.reads("snapshots/")) == 1
    assert len(filled.journal.reads("manifests/")) == 2
    assert len(filled.journal.reads("attributes/")) == 1
    filled.journal.reset()
    for name in ("a0", "a1"):
        first_chunk(repo.readonly_session("main"), name)
        first_chunk(repo.writable_session("main"), name)
    zarr.open_group(repo.readonly_session("main").store, path="noted", mode="r").attrs["note"]
    fetched = [entry.key for entry in filled.journal.reads() if not entry.key.startswith(("refs/", "chunks/"))]
    # The first writer on a branch reads its snapshot again: expiry may have changed the history that it quotes.
    assert len(fetched) == 1 and fetched[0].startswith("snapshots/")


def test_the_cache_of_manifests_keeps_to_its_limit(
    filled: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    repo = reopen()
    first_chunk(repo.readonly_session("main"), "a0")
    one, _ = weights(repo)
    repo = reopen(settings(num_bytes_manifests=2 * one + one // 2))
    session = repo.readonly_session("main")
    for index in range(ARRAYS):
        first_chunk(session, f"a{index}")
        held, limit = weights(repo)
        assert held <= limit == 2 * one + one // 2
    assert weights(repo)[0] == 2 * one
    filled.journal.reset()
    last, first = f"a{ARRAYS - 1}", "a0"
    first_chunk(repo.readonly_session("main"), last)
    assert filled.journal.reads("manifests/") == []
    first_chunk(repo.readonly_session("main"), first)
    assert len(filled.journal.reads("manifests/")) == 1


def test_limits_by_number_are_those_of_the_official_package(
    filled: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    repo = reopen(settings(num_chunk_refs=0))
    session = repo.readonly_session("main")
    for _ in range(3):
        first_chunk(session, "a0")
    assert weights(repo) == (0, 0)
    assert len(filled.journal.reads("manifests/")) >= 2


@pytest.mark.parametrize("is_local", [False, True])
def test_a_cache_that_is_too_small_for_a_manifest_is_reported_once(
    is_local: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = icefloe.local_filesystem_storage(tmp_path) if is_local else icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, settings())
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(3,), chunks=(1,), dtype="i1")[:] = 1
    caplog.clear()
    session = icefloe.Repository.open(storage, config=settings(num_chunk_refs=2)).readonly_session("main")
    for _ in range(2):
        first_chunk(session, "a")
    said = [record.getMessage() for record in caplog.records if "num_chunk_refs" in record.getMessage()]
    assert len(said) == 1
    assert "A manifest has 3 chunk references, but the cache can keep 2 references" in said[0]


def test_without_a_cache_of_snapshots_each_session_fetches_its_own(
    filled: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    repo = reopen(settings(num_bytes_snapshots=0))
    for _ in range(3):
        repo.readonly_session("main")
    assert len(filled.journal.reads("snapshots/")) == 3


def test_chunks_are_cached_only_when_asked_for(
    filled: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    repo = reopen()
    for _ in range(2):
        first_chunk(repo.readonly_session("main"), "a0")
    assert len(filled.journal.reads("chunks/")) == 2

    repo = reopen(settings(num_bytes_chunks=1 << 20))
    for _ in range(3):
        whole = zarr.open_array(repo.readonly_session("main").store, path="a0", mode="r")[:]
        assert whole.sum() == CHUNKS
    assert 1 <= len(filled.journal.reads("chunks/")) <= 4
    cache = repo.context.reader._cache
    assert cache._bytes == CHUNKS


def test_the_cache_of_chunks_keeps_to_its_limit(
    filled: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    repo = reopen(settings(num_bytes_chunks=100))
    array = zarr.open_array(repo.readonly_session("main").store, path="a0", mode="r")
    assert array[:].sum() == CHUNKS
    assert repo.context.reader._cache._bytes <= 100
    filled.journal.reset()
    assert array[CHUNKS - 50 :].sum() == 50


def test_a_commit_is_followed_by_sessions_that_know_what_it_wrote(filled: JournalStorage) -> None:
    repo = icefloe.Repository.open(filled)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a0")[0] = 7
    session.commit("one chunk")
    filled.journal.reset()
    assert first_chunk(repo.readonly_session("main"), "a0") == 7
    assert filled.journal.reads("snapshots/") == []
    assert filled.journal.reads("manifests/") == []
