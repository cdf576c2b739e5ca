"""How much of the official package's own test suite passes on `icefloe.icechunk`?

    python -m benchmarks.official_suites /path/to/icechunk-2.3.0 [--only tests/test_session.py ...]

The path is the unpacked source distribution of the official package (`pip download --no-binary :all: --no-deps
icechunk`). Its tests are not part of this project. They run twice, in processes of their own: with the installed "
"official
package, and with the drop-in installed as `icechunk`. Tests that the official package does not pass here, because they
need a network or a server, do not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PLUGIN = """
import importlib.util, os, pathlib, sys, types
from icefloe.icechunk import install
install()
import icechunk, icechunk.testing
from icefloe.icechunk.config import RepoUpdateRetryConfig
private = types.ModuleType("icechunk._icechunk_python")
private.RepoUpdateRetryConfig = RepoUpdateRetryConfig
private._all_error_kinds = lambda: [kind.value for kind in icechunk.ErrorKind]
private.__getattr__ = lambda name: getattr(icechunk, name)
sys.modules["icechunk._icechunk_python"] = private
class Bytes:
    # The suite reads and writes the bytes of keys past the Zarr store.
    def __init__(self, store):
        self.session = store.session
    async def get(self, key, byte_range=None):
        found = await self.session.keyspace.fetch(key)
        if found is None:
            raise KeyError(key)
        return bytes(found)
    async def set(self, key, value):
        await self.session.keyspace.write(key, value)
icechunk.IcechunkStore._store = property(Bytes)
helpers = pathlib.Path(os.environ["OFFICIAL_SOURCE"]) / "python" / "icechunk" / "testing"
icechunk.testing.__path__ = [str(helpers)]
for name in ("models", "invariants", "utils", "strategies", "trees"):
    path = helpers / f"{name}.py"
    if path.exists():
        spec = importlib.util.spec_from_file_location(f"icechunk.testing.{name}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        setattr(icechunk.testing, name, module)
"""
"""Installs the drop-in, and the test helpers of the official package, which its suite imports from itself."""

CONFIG = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
markers =
  gpu
  hypothesis
"""
LONG = ("test_stateful_compat.py", "test_stateful_parallel_sessions.py", "test_stateful_repo_ops.py")


def run(source: Path, only: list[str], *, ours: bool, folder: Path) -> dict[str, str]:
    """Run the suite and return the outcome of each test: passed, failure, error or skipped."""
    tests = source / "icechunk-python"
    (folder / "pytest.ini").write_text(CONFIG)
    (folder / "drop_in_plugin.py").write_text(PLUGIN)
    report = folder / f"{'ours' if ours else 'official'}.xml"
    command = [sys.executable, "-m", "pytest", "-c", str(folder / "pytest.ini"), "--rootdir", ".", "-q", "-n", "0"]
    command += ["-p", "no:cacheprovider", "--timeout", "120", f"--junitxml={report}"]
    command += [part for name in LONG for part in ("--ignore", f"tests/{name}")]
    command += (["-p", "drop_in_plugin"] if ours else []) + (only or ["tests"])
    path = os.pathsep.join([str(folder), str(tests), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "OFFICIAL_SOURCE": str(source)}
    subprocess.run(command, cwd=tests, env=environment, stdout=subprocess.DEVNULL, check=False)
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = [each.tag for each in case if each.tag in ("failure", "error", "skipped")]
        found[f"{case.get('classname')}::{case.get('name')}"] = bad[0] if bad else "passed"
    return found


def main() -> int:
    """Run both and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("source", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        theirs = run(given.source.resolve(), given.only, ours=False, folder=Path(name))
        ours = run(given.source.resolve(), given.only, ours=True, folder=Path(name))
    counted = [test for test, outcome in theirs.items() if outcome == "passed"]
    missed = [test for test in counted if ours.get(test) != "passed"]
    for test in missed:
        print(f"{ours.get(test, 'not run'):8} {test}")
    share = 1 - len(missed) / max(len(counted), 1)
    print(f"{len(counted) - len(missed)} of {len(counted)} tests pass that the official package passes ({share:.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
