"""How much memory the values of MessagePack and JSON would take, estimated before they are made.

One byte of a body can become a Python object of a hundred. A file may become values of 256 MiB, or of 1,000 times its
stored size. A body that is so small that it cannot pass this is not looked at.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError

FREE_BYTES: Final = 256 << 20
RATIO: Final = 1000
DOCUMENT_BYTES: Final = 512 << 20
"""What one JSON document inside a file may become."""

_MOST_PER_BYTE: Final = 128
"""No encoding of a value makes more of one byte; most have small maps and empty arrays."""
_BLOCK_BYTES: Final = 1 << 20
_SLOT, _ENTRY, _CONTAINER, _SMALL_MAP, _TEXT, _NUMBER, _EXTENSION = 9, 150, 80, 240, 64, 40, 160
_JSON_BYTES: Final = {b"[": 120, b"{": 240, b",": 48, b":": 64, b'"': 32}


def check_messagepack(body: bytes | memoryview, stored_bytes: int, what: str) -> None:
    """FormatError when the values of a body would take far more memory than the stored file makes believable."""
    allowed = max(FREE_BYTES, RATIO * stored_bytes)
    if len(body) * _MOST_PER_BYTE <= allowed:
        return
    estimate = estimate_messagepack(body)
    if estimate > allowed:
        raise FormatError(
            f"a {what} file of {stored_bytes} bytes would become values of about {estimate >> 20} MiB, more than the "
            f"{allowed >> 20} that are allowed"
        )


def is_believable_messagepack(body: bytes | memoryview, stored_bytes: int) -> bool:
    """Whether a reader would take a body that is stored in so many bytes."""
    allowed = max(FREE_BYTES, RATIO * stored_bytes)
    return len(body) * _MOST_PER_BYTE <= allowed or estimate_messagepack(body) <= allowed


def check_json(document: bytes | str, what: str) -> None:
    """FormatError when the values of one JSON document would take more than DOCUMENT_BYTES."""
    if len(document) * _JSON_BYTES[b"["] <= DOCUMENT_BYTES:
        return
    estimate = estimate_json(document)
    if estimate > DOCUMENT_BYTES:
        raise FormatError(
            f"{what}: JSON of {len(document)} bytes would become values of about {estimate >> 20} MiB, more than the "
            f"{DOCUMENT_BYTES >> 20} that are allowed"
        )


def estimate_messagepack(body: bytes | memoryview) -> int:
    """At least the bytes that the values of a body take, roughly.

    Every byte is counted as if it began a value, so that nothing has to be parsed. Text of ASCII begins none that
    takes memory: small numbers are shared by Python, and the places for them are counted with their container.
    """
    data = np.frombuffer(body, dtype=np.uint8)
    total = len(data)
    for start in range(0, len(data), _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES]
        total += int(np.bincount(block, minlength=256) @ _COSTS)
        for head, width, least, cost in _LONG_CONTAINERS:
            at = np.flatnonzero(block == head) + start
            total += cost * _declared(data, at, width, least)
        if total >= _MOST_PER_BYTE * len(data):
            return _MOST_PER_BYTE * len(data)
    return total


def _declared(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], width: int, least: int) -> int:
    """How many members containers say that they have, where there are bytes for them."""
    at = at[at + width < len(data)]
    counts = np.zeros(len(at), dtype=np.int64)
    for byte in range(1, width + 1):
        counts = counts << 8 | data[at + byte]
    return int(np.minimum(counts, (len(data) - at) // least).sum())


def _costs() -> npt.NDArray[np.int64]:
    costs = np.zeros(256, dtype=np.int64)
    members = np.arange(16)
    costs[0x80:0x90] = np.where(members, _SMALL_MAP + _ENTRY // 2 * members, _CONTAINER)
    costs[0x90:0xA0] = _CONTAINER + _SLOT * members
    costs[0xA0:0xC0] = _TEXT
    costs[0xC4:0xC7] = _TEXT
    costs[0xC7:0xCA] = _EXTENSION
    costs[0xCA:0xD4] = _NUMBER
    costs[0xD4:0xD9] = _EXTENSION
    costs[0xD9:0xDC] = _TEXT
    costs[0xDC:0xE0] = _CONTAINER
    costs[0xE0:0xFB] = _NUMBER
    return costs


_COSTS = _costs()
_LONG_CONTAINERS = ((0xDC, 2, 1, _SLOT), (0xDD, 4, 1, _SLOT), (0xDE, 2, 2, _ENTRY), (0xDF, 4, 2, _ENTRY))


def estimate_json(document: bytes | str) -> int:
    """At least the bytes that the values of a document take, roughly: counted by its punctuation."""
    if isinstance(document, str):
        return len(document) + sum(cost * document.count(mark.decode()) for mark, cost in _JSON_BYTES.items())
    return len(document) + sum(cost * document.count(mark) for mark, cost in _JSON_BYTES.items())
