"""The upgrade of the official package, under its own name."""

from __future__ import annotations

from icefloe.conversion.convert import upgrade
from icefloe.errors import InvalidInputError
from icefloe.model.capabilities import SpecVersion
from icefloe.repository import Repository


def upgrade_icechunk_repository(
    repo: Repository,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
) -> Repository:
    """Bring a repository to the newest official generation where it is; returns the upgraded repository.

    Nobody else may use it meanwhile. The given repository must not be used afterwards.

    Parameters
    ----------
    dry_run
        Only check that it can be done.
    delete_unused_v1_files
        Remove refs and configuration of the old generation.
    prefetch_concurrency
        Accepted for the sake of scripts; reads are scheduled by the library.
    """
    if repo.spec_version is SpecVersion.current():
        raise InvalidInputError(f"{repo.storage.url} is of generation {repo.spec_version.value!r} already")
    done = upgrade(repo, SpecVersion.current(), keep_source=not delete_unused_v1_files, dry_run=dry_run)
    return repo if done.repository is None else done.repository
