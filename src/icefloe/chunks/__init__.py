"""Chunk bytes: packs of small chunks, coalesced reads, virtual chunks.

Modules
-------
- `packs`: Small chunks of a session, gathered until they are written together as packs.
- `range_scheduler`: Combine range reads that are in flight together into few requests, bounded in number and in
  bytes.
- `reader`: Find chunk references in the manifests of a snapshot, and read the bytes that they point at, one or many
  at once.
- `virtual_containers`: Virtual chunks: find the container of a location and read it if the caller authorised that
  container.
"""
