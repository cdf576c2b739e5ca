"""Long ingests in batches: what a run that died has landed is not done again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from icefloe import Repository
from icefloe.errors import ConflictError, InvalidInputError
from icefloe.spark import ingest
from icefloe.spark import ingest_commit as batches
from icefloe.testing.synthetic_weather import write_month

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]
GRID: dict[str, Any] = {"nlat": 19, "nlon": 36, "variables": ("t2m", "tp")}
Open = Callable[..., xr.Dataset]


class _DiedError(Exception):
    """Stands for the end of the driver."""


class _Dying:
    """Lands batches until its time has come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int | None) -> None:
        self.landed: list[int] = []
        self._after, self._land = after, batches.commit_with_retry
        monkeypatch.setattr(batches, "commit_with_retry", self)

    def __call__(self, spark: Any, job: Any) -> Any:
        if self._after is not None and len(self.landed) == self._after:
            raise _DiedError
        self.landed.append(len(job.first_pass.schemas))
        return self._land(spark, job)


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_a_run_that_died_goes_on_behind_its_last_batch(
    spark: Any, tmp_path: Path, mode: Any, opened: Open, expected: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, place = tmp_path / "files", tmp_path / "repo"
    write_month(files, days=7, hours_per_file=24, packed=True, **GRID)
    options: dict[str, Any] = {"mode": mode, "append_dim": "time", "batch": 2}
    with monkeypatch.context() as patch:
        first = _Dying(patch, after=2)
        with pytest.raises(_DiedError):
            ingest(spark, files, place, **options)
    repository = Repository.open(str(place))
    start = repository.lookup_branch("main")
    assert first.landed == [2, 2] and len(list(repository.ancestry(branch="main"))) == 1
    (staging,) = repository.list_branches() - {"main"}
    with monkeypatch.context() as patch:
        second = _Dying(patch, after=None)
        outcome = ingest(spark, files, place, **options)
    assert second.landed == [2, 1] and outcome.already_there == 4
    assert repository.list_branches() == {"main"} and staging.startswith(batches.PREFIX)
    history = [info.id for info in repository.ancestry(branch="main")]
    assert len(history) == 5 and history[-1] == start and history[0] == outcome.snapshot_id
    prefixes = outcome.plan.containers if outcome.plan is not None else ()
    xr.testing.assert_equal(opened(place, *prefixes).drop_vars("orography"), expected(files).drop_vars("orography"))


def test_batches_that_all_landed_are_published_by_the_next_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_month(tmp_path / "files", days=2, **GRID)
    options: dict[str, Any] = {"append_dim": "time", "batch": 1}
    with monkeypatch.context() as patch:
        patch.setattr(batches, "publish_batches", lambda *_: (_ for _ in ()).throw(_DiedError()))
        with pytest.raises(_DiedError):
            ingest(spark, tmp_path / "files", tmp_path / "repo", **options)
    outcome = ingest(spark, tmp_path / "files", tmp_path / "repo", **options)
    repository = Repository.open(str(tmp_path / "repo"))
    assert outcome.snapshot_id == repository.lookup_branch("main") and repository.list_branches() == {"main"}
    assert len(list(repository.ancestry(branch="main"))) == 3


def test_a_branch_that_moved_meanwhile_is_not_moved_back(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_month(tmp_path / "files", days=2, **GRID)
    repository = Repository.open_or_create(str(tmp_path / "repo"))

    def publish(*arguments: Any) -> str:
        repository.writable_session("main").commit("somebody else", allow_empty=True)
        return publish_batches(*arguments)

    publish_batches = batches.publish_batches
    monkeypatch.setattr(batches, "publish_batches", publish)
    with pytest.raises(ConflictError, match="ingest-"):
        ingest(spark, tmp_path / "files", repository, append_dim="time", batch=1)
    assert next(iter(repository.ancestry(branch="main"))).message == "somebody else"
    assert len(repository.list_branches()) == 2


def test_files_of_another_schema_are_told_before_the_first_batch(spark: Any, tmp_path: Path) -> None:
    write_month(tmp_path / "files", days=2, **GRID)
    write_month(tmp_path / "files", start=dt.date(2020, 1, 3), days=1, **{**GRID, "nlat": 10})
    with pytest.raises(InvalidInputError):
        ingest(spark, tmp_path / "files", tmp_path / "repo", append_dim="time", batch=1)
    repository = Repository.open(str(tmp_path / "repo"))
    assert all(len(list(repository.ancestry(branch=name))) == 1 for name in repository.list_branches())


@pytest.mark.parametrize("options", [{"batch": 0, "append_dim": "time"}, {"batch": 2}])
def test_batches_need_a_size_and_a_dimension(spark: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    write_month(tmp_path / "files", days=1, **GRID)
    with pytest.raises(InvalidInputError, match="batch"):
        ingest(spark, tmp_path / "files", tmp_path / "repo", **options)


def test_a_batch_keeps_sources_of_one_place_together(spark: Any, tmp_path: Path, opened: Open) -> None:
    write_month(tmp_path / "a", days=2, **{**GRID, "variables": ("t2m",)})
    write_month(tmp_path / "b", days=2, **{**GRID, "variables": ("tp",)})
    sources = [str(tmp_path / "a"), str(tmp_path / "b")]
    ingest(
        spark,
        sources,
        tmp_path / "repo",
        append_dim="time",
        concat_dims=("time",),
        batch=1,
        drop_variables=("orography",),
    )
    assert len(list(Repository.open(str(tmp_path / "repo")).ancestry(branch="main"))) == 3
    data = opened(tmp_path / "repo")
    assert {"t2m", "tp"} <= set(data.variables) and data.sizes["time"] == 48
