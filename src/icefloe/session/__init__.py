"""Sessions: read and change one snapshot, then commit or rebase.

Modules
-------
- `ancestry`: Resolve refs and times to snapshots, walk ancestry, merge logs, and compare snapshots.
- `change_set`: What a session has changed and not committed yet: nodes, edits of chunks, and where the bytes of a
  chunk go.
- `commit`: Commit, amend and rebase: write the files of a commit, check for collected files, move the branch.
- `commit_files`: The files of a commit: manifests, attributes, snapshot and transaction log of a change set.
- `fork`: Forks and parts: the results of the workers of a distributed write, and how a session merges them.
- `keyspace`: A session seen as Zarr keys: what a key names, and which keys there are.
- `open_repository`: Create, find and open repositories of any generation; stored configuration; running writers and
  collections.
- `races`: Races between writers of one branch: pauses after a lost one, and what writers of one process share.
- `rebase`: Rebase a change set over commits that were made in the meantime: conflicts, solvers, false conflicts.
- `references`: Set virtual references and move chunks within an array, without touching their bytes.
- `session`: The classes `Session` and `ForkSession`: a view of one snapshot, and the changes made on top of it.
- `session_chunks`: Methods of a session that work on chunks: virtual references, moves in the grid, coordinates and
  kinds.
- `session_state`: The state of one session: nodes, references and chunks of a base snapshot with changes on top.
"""
