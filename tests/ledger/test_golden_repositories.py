"""Repositories of official releases read through the public door exactly as described, and work goes on in them."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.ledger.golden import Forgiving, Golden, values_digest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import icefloe
from icefloe import UpdateType
from icefloe.blocking import run_blocking
from icefloe.formats.repository.snapshot import parse_time
from icefloe.ids import encode_base32
from icefloe.model.chunk_table import ChunkKind, ChunkTable
from icefloe.model.snapshot import ArrayNode, Node, TransactionLog, to_microseconds
from icefloe.session.session import Session

FIXTURES = Path(__file__).resolve().parents[2] / "../shared/fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/expected.json")) or ["none"]
GENERATIONS = {"G0": "dataset", "G1": "store", "G2": "repository", "G3": "icechunk1", "G4": "icechunk2"}
LISTS = ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays")


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, fixtures_folder: Path) -> Golden:
    return Golden.at(fixtures_folder / request.param)


def generation_of(expected: Mapping[str, Any]) -> str:
    # What was written between two generations keeps its refs as the earlier one.
    marked = expected["generation"]
    return "repository" if marked.startswith("G3.dev") else GENERATIONS[marked[:2]]


def session_at(repo: icefloe.Repository, ref: str) -> Session:
    kind, _, name = ref.partition(":")
    return repo.readonly_session(**{kind: name})


def test_the_generation_refs_and_history_are_found(golden: Golden) -> None:
    repo, expected = golden.open(), golden.expected
    assert repo.spec_version.value == generation_of(expected)
    assert repo.list_branches() == set(expected["branches"])
    assert repo.list_tags() == set(expected["tags"])
    for branch, tip in expected["branches"].items():
        assert repo.lookup_branch(branch) == tip
    for tag, target in expected["tags"].items():
        assert repo.lookup_tag(tag) == target
    for tag in expected["deleted_tags"]:
        with pytest.raises(icefloe.RefNotFoundError):
            repo.lookup_tag(tag)
    for ref, described in expected["ancestry"].items():
        kind, _, name = ref.partition(":")
        found = list(repo.ancestry(**{kind: name}))
        assert [{"id": info.id, "message": info.message} for info in found] == described
        assert [info.parent_id for info in found] == [*(info.id for info in found[1:]), None]


def test_every_snapshot_holds_the_nodes_and_documents_described(golden: Golden) -> None:
    repo = golden.open()
    for name, described in golden.expected["snapshots"].items():
        session = repo.readonly_session(snapshot_id=name)
        info = repo.lookup_snapshot(name)
        assert (info.id, info.message, dict(info.metadata)) == (
            described["id"],
            described["message"],
            described["metadata"],
        )
        if "time" in described:
            assert info.written_at == parse_time(described["time"])
        else:
            assert to_microseconds(info.written_at) == described["flushed_at_us"]
        assert set(session.state.tree.paths()) == set(described["nodes"])
        for path, node in described["nodes"].items():
            check_node(session, path, node)


def test_maintenance_ends_where_the_first_snapshot_has_another_id_than_its_file(
    fixtures_folder: Path, tmp_path: Path
) -> None:
    # A repository as it was right after it was made: its only branch leads to that snapshot.
    made = Path("repo") / "refs" / "branch:main" / "ZZZZZZZZ.json"
    source = fixtures_folder / "g2-alpha1-colon-refs"
    first = json.loads((source / made).read_bytes())["snapshot"]
    for name in (made, Path("repo/snapshots") / first):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes((source / name).read_bytes())
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(tmp_path / "repo"))
    assert repo.lookup_branch("main") == first
    assert repo.plan_expiry(dt.datetime(2025, 1, 1, tzinfo=dt.UTC)).kept == 1
    assert repo.garbage_collect(dt.timedelta(0)).snapshots_deleted == 0
    assert repo.readonly_session("main").store is not None


def check_node(session: Session, path: str, described: Mapping[str, Any]) -> None:
    node = session.state.tree.node(path)
    wanted = described["node_id"]
    assert node.id == wanted.to_bytes(8, "big") if isinstance(wanted, int) else session.get_node_id(path) == wanted
    document = json.loads(document_of(session, path))
    assert document.get("attributes") == described["attributes"] or not described["attributes"]
    assert document["node_type"] == described["type"]
    if "zarr" in described:
        assert document == described["zarr"]
    if isinstance(node, ArrayNode):
        names = described["dimension_names"]
        assert (list(node.shape), list(node.grid)) == (described["shape"], described["num_chunks"])
        assert node.dimension_names == (None if names is None else tuple(names))


def document_of(session: Session, path: str) -> bytes:
    key = f"{path.strip('/')}/zarr.json".lstrip("/")
    found = sync(session.store.get(key, default_buffer_prototype()))
    assert found is not None
    return found.to_bytes()


def test_chunks_have_the_kinds_places_and_bytes_described(golden: Golden) -> None:
    repo = golden.open()
    checked = 0
    for name, described in golden.expected["snapshots"].items():
        if described.get("dangling"):
            continue
        session = repo.readonly_session(snapshot_id=name)
        for path, node in described["nodes"].items():
            if node["type"] != "array" or "chunks" not in node:
                continue
            table = run_blocking(session.state.chunk_table(session.state.tree.array(path)))
            if isinstance(node["chunks"], int):
                assert len(table) == node["chunks"]
                continue
            assert sorted(table.coords.tolist()) == sorted(chunk["coords"] for chunk in node["chunks"])
            check_chunks(session, path, table, node["chunks"])
            checked += len(table)
    assert checked


def check_chunks(session: Session, path: str, table: ChunkTable, described: list[Any]) -> None:
    found = dict(table.rows())
    for chunk in described:
        coords = tuple(chunk["coords"])
        ref = found[coords]
        assert (ref.kind.name.lower(), ref.length) == (chunk["kind"], chunk["length"])
        assert session.chunk_type(path, coords).name == ref.kind.name
        if ref.kind is ChunkKind.NATIVE:
            assert (encode_base32(ref.object_id or b""), ref.offset) == (chunk["chunk_id"], chunk["offset"])
        if ref.kind is ChunkKind.VIRTUAL:
            checksum = chunk.get("checksum") or {}
            assert (ref.location, ref.offset) == (chunk["location"], chunk["offset"])
            assert (ref.etag, ref.last_modified) == (checksum.get("etag"), checksum.get("last_modified"))
        if "sha256" in chunk:
            key = "/".join([path.strip("/"), "c", *map(str, coords)]).lstrip("/")
            data = sync(session.store.get(key, default_buffer_prototype()))
            assert data is not None and hashlib.sha256(data.to_bytes()).hexdigest() == chunk["sha256"]


def test_values_read_through_zarr_are_those_described(golden: Golden) -> None:
    repo = golden.open()
    checked = 0
    for name, described in golden.expected["snapshots"].items():
        if described.get("dangling"):
            continue
        store = Forgiving(repo.readonly_session(snapshot_id=name).store)
        for path, node in described["nodes"].items():
            if "values_sha256" in node:
                assert values_digest(store, path) == node["values_sha256"], (name, path)
                checked += 1
    assert checked


def test_transaction_logs_say_what_is_described(golden: Golden) -> None:
    repo = golden.open()
    for name, described in (golden.expected.get("transactions") or {}).items():
        log = run_blocking(repo.context.metadata_files.fetch_transaction_log(name))
        for field in LISTS:
            assert text_ids(getattr(log, field)) == sorted(map(str, described[field]))
        updated = {
            each
            for key in described
            if key.startswith("updated_") and key != "updated_chunks"
            for each in map(str, described[key])
        }
        new = {str(each) for field in ("new_groups", "new_arrays") for each in described[field]}
        assert set(text_ids(log.updated_groups | log.updated_arrays)) in (updated, updated - new)
        assert chunks_of(log) == {str(k): sorted(v) for k, v in described["updated_chunks"].items()}
        moves = [(m["from"], m["to"], m["node_id"]) for m in described.get("moved_nodes") or []]
        assert [(m.from_path, m.to_path, encode_base32(m.node_id)) for m in log.moves] == moves


def text_ids(nodes: frozenset[bytes]) -> list[str]:
    return sorted(encode_base32(node) for node in nodes)


def chunks_of(log: TransactionLog) -> dict[str, list[list[int]]]:
    return {encode_base32(node): coords.tolist() for node, coords in log.updated_chunks.items()}


def test_configuration_and_administration_are_those_described(golden: Golden) -> None:
    repo = golden.open()
    stored = run_blocking(repo.context.ledger.fetch_config())
    if "repo_info" not in golden.expected:
        assert as_text(stored.document) == as_text(golden.expected.get("config_yaml"))
        return
    wanted = golden.expected["repo_info"]
    assert stored.document == wanted["config"]
    assert repo.metadata == (wanted["metadata"] or {})
    assert repo.status.availability.name == wanted["status"]["availability"]
    set_flags = (
        {flag.id for flag in repo.feature_flags() if flag.setting},
        {flag.id for flag in repo.feature_flags() if flag.setting is False},
    )
    assert set_flags == (set(wanted["enabled_feature_flags"] or []), set(wanted["disabled_feature_flags"] or []))
    described = repo.inspect_repo_info()
    assert described["deleted_tags"] == golden.expected["deleted_tags"]
    assert {entry["id"]: entry.get("pruned_ancestor_tx_logs") for entry in described["snapshots"]} == {
        entry["id"]: entry["pruned_ancestor_tx_logs"] for entry in wanted["snapshots"]
    }


def as_text(value: Any) -> Any:
    """Tagged scalars as text: expected.json does not say what `!Axis 0` is, only how it is spelled."""
    if isinstance(value, dict):
        return {
            key: str(item) if key.startswith("!") and isinstance(item, int) else as_text(item)
            for key, item in value.items()
        }
    return [as_text(item) for item in value] if isinstance(value, list) else value


def test_the_operations_log_is_the_one_described(golden: Golden) -> None:
    if "ops_log" not in golden.expected:
        pytest.skip("the generation keeps no operations log")
    found = list(golden.open().ops_log())
    described = golden.expected["ops_log"]
    assert [(type(u.kind).__name__, to_microseconds(u.updated_at)) for u in found] == [
        (entry["type"], entry["at"]) for entry in described
    ]
    names = {"prev": "previous_snap_id", "new": "new_snap_id"}
    for update, entry in zip(found, described, strict=True):
        facts = {key: value for key, value in entry.items() if key not in ("type", "at", "backup_path", "is_set")}
        if isinstance(update.kind, UpdateType.FeatureFlagChanged):
            facts["new_value"] = bool(facts["new_value"]) if entry["is_set"] else None
        for key, value in facts.items():
            assert getattr(update.kind, names.get(key, key)) == value
        assert update.backup_path == entry["backup_path"] or entry["backup_path"] is None


def test_a_new_commit_on_top_keeps_everything_old_and_reads_everything_new(golden: Golden, tmp_path: Path) -> None:
    place = golden.copied(tmp_path / "repo")
    repo = golden.open(place)
    history = [info.id for info in repo.ancestry(branch="main")]
    before = {ref: digests(golden.open(), ref, golden) for ref in golden.tips}
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    added = root.create_array("ours/new", shape=(6, 5), chunks=(2, 5), dtype="f4", dimension_names=["y", "x"])
    added[:] = np.arange(30).reshape(6, 5)
    existing = change_one_array(session)
    tip = session.commit("ours", {"by": "icefloe"})
    repo.create_tag("ours", tip)
    repo.create_branch("ours", tip)
    again = golden.open(place)
    assert [info.id for info in again.ancestry(branch="main")] == [tip, *history]
    assert again.list_tags() == {*golden.expected["tags"], "ours"}
    assert again.list_branches() == {*golden.expected["branches"], "ours"}
    reader = again.readonly_session(tag="ours")
    np.testing.assert_array_equal(zarr.open_array(reader.store, path="ours/new")[:], np.arange(30).reshape(6, 5))
    diff = again.diff(from_snapshot_id=history[0], to_branch="main")
    assert diff.new_arrays == {"/ours/new"} and "/ours" in diff.new_groups
    assert diff.updated_arrays == ({existing} if existing else set())
    after_main = digests(again, "branch:main", golden)
    for path, digest in before["branch:main"].items():
        assert after_main[path] == digest
    for ref in golden.tips.keys() - {"branch:main"}:
        assert digests(again, ref, golden) == before[ref]
    # And once more, on top of our own commit and on another branch.
    for branch in again.list_branches():
        session = again.writable_session(branch)
        zarr.open_group(session.store, mode="a").attrs["last"] = branch
        session.commit(f"last on {branch}")
        last = golden.open(place).readonly_session(branch)
        assert zarr.open_group(last.store, mode="r").attrs["last"] == branch


def change_one_array(session: Session) -> str | None:
    """Another attribute for some array that is there already."""
    node: Node
    for node in session.state.tree.nodes():
        if isinstance(node, ArrayNode):
            zarr.open_array(session.store, path=node.path.strip("/"), mode="r+").attrs["ours"] = 1
            return node.path
    return None


def digests(repo: icefloe.Repository, ref: str, golden: Golden) -> dict[str, str]:
    """The values of every array that the description knows, at a ref."""
    store = Forgiving(session_at(repo, ref).store)
    described = golden.expected["snapshots"][golden.tips[ref]]["nodes"]
    return {path: values_digest(store, path) for path, node in described.items() if "values_sha256" in node}
