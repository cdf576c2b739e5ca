"""Arrays as tables: grids, selections, scans and metadata as Arrow columns, without a query engine.

Modules
-------
- `chunk_values`: Values of chunks or parts of chunks, fetched and decoded ahead of their use.
- `columns`: Stored values of arrays to values of table columns, and back.
- `evaluate`: Evaluate conditions: on rows, on cells of a block, and on ranges of values.
- `fragments`: Rows to fragments of blocks, and fragments to chunks.
- `grids`: Which arrays of a group form one table, and times as people write them.
- `metadata_tables`: Metadata of a repository as tables, and its commits as a stream of changes.
- `options`: The options of a table: repository, point of history, selection, layout; and opening it in a task.
- `predicates`: Conditions on columns: the values of a WHERE clause, parsed from SQL.
- `reading`: Read one share of a scan: blocks of arrays as Arrow batches, in one of three layouts.
- `scans`: The plan of reading a table: a grid at a snapshot, the blocks that can match, and how they are shared
  out.
- `selection`: What a condition or a region leaves of a grid: cells per dimension, and blocks that can match.
- `statistics`: Statistics per chunk: ranges and totals, kept beside the repository and trusted only for unchanged
  chunks.
- `targets`: Where rows go: the grid they are written to, made or extended as they need it.
"""
