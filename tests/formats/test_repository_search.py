"""Single references of a manifest of the repository generation, found without decoding the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.repository_examples import manifests, native_table, rows_of
from icefloe.errors import FormatError
from icefloe.formats.repository import FORMAT
from icefloe.formats.repository import manifest_reader as manifest_search
from icefloe.formats.repository.manifest_reader import RowManifest, decode_manifest_body
from icefloe.formats.repository.manifest_writer import encode_manifest_body
from icefloe.ids import new_object_id
from icefloe.model.chunk_table import ChunkRef
from icefloe.model.snapshot import Manifest


@pytest.fixture(autouse=True)
def search_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_search, "_ARRAYS_PER_WHOLE", 1)


def find_all(opened: RowManifest, said: dict[bytes, list[tuple[Any, ChunkRef]]]) -> dict[bytes, Any]:
    return {node: opened.find(node, [coords for coords, _ in rows]) for node, rows in said.items()}


@pytest.mark.long
@given(manifests())
def test_what_is_found_is_what_decoding_says(manifest: Manifest) -> None:
    said = rows_of(manifest)
    opened = RowManifest(bytes(encode_manifest_body(manifest)))
    assert find_all(opened, said) == {node: [ref for _, ref in rows] for node, rows in said.items()}
    assert rows_of(opened.decode()) == said


@pytest.mark.long
@given(manifests(), st.binary(min_size=8, max_size=8), st.integers(0, 2**32 - 1))
def test_what_is_not_there_is_left_to_the_decoder(manifest: Manifest, other: bytes, index: int) -> None:
    opened = RowManifest(bytes(encode_manifest_body(manifest)))
    if other not in manifest.tables:
        assert opened.find(other, [(0,)]) is None
    for node, rows in rows_of(manifest).items():
        wanted = (index,) * manifest.tables[node].ndim
        if wanted not in dict(rows):
            assert opened.find(node, [rows[0][0], wanted]) is None
        assert opened.find(node, [(index,) * (manifest.tables[node].ndim + 1)]) is None


@pytest.mark.long
@given(manifests(), st.data())
def test_a_changed_byte_never_makes_it_find_something_else(manifest: Manifest, data: st.DataObject) -> None:
    body = bytearray(encode_manifest_body(manifest))
    index = data.draw(st.integers(0, len(body) - 1))
    body[index] ^= data.draw(st.integers(1, 255))
    opened = RowManifest(bytes(body))
    try:
        told = rows_of(decode_manifest_body(bytes(body)))
    except FormatError:
        told = {}
    for node, rows in rows_of(manifest).items():
        for coords, ref in rows:
            try:
                found = opened.find(node, [coords])
            except FormatError:
                continue
            assert found in (None, [ref], [dict(told.get(node, ())).get(coords)])


def test_a_repository_asks_for_one_array_of_many_without_decoding_the_others() -> None:
    tables = {index.to_bytes(8, "big"): native_table(3, seed=index) for index in range(200)}
    opened = FORMAT.open_manifest(FORMAT.encode_manifest(Manifest(new_object_id(), tables)))
    node = (77).to_bytes(8, "big")
    assert opened.find(node, [(0, 1)]) == [tables[node].row(1)]


def test_after_many_searches_the_decoder_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_search, "_ARRAYS_PER_WHOLE", 10)
    tables = {index.to_bytes(8, "big"): native_table(1, seed=index) for index in range(20)}
    opened = RowManifest(bytes(encode_manifest_body(Manifest(new_object_id(), tables))))
    answers = [opened.find(node, [(0, 0)]) for node in tables]
    assert [answer is not None for answer in answers] == [True, True] + [False] * 18
