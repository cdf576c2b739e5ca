"""How many files of the source a reader opens to follow one operation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.parametrize(
    "operation", ["write and commit", "open and read", "collect garbage", "ingest", "scan a table"]
)
def test_an_operation_enters_few_files(operation: str) -> None:
    command = [sys.executable, "-m", "benchmarks.trace", "--here", operation]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found = json.loads(run.stdout.splitlines()[-1])
    assert len(found["files"]) <= found["at_most"], "\n".join(found["files"])
