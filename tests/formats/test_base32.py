"""Crockford base32 of ids, one by one and in columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.ids import decode_base32, decode_base32_column, encode_base32, encode_base32_column, text_length


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (bytes(range(8)), "000G40R40M30E"),
        (bytes(range(12)), "000G40R40M30E209185G"),
        (bytes(range(16)), "000G40R40M30E209185GR38E1W"),
        (bytes.fromhex("0b1cc8d6787580f0e33a6534"), "1CECHNKREP0F1RSTCMT0"),
    ],
)
def test_texts_are_those_of_the_specification(data: bytes, text: str) -> None:
    assert encode_base32(data) == text
    assert decode_base32(text, len(data)) == data


@given(st.binary(max_size=20))
def test_text_and_bytes_go_both_ways(data: bytes) -> None:
    text = encode_base32(data)
    assert len(text) == text_length(len(data))
    if data:
        assert decode_base32(text, len(data)) == decode_base32(text.lower(), len(data)) == data


@given(st.integers(1, 16).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=1, max_size=9)))
def test_columns_agree_with_single_ids(rows: list[bytes]) -> None:
    width = len(rows[0])
    column = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), width)
    text = encode_base32_column(column)
    assert [row.tobytes().decode() for row in text] == [encode_base32(row) for row in rows]
    assert np.array_equal(decode_base32_column(text, width), column)


def test_aliases_are_accepted() -> None:
    assert decode_base32("oOiIlL0000000", 8) == decode_base32("0011110000000", 8)


@pytest.mark.parametrize("text", ["U" * 13, "u" * 13, "_" * 13, " " * 13, "+000000000000", "é" * 13, "٣" * 13, "0", ""])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        decode_base32(text, 8)


@pytest.mark.parametrize("symbol", ["U", "!", "\xe9", "\0"])
def test_a_column_with_other_characters_is_refused(symbol: str) -> None:
    column = np.full((3, 20), ord("0"), dtype=np.uint8)
    column[1, 7] = ord(symbol)
    with pytest.raises(InvalidInputError):
        decode_base32_column(column, 12)


def test_empty_columns_stay_empty() -> None:
    assert encode_base32_column(np.zeros((0, 12), dtype=np.uint8)).shape == (0, 20)
    assert decode_base32_column(np.zeros((0, 20), dtype=np.uint8), 12).shape == (0, 12)
