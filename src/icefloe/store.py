"""The Zarr store: a session behind `zarr.abc.store.Store`."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.buffer.core import default_buffer_prototype

from icefloe.blocking import awaitable, blocking
from icefloe.display.card import Card, Described
from icefloe.errors import ReadOnlyError
from icefloe.model.virtual_chunk_container import VirtualChunkSpec
from icefloe.model.zarr_document import is_v2_key
from icefloe.storage.contract import Buffer as Bytes

Checksum: TypeAlias = str | dt.datetime | None
Refused: TypeAlias = list[tuple[int, ...]] | None
"""Coordinates whose location no container covers; None when all are covered."""
ChunkBatch: TypeAlias = tuple[
    npt.NDArray[np.uint32],
    npt.NDArray[np.uint8],
    list[str],
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint64],
    dict[int, bytes],
]


class Keys(Protocol):
    """Documents and chunks by key, as a session offers them."""

    async def fetch(self, key: str, start: int | None = None, end: int | None = None) -> Bytes | None: ...
    async def length(self, key: str) -> int | None: ...
    async def write(self, key: str, data: Bytes) -> None: ...
    async def delete(self, key: str) -> None: ...
    async def delete_folder(self, prefix: str) -> None: ...
    async def names_in(self, prefix: str) -> list[str]: ...
    async def size_of(self, prefix: str) -> int: ...
    def keys(self, prefix: str = "") -> AsyncIterator[str]: ...
    def find_chunks(self, keys: Sequence[str]) -> Any: ...
    async def locate(self, keys: Sequence[str]) -> Any: ...
    async def write_chunks(self, keys: Sequence[str], data: Sequence[Bytes]) -> bool: ...
    async def delete_chunks(self, keys: Sequence[str]) -> None: ...


class StoreSession(Protocol):
    """What the store needs of the session behind it."""

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


class IcechunkStore(Store, Described):
    """A Zarr v3 store over a session; whatever is written is seen by this session and committed with it."""

    supports_writes = True
    supports_deletes = True
    supports_listing = True
    supports_partial_writes = False

    def __init__(self, session: StoreSession, read_only: bool | None = None) -> None:
        super().__init__(read_only=session.read_only if read_only is None else read_only)
        self._session = session

    @property
    def session(self) -> Any:
        """The session this store reads and writes through."""
        return self._session

    @property
    def read_only(self) -> bool:
        return self._read_only or self._session.read_only

    @property
    def supports_consolidated_metadata(self) -> bool:
        # A snapshot is consolidated metadata already.
        return False

    def with_read_only(self, read_only: bool = False) -> IcechunkStore:
        """The same store, read-only or not; a read-only session cannot be made writable."""
        if not read_only and self._session.read_only:
            raise ReadOnlyError("the session is read-only; open a writable one with repo.writable_session(branch)")
        return type(self)(self._session, read_only=read_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IcechunkStore) and other._session == self._session

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IcechunkStore({self._session!r}, read_only={self.read_only})"

    def _card(self) -> Card:
        mode = "read-only" if self.read_only else "writable"
        session = self._session
        return Card("Zarr store", mode, session._card().facts if isinstance(session, Described) else ())

    def __str__(self) -> str:
        return f"icefloe://{id(self._session):x}"

    def __getstate__(self) -> dict[str, Any]:
        return {"session": self._session, "read_only": self._read_only}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["session"], read_only=state["read_only"])  # type: ignore[misc]

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError(
                "store was opened in read-only mode and does not support writing; "
                "use the store of repo.writable_session(branch)"
            )

    # -- reading --------------------------------------------------------------------------------------------------

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """The bytes of a key, or of a range of it; None when there is nothing."""
        start, end = await self._bounds(key, byte_range)
        data = await self._session.keyspace.fetch(key, start, end)
        if data is None:
            return None
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
        """Several keys or ranges at once; ranges of one object become few requests."""
        return list(await asyncio.gather(*(self.get(key, prototype, byte_range) for key, byte_range in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Whether a key has a value."""
        return await self._session.keyspace.length(key) is not None

    async def getsize(self, key: str) -> int:
        """How many bytes a key has; FileNotFoundError when there is nothing."""
        length = await self._session.keyspace.length(key)
        if length is None:
            raise FileNotFoundError(key)
        return length

    # -- writing --------------------------------------------------------------------------------------------------

    async def set(self, key: str, value: Buffer) -> None:
        """Set a key; seen at once by this session, by others after a commit."""
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(f"IcechunkStore.set(): `value` must be a zarr Buffer, got {type(value)}")
        # A view: what the session keeps in memory it copies, what it stores is stored when this returns.
        await self._session.keyspace.write(key, memoryview(value.as_numpy_array().data))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Set a key unless it has a value already."""
        if not await self.exists(key):
            await self.set(key, value)

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Any]]) -> None:
        """Chunks are written whole."""
        raise NotImplementedError("IcechunkStore writes whole values only")

    async def delete(self, key: str) -> None:
        """Remove a key, if it is there."""
        self._check_writable()
        await self._session.keyspace.delete(key)

    async def delete_dir(self, prefix: str) -> None:
        """Remove a node with everything below it, or the chunks below a prefix."""
        self._check_writable()
        await self._session.keyspace.delete_folder(prefix)

    async def clear(self) -> None:
        """Remove everything."""
        await self.delete_dir("")

    sync_clear = blocking(clear, name="sync_clear")

    # -- listing --------------------------------------------------------------------------------------------------

    async def list(self) -> AsyncIterator[str]:
        """Every key."""
        async for key in self._session.keyspace.keys():
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Every key that starts with a prefix."""
        async for key in self._session.keyspace.keys(prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names directly below a prefix."""
        for name in await self._session.keyspace.names_in(prefix):
            if not is_v2_key(name):
                yield name

    async def is_empty(self, prefix: str) -> bool:
        """Whether no key starts with this folder."""
        return not await self._session.keyspace.names_in(prefix)

    async def getsize_prefix(self, prefix: str) -> int:
        """Bytes of all keys below a folder."""
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
        """Point one chunk at a range of a file outside the repository.

        Parameters
        ----------
        key
            The chunk's key, such as `t2m/c/0/3/1`.
        location
            URL of the file, inside a virtual chunk container of the configuration.
        checksum
            ETag of the file, or the time after which it must not have changed.
        validate_container
            Refuse locations that no container covers.
        """
        self._check_writable()
        self._session.set_virtual_ref(key, location, offset, length, checksum, validate_container=validate_container)

    set_virtual_ref_async = awaitable(set_virtual_ref)

    def set_virtual_refs(
        self, array_path: str, chunks: Sequence[VirtualChunkSpec], *, validate_containers: bool = True
    ) -> Refused:
        """Point several chunks of an array at files; returns the coordinates that no container covers, or None."""
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
        """Point a whole box of chunks at files, given as columns in C order of the box.

        Parameters
        ----------
        chunk_grid_shape
            Shape of the box, in chunks.
        locations
            One URL per chunk: a list, a numpy array, or an Arrow string or dictionary array. An empty URL leaves
            its chunk alone.
        offsets, lengths
            Where in its file each chunk lies.
        arr_offset
            Chunk coordinates of the first corner of the box; the origin when not given.
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
        """Point chunks anywhere in an array's grid at files, given as columns with a row per chunk, in any order.

        No Python object is made per row: a million references are a few numpy or Arrow columns. Where coordinates
        repeat, the last row wins.

        Parameters
        ----------
        coords
            Chunk coordinates: a matrix with a row per chunk and a column per dimension, or a tuple with one column
            (numpy or Arrow) per dimension.
        locations
            One URL per row, or one for all: a list, a numpy array, or an Arrow string or dictionary array. An empty
            URL leaves its chunk alone.
        offsets, lengths
            Where in its file each chunk lies.
        checksum
            ETag of the files, or the time after which they must not have changed; one for all rows.

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
        """The references of an array as columns, in batches.

        Each batch is (coordinates, kinds, locations, offsets, lengths, inline bytes by row); kinds are the values of
        ChunkType.
        """
        async for batch in self._session.chunk_columns(array_path, batch_size):
            yield batch
