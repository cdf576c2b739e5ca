"""A mirror is the same repository elsewhere, and costs what is new."""

from __future__ import annotations

import pytest
from tests.maintenance.histories import GENERATIONS, make_past, messages, now

import icefloe
from icefloe.testing.storages import CountingStorage


@pytest.mark.parametrize("version", GENERATIONS)
def test_a_mirror_follows_its_source(version: str) -> None:
    past = make_past(icefloe.in_memory_storage(), version)
    place = icefloe.in_memory_storage()
    assert "to copy" in str(past.repo.plan_mirror(place))
    past.repo.mirror(place)
    copy = icefloe.Repository.open(place)
    assert messages(copy) == messages(past.repo)
    past.check(copy)
    past.repo.create_branch("dev", past.repo.lookup_branch("main"))
    past.commit("dev", seed=40)
    past.repo.create_tag("t", past.repo.lookup_branch("dev"))
    past.repo.expire_snapshots(retain_last=2)
    past.repo.garbage_collect(now())
    counting = CountingStorage(place)
    past.repo.mirror(counting)
    # Expiry and collection write the refs again, so that commits under way notice them. In `repository`, an expiry is
    # recorded in a ref, and the collection removes the record with another one.
    assert counting.counts.of("put").requests < (18 if past.repo.context.ledger.records_expiries else 16)
    copy = icefloe.Repository.open(place)
    assert messages(copy, "dev") == messages(past.repo, "dev") and copy.list_tags() == {"t"}
    past.check(copy)
    copy.garbage_collect(now())
    assert copy.verify().is_clean
    past.repo.delete_branch("dev")
    past.repo.mirror(place)
    assert icefloe.Repository.open(place).list_branches() == {"main"}


def test_a_place_with_something_else_is_refused() -> None:
    past = make_past(icefloe.in_memory_storage(), "repository", commits=1)
    other = make_past(icefloe.in_memory_storage(), "icechunk1", commits=1)
    with pytest.raises(icefloe.InvalidInputError, match="icechunk1"):
        past.repo.mirror(other.repo.storage)


@pytest.mark.parametrize("version", GENERATIONS)
def test_another_repository_is_never_replaced_by_a_mirror(version: str) -> None:
    past = make_past(icefloe.in_memory_storage(), version, commits=1)
    other = make_past(icefloe.in_memory_storage(), version, commits=2)
    tip = other.repo.lookup_branch("main")
    with pytest.raises(icefloe.InvalidInputError, match="contains another repository"):
        past.repo.mirror(other.repo.storage)
    with pytest.raises(icefloe.InvalidInputError, match="contains another repository"):
        past.repo.plan_mirror(other.repo.storage)
    assert icefloe.Repository.open(other.repo.storage).lookup_branch("main") == tip
    other.check(icefloe.Repository.open(other.repo.storage))
