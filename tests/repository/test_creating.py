"""Creators of one place: of any number, of any generations, one makes the repository."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.session import open_repository as opening
from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import Operation, WrappedStorage

T = TypeVar("T")
GENERATIONS = ("repository", "icechunk2", "icechunk1", "store", "dataset")


class Unsteady(WrappedStorage):
    """Lets others go first at any operation, and dies at a given one."""

    def __init__(self, inner: Storage, seed: int, dies_at: int | None = None) -> None:
        super().__init__(inner)
        self.rng, self.dies_at, self.count = random.Random(seed), dies_at, 0

    async def _forward(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        for _ in range(self.rng.choice((0, 0, 1, 3, 10))):
            await asyncio.sleep(0)
        if self.dies_at is not None and self.count >= self.dies_at:
            raise ConnectionAbortedError("the process died")
        self.count += 1
        return await call()

    def _rewrap(self, inner: Storage) -> Storage:
        raise NotImplementedError


@pytest.mark.long
@given(st.lists(st.sampled_from(GENERATIONS), min_size=2, max_size=4), st.integers(0, 2**32))
def test_of_creators_of_any_generations_one_wins(versions: list[str], seed: int) -> None:
    place = icefloe.in_memory_storage()

    async def race() -> list[object]:
        makers = (
            icefloe.Repository.create_async(Unsteady(place, seed + number), spec_version=version)
            for number, version in enumerate(versions)
        )
        return await asyncio.gather(*makers, return_exceptions=True)

    made = asyncio.run(race())
    won = [each for each in made if isinstance(each, icefloe.Repository)]
    assert len(won) == 1, made
    assert all(isinstance(each, icefloe.AlreadyExistsError) for each in made if each is not won[0]), made
    assert icefloe.Repository.open(place).spec_version == won[0].spec_version
    with won[0].transaction("main", message="precious") as store:
        zarr.create_group(store, path="precious")
    assert next(info.message for info in icefloe.Repository.open(place).ancestry(branch="main")) == "precious"
    assert not asyncio.run(place.exists("creating.json"))


@pytest.mark.long
@given(st.lists(st.sampled_from(GENERATIONS), min_size=2, max_size=4), st.integers(0, 2**32))
def test_who_opens_or_creates_gets_the_one_repository(versions: list[str], seed: int) -> None:
    place = icefloe.in_memory_storage()

    async def race() -> list[icefloe.Repository]:
        makers = (
            icefloe.Repository.open_or_create_async(Unsteady(place, seed + number), create_version=version)
            for number, version in enumerate(versions)
        )
        return list(await asyncio.gather(*makers))

    assert len({each.spec_version for each in asyncio.run(race())}) == 1


@pytest.mark.every_generation
@pytest.mark.parametrize(("first", "second"), itertools.product(GENERATIONS, ("repository", "icechunk2")))
def test_a_creator_that_died_at_any_step_holds_the_next_one_up_for_a_while_only(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_CLAIM_SECONDS", 0.01)
    for step in range(40):
        place = icefloe.in_memory_storage()
        try:
            icefloe.Repository.create(Unsteady(place, 0, step), spec_version=first, check_clean_root=False)
        except ConnectionAbortedError:
            pass
        else:
            assert step > 5
            return
        repo = icefloe.Repository.open_or_create(place, create_version=second, check_clean_root=False)
        assert icefloe.Repository.open(place).spec_version == repo.spec_version
        assert len(list(repo.ancestry(branch="main"))) == 1
    pytest.fail("a creation takes more steps than were tried")
