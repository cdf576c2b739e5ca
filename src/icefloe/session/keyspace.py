"""A session seen as Zarr keys: what a key names, and which keys there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from icefloe.chunks.reader import NOT_IN_MEMORY, LocatedChunk, LocatedChunks, NotInMemory
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.model.chunk_table import ChunkRef, Coords, tombstones
from icefloe.model.snapshot import ArrayNode, Extents, Node
from icefloe.model.zarr_document import (
    DOCUMENT,
    ChunkKey,
    DocumentKey,
    KeyEncoding,
    document_key,
    key_encoding,
    parse_key,
)
from icefloe.session.session_state import SessionState, SessionView, Tree
from icefloe.storage.contract import Buffer

Chunk: TypeAlias = tuple[ArrayNode, Coords]
_NO_ARRAY = b""
"""The id of no array."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The array whose chunk was last asked for, and the part of its keys before `/c/`."""

    start: str
    node: ArrayNode


class KeySpace:
    """Zarr's view of a workspace: documents and chunks by key."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._known: _Known | None = None

    def find_chunk(self, key: str) -> Chunk | None:
        """The array and coordinates that a key names, or None when it names no chunk of an existing array."""
        # Zarr asks for chunk after chunk of one array: the prefix before the coordinates is looked up once.
        start, _, rest = key.partition("/c/")
        known = self._known
        if known is not None and known.start == start and known.node is self._state.tree.find(known.node.path):
            coords = _coordinates(rest)
            if coords is not None and len(coords) == len(known.node.shape):
                return known.node, coords
        parsed = parse_key(key)
        if isinstance(parsed, DocumentKey):
            return None
        if isinstance(parsed, ChunkKey):
            node = self._state.tree.find_array(parsed.path)
            if node is not None and len(parsed.coords) == len(node.shape) and key_encoding(node.document).is_default:
                if "/" + start == node.path:
                    self._known = _Known(start, node)
                return node, parsed.coords
        return self._find_other_chunk(key)

    def _find_other_chunk(self, key: str) -> Chunk | None:
        """A chunk of an array whose key encoding is not the default one."""
        above = "/" + key
        while above != "/":
            above = above.rpartition("/")[0] or "/"
            node = self._state.tree.find_array(above)
            if node is not None:
                coords = key_encoding(node.document).parse(_below(node, key), len(node.shape))
                return None if coords is None else (node, coords)
        return None

    async def fetch(self, key: str, start: int | None = None, end: int | None = None) -> Buffer | None:
        """The bytes of a key, or a range of them; None when there is nothing."""
        chunk = self.find_chunk(key)
        if chunk is not None:
            return await self._state.fetch_chunk(*chunk, start, end)
        parsed = parse_key(key)
        if not isinstance(parsed, DocumentKey):
            return None
        document = await self._state.fetch_document(parsed.path)
        if document is None or (start is None and end is None):
            return document
        return document[start:end]

    def fetch_now(self, key: str) -> Buffer | NotInMemory | None:
        """The bytes of a chunk, if they are in memory or in a small local file. None if there is no such chunk."""
        chunk = self.find_chunk(key)
        return NOT_IN_MEMORY if chunk is None or not chunk[1] else self._state.fetch_chunk_now(*chunk)

    def locate_now(self, key: str) -> LocatedChunk | NotInMemory | None:
        """Where a chunk is, if that takes no request. None if there is no such chunk."""
        chunk = self.find_chunk(key)
        return NOT_IN_MEMORY if chunk is None or not chunk[1] else self._state.locate_chunk_now(*chunk)

    def find_chunks(self, keys: Sequence[str]) -> tuple[ArrayNode, list[Coords]] | None:
        """The array and the coordinates that keys name, or None unless all are chunks of one array."""
        first = self.find_chunk(keys[0])
        if first is None or not first[1]:
            return None
        node, _ = first
        encoding, ndim = key_encoding(node.document), len(node.shape)
        start = "" if node.path == "/" else node.path[1:] + "/"
        start += encoding.lead + encoding.separator if encoding.lead else ""
        cut, separator = len(start), encoding.separator
        try:
            coords = [tuple(map(int, key[cut:].split(separator))) for key in keys]
        except ValueError:
            return None
        same = all(key.startswith(start) for key in keys) and {len(each) for each in coords} == {ndim}
        return (node, coords) if same else None

    async def locate(self, keys: Sequence[str]) -> LocatedChunks | None:
        """Where the chunks of one array are; None when the keys are anything else."""
        found = self.find_chunks(keys)
        if found is None:
            return None
        node, coords = found
        try:
            columns = np.array(coords, dtype=np.uint32)
        except OverflowError:
            return None
        return await self._state.locate_chunks(node, columns)

    async def write_chunks(self, keys: Sequence[str], data: Sequence[Buffer]) -> bool:
        """Set many chunks of one array; False, and nothing is done, when the keys are anything else."""
        found = self.find_chunks(keys) if keys else None
        if found is not None:
            node, coords = found
            await self._state.write_chunks(node, coords, data)
        return found is not None

    async def delete_chunks(self, keys: Sequence[str]) -> None:
        """Make chunks of one array read as fill value; `find_chunks` knows the keys."""
        found = self.find_chunks(keys) if keys else None
        if found is not None:
            self._state.delete_chunks(*found)

    async def length(self, key: str) -> int | None:
        """How many bytes a key has, without reading them; None when there is nothing."""
        chunk = self.find_chunk(key)
        if chunk is not None:
            return await self._state.chunk_length(*chunk)
        document = await self.fetch(key)
        return None if document is None else len(document)

    async def write(self, key: str, data: Buffer) -> None:
        """Set a key."""
        chunk = self.find_chunk(key)
        if chunk is not None:
            await self._state.write_chunk(*chunk, data)
            return
        parsed = parse_key(key)
        if isinstance(parsed, DocumentKey):
            self._state.write_document(parsed.path, bytes(data))
            return
        raise self._unknown(key)

    def write_ref(self, key: str, ref: ChunkRef) -> None:
        """Point a chunk key at bytes that are elsewhere."""
        chunk = self.find_chunk(key)
        if chunk is None:
            raise self._unknown(key)
        self._state.set_ref(*chunk, ref)

    def _unknown(self, key: str) -> InvalidInputError | NodeNotFoundError:
        parsed = parse_key(key)
        if isinstance(parsed, ChunkKey):
            node = self._state.tree.find_array(parsed.path)
            if node is None:
                return NodeNotFoundError(
                    f"{key!r} is a chunk of {parsed.path}, but there is no array", path=parsed.path
                )
            return InvalidInputError(
                f"{key!r} has {len(parsed.coords)} coordinates; {node.path} has {len(node.shape)} dimensions"
            )
        return InvalidInputError(
            f"{key!r} is neither a zarr.json nor a chunk of an array. A repository only stores Zarr v3 hierarchies"
        )

    async def delete(self, key: str) -> None:
        """Remove a key; nothing happens when there is none."""
        chunk = self.find_chunk(key)
        if chunk is not None:
            self._state.delete_chunks(chunk[0], [chunk[1]])
            return
        parsed = parse_key(key)
        if isinstance(parsed, DocumentKey):
            self._state.delete_document(parsed.path)

    async def delete_folder(self, prefix: str) -> None:
        """Remove every key below a folder."""
        folder = prefix.strip("/")
        if self._state.delete_node("/" + folder):
            return
        found = self._chunk_folder(folder, self._state.tree)
        if found is not None:
            node, leading = found
            table = await self._state.chunk_table(node, _box(node, leading))
            self._state.set_table(node, tombstones(table.coords))

    def _chunk_folder(self, folder: str, tree: Tree) -> Chunk | None:
        """The array and leading coordinates of a folder such as `a/b/c/3`."""
        node = tree.enclosing_array("/" + folder)
        if node is None:
            return None
        leading = key_encoding(node.document).parse_folder(_below(node, folder), len(node.shape))
        return None if leading is None else (node, leading)

    async def names_in(self, prefix: str) -> list[str]:
        """Names directly below a folder."""
        folder = prefix.strip("/")
        state = self._state
        around = state.tree.find_array("/" + folder) or state.tree.enclosing_array("/" + folder)
        # Only the chunks of an array need its edits.
        view = state.view(_NO_ARRAY if around is None else around.id)
        node = view.tree.find("/" + folder)
        if node is None:
            found = self._chunk_folder(folder, view.tree)
            if found is not None:
                return await _coordinate_names(view, *found)
        names = set(view.tree.child_names("/" + folder))
        if node is not None:
            names.add(DOCUMENT)
        if isinstance(node, ArrayNode):
            names |= await _chunk_names(view, node)
        return sorted(names)

    async def size_of(self, prefix: str) -> int:
        """Bytes of all keys below a folder, from documents and references alone."""
        folder = prefix.strip("/")
        view = self._state.view()
        nodes = view.tree.subtree("/" + folder)
        found = None if nodes else self._chunk_folder(folder, view.tree)
        if found is not None:
            node, leading = found
            return await _size_of_chunks(view, node, _box(node, leading))
        sizes = await asyncio.gather(*(_size_of_node(view, node) for node in nodes))
        return sum(sizes)

    async def keys(self, prefix: str = "") -> AsyncIterator[str]:
        """Every key that starts with a prefix."""
        prefix = "" if prefix == "/" else prefix
        view = self._state.view()
        for node in _nodes_meeting(view.tree, prefix):
            document = document_key(node.path)
            if document.startswith(prefix):
                yield document
            if isinstance(node, ArrayNode):
                async for key in _chunk_keys(view, node, prefix):
                    yield key


def _nodes_meeting(tree: Tree, prefix: str) -> list[Node]:
    """Nodes that may have keys with that prefix: below its last complete folder, or an array around it."""
    folder = prefix.rpartition("/")[0]
    if not folder:
        return list(tree.nodes())
    around = tree.find_array("/" + folder) or tree.enclosing_array("/" + folder)
    return [around] if around is not None else tree.subtree("/" + folder)


async def _chunk_keys(view: SessionView, node: ArrayNode, prefix: str) -> AsyncIterator[str]:
    encoding: KeyEncoding = key_encoding(node.document)
    start = "" if node.path == "/" else node.path[1:] + "/"
    shared = min(len(start), len(prefix))
    if start[:shared] != prefix[:shared]:
        return
    leading = encoding.parse_folder(prefix[len(start) :].rpartition("/")[0], len(node.shape))
    table = await view.chunk_table(node, _box(node, leading or ()))
    for coords in table.coords.tolist():
        key = start + encoding.suffix(coords)
        if key.startswith(prefix):
            yield key


async def _coordinate_names(view: SessionView, node: ArrayNode, leading: Coords) -> list[str]:
    table = await view.chunk_table(node, _box(node, leading))
    return [str(value) for value in np.unique(table.coords[:, len(leading)]).tolist()]


async def _chunk_names(view: SessionView, node: ArrayNode) -> set[str]:
    encoding = key_encoding(node.document)
    if encoding.separator == "/" and not encoding.lead and node.shape:
        return set(await _coordinate_names(view, node, ()))
    table = await view.chunk_table(node)
    if encoding.is_default:
        return {encoding.lead} if len(table) else set()
    return {encoding.suffix(coords) for coords in table.coords.tolist()}


async def _size_of_node(view: SessionView, node: Node) -> int:
    document = await view.fetch_document(node.path)
    chunks = await _size_of_chunks(view, node) if isinstance(node, ArrayNode) else 0
    return len(document or b"") + chunks


async def _size_of_chunks(view: SessionView, node: ArrayNode, box: Extents | None = None) -> int:
    table = await view.chunk_table(node, box)
    return int(table.length.sum())


def _coordinates(text: str) -> Coords | None:
    """The coordinates in a key. None if Zarr does not write them like this."""
    try:
        coords = tuple(map(int, text.split("/")))
    except ValueError:
        return None
    return coords if "/".join(map(str, coords)) == text and text[0] != "-" and "/-" not in text else None


def _below(node: ArrayNode, key: str) -> str:
    """A key, seen from the array it lies in."""
    return key if node.path == "/" else key[len(node.path) :]


def _box(node: ArrayNode, leading: Coords) -> Extents:
    """The part of an array's grid with these leading coordinates."""
    fixed = tuple((c, c + 1) for c in leading)
    return fixed + tuple((0, n) for n in node.grid[len(leading) :])
