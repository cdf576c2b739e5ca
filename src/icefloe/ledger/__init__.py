"""Branches, tags and history: the mutable state of a repository, one module per generation.

Modules
-------
- `dataset`: Refs and history of the generation `dataset`: everything is in `state.json`, and every change swaps
  that file.
- `generations`: The generations: each is one object with its format, ledger, detection, import and removal.
- `icechunk1`: Refs and history of the first official generation: one `ref.json` per branch and tag, parents in the
  snapshots.
- `icechunk2`: Refs and history of the second official generation: everything is in the `repo` file, and every
  change swaps it.
- `ledger`: The contract of a ledger: refs and history of one repository.
- `quoted_history`: History in generations whose snapshots quote their newest ancestors: walk it, and rewrite it.
- `recover`: Recover refs, the file that contains all refs, and the stored configuration.
- `repository`: Refs and history of the generation `repository`: a commit creates the next branch file.
- `repository_refs`: The files of refs in the generation `repository`: their names and their content.
- `store`: Refs and history of the generation `store`: a commit creates the next branch file under `r/`.
- `switch_generation`: Switch a repository to another generation: what its ledgers do when they import history or
  remove their refs.
"""
