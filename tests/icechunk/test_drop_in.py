"""`icefloe.icechunk` behaves as the official package where `icefloe` has other defaults."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import icechunk


@pytest.fixture
def repo() -> icechunk.Repository:
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    with repo.transaction("main", message="first") as store:
        group = zarr.create_group(store)
        group.create_array("a", shape=4000, chunks=1000, dtype="i4", compressors=None)[:] = 1
    return repo


def test_new_repositories_are_of_version_2_and_have_one_object_for_each_chunk(repo: icechunk.Repository) -> None:
    assert repo.spec_version is icechunk.SpecVersion.v2
    assert icechunk.Repository.open_or_create(icechunk.in_memory_storage()).spec_version == 2
    assert len(repo.storage.list_objects(prefix="chunks")) == 4
    twin = pickle.loads(pickle.dumps(repo))
    assert type(twin) is icechunk.Repository
    for each in (twin, repo.reopen(icechunk.RepositoryConfig(max_concurrent_requests=7))):
        before = len(repo.storage.list_objects(prefix="chunks"))
        with each.transaction("main", message="more") as store:
            zarr.open_group(store)["a"][:] = 2
        assert len(repo.storage.list_objects(prefix="chunks")) == before + 4


def test_packs_can_still_be_asked_for() -> None:
    config = icechunk.RepositoryConfig(chunk_packing=icefloe.ChunkPackingConfig(enabled=True))
    repo = icechunk.Repository.create(icechunk.in_memory_storage(), config)
    with repo.transaction("main", message="first") as store:
        zarr.create_array(store, name="a", shape=4000, chunks=1000, dtype="i4", compressors=None)[:] = 1
    assert len(repo.storage.list_objects(prefix="chunks")) == 1


def test_a_session_needs_a_branch_a_tag_or_a_snapshot(repo: icechunk.Repository) -> None:
    with pytest.raises(ValueError, match="needs a branch"):
        repo.readonly_session()
    assert isinstance(repo.readonly_session("main"), icechunk.Session)


def test_nodes_move_in_rearrange_sessions_which_write_nothing_else(repo: icechunk.Repository) -> None:
    with pytest.raises(icechunk.SessionStateError) as refused:
        repo.writable_session("main").move("/a", "/b")
    assert refused.value.kind == icechunk.ErrorKind.NON_REARRANGE_SESSION
    session = repo.rearrange_session("main")
    session.move("/a", "/b")
    array = zarr.open_group(session.store)["b"]
    assert isinstance(array, zarr.Array)
    for write in (
        lambda: array.__setitem__(slice(None), 5),
        lambda: array.attrs.update(a=1),
        lambda: zarr.open_group(session.store).create_group("c"),
        lambda: zarr.open_group(session.store).__delitem__("b"),
    ):
        with pytest.raises(icechunk.SessionStateError):
            write()
    session.commit("moved")


def test_history_and_the_operations_log_iterate_in_both_ways(repo: icechunk.Repository) -> None:
    async def collect(items: object) -> list[object]:
        return [item async for item in items]  # type: ignore[attr-defined]

    from icefloe.blocking import run_blocking

    assert run_blocking(collect(repo.async_ancestry(branch="main"))) == list(repo.ancestry(branch="main"))
    assert [type(each.kind).__name__ for each in repo.ops_log()] == ["NewCommit", "RepoInitialized"]


def test_forks_of_the_drop_in_come_back_as_such(repo: icechunk.Repository) -> None:
    session = repo.writable_session("main")
    with pytest.raises(ValueError, match="fork"):
        pickle.dumps(session)
    fork = pickle.loads(pickle.dumps(session.fork()))
    assert isinstance(fork, icechunk.ForkSession) and isinstance(fork, icechunk.Session)
    zarr.open_group(fork.store)["a"][:1000] = 9
    session.merge(fork)
    session.commit("merged")


def test_credentials_are_those_of_the_engine_and_pickle() -> None:
    from icefloe.icechunk import credentials as given

    static = given.s3_credentials(access_key_id="a", secret_access_key="b")
    assert isinstance(static, given.S3Credentials.Static | icefloe.S3StaticCredentials)
    wrapped = given.containers_credentials({"s3://a/": static, "file:///d/": given.LocalFileSystemAccess})
    assert isinstance(wrapped["s3://a/"], given.Credentials.S3)
    for each in (
        static,
        given.gcs_credentials(bearer_token="t"),
        given.GcsStaticCredentials.ServiceAccount("/key.json"),
        given.azure_credentials(sas_token="t"),
        given.AzureRefreshableCredential.BearerToken("t"),
        given.s3_refreshable_credentials(_keys, scatter_initial_credentials=True),
    ):
        assert pickle.loads(pickle.dumps(each)) == each
    for wrong in ({"anonymous": True, "from_env": True}, {"access_key_id": "a"}):
        with pytest.raises(ValueError, match="Conflicting arguments"):
            given.s3_credentials(**wrong)


def _keys() -> icefloe.S3StaticCredentials:
    return icefloe.S3StaticCredentials("a", "b")


def test_a_deprecated_authorisation_warns_and_works() -> None:
    with pytest.warns(DeprecationWarning, match="LocalFileSystemAccess"):
        icechunk.Repository.create(icechunk.in_memory_storage(), authorize_virtual_chunk_access={"file:///d/": None})


def test_labels_of_requests_are_checked_and_named_in_the_user_agent() -> None:
    labels = icechunk.Attribution(client="weatherlib/0.9", workload="nightly", principal="u_1")
    assert labels.user_agent() == f"weatherlib/0.9 {icechunk.user_agent()} (workload=nightly; principal=u_1)"
    repo = icechunk.Repository.create(icechunk.in_memory_storage(), attribution=labels)
    assert pickle.loads(pickle.dumps(repo)).attribution == labels == repo.reopen().attribution
    for wrong in ({"workload": "a;b"}, {"principal": "x" * 129}, {"client": "a b"}):
        with pytest.raises(ValueError, match="attribution"):
            icechunk.Attribution(**wrong)


def test_a_repository_needs_a_prefix_in_a_bucket() -> None:
    storage = icechunk.s3_storage(bucket="b", prefix=None, region="us-east-1", anonymous=True)
    with pytest.raises(icechunk.InvalidInputError, match="empty prefix"):
        icechunk.Repository.create(storage)


SCRIPT = """
import sys
import icechunk, icechunk.xarray, zarr
from icechunk.storage import in_memory_storage
repo = icechunk.Repository.create(in_memory_storage())
session = repo.writable_session("main")
zarr.create_group(session.store)
session.commit("a group")
assert isinstance(session.store, icechunk.IcechunkStore)
assert sys.modules["icechunk.session"] is sys.modules["icefloe.icechunk.session"]
print(icechunk.__name__, sys.argv[1:], __name__)
"""


@pytest.mark.long
def test_a_script_runs_unchanged_on_the_drop_in(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "icefloe.icechunk", str(script), "argument"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.split() == ["icefloe.icechunk", "['argument']", "__main__"]


@pytest.mark.long
def test_a_program_for_version_1_writes_repositories_of_version_1(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, subprocess, sys, icechunk\n"
        "print(icechunk.Repository.fetch_config(icechunk.in_memory_storage()))\n"
        "for make in (icechunk.Repository.create, icechunk.Repository.open_or_create):\n"
        "    print(make(icechunk.in_memory_storage()).spec_version.number)\n"
        "icechunk.set_logs_filter('debug')\n"
        "icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=2)\n"
    )
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": True}
    command = [sys.executable, "-m", "icefloe.icechunk", "--version", "1", str(script)]
    told = subprocess.run(command, **options).stdout
    assert told.startswith("None\n1\n1\n") and "Creating Repository" in told
    code = "from icefloe.icechunk import install; install(); import icechunk as i; "
    code += "print(i.Repository.create(i.in_memory_storage()).spec_version.number)"
    environment = {**os.environ, "ICEFLOE_ICECHUNK_VERSION": "1"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, **options).stdout == "1\n"


def test_a_snapshot_is_shown_as_json_to_programs_for_version_1(repo: icechunk.Repository) -> None:
    tip = repo.lookup_branch("main")
    shown = repo.inspect_snapshot(tip)
    short, long = (repo.inspect_snapshot(tip, pretty=pretty) for pretty in (False, True))
    assert json.loads(short) == json.loads(long) == json.loads(json.dumps(shown)) and len(short) < len(long)


def test_importing_the_library_does_not_import_the_drop_in() -> None:
    code = "import icefloe, sys; icefloe.Repository; assert 'icefloe.icechunk' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
def test_the_official_package_is_not_replaced_behind_its_back() -> None:
    pytest.importorskip("icechunk")
    code = "import icechunk; from icefloe.icechunk import install; install()"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.returncode == 1 and "has been imported" in told.stderr
