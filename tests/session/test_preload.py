"""Preload fetches in the background when a session starts, never delays it, and never fetches twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from tests.session.journal import Journal, JournalStorage

import icefloe
from icefloe import ManifestConfig, ManifestPreloadCondition, ManifestPreloadConfig, PreloadRules, RepositoryConfig
from icefloe.errors import StorageError
from icefloe.formats.config_yaml import config_from_yaml
from icefloe.manifests.manifest_plan import manifests_to_preload
from icefloe.metadata_files import MetadataFiles
from icefloe.testing.storages import Fault, FaultKind, FaultPlan, FaultyStorage

SEPARATE = """
chunk-manifests:
  sets:
    - alone: {arrays-per-manifest: 1, cardinality: null}
  rules:
    - target: alone
"""
PATIENCE_S = 20.0


def wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < until, "it did not happen in the background"
        time.sleep(0.005)


def fill(storage: icefloe.Storage, *, config: str = SEPARATE) -> icefloe.Repository:
    """Three coordinates and two variables, by default with a manifest each."""
    repo = icefloe.Repository.create(storage, config_from_yaml(config))
    with repo.transaction("main", message="arrays") as store:
        surface = zarr.group(store).create_group("surface")
        for name, size in (("time", 40), ("latitude", 8), ("longitude", 8), ("t2m", 60), ("wind", 20)):
            array = surface.create_array(name, shape=(size * 10,), chunks=(10,), dtype="f8", compressors=None)
            array[:] = np.arange(1, size * 10 + 1)
    return repo


def preloading(rules: PreloadRules | None = None, condition: ManifestPreloadConfig | None = None) -> RepositoryConfig:
    manifest = ManifestConfig() if rules is None else ManifestConfig(preload_rules=rules)
    manifest.preload = condition
    return RepositoryConfig(manifest=manifest)


def preloaded_arrays(repo: icefloe.Repository, journal: Journal, expected: int) -> list[str]:
    """The names of the arrays whose manifests a new session fetched by itself."""
    snapshot = repo.readonly_session("main").state.base
    owner = {ref.manifest_id: node.path for node in snapshot.nodes.values() for ref in getattr(node, "manifests", ())}
    wait_until(lambda: len(journal.reads("manifests/")) >= expected)
    time.sleep(0.02)
    return [owner[entry.key.rpartition("/")[2]].rpartition("/")[2] for entry in journal.reads("manifests/")]


def test_a_session_opens_before_its_manifests_arrive() -> None:
    inner = icefloe.in_memory_storage()
    fill(inner)
    slow = Fault(FaultKind.SLOW, times=100, methods=("get",), key_contains="manifests/", seconds=3.0)
    repo = icefloe.Repository.open(FaultyStorage(inner, FaultPlan([slow])), preloading(PreloadRules(None, None)))
    started = time.monotonic()
    session = repo.readonly_session("main")
    assert sorted(zarr.open_group(session.store, mode="r")["surface"].array_keys())
    repo.writable_session("main")
    assert time.monotonic() - started < 2.0


def test_a_read_waits_for_the_manifest_on_its_way_and_does_not_fetch_it_again() -> None:
    inner = JournalStorage(icefloe.in_memory_storage())
    fill(inner)
    slow = Fault(FaultKind.SLOW, times=100, methods=("get",), key_contains="manifests/", seconds=0.4)
    repo = icefloe.Repository.open(FaultyStorage(inner, FaultPlan([slow])), preloading(PreloadRules()))
    inner.journal.reset()
    session = repo.readonly_session("main")
    values = zarr.open_array(session.store, path="surface/latitude", mode="r")[:]
    assert values.tolist() == list(range(1, 81))
    assert len(inner.journal.reads("manifests/")) == 1


def test_what_was_preloaded_is_read_without_another_request(
    storage: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    fill(storage)
    repo = reopen(preloading(PreloadRules(max_manifests=None)))
    session = repo.readonly_session("main")
    wait_until(lambda: len(storage.journal.reads("manifests/")) == 3)
    for name in ("time", "latitude", "longitude"):
        zarr.open_array(session.store, path=f"surface/{name}", mode="r")[:]
    repo.readonly_session("main")
    time.sleep(0.05)
    assert len(storage.journal.reads("manifests/")) == 3


def test_errors_of_a_preload_show_where_the_manifest_is_needed_and_nowhere_else() -> None:
    inner = icefloe.in_memory_storage()
    fill(inner)
    plan = FaultPlan([Fault(FaultKind.FAIL_BEFORE, times=1000, methods=("get",), key_contains="manifests/")])
    faulty = FaultyStorage(inner, plan)
    repo = icefloe.Repository.open(faulty, preloading(PreloadRules(max_manifests=None)))
    session = repo.readonly_session("main")
    wait_until(lambda: plan._seen[0] >= 3)
    with pytest.raises(StorageError):
        zarr.open_array(session.store, path="surface/time", mode="r")[:]
    plan.enabled = False
    assert zarr.open_array(session.store, path="surface/time", mode="r")[0] == 1


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (PreloadRules(), ["latitude"]),
        (PreloadRules(max_manifests=2), ["latitude", "longitude"]),
        (PreloadRules(max_manifests=None), ["latitude", "longitude", "time"]),
        (PreloadRules(max_manifests=None, max_manifest_size=10), ["latitude", "longitude"]),
        (PreloadRules(max_manifests=None, paths=("/surface/t.*",)), ["t2m", "time"]),
        (PreloadRules(max_manifests=0), []),
        (PreloadRules(paths=()), []),
    ],
)
def test_rules_say_what_is_preloaded(
    rules: PreloadRules, expected: list[str], storage: JournalStorage, reopen: Callable[..., icefloe.Repository]
) -> None:
    fill(storage)
    assert preloaded_arrays(reopen(preloading(rules)), storage.journal, len(expected)) == expected


CONDITIONS = [
    (ManifestPreloadConfig(1000, ManifestPreloadCondition.name_matches("^t")), ["t2m", "time"]),
    (ManifestPreloadConfig(1000, ManifestPreloadCondition.path_matches("surface/l")), ["latitude", "longitude"]),
    (ManifestPreloadConfig(1000, ManifestPreloadCondition.num_refs(9, 41)), ["time", "wind"]),
    (ManifestPreloadConfig(30, ManifestPreloadCondition.true()), ["latitude", "longitude"]),
    (ManifestPreloadConfig(1000, ManifestPreloadCondition.true(), max_arrays_to_scan=1), ["latitude"]),
    (ManifestPreloadConfig(1000, ManifestPreloadCondition.false()), []),
    (
        ManifestPreloadConfig(
            1000,
            ManifestPreloadCondition.and_conditions(
                [ManifestPreloadCondition.name_matches("t"), ManifestPreloadCondition.num_refs(None, 41)]
            ),
        ),
        ["latitude", "longitude", "time"],
    ),
]


@pytest.mark.parametrize(("condition", "expected"), CONDITIONS)
def test_official_conditions_replace_the_rules(
    condition: ManifestPreloadConfig,
    expected: list[str],
    storage: JournalStorage,
    reopen: Callable[..., icefloe.Repository],
) -> None:
    fill(storage)
    assert preloaded_arrays(reopen(preloading(condition=condition)), storage.journal, len(expected)) == expected


def test_a_manifest_of_several_arrays_is_wanted_once() -> None:
    repo = fill(icefloe.in_memory_storage(), config="{}")
    snapshot = repo.readonly_session("main").state.base
    assert len(snapshot.manifests) == 1
    wanted = manifests_to_preload(snapshot, ManifestConfig(preload_rules=PreloadRules(None, None)))
    assert wanted == list(snapshot.manifests)


@pytest.mark.parametrize("rules", [None, PreloadRules(max_manifests=2)])
def test_manifests_of_local_files_are_preloaded_only_if_the_configuration_says_so(
    rules: PreloadRules | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(icefloe.local_filesystem_storage(str(tmp_path)))
    fetched: list[str] = []
    own = MetadataFiles.fetch_manifest

    async def count(self: MetadataFiles, manifest_id: Any) -> Any:
        found = await own(self, manifest_id)
        fetched.append(str(manifest_id))
        return found

    monkeypatch.setattr(MetadataFiles, "fetch_manifest", count)
    repo = icefloe.Repository.open(str(tmp_path), None if rules is None else preloading(rules))
    session = repo.readonly_session("main")
    if rules is not None:
        wait_until(lambda: len(fetched) == 2)
    time.sleep(0.05)
    assert len(fetched) == (0 if rules is None else 2)
    assert zarr.open_array(session.store, path="surface/time", mode="r")[3] == 4


@pytest.mark.parametrize("data", [b"", b"x" * 200, None])
def test_a_damaged_local_manifest_is_named_by_the_read_that_needs_it(tmp_path: Path, data: bytes | None) -> None:
    fill(icefloe.local_filesystem_storage(str(tmp_path)))
    for file in (tmp_path / "manifests").iterdir():
        file.write_bytes(file.read_bytes()[:-9] if data is None else data)
    session = icefloe.Repository.open(str(tmp_path)).readonly_session("main")
    array = zarr.open_array(session.store, path="surface/latitude", mode="r")
    for _ in range(2):
        with pytest.raises(icefloe.FormatError) as failed:
            array[3]
        assert any("manifests/" in note for note in failed.value.__notes__)


@given(
    st.lists(st.from_regex(r"\A[ab/\n]{1,4}\Z"), max_size=20),
    st.lists(st.sampled_from([".*/a", ".*b", "/a", "a/b", ".*", "", "/[ab]", ".*/a+"]), max_size=4),
)
def test_paths_of_rules_are_found_together_as_they_are_singly(paths: list[str], patterns: list[str]) -> None:
    rules = PreloadRules(paths=tuple(patterns))
    assert list(rules.fitting(paths)) == [path for path in paths if rules.matches(path)]
