"""What to read ahead of ranges that follow one another in an object, and what of it is still held."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from icefloe.chunks.source import Source

_FIRST_WINDOW_BYTES = 256 << 10
_TRACKED_SOURCES = 4096
"""Objects whose last read is remembered; each is a few hundred bytes."""
_NEAR_BYTES = 64 << 10
"""A range this close behind the last one counts as following it."""

_FRESH_SECONDS = 5.0
"""Files of others may change: what was read ahead is not used any more after this."""


@dataclass(slots=True)
class _Track:
    """Where the last read of an object ended, and what was read beyond it."""

    end: int
    window: int = 0
    block_start: int = 0
    block: bytes = b""
    served_bytes: int = 0
    read_at: float = 0.0


class ReadAhead:
    """The reads of one event loop, watched for runs.

    zarr asks for only a few chunks at a time, so a run through a pack arrives as many small reads one after the
    other. The first read of an object never reads ahead, a second one that follows it does, and the window doubles
    as long as the run goes on: a lone or random read costs nothing, and at most about half of what is fetched is in
    vain.
    """

    def __init__(self, most_bytes: int, held_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._limit_bytes = held_bytes
        self._tracks: OrderedDict[Source, _Track] = OrderedDict()
        self._held_bytes = 0

    def find(self, source: Source, start: int, end: int) -> bytes | None:
        """The bytes of a range that lies in what was read ahead."""
        track = self._tracks.get(source)
        if track is None or not track.block:
            return None
        if time.monotonic() - track.read_at > _FRESH_SECONDS:
            self._drop_block(track)
            return None
        low = start - track.block_start
        high = end - track.block_start
        if low < 0 or high > len(track.block):
            return None
        track.end = max(track.end, end)
        piece = track.block[low:high]
        track.served_bytes += high - low
        if track.served_bytes >= len(track.block):
            self._drop_block(track)  # the run has passed it
        return piece

    def plan(self, source: Source, start: int, end: int) -> int:
        """How many bytes to read beyond a range that is about to be requested."""
        if not self._most_bytes:
            return 0
        track = self._tracks.get(source)
        if track is None:
            self._tracks[source] = _Track(end)
            if len(self._tracks) > _TRACKED_SOURCES:
                self._drop_block(self._tracks.popitem(last=False)[1])
            return 0
        self._tracks.move_to_end(source)
        # A run: the range starts in what was read last or just behind it, and goes beyond.
        follows = track.end - _NEAR_BYTES <= start <= track.end + _NEAR_BYTES and end > track.end
        track.window = min(max(2 * track.window, _FIRST_WINDOW_BYTES), self._most_bytes) if follows else 0
        track.end = end
        return track.window

    def keep(self, source: Source, start: int, body: bytes, *, used_to: int) -> None:
        """Hold what a request brought beyond what was asked for."""
        track = self._tracks.get(source)
        rest = start + len(body) - used_to
        if track is None or rest <= 0:
            return
        self._drop_block(track)
        track.block_start, track.block, track.served_bytes = used_to, body[-rest:], 0
        track.read_at = time.monotonic()
        self._held_bytes += rest
        for other in list(self._tracks.values()):
            if self._held_bytes <= self._limit_bytes:
                break
            self._drop_block(other)

    def _drop_block(self, track: _Track) -> None:
        self._held_bytes -= len(track.block)
        track.block = b""
