"""Chunk references of many arrays: split, planned, built and edited as columns.

Modules
-------
- `cells`: Boxes of the chunk grid, cells of large arrays, and how edits are merged into the manifests that they
  overlap.
- `chunk_columns`: Gather, join, merge and search the columns of chunk tables.
- `manifest_plan`: Plan and build the manifests of a snapshot: which stay, which are rewritten, their content, and
  which to preload.
"""
