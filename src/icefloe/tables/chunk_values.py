"""Whole chunks of an array: fetched ahead of whoever uses them, decoded where they are used."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from icefloe.blocking import blocking_loop, run_blocking
from icefloe.chunk_coder import decoder_of
from icefloe.model.runs import runs_up_to
from icefloe.session.session import Session
from icefloe.storage.contract import Buffer
from icefloe.tables.grids import open_array
from icefloe.tables.places import Place, session_at

_ROUND_BYTES = 2 << 20
"""Stored bytes of the chunks that are fetched together."""
_ROUNDS_AHEAD = 3
_Values = npt.NDArray[Any]


class ChunkValues:
    """The values of one array by chunk, as a session sees it."""

    def __init__(self, session: Session, path: str) -> None:
        self._session = session
        self._node = session.workspace.tree.array(path)
        self._decode = None
        self.array: zarr.Array[Any] = open_array(session, path)
        if self.array.shards is None:
            self._decode = decoder_of(self.array)

    @property
    def is_direct(self) -> bool:
        """Whether `read` can be asked; zarr alone understands shards and codecs that need an event loop."""
        return self._decode is not None

    def read(self, coordinates: npt.NDArray[np.integer[Any]], *, threads: int = 0) -> Iterator[_Values]:
        """The chunks at some places of the grid, in that order, each with its full shape; not to be written to.

        The caller's thread decodes them when it asks for them; `threads` do so ahead of it, where cores are idle.
        """
        bodies = self._fetch(coordinates)
        decode = self._decode
        assert decode is not None
        if not threads:
            yield from map(decode, bodies)
            return
        with ThreadPoolExecutor(threads) as pool:
            ahead: deque[Future[_Values]] = deque()
            for body in bodies:
                ahead.append(pool.submit(decode, body))
                if len(ahead) > 2 * threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _fetch(self, coordinates: npt.NDArray[np.integer[Any]]) -> Iterator[Buffer | None]:
        """The stored bytes of chunks; a few rounds of requests are under way at once."""
        if not len(coordinates):
            return
        located = run_blocking(self._session.workspace.locate_chunks(self._node, coordinates.astype(np.uint32)))
        rounds = runs_up_to(_ROUND_BYTES, np.cumsum(np.maximum(located.lengths, 0)))
        ahead: deque[Future[list[Buffer | None]]] = deque()
        try:
            while True:
                while len(ahead) < _ROUNDS_AHEAD and (bounds := next(rounds, None)) is not None:
                    ahead.append(asyncio.run_coroutine_threadsafe(located.fetch(*bounds), blocking_loop()))
                if not ahead:
                    return
                yield from ahead.popleft().result()
        finally:
            for waiting in ahead:
                waiting.cancel()


@lru_cache(maxsize=64)
def chunk_values_at(place: Place, snapshot_id: str, path: str) -> ChunkValues:
    """The chunks of an array at a snapshot; opened once per process."""
    return ChunkValues(session_at(place, snapshot_id), path)
