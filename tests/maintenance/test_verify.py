"""Verification finds every kind of damage, says where it is, and repairs what needs no guess."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.maintenance.histories import GENERATIONS, Past, make_past, messages, now

import icefloe
from icefloe.blocking import run_blocking
from icefloe.cli.app import main
from icefloe.ids import new_chunk_id
from icefloe.ingest.local_ingest import ingest_local
from icefloe.ingest.sources import IngestOptions
from icefloe.maintenance.verify_checks import DamageKind
from icefloe.model.chunk_table import ChunkKind
from icefloe.model.snapshot import ArrayNode, ManifestFileInfo, ManifestRef, Snapshot, TransactionLog
from icefloe.storage.contract import Storage
from icefloe.testing.synthetic_weather import write_month


@pytest.fixture(params=GENERATIONS)
def past(request: pytest.FixtureRequest) -> Past:
    made = make_past(icefloe.in_memory_storage(), request.param)
    session = made.repo.writable_session("main")
    zarr.open_group(session.store, mode="r+").create_group("g", attributes={"text": "x" * 50_000})
    made.values[session.commit("attributes")] = dict(made.values[list(made.values)[-1]])
    made.repo.create_tag("v1", list(made.repo.ancestry(branch="main"))[2].id)
    return made


def kinds(repo: icefloe.Repository, **options: bool) -> set[tuple[str, str]]:
    report = icefloe.Repository.open(repo.storage).verify(**options)
    return {(damage.what, damage.kind.value) for damage in report.damages}


def put(storage: Storage, key: str, data: bytes | None) -> None:
    run_blocking(storage.delete([key]))
    if data is not None:
        run_blocking(storage.put(key, data))


def tip(repo: icefloe.Repository) -> Snapshot:
    return run_blocking(repo.context.metadata_files.fetch_snapshot(repo.lookup_branch("main")))


def rewrite(repo: icefloe.Repository, snapshot: Snapshot) -> None:
    run_blocking(repo.context.metadata_files.write_snapshot(snapshot))


def test_a_whole_repository_is_clean(past: Past) -> None:
    report = past.repo.verify(decode=True)
    assert report.is_clean, str(report)
    assert report.checked["snapshots"] == 8 and report.checked["chunks"] > 5
    assert sum(report.orphans.values()) == 0
    assert "clean" in str(report)


def test_it_stays_clean_through_maintenance(past: Past) -> None:
    past.repo.expire_snapshots(retain_last=2)
    assert past.repo.verify().is_clean
    past.repo.garbage_collect(now())
    past.repo.rewrite_manifests("again", branch="main")
    report = icefloe.Repository.open(past.repo.storage).verify()
    assert report.is_clean, str(report)


@pytest.mark.parametrize("damage", ["missing", "unreadable"])
def test_snapshots(past: Past, damage: str) -> None:
    third = list(past.repo.ancestry(branch="main"))[3].id
    put(past.repo.storage, past.repo.context.format.snapshot_key(third), None if damage == "missing" else b"junk" * 50)
    found = icefloe.Repository.open(past.repo.storage).verify(logs=False).damages
    assert ("snapshot", damage) in {(each.what, each.kind.value) for each in found}
    assert any("branch main" in each.refs and "tag v1" in each.refs for each in found)


@pytest.mark.parametrize("damage", ["missing", "unreadable"])
def test_manifests(past: Past, damage: str) -> None:
    manifest = next(iter(tip(past.repo).manifests))
    put(
        past.repo.storage, past.repo.context.format.manifest_key(manifest), None if damage == "missing" else b"junk" * 9
    )
    assert ("manifest", damage) in kinds(past.repo)


@pytest.mark.parametrize("damage", ["missing", "unreadable"])
def test_attributes(past: Past, damage: str) -> None:
    files = tip(past.repo).attribute_files
    if not files:
        pytest.skip("the generation keeps attributes in snapshots")
    put(past.repo.storage, past.repo.context.format.attributes_key(files[0]), None if damage == "missing" else b"junk")
    assert ("attributes", damage) in kinds(past.repo)


def _native(repo: icefloe.Repository, path: str = "/a") -> str:
    session = repo.readonly_session("main")
    node = session.state.tree.array(path)
    table = run_blocking(session.state.chunk_table(node))
    assert table.object_id is not None and table.kind[0] == ChunkKind.NATIVE
    return repo.context.format.chunk_key(table.object_id[0].tobytes())


def test_chunks_that_are_missing_or_short(past: Past) -> None:
    key = _native(past.repo)
    data = run_blocking(past.repo.storage.get(key))
    put(past.repo.storage, key, data[: len(data) // 2])
    report = past.repo.verify()
    assert [each.key for each in report.of_kind(DamageKind.TOO_SHORT)] == [key]
    put(past.repo.storage, key, None)
    damage = past.repo.verify().of_kind(DamageKind.MISSING)[0]
    assert (damage.key, damage.array) == (key, "/a") and "branch main" in damage.refs


def test_chunks_whose_bytes_do_not_decode() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="z", shape=(90_000,), chunks=(90_000,), dtype="i8")[:] = (
        np.random.default_rng(0).integers(0, 1 << 60, 90_000)
    )
    session.commit("compressed")
    key = _native(repo, "/z")
    put(repo.storage, key, b"\xff" * len(run_blocking(repo.storage.get(key))))
    assert repo.verify().is_clean
    assert ("chunk", "undecodable") in kinds(repo, decode=True)


def test_wrong_sizes_are_found_and_repaired(past: Past) -> None:
    snapshot = tip(past.repo)
    infos = {
        key: ManifestFileInfo(key, info.size_bytes + 7, info.num_chunk_refs) for key, info in snapshot.manifests.items()
    }
    rewrite(past.repo, dataclasses.replace(snapshot, manifests=infos))
    if (
        run_blocking(
            icefloe.Repository.open(past.repo.storage).context.metadata_files.fetch_snapshot(snapshot.id)
        ).manifests
        != infos
    ):
        pytest.skip("the generation does not keep the sizes of manifests")
    assert ("manifest", "wrong size") in kinds(past.repo)
    assert icefloe.Repository.open(past.repo.storage).verify(repair=True).is_clean
    assert kinds(past.repo) == set()


def test_extents_that_hide_chunks(past: Past) -> None:
    snapshot = tip(past.repo)
    node = snapshot.nodes["/a"]
    assert isinstance(node, ArrayNode)
    if not node.manifests[0].extents:
        pytest.skip("the generation keeps no extents")
    moved = tuple(ManifestRef(ref.manifest_id, ((50, 53),)) for ref in node.manifests)
    nodes = {**snapshot.nodes, "/a": dataclasses.replace(node, manifests=moved)}
    rewrite(past.repo, dataclasses.replace(snapshot, nodes=nodes))
    assert ("manifest", "wrong extents") in kinds(past.repo, logs=False)


@pytest.mark.parametrize("damage", ["missing", "unreadable", "log differs"])
def test_transaction_logs_are_found_and_repaired(past: Past, damage: str) -> None:
    context = past.repo.context
    if not context.capabilities.transaction_logs:
        pytest.skip("the generation has no logs")
    snapshot_id = list(past.repo.ancestry(branch="main"))[3].id
    if damage == "log differs":
        run_blocking(context.metadata_files.write_transaction_log(snapshot_id, TransactionLog()))
    else:
        put(
            context.storage,
            context.format.transaction_log_key(snapshot_id),
            None if damage == "missing" else b"junk" * 9,
        )
    assert ("transaction log", damage) in kinds(past.repo)
    assert icefloe.Repository.open(context.storage).verify(repair=True).is_clean
    assert kinds(past.repo) == set()


@pytest.mark.parametrize("version", ["store", "repository"])
def test_quotes_of_collected_ancestors_are_found_and_repaired(version: str) -> None:
    past = make_past(icefloe.in_memory_storage(), version)
    metadata_files = past.repo.context.metadata_files
    quoted = run_blocking(metadata_files.fetch_snapshot(past.repo.lookup_branch("main"))).history
    past.repo.expire_snapshots(retain_last=1)
    past.repo.garbage_collect(now())
    with past.repo.transaction("main", message="late") as store:
        zarr.open_group(store, mode="a").create_group("late")
    # As a writer left it that had the history of before in memory.
    late = run_blocking(metadata_files.fetch_snapshot(past.repo.lookup_branch("main")))
    parent = dataclasses.replace(late.history[0], parent_id=quoted[0].id)
    run_blocking(metadata_files.write_snapshot(dataclasses.replace(late, history=(parent, *quoted))))
    assert ("snapshot", "misquoted") in kinds(past.repo)
    assert icefloe.Repository.open(past.repo.storage).verify(repair=True).is_clean
    assert messages(icefloe.Repository.open(past.repo.storage)) == ["late", "c 5 on main", "Repository initialized"]


def test_orphans_are_counted(past: Past) -> None:
    layout = past.repo.context.format
    key = layout.chunk_key(new_chunk_id(past.repo.context.capabilities.object_id_bytes))
    run_blocking(past.repo.storage.put(key, b"left behind"))
    report = past.repo.verify()
    assert report.is_clean and report.orphans["chunks"] == 1 and report.orphan_bytes == 11


def test_virtual_chunks_without_a_container_are_told() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="v", shape=(4,), chunks=(4,), dtype="i4")
    session.store.set_virtual_ref("v/c/0", "s3://nowhere/file", offset=0, length=16, validate_container=False)
    session.commit("virtual")
    assert ("chunk", "no container") in kinds(repo)


@pytest.fixture(params=GENERATIONS)
def virtual(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, str]:
    """A folder of files, a repository that refers to their chunks, and the prefix of their container."""
    paths = write_month(tmp_path / "in", days=4, nlat=9, nlon=18, variables=("t2m",), packed=True)
    for path in paths:
        os.utime(path, (1_500_000_000, 1_500_000_000))
    repo = icefloe.Repository.create(tmp_path / "repo", spec_version=request.param)
    result = ingest_local(str(tmp_path / "in" / "*.nc"), repo, IngestOptions(mode="virtual"))
    assert result.plan is not None
    return tmp_path / "in", tmp_path / "repo", result.plan.containers[0]


def test_files_of_virtual_chunks_that_are_gone_changed_or_cut_are_named(virtual: tuple[Path, Path, str]) -> None:
    folder, place, prefix = virtual
    repo = icefloe.Repository.open(place, authorize_virtual_chunk_access={prefix: None})
    report = repo.verify()
    assert report.is_clean and report.checked["virtual_files"] == 4 and not report.unchecked, str(report)
    gone, changed, cut, _ = sorted(folder.glob("*.nc"))
    gone.unlink()
    changed.write_bytes(changed.read_bytes()[:-1] + b"x")
    content = cut.read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    os.utime(cut, (1_500_000_000, 1_500_000_000))
    report = repo.verify()
    found = {damage.key.rsplit("/", 1)[-1]: damage for damage in report.damages}
    expected = {gone.name: DamageKind.MISSING, changed.name: DamageKind.CHANGED, cut.name: DamageKind.TOO_SHORT}
    if not repo.context.capabilities.checksums:
        # Its references hold no state of the file, so that only length and existence tell.
        del expected[changed.name]
    assert {name: damage.kind for name, damage in found.items()} == expected
    assert all("chunks are in it" in damage.detail and "main" in damage.refs[0] for damage in found.values())
    assert repo.verify(virtual=False).is_clean


def test_files_that_may_not_be_looked_at_are_told(virtual: tuple[Path, Path, str]) -> None:
    folder, place, _ = virtual
    for path in folder.glob("*.nc"):
        path.unlink()
    report = icefloe.Repository.open(place).verify()
    assert report.is_clean and "virtual_files" not in report.checked
    assert [each.files for each in report.unchecked] == [4]
    assert "not checked: 4 virtual files with" in str(report)


def test_a_file_is_asked_for_once_however_many_chunks_are_in_it(virtual: tuple[Path, Path, str]) -> None:
    _, place, prefix = virtual
    repo = icefloe.Repository.open(place, authorize_virtual_chunk_access={prefix: None})
    asked: list[str] = []
    source = repo.context.containers.resolve(f"{prefix}x")
    head = source.storage.head

    async def counted(key: str) -> object:
        asked.append(key)
        return await head(key)

    source.storage.head = counted  # type: ignore[method-assign,assignment]
    report = repo.verify()
    assert len(asked) == len(set(asked)) == 4 < report.checked["chunks"]


def test_the_command_looks_at_virtual_files_where_it_is_told_to(
    virtual: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, place, prefix = virtual
    assert main(["verify", str(place), "--authorize", prefix]) == 0
    min(folder.glob("*.nc")).unlink()
    assert main(["verify", str(place), "--authorize", prefix]) == 1
    assert "virtual file missing" in capsys.readouterr().out
    assert main(["verify", str(place)]) == 0
    assert "not checked: 4 virtual files" in capsys.readouterr().out


@pytest.mark.parametrize("version", GENERATIONS)
def test_a_move_under_a_smaller_attributes_threshold_is_no_damage(version: str) -> None:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=version)
    with repo.transaction("main", message="array") as store:
        zarr.create_group(store)
        zarr.create_array(store, name="a", shape=(4,), dtype="i4", attributes={"text": "x" * 1000})
    small = icefloe.Repository.open(storage, icefloe.RepositoryConfig(attributes_threshold_bytes=10))
    session = small.writable_session("main")
    session.move("/a", "/b")
    session.commit("moved")
    assert small.verify().is_clean, str(small.verify())
    assert zarr.open_array(small.readonly_session("main").store, path="b", mode="r").attrs["text"] == "x" * 1000
