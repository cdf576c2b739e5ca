"""Chunk references of many arrays: split, planned, built and edited as columns.

Modules
-------
- `cells`: Boxes of the chunk grid, cells of large arrays, and how edits are merged into the manifests that they
  touch.
- `columns`: Gather, join, merge and search the columns of chunk tables.
- `edits`: The chunk edits of one array in a change set: written one by one or in columns, last write wins.
- `plan`: Plan and build the manifests of a snapshot: which stay, which are rewritten, what each holds, which to
  preload.
"""
