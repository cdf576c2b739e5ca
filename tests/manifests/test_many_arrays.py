"""Laws of arrays handled together: columns shared by many arrays say what a table for each would."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.manifests.test_manifest_plans import configurations
from tests.manifests.test_manifest_tables import as_model, build, models, refs

from icefloe.formats.format import get_format
from icefloe.formats.repository import transaction_log as chunk_lists
from icefloe.ids import NodeId
from icefloe.manifests.cells import ArrayEdits, BulkEdits
from icefloe.manifests.manifest_plan import BuiltManifest, build_output, link_manifests, plan_manifests
from icefloe.model.capabilities import SpecVersion
from icefloe.model.chunk_table import (
    NO_TABLES,
    ChunkKind,
    ChunkRef,
    ChunkTable,
    ChunkTables,
    Coords,
    concat_tables,
    join_tables,
    table_from_rows,
)
from icefloe.model.manifest_config import ManifestConfig
from icefloe.model.snapshot import ArrayNode, Manifest, ManifestRef, TransactionLog, WrittenChunks
from icefloe.session.change_set import EditBuffer, gather_edits

Model = dict[Coords, ChunkRef]
Models = dict[NodeId, tuple[int, Model]]

FLAT = get_format(SpecVersion("icechunk2"))
SHARING = [get_format(SpecVersion("repository")), get_format(SpecVersion("icechunk1")), FLAT]
"""Generations that lay out the references of all arrays of a manifest together."""

node_ids = st.integers(0, 40).map(lambda number: (number * 2**58 + number).to_bytes(8, "big"))
filled = st.integers(0, 3).flatmap(lambda n: st.tuples(st.just(n), models(n).filter(bool)))
arrays = st.dictionaries(node_ids, filled, max_size=6)


def tables_of(found: Models) -> dict[NodeId, ChunkTable]:
    return {node: build(model, ndim) for node, (ndim, model) in found.items()}


def same(tables: ChunkTables, expected: Models) -> bool:
    assert tables.keys() == expected.keys() and len(tables) == len(expected)
    for place, node in enumerate(tables):
        ndim, model = expected[node]
        assert tables[node].ndim == ndim and as_model(tables[node]) == as_model(tables.at(place)) == model
        assert set(tables[node].locations) == {ref.location for ref in model.values() if ref.location}
        assert len(tables[node].inline) == sum(len(ref.data or b"") for ref in model.values())
    return True


@pytest.mark.long
@given(arrays)
def test_tables_that_were_joined_are_cut_out_as_they_were(found: Models) -> None:
    joined = join_tables(tables_of(found))
    assert list(joined) == sorted(found)
    assert same(joined, found)
    assert same(pickle.loads(pickle.dumps(joined)), found)
    assert b"no array" not in joined and joined.get(b"no array") is None


@pytest.mark.long
@given(arrays, arrays, st.randoms())
def test_arrays_are_chosen_ordered_and_put_behind_each_other(first: Models, second: Models, random: Any) -> None:
    second = {node: each for node, each in second.items() if node not in first}
    both = concat_tables([join_tables(tables_of(first)), NO_TABLES, join_tables(tables_of(second))])
    assert same(both, first | second)
    wanted = random.sample(sorted(both), random.randint(0, len(both)))
    chosen = both.select(both.positions(wanted))
    assert list(chosen) == wanted
    assert all(as_model(chosen[node]) == (first | second)[node][1] for node in wanted)
    assert list(chosen.by_id()) == sorted(wanted)
    assert all(chosen.by_id()[node] == chosen[node] for node in wanted)
    together, apart = Manifest("0" * 20, chosen), Manifest("0" * 20, dict(chosen.items()))
    assert len(together) == len(apart)
    for generation in SHARING:
        decoded = [generation.decode_manifest(generation.encode_manifest(each)) for each in (together, apart)]
        assert list(decoded[0].tables) == list(decoded[1].tables) == sorted(wanted)
        assert decoded[0].tables == decoded[1].tables
        if generation is FLAT:  # which can hold all that a reference says
            assert {node: as_model(table) for node, table in decoded[0].tables.items()} == {
                node: (first | second)[node][1] for node in wanted
            }


@pytest.mark.long
@given(
    arrays,
    st.lists(st.tuples(node_ids, st.sampled_from(["set", "delete", "find", "copy", "table"])), max_size=8),
    st.data(),
)
def test_edits_in_shared_columns_are_those_of_a_dict(
    found: Models, steps: list[tuple[NodeId, str]], data: st.DataObject
) -> None:
    tables = join_tables(tables_of(found))
    buffers = {node: EditBuffer(ndim) for node, (ndim, _) in found.items()}
    expected = {node: dict(model) for node, (_, model) in found.items()}
    single = set(data.draw(st.lists(st.sampled_from(sorted(found)), unique=True) if found else st.just([])))
    for place, node in enumerate(tables.nodes):
        if node in single:
            for coords, ref in found[node][1].items():
                buffers[node].set(coords, ref)
        else:
            buffers[node].add_shared(tables, place)
    for node, step in steps:
        if node not in found:
            continue
        coords = tuple(data.draw(st.integers(0, 4)) for _ in range(found[node][0]))
        if step == "set":
            expected[node][coords] = ref = data.draw(refs())
            buffers[node].set(coords, ref)
        elif step == "delete":
            expected[node][coords] = ChunkRef(ChunkKind.DELETED, 0, 0)
            buffers[node].delete(coords)
        elif step == "find":
            assert buffers[node].find(coords) == expected[node].get(coords)
        elif step == "copy":
            buffers[node] = buffers[node].copy()
        else:
            assert len(buffers[node]) == len(expected[node]) and buffers[node].nbytes > 0
    loose = {node for node, buffer in buffers.items() if buffer.loose}
    gathered = gather_edits(buffers)
    assert gathered.together.keys() | gathered.alone.keys() == found.keys()
    assert {node: as_model(table) for node, table in gathered.together.items()} | {
        node: as_model(buffer.to_table()) for node, buffer in gathered.alone.items()
    } == expected
    # A single array with loose edits stays alone: there is nothing to put it together with.
    assert all(node in dict(steps) or loose == {node} for node in gathered.alone), "untouched arrays are in columns"
    assert not any((table.kind == ChunkKind.DELETED).any() for table in gathered.together.values())
    assert {node: as_model(buffer.to_table()) for node, buffer in buffers.items()} == expected


names = st.lists(st.sampled_from([f"{letter}{n}" for letter in "abc" for n in range(4)]), unique=True, max_size=10)
grids = st.sampled_from([(), (1,), (9,), (5, 6), (2, 3, 4)])


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(configurations(), names, st.data())
def test_new_arrays_planned_together_are_packed_as_one_by_one(
    config: ManifestConfig, found: list[str], data: st.DataObject
) -> None:
    nodes = []
    edits: dict[NodeId, ArrayEdits] = {}
    for number, name in enumerate(found):
        grid = data.draw(grids)
        node = ArrayNode(f"{99 - number:>8}".encode(), f"/{name}", b"", grid, grid)
        chunks = data.draw(
            st.lists(st.sampled_from(list(itertools.product(*map(range, grid)))), min_size=1, max_size=9)
        )
        reference = ChunkRef(ChunkKind.NATIVE, number, 7, object_id=b"x" * 12)
        nodes.append(node)
        edits[node.id] = ArrayEdits(table_from_rows([(coords, reference) for coords in chunks], len(grid)))
    fresh = set(data.draw(st.lists(st.sampled_from(list(edits)), unique=True) if edits else st.just([])))
    tables = {key: change.table for key, change in edits.items() if key in fresh and change.table is not None}
    bulk = BulkEdits({key: change for key, change in edits.items() if key not in fresh}, join_tables(tables))
    assert dict(bulk) == edits

    def carry_out(given: Any) -> tuple[set[Any], dict[NodeId, Any]]:
        plan = plan_manifests(nodes, {}, given, config)
        assert str(plan)
        built: list[BuiltManifest] = [
            each for output in plan.outputs for each in build_output(output, dict[str, Manifest]().__getitem__, given)
        ]
        number = {each.manifest.id: frozenset(each.manifest.tables) for each in built}
        linked = link_manifests(plan, [each.refs for each in built])
        return (
            {
                (keys, *(tuple(each.manifest.tables[key].rows()) for key in sorted(keys)))
                for each in built
                for keys in [frozenset(each.manifest.tables)]
            },
            {key: [(number[ref.manifest_id], ref.extents) for ref in refs] for key, refs in linked.items()},
        )

    assert carry_out(bulk) == carry_out(edits)


@pytest.mark.long
@given(arrays, arrays, st.integers(0, 3), st.sampled_from([0, 3]))
def test_a_log_with_shared_columns_reads_as_one_without(first: Models, second: Models, many: int, few: int) -> None:
    alone = {node: build(model, ndim).coords for node, (ndim, model) in second.items() if node not in first}
    chunks = WrittenChunks(join_tables(tables_of(first)), alone)
    expected = {node: build(model, ndim).coords for node, (ndim, model) in (second | first).items()}
    assert chunks.keys() == expected.keys() and len(chunks) == len(expected)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chunk_lists, "_MANY_ROWS", many)
        patched.setattr(chunk_lists, "_FEW_ARRAYS", few)
        files = [each.encode_transaction_log("0" * 20, TransactionLog(updated_chunks=chunks)) for each in SHARING]
    for generation, data in zip(SHARING, files, strict=True):
        found = generation.decode_transaction_log(data).updated_chunks
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[node], coords) for node, coords in expected.items())


@given(st.booleans(), st.lists(st.sampled_from(["all", "narrow", "foreign", "absent"]), min_size=1, max_size=6))
def test_untouched_arrays_show_in_a_new_manifest_what_they_showed_in_the_old(together: bool, cases: list[str]) -> None:
    reference = ChunkRef(ChunkKind.NATIVE, 3, 7, object_id=b"x" * 12)
    nodes, held, expected = [], {}, {}
    for number, case in enumerate(cases):
        key = f"{number:>8}".encode()
        extents = ((1, 2), (0, 3)) if case == "narrow" else ((0, 2), (0, 3))
        nodes.append(ArrayNode(key, f"/a{number}", b"", (2, 3), (2, 3), manifests=(ManifestRef("old", extents),)))
        rows = dict.fromkeys([(0, 1), (1, 0), (1, 2)], reference)
        if case == "foreign":
            held[key] = table_from_rows([((0, 0, 4), reference)], 3)
        elif case != "absent":
            held[key] = table_from_rows(list(rows.items()), 2)
            expected[key] = {coords: ref for coords, ref in rows.items() if case == "all" or coords[0] == 1}
    new = ArrayNode(b"new one!", "/new", b"", (1,), (1,))
    edits = {new.id: ArrayEdits(table_from_rows([((0,), reference)], 1))}
    # A change to one of the old arrays drags the others along.
    changed = nodes[0].id
    edits[changed] = ArrayEdits(table_from_rows([((0, 0), reference)], 2))
    expected[changed] = {**expected.get(changed, {}), (0, 0): reference}
    expected[new.id] = {(0,): reference}
    old = Manifest("old", join_tables(held) if together else held)
    plan = plan_manifests([*nodes, new], {}, edits, ManifestConfig())
    assert plan.fetch == ("old",) and str(plan)
    (built,) = (each for output in plan.outputs for each in build_output(output, {"old": old}.__getitem__, edits))
    assert {key: dict(table.rows()) for key, table in built.manifest.tables.items()} == expected
    assert {key: table.extents() for key, table in built.manifest.tables.items()} == {
        key: ref.extents for key, ref in built.refs.items()
    }
