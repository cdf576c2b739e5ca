"""What a newcomer copies from the README and the examples runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def run(arguments: list[str | Path], folder: Path) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_first_script_of_the_readme_runs(repository_root: Path, tmp_path: Path) -> None:
    script = re.findall(r"```python\n(.*?)```", (repository_root / "README.md").read_text(), re.DOTALL)[0]
    (tmp_path / "first.py").write_text(script)
    told = run([tmp_path / "first.py"], tmp_path)
    assert told.startswith("285.0 280.0\n")
    assert "A warmer noon" in told


@pytest.mark.long
def test_the_quickstart_travels_back(repository_root: Path, tmp_path: Path) -> None:
    told = run([repository_root / "examples" / "quickstart.py", tmp_path / "demo"], tmp_path)
    assert "t2m (96, 45, 90) float32" in told
    assert re.search(r"main +96 hours", told)
    assert re.search(r"three-days +72 hours", told)
    assert re.search(r"Day 1 +24 hours", told)
