"""Icefloe on Apache Spark: sessions, distributed jobs, tables. The only package that imports pyspark.

Modules
-------
- `connect`: A Spark session for Python work on arrays: Java, settings, this package sent to executors, quiet
  workers.
- `copy`: Copy snapshots to another repository, rechunk arrays, and build overviews of arrays.
- `export`: Export snapshots as plain Zarr v3 or as Parquet tables.
- `ingest`: Ingest many files on Spark with one commit, and keep an archive equal to its files.
- `ingest_commit`: From the first pass of an ingest to its commit: plan, tasks, link, commit, and retry after a
  conflict.
- `jobs`: What every job on Spark has: arguments, an outcome, and a progress bar in terminals and notebooks.
- `maintenance`: Maintenance as Spark jobs: garbage collection, statistics, compaction, audits of virtual files.
- `map_blocks`: Apply a function to the blocks of a dataset and commit the results.
- `partial_results`: Partial results of reductions: computed per chunk or block, merged as a tree.
- `publish`: Write, audit, publish: checks of a staging branch before its changes reach the target branch.
- `pushdown`: Filters and limits that Spark pushes into a Python data source: whether this Spark does it right, and
  what they mean.
- `reduce`: Reduce whole arrays over named dimensions.
- `source`: The Spark data source `icefloe` for tables and streams, and the SQL table function `icefloe_scan`.
- `table`: Arrays as DataFrames, temporary views, and SQL queries that are planned before Spark runs them.
- `tasks`: Run Python functions as Spark tasks, with a progress bar, and write one session from many tasks.
- `write`: Write rows and streams of rows into arrays. The rows are shuffled, so that one task has all rows of a
  chunk.
"""

import sys

from icefloe.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

if getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None) == "pyspark.daemon":
    # A Spark worker imports this package before it runs anything of it.
    from icefloe.spark.connect import suppress_shutdown_traceback

    suppress_shutdown_traceback()
