"""Methods of a session that work on chunks: virtual references, moves in the grid, coordinates and kinds."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import numpy as np

from icefloe.blocking import awaitable, blocking
from icefloe.ids import encode_base32, encode_base32_column
from icefloe.model.chunk_table import ChunkBatch, ChunkKind, ChunkRef, ChunkTable
from icefloe.model.snapshot import ArrayNode
from icefloe.model.virtual_chunk_container import Checksum, VirtualChunkSpec
from icefloe.session.keyspace import KeySpace
from icefloe.session.references import reindex_array, set_columns, set_points, set_specs, shift_array, virtual_ref
from icefloe.session.session_state import SessionState


class ChunkType(enum.IntEnum):
    """Where the bytes of a chunk are."""

    UNINITIALIZED = 0
    NATIVE = 1
    VIRTUAL = 2
    INLINE = 3

    uninitialized = UNINITIALIZED
    native = NATIVE
    virtual = VIRTUAL
    inline = INLINE


_TYPE_OF_KIND = {
    ChunkKind.NATIVE: ChunkType.NATIVE,
    ChunkKind.VIRTUAL: ChunkType.VIRTUAL,
    ChunkKind.INLINE: ChunkType.INLINE,
}
_TYPE_CODES = np.array([ChunkType.INLINE.value, ChunkType.NATIVE.value, ChunkType.VIRTUAL.value, 0], dtype=np.uint8)


def _locations(table: ChunkTable) -> list[str]:
    """The URLs of virtual chunks, the names of the objects of native ones, nothing for inline ones."""
    texts = np.asarray([*table.locations, ""], dtype=object)
    found = texts[np.full(len(table), -1) if table.location is None else table.location]
    if table.object_id is not None:
        native = np.flatnonzero(table.kind == ChunkKind.NATIVE)
        names = np.ascontiguousarray(encode_base32_column(table.object_id[native]))
        found[native] = names.view(f"S{names.shape[1]}").ravel().astype(str).astype(object)
    located: list[str] = found.tolist()
    return located


class ChunkMethods:
    """The methods of `Session` that work on chunks."""

    _state: SessionState
    keyspace: KeySpace

    def _check_writable(self, *, moves_only: bool = True) -> None:
        raise NotImplementedError

    # -- moves in the grid ----------------------------------------------------------------------------------------

    async def shift_array_async(self, array_path: str, chunk_offset: Iterable[int]) -> None:
        """Move all chunks of an array by an offset. Chunks that leave the grid are dropped.

        Positions that become empty read as the fill value. Resize the array first to keep all chunks. In a variable
        chunk grid, all chunks must move to places of the same shape.

        Parameters
        ----------
        array_path
            Path of the array.
        chunk_offset
            Offset in chunks, one number for each dimension.

        Raises
        ------
        NodeNotFoundError
            There is no array at `array_path`.
        InvalidInputError
            The offset does not have one number for each dimension, or a chunk would move to a place of another shape.
        ReadOnlyError
            The session is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> array = zarr.create_array(session.store, name="t", shape=4, chunks=1, dtype="i4", fill_value=0)
        >>> array[:] = [1, 2, 3, 4]
        >>> session.shift_array("/t", [-1])
        >>> array[:].tolist()
        [2, 3, 4, 0]
        """
        self._check_writable()
        with self._state.exclusive("shift_array"):
            await shift_array(self._state, _absolute(array_path), tuple(chunk_offset))

    shift_array = blocking(shift_array_async)

    async def reindex_array_async(
        self,
        array_path: str,
        forward: Callable[[Iterable[int]], Iterable[int] | None],
        backward: Callable[[Iterable[int]], Iterable[int] | None] | None = None,
    ) -> None:
        """Move the chunks of an array to the coordinates that a function returns.

        Parameters
        ----------
        array_path
            Path of the array.
        forward
            Maps the coordinates of a chunk to its new coordinates. A chunk for which it returns None is not moved.
        backward
            The inverse of `forward`. If it is given, a position whose source is None or empty reads as the fill value
            afterwards.

        Raises
        ------
        NodeNotFoundError
            There is no array at `array_path`.
        InvalidInputError
            A function returned coordinates outside the grid, or those of a chunk of another shape.
        ReadOnlyError
            The session is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> array = zarr.create_array(session.store, name="t", shape=3, chunks=1, dtype="i4")
        >>> array[:] = [1, 2, 3]
        >>> session.reindex_array("/t", lambda chunk: [2 - index for index in chunk])
        >>> array[:].tolist()
        [3, 2, 1]
        """
        self._check_writable()
        with self._state.exclusive("reindex_array"):
            await reindex_array(self._state, _absolute(array_path), forward, backward)

    reindex_array = blocking(reindex_array_async)

    # -- virtual references ---------------------------------------------------------------------------------------

    def set_virtual_ref(
        self, key: str, location: str, offset: int, length: int, checksum: Checksum, *, validate_container: bool
    ) -> None:
        """Set one virtual chunk. `IcechunkStore.set_virtual_ref` is the public form of this method.

        Parameters
        ----------
        key
            Key of the chunk, such as `t2m/c/0/3/1`.
        location
            URL of the file.
        offset, length
            Range of bytes in the file.
        checksum
            ETag of the file, or the time after which it must not have changed.
        validate_container
            Refuse a location that no virtual chunk container covers.

        Raises
        ------
        InvalidInputError
            The key is not a chunk of an array.
        VirtualChunkError
            No virtual chunk container covers the location, and `validate_container` is True.
        ReadOnlyError
            The session does not accept new chunks.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_array(session.store, name="t", shape=4, chunks=2, dtype="f4")
        >>> session.set_virtual_ref("t/c/0", "s3://archive/t.nc", 400, 8, None, validate_container=False)
        >>> session.all_virtual_chunk_locations()
        ['s3://archive/t.nc']
        """
        self._check_writable(moves_only=False)
        ref = virtual_ref(self._state, location, offset, length, checksum, validate_container=validate_container)
        self.keyspace.write_ref(key, ref)

    def set_virtual_specs(
        self, array_path: str, chunks: Sequence[VirtualChunkSpec], *, validate_containers: bool
    ) -> list[tuple[int, ...]] | None:
        """Set several virtual chunks. `IcechunkStore.set_virtual_refs` is the public form of this method.

        Parameters
        ----------
        array_path
            Path of the array.
        chunks
            Coordinates, location and range of each chunk.
        validate_containers
            Skip and return chunks whose location no virtual chunk container covers.

        Returns
        -------
        list of tuple of int, or None
            Coordinates of the chunks that were skipped. None if all were set.

        Raises
        ------
        NodeNotFoundError
            There is no array at `array_path`.
        ReadOnlyError
            The session does not accept new chunks.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_array(session.store, name="t", shape=4, chunks=2, dtype="f4")
        >>> spec = icefloe.VirtualChunkSpec([1], "s3://archive/t.nc", 400, 8)
        >>> session.set_virtual_specs("/t", [spec], validate_containers=True)
        [(1,)]
        """
        self._check_writable(moves_only=False)
        return set_specs(self._state, array_path, chunks, validate_containers=validate_containers)

    def set_virtual_columns(
        self,
        array_path: str,
        grid_shape: tuple[int, ...],
        locations: Any,
        offsets: Any,
        lengths: Any,
        *,
        first: tuple[int, ...] | None,
        checksum: Any,
        validate_containers: bool,
    ) -> list[tuple[int, ...]] | None:
        """Set a box of virtual chunks. `IcechunkStore.set_virtual_refs_arr` is the public form of this method.

        Parameters
        ----------
        array_path
            Path of the array.
        grid_shape
            Shape of the box, in chunks.
        locations, offsets, lengths
            File and range of each chunk, in C order of the box.
        first
            Chunk coordinates of the first corner of the box. None means the origin.
        checksum
            ETag of the files, or the time after which they must not have changed.
        validate_containers
            Skip and return chunks whose location no virtual chunk container covers.

        Returns
        -------
        list of tuple of int, or None
            Coordinates of the chunks that were skipped. None if all were set.

        Raises
        ------
        InvalidInputError
            The columns do not fit the box, or the box does not fit the array.
        ReadOnlyError
            The session does not accept new chunks.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_array(session.store, name="t", shape=4, chunks=2, dtype="f4")
        >>> files = ["s3://archive/a.nc", "s3://archive/b.nc"]
        >>> session.set_virtual_columns(
        ...     "/t", (2,), files, [0, 0], [8, 8], first=None, checksum=None, validate_containers=False
        ... )
        >>> sorted(session.all_virtual_chunk_locations())
        ['s3://archive/a.nc', 's3://archive/b.nc']
        """
        self._check_writable(moves_only=False)
        return set_columns(
            self._state,
            array_path,
            grid_shape,
            (locations, offsets, lengths),
            first=first,
            checksum=checksum,
            validate_containers=validate_containers,
        )

    def set_virtual_points(
        self, array_path: str, coords: Any, columns: tuple[Any, Any, Any], *, checksum: Any, validate_containers: bool
    ) -> list[tuple[int, ...]] | None:
        """Set virtual chunks anywhere. `IcechunkStore.set_virtual_refs_columns` is the public form of this method.

        Parameters
        ----------
        array_path
            Path of the array.
        coords
            Chunk coordinates: a matrix with one row for each chunk, or a tuple with one column for each dimension.
        columns
            Locations, offsets and lengths, with one row for each chunk.
        checksum
            ETag of the files, or the time after which they must not have changed.
        validate_containers
            Skip and return chunks whose location no virtual chunk container covers.

        Returns
        -------
        list of tuple of int, or None
            Coordinates of the chunks that were skipped. None if all were set.

        Raises
        ------
        InvalidInputError
            The columns have different lengths, or a chunk is outside the grid.
        ReadOnlyError
            The session does not accept new chunks.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_array(session.store, name="t", shape=4, chunks=2, dtype="f4")
        >>> columns = (["s3://archive/a.nc"], [0], [8])
        >>> session.set_virtual_points("/t", [[1]], columns, checksum=None, validate_containers=False)
        >>> session.chunk_type("/t", [1])
        <ChunkType.VIRTUAL: 2>
        """
        self._check_writable(moves_only=False)
        work = self._state
        return set_points(work, array_path, coords, columns, checksum=checksum, validate_containers=validate_containers)

    async def all_virtual_chunk_locations_async(self) -> list[str]:
        """Return the URL of every virtual chunk. A file with several chunks is listed several times.

        Returns
        -------
        list of str
            One URL for each virtual chunk.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.readonly_session("main").all_virtual_chunk_locations()
        []
        """
        found: list[str] = []
        view = self._state.view()
        for node in view.tree.nodes():
            if isinstance(node, ArrayNode):
                table = await view.chunk_table(node)
                if table.location is not None:
                    texts = np.asarray(table.locations, dtype=object)
                    found += texts[table.location[table.location >= 0]].tolist()
        return found

    all_virtual_chunk_locations = blocking(all_virtual_chunk_locations_async)

    # -- chunks ---------------------------------------------------------------------------------------------------

    async def chunk_coordinates(self, array_path: str, batch_size: int = 1000) -> AsyncIterator[tuple[int, ...]]:
        """Iterate over the coordinates of all chunks of an array that were written.

        Parameters
        ----------
        array_path
            Path of the array.
        batch_size
            Number of references that are read at once.

        Yields
        ------
        tuple of int
            Coordinates of one chunk.

        Raises
        ------
        NodeNotFoundError
            There is no array at `array_path`.

        Examples
        --------
        >>> import asyncio, icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> array = zarr.create_array(session.store, name="t", shape=6, chunks=2, dtype="i4")
        >>> array[2:] = 1
        >>> async def coordinates():
        ...     return [chunk async for chunk in session.chunk_coordinates("/t")]
        >>> asyncio.run(coordinates())
        [(1,), (2,)]
        """
        node = self._state.tree.array(_absolute(array_path))
        view = self._state.view(node.id)
        async for table in view.chunk_batches(view.tree.array(node.path), batch_size):
            for row in table.coords.tolist():
                yield tuple(row)

    async def chunk_columns(self, array_path: str, batch_size: int) -> AsyncIterator[ChunkBatch]:
        """Iterate over the references of an array, as `IcechunkStore.array_chunk_iterator` does.

        Parameters
        ----------
        array_path
            Path of the array.
        batch_size
            Largest number of references in one batch.

        Yields
        ------
        tuple
            Coordinates, kinds, locations, offsets, lengths, and the bytes of inline chunks by row. The location of a
            native chunk is the name of its object, without the folder.

        Raises
        ------
        NodeNotFoundError
            There is no array at `array_path`.

        Examples
        --------
        >>> import asyncio, icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> array = zarr.create_array(session.store, name="t", shape=6, chunks=2, dtype="i4")
        >>> array[:] = 1
        >>> async def count():
        ...     return sum([len(batch[0]) async for batch in session.chunk_columns("/t", 100)])
        >>> asyncio.run(count())
        3
        """
        node = self._state.tree.array(_absolute(array_path))
        view = self._state.view(node.id)
        async for table in view.chunk_batches(view.tree.array(node.path), batch_size):
            inline = {int(i): table.row(int(i)).data or b"" for i in np.flatnonzero(table.kind == ChunkKind.INLINE)}
            offsets = np.where(table.kind == ChunkKind.INLINE, np.uint64(0), table.offset)
            yield table.coords, _TYPE_CODES[table.kind], _locations(table), offsets, table.length, inline

    async def chunk_type_async(self, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkType:
        """Return how the bytes of a chunk are stored.

        Parameters
        ----------
        array_path
            Path of the array.
        chunk_coordinates
            Coordinates of the chunk in the chunk grid.

        Returns
        -------
        ChunkType
            `NATIVE`, `INLINE`, `VIRTUAL`, or `UNINITIALIZED` if the chunk was never written.

        Raises
        ------
        NodeNotFoundError
            There is no array at `array_path`.
        InvalidInputError
            The coordinates are outside the grid.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_array(session.store, name="t", shape=3, dtype="f4")
        >>> session.chunk_type("/t", [0])
        <ChunkType.UNINITIALIZED: 0>
        """
        node = self._state.tree.array(_absolute(array_path))
        coords = tuple(int(c) for c in chunk_coordinates)
        self._state.check_coords(node, coords)
        found = await self._state.find_chunk(node, coords)
        if found is None:
            return ChunkType.UNINITIALIZED
        return _TYPE_OF_KIND[found.kind] if isinstance(found, ChunkRef) else ChunkType.NATIVE

    chunk_type = blocking(chunk_type_async)

    def get_node_id(self, path: str) -> str:
        """Return the id of the node at a path. A node keeps its id when it is moved.

        Parameters
        ----------
        path
            Path of an array or a group.

        Returns
        -------
        str
            The id in base 32.

        Raises
        ------
        NodeNotFoundError
            There is no node at `path`.

        Examples
        --------
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> _ = zarr.group(session.store).create_group("a")
        >>> node_id = session.get_node_id("/a")
        >>> session.move("/a", "/b")
        >>> session.get_node_id("/b") == node_id
        True
        """
        return encode_base32(self._state.tree.node(_absolute(path)).id)

    get_node_id_async = awaitable(get_node_id)


def _absolute(path: str) -> str:
    return path if path.startswith("/") else "/" + path
