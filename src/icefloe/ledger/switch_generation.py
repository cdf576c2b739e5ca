"""Switch a repository to another generation: what its ledgers do when they import history or remove their refs.

One object identifies the old generation. As long as it exists, the repository opens in the old generation with all its
refs. It is removed in one step.

A conversion writes all other files first and refs last. The last ref is `main`, or the file that holds all refs. Until
then no reader finds the new generation. From then on every reader finds all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from icefloe.errors import AlreadyExistsError, ConflictError, RefNotFoundError
from icefloe.ids import ObjectId
from icefloe.ledger.ledger import FRESH_SECONDS, MAIN, Ledger, WholeHistory
from icefloe.storage.contract import Storage


async def put_whole(
    storage: Storage, key: str, data: bytes, *, metadata: Mapping[str, str] | None = None, replace_leftovers: bool
) -> None:
    """Create the one file that holds all refs and history."""
    try:
        await storage.create(key, data, metadata=metadata)
    except AlreadyExistsError:
        if not replace_leftovers:
            raise
        found = await storage.get_versioned(key)
        await storage.swap(key, data, found.version, metadata=metadata)


async def create_refs(ledger: Ledger, history: WholeHistory) -> None:
    """Create refs one after the other, `main` last. Refs that an interrupted run left are corrected."""
    for name in await ledger.list_branches() - history.branches.keys() - {MAIN}:
        await ledger.delete_branch(name)
    for name, tip in history.branches.items():
        if name != MAIN:
            await _put_branch(ledger, name, tip)
    for name, target in history.tags.items():
        await _put_tag(ledger, name, target)
    for name in history.deleted_tags:
        await ledger.import_deleted_tag(name)
    if history.config is not None:
        await ledger.import_config(history.config)
    tip = history.branches[MAIN]
    snapshot = await ledger.metadata_files.fetch_snapshot(tip)
    try:
        await ledger.create(snapshot, None)
    except AlreadyExistsError:
        if (await ledger.fetch_tip(MAIN)).snapshot_id != tip:
            raise
        await ledger.finish_import()


async def _put_branch(ledger: Ledger, name: str, tip: ObjectId) -> None:
    try:
        await ledger.create_branch(name, tip)
    except AlreadyExistsError:
        await ledger.reset_branch(name, tip, None)


async def _put_tag(ledger: Ledger, name: str, target: ObjectId) -> None:
    try:
        await ledger.create_tag(name, target)
    except AlreadyExistsError:
        found = await _find_tag(ledger, name)
        if found != target:
            raise ConflictError(
                message=f"the tag {name!r} is at {found} after an interrupted run, expected {target}. Empty the target "
                "and start again",
                expected_parent=target,
                actual_parent=found,
            ) from None


async def _find_tag(ledger: Ledger, name: str) -> ObjectId | None:
    try:
        return await ledger.fetch_tag(name)
    except RefNotFoundError:
        return None


async def remove_refs(storage: Storage, folder: str, main: tuple[str, ...]) -> None:
    """Remove a folder of refs. The files of the branch `main` go first, one by one, in an order that keeps its tip.

    `main` are the folders of that branch.
    """
    keys: list[str] = []
    async for page in storage.list(folder):
        keys += [item.key for item in page]
    # Names of branch files descend: the newest of `main`, which contains its tip, is listed first and removed last.
    for key in sorted((key for key in keys if key.startswith(main)), reverse=True):
        await storage.delete([key])
    rest = [key for key in keys if not key.startswith(main)]
    if rest:
        await storage.delete(rest)


async def wait_for_writers() -> None:
    """Wait until no writer creates a branch file without another read, see FRESH_SECONDS.

    The announcement of a conversion has the next branch file until the refs are removed.
    """
    await asyncio.sleep(FRESH_SECONDS + 0.1)
