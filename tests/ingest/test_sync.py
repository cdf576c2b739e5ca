"""An archive that is synced is equal to a new ingest of its files, whatever happened before."""

from __future__ import annotations

import base64
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
import zstandard
from tests.ingest.living_archives import LivingArchive
from tests.ingest.long_archives import GridArchive, GridKind, Kind, LongArchive
from tests.maintenance.test_expired_bases import Interrupted

import icefloe
import icefloe.ingest.sync as sync_module
from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError
from icefloe.formats.header import decompress
from icefloe.ingest import IngestOptions, SourceChanges, SyncResult, ingest_local, sync_local

pytestmark = pytest.mark.filterwarnings("ignore")
HISTORIES = int(os.environ.get("ICEFLOE_HISTORIES", "2000"))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(24))
def test_a_living_archive_is_equal_to_a_new_ingest(tmp_path: Path, seed: int) -> None:
    LivingArchive(tmp_path, seed).live()


LONG = (
    Kind("native", 1, 1),
    Kind("native", 2, 3),
    Kind("native", 3, 3, falls=True),
    Kind("native", 1, 2, backward_names=True, vanished="keep"),
    Kind("native", 2, 2, overlap="last"),
    Kind("native", 1, 1, has_second=True),
    Kind("virtual", 1, 1),
    Kind("virtual", 2, 1, backward_names=True),
    Kind("mixed", 1, 1),
    Kind("mixed", 3, 3, has_second=True),
)


@pytest.mark.long
@pytest.mark.parametrize("kind", LONG, ids=str)
def test_a_long_archive_is_equal_to_a_new_ingest(tmp_path: Path, kind: Kind) -> None:
    """Few of its files change, and most of the others are planned in runs."""
    count = LongArchive(tmp_path, 1, kind).live(nights=3)
    assert count.sources_in_runs > count.sources / 3, count


GRIDS = (
    GridKind((24,), (1,), named=("time",), options={"sort": {"y": "ascending"}}),
    GridKind((24,), (3,), mode="virtual", named=("time",)),
    GridKind((24,), (1,), scalar=True, options={"longitudes": "-180..180", "tolerance": 0.01}),
    GridKind((10, 4), (1, 1), named=("time", "step"), missing=0.0),
    GridKind((10, 4), (2, 3), has_lead=True, has_valid=True, options={"tolerance": 0.01}, missing=0.0),
    GridKind((10, 4), (1, 2), step_first=True, vanished="keep"),
    GridKind((10, 4), (1, 1), mode="mixed", options={"flip": ("time",)}),
    GridKind((8, 3, 2), (1, 1, 1), named=("member",), missing=0.0),
)


@pytest.mark.long
@pytest.mark.parametrize("kind", GRIDS, ids=str)
def test_an_archive_with_a_file_for_every_cell_of_a_grid_is_equal_to_a_new_ingest(
    tmp_path: Path, kind: GridKind
) -> None:
    """Times and steps may be in names only, and most of the files that did not change are planned in runs."""
    count = GridArchive(tmp_path, 5, kind).live(nights=2)
    assert count.sources_in_runs > count.sources / 5, count


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_archives_with_files_for_cells_of_a_grid_are_equal_to_new_ingests(tmp_path: Path, part: int) -> None:
    for seed in range(100 + 20 * part, 120 + 20 * part):
        folder = tmp_path / str(seed)
        folder.mkdir()
        GridArchive(folder, seed).live()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_long_archives_are_equal_to_new_ingests(tmp_path: Path, part: int) -> None:
    for seed in range(100 + 20 * part, 120 + 20 * part):
        folder = tmp_path / str(seed)
        folder.mkdir()
        LongArchive(folder, seed).live()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(HISTORIES // 50))
def test_many_living_archives_are_equal_to_new_ingests(tmp_path: Path, part: int) -> None:
    for seed in range(1000 + 50 * part, 1050 + 50 * part):
        folder = tmp_path / str(seed)
        folder.mkdir()
        LivingArchive(folder, seed).live()


def write_day(folder: Path, day: int, value: float, **attributes: object) -> Path:
    """One file with one time."""
    data = xr.Dataset(
        {"t": (("time", "x"), np.full((1, 4), value, dtype="f4"), {"units": "K"})},
        {"time": ("time", [float(day)], {"units": "days since 2000-01-01"}), "x": np.arange(4.0)},
        attributes,
    )
    path = folder / f"day{day:03}.nc"
    data.to_netcdf(path)
    return path


BY_DAY = IngestOptions(append_dim="time", chunks={"time": 2})


def sync(folder: Path, repo: icefloe.Repository, options: IngestOptions = BY_DAY, **more: Any) -> SyncResult:
    return sync_local(str(folder / "day*.nc"), repo, options, **more)


def values(repo: icefloe.Repository, branch: str = "main") -> list[float]:
    """The first column of the archive."""
    array = zarr.open_array(repo.readonly_session(branch).store, path="t", mode="r")
    return [float(value) for value in np.asarray(array[:, 0])]


@pytest.fixture
def repo() -> icefloe.Repository:
    return icefloe.Repository.create(icefloe.in_memory_storage())


def test_a_late_file_comes_where_it_belongs(tmp_path: Path, repo: icefloe.Repository) -> None:
    for day in (1, 2, 5, 6):
        write_day(tmp_path, day, day)
    sync(tmp_path, repo)
    for day in (3, 4):
        write_day(tmp_path, day, day)
    result = sync(tmp_path, repo)
    assert values(repo) == [1, 2, 3, 4, 5, 6]
    # Days 5 and 6 are one chunk, which is moved. Only the new chunk is written.
    assert (result.plan.kept, result.plan.moved, result.plan.written) == (1, 1, 1)


def test_a_file_in_front_moves_references_where_the_grid_allows_it(tmp_path: Path, repo: icefloe.Repository) -> None:
    for day in range(10, 16):
        write_day(tmp_path, day, day)
    sync(tmp_path, repo)
    write_day(tmp_path, 8, 8)
    write_day(tmp_path, 9, 9)
    result = sync(tmp_path, repo)
    assert values(repo) == list(range(8, 16))
    assert (result.plan.moved, result.plan.written) == (3, 1)
    write_day(tmp_path, 7, 7)
    result = sync(tmp_path, repo)
    assert values(repo) == list(range(7, 16))
    assert result.plan.moved == 0, "every chunk has other cells than before"


def test_a_second_sync_writes_nothing(tmp_path: Path, repo: icefloe.Repository) -> None:
    write_day(tmp_path, 1, 1)
    first = sync(tmp_path, repo)
    again = sync(tmp_path, repo)
    assert (again.snapshot_id, again.plan.tasks) == (None, ())
    assert repo.lookup_branch("main") == first.snapshot_id


def test_a_touched_file_is_not_read_again(tmp_path: Path, repo: icefloe.Repository) -> None:
    path = write_day(tmp_path, 1, 1)
    sync(tmp_path, repo)
    os.utime(path, (5, 5))
    result = sync(tmp_path, repo)
    assert result.sources.touched == (path.as_uri(),)
    assert result.tasks == ()
    assert sync(tmp_path, repo).sources == SourceChanges(unchanged=1)


def test_a_file_that_is_replaced_within_the_second_of_a_sync_is_found(tmp_path: Path, repo: icefloe.Repository) -> None:
    path = write_day(tmp_path, 1, 1)
    sync(tmp_path, repo)
    stamps = path.stat().st_atime_ns, path.stat().st_mtime_ns
    write_day(tmp_path, 1, 2)
    os.utime(path, ns=stamps)
    sync(tmp_path, repo)
    assert values(repo) == [2]


def test_vanished_files_are_kept_removed_or_refused(tmp_path: Path, repo: icefloe.Repository) -> None:
    for day in (1, 2, 3):
        write_day(tmp_path, day, day)
    sync(tmp_path, repo)
    gone = tmp_path / "day001.nc"
    gone.unlink()
    with pytest.raises(icefloe.InvalidInputError, match="no longer exist, such as .*day001.nc"):
        sync(tmp_path, repo, vanished="fail")
    assert sync(tmp_path, repo).sources.vanished == (gone.as_uri(),)
    assert values(repo) == [1, 2, 3]
    # The chunk of the file that is gone is written again: its cells are copied.
    write_day(tmp_path, 2, 20)
    sync(tmp_path, repo)
    assert values(repo) == [1, 20, 3]
    sync(tmp_path, repo, vanished="remove")
    assert values(repo) == [20, 3]


def test_an_array_that_cannot_be_kept_needs_all_of_its_files(tmp_path: Path, repo: icefloe.Repository) -> None:
    for day in (1, 2):
        write_day(tmp_path, day, day)
    sync(tmp_path, repo)
    (tmp_path / "day001.nc").unlink()
    other_chunks = IngestOptions(append_dim="time", chunks={"time": 3})
    with pytest.raises(icefloe.InvalidInputError, match=r"day001.nc no longer exists, and /t must be written again"):
        sync(tmp_path, repo, other_chunks)
    assert values(repo) == [1, 2]
    sync(tmp_path, repo, other_chunks, vanished="remove")
    assert values(repo) == [2]


def test_what_others_changed_becomes_what_the_files_say(tmp_path: Path, repo: icefloe.Repository) -> None:
    for day in (1, 2, 3, 4, 5):
        write_day(tmp_path, day, day)
    sync(tmp_path, repo)
    with repo.transaction("main", message="by hand") as store:
        zarr.open_array(store, path="t")[2] = 99
    result = sync(tmp_path, repo)
    assert values(repo) == [1, 2, 3, 4, 5]
    assert (result.plan.kept, result.plan.written) == (2, 1), "only the chunk that was changed is written"


def test_a_revert_of_a_sync_is_followed_by_a_sync(tmp_path: Path, repo: icefloe.Repository) -> None:
    for day in (1, 2):
        write_day(tmp_path, day, day)
    sync(tmp_path, repo)
    write_day(tmp_path, 3, 3)
    second = sync(tmp_path, repo)
    assert second.snapshot_id is not None
    repo.revert(second.snapshot_id)
    assert values(repo) == [1, 2]
    sync(tmp_path, repo)
    assert values(repo) == [1, 2, 3]


@pytest.mark.parametrize("verb", ["squash", "amend", "convert"])
def test_an_archive_is_synced_after_its_commits_were_rewritten(
    tmp_path: Path, repo: icefloe.Repository, verb: str
) -> None:
    first = repo.lookup_branch("main")
    for day in (1, 2, 3):
        write_day(tmp_path, day, day)
        sync(tmp_path, repo)
    if verb == "squash":
        repo.squash("main", first, message="one")
    elif verb == "amend":
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="t")[0] = 50
        session.amend("by hand")
    else:
        target = icefloe.in_memory_storage()
        icefloe.convert(repo, target, "icechunk2")
        repo = icefloe.Repository.open(target)
    write_day(tmp_path, 4, 4)
    result = sync(tmp_path, repo)
    assert values(repo) == [1, 2, 3, 4]
    if verb != "amend":
        assert result.plan.kept == 1, "chunks are kept: the catalogue tells what they are"


def test_an_archive_is_synced_after_a_commit_of_the_official_package(tmp_path: Path) -> None:
    official = pytest.importorskip("icechunk")
    folder = tmp_path / "repo"
    repo = icefloe.Repository.create(str(folder), spec_version="icechunk1")
    for day in (1, 2, 3):
        write_day(tmp_path, day, day)
    sync(tmp_path, repo)
    theirs = official.Repository.open(official.local_filesystem_storage(str(folder)))
    session = theirs.writable_session("main")
    zarr.open_array(session.store, path="t")[0] = 99
    session.commit("by the official package")
    repo = icefloe.Repository.open(str(folder))
    result = sync(tmp_path, repo)
    assert values(repo) == [1, 2, 3]
    assert result.plan.kept == 1, "the catalogue of the commit below is used"


def test_an_archive_of_an_ingest_becomes_one_of_a_sync(tmp_path: Path, repo: icefloe.Repository) -> None:
    write_day(tmp_path, 2, 2)
    ingest_local(str(tmp_path / "day*.nc"), repo, BY_DAY)
    write_day(tmp_path, 1, 1)
    sync(tmp_path, repo)
    assert values(repo) == [1, 2]


def test_a_wider_type_is_that_of_a_new_ingest(tmp_path: Path, repo: icefloe.Repository) -> None:
    write_day(tmp_path, 1, 1)
    sync(tmp_path, repo)
    data = xr.open_dataset(write_day(tmp_path, 2, 2)).load()
    data.close()
    data["t"] = data["t"].astype("f8") + 1e-12
    data.to_netcdf(tmp_path / "day002.nc")
    sync(tmp_path, repo)
    array = zarr.open_array(repo.readonly_session("main").store, path="t", mode="r")
    assert (array.dtype, np.asarray(array[:, 0]).tolist()) == (np.dtype("f8"), [1, 2 + 1e-12])


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path, repo: icefloe.Repository) -> None:
    write_day(tmp_path, 1, 1)
    before = sync(tmp_path, repo).snapshot_id
    (tmp_path / "day002.nc").write_bytes(b"not a file of data")
    with pytest.raises(icefloe.InvalidInputError, match="1 of 2 sources cannot be read"):
        sync(tmp_path, repo)
    assert repo.lookup_branch("main") == before


def test_a_dry_run_writes_nothing_and_tells_what_it_would_do(tmp_path: Path, repo: icefloe.Repository) -> None:
    write_day(tmp_path, 1, 1)
    before = repo.lookup_branch("main")
    result = sync(tmp_path, repo, dry_run=True)
    assert (result.snapshot_id, result.plan.written) == (None, 1)
    assert repo.lookup_branch("main") == before


def test_options_that_a_sync_cannot_have_are_refused(tmp_path: Path, repo: icefloe.Repository) -> None:
    write_day(tmp_path, 1, 1)
    with pytest.raises(icefloe.InvalidInputError, match="sync has no region"):
        sync(tmp_path, repo, IngestOptions(region="auto"))
    with pytest.raises(icefloe.InvalidInputError, match="sync has no on_error='skip'"):
        sync(tmp_path, repo, IngestOptions(on_error="skip"))


def test_a_damaged_catalogue_is_told_and_rebuilt(tmp_path: Path, repo: icefloe.Repository) -> None:
    write_day(tmp_path, 1, 1)
    sync(tmp_path, repo)
    info = next(iter(repo.ancestry(branch="main")))
    (key,) = info.metadata["icefloe.catalogue"].values()
    run_blocking(repo.storage.put(key, b"damaged"))
    with pytest.raises(icefloe.FormatError, match=r"the catalogue of the sources .* Use rebuild=True"):
        sync(tmp_path, repo)
    assert sync(tmp_path, repo, rebuild=True).snapshot_id is not None
    assert values(repo) == [1]


def as_first_version(data: bytes) -> bytes:
    """The catalogue of one batch as earlier releases wrote it: with an entry for each source."""
    document = json.loads(decompress(data))
    (batch,) = document.pop("batches")
    rows = [each if isinstance(each, list) else [each["value"]] * each["rows"] for each in batch["columns"]]
    placed, schema = batch["template"]
    entries = []
    for row, (*file, digest, listed) in enumerate(zip(*rows, strict=True)):
        variables, coordinates, groups, rest, digests = schema
        own = dict(coordinates)
        for path, (dtype, length, text) in batch["values"].items():
            each = np.frombuffer(base64.b64decode(text), dtype).reshape(-1, length)[row]
            own[path] = len(document["tables"]["coordinates"])
            document["tables"]["coordinates"].append(["numbers", dtype, base64.b64encode(each.tobytes()).decode()])
        hashes = {path: each[row] for path, each in batch["hashes"].items()}
        where = {
            group: [{dim: [batch["starts"][group][dim][row], n] for dim, (_, n) in extent.items()}, fills]
            for group, (extent, fills) in placed.items()
        }
        described = [variables, own, groups, rest, {**digests, **hashes}]
        entries.append({"file": file, "listed": listed, "placed": where, "digest": digest, "schema": described})
    return zstandard.compress(json.dumps({**document, "version": 1, "sources": entries}).encode())


def test_a_catalogue_of_an_earlier_release_is_read_and_written_in_columns(
    tmp_path: Path, repo: icefloe.Repository
) -> None:
    for day in (1, 2, 3, 4):
        os.utime(write_day(tmp_path, day, day), (1_000_000_000, 1_000_000_000))
    sync(tmp_path, repo)
    (key,) = repo.lookup_snapshot(repo.lookup_branch("main")).metadata["icefloe.catalogue"].values()
    run_blocking(repo.storage.put(key, as_first_version(run_blocking(repo.storage.get(key)))))
    assert sync(tmp_path, repo).snapshot_id is None
    write_day(tmp_path, 5, 5)
    result = sync(tmp_path, repo)
    assert (str(result.sources), result.plan.kept, result.plan.written) == ("1 added, 4 unchanged", 2, 1)
    assert values(repo) == [1, 2, 3, 4, 5]
    (key,) = repo.lookup_snapshot(repo.lookup_branch("main")).metadata["icefloe.catalogue"].values()
    assert json.loads(decompress(run_blocking(repo.storage.get(key))))["version"] == 2
    assert sync(tmp_path, repo).snapshot_id is None


def test_two_groups_have_catalogues_of_their_own(tmp_path: Path, repo: icefloe.Repository) -> None:
    for day in (1, 2):
        write_day(tmp_path, day, day)
    sync(tmp_path, repo, replace(BY_DAY, group="a"))
    sync(tmp_path, repo, replace(BY_DAY, group="b"))
    assert sync(tmp_path, repo, replace(BY_DAY, group="a")).snapshot_id is None
    write_day(tmp_path, 3, 3)
    for group in ("a", "b"):
        assert sync(tmp_path, repo, replace(BY_DAY, group=group)).plan.kept == 1


def test_a_commit_in_between_is_not_lost(tmp_path: Path) -> None:
    storage = Interrupted(icefloe.in_memory_storage(), ("put",))
    repo = icefloe.Repository.create(storage)
    others = icefloe.Repository.open(storage)
    for day in (1, 2):
        write_day(tmp_path, day, day)

    def commit() -> None:
        with others.transaction("main", message="in between") as store:
            zarr.create_array(store, name="other", shape=(1,), dtype="i4")

    storage.left, storage.action = 3, commit
    result = sync(tmp_path, repo)
    assert result.attempts == 2
    assert values(repo) == [1, 2]
    assert "other" in zarr.open_group(repo.readonly_session("main").store, mode="r")


@pytest.mark.long
def test_the_catalogue_of_many_days_is_in_few_objects(tmp_path: Path, repo: icefloe.Repository) -> None:
    for day in range(1, 41):
        write_day(tmp_path, day, day)
        sync(tmp_path, repo)
    info = next(iter(repo.ancestry(branch="main")))
    assert len(info.metadata["icefloe.catalogue"]) <= 6
    assert values(repo) == list(range(1, 41))


def test_nothing_is_planned_if_nothing_changed(
    tmp_path: Path, repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(3):
        os.utime(write_day(tmp_path, day, day), (5, 5))
    sync(tmp_path, repo)
    planned: list[str] = []
    plan = sync_module.plan_sync
    monkeypatch.setattr(sync_module, "plan_sync", lambda *given: (planned.append("a plan"), plan(*given))[1])
    result = sync(tmp_path, repo)
    assert (planned, result.snapshot_id, result.sources) == ([], None, SourceChanges(unchanged=3))
    # Other options, a deleted array and a new file have to be planned.
    assert sync(tmp_path, repo, IngestOptions(append_dim="time", chunks={"time": 3})).snapshot_id is not None
    assert sync(tmp_path, repo).snapshot_id is not None
    session = repo.writable_session("main")
    del zarr.open_group(session.store, mode="a")["t"]
    session.commit("by hand")
    assert sync(tmp_path, repo).snapshot_id is not None
    write_day(tmp_path, 9, 9)
    assert sync(tmp_path, repo).snapshot_id is not None
    assert len(planned) == 4
    assert values(repo) == [0, 1, 2, 9]


def test_batches_commit_in_the_order_of_positions_and_equal_one_sync(tmp_path: Path, repo: icefloe.Repository) -> None:
    for day in (5, 1):
        write_day(tmp_path, day, day)
    sync(tmp_path, repo)
    write_day(tmp_path, 1, 100)
    for day in (9, 3, 2, 7):
        write_day(tmp_path, day, day)
    before = repo.lookup_branch("main")
    result = sync(tmp_path, repo, batch=2)
    assert values(repo) == [100, 2, 3, 5, 7, 9]
    assert (result.commits, len(result.sources.added), len(result.sources.replaced)) == (2, 4, 1)
    assert result.snapshot_id == repo.lookup_branch("main")
    middle = next(info for info in repo.ancestry(branch="main") if info.parent_id == before)
    assert [float(v) for v in zarr.open_array(repo.readonly_session(snapshot_id=middle.id).store, path="t")[:, 0]] == [
        100,
        2,
        3,
        5,
    ]
    again = sync(tmp_path, repo, batch=2)
    assert (again.commits, again.snapshot_id) == (0, None)


def test_files_at_one_position_are_in_one_batch_and_files_that_do_not_fit_are_found_in_time(
    tmp_path: Path, repo: icefloe.Repository
) -> None:
    for day, name in itertools.product(range(3), "ab"):
        data = xr.Dataset({name: ("time", [float(day)])}, {"time": [float(day)]})
        data.to_netcdf(tmp_path / f"day_{name}{day}.nc")
    result = sync(tmp_path, repo, batch=1)
    assert result.commits == 3
    xr.Dataset({"a": (("time", "z"), [[1.0]])}, {"time": [9.0]}).to_netcdf(tmp_path / "day_a9.nc")
    for day, name in itertools.product(range(3, 5), "ab"):
        xr.Dataset({name: ("time", [float(day)])}, {"time": [float(day)]}).to_netcdf(tmp_path / f"day_{name}{day}.nc")
    tip = repo.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="dimensions"):
        sync(tmp_path, repo, batch=1)
    assert repo.lookup_branch("main") == tip
    for wrong in ({"batch": 0}, {"batch": 2, "rebuild": True}):
        with pytest.raises(InvalidInputError, match="batch"):
            sync(tmp_path, repo, **wrong)


def test_a_sync_in_batches_that_is_killed_goes_on_where_it_ended(tmp_path: Path, repo: icefloe.Repository) -> None:
    for day in range(6):
        write_day(tmp_path, day, day)
    done: list[int] = []

    def die(result: object) -> None:
        done.append(len(done))
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sync(tmp_path, repo, batch=2, progress=die)
    assert values(repo) == [0, 1, 2, 3]
    result = sync(tmp_path, repo, batch=2)
    assert (result.commits, len(result.sources.added)) == (1, 2)
    assert values(repo) == list(range(6))
