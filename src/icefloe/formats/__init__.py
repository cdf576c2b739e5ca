"""Encode and decode the files of every generation. Pure functions: no I/O.

Modules
-------
- `byte_columns`: Byte strings and texts of different lengths, read and written as columns.
- `config_document`: The configuration of a repository as a plain document, as JSON holds it.
- `config_yaml`: The configuration of a repository in YAML, with variants as tags.
- `format`: What a generation of the format offers: names of files, and bytes to model and back.
- `header`: The 39-byte header of metadata files, and their zstd bodies. Decompression stops at a limit.
- `json_documents`: JSON that every reader accepts, fill values, and zarr.json split into members and joined again.
- `dataset`: The generation `dataset`: a state file, and Parquet for everything else.
- `flatbuf`: FlatBuffers files of the two official generations, read and written as columns.
- `icechunk1`: The official generation of icechunk 0.2 to 1.x: refs in `ref.json` files.
- `icechunk2`: The official generation of icechunk 2.x: refs and history in the `repo` file.
- `repository`: The generation `repository`: header, zstd and MessagePack.
- `store`: The generation `store`: JSON files that follow the schemas of the specification.
"""
