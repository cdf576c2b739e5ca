"""The errors for chunks that cannot be read, in the words of who asked for them."""

from __future__ import annotations

from icefloe.chunks.source import Source
from icefloe.errors import (
    FormatError,
    IcefloeError,
    ObjectNotFoundError,
    PermissionDeniedError,
    VersionMismatchError,
    VirtualChunkError,
)
from icefloe.ids import encode_base32
from icefloe.model.chunk_table import ChunkKind, ChunkRef

_LARGEST_OFFSET = 2**62


def refuse_absurd(offset: int, length: int, where: str) -> None:
    """Refuse a reference no object can satisfy before anything is computed with it."""
    if offset >= _LARGEST_OFFSET or length >= _LARGEST_OFFSET:
        raise FormatError(
            f"{where or 'a chunk reference'} points at {length} bytes from offset {offset}; the manifest is damaged"
        )


def explain_failure(error: IcefloeError, ref: ChunkRef, source: Source, where: str) -> IcefloeError:
    """The error to raise in place of what the storage said."""
    wanted_by = f", wanted by {where}" if where else ""
    if ref.location is not None:
        return _explain_virtual(error, ref.location, source, wanted_by)
    if isinstance(error, ObjectNotFoundError):
        assert ref.object_id is not None
        chunk_id = encode_base32(ref.object_id)
        return FormatError(
            f"the chunk object {source.key} is missing from {source.storage.url}{wanted_by}; it was deleted, perhaps "
            "by a garbage collection with too short a grace period; `icefloe verify` lists what else is missing",
            chunk_id=chunk_id,
        )
    return error


def _explain_virtual(error: IcefloeError, location: str, source: Source, wanted_by: str) -> IcefloeError:
    if isinstance(error, ObjectNotFoundError):
        return VirtualChunkError(
            f"{location} is not in {source.storage.url}{wanted_by}; if it has moved, give its container a store that "
            "points to the new place",
            location=location,
        )
    if isinstance(error, VersionMismatchError):
        expected = f"ETag {source.etag}" if source.etag is not None else f"unchanged since {source.last_modified} s"
        return VirtualChunkError(
            f"{location} has changed since the reference was made (expected {expected}){wanted_by}; make the "
            "references to it anew",
            location=location,
        )
    if isinstance(error, PermissionDeniedError):
        return VirtualChunkError(
            f"{location} was refused to the credentials given for its container{wanted_by}: {error.message}",
            location=location,
        )
    return error


def short_read(ref: ChunkRef, source: Source, where: str, *, wanted: int, found: int) -> IcefloeError:
    """The error for an object that ends inside a chunk."""
    wanted_by = f", wanted by {where}" if where else ""
    message = (
        f"{ref.location or source.key} in {source.storage.url} has {found} of the {wanted} bytes that a chunk of "
        f"{ref.length} bytes at offset {ref.offset} needs{wanted_by}"
    )
    if ref.location is not None:
        return VirtualChunkError(f"{message}; the file was truncated or replaced", location=ref.location)
    return FormatError(f"{message}; the object is truncated", chunk_id=encode_base32(ref.object_id or b""))


def undecodable(ref: ChunkRef | None, where: str, key: str, error: Exception) -> IcefloeError:
    """The error for a chunk whose bytes its codecs refuse; `key` is the object it is in.

    No reference stands for a chunk that waits in a session.
    """
    said = f"the codecs of the array cannot decode {where} ({type(error).__name__}: {error})"
    if ref is None:
        return FormatError(f"{said}; it was written in this session and is not committed")
    if ref.kind is ChunkKind.INLINE:
        return FormatError(f"{said}; its {ref.length} bytes are in its manifest and are damaged; write the chunk again")
    part = f"its {ref.length} bytes from offset {ref.offset}"
    if ref.location is not None:
        return VirtualChunkError(
            f"{said}; {part} of {ref.location} are damaged, or are not what the reference was made for; check the file "
            "and make the references to it anew",
            location=ref.location,
        )
    return FormatError(
        f"{said}; {part} of {key} are damaged; `icefloe verify --decode` lists what else is",
        chunk_id=encode_base32(ref.object_id or b""),
    )
