"""Object ids and node ids, and their Crockford base32 text, one by one and in columns."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.blocking import random_bytes
from icefloe.errors import InvalidInputError

NodeId: TypeAlias = bytes
"""8 bytes; a node keeps its id as long as it lives, also when it is moved."""
ObjectId: TypeAlias = str
"""Base32 text of a snapshot, manifest or attributes id; chunk ids stay raw bytes in columns."""

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
NODE_ID_BYTES = 8
OBJECT_ID_BYTES = 12

_SYMBOLS = np.frombuffer(ALPHABET.encode(), dtype=np.uint8)
_INVALID = 255
_VALUES = np.full(256, _INVALID, dtype=np.uint8)
for _value, _symbol in enumerate(ALPHABET):
    _VALUES[ord(_symbol)] = _VALUES[ord(_symbol.lower())] = _value
for _alias, _meaning in (("O", 0), ("I", 1), ("L", 1)):
    _VALUES[ord(_alias)] = _VALUES[ord(_alias.lower())] = _meaning

# The digits that `int` knows for base 32; "U" stands for nothing.
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_TO_DIGITS = {code: _DIGITS[value] if (value := int(_VALUES[code])) != _INVALID else "!" for code in range(128)}
_PAIRS = [first + second for first in ALPHABET for second in ALPHABET]

# Two characters at a time: 10 bits to a pair of symbols, and back. Bit 10 of a value marks a pair that is not base32.
_INVALID_PAIR = np.uint16(1024)
_PAIR_SYMBOLS = np.stack([np.repeat(_SYMBOLS, 32), np.tile(_SYMBOLS, 32)], axis=1).reshape(-1).view(np.uint16)
_FIRST, _SECOND = np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2).T
_PAIR_VALUES = np.where(
    (_VALUES[_FIRST] == _INVALID) | (_VALUES[_SECOND] == _INVALID),
    _INVALID_PAIR,
    _VALUES[_FIRST].astype(np.uint16) << 5 | _VALUES[_SECOND],
).astype(np.uint16)


_FEW_IDS = 16
"""Below this many ids, one after the other is as quick as all at once."""


def text_length(byte_count: int) -> int:
    """How many characters the base32 text of that many bytes has."""
    return -(-byte_count * 8 // 5)


def encode_base32(data: bytes) -> str:
    """Crockford base32 of bytes, zero bits appended on the right."""
    length = text_length(len(data))
    even = length + length % 2
    number = int.from_bytes(data, "big") << (even * 5 - len(data) * 8)
    text = "".join([_PAIRS[(number >> shift) & 1023] for shift in range((even - 2) * 5, -10, -10)])
    return text[:length]


@functools.lru_cache(maxsize=1024)
def encode_node_id(node_id: NodeId) -> bytes:
    """The text of a node id, as ASCII. The files of one commit and of the next contain the same ids."""
    return encode_base32(node_id).encode()


def decode_base32(text: str, byte_count: int) -> bytes:
    """The bytes of a base32 text; lower case and the aliases O, I, L are accepted."""
    if len(text) != text_length(byte_count):
        raise InvalidInputError(
            f"{text!r:.80} is not an id: {len(text)} characters, expected {text_length(byte_count)}"
        )
    if not (text.isascii() and text.isalnum()):
        raise InvalidInputError(f"{text!r:.80} is not an id: only letters and digits are base32 characters")
    try:
        number = int(text.translate(_TO_DIGITS), 32)
    except ValueError as error:
        raise InvalidInputError(f"{text!r:.80} is not an id: U is not a base32 character") from error
    return (number >> (len(text) * 5 - byte_count * 8)).to_bytes(byte_count, "big")


def is_object_id(text: str, byte_count: int = OBJECT_ID_BYTES) -> bool:
    """Whether a text is the base32 form of that many bytes."""
    try:
        return len(decode_base32(text, byte_count)) == byte_count
    except InvalidInputError:
        return False


def encode_base32_column(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Base32 text of many ids at once: uint8[n, bytes] to ASCII uint8[n, characters]."""
    count, width = data.shape
    length = text_length(width)
    if count < _FEW_IDS:
        text = "".join([encode_base32(row.tobytes()) for row in data])
        return np.frombuffer(bytearray(text, "ascii"), dtype=np.uint8).reshape(count, length)
    # Five bytes are eight characters: each block is four look-ups of two characters.
    blocks = -(-width // 5)
    pairs = np.empty((count, blocks * 4), dtype=np.uint16)
    for block in range(blocks):
        number = np.zeros(count, dtype=np.uint64)
        for index in range(block * 5, block * 5 + 5):
            number <<= np.uint64(8)
            if index < width:
                number |= data[:, index]
        for pair in range(4):
            if (block * 4 + pair) * 2 < length:
                pairs[:, block * 4 + pair] = _PAIR_SYMBOLS[(number >> np.uint64(30 - 10 * pair)) & np.uint64(1023)]
    return pairs.view(np.uint8)[:, :length]


def encode_base32_all(ids: Sequence[bytes]) -> list[str]:
    """The texts of ids of one length."""
    if len(ids) < _FEW_IDS:
        return [encode_base32(each) for each in ids]
    column = np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(len(ids), -1)
    text = encode_base32_column(column)
    width = text.shape[1]
    joined = text.tobytes().decode("ascii")
    return [joined[start : start + width] for start in range(0, len(joined), width)]


def decode_base32_column(text: npt.NDArray[np.uint8], byte_count: int) -> npt.NDArray[np.uint8]:
    """Many ids at once: ASCII uint8[n, characters] to uint8[n, bytes]."""
    count, length = text.shape
    if length != text_length(byte_count):
        raise InvalidInputError(f"ids of {byte_count} bytes have {text_length(byte_count)} characters, not {length}")
    if count < _FEW_IDS:
        return _decode_few(text, byte_count)
    blocks = -(-length // 8)
    padded = np.full((count, blocks * 8), ord("0"), dtype=np.uint8)
    padded[:, :length] = text
    pairs = padded.view(np.uint16)
    result = np.empty((count, blocks * 8), dtype=np.uint8)
    numbers = result.view(">u8")
    seen = np.uint16(0)
    for block in range(blocks):
        number = np.zeros(count, dtype=np.uint64)
        for pair in range(4):
            values = _PAIR_VALUES[pairs[:, block * 4 + pair]]
            seen |= np.bitwise_or.reduce(values, initial=np.uint16(0))
            number <<= np.uint64(10)
            number |= values
        numbers[:, block] = number
    if seen >= _INVALID_PAIR:
        raise InvalidInputError("an id column holds characters that are not base32")
    # Eight-byte numbers hold five bytes each, in their low end.
    return result.reshape(count, blocks, 8)[:, :, 3:].reshape(count, blocks * 5)[:, :byte_count]


def _decode_few(text: npt.NDArray[np.uint8], byte_count: int) -> npt.NDArray[np.uint8]:
    try:
        ids = [decode_base32(row.tobytes().decode("ascii"), byte_count) for row in text]
    except UnicodeDecodeError as error:
        raise InvalidInputError("an id column holds characters that are not base32") from error
    return np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(len(ids), byte_count)


def new_object_id(byte_count: int = OBJECT_ID_BYTES) -> ObjectId:
    """A fresh random object id as text."""
    return encode_base32(random_bytes(byte_count))


def new_chunk_id(byte_count: int = OBJECT_ID_BYTES) -> bytes:
    """A fresh random chunk id as bytes."""
    return random_bytes(byte_count)


def new_node_id() -> NodeId:
    """A fresh random node id."""
    return random_bytes(NODE_ID_BYTES)
