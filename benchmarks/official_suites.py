"""How many tests of other projects pass with `icefloe.icechunk`?

    python -m benchmarks.official_suites /path/to/icechunk-2.3.0 [--suite zarr documentation ...] [--only FILE ...]
        [--xarray /path/to/xarray] [--virtualizarr /path/to/virtualizarr] [--site /path/to/installed/icechunk]

The paths are unpacked source distributions (`pip download --no-binary :all: --no-deps icechunk xarray virtualizarr`).
Their tests are not part of this project. Every suite runs twice, in processes of its own: with the installed official
package, and with the drop-in installed as `icechunk`. Tests that the official package does not pass here, because they
need a network or a server, do not count. Many of them pass with an S3 server at localhost:4200 (1.1: 9000) that has a
bucket `testbucket`. For the suite of another release, `--site` is a folder with that release (`pip install --target`).
The suite of a release 1.x runs with `install(version=1)`.

* `official`: the tests of the official package.
* `zarr`: Zarr's contract for stores and its state machines, as the official package runs them.
* `xarray`: xarray's tests of Zarr stores, as the official package runs them.
* `virtualizarr`: the icechunk writer and parser of VirtualiZarr, and its round trips.
* `documentation`: the Python blocks of the official pages.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.documentation_blocks import find_pages, run_apart

Outcomes = dict[str, str]
"""Of each test: passed, failure, error or skipped."""

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

CHILDREN = """
from icefloe.icechunk import install
install()
"""
"""Python runs it when it starts, so that processes that the tests start have the drop-in too."""

CONFIG = """[pytest]
asyncio_mode = {mode}
asyncio_default_fixture_loop_scope = {scope}
filterwarnings =
  {warnings}
markers =
  flaky
  gpu
  hypothesis
  minio
  mypy
  network
  slow
  slow_hypothesis
"""
DATASETS_PLUGIN = """
from benchmarks.documentation_context import use_made_up_datasets
use_made_up_datasets()
"""
LONG = ("test_stateful_compat.py", "test_stateful_parallel_sessions.py", "test_stateful_repo_ops.py")
XARRAY_TESTS = "tests/run_xarray_backends_tests.py"
VIRTUALIZARR_TESTS = ("test_writers/test_icechunk.py", "test_parsers/test_icechunk", "test_integration.py")


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite of pytest, and what it needs."""

    folder: Path
    arguments: list[str]
    paths: list[Path] = field(default_factory=list)
    mode: str = "auto"
    scope: str = "function"
    warnings: str = "default"
    environment: dict[str, str] = field(default_factory=dict)


def suites(source: Path, xarray: Path | None, virtualizarr: Path | None) -> dict[str, Suite]:
    """Return the suites whose sources are given."""
    tests = source / "icechunk-python"
    ignored = [part for name in LONG for part in ("--ignore", f"tests/{name}")]
    found = {
        "official": Suite(tests, [*ignored, "--ignore", "tests/test_zarr", "tests"]),
        "zarr": Suite(tests, ["tests/test_zarr"]),
    }
    if xarray is not None:
        found["xarray"] = Suite(
            tests,
            ["-p", "xarray.tests.conftest", "-k", "not Minio and not Memory", XARRAY_TESTS],
            [xarray],
            warnings="ignore",
            environment={"ICECHUNK_XARRAY_BACKENDS_TESTS": "1"},
        )
    if virtualizarr is not None:
        chosen = [f"virtualizarr/tests/{name}" for name in VIRTUALIZARR_TESTS]
        found["virtualizarr"] = Suite(
            virtualizarr, ["-p", "datasets_plugin", *chosen], mode="strict", scope="session", warnings="ignore"
        )
    return found


def run_suite(
    suite: Suite, source: Path, only: list[str], folder: Path, *, ours: bool, site: Path | None = None
) -> Outcomes:
    """Run a suite in a process of its own."""
    config = CONFIG.format(mode=suite.mode, scope=suite.scope, warnings=suite.warnings)
    (folder / "pytest.ini").write_text(config)
    (folder / "drop_in_plugin.py").write_text(PLUGIN)
    (folder / "datasets_plugin.py").write_text(DATASETS_PLUGIN)
    if ours:
        (folder / "sitecustomize.py").write_text(CHILDREN)
    report = folder / f"{'ours' if ours else 'official'}.xml"
    command = [sys.executable, "-m", "pytest", "-c", str(folder / "pytest.ini"), "--rootdir", ".", "-q", "-n", "0"]
    command += ["-p", "no:cacheprovider", "--timeout", "120", f"--junitxml={report}"]
    command += (["-p", "drop_in_plugin"] if ours else []) + (only or suite.arguments)
    sites = [site] if site is not None and not ours else []
    path = os.pathsep.join(map(str, [*sites, *suite.paths, folder, suite.folder, Path(__file__).parents[1], *sys.path]))
    version = "1" if source.name.startswith("icechunk-1.") else "2"
    environment = {**os.environ, **suite.environment, "PYTHONPATH": path, "OFFICIAL_SOURCE": str(source)}
    environment["ICEFLOE_ICECHUNK_VERSION"] = version
    subprocess.run(command, cwd=suite.folder, env=environment, stdout=subprocess.DEVNULL, check=False)
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = [each.tag for each in case if each.tag in ("failure", "error", "skipped")]
        found[f"{case.get('classname')}::{case.get('name')}"] = bad[0] if bad else "passed"
    return found


def run_documentation(source: Path, only: list[str], *, ours: bool) -> Outcomes:
    """Run the Python blocks of the official pages, or of those whose names are given."""
    return {
        f"{page.name}:{line}": "passed" if error is None else error
        for page in find_pages(source)
        if not only or page.stem in only
        for line, error in run_apart(page, ours=ours).items()
    }


def run(
    name: str, found: dict[str, Suite], source: Path, only: list[str], site: Path | None = None
) -> Callable[..., Outcomes]:
    """Return a function that runs a suite with the official package or with ours."""

    def run_one(*, ours: bool) -> Outcomes:
        if name == "documentation":
            return run_documentation(source, only, ours=ours)
        with tempfile.TemporaryDirectory() as folder:
            return run_suite(found[name], source, only, Path(folder), ours=ours, site=site)

    return run_one


def _file(test: str) -> str:
    """The module of a test, without its class, or the page of a block."""
    return ".".join(part for part in test.partition(":")[0].split(".") if not part.startswith("Test"))


def match_names(theirs: Outcomes, ours: Outcomes) -> Outcomes:
    """The outcomes of ours under the names of theirs.

    The names of some cases contain the representation of an enum or a class, which is another one. Such cases of a test
    are matched by their order.
    """
    matched = {test: outcome for test, outcome in ours.items() if test in theirs}
    functions: dict[str, list[str]] = {}
    for test in ours:
        if test not in theirs:
            functions.setdefault(test.partition("[")[0], []).append(ours[test])
    for test in theirs:
        left = functions.get(test.partition("[")[0])
        if test not in matched and left:
            matched[test] = left.pop(0)
    return matched


def main() -> int:
    """Run the suites both ways. Print what only the official package passes, and a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("source", type=Path)
    parser.add_argument("--suite", nargs="*", default=[])
    parser.add_argument("--xarray", type=Path)
    parser.add_argument("--virtualizarr", type=Path)
    parser.add_argument("--site", type=Path, help="folder with the official release to compare with")
    parser.add_argument("--only", nargs="*", default=[], help="files of a suite, or names of pages")
    given = parser.parse_args()
    source = given.source.resolve()
    found = suites(source, given.xarray and given.xarray.resolve(), given.virtualizarr and given.virtualizarr.resolve())
    names = given.suite or [*found, "documentation"]
    if unknown := set(names) - {*found, "documentation"}:
        parser.error(f"unknown suites, or suites without their sources: {', '.join(sorted(unknown))}")
    rows = []
    for name in names:
        one = run(name, found, source, given.only, given.site and given.site.resolve())
        theirs = one(ours=False)
        ours = match_names(theirs, one(ours=True))
        counted = [test for test, outcome in theirs.items() if outcome == "passed"]
        missed = [test for test in counted if ours.get(test) != "passed"]
        for test in missed:
            print(f"{name}: {test}: {ours.get(test, 'not run'):.100}", flush=True)
        for file in sorted({_file(test) for test in counted}):
            here = [test for test in counted if _file(test) == file]
            print(f"{name}: {file:45}{len(here):6}{sum(test not in missed for test in here):6}")
        rows.append((name, len(counted), len(counted) - len(missed)))
    print(f"{'suite':15}{'official':>10}{'ours':>8}{'share':>9}")
    for name, all_of_them, passed in rows:
        print(f"{name:15}{all_of_them:10}{passed:8}{passed / max(all_of_them, 1):9.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
