"""How an update enters the operations log of a repo file, and how the log is cut into pages."""

from __future__ import annotations

import dataclasses

from icefloe.environment import random_bytes
from icefloe.formats.flat.flexible import decode_flexible
from icefloe.formats.icechunk2.repo_info import RepoInfo, Update
from icefloe.ids import encode_base32

OVERWRITTEN = "overwritten/"
DEFAULT_PAGE = 1000
_PAGE_KEY = "num_updates_per_repo_info_file"
_END_OF_TIME_MS = 32_503_680_000_000
"""The year 3000: names count down to it, so that the newest comes first in a listing."""


def new_backup_name(now_us: int) -> str:
    """A fresh name in `overwritten/` for the repo file that is about to be replaced."""
    return f"repo.{_END_OF_TIME_MS - now_us // 1000:014d}.{encode_base32(random_bytes(12))}"


def next_update_time(info: RepoInfo, now_us: int) -> int:
    """When an update says it happened: now, but later than the newest one."""
    return max(now_us, info.updates[0].at_us + 1)


def push_update(info: RepoInfo, update: Update, backup: str) -> RepoInfo:
    """The repository with one more update; `backup` is the name under which its present file will be kept."""
    newest, *older = info.updates
    listed = (update, dataclasses.replace(newest, backup=backup), *older)
    page = page_size(info)
    before = info.updates_before
    for position in range(page, len(listed)):
        name = listed[position].backup
        if name is not None:
            listed, before = listed[:position], name
            break
    return dataclasses.replace(info, updates=listed, updates_before=before)


def page_size(info: RepoInfo) -> int:
    """How many updates a repo file keeps, by the repository's own configuration."""
    if info.config is None:
        return DEFAULT_PAGE
    config = decode_flexible(info.config)
    size = config.get(_PAGE_KEY) if isinstance(config, dict) else None
    return size if isinstance(size, int) and size >= 1 else DEFAULT_PAGE
