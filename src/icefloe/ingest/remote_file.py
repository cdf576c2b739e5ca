"""An object of a storage as a seekable raw file, read in large blocks that are kept."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

from icefloe.blocking import run_blocking
from icefloe.storage.contract import Storage

BLOCK_BYTES = 1 << 20
KEPT_BLOCKS = 64


class RemoteFile(io.RawIOBase):
    """Metadata of a file lies in few places: whole blocks are fetched and the latest ones kept.

    A read of many blocks (the values of a variable) is one request and passes the cache by.
    """

    def __init__(self, storage: Storage, key: str, size_bytes: int) -> None:
        super().__init__()
        self._storage = storage
        self._key = key
        self._size = size_bytes
        self._position = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start = self._position
        end = min(start + len(view), self._size)
        if end <= start:
            return 0
        data = self._range(start, end)
        view[: len(data)] = data
        self._position = start + len(data)
        return len(data)

    def _range(self, start: int, end: int) -> bytes:
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        if last - first > 3:
            return run_blocking(self._storage.get_range(self._key, start, end))
        data = b"".join(self._block(index) for index in range(first, last + 1))
        return data[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _block(self, index: int) -> bytes:
        if index in self._blocks:
            self._blocks.move_to_end(index)
            return self._blocks[index]
        start = index * BLOCK_BYTES
        block = run_blocking(self._storage.get_range(self._key, start, min(start + BLOCK_BYTES, self._size)))
        self._blocks[index] = block
        if len(self._blocks) > KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return block
