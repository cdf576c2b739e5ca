"""Times that decide what expires, what is deleted and what is read say their zone, and are not in the future."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr
from tests.maintenance.histories import GENERATIONS
from typer.testing import CliRunner

import icefloe
from icefloe.cli.app import build_app
from icefloe.maintenance.collect import CollectionRequest
from icefloe.maintenance.expire import ExpiryRequest

Verb = Callable[[icefloe.Repository, dt.datetime], Any]

DELETING: dict[str, Verb] = {
    "expire_snapshots": lambda repo, time: repo.expire_snapshots(time),
    "plan_expiry": lambda repo, time: repo.plan_expiry(time),
    "garbage_collect": lambda repo, time: repo.garbage_collect(time),
    "garbage_collect dry": lambda repo, time: repo.garbage_collect(time, dry_run=True),
    "plan_garbage_collection": lambda repo, time: repo.plan_garbage_collection(time),
    "ExpiryRequest": lambda repo, time: ExpiryRequest(older_than=time),
}
ALL: dict[str, Verb] = {
    **DELETING,
    "created_after": lambda repo, time: repo.garbage_collect(dt.timedelta(days=1), created_after=time),
    "CollectionRequest": lambda repo, time: CollectionRequest(dt.timedelta(days=1), created_after=time),
    "as_of": lambda repo, time: repo.readonly_session("main", as_of=time),
}


@pytest.fixture(params=GENERATIONS)
def repo(request: pytest.FixtureRequest) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=request.param)
    with repo.transaction("main", message="group") as store:
        zarr.create_group(store)
    return repo


@pytest.mark.parametrize("verb", ALL)
def test_a_time_without_a_zone_is_refused(repo: icefloe.Repository, verb: str) -> None:
    with pytest.raises(icefloe.InvalidInputError, match="has no time zone"):
        ALL[verb](repo, dt.datetime(2024, 1, 1))  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize("verb", DELETING)
def test_a_cut_off_in_the_future_is_refused(repo: icefloe.Repository, verb: str) -> None:
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=30)
    with pytest.raises(icefloe.InvalidInputError, match="future"):
        DELETING[verb](repo, soon)


def test_time_spans_into_the_future_are_refused(repo: icefloe.Repository) -> None:
    for verb in (repo.garbage_collect, repo.plan_garbage_collection, repo.expire_snapshots, repo.plan_expiry):
        with pytest.raises(icefloe.InvalidInputError, match="future"):
            verb(dt.timedelta(days=-1))


def test_the_zone_of_a_time_counts(repo: icefloe.Repository) -> None:
    tokyo = dt.timezone(dt.timedelta(hours=9))
    assert repo.garbage_collect(dt.datetime.now(tokyo)).snapshots_deleted == 0
    assert repo.expire_snapshots(dt.datetime.now(tokyo)) == set()
    assert repo.readonly_session("main", as_of=dt.datetime.now(tokyo)).snapshot_id == repo.lookup_branch("main")


@pytest.mark.parametrize("arguments", [["gc", "--older-than"], ["gc", "--created-after"], ["expire", "--older-than"]])
def test_commands_refuse_times_without_a_zone(tmp_path: Path, arguments: list[str]) -> None:
    icefloe.Repository.create(str(tmp_path / "r"))
    verb, option = arguments
    refused = CliRunner().invoke(build_app(), [verb, str(tmp_path / "r"), option, "2024-01-01T00:00"])
    assert refused.exit_code != 0 and "time zone" in refused.output
    accepted = CliRunner().invoke(build_app(), [verb, str(tmp_path / "r"), option, "2024-01-01T00:00Z"])
    assert accepted.exit_code == 0, accepted.output
