"""Generations whose nodes have numbers keep nodes apart that different sessions and workers create."""

from __future__ import annotations

import pytest
import zarr

import icefloe
from icefloe.session import session_state as node_numbers

GENERATIONS = ["dataset", "store"]


@pytest.fixture(params=GENERATIONS)
def repository(request: pytest.FixtureRequest) -> icefloe.Repository:
    repository = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=request.param)
    session = repository.writable_session("main")
    zarr.group(session.store)
    session.commit("root")
    return repository


@pytest.fixture
def few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few numbers that sessions are sure to draw the same ones."""
    monkeypatch.setattr(node_numbers, "_SMALL", 12)


def write(store: object, name: str, value: int) -> None:
    group = zarr.open_group(store, mode="r+")
    group.create_array(name, shape=(4,), chunks=(2,), dtype="i4")[:] = value


def numbers(repository: icefloe.Repository) -> dict[str, bytes]:
    base = repository.readonly_session("main")._state.base
    return {path: node.id for path, node in base.nodes.items()}


def check(repository: icefloe.Repository, expected: dict[str, int]) -> None:
    store = repository.readonly_session("main").store
    found = {name: zarr.open_array(store, path=name, mode="r")[:].tolist() for name in expected}
    assert found == {name: [value] * 4 for name, value in expected.items()}
    ids = numbers(repository)
    assert len(set(ids.values())) == len(ids)


@pytest.mark.usefixtures("few_numbers")
@pytest.mark.parametrize("inline_bytes", [512, 0])
def test_arrays_that_two_sessions_create_stay_apart(repository: icefloe.Repository, inline_bytes: int) -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=inline_bytes)
    repository = repository.reopen(config=config)
    sessions = [repository.writable_session("main") for _ in range(5)]
    for index, session in enumerate(sessions):
        write(session.store, f"x{index}", index)
        write(session.store, f"y{index}", index)
    for session in sessions:
        session.commit("new arrays", rebase_with=icefloe.BasicConflictSolver())
    check(repository, {f"{name}{index}": index for index in range(5) for name in "xy"})


@pytest.mark.usefixtures("few_numbers")
def test_arrays_that_two_forks_create_stay_apart(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    write(session.store, "own", 9)
    forks = [session.fork() for _ in range(4)]
    for index, fork in enumerate(forks):
        write(fork.store, f"x{index}", index)
    session.merge(*forks)
    write(session.store, "after", 8)
    session.commit("merged")
    check(repository, {"own": 9, "after": 8, **{f"x{index}": index for index in range(4)}})


def test_numbers_of_small_hierarchies_fit_the_narrow_columns(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    for index in range(3):
        write(session.store, f"x{index}", index)
    session.commit("arrays")
    assert all(0 < int.from_bytes(number, "big") < 2**16 for number in numbers(repository).values())
