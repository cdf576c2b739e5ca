"""`Repository`, the class that users open. Each module holds one group of its methods as a mixin.

Modules
-------
- `administration`: Status, metadata, feature flags and operations log of a repository.
- `history`: Branches, tags, commits, diffs, the ancestry graph, and the content of single files.
- `maintenance`: Maintenance and merging of branches, as methods of a repository.
- `metrics`: What a repository costs: requests, bytes, cache hits and durations.
- `repository`: A repository as its user sees it: created, opened, configured, and asked for sessions.
"""

from icefloe.repository.repository import Repository

__all__ = ["Repository"]
