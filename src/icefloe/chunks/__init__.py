"""Chunk bytes: packs of small ones, coalesced reads, virtual containers."""
