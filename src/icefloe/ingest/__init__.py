"""Ingest: files of many formats to one consistent repository. Usable without Spark.

Modules
-------
- `access`: Read the bytes of sources. Local files are read directly, other files through a storage.
- `array_plan`: The plan of one target array, the conversion of source values to its values, and what a sync changes
  in it.
- `catalogue`: The catalogue of a synced group: which version of which source is where in its arrays.
- `cf`: CF conventions: times in any calendar, packed numbers, missing values.
- `chunk_grids`: Chunk grids: coordinates of chunks, boxes, and tables of references built from columns.
- `derived_arrays`: Arrays that are made of others: best-estimate views of forecasts, and overviews of large arrays.
- `local_ingest`: Run a whole ingest in one process, without Spark, and read what the repository has.
- `members`: The datasets of an ingest: one member per file and group, and what differs between members.
- `placement`: The positions of the cells of each file in the combined arrays and in the arrays of the repository.
- `plan`: The plan of an ingest. It can be pickled and is made before anything is written.
- `record`: What a repository stores about its sources: lists of ingested files and containers, and how files
  changed since.
- `runs`: Runs: sources that are planned together, like one source.
- `schema_table`: The schemas of many sources. What similar sources share is in memory once, and the rest in columns.
- `source_files`: Many source files as Arrow columns, and their natural order.
- `source_model`: The content of a source file as values, and the report of the differences between files.
- `sources`: The options of an ingest, the files that sources stand for, and the coordinates in their names.
- `sync`: Keep an archive equal to its sources: add, replace, move and remove what changed since the last sync.
- `sync_plan`: Plan a sync: compare where every source is in a new ingest of all sources with where the last sync
  put it.
- `target_arrays`: The arrays of the target: shape, chunks and type for all files and for the arrays of the
  repository.
- `write_tasks`: Split an ingest into tasks that share no chunk, and run one task.
- `zarr_documents`: zarr.json documents of groups and arrays, built and checked by zarr's own metadata classes.
- `parsers`: Parsers: the arrays, attributes and chunk references of one source file.
"""

from icefloe.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
