"""FlatBuffers files of the two official generations, read and written as columns.

Modules
-------
- `decode`: Read flatbuffers: single tables field by field, or many tables of one type as columns. Bounds are
  checked.
- `encode`: Flatbuffers written in columns: tables of one kind share a vtable and a stride, parents precede
  children.
- `files`: Whole files of the official generations: header, body, and the transaction log.
- `flexbuffers`: FlexBuffers values and the named metadata items of snapshots and repositories.
- `manifest`: Manifests of the official generations: flatbuffers to columns and back, and search without decoding
  all.
- `snapshot`: Snapshots of the official generations: flatbuffers to model values and back.
"""
