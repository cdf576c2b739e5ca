"""Arrays as tables: SQL, grids, selections, scans and metadata as Arrow columns.

Modules
-------
- `aggregates`: Aggregates of arrays, computed chunk by chunk with numpy. Cells do not become rows.
- `chunk_values`: Values of chunks or parts of chunks, fetched and decoded ahead of their use.
- `columns`: Stored values of arrays to values of table columns, and back.
- `evaluate`: Evaluate conditions: on rows, on cells of a block, and on ranges of values.
- `grids`: Find the arrays of a group that form one table, and parse times.
- `metadata_tables`: Metadata of a repository as tables, and its commits as a stream of changes.
- `predicates`: Conditions on columns: the values of a WHERE clause, parsed from SQL.
- `queries`: SQL over arrays and metadata with DuckDB, in this process: plan the query, register what it reads, run
  it.
- `reading`: Read one share of a scan: blocks of arrays as Arrow batches, in one of three layouts.
- `scans`: The plan of a table read: a grid at a snapshot, the blocks that can match, and their distribution over
  tasks.
- `selection`: Select the part of a grid that a condition or a region can match: cells per dimension, and blocks.
- `sql_plan`: The plan of a SQL query: for each table, the snapshot, columns and conditions, and aggregates that
  chunks can answer.
- `sql_planner`: Plan SQL queries: find tables, columns and conditions, and replace aggregates that chunks can
  answer.
- `statistics`: Statistics per chunk: ranges and totals. They are stored in the repository and valid only for
  unchanged chunks.
- `table_options`: The options of a table (repository, snapshot, selection, layout), and opening the repository in a
  task.
- `table_scan`: Cells of arrays for other engines: an Arrow stream, pandas, a Polars lazy frame, a DuckDB relation.
- `targets`: Write rows to a grid, which is created or extended as needed: rows become fragments of blocks, and then
  chunks.
- `views`: Names of tables in SQL: the views of a snapshot, and how a name or a revision of a query is found.
"""

from icefloe.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
