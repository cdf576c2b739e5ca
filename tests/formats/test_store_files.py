"""Snapshot, manifest, attributes and reference files of `store` say what they were given and fit their schemas."""

from __future__ import annotations

import contextlib
import datetime as dt
import json

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.early_generations import METADATA, TIMES, manifests, object_ids, snapshots

from icefloe.errors import FormatError, InvalidInputError, UnsupportedError
from icefloe.formats.store import FORMAT
from icefloe.formats.store.manifest import find_native_tables
from icefloe.formats.store.snapshot import (
    Reference,
    decode_reference,
    encode_reference,
    find_sequence,
    load_object_id,
    load_schema,
    sequence_name,
)
from icefloe.ids import encode_base32
from icefloe.model.chunk_table import ChunkKind, ChunkRef, ChunkTable, table_from_rows
from icefloe.model.snapshot import Manifest, Snapshot, TransactionLog

NODE = (3).to_bytes(8, "big")
NAME = encode_base32(bytes(range(16)))
CHECKERS = {
    name: jsonschema.Draft7Validator(load_schema(name), format_checker=jsonschema.FormatChecker())  # type: ignore[arg-type]
    for name in ("reference", "snapshot", "manifest")
}


def check(name: str, data: bytes) -> None:
    CHECKERS[name].validate(json.loads(data, parse_constant=lambda text: pytest.fail(f"{text} is not JSON")))


@given(snapshots(16, history=True))
def test_a_snapshot_comes_back_and_fits_the_schema(snapshot: Snapshot) -> None:
    data = FORMAT.encode_snapshot(snapshot)
    check("snapshot", data)
    assert FORMAT.decode_snapshot(data) == snapshot


@given(manifests(16, checksums=True))
def test_a_manifest_comes_back_and_fits_the_schema(manifest: Manifest) -> None:
    data = FORMAT.encode_manifest(manifest)
    check("manifest", data)
    found = FORMAT.decode_manifest(data)
    assert found.id == manifest.id
    assert found.tables == manifest.tables


def test_entries_of_a_manifest_are_in_numeric_order_under_readable_keys() -> None:
    rows = [((i, j), ChunkRef(ChunkKind.INLINE, 0, 2, data=b"\x00\xff")) for i in (2, 10) for j in (9, 11)]
    data = FORMAT.encode_manifest(Manifest(NAME, {NODE: table_from_rows(rows, 2)}))
    document = json.loads(data)
    assert list(document["chunks"]) == ["3/2/9", "3/2/11", "3/10/9", "3/10/11"]
    assert document["chunks"]["3/2/9"] == {"Inline": [0, 255]}
    single = table_from_rows([((), ChunkRef(ChunkKind.NATIVE, 5, 7, object_id=bytes(range(16))))], 0)
    assert json.loads(FORMAT.encode_manifest(Manifest(NAME, {NODE: single}))) == {
        "id": list(range(16)),
        "chunks": {"3": {"Ref": {"id": list(range(16)), "offset": 5, "length": 7}}},
    }


@pytest.mark.long
def test_one_huge_inline_chunk_does_not_blow_up_its_neighbours() -> None:
    rows = [((i,), ChunkRef(ChunkKind.INLINE, 0, 1, data=b"x")) for i in range(20_000)]
    rows[7] = ((7,), ChunkRef(ChunkKind.INLINE, 0, 1_000_000, data=bytes(1_000_000)))
    manifest = Manifest(NAME, {NODE: table_from_rows(rows, 1)})
    assert FORMAT.decode_manifest(FORMAT.encode_manifest(manifest)).tables == manifest.tables


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=10).map(str.encode), max_size=4))
def test_attributes_come_back_byte_for_byte_whatever_text_they_are(rows: list[bytes]) -> None:
    known = [b'{"a": NaN}', b'{ "b" :\n[1, 2.50] }', b"{}", *rows]
    data = FORMAT.encode_attributes(known)
    json.loads(data, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert FORMAT.decode_attributes(data) == known


@given(object_ids(16), TIMES, METADATA)
def test_a_reference_comes_back_and_fits_the_schema(
    name: str, time: dt.datetime, properties: dict[str, object]
) -> None:
    reference = Reference(name, time, properties)
    check("reference", encode_reference(reference))
    assert decode_reference(encode_reference(reference)) == reference


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "ZZZZZZZZ"), (1, "ZZZZZZZY"), (100, "ZZZZZZWV"), (1099511627775, "00000000")],
)
def test_branch_files_are_named_so_that_the_newest_sorts_first(number: int, name: str) -> None:
    assert sequence_name(number) == name + ".json"
    assert find_sequence(name + ".json") == number
    assert find_sequence(name.lower() + "?.json") is None


def test_ids_are_read_as_integers_base32_and_hexadecimal() -> None:
    data = bytes(range(16))
    assert load_object_id(list(data)) == load_object_id(NAME) == load_object_id(data.hex()) == NAME
    for wrong in ([1] * 15, [256] * 16, [True] * 16, "x", "!" * 26, None, {"a": 1}):
        with pytest.raises(FormatError):
            load_object_id(wrong)
    rows = {"3": {"Ref": {"id": NAME, "offset": 0, "length": 1}}}
    table = FORMAT.decode_manifest(json.dumps({"chunks": rows}).encode()).tables[NODE]
    assert table.row(0).object_id == data


def test_histories_of_others_are_sorted_by_time_and_linked() -> None:
    snapshot = Snapshot(NAME, None, dt.datetime(2024, 9, 18, tzinfo=dt.UTC), "m", {}, {}, {})
    document = json.loads(FORMAT.encode_snapshot(snapshot))
    del document["icefloe"]
    ids = [[number] * 16 for number in range(3)]
    document["short_term_history"] = [
        {"id": ids[number], "message": str(number), "written_at": f"2024-09-1{number}T00:00:00.123456789Z"}
        for number in range(3)
    ]
    document["total_parents"] = document["short_term_parents"] = 3
    found = FORMAT.decode_snapshot(json.dumps(document).encode())
    assert [info.message for info in found.history] == ["2", "1", "0"]
    assert found.parent_id == found.history[0].id
    assert found.history[0].parent_id == found.history[1].id


@pytest.mark.parametrize(
    "chunks",
    [
        {"x": {"Inline": []}},
        {"3/": {"Inline": []}},
        {"/3": {"Inline": []}},
        {"": {"Inline": []}},
        {"3/01": {"Inline": []}},
        {"3/4294967296": {"Inline": []}},
        {"3/99999999999": {"Inline": []}},
        {"3\n4": {"Inline": []}},
        {"٣": {"Inline": []}},
        {"3": {}},
        {"3": {"Ref": None}},
        {"3": {"Other": 1}},
        {"3": {"Inline": [256]}},
        {"3": {"Inline": [-1]}},
        {"3": {"Inline": [1.0]}},
        {"3": {"Inline": [[1]]}},
        {"3": {"Inline": 5}},
        {"3": {"Inline": ["1"]}},
        {"3/1": {"Inline": []}, "3/1/1": {"Inline": []}},
        {"3": {"Ref": {"id": [1] * 15, "offset": 0, "length": 1}}},
        {"3": {"Ref": {"id": [1] * 16, "offset": -1, "length": 1}}},
        {"3": {"Ref": {"id": [1] * 16, "offset": 2**64, "length": 1}}},
        {"3": {"Ref": {"id": [1] * 16, "offset": 0}}},
        {"3": {"Virtual": {"location": 5, "offset": 0, "length": 1}}},
        {"3": {"Virtual": {"location": "s", "offset": 0, "length": 1, "last_modified": 2**32}}},
        {"3": {"Inline": [], "Virtual": {"location": "s", "offset": 0, "length": 1}}},
    ],
)
def test_wrong_entries_of_a_manifest_are_refused(chunks: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        FORMAT.decode_manifest(json.dumps({"chunks": chunks}, ensure_ascii=False).encode())


@settings(max_examples=30)
@given(snapshots(16, history=True), manifests(16), st.data())
def test_broken_files_give_format_errors_only(snapshot: Snapshot, manifest: Manifest, data: st.DataObject) -> None:
    reference = Reference(NAME, snapshot.written_at)
    for whole, decode in (
        (FORMAT.encode_snapshot(snapshot), FORMAT.decode_snapshot),
        (FORMAT.encode_manifest(manifest), FORMAT.decode_manifest),
        (FORMAT.encode_attributes([b'{"a":1}', b"{}"]), FORMAT.decode_attributes),
        (encode_reference(reference), decode_reference),
    ):
        with pytest.raises(FormatError):
            decode(whole[: data.draw(st.integers(0, len(whole) - 1))])  # type: ignore[operator]
        flipped = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 3))):
            flipped[data.draw(st.integers(0, len(whole) - 1))] = data.draw(
                st.sampled_from(b'0123456789"[]{}:,-nulA\xff')
            )
        with contextlib.suppress(FormatError):
            decode(bytes(flipped))  # type: ignore[operator]


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b"5", b"[" * 100_000, b'{"chunks":' + b"[" * 100_000])
def test_json_of_another_shape_gives_format_errors(data: bytes) -> None:
    for decode in (FORMAT.decode_snapshot, FORMAT.decode_manifest, decode_reference):
        with pytest.raises(FormatError):
            decode(data)


@pytest.mark.long
@given(snapshots(16, history=True), st.data())
def test_a_snapshot_with_a_member_of_another_type_is_refused_or_read(snapshot: Snapshot, data: st.DataObject) -> None:
    document = json.loads(FORMAT.encode_snapshot(snapshot))
    place = document
    while True:
        key = data.draw(st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[key] = data.draw(
        st.sampled_from([None, -1, 2**70, 1.5, "x", [], {}, [[]], {"Ref": {}}, {"Inline": []}, True])
    )
    with contextlib.suppress(FormatError):
        FORMAT.decode_snapshot(json.dumps(document).encode())


def test_what_the_generation_cannot_hold_is_refused() -> None:
    short = table_from_rows([((), ChunkRef(ChunkKind.NATIVE, 0, 1, object_id=b"x" * 12))], 0)
    with pytest.raises(InvalidInputError, match="needs 16"):
        FORMAT.encode_manifest(Manifest(NAME, {NODE: short}))
    with pytest.raises(InvalidInputError, match=r"2\*\*32"):
        FORMAT.encode_manifest(Manifest(NAME, {b"\xff" * 8: short}))
    with pytest.raises(UnsupportedError):
        FORMAT.encode_transaction_log(NAME, TransactionLog())


@given(
    st.dictionaries(
        st.integers(1, 9),
        st.integers(0, 2).flatmap(
            lambda rank: st.dictionaries(
                st.tuples(*[st.integers(0, 12) | st.integers(0, 2**32 - 1)] * rank),
                st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2000), st.binary(min_size=16, max_size=16)),
                min_size=1,
                max_size=6,
            ).map(
                lambda rows: table_from_rows(
                    [(c, ChunkRef(ChunkKind.NATIVE, o, n, object_id=i)) for c, (o, n, i) in rows.items()],
                    len(next(iter(rows))),
                )
            )
        ),
        min_size=1,
        max_size=3,
    ),
    st.data(),
)
def test_the_fast_and_the_general_decoder_agree(held: dict[int, ChunkTable], data: st.DataObject) -> None:
    manifest = Manifest(NAME, {number.to_bytes(8, "big"): held[number] for number in sorted(held)})
    text = FORMAT.encode_manifest(manifest)
    fast = find_native_tables(text)
    small = all(int(table.offset.max()) < 10**19 for table in held.values())
    assert (fast is not None) == small
    assert FORMAT.decode_manifest(text).tables == manifest.tables
    spaced = json.dumps(json.loads(text)).encode()
    assert find_native_tables(spaced) is None
    assert FORMAT.decode_manifest(spaced).tables == manifest.tables
    flipped = bytearray(text)
    flipped[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from(b'0123456789"[]{}:,/-e.A'))
    found = find_native_tables(bytes(flipped))
    if found is not None:
        spaced = json.dumps(json.loads(bytes(flipped))).encode()
        assert FORMAT.decode_manifest(spaced) == Manifest(encode_base32(found[0]), found[1])


def test_a_large_manifest_comes_back() -> None:
    count = 50_000
    coords = np.stack([np.arange(count) // 100, np.arange(count) % 100], axis=1).astype(np.uint32)
    rng = np.random.default_rng(1)
    table = ChunkTable(
        coords,
        np.full(count, ChunkKind.NATIVE, dtype=np.uint8),
        np.arange(count, dtype=np.uint64) * 10**9,
        rng.integers(1, 2**40, count).astype(np.uint64),
        rng.integers(0, 256, (count, 16), dtype=np.uint8),
    )
    data = FORMAT.encode_manifest(Manifest(NAME, {NODE: table}))
    json.loads(data)
    assert FORMAT.decode_manifest(data).tables == {NODE: table}
