"""`Repository`, the class that users open. Each module holds one group of its methods as a mixin.

Modules
-------
- `administration`: Status, metadata, feature flags, operations log and metrics of a repository.
- `history`: Branches, tags, commits, diffs, the ancestry graph, and the content of single files.
- `maintenance`: Expiry, garbage collection, compaction, mirrors and checks, as methods of a repository.
- `merging`: Merges of branches, cherry-picks, reverts, fast-forwards and squashes, as methods of a repository.
- `repository`: The class `Repository`: create, open and configure repositories, and open sessions.
- `url`: URLs of a group or an array at a branch, a tag or a snapshot of a repository.
"""

from icefloe.repository.repository import Repository

__all__ = ["Repository"]
