"""Which generation is stored at a place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from zarr.core.buffer import default_buffer_prototype

from icefloe.errors import UnknownFormatError
from icefloe.formats.format import get_format
from icefloe.formats.header import FileType, encode_header
from icefloe.ledger.generations import GENERATIONS, detect, detect_generation
from icefloe.metadata_files import MetadataFiles
from icefloe.model.capabilities import SpecVersion
from icefloe.repository import Repository
from icefloe.storage.build import in_memory_storage, local_filesystem_storage
from icefloe.testing.storages import CountingStorage

REF = b'{"snapshot":"1CECHNKREP0F1RSTCMT0"}'
REPO = encode_header(FileType.REPO_INFO, 2) + b"..."
GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
STATE = json.dumps({"id": "x", "generation": 1, "snapshots": []}).encode()


@pytest.mark.parametrize(
    ("files", "generation"),
    [
        ({}, None),
        ({"other": b"x"}, None),
        ({"repo": REPO}, SpecVersion.ICECHUNK2),
        ({"repo": REPO, "refs/branch.main/ref.json": REF}, SpecVersion.ICECHUNK2),
        ({"refs/branch.main/ref.json": REF}, SpecVersion.ICECHUNK1),
        ({"refs/branch.main/ZZZZZZZZ.json": REF}, SpecVersion.REPOSITORY),
        ({"refs/branch.main/ZZZZZZZX.json": REF}, SpecVersion.REPOSITORY),
        ({"refs/branch:main/ZZZZZZZZ.json": REF}, SpecVersion.REPOSITORY),
        ({"refs/branch:main/ZZZZZZZZZZZZY.json": REF}, SpecVersion.REPOSITORY),
        ({"refs/branch.main/notes.txt": REF}, None),
        ({"r/main/ZZZZZZZZ.json": REF}, SpecVersion.STORE),
        ({"r/branch:main/ZZZZZZZZZZZZY.json": REF}, SpecVersion.STORE),
        ({"state.json": STATE}, SpecVersion.DATASET),
        ({"state.json": b"{}"}, None),
        ({"state.json": b"["}, None),
    ],
)
async def test_a_generation_is_known_by_its_files(files: dict[str, bytes], generation: SpecVersion | None) -> None:
    storage = in_memory_storage()
    for key, data in files.items():
        await storage.put(key, data)
    assert await detect_generation(storage) is generation


@pytest.mark.parametrize(
    "repo", [b"hello", encode_header(FileType.REPO_INFO, 3), encode_header(FileType.SNAPSHOT, 2), REPO[:30]]
)
async def test_something_newer_or_unknown_is_said_to_be_so(repo: bytes) -> None:
    storage = in_memory_storage()
    await storage.put("repo", repo)
    with pytest.raises(UnknownFormatError):
        await detect_generation(storage)


@pytest.mark.parametrize(
    ("key", "data", "requests"),
    [("repo", REPO, 4), ("refs/branch.main/ref.json", REF, 4), ("refs/branch.main/ZZZZZZZZ.json", REF, 5)],
)
async def test_the_generations_in_use_are_found_with_few_requests_and_without_listing(
    key: str, data: bytes, requests: int
) -> None:
    storage = CountingStorage(in_memory_storage())
    await storage.put(key, data)
    storage.counts.reset()
    assert await detect_generation(storage) is not None
    assert storage.counts.total.requests == requests
    assert storage.counts.of("list", "list_names").requests == 0


async def test_a_configuration_that_names_the_generation_tells_all_in_one_request() -> None:
    storage = CountingStorage(in_memory_storage())
    await storage.put("config.json", b'{"generation": "repository", "inline_chunk_threshold_bytes": 7}')
    storage.counts.reset()
    detected = await detect(storage)
    assert detected is not None
    assert detected.spec_version is SpecVersion.REPOSITORY
    config = detected.config()
    assert config is not None
    assert config.document == {"inline_chunk_threshold_bytes": 7}
    assert storage.counts.total.requests == 1


@pytest.mark.parametrize(("version", "requests"), [("icechunk1", 4), ("icechunk2", 4)])
async def test_official_generations_are_opened_in_two_rounds_configuration_included(
    version: str, requests: int
) -> None:
    memory = in_memory_storage()
    await Repository.create_async(memory, spec_version=version)
    storage = CountingStorage(memory)
    await Repository.open_async(storage)
    assert storage.counts.total.requests == requests


@pytest.mark.parametrize("version", ["icechunk1", "icechunk2"])
async def test_the_snapshot_of_a_branch_that_was_seen_is_fetched_beside_the_branch(version: str) -> None:
    memory = in_memory_storage()
    other = await Repository.create_async(memory, spec_version=version)
    storage = CountingStorage(memory)
    repo = await Repository.open_async(storage)
    storage.counts.reset()
    assert repo.context.ledger.recall_tip("main") == other.lookup_branch("main")
    await repo.readonly_session_async("main")
    assert storage.counts.total.requests == 2
    session = await other.writable_session_async("main")
    await session.store.set("zarr.json", default_buffer_prototype().buffer.from_bytes(GROUP))
    tip = await session.commit_async("elsewhere")
    assert (await repo.readonly_session_async("main")).snapshot_id == tip


@pytest.mark.parametrize("config", [b"", b"[]", b'{"generation": "store"}', b"{}"])
async def test_a_configuration_that_does_not_name_it_leaves_the_search_to_the_files(config: bytes) -> None:
    storage = in_memory_storage()
    await storage.put("config.json", config)
    assert await detect_generation(storage) is None
    await storage.put("refs/branch.main/ZZZZZZZZ.json", REF)
    assert await detect_generation(storage) is SpecVersion.REPOSITORY


@pytest.fixture
def folders(fixtures_folder: Path) -> list[Path]:
    return list(fixtures_folder.glob("g*"))


async def test_every_fixture_is_recognised(folders: list[Path]) -> None:
    names = {"g2": SpecVersion.REPOSITORY, "g3": SpecVersion.ICECHUNK1, "g4": SpecVersion.ICECHUNK2}
    found = {}
    for folder in folders:
        expected = SpecVersion.REPOSITORY if "g3-dev" in folder.name else names[folder.name[:2]]
        found[folder.name] = (await detect_generation(local_filesystem_storage(folder / "repo")), expected)
    assert found
    assert {name for name, (seen, expected) in found.items() if seen is not expected} == set()


@pytest.mark.parametrize("version", SpecVersion)
def test_every_generation_has_a_format(version: SpecVersion) -> None:
    assert get_format(version).spec_version is version
    assert get_format(version) is get_format(version)


def test_every_generation_is_one_object_of_the_registry() -> None:
    assert list(GENERATIONS) == list(SpecVersion)
    for version, generation in GENERATIONS.items():
        assert generation.format.spec_version is version
        storage = in_memory_storage()
        ledger = generation.make_ledger(storage, MetadataFiles(storage, generation.format))
        assert type(ledger).__name__ == generation.ledger_class
