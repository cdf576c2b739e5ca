"""Tests that share something expensive run in one process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = """
import os, pytest

@pytest.mark.xdist_group("shared")
@pytest.mark.parametrize("number", range(8))
def test_in_the_group(number):
    print("process", os.getpid(), end=";")
"""


@pytest.mark.slow
def test_a_group_of_tests_runs_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "test_shared.py").write_text(SHARED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-rP", "-p", "no:cacheprovider"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    processes = re.findall(r"process (\d+);", told)
    assert len(processes) == 8, told
    assert len(set(processes)) == 1, f"pytest {pytest.__version__} and pytest-xdist ignore xdist_group"
