"""Laws of manifest plans: whatever the configuration and history, the manifests say what a dict would."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.manifests import cells, few_edits
from icefloe.manifests.cells import (
    ArrayEdits,
    Cutting,
    PartRef,
    Regions,
    box_array,
    cell_shape,
    in_boxes,
    join_boxes,
    list_items,
    overlapping_pairs,
    plan_regions,
)
from icefloe.manifests.chunk_columns import table_from_columns
from icefloe.manifests.few_edits import plan_few_edits
from icefloe.manifests.manifest_plan import (
    ManifestPlan,
    Package,
    build_output,
    closure,
    cut_table,
    link_manifests,
    pack,
    pack_parts,
    place,
    plan_manifests,
    plan_repack,
    topological_order,
)
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, Coords, table_from_rows
from icefloe.model.manifest_conditions import ManifestSplitCondition, ManifestSplitDimCondition
from icefloe.model.manifest_config import (
    ARRAY_PER_MANIFEST,
    ManifestConfig,
    ManifestRule,
    ManifestSet,
    ManifestSplittingConfig,
)
from icefloe.model.manifest_lists import ListContent, ListedRefs, ListsNotLoadedError, ListSummary, ManifestList
from icefloe.model.snapshot import (
    ArrayNode,
    Extents,
    Manifest,
    ManifestFileInfo,
    ManifestRef,
    ManifestRefs,
    RefColumns,
)
from icefloe.session.change_set import EditBuffer

Model = dict[Coords, ChunkRef]


class Repo:
    """A repository in memory that only has arrays and manifests."""

    def __init__(self, config: ManifestConfig) -> None:
        self.config = config
        self.nodes: dict[bytes, ArrayNode] = {}
        self.infos: dict[str, ManifestFileInfo] = {}
        self.files: dict[str, Manifest] = {}
        self.models: dict[bytes, Model] = {}

    def create(self, name: str, grid: tuple[int, ...]) -> bytes:
        key = f"{name:>8}"[:8].encode()
        self.nodes[key] = ArrayNode(key, f"/{name}", b"", grid, grid)
        self.models[key] = {}
        return key

    def write_part(self, key: bytes, model: Model) -> PartRef:
        table = table_from_rows(list(model.items()), len(self.nodes[key].grid))
        part_id = f"part{len(self.files)}"
        self.files[part_id] = Manifest(part_id, {key: table})
        return PartRef(part_id, key, table.extents(), len(table), 100)

    def commit(self, edits: dict[bytes, ArrayEdits]) -> ManifestPlan:
        return self.carry_out(plan_manifests(self.nodes.values(), self.infos, edits, self.config), edits)

    def repack(self) -> ManifestPlan:
        return self.carry_out(plan_repack(self.nodes.values(), self.infos, self.config), {})

    def carry_out(self, plan: ManifestPlan, edits: dict[bytes, ArrayEdits]) -> ManifestPlan:
        fetchable = set(plan.fetch)

        def fetch(manifest_id: str) -> Manifest:
            assert manifest_id in fetchable
            return self.files[manifest_id]

        built = []
        for number, output in enumerate(
            each for planned in plan.outputs for each in build_output(planned, fetch, edits)
        ):
            manifest = output.manifest
            assert len(manifest) > 0
            self.files[manifest.id] = manifest
            self.infos[manifest.id] = ManifestFileInfo(manifest.id, 10 + number, len(manifest))
            built.append(output.refs)
        self.infos |= {part.manifest_id: part.info for part in plan.linked_parts}
        for key, refs in link_manifests(plan, built).items():
            self.nodes[key] = dataclasses.replace(self.nodes[key], manifests=refs)
        return plan

    def read(self, key: bytes) -> Model:
        """As a reader does: the first manifest whose extents hold the chunk, and only that one."""
        node, found = self.nodes[key], {}
        for coords in itertools.product(*map(range, node.grid)):
            for ref in node.manifests:
                if all(a <= c < b for c, (a, b) in zip(coords, ref.extents, strict=False)):
                    rows = dict(self.files[ref.manifest_id].tables[key].rows())
                    if coords in rows:
                        found[coords] = rows[coords]
                    break
        return found

    def check(self) -> None:
        for key, node in self.nodes.items():
            assert self.read(key) == self.models[key], node
            boxes = box_array([ref.extents for ref in node.manifests], len(node.grid))
            assert len(overlapping_pairs(boxes)) == 0, "extents of one array never overlap"


counter = itertools.count(1)


def reference() -> ChunkRef:
    return ChunkRef(ChunkKind.NATIVE, next(counter), 7, object_id=b"x" * 12)


@st.composite
def configurations(draw: st.DrawFn) -> ManifestConfig:
    names = [f"s{i}" for i in range(draw(st.integers(0, 3)))]
    sets = []
    for index, name in enumerate(names):
        by_size = draw(st.booleans())
        sets.append(
            ManifestSet(
                name,
                max_manifest_size=draw(st.integers(1, 40)) if by_size else None,
                arrays_per_manifest=None if by_size else draw(st.integers(1, 4)),
                overflow_to=draw(st.sampled_from([*names[index + 1 :], "default"])),
                cardinality=draw(st.sampled_from([None, 1, 2])),
                split_size=draw(st.sampled_from([None, None, 6])),
            )
        )
    split = draw(st.sampled_from([None, 4, 8, 1000]))
    sets.append(ManifestSet.default(max_manifest_size=draw(st.sampled_from([6, 30, 1000])), split_size=split))
    order = draw(st.permutations(sets))
    rules = [
        ManifestRule(
            draw(st.sampled_from([*names, "default"])),
            path=draw(st.sampled_from([None, "/a.*", "/b.*"])),
            metadata_chunks=draw(st.sampled_from([None, (0, 10), (3, None)])),
            initialized_chunks=draw(st.sampled_from([None, None, (2, 9)])),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    splitting = None
    if draw(st.booleans()):
        dim = ManifestSplitDimCondition
        sizes = {draw(st.sampled_from([dim.Axis(0), dim.Axis(1), dim.Any()])): draw(st.integers(1, 4))}
        splitting = ManifestSplittingConfig.from_dict({ManifestSplitCondition.name_matches("^a"): sizes})
    return ManifestConfig(sets=tuple(order), rules=tuple(rules), splitting=splitting)


grids = st.sampled_from([(), (1,), (9,), (5, 6), (2, 3, 4), (8, 2), (0, 3)])


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(configurations(), st.data())
def test_any_history_under_any_configuration_equals_a_dict(config: ManifestConfig, data: st.DataObject) -> None:
    repo = Repo(config)
    for _ in range(data.draw(st.integers(1, 6), label="commits")):
        if data.draw(st.integers(0, 7), label="other configuration") == 0:
            repo.config = data.draw(configurations())
        for _ in range(data.draw(st.integers(0 if repo.nodes else 1, 2), label="new arrays")):
            repo.create(f"{data.draw(st.sampled_from('abc'))}{len(repo.nodes)}", data.draw(grids))
        if len(repo.nodes) > 2 and data.draw(st.integers(0, 5), label="delete") == 0:
            gone = data.draw(st.sampled_from(sorted(repo.nodes)))
            del repo.nodes[gone], repo.models[gone]
        edits = {}
        for key in data.draw(st.lists(st.sampled_from(sorted(repo.nodes)), unique=True, max_size=3), label="edited"):
            edits[key] = _draw_edits(repo, key, data)
        before = {key: node.manifests for key, node in repo.nodes.items()}
        plan = repo.commit(edits)
        for key, node in repo.nodes.items():
            if key not in plan.kept:
                assert node.manifests == before[key]
        repo.check()
        assert str(plan)
    repo.repack()
    repo.check()


def _draw_edits(repo: Repo, key: bytes, data: st.DataObject) -> ArrayEdits:
    node, model = repo.nodes[key], dict(repo.models[key])
    buffer, parts = EditBuffer(len(node.grid)), []
    if node.grid and data.draw(st.integers(0, 3), label="resize") == 0:
        small = tuple(data.draw(st.integers(0, n + 2)) for n in node.grid)
        buffer.clip(small)
        model = {k: v for k, v in model.items() if all(c < n for c, n in zip(k, small, strict=True))}
        grown = tuple(n + data.draw(st.integers(0, 3)) for n in small)
        repo.nodes[key] = node = dataclasses.replace(node, grid=grown)
    chunks = list(itertools.product(*map(range, node.grid)))
    if chunks:
        for _ in range(data.draw(st.integers(0, 2), label="parts")):
            part = dict.fromkeys(data.draw(st.lists(st.sampled_from(chunks), min_size=1, max_size=8)))
            written = {coords: reference() for coords in part}
            parts.append(repo.write_part(key, written))
            model |= written
        for coords in data.draw(st.lists(st.sampled_from(chunks), max_size=12), label="set"):
            model[coords] = reference()
            buffer.set(coords, model[coords])
        for coords in data.draw(st.lists(st.sampled_from(chunks), max_size=4), label="deleted"):
            model.pop(coords, None)
            buffer.delete(coords)
    repo.models[key] = model
    return ArrayEdits(buffer.to_table(), tuple(parts), buffer.base_box)


packages = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3)), max_size=30)


@settings(max_examples=200)
@given(configurations(), packages, st.data())
def test_any_configuration_packs_every_array_once_within_sizes_and_cardinality(
    config: ManifestConfig, sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    names = [s.name for s in config.sets]
    listed = [Package(bytes([i] * 8), f"/{i}", n, names[t % len(names)]) for i, (n, t) in enumerate(sizes)]
    carried_over = {name: data.draw(st.integers(0, 2)) for name in names}
    bins = pack(listed, config, carried_over)
    assert Counter(p for b in bins for p in b.packages) == Counter(listed)
    for packed in bins:
        entry = config.find_set(packed.set_name)
        if entry.arrays_per_manifest is not None:
            assert len(packed.packages) <= entry.arrays_per_manifest
        elif sum(p.size for p in packed.packages) > (entry.max_manifest_size or 0):
            assert entry.name == "default" and len(packed.packages) == 1
    for name, count in Counter(b.set_name for b in bins).items():
        limit = config.find_set(name).cardinality
        assert limit is None or count <= max(0, limit - carried_over[name])
    order = [s.name for s in topological_order(config.sets)]
    assert order[-1] == "default"
    assert all(s.overflow_to is None or order.index(s.name) < order.index(s.overflow_to) for s in config.sets)


def test_the_closure_is_that_of_the_specification() -> None:
    arrays_of = {1: "ab", 2: "abc", 3: "c"}
    manifests_of = {"a": [1, 2], "b": [1, 2], "c": [2, 3]}
    for start in ("a", "ab", "abc", "c"):
        assert closure(start, manifests_of, arrays_of) == {"a", "b", "c"}
    assert closure(["new"], manifests_of, arrays_of) == {"new"}
    assert closure([], manifests_of, arrays_of) == set()


@given(
    st.dictionaries(st.integers(0, 8), st.sets(st.integers(0, 8), min_size=1), max_size=8), st.sets(st.integers(0, 8))
)
def test_the_closure_equals_adding_neighbours_until_nothing_is_new(
    arrays_of: dict[int, set[int]], modified: set[int]
) -> None:
    manifests_of = {a: [m for m, arrays in arrays_of.items() if a in arrays] for a in range(9)}
    expected, before = set(modified), None
    while expected != before:
        before = set(expected)
        for arrays in arrays_of.values():
            if arrays & expected:
                expected |= arrays
    assert closure(modified, manifests_of, arrays_of) == expected


def dense(grid: tuple[int, ...], offset: int = 0) -> ChunkTable:
    count = math.prod(grid)
    coords = np.stack(np.unravel_index(np.arange(count), grid), axis=1)
    coords[:, 0] += offset
    return table_from_columns(coords, kind=ChunkKind.VIRTUAL, offset=np.arange(count), length=5, location="s3://b/f")


def test_a_single_chunk_of_a_large_array_rewrites_one_cell() -> None:
    repo = Repo(ManifestConfig())
    key = repo.create("temperature", (1000, 100))
    repo.commit({key: ArrayEdits(dense((1000, 100)))})
    cells = repo.nodes[key].manifests
    assert len(cells) == 8
    assert all(repo.infos[ref.manifest_id].num_chunk_refs <= 16_384 for ref in cells)
    plan = repo.commit({key: ArrayEdits(table_from_rows([((500, 3), reference())], 2))})
    assert len(plan.outputs) == len(plan.fetch) == 1
    assert len(set(repo.nodes[key].manifests) - set(cells)) == 1


def test_appending_along_any_dimension_touches_only_the_last_cells() -> None:
    for axis in (0, 1):
        repo = Repo(ManifestConfig())
        key = repo.create("temperature", (256, 256))
        repo.commit({key: ArrayEdits(dense((256, 256)))})
        for step in range(6):
            grid = list(repo.nodes[key].grid)
            start = grid[axis]
            grid[axis] += 40
            repo.nodes[key] = dataclasses.replace(repo.nodes[key], grid=tuple(grid))
            shape = [256, 256]
            shape[axis] = 40
            coords = np.stack(np.unravel_index(np.arange(math.prod(shape)), shape), axis=1)
            coords[:, axis] += start
            table = table_from_columns(coords, kind=ChunkKind.VIRTUAL, length=1, location="s3://b/g")
            before = set(repo.nodes[key].manifests)
            plan = repo.commit({key: ArrayEdits(table)})
            rewritten = before - set(repo.nodes[key].manifests)
            assert all(ref.extents[axis][1] == start for ref in rewritten), (axis, step)
            assert len(plan.fetch) <= 4
        assert sum(repo.infos[r.manifest_id].num_chunk_refs for r in repo.nodes[key].manifests) == math.prod(grid)


def _halves(draw: st.DrawFn, box: Extents, depth: int) -> list[Extents]:
    """A box, or its parts after some cuts, without those that are left out."""
    choice = draw(st.integers(0, 9))
    if choice == 0:
        return []
    axis = draw(st.integers(0, len(box) - 1))
    first, end = box[axis]
    if choice <= 2 or depth == 0 or end - first < 2:
        return [box]
    cut = draw(st.integers(first + 1, end - 1))
    sides = [
        tuple((a, b) if at != axis else side for at, (a, b) in enumerate(box)) for side in ((first, cut), (cut, end))
    ]
    return [each for side in sides for each in _halves(draw, side, depth - 1)]


@st.composite
def cut_arrays(draw: st.DrawFn) -> tuple[ArrayNode, dict[str, ManifestFileInfo]]:
    """An array whose manifests do not overlap, of any size and in any order."""
    grid = tuple(draw(st.lists(st.integers(1, 24), min_size=1, max_size=2)))
    boxes = draw(st.permutations(_halves(draw, tuple((0, n) for n in grid), 5)))
    refs = tuple(ManifestRef(f"m{number}", box) for number, box in enumerate(boxes))
    counts = draw(st.lists(st.integers(0, 30), min_size=len(refs), max_size=len(refs)))
    infos = {
        ref.manifest_id: ManifestFileInfo(ref.manifest_id, 10, min(count, cells.volume(ref.extents)))
        for ref, count in zip(refs, counts, strict=True)
    }
    return ArrayNode(b"a" * 8, "/a", b"", grid, grid, manifests=refs), infos


def _described(regions: Regions) -> tuple[object, ...]:
    rows = [
        None if each.rows is None else np.arange(10_000)[each.rows].tolist()  # a slice, or numbers of rows
        for each in regions.slices
    ]
    return regions, rows


def check_plan_in_lists(
    node: ArrayNode, change: ArrayEdits, infos: dict[str, ManifestFileInfo], cutting: Cutting
) -> None:
    """The plan is the same if the manifests are in lists. Only lists that the edits reach are loaded."""
    ordered = sorted(node.manifests, key=lambda ref: ref.extents)
    lists, unloaded = [], []
    for start in range(0, len(ordered), 3):
        part = ordered[start : start + 3]
        boxes = cells.box_array([ref.extents for ref in part], len(node.grid))
        numbers = np.zeros(len(part), dtype=np.int64)
        content = ListContent(RefColumns([ref.manifest_id for ref in part], boxes), numbers, numbers)
        lists.append(ManifestList(ListSummary.of(f"list {start}", content), content))
        unloaded.append(ManifestList(lists[-1].summary))
    expected = plan_few_edits(node.with_manifests(tuple(ordered)), change, infos, cutting)
    assert expected is not None
    stored = node.with_manifests(ListedRefs(unloaded))
    contents = {each.id: each.content for each in lists}
    while True:
        try:
            found = plan_few_edits(stored, change, infos, cutting)
            break
        except ListsNotLoadedError as error:
            missing = error.lists
        assert not any(each.is_loaded for each in missing)
        for each in missing:
            each.fill(contents[each.id])
    assert found is not None
    assert isinstance(found.kept, ListedRefs)
    assert _described(dataclasses.replace(found, kept=expected.kept)) == _described(expected)
    for each in unloaded:
        each.fill(contents[each.id])
    assert tuple(found.kept) == tuple(expected.kept)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(cut_arrays(), st.sampled_from([1, 2, 4, 16, 64, None]), st.booleans(), st.data())
def test_a_plan_of_few_edits_is_that_of_all_manifests(
    array: tuple[ArrayNode, dict[str, ManifestFileInfo]], limit: int | None, has_shape: bool, data: st.DataObject
) -> None:
    node, infos = array
    shape = tuple(data.draw(st.integers(1, 8)) for _ in node.grid) if has_shape else None
    chunk = st.tuples(*(st.integers(0, n - 1) for n in node.grid))
    coords = data.draw(st.lists(chunk, min_size=1, max_size=6, unique=True))
    change = ArrayEdits(table_from_rows(sorted((each, reference()) for each in coords), len(node.grid)))
    cutting = Cutting(shape, limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(few_edits, "_MANY_MANIFESTS", 1)
        found = plan_few_edits(node, change, infos, cutting)
        if node.manifests:
            # The same manifests, as a snapshot file has them.
            boxes = cells.box_array([ref.extents for ref in node.manifests], len(node.grid))
            columns = RefColumns([ref.manifest_id for ref in node.manifests], boxes)
            stored = node.with_manifests(ManifestRefs(len(boxes), lambda: columns))
            again = plan_few_edits(stored, change, infos, cutting)
            assert again is not None
            assert found is not None
            assert _described(again) == _described(found)
            check_plan_in_lists(node, change, infos, cutting)
    if not node.manifests:
        assert found is None
    else:
        assert found is not None
        assert _described(found) == _described(plan_regions(node, change, list_items(node, change, infos), cutting))


def test_few_edits_need_manifests_that_do_not_overlap_and_are_inside_of_the_array(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(few_edits, "_MANY_MANIFESTS", 1)
    change = ArrayEdits(table_from_rows([((1,), reference())], 1))
    for boxes, is_planned in (
        ([((0, 4),), ((4, 8),)], True),
        ([((0, 5),), ((4, 8),)], False),
        ([((0, 4),), ((4, 9),)], False),
        ([((0, 4),), ((6, 6),)], False),
        ([((0, 4),), ()], False),
    ):
        refs = tuple(ManifestRef(f"m{number}", box) for number, box in enumerate(boxes))
        node = ArrayNode(b"a" * 8, "/a", b"", (8,), (8,), manifests=refs)
        assert (plan_few_edits(node, change, {}, Cutting(None, 4)) is not None) == is_planned
    clipped = dataclasses.replace(change, base_box=((0, 8),))
    node = ArrayNode(b"a" * 8, "/a", b"", (8,), (8,), manifests=(ManifestRef("m", ((0, 8),)),))
    assert plan_few_edits(node, clipped, {}, Cutting(None, 4)) is None


@given(st.integers(1, 5000), st.lists(st.integers(1, 300), min_size=1, max_size=3), st.integers(0, 300))
def test_cells_stay_where_they_are_when_an_array_grows(limit: int, grid: list[int], growth: int) -> None:
    shape = cell_shape(grid, limit)
    assert math.prod(shape) <= limit
    cells = list(
        itertools.islice(itertools.product(*[range(-(-n // s)) for n, s in zip(grid, shape, strict=True)]), 500)
    )
    boxes: list[Extents] = [
        tuple((c * s, min((c + 1) * s, n)) for c, s, n in zip(cell, shape, grid, strict=True)) for cell in cells
    ]
    grown = [n + growth for n in grid]
    after = cell_shape(grown, limit, box_array(boxes, len(grid)))
    assert math.prod(after) <= limit
    for box in boxes:
        assert all(first // s == (end - 1) // s for (first, end), s in zip(box, after, strict=True))


def test_five_thousand_small_arrays_share_a_handful_of_manifests() -> None:
    repo = Repo(ManifestConfig())
    keys = [repo.create(f"a{i}", (3,)) for i in range(5760)]
    table = table_from_rows([((0,), reference()), ((2,), reference())], 1)
    plan = repo.commit({key: ArrayEdits(table) for key in keys})
    assert len(plan.outputs) <= 2
    changed = repo.commit({keys[7]: ArrayEdits(table)})
    assert len(changed.outputs) <= 2 and len(changed.fetch) == 1


def test_a_chunk_of_a_small_array_rewrites_a_few_references_of_others() -> None:
    repo = Repo(ManifestConfig())
    keys = [repo.create(f"a{i:04}", (1000,)) for i in range(700)]
    repo.commit({key: ArrayEdits(dense((1000,))) for key in keys})
    counts = [repo.infos[m].num_chunk_refs for m in {r.manifest_id for n in repo.nodes.values() for r in n.manifests}]
    assert sum(counts) == 700_000 and max(counts) <= 131_072 and len(counts) <= 8
    changed = repo.commit({keys[400]: ArrayEdits(table_from_rows([((500,), reference())], 1))})
    assert len(changed.outputs) == len(changed.fetch) == 1


def test_a_larger_shared_manifest_of_earlier_releases_is_divided_when_it_is_touched() -> None:
    repo = Repo(ManifestConfig(sets=(ManifestSet.default(split_size=None),), rules=()))
    keys = [repo.create(f"a{i:04}", (1000,)) for i in range(300)]
    repo.commit({key: ArrayEdits(dense((1000,))) for key in keys})
    assert len({ref.manifest_id for node in repo.nodes.values() for ref in node.manifests}) == 1
    repo.config = ManifestConfig()
    for _ in range(2):
        changed = repo.commit({keys[7]: ArrayEdits(table_from_rows([((3,), reference())], 1))})
    assert len(changed.outputs) == 1
    assert max(repo.infos[ref.manifest_id].num_chunk_refs for ref in repo.nodes[keys[7]].manifests) <= 131_072


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 9), st.booleans())
def test_a_default_set_shares_up_to_its_shared_size(sizes: list[int], split: int, changed: bool) -> None:
    limits = {"max_manifest_size": 50} if changed else {}
    entry = ManifestSet.default(split_size=split, **limits)
    assert entry.shared_size == (50 if changed else 8 * split)
    config = ManifestConfig(sets=(entry,), rules=())
    listed = [Package(bytes([i] * 8), f"/{i}", n, "default") for i, n in enumerate(sizes)]
    bins = pack(listed, config, {})
    assert Counter(p for b in bins for p in b.packages) == Counter(listed)
    for packed in bins:
        assert len(packed.packages) == 1 or sum(p.size for p in packed.packages) <= (entry.shared_size or 0)


@settings(max_examples=60)
@given(configurations(), st.lists(st.integers(0, 20), max_size=12))
def test_the_parts_of_a_worker_share_manifests_and_keep_every_reference(
    config: ManifestConfig, sizes: list[int]
) -> None:
    repo = Repo(config)
    written = [(repo.nodes[repo.create(f"a{i}", (20,))], dense((n,))) for i, n in enumerate(sizes) if n]
    packed = list(pack_parts(written, config))
    for node, table in written:
        rows = sorted(row for tables in packed if node.id in tables for row in tables[node.id].rows())
        assert [row[0] for row in rows] == [row[0] for row in table.rows()]
    alone = sum(len(list(cut_table(node, table, config))) for node, table in written)
    assert len(packed) <= alone
    targets = {node.id: config.find_set(place(node, 20, config).target) for node, _ in written}
    for tables in packed:
        entries = {targets[node_id] for node_id in tables}
        assert len(entries) == 1
        if len(tables) > 1:
            (entry,) = entries
            assert entry.arrays_per_manifest is None
            assert sum(map(len, tables.values())) <= min(entry.split_size or 10**9, entry.shared_size or 10**9)


def test_a_worker_with_a_few_chunks_of_many_arrays_writes_few_manifests() -> None:
    repo = Repo(ManifestConfig())
    written = [(repo.nodes[repo.create(f"a{i}", (100_000,))], dense((32,))) for i in range(2000)]
    packed = list(pack_parts(written, repo.config))
    assert len(packed) == 4 and all(sum(map(len, tables.values())) <= 16_384 for tables in packed)
    official = list(pack_parts(written[:20], ARRAY_PER_MANIFEST))
    assert len(official) == 20


Spans = st.tuples(st.integers(0, 5), st.integers(1, 3)).map(lambda span: (span[0], span[0] + span[1]))


@given(st.integers(0, 3).flatmap(lambda ndim: st.lists(st.tuples(*[Spans] * ndim), max_size=12)), st.integers(0, 3))
def test_joined_boxes_contain_the_same_chunks(boxes: list[Extents], ndim: int) -> None:
    ndim = len(boxes[0]) if boxes else ndim
    grid = np.stack(np.unravel_index(np.arange(8**ndim), (8,) * ndim), axis=1) if ndim else np.empty((1, 0))
    coords = grid.astype(np.uint32)
    expected = [any(all(a <= c < b for c, (a, b) in zip(row, box, strict=True)) for box in boxes) for row in coords]
    assert in_boxes(coords, boxes).tolist() == expected
    joined = join_boxes(boxes)
    assert len(joined) <= len(boxes) and in_boxes(coords, joined).tolist() == expected
    assert in_boxes(coords[::3], boxes).tolist() == expected[::3]


def test_the_cells_of_a_grid_are_one_box() -> None:
    cells = [((a, a + 2), (b, b + 5), (0, 3)) for a in range(0, 40, 2) for b in range(0, 50, 5)]
    assert join_boxes(cells[::-1]) == (((0, 40), (0, 50), (0, 3)),)


def test_untouched_manifests_count_towards_the_cardinality_of_their_set() -> None:
    repo = Repo(ManifestConfig())
    table = table_from_rows([((0,), reference())], 1)
    first = repo.commit({repo.create("first", (1,)): ArrayEdits(table)})
    second = repo.commit({repo.create("second", (1,)): ArrayEdits(table)})
    assert [o.set_name for o in first.outputs] == ["coordinates"]
    assert [o.set_name for o in second.outputs] == ["default"]
    assert repo.repack().outputs[0].set_name == "coordinates"
    assert len({ref.manifest_id for node in repo.nodes.values() for ref in node.manifests}) == 1


def test_disjoint_parts_are_linked_and_overlapping_ones_are_merged() -> None:
    repo = Repo(ManifestConfig())
    key = repo.create("temperature", (200, 200))
    parts = []
    for start in range(0, 200, 50):
        part_id = f"task{start}"
        table = dense((50, 200), offset=start)
        repo.files[part_id] = Manifest(part_id, {key: table})
        parts.append(PartRef(part_id, key, table.extents(), len(table), 1234))
    plan = repo.commit({key: ArrayEdits(parts=tuple(parts))})
    assert plan.outputs == () and plan.fetch == () and len(plan.linked_parts) == 4
    assert repo.infos["task50"] == ManifestFileInfo("task50", 1234, 10_000)
    overlapping = repo.write_part(key, {(60, 60): reference()})
    plan = repo.commit({key: ArrayEdits(parts=(overlapping,))})
    assert set(plan.fetch) == {"task50", overlapping.manifest_id}
    assert sum(repo.infos[r.manifest_id].num_chunk_refs for r in repo.nodes[key].manifests) == 40_000


@given(st.permutations(range(6)))
def test_linking_disjoint_parts_does_not_depend_on_their_order(order: list[int]) -> None:
    def commit(groups: list[list[int]]) -> tuple[ManifestRef, ...]:
        repo = Repo(ManifestConfig())
        key = repo.create("temperature", (60, 1000))
        every = [
            repo.write_part(
                key, {(10 * i + j, i): ChunkRef(ChunkKind.NATIVE, j, 1, object_id=b"i" * 12) for j in range(10)}
            )
            for i in range(6)
        ]
        for group in groups:
            repo.commit({key: ArrayEdits(parts=tuple(every[i] for i in group))})
        return repo.nodes[key].manifests

    together = commit([list(order)])
    assert together == commit([list(range(6))]) == commit([list(order[:2]), list(order[2:])])


def test_manifests_without_extents_are_rewritten_with_them() -> None:
    repo = Repo(ManifestConfig())
    key = repo.create("temperature", (300, 100))
    repo.files["theirs"] = Manifest("theirs", {key: dense((300, 100))})
    repo.infos["theirs"] = ManifestFileInfo("theirs", 1, 30_000)
    repo.nodes[key] = dataclasses.replace(repo.nodes[key], manifests=(ManifestRef("theirs", ()),))
    plan = repo.commit({key: ArrayEdits(table_from_rows([((5, 5), reference())], 2))})
    assert plan.fetch == ("theirs",)
    assert [r.extents for r in repo.nodes[key].manifests] == [
        ((0, 128), (0, 100)),
        ((128, 256), (0, 100)),
        ((256, 300), (0, 100)),
    ]


@pytest.mark.long
def test_a_sparse_array_does_not_scatter_over_countless_manifests() -> None:
    repo = Repo(ManifestConfig())
    key = repo.create("sparse", (1_000_000, 1_000_000))
    random = np.random.default_rng(1)
    coords = random.integers(0, 1_000_000, (40_000, 2))
    table = table_from_columns(coords, kind=ChunkKind.VIRTUAL, length=1, location="s3://b/g")
    repo.commit({key: ArrayEdits(table)})
    assert len(repo.nodes[key].manifests) <= 64
    assert all(repo.infos[r.manifest_id].num_chunk_refs <= 16_384 for r in repo.nodes[key].manifests)
    plan = repo.commit({key: ArrayEdits(table_from_rows([((5, 5), reference())], 2))})
    assert len(plan.fetch) <= 2


@settings(deadline=None)
@given(configurations(), grids, st.data())
def test_what_a_worker_cuts_is_linked_as_it_is(config: ManifestConfig, grid: Coords, data: st.DataObject) -> None:
    repo = Repo(config)
    key = repo.create("a", grid)
    chunks = list(itertools.product(*map(range, grid)))
    written = data.draw(st.lists(st.sampled_from(chunks), unique=True)) if chunks else []
    repo.models[key] = {coords: reference() for coords in written}
    table = table_from_rows(list(repo.models[key].items()), len(grid))
    cut = list(cut_table(repo.nodes[key], table, config)) if len(table) else []
    parts = tuple(repo.write_part(key, dict(part.rows())) for part in cut)
    plan = repo.commit({key: ArrayEdits(parts=parts)})
    assert plan.outputs == () and len(plan.linked_parts) == len(parts)
    repo.check()


def test_the_cell_shape_follows_splitting_rules_by_dimension_name() -> None:
    dim = ManifestSplitDimCondition
    splitting = ManifestSplittingConfig.from_dict({ManifestSplitCondition.AnyArray(): {dim.DimensionName("time"): 3}})
    node = ArrayNode(b"12345678", "/t", b"", (9, 5), (9, 5), ("time", "x"))
    repo = Repo(ManifestConfig(splitting=splitting))
    repo.nodes[node.id] = node
    repo.commit({node.id: ArrayEdits(dense((9, 5)))})
    assert [r.extents[0] for r in repo.nodes[node.id].manifests] == [(0, 3), (3, 6), (6, 9)]


@pytest.mark.parametrize("name", ["coordinates", "default"])
def test_a_rule_by_initialized_chunks_sees_what_is_written(name: str) -> None:
    rules = (ManifestRule("coordinates", initialized_chunks=(0, 1)),)
    repo = Repo(dataclasses.replace(ManifestConfig(), rules=rules))
    rows = [((i,), reference()) for i in range(1 if name == "coordinates" else 2)]
    plan = repo.commit({repo.create("x", (10,)): ArrayEdits(table_from_rows(rows, 1))})
    assert plan.outputs[0].set_name == name
