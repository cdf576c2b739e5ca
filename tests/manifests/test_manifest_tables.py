"""Laws of chunk tables: whatever is done in columns equals what a dict would do."""

from __future__ import annotations

import bisect
import itertools
import pickle
import tracemalloc
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.manifests.cells import filter_box, halve, rows_by_cell
from icefloe.manifests.chunk_columns import (
    code_texts,
    compact_locations,
    concat,
    diff_tables,
    drop_tombstones,
    find_position,
    find_row,
    find_rows,
    join_runs,
    map_coords,
    merge_edits,
    overlay,
    shift_coords,
    table_from_columns,
    take,
)
from icefloe.model.chunk_table import (
    ChunkKind,
    ChunkRef,
    ChunkTable,
    Coords,
    StringColumn,
    string_column,
    table_from_rows,
    text_array,
)
from icefloe.session.change_set import EditBuffer

Model = dict[Coords, ChunkRef]
DELETED = ChunkRef(ChunkKind.DELETED, 0, 0)


def refs(deleted: bool = False) -> st.SearchStrategy[ChunkRef]:
    small = st.integers(0, 50)
    kinds = [
        st.builds(lambda d: ChunkRef(ChunkKind.INLINE, 0, len(d), data=d), st.binary(max_size=6)),
        st.builds(
            lambda o, n, i: ChunkRef(ChunkKind.NATIVE, o, n, object_id=i),
            small,
            small,
            st.binary(min_size=12, max_size=12),
        ),
        st.builds(
            lambda o, n, u, e, m: ChunkRef(ChunkKind.VIRTUAL, o, n, location=u, etag=e, last_modified=m),
            small,
            small,
            st.sampled_from(["s3://a/x", "s3://a/y", "file:///z"]),
            st.sampled_from([None, "t1", "t2"]),
            st.sampled_from([None, 5, 6]),
        ),
    ]
    return st.one_of(*kinds, st.just(DELETED)) if deleted else st.one_of(*kinds)


def models(ndim: int, deleted: bool = False, high: int = 6) -> st.SearchStrategy[Model]:
    # Now and then coordinates so large that their product does not fit 64 bits.
    index = st.one_of(st.integers(0, high), st.sampled_from([2**31, 2**32 - 1]))
    return st.dictionaries(st.tuples(*[index] * ndim), refs(deleted), max_size=25)


ranks = st.integers(0, 3)
two_models = ranks.flatmap(lambda n: st.tuples(st.just(n), models(n), models(n, deleted=True)))
one_model = ranks.flatmap(lambda n: st.tuples(st.just(n), models(n)))


def build(model: Model, ndim: int) -> ChunkTable:
    return table_from_rows(list(model.items()), ndim)


def as_model(table: ChunkTable) -> Model:
    rows = list(table.rows())
    assert [c for c, _ in rows] == sorted({c for c, _ in rows}), "rows are unique and in order"
    return dict(rows)


@given(two_models)
def test_merging_edits_equals_updating_a_dict(case: tuple[int, Model, Model]) -> None:
    ndim, base, edits = case
    expected = {k: v for k, v in (base | edits).items() if v.kind is not ChunkKind.DELETED}
    assert as_model(merge_edits(build(base, ndim), build(edits, ndim))) == expected
    assert as_model(overlay(build(base, ndim), build(edits, ndim))) == base | edits


own_refs = refs(deleted=True).filter(lambda ref: ref.kind is not ChunkKind.VIRTUAL)
"""References to chunks that the repository holds, and deletions."""


@given(
    ranks.flatmap(
        lambda n: st.tuples(
            st.just(n), st.lists(st.tuples(st.tuples(*[st.integers(0, 3)] * n), own_refs), min_size=1, max_size=20)
        )
    )
)
def test_single_edits_one_after_the_other_equal_updating_a_dict(
    case: tuple[int, list[tuple[tuple[int, ...], ChunkRef]]],
) -> None:
    ndim, edits = case
    model: Model = {}
    table = build(model, ndim)
    for coords, ref in edits:
        table = merge_edits(table, build({coords: ref}, ndim))
        model[coords] = ref
        model = {key: value for key, value in model.items() if value.kind is not ChunkKind.DELETED}
        assert as_model(table) == model


@given(st.integers(0, 2**32 - 1), refs(deleted=True), st.booleans())
def test_a_few_edits_are_spliced_into_a_long_table(seed: int, ref: ChunkRef, inline: bool) -> None:
    def reference(i: int, j: int) -> ChunkRef:
        if inline:
            return ChunkRef(ChunkKind.INLINE, 0, 1, data=bytes([i]))
        return ChunkRef(ChunkKind.VIRTUAL, i, 1, location=f"s3://{j}")

    base: Model = {(i, j): reference(i, j) for i in range(12) for j in range(12)}
    edits: Model = {(seed % 14, seed % 11): ref}
    expected = {k: v for k, v in (base | edits).items() if v.kind is not ChunkKind.DELETED}
    assert as_model(merge_edits(build(base, 2), build(edits, 2))) == expected


@given(one_model, st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_split_then_concat_is_identity(case: tuple[int, Model], shape: list[int]) -> None:
    ndim, model = case
    table = build(model, ndim)
    cells = {part.cell: take(table, part.rows) for part in rows_by_cell(table, shape[:ndim])}
    for cell, part in cells.items():
        assert all(tuple(c // s for c, s in zip(k, shape, strict=False)) == cell for k in as_model(part))
    joined = concat(list(cells.values())) if cells else table
    assert joined == table
    assert as_model(joined) == model
    slices = list(halve(table, 3))
    assert all(len(p) <= 3 for p in slices)
    assert concat(slices) == table


@given(models(2), st.sampled_from([1, 2, 3, 7]), st.lists(st.integers(1, 4), min_size=2, max_size=2))
def test_cells_do_not_depend_on_how_many_rows_are_looked_at_together(model: Model, rows: int, shape: list[int]) -> None:
    table = build(model, 2)
    together = list(rows_by_cell(table, shape))
    with mock.patch("icefloe.manifests.cells._KEYS_AT_ONCE", rows):
        for part, other in zip(rows_by_cell(table, shape), together, strict=True):
            assert (part.cell, part.box, part.count) == (other.cell, other.box, other.count)
            assert take(table, part.rows) == take(table, other.rows)


@given(ranks.flatmap(lambda n: st.tuples(st.just(n), models(n, deleted=True))), st.data())
def test_joined_runs_hold_all_rows_at_every_step(case: tuple[int, Model], data: st.DataObject) -> None:
    ndim, model = case
    rows = sorted(model.items(), key=lambda row: row[0])
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(rows) - 1, 1)), max_size=4)))
    pieces = [rows[a:b] for a, b in itertools.pairwise([0, *cuts, len(rows)]) if rows[a:b]]
    assume(pieces)
    held: list[tuple[ChunkTable, ...]] = []
    joined = join_runs([table_from_rows(piece, ndim) for piece in pieces], held.append)
    assert as_model(joined) == model
    for tables in held:
        assert [list(table.rows()) for table in tables] == pieces
    assert all(np.shares_memory(table.coords, joined.coords) for table in held[-1] if ndim)


def test_large_runs_in_order_are_joined_without_a_copy_of_all_columns() -> None:
    count, buffer = 1 << 18, EditBuffer(1)
    length = np.ones(count, dtype="u8")
    tracemalloc.start()
    try:
        for first in range(0, 4 * count, count):
            index = np.arange(first, first + count, dtype="u8")
            buffer.add_table(
                table_from_columns(
                    index[:, None], kind=ChunkKind.VIRTUAL, location="s3://a/x", offset=index, length=length.copy()
                )
            )
        tracemalloc.reset_peak()
        table = buffer.to_table()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.array_equal(table.offset, np.arange(4 * count))
    assert peak < 1.6 * table.nbytes  # all columns once, and one of them twice


@given(two_models)
def test_finding_equals_looking_up_a_dict(case: tuple[int, Model, Model]) -> None:
    ndim, model, others = case
    table = build(model, ndim)
    wanted = list(model) + list(others) + [(7,) * ndim]
    for coords in wanted:
        row = find_row(table, coords)
        assert (None if row is None else table.row(row)) == model.get(coords)
    many = np.array(wanted * 70, dtype=np.uint32).reshape(len(wanted) * 70, ndim)
    assert [None if r < 0 else table.row(r) for r in find_rows(table, many)] == [model.get(c) for c in wanted * 70]


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 9), st.integers(1, 5)), min_size=1, max_size=3),
    st.sets(st.integers(0, 124), max_size=3),
    st.lists(st.integers(-3, 7), min_size=3, max_size=3),
)
def test_positions_in_a_box_with_or_without_gaps_equal_those_in_a_sorted_list(
    sides: list[tuple[int, int]], gaps: set[int], step: list[int]
) -> None:
    box = list(itertools.product(*(range(first, first + size) for first, size in sides)))
    rows = [row for number, row in enumerate(box) if number not in gaps]
    count = len(rows)
    table = table_from_columns(
        np.array(rows, dtype="u4").reshape(count, len(sides)),
        kind=ChunkKind.VIRTUAL,
        location="s3://a/x",
        offset=np.zeros(count, dtype="u8"),
        length=np.ones(count, dtype="u8"),
    )
    outside = tuple(first + move for (first, _), move in zip(sides, step, strict=False))
    for wanted in (*box, outside):
        position = bisect.bisect_left(rows, wanted)
        assert find_position(table, list(wanted)) == (position, wanted in rows)


@given(two_models)
def test_diff_names_exactly_the_changed_chunks(case: tuple[int, Model, Model]) -> None:
    ndim, before, edits = case
    after = before | edits
    changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    found = diff_tables(build(before, ndim), build(after, ndim))
    assert [tuple(c) for c in found.tolist()] == changed
    assert len(diff_tables(build(after, ndim), build(after, ndim))) == 0


@given(one_model, st.data())
def test_boxes_and_rows_keep_what_they_say(case: tuple[int, Model], data: st.DataObject) -> None:
    ndim, model = case
    table = build(model, ndim)
    box = tuple((lo := data.draw(st.integers(0, 5)), lo + data.draw(st.integers(0, 5))) for _ in range(ndim))
    inside = {k: v for k, v in model.items() if all(a <= c < b for c, (a, b) in zip(k, box, strict=True))}
    assert as_model(filter_box(table, box)) == inside
    rows = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table))))
    chosen = compact_locations(take(table, rows))
    assert as_model(chosen) == {k: model[k] for k in (sorted(model)[i] for i in rows)}
    assert len(set(chosen.locations)) == len(chosen.locations)


@given(models(2, high=6))
def test_shifting_and_mapping_move_every_chunk(model: Model) -> None:
    table = build(model, 2)
    grid = (6, 2**32)
    moved = {(a - 1, b): v for (a, b), v in model.items() if 0 <= a - 1 < grid[0]}
    assert as_model(shift_coords(table, (-1, 0), grid)) == moved
    assert as_model(map_coords(table, lambda c: (c[0] - 1, c[1]) if 0 <= c[0] - 1 < grid[0] else None)) == moved
    assert as_model(map_coords(table, lambda c: (c[1], c[0]))) == {(b, a): v for (a, b), v in model.items()}


Step = tuple[str, Any]
points = st.tuples(st.integers(0, 5), st.integers(0, 5))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.tuples(points, refs())),
        st.tuples(st.just("delete"), points),
        st.tuples(st.just("table"), st.dictionaries(points, refs(deleted=True), max_size=12)),
        st.tuples(st.just("clip"), points),
        st.tuples(st.just("swap"), st.none()),
        st.tuples(st.just("pickle"), st.none()),
    ),
    max_size=20,
)


@settings(max_examples=150)
@given(steps)
def test_any_edit_sequence_equals_a_dict(sequence: list[Step]) -> None:
    import icefloe.session.change_set as module

    folding, module.FOLD_AT = module.FOLD_AT, 3
    try:
        _check_edit_sequence(sequence)
    finally:
        module.FOLD_AT = folding


def _check_edit_sequence(sequence: list[Step]) -> None:
    buffer, model = EditBuffer(2), {}
    for step, value in sequence:
        if step == "set":
            buffer.set(*value)
            model[value[0]] = value[1]
        elif step == "delete":
            buffer.delete(value)
            model[value] = DELETED
        elif step == "table":
            buffer.add_table(build(value, 2))
            model |= value
        elif step == "clip":
            buffer.clip(value)
            model = {k: v for k, v in model.items() if k[0] < value[0] and k[1] < value[1]}
        elif step == "swap":
            buffer.map_coords(lambda c: (c[1], c[0]))
            model = {(b, a): v for (a, b), v in model.items()}
        else:
            buffer = pickle.loads(pickle.dumps(buffer))
        for coords in [(0, 0), (1, 2), (5, 5)]:
            assert buffer.find(coords) == model.get(coords)
    assert as_model(buffer.copy().to_table()) == model
    assert len(buffer) == len(model)
    assert as_model(drop_tombstones(buffer.to_table())) == {k: v for k, v in model.items() if v != DELETED}


def test_locations_are_taken_in_every_columnar_form() -> None:
    texts = ["s3://a", "s3://b", "s3://a"]
    coords = [[2], [0], [1]]
    forms: list[Any] = [
        texts,
        np.array(texts),
        np.array(texts, dtype=object),
        pa.array(texts),
        pa.array(texts).dictionary_encode(),
        pa.chunked_array([texts[:1], texts[1:]]),
    ]
    tables = [table_from_columns(coords, kind=ChunkKind.VIRTUAL, length=4, location=form) for form in forms]
    for table in tables:
        assert table == tables[0]
        assert [r.location for _, r in table.rows()] == ["s3://b", "s3://a", "s3://a"]
    assert len(table_from_columns(coords, kind=ChunkKind.VIRTUAL, location="s3://one").locations) == 1


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"coords": [[-1]], "kind": ChunkKind.NATIVE, "object_id": [[0] * 12]}, "coords contains -1"),
        ({"coords": [[2**32]], "kind": ChunkKind.NATIVE, "object_id": [[0] * 12]}, "coords contains 4294967296"),
        ({"coords": [[0.5]], "kind": ChunkKind.NATIVE, "object_id": [[0] * 12]}, "whole numbers"),
        ({"coords": [[0]], "kind": ChunkKind.NATIVE}, "object_id"),
        ({"coords": [[3]], "kind": ChunkKind.VIRTUAL, "location": pa.nulls(1, pa.string())}, r"chunk \[3\] has no"),
        ({"coords": [[0]], "kind": ChunkKind.INLINE, "length": 3, "inline": b"ab"}, "outside of the inline bytes"),
        ({"coords": [[0]], "kind": 9}, "not a kind of chunk reference"),
        ({"coords": [[0], [1]], "kind": ChunkKind.VIRTUAL, "location": ["a"]}, "1 texts for 2"),
    ],
)
def test_columns_that_cannot_be_references_are_refused(columns: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        table_from_columns(columns.pop("coords"), **columns)


TEXTS = st.lists(st.one_of(st.none(), st.sampled_from(["", "a", "ü", "s3://b/x"]), st.text(max_size=3)), max_size=30)


@given(TEXTS, st.integers(-35, 35), st.integers(-35, 35))
def test_a_few_texts_are_the_same_column_as_an_arrow_array(texts: list[str | None], first: int, end: int) -> None:
    few, arrow = string_column(texts), StringColumn(text_array(texts))
    assert few == arrow and arrow == few and few == texts and arrow == texts
    assert list(few) == list(arrow) == texts and len(few) == len(arrow)
    assert few.null_count == arrow.null_count == texts.count(None)
    assert list(few[first:end]) == list(arrow[first:end]) == texts[first:end]
    assert [few[row] for row in range(len(few))] == [arrow[row] for row in range(len(arrow))] == texts
    assert few.arrow.equals(arrow.arrow)
    assert pickle.loads(pickle.dumps(few)) == few
    other = [*texts[1:], "other"]
    assert few != string_column(other) and arrow != string_column(other) and few != other


def test_a_text_that_is_not_valid_unicode_cannot_be_in_a_column() -> None:
    for texts in (["a", "\ud800"], [None, "\ud800"]):
        with pytest.raises(UnicodeEncodeError):
            string_column(texts)
    for wrong in (["a", 3], [None, 0], [b"a"]):
        with pytest.raises(InvalidInputError, match="not text"):
            string_column(wrong)


@given(
    st.lists(st.sampled_from(["a", "b", "ü", "", None, np.str_("a")]), max_size=20),
    st.integers(0, 9000),
    st.sampled_from([1, 7, 5000]),
)
def test_texts_have_the_same_codes_in_every_form(start: list[str | None], more: int, per_text: int) -> None:
    texts = start + [f"t{row // per_text}" for row in range(more)]
    codes, distinct = code_texts(texts, len(texts))
    assert [None if code < 0 else distinct[code] for code in codes.tolist()] == texts
    assert len(set(distinct)) == len(distinct) == len(set(texts) - {None})
    for form in (tuple(texts), np.array(texts, dtype=object), pa.array(texts, pa.string())):
        same_codes, same = code_texts(form, len(texts))
        assert same_codes.tolist() == codes.tolist() and same == distinct
    with pytest.raises(InvalidInputError, match="Give one for each"):
        code_texts(texts, len(texts) + 1)
