"""Chunk references of many arrays: split, planned, built and edited as columns.

Modules
-------
- `cells`: Boxes of the chunk grid, cells of large arrays, and how edits are merged into the manifests that they
  overlap.
- `chunk_columns`: Gather, join, merge and search the columns of chunk tables.
- `few_edits`: Edits of a few cells of an array with many manifests: planned without a look at each manifest.
- `list_plan`: Plan the manifest lists of a snapshot: which stay, and which are written.
- `manifest_plan`: Plan and build the manifests of a snapshot: which stay, which are rewritten, their content, and
  which to preload.
"""
