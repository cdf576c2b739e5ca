"""Conversions that are refused, interrupted, repeated or followed by others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from tests.conversion.repositories import assert_same, contents, make_repository
from tests.ledger.golden import Golden

import icefloe
from icefloe import SpecVersion
from icefloe.blocking import run_blocking
from icefloe.cli.app import main
from icefloe.conversion.transfer import SeenIds
from icefloe.conversion.translate import IdMapping
from icefloe.ids import new_object_id
from icefloe.ledger.ledger import JOURNAL_KEY
from icefloe.storage.build import local_filesystem_storage
from icefloe.testing.storages import Fault, FaultKind, FaultPlan, FaultyStorage

VERSIONS = [version.value for version in SpecVersion]
FIXTURES = Path(__file__).resolve().parents[2] / "../shared/fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/expected.json")) or ["none"]
ALL_WORDS = [kind.value for kind in icefloe.LossKind]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# -- what does not fit -----------------------------------------------------------------------------------------------


def with_rectilinear(place: Path) -> icefloe.Repository:
    repo = icefloe.Repository.create(place, spec_version="icechunk2")
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array("plain", shape=(4,), chunks=(2,), dtype="i4")[:] = 1
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [6],
        "data_type": "uint8",
        "fill_value": 0,
        "attributes": {},
        "chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[[2, 1], 4]]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes"}],
    }
    session.state.write_document("/ragged", json.dumps(document).encode())
    session.commit("grids")
    return repo


def test_what_the_target_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = with_rectilinear(tmp_path / "source")
    with pytest.raises(icefloe.UnsupportedError, match=r"chunk-grids.*/ragged.*Nothing was written"):
        icefloe.convert(source, tmp_path / "target", "icechunk1")
    assert not files(tmp_path / "target")
    before = files(tmp_path / "source")
    with pytest.raises(icefloe.UnsupportedError, match="chunk-grids"):
        icefloe.upgrade(source, "icechunk1")
    assert files(tmp_path / "source") == before
    done = icefloe.convert(source, tmp_path / "target", "icechunk1", drop=["chunk-grids"])
    assert done.repository is not None
    assert [loss.kind.value for loss in done.losses] == ["chunk-grids"]
    group = zarr.open_group(done.repository.readonly_session("main").store, mode="r")
    assert set(group.array_keys()) == {"plain"}
    assert done.repository.lookup_branch("main") == source.lookup_branch("main")


def test_administration_and_tombstones_are_lost_only_when_told(tmp_path: Path) -> None:
    source = icefloe.Repository.create(tmp_path / "source", spec_version="icechunk2")
    session = source.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("g")
    tip = session.commit("one")
    source.create_tag("gone", tip)
    source.delete_tag("gone")
    source.create_tag("main", tip)
    source.set_metadata({"team": "ice"})
    source.set_feature_flag("create_tag", False)
    source.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.read_only, None, "moving"))
    planned = icefloe.convert(source, tmp_path / "target", "dataset", dry_run=True)
    assert {loss.kind.value for loss in planned.losses} == {
        "deleted-tags",
        "metadata",
        "feature-flags",
        "status",
        "refs",
        "operations-log",
    }
    assert planned.repository is None and not files(tmp_path / "target")
    told = "; ".join(map(str, planned.losses))
    for lost in ("names of deleted tags", "'gone'", "metadata of the repository", "'team'", "create_tag", "tag 'main'"):
        assert lost in told
    with pytest.raises(icefloe.UnsupportedError, match=r"metadata of the repository.*team"):
        icefloe.convert(source, tmp_path / "target", "dataset", drop=["status", "refs"])
    done = icefloe.convert(source, tmp_path / "target", "dataset", drop=[each.kind for each in planned.losses])
    assert done.repository is not None and done.repository.list_tags() == set()
    kept = icefloe.convert(
        source, tmp_path / "kept", "repository", drop=["metadata", "feature-flags", "status", "operations-log"]
    )
    assert kept.repository is not None
    with pytest.raises(icefloe.AlreadyExistsError, match="deleted"):
        kept.repository.create_tag("gone", tip)
    with pytest.raises(icefloe.ReadOnlyError, match="moving"):
        icefloe.upgrade(source, "repository", drop=ALL_WORDS)
    with pytest.raises(icefloe.InvalidInputError, match="chunk-grids"):
        icefloe.convert(source, tmp_path / "other", "dataset", drop=["everything"])


def test_checksums_are_dropped_only_when_told(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.bin").write_bytes(b"12345678")
    prefix = f"{(tmp_path / 'data').as_uri()}/"
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path / "data")))
    )
    source = icefloe.Repository.create(tmp_path / "source", config, {prefix: None}, spec_version=2)
    session = source.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array("v", shape=(8,), chunks=(4,), dtype="u1", compressors=None)
    session.store.set_virtual_ref("v/c/0", f"{prefix}x.bin", offset=0, length=4, checksum='"etag"')
    session.store.set_virtual_ref("v/c/1", f"{prefix}x.bin", offset=4, length=4)
    session.commit("virtual")
    with pytest.raises(icefloe.UnsupportedError, match=r"checksums.*x\.bin"):
        icefloe.convert(source, tmp_path / "target", "dataset")
    done = icefloe.convert(source, tmp_path / "target", "dataset", drop=["checksums"])
    assert done.repository is not None
    values = zarr.open_array(done.repository.readonly_session("main").store, path="v", mode="r")[:]
    assert bytes(values) == b"12345678"


def test_a_target_that_is_taken_is_refused(tmp_path: Path) -> None:
    source = make_repository(tmp_path / "source", "repository")
    icefloe.Repository.create(tmp_path / "taken", spec_version="store")
    with pytest.raises(icefloe.AlreadyExistsError, match="store"):
        icefloe.convert(source, tmp_path / "taken", "icechunk2")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "letter.txt").write_text("hello")
    with pytest.raises(icefloe.AlreadyExistsError, match="other objects"):
        icefloe.convert(source, tmp_path / "files", "icechunk2")
    with pytest.raises(icefloe.InvalidInputError, match="in-place"):
        icefloe.convert(source, tmp_path / "source", "icechunk2")
    with pytest.raises(icefloe.InvalidInputError, match="already"):
        icefloe.upgrade(source, "repository")


# -- interruptions ---------------------------------------------------------------------------------------------------


def dying(place: Path, at: int, kind: FaultKind) -> FaultyStorage:
    """A storage on which every request from number `at` on fails, the first one maybe after it took effect."""
    faults = [Fault(kind, at=at), Fault(FaultKind.FAIL_BEFORE, at=at + 1, times=10**6)]
    return FaultyStorage(local_filesystem_storage(place), FaultPlan(faults))


def small_repository(place: Path, version: str) -> icefloe.Repository:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(place, config, spec_version=version)
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array("a", shape=(4,), chunks=(2,), dtype="i4")[:] = [1, 2, 3, 4]
    tip = session.commit("one")
    repo.create_tag("t", tip)
    repo.create_branch("b", tip)
    return repo


PAIRS_TO_KILL = [
    ("repository", "icechunk2"),
    ("icechunk2", "repository"),
    ("icechunk1", "icechunk2"),
    ("icechunk1", "repository"),
    ("dataset", "icechunk2"),
    ("repository", "store"),
    ("store", "dataset"),
]


def deaths(step: int) -> Iterator[tuple[int, FaultKind]]:
    for at in range(1 + step // 2, 400, step):
        yield at, FaultKind.FAIL_BEFORE
        yield at, FaultKind.LOSE_ANSWER


@pytest.mark.every_generation
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("old", "new"), PAIRS_TO_KILL)
def test_dying_at_any_request_leaves_the_source_and_a_second_run_finishes(
    tmp_path: Path, old: str, new: str, step: int
) -> None:
    source = small_repository(tmp_path / "source", old)
    before = files(tmp_path / "source")
    for number, (at, kind) in enumerate(deaths(step)):
        target = tmp_path / f"target{number}"
        if survives(lambda t=target, a=at, k=kind: icefloe.convert(source, dying(t, a, k), new)):
            break
        assert files(tmp_path / "source") == before
        if not (icefloe.Repository.exists(target) and not (target / JOURNAL_KEY).exists()):
            icefloe.convert(source, target, new)
        assert_same(source, icefloe.Repository.open(target))
        assert not (target / JOURNAL_KEY).exists()
        shutil.rmtree(target)
    else:
        pytest.fail("no run came to its end")
    assert number > 20 // step


@pytest.mark.long
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("old", "new"), PAIRS_TO_KILL)
def test_dying_at_any_request_in_place_leaves_a_whole_repository(tmp_path: Path, old: str, new: str, step: int) -> None:
    source = small_repository(tmp_path / "source", old)
    for number, (at, kind) in enumerate(deaths(step)):
        place = tmp_path / f"place{number}"
        shutil.copytree(tmp_path / "source", place)
        ended = survives(lambda p=place, a=at, k=kind: icefloe.upgrade(dying(p, a, k), new))
        found = icefloe.Repository.open(place)
        assert found.spec_version.value in {old, new, "icechunk2"}
        assert_same(source, found)
        if ended:
            assert found.spec_version.value == new
            break
        if (place / JOURNAL_KEY).exists() or found.spec_version.value != new:
            icefloe.upgrade(place, new)
        assert_same(source, icefloe.Repository.open(place))
        assert icefloe.Repository.open(place).spec_version.value == new
        assert not (place / JOURNAL_KEY).exists()
        shutil.rmtree(place)
    else:
        pytest.fail("no run came to its end")
    assert number > 20 // step


def survives(run: Any) -> bool:
    try:
        run()
    except (icefloe.StorageError, icefloe.OutcomeUnknownError):
        return False
    return True


def test_another_conversion_under_way_is_not_mixed_with(tmp_path: Path) -> None:
    first = small_repository(tmp_path / "first", "repository")
    second = small_repository(tmp_path / "second", "repository")
    assert not survives(
        lambda: icefloe.convert(first, dying(tmp_path / "target", 25, FaultKind.FAIL_BEFORE), "icechunk2")
    )
    assert (tmp_path / "target" / JOURNAL_KEY).exists()
    with pytest.raises(icefloe.ConflictError, match="unfinished conversion"):
        icefloe.convert(second, tmp_path / "target", "icechunk2")
    with pytest.raises(icefloe.ConflictError, match="unfinished conversion"):
        icefloe.convert(first, tmp_path / "target", "store")
    assert_same(first, icefloe.convert(first, tmp_path / "target", "icechunk2").repository)  # type: ignore[arg-type]


def test_commits_made_after_an_interruption_are_carried_over_too(tmp_path: Path) -> None:
    source = small_repository(tmp_path / "source", "icechunk2")
    assert not survives(lambda: icefloe.convert(source, dying(tmp_path / "target", 25, FaultKind.FAIL_BEFORE), "store"))
    session = source.writable_session("b")
    zarr.open_group(session.store, mode="a").create_array("new", shape=(9,), chunks=(2,), dtype="f4")[:] = 3
    session.commit("meanwhile")
    done = icefloe.convert(source, tmp_path / "target", "store")
    assert done.repository is not None
    assert_same(source, done.repository)


def test_a_damaged_copy_is_noticed_before_anyone_finds_it(tmp_path: Path) -> None:
    source = small_repository(tmp_path / "source", "repository")

    class Corrupting(FaultyStorage):
        async def put(self, key: str, data: Any, **options: Any) -> None:
            if key.startswith("chunks/"):
                data = bytes(len(data))
            await super().put(key, data, **options)

    target = Corrupting(local_filesystem_storage(tmp_path / "target"))
    with pytest.raises(icefloe.FormatError, match="chunk object"):
        icefloe.convert(source, target, "icechunk2", verify="all")
    assert not icefloe.Repository.exists(tmp_path / "target")


# -- repositories of official releases -------------------------------------------------------------------------------


@pytest.mark.every_generation
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_repositories_of_official_releases_are_converted(
    tmp_path: Path, fixtures_folder: Path, name: str, version: str
) -> None:
    golden = Golden.at(fixtures_folder / name)
    source = golden.open()
    if source.spec_version.value == version:
        pytest.skip("it is of that generation")
    done = icefloe.convert(source, tmp_path / "target", version, drop=ALL_WORDS, verify="all")
    found = done.repository
    assert found is not None
    config, authorized = golden.containers()
    found = icefloe.Repository.open(tmp_path / "target", config, authorized)
    assert found.list_branches() == source.list_branches()
    for ref in golden.tips:
        kind, _, ref_name = ref.partition(":")
        mine, other = (list(repo.ancestry(**{kind: ref_name})) for repo in (source, found))
        assert [(i.message, i.written_at) for i in mine] == [(i.message, i.written_at) for i in other]
        assert readable(source, kind, ref_name) == readable(found, kind, ref_name)
    session = found.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("ours")
    session.commit("on top")


def readable(repo: icefloe.Repository, kind: str, name: str) -> dict[str, Any]:
    """Keys and bytes of a ref; chunks that cannot be reached are named by their location."""
    try:
        return contents(repo, **{kind: name})
    except icefloe.VirtualChunkError:
        session = repo.readonly_session(**{kind: name})  # type: ignore[arg-type]
        containers = repo.context.containers
        return {"locations": sorted(map(containers.absolute, session.all_virtual_chunk_locations()))}


# -- ids -------------------------------------------------------------------------------------------------------------


def test_ids_that_were_widened_come_back_and_folding_keeps_them_apart() -> None:
    wider, narrower = IdMapping(12, 16), IdMapping(16, 12)
    ids = [new_object_id() for _ in range(50)]
    assert [narrower.file(wider.file(each)) for each in ids] == ids
    close = np.zeros((256, 16), dtype=np.uint8)
    close[:, 15] = np.arange(256)
    assert len(np.unique(narrower.chunks(close), axis=0)) == 256
    salted = IdMapping(12, 12, "a>b")
    assert salted.file(ids[0]) == salted.file(ids[0]) != ids[0]


def test_ids_are_met_once_however_they_come() -> None:
    random = np.random.default_rng(1)
    seen, model = SeenIds(), set()
    for size in (1, 1000, 3, 500, 2000, 7, 0, 900):
        ids = random.integers(0, 5, (size, 6), dtype=np.uint8)
        rows = {row.tobytes() for row in ids}
        assert {row.tobytes() for row in seen.add_new(ids)} == rows - model
        model |= rows


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_converts_elsewhere_and_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_repository(tmp_path / "source", "repository")
    arguments = ["convert", str(tmp_path / "source"), str(tmp_path / "target"), "--to", "icechunk2"]
    assert main([*arguments, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["converted"], told["snapshots"], told["losses"]) == (False, 5, [])
    assert main(arguments) == 0
    assert "Converted repository to icechunk2" in capsys.readouterr().out
    assert_same(source, icefloe.Repository.open(tmp_path / "target"))
    assert main(["convert", str(tmp_path / "target"), "--in-place", "--to", "icechunk1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["copied_objects"] == 0
    assert_same(source, icefloe.Repository.open(tmp_path / "target"))
    assert main(["convert", str(tmp_path / "target")]) == 2
    assert main(["convert", str(tmp_path / "source"), str(tmp_path / "target"), "--to", "store"]) == 1
    assert "already" in capsys.readouterr().err


def test_progress_is_told_stage_by_stage(tmp_path: Path) -> None:
    source = make_repository(tmp_path / "source", "repository")
    told: dict[str, list[tuple[int, int]]] = {}
    icefloe.convert(
        source, tmp_path / "target", "icechunk2", progress=lambda s, d, t: told.setdefault(s, []).append((d, t))
    )
    assert {"references", "snapshots", "verifying snapshots"} <= told.keys()
    for steps in told.values():
        assert steps[0][0] == 0 and steps[-1][0] == steps[-1][1] and steps == sorted(steps)


def test_the_official_name_upgrades_in_place(tmp_path: Path) -> None:
    repo = make_repository(tmp_path / "repo", "icechunk1")
    snapshots = files(tmp_path / "repo" / "snapshots")
    assert icefloe.upgrade_icechunk_repository(repo, dry_run=True) is repo
    assert icefloe.Repository.open(tmp_path / "repo").spec_version == 1
    done = icefloe.upgrade_icechunk_repository(repo, dry_run=False)
    assert done.spec_version == 2
    assert files(tmp_path / "repo" / "snapshots") == snapshots
    kinds = [update.kind for update in done.ops_log()]
    assert kinds[0] == icefloe.UpdateType.RepoMigrated(1, 2) and kinds[-1] == icefloe.UpdateType.RepoInitialized()
    assert sum(isinstance(kind, icefloe.UpdateType.NewCommit) for kind in kinds) == 4
    assert run_blocking(done.storage.list_names("refs/")) == []
