"""Types of arguments, as `icechunk.types`."""

from __future__ import annotations

from typing import Literal

CommitMethod = Literal["new_commit", "amend"]

__all__ = ["CommitMethod"]
