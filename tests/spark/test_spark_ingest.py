"""Ingests on Spark against real files and repositories."""

from __future__ import annotations

import datetime as dt
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from tests.spark.starting import StartedAfter

from icefloe import Repository
from icefloe.errors import ConflictError, FormatError, InvalidInputError
from icefloe.ingest import record as ingested
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.local_ingest import read_schemas
from icefloe.ingest.record import METADATA_KEY
from icefloe.ingest.sources import expand_sources
from icefloe.spark import ingest
from icefloe.spark import ingest_commit as landing
from icefloe.spark.ingest import IngestOutcome, read_while_starting
from icefloe.testing.synthetic_weather import write_month

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]
GRID: dict[str, Any] = {"nlat": 19, "nlon": 36, "variables": ("t2m", "tp")}
Open = Callable[..., xr.Dataset]


def _record(repository: Repository, branch: str = "main") -> Any:
    return next(iter(repository.ancestry(branch=branch))).metadata[METADATA_KEY]


@pytest.mark.parametrize("questions", [0, 1, 2, 9])
def test_the_driver_reads_files_until_spark_has_started(tmp_path: Path, questions: int) -> None:
    write_month(tmp_path, days=10, hours_per_file=6, **GRID)
    (tmp_path / "weather-20200105-broken.nc").write_bytes(b"\x89HDF\r\n\x1a\n")
    files = expand_sources(tmp_path)
    parts = list(read_while_starting(StartedAfter(questions), files, SourceAccess(), None))
    count = sum(len(part) for part, _ in parts)
    assert count == min(len(files), 16 * questions)
    schemas = [schema for _, (read, _) in parts for schema in read]
    failures = [failure for _, (_, failed) in parts for failure in failed]
    expected, failed = read_schemas(files[:count], SourceAccess())
    assert (list(map(repr, schemas)), failures) == (list(map(repr, expected)), failed)


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_spark_starts_while_the_first_files_are_read(
    spark: Any, tmp_path: Path, seconds: float, opened: Open, expected: Open
) -> None:
    write_month(tmp_path / "a", days=15, hours_per_file=6, **GRID)

    def start() -> Any:
        time.sleep(seconds)
        return spark

    outcome = ingest(start, tmp_path / "a", tmp_path / "repo", mode="virtual")
    result = opened(tmp_path / "repo", *outcome.plan.containers)  # type: ignore[union-attr]
    xr.testing.assert_equal(result.drop_vars("orography"), expected(tmp_path / "a").drop_vars("orography"))


def test_an_error_of_the_start_of_spark_is_the_error_of_the_ingest(tmp_path: Path) -> None:
    write_month(tmp_path / "a", days=1, **GRID)

    def start() -> Any:
        raise InvalidInputError("no Java runtime was found")

    with pytest.raises(InvalidInputError, match="no Java runtime"):
        ingest(start, tmp_path / "a", tmp_path / "repo")


@pytest.mark.parametrize("mode", ["native", "virtual", "mixed"])
def test_many_files_and_an_append_equal_the_sources(
    spark: Any, tmp_path: Path, mode: Any, opened: Open, expected: Open
) -> None:
    a, b, place = tmp_path / "a", tmp_path / "b", tmp_path / "repo"
    write_month(a, days=10, hours_per_file=6, packed=True, **GRID)
    write_month(b, start=dt.date(2020, 1, 11), days=1, hours_per_file=6, packed=True, **GRID)
    options = {"native_below_bytes": 2000, "task_bytes": 200_000, "files_per_task": 8}
    first = ingest(spark, a, place, mode=mode, message="ten days", **options)
    above = f"file://{tmp_path}/"
    second = ingest(spark, str(b / "*.nc"), place, mode=mode, append_dim="time", container_prefix=above, **options)
    containers = {*first.plan.containers, *second.plan.containers}  # type: ignore[union-attr]
    assert bool(containers) == (mode != "native") == bool(first.authorisation)
    xr.testing.assert_equal(opened(place, *containers).drop_vars("orography"), expected(a, b).drop_vars("orography"))
    messages = [info.message for info in Repository.open(str(place)).ancestry(branch="main")]
    assert messages[1] == "ten days" and len(messages) == 3
    assert _record(Repository.open(str(place)))["job"] == second.job_id
    assert len(first.plan.tasks) > 2  # type: ignore[union-attr]


def test_a_region_is_overwritten_where_its_coordinates_are(
    spark: Any, tmp_path: Path, opened: Open, expected: Open
) -> None:
    write_month(tmp_path / "a", days=3, **GRID)
    write_month(tmp_path / "b", start=dt.date(2020, 1, 2), days=1, seed=5, **GRID)
    ingest(spark, tmp_path / "a", tmp_path / "repo")
    ingest(spark, tmp_path / "b", tmp_path / "repo", region="auto", drop_variables=("orography",))
    result, patch = opened(tmp_path / "repo"), expected(tmp_path / "b")
    np.testing.assert_array_equal(result.t2m.values[24:48], patch.t2m.values)
    np.testing.assert_array_equal(result.t2m.values[:24], expected(tmp_path / "a").t2m.values[:24])


def test_chunks_variables_and_group_are_chosen(spark: Any, tmp_path: Path, opened: Open, expected: Open) -> None:
    write_month(tmp_path / "a", days=2, **GRID)
    ingest(spark, tmp_path / "a", tmp_path / "repo", group="w/x", variables=["tp"], chunks={"time": 5})
    result = opened(tmp_path / "repo", group="w/x")
    assert "t2m" not in result and result.tp.encoding["chunks"][0] == 5
    np.testing.assert_array_equal(result.tp.values, expected(tmp_path / "a").tp.values)


def test_sources_come_from_a_dataframe(spark: Any, tmp_path: Path, opened: Open) -> None:
    paths = write_month(tmp_path / "a", days=2, **GRID)
    frame = spark.createDataFrame([(index, str(path)) for index, path in enumerate(paths)], "number int, path string")
    outcome = ingest(spark, frame, tmp_path / "repo")
    assert outcome.plan is not None and len(outcome.plan.sources) == 2
    assert opened(tmp_path / "repo").sizes["time"] == 48


def test_a_dry_run_writes_nothing_at_all(spark: Any, tmp_path: Path) -> None:
    write_month(tmp_path / "a", days=2, **GRID)
    outcome = ingest(spark, tmp_path / "a", tmp_path / "repo", dry_run=True)
    assert outcome.snapshot_id is None and not (tmp_path / "repo").exists()
    assert outcome.plan is not None and outcome.plan.arrays["t2m"].shape == (48, 19, 36)


def test_files_of_another_schema_are_reported_before_anything_is_written(spark: Any, tmp_path: Path) -> None:
    write_month(tmp_path / "a", days=2, **GRID)
    write_month(tmp_path / "a", start=dt.date(2020, 1, 3), days=1, nlat=10, nlon=36, variables=("t2m", "tp"))
    repository = Repository.create(str(tmp_path / "repo"))
    before = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="weather-20200103"):
        ingest(spark, tmp_path / "a", repository, concat_dims=("time",))
    assert repository.lookup_branch("main") == before
    assert not list((tmp_path / "repo").rglob("chunks/*"))


def test_a_truncated_file_is_named_or_skipped(spark: Any, tmp_path: Path, opened: Open) -> None:
    paths = write_month(tmp_path / "a", days=4, **GRID)
    paths[2].write_bytes(paths[2].read_bytes()[:5000])
    with pytest.raises(InvalidInputError, match=paths[2].name):
        ingest(spark, tmp_path / "a", tmp_path / "repo")
    outcome = ingest(spark, tmp_path / "a", tmp_path / "repo", on_error="skip")
    assert [failure.file.name for failure in outcome.failures] == [paths[2].name]
    data = opened(tmp_path / "repo")
    assert np.isnan(data.t2m.values[48:72]).all() and np.isfinite(data.t2m.values[72:]).all()


def test_a_file_whose_chunks_are_damaged_is_found_while_writing(spark: Any, tmp_path: Path, opened: Open) -> None:
    paths = write_month(tmp_path / "a", days=3, **GRID)
    _damage_chunks(paths[1])
    repository = Repository.create(str(tmp_path / "repo"))
    before = repository.lookup_branch("main")
    with pytest.raises(FormatError, match=paths[1].name):
        ingest(spark, tmp_path / "a", repository)
    assert repository.lookup_branch("main") == before
    outcome = ingest(spark, tmp_path / "a", repository, on_error="skip")
    assert [failure.file.name for failure in outcome.failures] == [paths[1].name]
    assert _record(repository)["skipped"] == [paths[1].as_uri()]
    data = opened(tmp_path / "repo")
    assert np.isnan(data.t2m.values[24:48]).all()
    assert np.isfinite(data.t2m.values[:24]).all() and np.isfinite(data.t2m.values[48:]).all()
    paths[1].unlink()
    assert ingest(spark, tmp_path / "a", repository, skip_ingested=True).snapshot_id is None


def _damage_chunks(path: Path) -> None:
    """Overwrite the compressed bytes of one variable, leaving every header intact."""
    import h5py

    with h5py.File(path) as file:
        chunk = file["t2m"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(content)


@pytest.mark.parametrize("inline_bytes", [1 << 20, 0])
def test_a_run_started_again_takes_only_what_is_new(
    spark: Any, tmp_path: Path, inline_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingested, "MOST_INLINE_BYTES", inline_bytes)
    write_month(tmp_path / "a", days=2, **GRID)
    repository = Repository.create(str(tmp_path / "repo"))
    ingest(spark, tmp_path / "a", repository, append_dim="time")
    assert ("fingerprints_object" in _record(repository)) == (inline_bytes == 0)
    write_month(tmp_path / "a", start=dt.date(2020, 1, 3), days=1, **GRID)
    again = ingest(spark, tmp_path / "a", repository, append_dim="time", skip_ingested=True)
    assert again.already_there == 2 and len(again.plan.sources) == 1  # type: ignore[union-attr]
    assert ingest(spark, tmp_path / "a", repository, append_dim="time", skip_ingested=True).snapshot_id is None


@pytest.mark.parametrize(
    ("chunk", "mode", "hours"),
    [(24, "native", 24), (10, "native", 24), (None, "virtual", 24), (24, "native", 1), (None, "virtual", 1)],
)
def test_two_appends_at_the_same_time_both_land(
    spark: Any,
    tmp_path: Path,
    chunk: int | None,
    mode: Any,
    hours: int,
    opened: Open,
    expected: Open,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders = [tmp_path / name for name in "abc"]
    for day, folder in enumerate(folders):
        write_month(folder, start=dt.date(2020, 1, 1 + day), days=1, hours_per_file=hours, **GRID)
    place = tmp_path / "repo"
    chunks = {"chunks": {"time": chunk}} if chunk else {}
    ingest(spark, folders[0], place, mode=mode, append_dim="time", **chunks)  # type: ignore[arg-type]
    both_wrote = threading.Barrier(2)
    attempt = landing._attempt

    def attempt_together(spark: Any, job: Any, options: Any, before: Any) -> Any:
        made = attempt(spark, job, options, before)
        if before is None:
            both_wrote.wait(60)
        return made

    monkeypatch.setattr(landing, "_attempt", attempt_together)
    outcomes: dict[int, IngestOutcome] = {}

    def append(number: int) -> None:
        above = f"file://{tmp_path}/"
        outcomes[number] = ingest(spark, folders[number], place, mode=mode, append_dim="time", container_prefix=above)

    threads = [threading.Thread(target=append, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome.attempts for outcome in outcomes.values()) == [1, 2]
    # Files of an hour follow each other, and are planned in runs.
    placed = [f for outcome in outcomes.values() for task in outcome.plan.tasks for f in task.files]  # type: ignore[union-attr]
    assert any(file.run is not None for file in placed) == (hours == 1)
    containers = {c for outcome in outcomes.values() for c in outcome.plan.containers}  # type: ignore[union-attr]
    containers |= {folders[0].as_uri() + "/"} if mode == "virtual" else set()
    result = opened(place, *containers).sortby("time").drop_vars("orography")
    xr.testing.assert_equal(result, expected(*folders).drop_vars("orography"))


@pytest.mark.parametrize("chunk", [24, 10])
def test_three_regions_at_the_same_time_land_or_conflict_and_nothing_is_lost(
    spark: Any, tmp_path: Path, chunk: int, opened: Open, expected: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_month(tmp_path / "a", days=5, **GRID)
    days = (2, 3, 4)
    for day in days:
        write_month(tmp_path / f"day{day}", start=dt.date(2020, 1, day), days=1, seed=day, **GRID)
    place = tmp_path / "repo"
    ingest(spark, tmp_path / "a", place, chunks={"time": chunk})
    all_wrote = threading.Barrier(len(days))
    attempt = landing._attempt

    def attempt_together(spark: Any, job: Any, options: Any, before: Any) -> Any:
        made = attempt(spark, job, options, before)
        if before is None:
            all_wrote.wait(120)
        return made

    monkeypatch.setattr(landing, "_attempt", attempt_together)
    landed: dict[int, bool] = {}

    def correct(day: int) -> None:
        try:
            ingest(spark, tmp_path / f"day{day}", place, region="auto", drop_variables=("orography",))
            landed[day] = True
        except ConflictError:
            landed[day] = False

    threads = [threading.Thread(target=correct, args=(day,)) for day in days]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Days of 24 hours do not share chunks of 24 hours. Chunks of 10 hours are shared by two days.
    assert set(landed) == set(days) and any(landed.values()) and (chunk != 24 or all(landed.values()))
    wanted = expected(tmp_path / "a")
    for day in (day for day in days if landed[day]):
        patch = expected(tmp_path / f"day{day}")
        for name in ("t2m", "tp"):
            wanted[name].loc[{"time": patch.time}] = patch[name].values
    xr.testing.assert_equal(opened(place), wanted)


def test_an_append_lands_beside_a_commit_of_something_else(
    spark: Any, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_month(tmp_path / "a", days=1, **GRID)
    write_month(tmp_path / "b", start=dt.date(2020, 1, 2), days=1, **GRID)
    place = tmp_path / "repo"
    ingest(spark, tmp_path / "a", place)
    attempt = landing._attempt

    def attempt_late(spark: Any, job: Any, options: Any, before: Any) -> Any:
        made = attempt(spark, job, options, before)
        if before is None:
            other = job.repository.writable_session("main")
            xr.Dataset({"z": ("x", np.arange(3))}).to_zarr(other.store, group="aside", consolidated=False)
            other.commit("aside")
        return made

    monkeypatch.setattr(landing, "_attempt", attempt_late)
    outcome = ingest(spark, tmp_path / "b", place, append_dim="time")
    assert outcome.attempts == 2 and opened(place).sizes["time"] == 48 and "z" in opened(place, group="aside")


class _Dawdling:
    """The work of an ingest that leaves a mark when its chunks are stored, and then takes its time."""

    def __init__(self, work: Any, marks: Path) -> None:
        self._work, self._marks = work, marks

    def __call__(self, open_fork: Any, task: Any) -> Any:
        fork, report = self._work(open_fork, task)
        fork.write_parts("an attempt that is interrupted")
        (self._marks / "stored").touch()
        time.sleep(120)
        (self._marks / "finished").touch()
        return fork, report


def test_an_interrupt_cancels_the_job_and_leaves_nothing_referenced(
    spark: Any, tmp_path: Path, opened: Open, expected: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_month(tmp_path / "a", days=4, **GRID)
    repository = Repository.create(str(tmp_path / "repo"))
    before = repository.lookup_branch("main")
    work = landing.IngestWork
    monkeypatch.setattr(landing, "IngestWork", lambda *given: _Dawdling(work(*given), tmp_path))

    def interrupt_later() -> None:
        while not (tmp_path / "stored").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_later, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        ingest(spark, tmp_path / "a", repository, chunks={"time": 24})
    monkeypatch.undo()
    assert repository.lookup_branch("main") == before
    left = {path for path in (tmp_path / "repo" / "chunks").rglob("*") if path.is_file()}
    assert left
    ingest(spark, tmp_path / "a", repository, chunks={"time": 24})
    assert not spark.sparkContext.statusTracker().getActiveJobsIds() and not (tmp_path / "finished").exists()
    repository.garbage_collect(dt.timedelta(seconds=0), ignore_running_sessions=True)
    assert not left & set((tmp_path / "repo" / "chunks").rglob("*"))
    xr.testing.assert_equal(
        opened(tmp_path / "repo").drop_vars("orography"), expected(tmp_path / "a").drop_vars("orography")
    )


def test_an_option_that_does_not_exist_is_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="unknown option 'chunk'"):
        ingest(spark, tmp_path, tmp_path / "repo", chunk=3)
