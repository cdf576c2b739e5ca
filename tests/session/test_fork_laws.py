"""Forks and merges against a serial model: a merge is the fork's changes done again, or it changes nothing."""

from __future__ import annotations

import pickle
from typing import Any, TypeAlias

import pytest
import zarr
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe import SpecVersion, VersionSelection

NAMES = ("a", "b")
Op: TypeAlias = tuple[str, str, int, int]
"""What is done, to which array, and two numbers: a chunk or a size, and a value."""
State: TypeAlias = dict[str, tuple[int, dict[int, int]]]
"""Arrays by name: their attribute, and values by index; the fill value is 0."""

ops = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "fill", "resize", "resize", "overwrite", "delete", "note"]),
        st.sampled_from(NAMES),
        st.integers(0, 5),
        st.integers(1, 9),
    ),
    max_size=4,
)
of_one_array = st.lists(
    st.tuples(
        st.sampled_from(["write", "fill", "resize", "resize", "resize"]),
        st.just("a"),
        st.integers(0, 3),
        st.integers(1, 9),
    ),
    max_size=3,
)


def apply_to_model(state: State, op: Op) -> bool:
    """Do a change; False where there is nothing to change."""
    kind, name, number, value = op
    if kind == "overwrite":
        state[name] = (0, dict.fromkeys(range(number + 1), 0))
        return True
    if name not in state:
        return False
    note, values = state[name]
    if kind in ("write", "fill"):
        if number not in values:
            return False
        values[number] = value if kind == "write" else 0
    elif kind == "resize":
        state[name] = (note, {i: values.get(i, 0) for i in range(number + 1)})
    elif kind == "delete":
        del state[name]
    elif kind == "note":
        state[name] = (value, values)
    return True


def apply_to_session(session: icefloe.Session, op: Op) -> None:
    kind, name, number, value = op
    root = zarr.open_group(session.store)
    if kind == "overwrite":
        root.create_array(name, shape=(number + 1,), chunks=(1,), dtype="i4", overwrite=True)
        return
    if name not in root:
        return
    array = root[name]
    assert isinstance(array, zarr.Array)
    if kind in ("write", "fill") and number < array.shape[0]:
        array[number] = value if kind == "write" else 0
    elif kind == "resize":
        array.resize((number + 1,))
    elif kind == "delete":
        del root[name]
    elif kind == "note":
        array.attrs["note"] = value


def read(session: icefloe.Session) -> State:
    state: State = {}
    for name, array in zarr.open_group(session.store, mode="r").arrays():
        state[name] = (int(array.attrs.get("note", 0)), dict(enumerate(array[:].tolist())))  # type: ignore[arg-type]
    return state


def copy(state: State) -> State:
    return {name: (note, dict(values)) for name, (note, values) in state.items()}


def may_clash(one: list[Op], two: list[Op]) -> bool:
    """Whether two lists of changes could be about the same thing."""

    def touched(listed: list[Op], name: str) -> tuple[bool, set[int]]:
        mine = [op for op in listed if op[1] == name]
        whole = any(op[0] not in ("write", "fill") for op in mine)
        return whole, {op[2] for op in mine if op[0] in ("write", "fill")}

    for name in NAMES:
        (whole, chunks), (others_whole, others) = touched(one, name), touched(two, name)
        if chunks & others or (whole and (others_whole or others)) or (others_whole and chunks):
            return True
    return False


def start(generation: str) -> tuple[icefloe.Repository, State]:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=generation)
    with repo.transaction("main", message="start") as store:
        root = zarr.create_group(store)
        for name in NAMES:
            root.create_array(name, shape=(4,), chunks=(1,), dtype="i4")[:3] = [11, 12, 13]
    return repo, {name: (0, {0: 11, 1: 12, 2: 13, 3: 0}) for name in NAMES}


@pytest.mark.every_generation
@pytest.mark.parametrize("generation", [version.value for version in SpecVersion])
@given(before=ops, forked=st.lists(ops, min_size=1, max_size=3), after=ops, travels=st.booleans())
def test_a_merge_does_the_changes_of_the_fork_again_or_nothing(
    generation: str, before: list[Op], forked: list[list[Op]], after: list[Op], travels: bool
) -> None:
    repo, model = start(generation)
    session = repo.writable_session("main")
    for op in before:
        apply_to_session(session, op)
        apply_to_model(model, op)
    # Two sides that make the same array where none was share it; what they write to it is not in any order.
    for name in NAMES:
        made = [any(op[:2] == ("overwrite", name) for op in listed) for listed in (after, *forked)]
        assume(name in model or sum(made) < 2)
    forks = []
    for listed in forked:
        fork: Any = session.fork()
        fork = pickle.loads(pickle.dumps(fork)) if travels else fork
        seen = copy(model)
        # What changed nothing in the fork, such as a write to an array that it did not have, is not done again.
        changed = []
        for op in listed:
            apply_to_session(fork, op)
            changed += [op] * apply_to_model(seen, op)
        assert read(fork) == seen
        forks.append((pickle.loads(pickle.dumps(fork)) if travels else fork, changed))
    done = []
    for op in after:
        apply_to_session(session, op)
        done += [op] * apply_to_model(model, op)
    for fork, listed in forks:
        try:
            session.merge(fork)
        except icefloe.InvalidInputError:
            assert may_clash(done, listed), f"{listed} does not meet {done}"
        else:
            for op in listed:
                apply_to_model(model, op)
            done += listed
        assert read(session) == model
    session.commit("all", allow_empty=True)
    assert read(repo.readonly_session("main")) == model


@pytest.mark.every_generation
@pytest.mark.parametrize("generation", [version.value for version in SpecVersion])
@settings(max_examples=40)
@given(before=of_one_array, forked=of_one_array)
def test_linked_parts_are_all_that_the_fork_did_or_are_refused(
    generation: str, before: list[Op], forked: list[Op]
) -> None:
    repo, model = start(generation)
    session = repo.writable_session("main")
    for op in before:
        apply_to_session(session, op)
        apply_to_model(model, op)
    fork = session.fork()
    for op in forked:
        apply_to_session(fork, op)
    expected = read(fork)
    try:
        parts = fork.write_parts()
    except icefloe.UnsupportedError:
        assert any(op[0] != "write" for op in forked)
        expected = model
    else:
        session.link_parts([parts])
    assert read(session) == expected
    session.commit("all", allow_empty=True)
    assert read(repo.readonly_session("main")) == expected


def test_all_forks_are_merged_or_none() -> None:
    repo, model = start("repository")
    session = repo.writable_session("main")
    forks = [session.fork() for _ in range(3)]
    for number, fork in enumerate(forks):
        apply_to_session(fork, ("write", "a", number % 2, 40 + number))
    with pytest.raises(icefloe.InvalidInputError, match="more than one fork"):
        session.merge(*forks)
    assert read(session) == model and not session.has_uncommitted_changes
    session.merge(*forks, on_chunk_conflict=VersionSelection.UseTheirs)
    assert read(session)["a"] == (0, {0: 42, 1: 41, 2: 13, 3: 0})


def test_a_fork_of_a_fork_sees_what_both_began_with() -> None:
    repo, _ = start("repository")
    session = repo.writable_session("main")
    apply_to_session(session, ("write", "a", 0, 1))
    first = session.fork()
    apply_to_session(first, ("write", "a", 1, 2))
    second = pickle.loads(pickle.dumps(first.fork()))
    apply_to_session(second, ("write", "a", 2, 3))
    assert read(second)["a"] == (0, {0: 1, 1: 2, 2: 3, 3: 0})
    first.merge(second)
    session.merge(first)
    assert read(session)["a"] == (0, {0: 1, 1: 2, 2: 3, 3: 0})


def test_a_fork_that_discards_is_as_it_was_when_it_left() -> None:
    repo, _ = start("repository")
    session = repo.writable_session("main")
    apply_to_session(session, ("overwrite", "c", 2, 0))
    fork = session.fork()
    apply_to_session(fork, ("write", "c", 1, 5))
    fork.discard_changes()
    assert not fork.has_uncommitted_changes and read(fork) == read(session)
    session.merge(fork)
    assert read(session)["c"] == (0, {0: 0, 1: 0, 2: 0})
