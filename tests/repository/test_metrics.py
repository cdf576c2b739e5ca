"""What operations cost can be seen: as an object, in the log, and from the command line."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from tests.maintenance.histories import make_past, now

import icefloe
from icefloe.storage.wrappers import ObservedStorage
from icefloe.testing.storages import Fault, FaultKind, FaultyStorage


def test_operations_are_measured(caplog: pytest.LogCaptureFixture) -> None:
    past = make_past(icefloe.in_memory_storage(), "repository")
    repo = past.repo.observed()
    with caplog.at_level(logging.INFO, "icefloe.metrics"), repo.observe("collect") as seen:
        repo.garbage_collect(now())
    total = seen.metrics.total
    assert total.requests > 10 and total.received_bytes > 1000 and total.failures == 0
    assert seen.metrics.storage["list"].requests >= 5 and seen.metrics.seconds > 0
    assert "collect: " in caplog.text and "requests" in caplog.text
    assert json.loads(json.dumps(seen.metrics.as_dict()))["total"]["requests"] == total.requests
    past.check(repo)
    assert repo.metrics.caches["snapshots"][1] > 0 and repo.metrics.chunk_ranges > 0
    assert repo.observed() is repo


def test_failures_are_counted() -> None:
    past = make_past(icefloe.in_memory_storage(), "repository", commits=1)
    faulty = FaultyStorage(past.repo.storage, [Fault(FaultKind.FAIL_BEFORE, times=99, methods=("list",))])
    repo = icefloe.Repository.open(faulty).observed()
    with pytest.raises(icefloe.StorageError):
        repo.garbage_collect(now())
    assert repo.metrics.total.failures > 0


def test_an_observed_storage_pickles(tmp_path: Path) -> None:
    storage = ObservedStorage(icefloe.local_filesystem_storage(str(tmp_path)))
    assert pickle.loads(pickle.dumps(storage)).inner == storage.inner


@pytest.mark.long
def test_a_command_tells_what_it_took(tmp_path: Path) -> None:
    make_past(icefloe.local_filesystem_storage(str(tmp_path / "repo")), "repository", commits=2)
    command = [sys.executable, "-m", "icefloe.cli.app", "verify", str(tmp_path / "repo")]
    told = tmp_path / "metrics.jsonl"
    subprocess.run(command, check=True, env={**os.environ, "ICEFLOE_METRICS": str(told)}, capture_output=True)
    assert json.loads(told.read_text())["total"]["requests"] > 5
