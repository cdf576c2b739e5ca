"""Chunk bytes: packs of small chunks, coalesced reads, virtual chunks.

Modules
-------
- `packs`: Small chunks of a session, gathered until they are written together as packs.
- `range_scheduler`: Combine range reads that are in flight together into few requests, bounded in number and in
  bytes.
- `reader`: Read the bytes that chunk references point at.
- `virtual_containers`: Virtual chunks: find the container of a location and read it if the caller authorised that
  container.
"""
