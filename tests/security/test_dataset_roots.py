"""The state file of a dataset does not decide where files are read, written and deleted."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.storage import SplitStorage


@pytest.fixture
def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    repo = icefloe.Repository.create(str(folder), spec_version="dataset")
    with repo.transaction("main", message="salaries") as store:
        zarr.create_array(store, name="salary", data=np.arange(1000, dtype="f8"), chunks=(500,), compressors=None)
    return folder


def _stranger(folder: Path, private: Path, root: str) -> Path:
    state = json.loads((private / "state.json").read_text())
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({**state, "store_root": root}))
    return folder


@pytest.mark.parametrize(
    "root",
    [
        "{private}",
        "file://{private}",
        "../private",
        "{stranger}/../private",
        "file://{stranger}/../private",
        "{stranger}/%2e%2e/private",
        "x/../../private",
        "s3://private/x",
        "https://user:pa55@host/x",
        "memory://private",
        "{stranger}x",
    ],
)
def test_a_root_outside_of_the_dataset_is_refused(tmp_path: Path, private: Path, root: str) -> None:
    stranger = tmp_path / "stranger"
    _stranger(stranger, private, root.format(private=private, stranger=stranger))
    before = {path: path.read_bytes() for path in private.rglob("*") if path.is_file()}
    with pytest.raises(icefloe.IcefloeError) as raised:
        icefloe.Repository.open(str(stranger)).garbage_collect(dt.timedelta(0))
    assert "pa55" not in str(raised.value)
    assert {path: path.read_bytes() for path in private.rglob("*") if path.is_file()} == before


def test_the_caller_may_name_such_a_root(tmp_path: Path, private: Path) -> None:
    stranger = _stranger(tmp_path / "stranger", private, str(private))
    with pytest.raises(InvalidInputError, match="SplitStorage"):
        icefloe.Repository.open(str(stranger))
    split = SplitStorage(icefloe.local_filesystem_storage(stranger), icefloe.local_filesystem_storage(private))
    found = zarr.open_array(icefloe.Repository.open(split).readonly_session("main").store, path="salary", mode="r")
    assert found[999] == 999
