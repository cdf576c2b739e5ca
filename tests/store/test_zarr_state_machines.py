"""Zarr's own state machines, driven over sessions: any sequence of hierarchy operations equals zarr's memory store."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import zarr
from hypothesis import HealthCheck, note, settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from tests.store.test_zarr_store_contract import GROUP, array_document
from zarr.core.buffer import cpu
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.strategies import keys as zarr_keys

import icefloe
from icefloe import icechunk
from icefloe.storage.contract import Storage


class HierarchyMachine(ZarrHierarchyStateMachine):
    """Hierarchies in a session, with commits, reopening and moves in between."""

    moves_anywhere = True

    def __init__(self, repository: icefloe.Repository, branch: str) -> None:
        self.repository = repository
        self.branch = branch
        super().__init__(repository.writable_session(branch).store)

    @precondition(lambda self: self.store.session.has_uncommitted_changes)
    @rule(reopen=st.booleans())
    def commit(self, reopen: bool) -> None:
        note(f"committing {reopen=}")
        self.store.session.commit("a step")
        repository = type(self.repository).open(self.repository.storage) if reopen else self.repository
        self.store = repository.writable_session(self.branch).store

    @precondition(lambda self: self.moves_anywhere and bool(self.all_arrays or self.all_groups))
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.all_arrays | self.all_groups)))
        parents = [""] + [f"{g}/" for g in sorted(self.all_groups) if g != source and not g.startswith(source + "/")]
        name = data.draw(st.sampled_from(["moved", "0", "c"]))
        target = data.draw(st.sampled_from(parents)) + name
        if not self.can_add(target):
            return
        note(f"moving {source=} {target=}")
        self.store.session.move("/" + source, "/" + target)
        held = self.model._store_dict
        for key in [key for key in held if key.startswith(source + "/")]:
            held[target + key[len(source) :]] = held.pop(key)
        for nodes in (self.all_arrays, self.all_groups):
            for path in [path for path in nodes if path == source or path.startswith(source + "/")]:
                nodes.remove(path)
                nodes.add(target + path[len(source) :])


class DropInHierarchyMachine(HierarchyMachine):
    """The same with `icefloe.icechunk`, where nodes are moved in other sessions."""

    moves_anywhere = False

    @precondition(lambda self: bool(self.all_groups))
    @rule(data=st.data())
    def check_list_dir(self, data: st.DataObject) -> None:
        # As in the official package, an array has a folder `c` also if no chunk is there.
        path = self.draw_directory(data)
        of_chunks = {"c"} if path in self.all_arrays else set()
        expected = set(self._sync_iter(self.model.list_dir(path)))
        assert set(self._sync_iter(self.store.list_dir(path))) == expected | of_chunks


class KeyMachine(ZarrStoreStateMachine):
    """Keys and values; the machine's random keys become keys of chunks, its documents legal ones."""

    ARRAYS = (("", 1), ("a", 2), ("b/c", 1), ("b/d", 0))

    def lay_out(self) -> None:
        for path, ndim in self.ARRAYS:
            key = f"{path}/zarr.json" if path else "zarr.json"
            document = cpu.Buffer.from_bytes(array_document(ndim) if path else GROUP)
            self.store.set(key, document)
            self.model[key] = document

    # A repository holds no arbitrary keys: the arrays are there first, and the random key picks a chunk of them.
    @rule(key=st.integers(0, 99), data=st.binary(max_size=100), array=st.sampled_from(ARRAYS[1:]))
    def set(self, key: int, data: bytes, array: tuple[str, int]) -> None:
        path, ndim = array
        if f"{path}/zarr.json" not in self.model:
            self.lay_out()
        chunk = "/".join([path, "c", *(str(key // 10**axis % 10) for axis in range(ndim))])
        value = cpu.Buffer.from_bytes(data)
        self.store.set(chunk, value)
        self.model[chunk] = value

    # Deleting the document of an array deletes the array: there are no chunks without one.
    @precondition(lambda self: not all(key.endswith("zarr.json") for key in self.model))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(k for k in self.model if not k.endswith("zarr.json"))))
        self.store.delete(key)
        del self.model[key]


class DropInKeyMachine(KeyMachine):
    """The same with `icefloe.icechunk`, which refuses keys that name nothing."""

    @rule(key=zarr_keys())
    def get_invalid_zarr_keys(self, key: str) -> None:
        if key in self.model:
            return
        if key.endswith("zarr.json"):
            assert self.store.get(key, self.prototype) is None
        else:
            with contextlib.suppress(icechunk.InvalidInputError):
                assert self.store.get(key, self.prototype) is None

    @rule(key=zarr_keys())
    def exists(self, key: str) -> None:
        with contextlib.suppress(icechunk.InvalidInputError) if key not in self.model else contextlib.nullcontext():
            assert self.store.exists(key) == (key in self.model)


def run(machine: Callable[[], Any], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def _few(place: Storage) -> bool:
    return place.url.startswith("s3://")


@pytest.fixture(autouse=True)
def _quiet_zarr() -> Any:
    with zarr.config.set(
        {"array.rectilinear_chunks": True} if "rectilinear_chunks" in zarr.config.get("array") else {}
    ):
        yield


@pytest.mark.long
def test_any_hierarchy_is_as_in_zarrs_memory_store(place: Storage) -> None:
    repository = icefloe.Repository.create(place)
    root = next(iter(repository.ancestry(branch="main"))).id
    names = (f"branch-{n}" for n in itertools.count())

    def machine() -> HierarchyMachine:
        branch = next(names)
        repository.create_branch(branch, root)
        return HierarchyMachine(repository, branch)

    run(machine, examples=4 if _few(place) else 25, steps=20)


@pytest.mark.long
def test_any_keys_and_values_are_as_in_a_dict(place: Storage) -> None:
    repository = icefloe.Repository.create(place)
    run(lambda: KeyMachine(repository.writable_session("main").store), examples=4 if _few(place) else 25, steps=30)


@pytest.mark.long
@pytest.mark.parametrize("version", [1, 2])
def test_any_hierarchy_and_any_keys_are_so_in_the_drop_in(version: int) -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=version)
    root = next(iter(repository.ancestry(branch="main"))).id
    names = (f"branch-{n}" for n in itertools.count())

    def machine() -> DropInHierarchyMachine:
        branch = next(names)
        repository.create_branch(branch, root)
        return DropInHierarchyMachine(repository, branch)

    with zarr.config.set({"array.rectilinear_chunks": False}) if version == 1 else contextlib.nullcontext():
        run(machine, examples=15, steps=20)
    run(lambda: DropInKeyMachine(repository.writable_session("main").store), examples=15, steps=30)
