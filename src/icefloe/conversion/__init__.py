"""Convert a repository from one generation to another, in place or to another location.

Modules
-------
- `convert`: Convert a repository to another generation: survey, plan, write, compare, and then switch.
- `survey`: Survey a repository before a conversion: history, refs, nodes, and what the target generation cannot
  store.
- `transfer`: Write the files of the target: chunks first, then manifests, then snapshots. Then compare both
  repositories.
- `translate`: Translate ids, manifests, snapshots and logs of one generation into those of another. Pure functions.
"""
