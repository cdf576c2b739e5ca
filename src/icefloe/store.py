"""The Zarr store of a session, an implementation of `zarr.abc.store.Store`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.buffer.core import default_buffer_prototype

from icefloe.blocking import awaitable, blocking
from icefloe.display.card import Card, CardMixin
from icefloe.errors import ReadOnlyError
from icefloe.model.chunk_table import ChunkBatch
from icefloe.model.virtual_chunk_container import Checksum, VirtualChunkSpec
from icefloe.storage.contract import Buffer as Bytes

Refused: TypeAlias = list[tuple[int, ...]] | None
"""Coordinates of chunks whose location no container covers. None if all are covered."""


_CODEC_PREFIX = b'"icefloe.'
"""The beginning of the names of this package's codecs, as documents contain them."""


def _register_codecs() -> None:
    """Register the codecs of this package with zarr. Zarr finds them itself only if the package is installed."""
    # Most arrays do not use them, and a first read would take longer.
    import icefloe.grib_codec  # noqa: PLC0415
    import icefloe.hdf5_codec  # noqa: PLC0415
    import icefloe.tiff_codec  # noqa: PLC0415, F401


class Keys(Protocol):
    """Access to metadata documents and chunks by key."""

    async def fetch(self, key: str, start: int | None = None, end: int | None = None) -> Bytes | None: ...
    async def length(self, key: str) -> int | None: ...
    async def write(self, key: str, data: Bytes) -> None: ...
    async def delete(self, key: str) -> None: ...
    async def delete_folder(self, prefix: str) -> None: ...
    async def names_in(self, prefix: str) -> list[str]: ...
    async def size_of(self, prefix: str) -> int: ...
    def keys(self, prefix: str = "") -> AsyncIterator[str]: ...
    def fetch_now(self, key: str) -> Any: ...
    def find_chunks(self, keys: Sequence[str]) -> Any: ...
    async def locate(self, keys: Sequence[str]) -> Any: ...
    async def write_chunks(self, keys: Sequence[str], data: Sequence[Bytes]) -> bool: ...
    async def delete_chunks(self, keys: Sequence[str]) -> None: ...


class StoreSession(Protocol):
    """The part of a session that the store uses."""

    @property
    def read_only(self) -> bool: ...
    @property
    def keyspace(self) -> Keys: ...
    def set_virtual_ref(
        self, key: str, location: str, offset: int, length: int, checksum: Checksum, *, validate_container: bool
    ) -> None: ...
    def set_virtual_specs(
        self, array_path: str, chunks: Sequence[VirtualChunkSpec], *, validate_containers: bool
    ) -> Refused: ...
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
    ) -> Refused: ...
    def set_virtual_points(
        self, array_path: str, coords: Any, columns: tuple[Any, Any, Any], *, checksum: Any, validate_containers: bool
    ) -> Refused: ...
    def chunk_columns(self, array_path: str, batch_size: int) -> AsyncIterator[ChunkBatch]: ...


class IcechunkStore(Store, CardMixin):
    """A Zarr v3 store that reads and writes one session.

    Writes are visible in this session at once. They are visible to others after the session commits.

    Parameters
    ----------
    session
        The session to read and write. `Session.store` creates a store for it.
    read_only
        Whether the store refuses writes. None means the same as the session.

    Examples
    --------
    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> store = repo.writable_session("main").store
    >>> array = zarr.create_array(store, name="t", shape=3, dtype="i4")
    >>> array[:] = 1
    >>> array[:].tolist()
    [1, 1, 1]
    """

    supports_writes = True
    supports_deletes = True
    supports_listing = True
    supports_partial_writes = False

    def __init__(self, session: StoreSession, read_only: bool | None = None) -> None:
        super().__init__(read_only=session.read_only if read_only is None else read_only)
        self._session = session

    @property
    def session(self) -> Any:
        """The session that this store reads and writes."""
        return self._session

    @property
    def read_only(self) -> bool:
        """Whether the store refuses writes."""
        return self._read_only or self._session.read_only

    @property
    def supports_consolidated_metadata(self) -> bool:
        """False: a snapshot holds the metadata of all nodes, so zarr need not consolidate it."""
        return False

    def with_read_only(self, read_only: bool = False) -> IcechunkStore:
        """Return a store of the same session that accepts writes or refuses them.

        Parameters
        ----------
        read_only
            Whether the new store refuses writes.

        Returns
        -------
        IcechunkStore
            The new store.

        Raises
        ------
        ReadOnlyError
            A writable store is asked for, but the session is read-only.

        Examples
        --------
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repo.writable_session("main").store.with_read_only(True).read_only
        True
        """
        if not read_only and self._session.read_only:
            raise ReadOnlyError("the session is read-only. Open a writable one with repo.writable_session(branch)")
        return type(self)(self._session, read_only=read_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IcechunkStore) and other._session == self._session

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IcechunkStore({self._session!r}, read_only={self.read_only})"

    def _card(self) -> Card:
        mode = "read-only" if self.read_only else "writable"
        session = self._session
        return Card("Zarr store", mode, session._card().facts if isinstance(session, CardMixin) else ())

    def __str__(self) -> str:
        return f"icefloe://{id(self._session):x}"

    def __getstate__(self) -> dict[str, Any]:
        return {"session": self._session, "read_only": self._read_only}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["session"], read_only=state["read_only"])  # type: ignore[misc]

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError(
                "this is a read-only store: the store was opened in read-only mode and does not support writing. Use "
                "the store of repo.writable_session(branch)",
                "read-only-store",
            )

    # -- reading --------------------------------------------------------------------------------------------------

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the value of a key, or a range of it.

        Parameters
        ----------
        key
            Key of a metadata document or a chunk.
        prototype
            Kind of buffer to return. None means zarr's default.
        byte_range
            Range to read. None reads the whole value.

        Returns
        -------
        Buffer or None
            The bytes. None if the key has no value.

        Raises
        ------
        TypeError
            `byte_range` is not a ByteRequest of zarr.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).readonly_session("main").store
        >>> asyncio.run(store.get("missing/zarr.json")) is None
        True
        """
        start, end = await self._bounds(key, byte_range)
        data = await self._session.keyspace.fetch(key, start, end)
        if data is None:
            return None
        if key.endswith("zarr.json") and _CODEC_PREFIX in bytes(data):
            _register_codecs()
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def _bounds(self, key: str, byte_range: ByteRequest | None) -> tuple[int | None, int | None]:
        match byte_range:
            case None:
                return None, None
            case RangeByteRequest(start, end):
                return start, end
            case OffsetByteRequest(offset):
                return offset, None
            case SuffixByteRequest(suffix):
                length = await self._session.keyspace.length(key)
                return max((length or 0) - suffix, 0), None
        raise TypeError(f"Unexpected byte_range, got {byte_range!r}; expected a zarr ByteRequest or None")

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return several values or ranges. Ranges of one object are combined into few requests.

        Parameters
        ----------
        prototype
            Kind of buffer to return.
        key_ranges
            Pairs of a key and a range. A range of None reads the whole value.

        Returns
        -------
        list of (Buffer or None)
            One entry for each pair, in the same order.

        Raises
        ------
        TypeError
            A range is not a ByteRequest of zarr.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> from zarr.core.buffer.core import default_buffer_prototype
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).readonly_session("main").store
        >>> asyncio.run(store.get_partial_values(default_buffer_prototype(), [("a/zarr.json", None)]))
        [None]
        """
        return list(await asyncio.gather(*(self.get(key, prototype, byte_range) for key, byte_range in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Return whether a key has a value.

        Parameters
        ----------
        key
            Key of a metadata document or a chunk.

        Returns
        -------
        bool
            True if there is a value.

        Examples
        --------
        >>> import asyncio, icefloe, zarr
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> _ = zarr.create_group(store)
        >>> asyncio.run(store.exists("zarr.json"))
        True
        """
        return await self._session.keyspace.length(key) is not None

    async def getsize(self, key: str) -> int:
        """Return the size of a value in bytes.

        Parameters
        ----------
        key
            Key of a metadata document or a chunk.

        Returns
        -------
        int
            Number of bytes.

        Raises
        ------
        FileNotFoundError
            The key has no value.

        Examples
        --------
        >>> import asyncio, icefloe, zarr
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> zarr.create_array(store, name="t", shape=4, dtype="i4", compressors=None)[:] = 1
        >>> asyncio.run(store.getsize("t/c/0"))
        16
        """
        length = await self._session.keyspace.length(key)
        if length is None:
            raise FileNotFoundError(key)
        return length

    # -- writing --------------------------------------------------------------------------------------------------

    async def set(self, key: str, value: Buffer) -> None:
        """Set the value of a key.

        Parameters
        ----------
        key
            Key of a metadata document or a chunk.
        value
            The bytes.

        Raises
        ------
        TypeError
            `value` is not a zarr Buffer.
        InvalidInputError
            The key is neither a metadata document nor a chunk of an array.
        ReadOnlyError
            The store is read-only.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> from zarr.core.buffer.cpu import Buffer
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> document = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
        >>> asyncio.run(store.set("zarr.json", Buffer.from_bytes(document)))
        >>> asyncio.run(store.exists("zarr.json"))
        True
        """
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(
                f"IcechunkStore.set(): `value` must be a Buffer instance. Got an instance of {type(value)} instead."
            )
        # A view is enough: the session copies what it keeps in memory, and the rest is stored when this returns.
        await self._session.keyspace.write(key, memoryview(value.as_numpy_array().data))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Set the value of a key that has none.

        Parameters
        ----------
        key
            Key of a metadata document or a chunk.
        value
            The bytes.

        Raises
        ------
        ReadOnlyError
            The store is read-only.

        Examples
        --------
        >>> import asyncio, icefloe, zarr
        >>> from zarr.core.buffer.cpu import Buffer
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> _ = zarr.create_group(store, attributes={"a": 1})
        >>> document = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
        >>> asyncio.run(store.set_if_not_exists("zarr.json", Buffer.from_bytes(document)))
        >>> dict(zarr.open_group(store).attrs)
        {'a': 1}
        """
        if not await self.exists(key):
            await self.set(key, value)

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Any]]) -> None:
        """Not supported. Values are written whole.

        Parameters
        ----------
        key_start_values
            Key, offset and bytes of each write.

        Raises
        ------
        NotImplementedError
            Always.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> asyncio.run(store.set_partial_values([]))
        Traceback (most recent call last):
        NotImplementedError: IcechunkStore writes whole values only
        """
        raise NotImplementedError("IcechunkStore writes whole values only")

    async def delete(self, key: str) -> None:
        """Delete a key. It is not an error if the key has no value.

        Parameters
        ----------
        key
            Key of a metadata document or a chunk.

        Raises
        ------
        ReadOnlyError
            The store is read-only.

        Examples
        --------
        >>> import asyncio, icefloe, zarr
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> zarr.create_array(store, name="t", shape=4, dtype="i4")[:] = 1
        >>> asyncio.run(store.delete("t/c/0"))
        >>> asyncio.run(store.exists("t/c/0"))
        False
        """
        self._check_writable()
        await self._session.keyspace.delete(key)

    async def delete_dir(self, prefix: str) -> None:
        """Delete a node with all nodes below it, or all chunks below a prefix.

        Parameters
        ----------
        prefix
            Path of the node, or a prefix of chunk keys.

        Raises
        ------
        ReadOnlyError
            The store is read-only.

        Examples
        --------
        >>> import asyncio, icefloe, zarr
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> _ = zarr.group(store).create_group("a")
        >>> asyncio.run(store.delete_dir("a"))
        >>> asyncio.run(store.exists("a/zarr.json"))
        False
        """
        self._check_writable()
        await self._session.keyspace.delete_folder(prefix)

    async def clear(self) -> None:
        """Delete all nodes and chunks.

        Raises
        ------
        ReadOnlyError
            The store is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> _ = zarr.create_group(store)
        >>> store.sync_clear()
        >>> store.session.has_uncommitted_changes
        False
        """
        await self.delete_dir("")

    sync_clear = blocking(clear, name="sync_clear")

    # -- listing --------------------------------------------------------------------------------------------------

    async def list(self) -> AsyncIterator[str]:
        """Iterate over all keys.

        Yields
        ------
        str
            A key.

        Examples
        --------
        >>> import asyncio, icefloe, zarr
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> _ = zarr.create_group(store)
        >>> async def keys():
        ...     return [key async for key in store.list()]
        >>> asyncio.run(keys())
        ['zarr.json']
        """
        async for key in self._session.keyspace.keys():
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Iterate over all keys that start with a prefix.

        Parameters
        ----------
        prefix
            Start of the keys.

        Yields
        ------
        str
            A key.

        Examples
        --------
        >>> import asyncio, icefloe, zarr
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> _ = zarr.group(store).create_group("a")
        >>> async def keys():
        ...     return [key async for key in store.list_prefix("a/")]
        >>> asyncio.run(keys())
        ['a/zarr.json']
        """
        async for key in self._session.keyspace.keys(prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Iterate over the names directly below a prefix.

        Parameters
        ----------
        prefix
            Path of a node.

        Yields
        ------
        str
            Name of a node, a metadata document or a folder of chunks.

        Examples
        --------
        >>> import asyncio, icefloe, zarr
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> _ = zarr.group(store).create_group("a")
        >>> async def names():
        ...     return sorted([name async for name in store.list_dir("")])
        >>> asyncio.run(names())
        ['a', 'zarr.json']
        """
        for name in await self._session.keyspace.names_in(prefix):
            yield name

    async def is_empty(self, prefix: str) -> bool:
        """Return whether there is no key below a prefix.

        Parameters
        ----------
        prefix
            Path of a node.

        Returns
        -------
        bool
            True if there is no key.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).readonly_session("main").store
        >>> asyncio.run(store.is_empty("a"))
        True
        """
        return not await self._session.keyspace.names_in(prefix)

    async def getsize_prefix(self, prefix: str) -> int:
        """Return the total size of all values below a prefix.

        Parameters
        ----------
        prefix
            Path of a node.

        Returns
        -------
        int
            Number of bytes.

        Examples
        --------
        >>> import asyncio, icefloe
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).readonly_session("main").store
        >>> asyncio.run(store.getsize_prefix("a"))
        0
        """
        return await self._session.keyspace.size_of(prefix)

    # -- virtual chunks -------------------------------------------------------------------------------------------

    def set_virtual_ref(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: Checksum = None,
        validate_container: bool = True,
    ) -> None:
        """Make one chunk refer to a range of a file outside the repository.

        Parameters
        ----------
        key
            Key of the chunk, such as `t2m/c/0/3/1`.
        location
            URL of the file, inside a virtual chunk container of the configuration.
        offset
            First byte of the chunk in the file.
        length
            Number of bytes.
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
            The store is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> _ = zarr.create_array(store, name="t", shape=4, chunks=2, dtype="f4")
        >>> store.set_virtual_ref("t/c/0", "s3://archive/t.nc", offset=400, length=8, validate_container=False)
        >>> store.session.chunk_type("/t", [0])
        <ChunkType.VIRTUAL: 2>
        """
        self._check_writable()
        self._session.set_virtual_ref(key, location, offset, length, checksum, validate_container=validate_container)

    set_virtual_ref_async = awaitable(set_virtual_ref)

    def set_virtual_refs(
        self, array_path: str, chunks: Sequence[VirtualChunkSpec], *, validate_containers: bool = True
    ) -> Refused:
        """Make several chunks of an array refer to files outside the repository.

        Parameters
        ----------
        array_path
            Path of the array.
        chunks
            Coordinates, location, range and checksum of each chunk.
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
        InvalidInputError
            A chunk is outside the grid.
        ReadOnlyError
            The store is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> _ = zarr.create_array(store, name="t", shape=4, chunks=2, dtype="f4")
        >>> spec = icefloe.VirtualChunkSpec([1], "s3://archive/t.nc", 400, 8)
        >>> store.set_virtual_refs("t", [spec])
        [(1,)]
        >>> store.set_virtual_refs("t", [spec], validate_containers=False)
        """
        self._check_writable()
        return self._session.set_virtual_specs(array_path, chunks, validate_containers=validate_containers)

    set_virtual_refs_async = awaitable(set_virtual_refs)

    def set_virtual_refs_arr(
        self,
        array_path: str,
        chunk_grid_shape: tuple[int, ...],
        locations: Any,
        offsets: Any,
        lengths: Any,
        *,
        validate_containers: bool = True,
        arr_offset: tuple[int, ...] | None = None,
        checksum: Any = None,
    ) -> Refused:
        """Make a box of chunks refer to files outside the repository. The columns are in C order of the box.

        Parameters
        ----------
        array_path
            Path of the array.
        chunk_grid_shape
            Shape of the box, in chunks.
        locations
            One URL for each chunk: a list, a numpy array, or an Arrow string or dictionary array. A chunk with an empty
            URL is not changed.
        offsets, lengths
            Range of each chunk in its file.
        validate_containers
            Skip and return chunks whose location no virtual chunk container covers.
        arr_offset
            Chunk coordinates of the first corner of the box. None means the origin.
        checksum
            ETag of the files, or the time after which they must not have changed.

        Returns
        -------
        list of tuple of int, or None
            Coordinates of the chunks that were skipped. None if all were set.

        Raises
        ------
        NodeNotFoundError
            There is no array at `array_path`.
        InvalidInputError
            The columns do not fit the box, or the box does not fit the array.
        ReadOnlyError
            The store is read-only.

        Examples
        --------
        >>> import icefloe, zarr
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> _ = zarr.create_array(store, name="t", shape=4, chunks=2, dtype="f4")
        >>> files = ["s3://archive/a.nc", "s3://archive/b.nc"]
        >>> store.set_virtual_refs_arr("t", (2,), files, [0, 0], [8, 8], validate_containers=False)
        >>> sorted(store.session.all_virtual_chunk_locations())
        ['s3://archive/a.nc', 's3://archive/b.nc']
        """
        self._check_writable()
        return self._session.set_virtual_columns(
            array_path,
            chunk_grid_shape,
            locations,
            offsets,
            lengths,
            first=arr_offset,
            checksum=checksum,
            validate_containers=validate_containers,
        )

    set_virtual_refs_arr_async = awaitable(set_virtual_refs_arr)

    def set_virtual_refs_columns(
        self,
        array_path: str,
        coords: Any,
        locations: Any,
        offsets: Any,
        lengths: Any,
        *,
        validate_containers: bool = True,
        checksum: Checksum = None,
    ) -> Refused:
        """Make chunks at any coordinates refer to files outside the repository.

        The references are columns with one row for each chunk, in any order. No Python object is created for a row. If
        coordinates repeat, the last row is used.

        Parameters
        ----------
        array_path
            Path of the array.
        coords
            Chunk coordinates: a matrix with one row for each chunk, or a tuple with one numpy or Arrow column for each
            dimension.
        locations
            One URL for each row, or one for all rows: a list, a numpy array, or an Arrow string or dictionary array. A
            chunk with an empty URL is not changed.
        offsets, lengths
            Range of each chunk in its file.
        validate_containers
            Skip and return chunks whose location no virtual chunk container covers.
        checksum
            ETag of the files, or the time after which they must not have changed. It applies to all rows.

        Returns
        -------
        list of tuple of int, or None
            Coordinates of the chunks that were skipped. None if all were set.

        Raises
        ------
        NodeNotFoundError
            There is no array at `array_path`.
        InvalidInputError
            The columns have different lengths, or a chunk is outside the grid.
        ReadOnlyError
            The store is read-only.

        Examples
        --------
        >>> import icefloe, numpy as np, zarr
        >>> config = icefloe.RepositoryConfig.default()
        >>> store = icefloe.s3_store(region="us-east-1")
        >>> config.set_virtual_chunk_container(icefloe.VirtualChunkContainer("s3://archive/", store))
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), config)
        >>> session = repo.writable_session("main")
        >>> _ = zarr.create_array(session.store, name="t", shape=(1000, 1000), chunks=(10, 10), dtype="f4")
        >>> diagonal = np.arange(100)
        >>> session.store.set_virtual_refs_columns(
        ...     "t", (diagonal, diagonal), "s3://archive/t.nc", offsets=400 * diagonal, lengths=np.full(100, 400)
        ... )
        >>> session.chunk_type("/t", (7, 7))
        <ChunkType.VIRTUAL: 2>
        """
        self._check_writable()
        return self._session.set_virtual_points(
            array_path,
            coords,
            (locations, offsets, lengths),
            checksum=checksum,
            validate_containers=validate_containers,
        )

    async def array_chunk_iterator(self, array_path: str, batch_size: int = 100_000) -> AsyncIterator[ChunkBatch]:
        """Iterate over the references of an array, in batches of columns.

        Parameters
        ----------
        array_path
            Path of the array.
        batch_size
            Largest number of references in one batch.

        Yields
        ------
        tuple
            Coordinates, kinds (values of ChunkType), locations, offsets, lengths, and the bytes of inline chunks by
            row. The location of a virtual chunk is its URL. The location of a native chunk is the name of its object,
            without the folder.

        Raises
        ------
        NodeNotFoundError
            There is no array at `array_path`.

        Examples
        --------
        >>> import asyncio, icefloe, zarr
        >>> store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
        >>> zarr.create_array(store, name="t", shape=6, chunks=2, dtype="i4")[:] = 1
        >>> async def count():
        ...     return sum([len(batch[0]) async for batch in store.array_chunk_iterator("t")])
        >>> asyncio.run(count())
        3
        """
        async for batch in self._session.chunk_columns(array_path, batch_size):
            yield batch
