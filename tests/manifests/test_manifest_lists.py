"""Manifest lists: what a snapshot has of them, what is written again after a change, and what is never loaded."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.formats.repository import FORMAT
from icefloe.formats.repository.manifest_list import (
    decode_list_body,
    decode_summaries,
    encode_list_body,
    encode_summaries,
)
from icefloe.formats.repository.snapshot import decode_snapshot_body, encode_snapshot_body
from icefloe.ids import new_object_id
from icefloe.manifests import list_plan
from icefloe.manifests.list_plan import ListSizes, plan_lists
from icefloe.model.manifest_lists import (
    ListContent,
    ListedFiles,
    ListedRefs,
    ListsNotLoadedError,
    ListSummary,
    ManifestList,
    known_files,
    known_refs,
    lists_of,
    missing_lists,
    without_common_lists,
    without_lists,
)
from icefloe.model.snapshot import (
    ArrayNode,
    Extents,
    ManifestFileInfo,
    ManifestRef,
    ManifestRefs,
    RefColumns,
    Snapshot,
    join_refs,
)
from icefloe.session.ancestry import group_by_manifest, suspected_arrays
from icefloe.testing.model import array_document

EPOCH = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
TINY = ListSizes(listed_from=3, usual=2, largest=4)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_plan, "SIZES", TINY)


def ref(first: int, end: int | None = None) -> ManifestRef:
    return ManifestRef(new_object_id(), ((first, first + 1 if end is None else end),))


def array(refs: list[ManifestRef], grid: int = 1000, path: str = "/a") -> ArrayNode:
    manifests = tuple(refs) if len(refs) % 2 else columns(refs)
    return ArrayNode(path.encode().ljust(8), path, array_document(grid, ""), (grid,), (grid,), manifests=manifests)


def columns(refs: list[ManifestRef]) -> ManifestRefs:
    boxes = np.array([each.extents for each in refs], dtype=np.int64).reshape(len(refs), 1, 2)
    return ManifestRefs.of(RefColumns([each.manifest_id for each in refs], boxes))


def snapshot(*nodes: ArrayNode) -> Snapshot:
    infos = {
        each.manifest_id: ManifestFileInfo(each.manifest_id, 100 + each.extents[0][0] if each.extents else 7, 3)
        for node in nodes
        for each in node.manifests
    }
    by_path = {node.path: node for node in nodes}
    return Snapshot(new_object_id(), None, EPOCH, "", {}, by_path, infos, total_ancestors=0, started_at=EPOCH)


def reread(listed: Snapshot) -> Snapshot:
    return FORMAT.decode_snapshot(FORMAT.encode_snapshot(listed))


def load(found: Snapshot, *written: tuple[ManifestList, ...]) -> None:
    """Load the lists of a snapshot from the files that were written."""
    files = {each.id: FORMAT.encode_manifest_list(each.content) for each in itertools.chain(*written)}
    for each in lists_of(found):
        each.fill(FORMAT.decode_manifest_list(files[each.id]))


def refs_of(found: Snapshot, path: str = "/a") -> ListedRefs:
    node = found.nodes[path]
    assert isinstance(node, ArrayNode)
    assert isinstance(node.manifests, ListedRefs)
    return node.manifests


starts = st.lists(st.integers(0, 900), min_size=3, max_size=40, unique=True).map(sorted)


@given(starts, starts)
def test_a_snapshot_with_lists_is_read_as_it_was_written(first: list[int], second: list[int]) -> None:
    base = snapshot(
        array([ref(n) for n in first]), array([ref(n) for n in second], path="/b"), array([ref(1)], path="/c")
    )
    listed = plan_lists(base)
    found = reread(listed.snapshot)
    assert isinstance(found.manifests, ListedFiles)
    assert set(found.manifests.own) == {each.manifest_id for each in base.nodes["/c"].manifests}  # type: ignore[union-attr]
    assert len(refs_of(found)) == len(first)
    assert not found.manifests.is_complete
    load(found, listed.new)
    assert dict(found.manifests) == dict(base.manifests)
    assert list(found.nodes.values()) == list(base.nodes.values())
    assert [each.summary for each in lists_of(found)] == [each.summary for each in listed.new]
    assert encode_snapshot_body(found) == encode_snapshot_body(listed.snapshot)
    assert pickle.loads(pickle.dumps(dict(found.nodes))) == dict(base.nodes)


def test_a_small_array_is_written_as_before() -> None:
    base = snapshot(array([ref(1), ref(2)]))
    listed = plan_lists(base)
    assert listed.snapshot is base
    assert not listed.new
    assert b"Listed" not in encode_snapshot_body(base)


def test_manifests_of_a_list_that_is_not_loaded_cannot_be_used() -> None:
    base = snapshot(array([ref(n) for n in range(8)]))
    listed = plan_lists(base)
    found = reread(listed.snapshot)
    refs = refs_of(found)
    for use in (
        lambda: list(refs),
        lambda: refs[0],
        lambda: refs == base.nodes["/a"].manifests,  # type: ignore[union-attr]
        lambda: hash(refs),
        lambda: list(found.manifests),
        lambda: len(found.manifests),
        lambda: found.manifests.get("0" * 20),
        lambda: refs.joined([ref(500)]),
    ):
        with pytest.raises(ListsNotLoadedError):
            use()
    assert found.info.manifests == ()
    assert list(known_files(found)) == []
    assert list(known_refs(found.nodes["/a"])) == []  # type: ignore[arg-type]
    first = lists_of(found)[0]
    first.fill(listed.new[0].content)
    assert list(known_files(found)) == list(first.columns.ids)
    assert [each.manifest_id for each in known_refs(found.nodes["/a"])] == list(first.columns.ids)  # type: ignore[arg-type]
    assert found.manifests[first.columns.ids[0]].size_bytes == 100
    with pytest.raises(ListsNotLoadedError):
        found.manifests["0" * 20]


@given(starts, st.data())
def test_looking_up_the_manifests_of_one_list_looks_into_no_other(first: list[int], data: st.DataObject) -> None:
    base = snapshot(array([ref(n) for n in first]), array([ref(1)], path="/c"))
    found = plan_lists(base).snapshot
    assert isinstance(found.manifests, ListedFiles)
    lists, loaded = lists_of(found), found.manifests
    for each in data.draw(st.permutations(lists)):
        for manifest_id in each.columns.ids:
            assert loaded[manifest_id] == base.manifests[manifest_id]
    assert all(loaded[key] == info for key, info in base.manifests.items())
    one = data.draw(st.sampled_from(lists))
    files = ListedFiles({}, lists)
    assert all(files[key] == base.manifests[key] for key in one.columns.ids)
    assert len(files._found) == len(one)
    with pytest.raises(KeyError):
        files["0" * 20]


def test_a_list_that_differs_from_its_summary_is_refused() -> None:
    listed = plan_lists(snapshot(array([ref(n) for n in range(8)])))
    found = reread(listed.snapshot)
    with pytest.raises(FormatError, match="differs from what the snapshot records"):
        lists_of(found)[0].fill(listed.new[1].content)


@given(starts, st.data())
def test_a_change_is_that_of_manifests_without_lists(first: list[int], data: st.DataObject) -> None:
    refs = [ref(n) for n in first]
    listed = plan_lists(snapshot(array(refs)))
    base = reread(listed.snapshot)
    load(base, listed.new)
    removed = data.draw(st.sets(st.sampled_from(range(len(refs))), max_size=len(refs) - 1))
    left = [each for row, each in enumerate(refs) if row not in removed]
    taken = {each.extents[0][0] for each in left}
    added = [ref(n) for n in data.draw(st.lists(st.integers(0, 999), max_size=6, unique=True)) if n not in taken]
    ends = list(itertools.accumulate(map(len, refs_of(base).lists)))
    rows: dict[int, list[int]] = {}
    for row in removed:
        position = next(index for index, end in enumerate(ends) if row < end)
        rows.setdefault(position, []).append(row - (ends[position] - len(refs_of(base).lists[position])))
    changed = refs_of(base).without(rows)
    changed = changed.joined(added) if added else changed
    expected = tuple(join_refs(left, added))
    assert tuple(changed) == expected
    node = base.nodes["/a"]
    assert isinstance(node, ArrayNode)
    after = snapshot(node.with_manifests(changed))
    again = plan_lists(after, base)
    assert tuple(refs_of(again.snapshot)) == expected
    assert set(again.snapshot.manifests) == {each.manifest_id for each in expected}
    assert all(1 <= len(each) <= TINY.largest for each in lists_of(again.snapshot))
    # Lists without a change stay.
    untouched = [each for position, each in enumerate(refs_of(base).lists) if position not in rows]
    kept = set(refs_of(again.snapshot).lists)
    assert len([each for each in untouched if each not in kept]) <= 2 * len(added) + 2 * len(rows)
    # The same manifests without lists, as bulk writes leave them, keep the lists that did not change.
    bulk = plan_lists(snapshot(node.with_manifests(expected)), base)
    if len(expected) >= TINY.listed_from:
        assert tuple(refs_of(bulk.snapshot)) == expected
        if not added and not removed:
            assert not bulk.new


def test_an_append_writes_the_last_list_again_and_no_other() -> None:
    base = plan_lists(snapshot(array([ref(n) for n in range(10)])))
    found = reread(base.snapshot)
    load(found, base.new)
    node = found.nodes["/a"]
    assert isinstance(node, ArrayNode)
    bulk = plan_lists(snapshot(node.with_manifests((*node.manifests, ref(100)))), found)
    assert len(bulk.new) == 1
    assert refs_of(bulk.snapshot).lists[:-1] == refs_of(found).lists[:-1]


@pytest.mark.parametrize(
    "boxes",
    [
        [((0, 2),), ((1, 3),), ((5, 6),)],
        [((0, 2),), (), ((5, 6),)],
        [((3, 4),), ((1, 2),), ((5, 6),)],
        [((0, 2),), ((2, 2),), ((5, 6),)],
        [((0, 2),), ((4, 5),), ((5, 2000),)],
    ],
)
def test_manifests_that_overlap_or_have_no_order_are_in_no_list(boxes: list[Extents]) -> None:
    refs = tuple(ManifestRef(new_object_id(), box) for box in boxes)
    base = snapshot(array([]).with_manifests(refs))
    assert plan_lists(base).snapshot is base


def test_lists_that_an_earlier_try_wrote_are_used_again() -> None:
    base = snapshot(array([ref(n) for n in range(10)]))
    first = plan_lists(base)
    again = plan_lists(base, None, {tuple(each.columns.ids): each for each in first.new})
    assert not again.new
    assert again.reused == first.new
    assert lists_of(again.snapshot) == lists_of(first.snapshot)


def test_arrays_with_the_same_manifests_share_the_lists() -> None:
    one = array([ref(n) for n in range(10)])
    two = ArrayNode(b"b" * 8, "/b", one.document, one.shape, one.grid, manifests=one.manifests)
    listed = plan_lists(snapshot(one, two))
    found = reread(listed.snapshot)
    assert refs_of(found) is refs_of(found, "/b")
    assert len(lists_of(found)) == len(listed.new) == 5
    assert without_common_lists(found.nodes["/a"], found.nodes["/b"])[0].manifests == ()  # type: ignore[arg-type]
    load(found, listed.new)
    assert known_refs(found.nodes["/a"]) is refs_of(found, "/b")  # type: ignore[arg-type]


def test_only_arrays_that_share_lists_are_compared_together() -> None:
    one, two = array([ref(n) for n in range(10)]), array([ref(n) for n in range(10)], path="/b")
    three = ArrayNode(b"c" * 8, "/c", one.document, one.shape, one.grid, manifests=one.manifests)
    found = reread(plan_lists(snapshot(one, two, three)).snapshot)
    groups = group_by_manifest(suspected_arrays(snapshot(), found))
    assert [[now.path for _, now in group] for group in groups] == [["/a", "/c"], ["/b"]]


def test_sizes_can_be_corrected() -> None:
    listed = plan_lists(snapshot(array([ref(n) for n in range(10)])))
    found = reread(listed.snapshot)
    load(found, listed.new)
    infos = {key: ManifestFileInfo(key, 5, 1) for key in found.manifests}
    plain = Snapshot(found.id, None, EPOCH, "", {}, without_lists(found), infos)
    again = plan_lists(plain)
    assert dict(again.snapshot.manifests) == infos
    assert sum(each.summary.size_bytes for each in lists_of(again.snapshot)) == 50


def test_a_list_with_invalid_columns_is_refused() -> None:
    good = ListContent(RefColumns([new_object_id()], np.array([[[0, 4]]])), np.array([3]), np.array([2]))
    assert FORMAT.decode_manifest_list(FORMAT.encode_manifest_list(good)).columns.boxes.tolist() == [[[0, 4]]]
    for bad in (
        ListContent(RefColumns(["x"], good.columns.boxes), good.sizes, good.counts),
        ListContent(RefColumns([], good.columns.boxes[:0]), good.sizes[:0], good.counts[:0]),
        ListContent(RefColumns(good.columns.ids, np.array([[[4, 4]]])), good.sizes, good.counts),
        ListContent(RefColumns(good.columns.ids, np.array([[[-1, 4]]])), good.sizes, good.counts),
        ListContent(good.columns, np.array([-3]), good.counts),
        ListContent(good.columns, good.sizes, np.array([1, 2])),
    ):
        with pytest.raises(FormatError):
            FORMAT.decode_manifest_list(FORMAT.encode_manifest_list(bad))


@given(starts, st.data())
def test_manifests_and_lists_have_one_order_and_do_not_repeat(first: list[int], data: st.DataObject) -> None:
    listed = plan_lists(snapshot(array([ref(n) for n in first])))
    summaries = encode_summaries(listed.snapshot.nodes)["/a"]
    order = data.draw(st.lists(st.sampled_from(range(len(summaries))), min_size=1, max_size=6))
    with contextlib.nullcontext() if order == sorted(set(order)) else pytest.raises(FormatError, match="in order"):
        decode_summaries({"/a": [summaries[position] for position in order]})
    content = listed.new[0].content
    rows = data.draw(st.lists(st.sampled_from(range(len(content.sizes))), min_size=1, max_size=6))
    columns = RefColumns([content.columns.ids[row] for row in rows], content.columns.boxes[rows])
    with contextlib.nullcontext() if rows == sorted(set(rows)) else pytest.raises(FormatError, match="in the order"):
        decode_list_body(encode_list_body(ListContent(columns, content.sizes[rows], content.counts[rows])))


def test_a_snapshot_that_names_one_list_many_times_is_refused() -> None:
    listed = plan_lists(snapshot(array([ref(n) for n in range(9)])))
    node = listed.snapshot.nodes["/a"]
    assert isinstance(node, ArrayNode)
    many = ListedRefs(listed.new[:1] * 1000)
    with pytest.raises(FormatError, match="repeat"):
        reread(replace(listed.snapshot, nodes={"/a": node.with_manifests(many)}))


@given(starts)
def test_a_summary_says_where_manifests_are(first: list[int]) -> None:
    listed = plan_lists(snapshot(array([ref(n) for n in first])))
    refs = refs_of(reread(listed.snapshot))
    assert missing_lists(refs.lists) == list(refs.lists)
    for each, own in zip(listed.new, refs.lists, strict=True):
        for row in each.columns.boxes.tolist():
            assert own in refs.meeting(tuple(map(tuple, row)))
            assert own in refs.holding(np.array([[row[0][0]]], dtype=np.uint32))
            assert own in refs.at((row[0][0],))
    assert refs.holding(np.array([[950], [960]], dtype=np.uint32)) == []
    assert refs.at((950,)) == []
    assert all(isinstance(each.summary, ListSummary) for each in listed.new)


@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=3), st.booleans())
def test_a_damaged_body_is_a_format_error_or_read(changes: list[tuple[int, int]], is_list: bool) -> None:
    listed = plan_lists(snapshot(array([ref(n) for n in range(9)])))
    body = bytearray(encode_list_body(listed.new[0].content) if is_list else encode_snapshot_body(listed.snapshot))
    for place, value in changes:
        body[place % len(body)] = value
    with contextlib.suppress(FormatError):
        if is_list:
            decode_list_body(bytes(body))
            return
        found = decode_snapshot_body(bytes(body))
        assert all(isinstance(node.path, str) for node in found.nodes.values())
        assert all(len(each) > 0 for each in lists_of(found))


def test_summaries_that_contradict_each_other_are_refused() -> None:
    listed = plan_lists(snapshot(array([ref(n) for n in range(9)])))
    good = encode_summaries(listed.snapshot.nodes)["/a"][0]
    assert len(decode_summaries({"/a": [good]})["/a"]) == good[1]
    numbers = ((1, 0), (1, 1 << 40), (2, -1), (3, -1))
    for at, bad in ((0, "x"), *numbers, (4, [3, 3]), (4, [1]), (5, [-1, 3]), (7, [1 << 40]), (7, [])):
        wire = [*good[:at], bad, *good[at + 1 :]]
        with pytest.raises(FormatError):
            decode_summaries({"/a": [wire]})
    other = [good[0], good[1] + 1, *good[2:]]
    for wrong in ({"/a": []}, {"/a": [good[:-1]]}, {"/a": [good], "/b": [other]}, [good]):
        with pytest.raises(FormatError):
            decode_summaries(wrong)
