"""What is imported, and when: a program does not wait for parts of the library that it does not use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zarr

import icefloe

LOADED = "import json, sys; print(json.dumps(sorted(sys.modules)))"
SLOW = {
    "zarr": "arrays are read and written",
    "numcodecs": "arrays are read and written",
    "pyarrow": "virtual references are used",
    "yaml": "a configuration is in YAML",
    "rich": "tables and progress are printed",
    "pydantic": "never: a new version of a dependency must not bring it",
    "dask": "it is asked for",
    "xarray": "it is asked for",
    "pandas": "it is asked for",
    "pyspark": "it is asked for",
    "icefloe.store": "it needs zarr",
    "icefloe.codec_pipeline": "it needs zarr",
    "icefloe.chunk_coders": "it needs zarr",
    "icefloe.conversion": "a repository is converted",
    "icefloe.display.graph": "a graph is drawn",
    "icefloe.ingest": "files are ingested",
    "icefloe.maintenance.collect": "garbage is collected",
    "icefloe.maintenance.compact": "a repository is compacted",
    "icefloe.maintenance.expire": "snapshots are expired",
    "icefloe.maintenance.merge": "branches are merged",
    "icefloe.maintenance.verify": "a repository is verified",
    "icefloe.spark": "Spark is used",
    "icefloe.tables": "tables are read",
}
"""Modules that take long to import, and when they are imported."""


def modules_after(code: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\n{LOADED}"], check=True, capture_output=True, text=True, env={**os.environ}
    )
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    repo = icefloe.Repository.create(str(tmp_path / "repo"))
    with repo.transaction("main", message="an array") as store:
        zarr.create_group(store).create_array("a", shape=(8,), chunks=(4,), dtype="f4")[:] = 1
    return tmp_path / "repo"


def test_the_class_repository_loads_without_zarr_and_maintenance() -> None:
    assert modules_after("import icefloe; icefloe.Repository") & SLOW.keys() == set()


@pytest.mark.long
def test_a_program_that_uses_zarr_loads_the_store_before_its_first_read(repository: Path) -> None:
    code = "import zarr, icefloe; icefloe.Repository"
    loaded = modules_after(code)
    assert {"icefloe.store", "icefloe.codec_pipeline"} <= loaded
    read = (
        f"repo = icefloe.Repository.open({str(repository)!r})\n"
        "assert zarr.open_array(repo.readonly_session('main').store, path='a', mode='r')[0] == 1"
    )
    assert {name for name in modules_after(f"{code}\n{read}") - loaded if name.startswith("icefloe")} == set()


def test_history_and_refs_are_read_without_zarr(repository: Path) -> None:
    code = f"import icefloe; repo = icefloe.Repository.open({str(repository)!r}); list(repo.ancestry(branch='main'))"
    assert modules_after(code) & SLOW.keys() == set()


def test_the_command_info_loads_no_more_than_it_needs(repository: Path) -> None:
    code = f"from icefloe.cli.app import main; assert main(['info', {str(repository)!r}]) == 0"
    assert modules_after(code) & SLOW.keys() == set()


@pytest.mark.long
def test_a_module_that_loads_late_is_the_module_itself() -> None:
    code = (
        "import datetime, icefloe\n"
        "repo = icefloe.Repository.create(icefloe.in_memory_storage())\n"
        "assert repo.verify().is_clean\n"
        "assert repo.garbage_collect(datetime.timedelta(days=1)).chunks_deleted == 0"
    )
    assert {"icefloe.maintenance.collect", "icefloe.maintenance.verify"} <= modules_after(code)


@pytest.mark.every_generation
@pytest.mark.parametrize("generation", ["store", "repository", "icechunk1", "icechunk2"])
def test_a_commit_and_a_read_load_no_pandas(generation: str) -> None:
    """`pyarrow.array` loads it, which takes longer than the commit. Only Parquet files of `dataset` need it."""
    code = (
        "import icefloe, zarr\n"
        f"repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version={generation!r})\n"
        "with repo.transaction('main', message='an array') as store:\n"
        "    zarr.create_group(store).create_array('a', shape=(8,), chunks=(4,), dtype='f4')[:] = 1\n"
        "zarr.open_array(repo.readonly_session('main').store, path='a')[:]"
    )
    assert "pandas" not in modules_after(code)
