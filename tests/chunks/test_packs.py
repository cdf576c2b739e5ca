"""Packs hold the newest bytes of every chunk, in order, in few objects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.chunks.packs import PackBuilder, PackingPolicy, SealedPack, packing_policy
from icefloe.errors import InvalidInputError
from icefloe.ids import NodeId
from icefloe.model.chunk_table import ChunkKind, Coords
from icefloe.model.config import ChunkPackingConfig, PackBy, RepositoryConfig

NODES = [bytes([n]) * 8 for n in range(3)]
writes = st.lists(
    st.tuples(
        st.sampled_from(range(3)),
        st.tuples(st.integers(0, 5), st.integers(0, 2**32 - 1)),
        st.binary(min_size=1, max_size=40),
    ),
    max_size=60,
)


def unpack(packs: list[SealedPack]) -> dict[tuple[NodeId, Coords], bytes]:
    """Every chunk of the packs, by its references."""
    found: dict[tuple[NodeId, Coords], bytes] = {}
    for pack in packs:
        for node_id, table in pack.tables.items():
            for coords, ref in table.rows():
                assert ref.kind is ChunkKind.NATIVE
                assert ref.object_id == pack.object_id
                assert (node_id, coords) not in found
                found[node_id, coords] = pack.data[ref.offset : ref.offset + ref.length]
    return found


@given(writes=writes, target=st.integers(40, 300), per_array=st.booleans(), spill=st.booleans())
def test_what_is_packed_is_what_was_written_last(writes, target: int, per_array: bool, spill: bool) -> None:
    builder = PackBuilder(PackingPolicy(0, 40, target, per_array))
    model: dict[tuple[NodeId, Coords], bytes] = {}
    landed: dict[tuple[NodeId, Coords], bytes] = {}
    for node, coords, data in writes:
        builder.add(NODES[node], coords, data)
        model[NODES[node], coords] = data
        assert builder.find(NODES[node], coords) == data
        if spill and builder.is_full:
            landed |= unpack(builder.seal_full())
            assert builder.size_bytes < target
            assert builder.size_bytes == sum(len(builder.find(*key) or b"") for key in model)
    packs = builder.seal()
    for pack in packs:
        assert len(pack.data) <= target
        assert not per_array or len(pack.tables) == 1
        assert pack.tables.rows.ndim == int(pack.tables.ndims.max()), "columns are as wide as the largest rank here"
    assert landed | unpack(packs) == model
    assert len(builder) == 0 and builder.size_bytes == 0 and builder.seal() == []


@given(writes=writes)
def test_chunks_lie_in_chunk_order_without_gaps(writes) -> None:
    builder = PackBuilder(PackingPolicy(0, 40, 100))
    for node, coords, data in writes:
        builder.add(NODES[node], coords, data)
    seen: list[tuple[NodeId, Coords]] = []
    for pack in builder.seal():
        at = 0
        for node_id, table in pack.tables.items():
            for coords, ref in table.rows():
                assert ref.offset == at
                at += ref.length
                seen.append((node_id, coords))
        assert at == len(pack.data)
    for node_id in NODES:
        own = [coords for node, coords in seen if node == node_id]
        assert own == sorted(own)


def test_fifty_thousand_small_chunks_need_at_most_a_two_hundredth_of_the_objects() -> None:
    policy = packing_policy(RepositoryConfig())
    builder = PackBuilder(policy)
    chunk, sealed = bytes(4096), 0
    for index in range(50_000):
        assert policy.takes(len(chunk))
        builder.add(NODES[0], (index,), chunk)
        if builder.is_full:
            sealed += len(builder.seal_full())
    sealed += len(builder.seal())
    assert sealed <= 50_000 // 200


def test_a_discarded_chunk_is_not_packed() -> None:
    builder = PackBuilder(PackingPolicy(0, 40, 100))
    builder.add(NODES[0], (0,), b"a")
    builder.add(NODES[0], (1,), b"b")
    builder.add(NODES[1], (), b"c")
    assert builder.discard(NODES[0], (0,)) and not builder.discard(NODES[0], (0,))
    builder.discard_node(NODES[1])
    assert builder.size_bytes == 1
    assert unpack(builder.seal()) == {(NODES[0], (1,)): b"b"}


def test_many_small_arrays_packed_one_by_one_do_not_stay_in_memory() -> None:
    builder = PackBuilder(PackingPolicy(0, 100, 1000, per_array=True))
    for index in range(500):
        builder.add(index.to_bytes(8, "big"), (0,), bytes(50))
        if builder.is_full:
            builder.seal_full()
        assert builder.size_bytes <= builder.policy.buffer_bytes


def test_a_pack_is_recorded_before_its_chunks_leave() -> None:
    builder = PackBuilder(PackingPolicy(0, 40, 100))
    builder.add(NODES[0], (0,), b"a")
    builder.seal(lambda pack: pytest.fail("gone") if builder.find(NODES[0], (0,)) is None else None)
    assert builder.find(NODES[0], (0,)) is None


def test_packing_is_off_by_one_setting() -> None:
    off = packing_policy(RepositoryConfig(chunk_packing=ChunkPackingConfig(enabled=False)))
    assert not any(off.takes(size) for size in (1, 600, 4096, 1 << 20))
    on = packing_policy(RepositoryConfig())
    assert not on.takes(512) and on.takes(513) and on.takes(256 << 10) and not on.takes((256 << 10) + 1)
    assert packing_policy(RepositoryConfig(chunk_packing=ChunkPackingConfig(by=PackBy.ARRAY))).per_array


def test_a_zero_dimensional_array_and_wide_ids_are_packed_too() -> None:
    builder = PackBuilder(PackingPolicy(0, 40, 100), id_bytes=16)
    builder.add(NODES[0], (), b"abc")
    (pack,) = builder.seal()
    table = pack.tables[NODES[0]]
    assert table.coords.shape == (1, 0) and table.object_id is not None
    assert table.object_id.shape == (1, 16) and table.coords.dtype == np.uint32


def test_chunks_that_cannot_be_packed_are_refused() -> None:
    builder = PackBuilder(PackingPolicy(0, 40, 100))
    builder.add(NODES[0], (0,), b"a")
    with pytest.raises(InvalidInputError, match="dimensions"):
        builder.add(NODES[0], (0, 1), b"a")
    with pytest.raises(InvalidInputError, match="empty"):
        builder.add(NODES[0], (0,), b"")
