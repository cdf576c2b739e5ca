"""Operations on a whole repository: expire, collect garbage, compact, merge, mirror, verify, recover.

Modules
-------
- `collect`: Collect garbage: list, mark, plan, check again, then delete in an order that is safe to interrupt.
- `compact`: Rewrite chunks into packs or out of them, or merge them, in batches that are committed one by one.
- `expire`: Expire snapshots by age, number, rule or name.
- `inspect`: The content of single files as plain data, and the total size of chunks.
- `inventory`: The refs, history and objects of a whole repository, read without caches and listed as columns.
- `marking`: Mark everything that must be kept: what is reachable from refs, and what is too young to be deleted.
- `merge`: Apply changes of one branch to another: merge, cherry-pick, revert, fast-forward, squash.
- `mirror`: Copy a repository to another storage. A repeated copy transfers only new objects.
- `verify`: Verify that everything reachable from refs exists and is intact, and repair what can be repaired.
- `verify_checks`: The checks of a verification: chunks, transaction logs, and the report.
- `verify_sources`: Check every virtual reference against its file, and report by file.
"""
