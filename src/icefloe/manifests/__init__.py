"""Chunk tables and the manifests that hold them: find, merge, split, sets and rules, plans. Pure, no I/O."""
