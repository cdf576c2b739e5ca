"""Values of the domain: nodes, snapshots, chunk tables, logs, configuration. No I/O, no bytes.

Modules
-------
- `capabilities`: What a generation of the format can do. Code asks for capabilities, not for names of generations.
- `chunk_table`: Chunk references as columns, sorted by coordinates: of one array, or of many arrays together.
- `config`: The configuration of a repository.
- `config_value`: The definition of settings, and the base of the configuration classes.
- `manifest_conditions`: Conditions on arrays and dimensions, for manifest splitting and preloading, and their
  regular expressions.
- `manifest_config`: How chunk references are divided into manifest files: sets, rules, splitting and preloading.
- `manifest_lists`: Manifest lists: files with neighbouring manifests of an array that has very many of them.
- `snapshot`: Nodes, snapshots, transaction logs, and the differences between two snapshots.
- `status`: The administration of a repository: its status, feature flags, operations log, and damages that a check
  finds.
- `virtual_chunk_container`: Virtual chunk containers and the configuration of their object stores. Neither contains
  credentials.
- `zarr_document`: Node paths, chunk keys, chunk grids, bounds on decoded sizes, and the parts of a zarr.json that
  the engine needs.
"""
