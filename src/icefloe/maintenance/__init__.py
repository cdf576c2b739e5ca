"""Operations on a whole repository: expire, collect garbage, compact, merge, mirror, verify, recover.

Modules
-------
- `collect`: Collect garbage: list, mark, plan, check again, then delete in an order that is safe to interrupt.
- `compact`: Rewrite chunks into packs or out of them, in batches that are committed one by one.
- `expire`: Expire snapshots by age, number, rule or name.
- `inspect`: The content of single files as plain data, and how many bytes chunks take.
- `inventory`: The refs, history and objects of a whole repository, read without caches and listed as columns.
- `marking`: Everything that must stay: what branches and tags lead to, and what is too young to be judged.
- `merge`: Apply changes of one branch to another: merge, cherry-pick, revert, fast-forward, squash.
- `mirror`: Copying a repository to another storage, object by object, again and again at the cost of what is new.
- `verify`: Verify that everything that refs lead to is there and is whole, and repair what can be repaired.
- `verify_checks`: The checks of a verification: chunks, transaction logs, and the report.
"""
