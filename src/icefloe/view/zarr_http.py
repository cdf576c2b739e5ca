"""Zarr over HTTP: the keys of a revision as a plain read-only Zarr v3 store, with ranges, ETags and cache headers.

Groups have consolidated metadata in their zarr.json, because HTTP cannot list a folder. The ETag of a chunk is made
of its reference, so that a chunk that later commits did not change keeps its ETag, and a conditional request reads no
chunk.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from icefloe.blocking import run_blocking
from icefloe.errors import InvalidInputError
from icefloe.model.chunk_table import ChunkRef
from icefloe.model.snapshot import ArrayNode, GroupNode
from icefloe.model.zarr_document import DocumentKey, parse_key
from icefloe.session.session import Session
from icefloe.view.revisions import Revision, ViewedRepository

MOST_BYTES = 1 << 30
"""The largest answer. Clients ask for larger chunks in ranges."""
_MOST_CONSOLIDATED = 20_000
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers and body of a response. A body of None is sent as an empty one."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


def read_key(
    viewed: ViewedRepository, revision: Revision, key: str, headers: dict[str, str], *, head: bool = False
) -> Answer:
    """Answer a GET or HEAD request for a key."""
    session = viewed.session(revision.snapshot_id)
    caching = "no-cache" if revision.moves else "private, max-age=31536000, immutable"
    found = _find(viewed, session, key)
    if found is None:
        # A chunk that was never written may be written in the next commit.
        return Answer(404, {"cache-control": caching, "content-type": "text/plain; charset=utf-8"}, b"no such key\n")
    content_type = "application/json" if key.rpartition("/")[2] == "zarr.json" else "application/octet-stream"
    common = {
        "etag": found.etag,
        "cache-control": caching,
        "accept-ranges": "bytes",
        "content-type": content_type,
        "icefloe-snapshot": session.snapshot_id,
    }
    if found.etag in _etags(headers.get("if-none-match", "")) or headers.get("if-none-match", "").strip() == "*":
        return Answer(304, common)
    wanted = headers.get("range")
    if wanted is not None and headers.get("if-range", found.etag) != found.etag:
        wanted = None
    bounds = None if wanted is None else _parse_range(wanted, found.length)
    if bounds is not None and bounds[0] >= bounds[1]:
        return Answer(416, {**common, "content-range": f"bytes */{found.length}"})
    first, end = bounds or (0, found.length)
    if end - first > MOST_BYTES:
        raise InvalidInputError(f"{key!r} has {end - first:,} bytes. Ask for ranges of at most {MOST_BYTES:,} bytes")
    common["content-length"] = str(end - first)
    if bounds is not None:
        common["content-range"] = f"bytes {first}-{end - 1}/{found.length}"
    body = b"" if head else found.read(session, key, None if bounds is None else bounds)
    return Answer(200 if bounds is None else 206, common, body)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a key names: a document, or the reference of a chunk."""

    etag: str
    length: int
    document: bytes | None = None

    def read(self, session: Session, key: str, bounds: tuple[int, int] | None) -> bytes:
        if self.document is not None:
            return self.document if bounds is None else self.document[bounds[0] : bounds[1]]
        data = run_blocking(session.keyspace.fetch(key, *(bounds or ())))
        return b"" if data is None else bytes(data)


def _find(viewed: ViewedRepository, session: Session, key: str) -> _Found | None:
    chunk = session.keyspace.find_chunk(key)
    if chunk is not None:
        ref = run_blocking(session.state.find_chunk(*chunk))
        return _Found(_etag(repr(_identity(ref)).encode()), ref.length) if isinstance(ref, ChunkRef) else None
    parsed = parse_key(key)
    if not isinstance(parsed, DocumentKey):
        return None
    document = viewed.facts.get(("document", session.snapshot_id, parsed.path), lambda: _document(session, parsed.path))
    return None if document is None else _Found(_etag(document), len(document), document)


def _identity(ref: ChunkRef) -> tuple[Any, ...]:
    return ref.kind, ref.object_id, ref.location, ref.etag, ref.last_modified, ref.offset, ref.length, ref.data


def _etag(data: bytes) -> str:
    return f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"'


def _etags(header: str) -> set[str]:
    return {each.strip().removeprefix("W/") for each in header.split(",")}


def _parse_range(text: str, length: int) -> tuple[int, int] | None:
    """[first, end) of a range. None for what is not a single range, which is answered as a whole."""
    found = _RANGE.fullmatch(text.strip())
    if found is None or found[0] == "bytes=-":
        return None
    if not found[1]:
        return max(0, length - int(found[2])) if int(found[2]) else length, length
    return int(found[1]), min(length, int(found[2]) + 1) if found[2] else length


def _document(session: Session, path: str) -> bytes | None:
    """The zarr.json of a node. A group has the documents of all nodes below it, unless there are too many."""
    node = session.state.tree.find(path)
    if node is None and path == "/":
        node = GroupNode(b"", "/", b'{"zarr_format":3,"node_type":"group","attributes":{}}')
        document: bytes | None = node.document
    elif node is None:
        return None
    else:
        document = run_blocking(session.state.fetch_document(path))
    if document is None or isinstance(node, ArrayNode):
        return document
    below = [each for each in session.state.tree.subtree(path) if each.path != path]
    if len(below) > _MOST_CONSOLIDATED:
        return document
    start = len(path.rstrip("/")) + 1
    metadata = {}
    for each in below:
        own = run_blocking(session.state.fetch_document(each.path))
        if own is not None:
            metadata[each.path[start:]] = json.loads(own)
    whole = json.loads(document)
    whole["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": metadata}
    return json.dumps(whole, separators=(",", ":")).encode()
