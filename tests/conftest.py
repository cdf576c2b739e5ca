"""Fixtures and settings that all tests share."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Generator, Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from icefloe.model.capabilities import SpecVersion
from icefloe.storage.build import in_memory_storage, local_filesystem_storage, s3_storage
from icefloe.storage.contract import Storage
from tests.servers.java import spark_missing, spark_too_old
from tests.servers.ministack import ministack_missing, ministack_server
from tests.servers.s3 import S3Server
from tests.servers.seaweedfs import seaweedfs_missing, seaweedfs_server

# Machines that run tests are shared and slow at times: how long an example takes says nothing about its correctness.
# The quick and the ordinary run try the same examples on every machine. `--seed` and the thorough run try others.
_EVERY_PROFILE: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("dev", max_examples=20, derandomize=True, **_EVERY_PROFILE)
settings.register_profile("ci", max_examples=64, derandomize=True, **_EVERY_PROFILE)
settings.register_profile("seeded", max_examples=64, **_EVERY_PROFILE)
settings.register_profile("thorough", max_examples=300, **_EVERY_PROFILE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
if settings().derandomize and hasattr(providers, "_get_local_constants"):
    # Hypothesis draws constants of the modules that are loaded. Which ones are depends on the tests that ran before.
    setattr(providers, "_get_local_constants", lambda: providers._local_constants)  # noqa: B010


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep modules and collected tests out of garbage collections, which would go through all of them each time.

    They stay until the end in any case.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Extension modules report what was not collected before the process ends."""
    gc.unfreeze()


QUICK_GENERATION = SpecVersion.REPOSITORY
"""The generation of which the quick run has the tests that take long for all generations."""


def generations_of(item: pytest.Item) -> set[SpecVersion]:
    """The generations that the parameters of a test name."""
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    values = [each for value in parameters.values() for each in (value if isinstance(value, tuple) else (value,))]
    names = {each.value if isinstance(each, SpecVersion) else each for each in values if isinstance(each, Hashable)}
    return {version for version in SpecVersion if version.value in names}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark tests run in one process, where they share a session, and are skipped where Spark cannot run.

    `pytest.mark.spark(4, 0)` is a test of something that Spark has since 4.0. Cases of `pytest.mark.every_generation`
    are long, except for those of one generation.
    """
    reason = spark_missing()
    for item in items:
        if item.get_closest_marker("every_generation"):
            named = generations_of(item)
            if named and QUICK_GENERATION not in named:
                item.add_marker(pytest.mark.long)
        if marker := item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
            if skip := reason or spark_too_old(marker.args):
                item.add_marker(pytest.mark.skip(reason=skip))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One Spark session for all tests: two tasks at a time, retried like on a cluster."""
    from icefloe.spark import connect, register

    # Workers find the packages of this checkout.
    source = str(Path(__file__).resolve().parents[1] / "src")
    os.environ["PYTHONPATH"] = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with tempfile.TemporaryDirectory(prefix="spark-warehouse-") as warehouse:
        options = {
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": warehouse,
        }
        session = connect("local[2,4]", settings=options)
        if not spark_too_old((4, 0)):
            register(session)
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def shared_spark(request: pytest.FixtureRequest) -> None:
    """Whatever a test of Spark connects to is the shared session, which therefore has to be there first."""
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("spark")


@pytest.fixture(scope="session")
def repository_root() -> Path:
    """The folder of the checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def fixtures_folder(repository_root: Path) -> Path:
    """Repositories written by official releases, kept beside the checkout because they are large."""
    folder = repository_root.parent / "shared" / "fixtures"
    if not folder.is_dir():
        pytest.skip(f"no repositories of official releases at ../shared/fixtures ({folder} is not a folder)")
    return folder


@pytest.fixture(scope="session")
def ministack() -> Iterator[S3Server]:
    """An S3 emulator: fast, atomic."""
    if reason := ministack_missing():
        pytest.skip(reason)
    with ministack_server() as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    """A production S3 store."""
    if reason := seaweedfs_missing():
        pytest.skip(reason)
    with seaweedfs_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(ministack: S3Server) -> S3Server:
    """The S3 server for tests that do not care which."""
    return ministack


@pytest.fixture(scope="session")
def seaweed_server(seaweedfs: S3Server) -> S3Server:
    """The S3 server for contracts and faults, where a real one matters."""
    return seaweedfs


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> str:
    """A fresh bucket on `s3_server`."""
    return s3_server.make_bucket()


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty storage of every kind."""
    if request.param == "local":
        return local_filesystem_storage(tmp_path / "repo")
    if request.param == "memory":
        return in_memory_storage()
    server: S3Server = request.getfixturevalue("ministack")
    return s3_storage(**server.storage_options(server.make_bucket()))
