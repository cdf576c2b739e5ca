"""What a session may do, and where the bytes of a chunk can be."""

from __future__ import annotations

import enum


class SessionMode(enum.Enum):
    """What a session may do."""

    READONLY = 0
    WRITABLE = 1
    REARRANGE = 2

    readonly = READONLY
    writable = WRITABLE
    rearrange = REARRANGE


class ChunkType(enum.Enum):
    """Where the bytes of a chunk are."""

    UNINITIALIZED = 0
    NATIVE = 1
    VIRTUAL = 2
    INLINE = 3

    uninitialized = UNINITIALIZED
    native = NATIVE
    virtual = VIRTUAL
    inline = INLINE
