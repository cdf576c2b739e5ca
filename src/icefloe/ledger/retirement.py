"""How a generation makes way for another one under the same root, and how its refs are taken away.

As long as one object marks the old generation it opens with all its refs as they were; that object goes in one step.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence

from icefloe.errors import ObjectNotFoundError
from icefloe.formats.dataset.state import STATE_KEY
from icefloe.formats.icechunk2.operations_log import OVERWRITTEN, new_backup_name
from icefloe.ledger.icechunk2 import REPO_KEY
from icefloe.ledger.sequence import CONFIG_KEY, names_generation, stored_config
from icefloe.ledger.sequence_files import FRESH_SECONDS, parse_sequence
from icefloe.model.capabilities import SpecVersion
from icefloe.storage.contract import Storage

JOURNAL_KEY = "icefloe-conversion.json"
"""The object that tells of a conversion under way."""
_CONFIG_KEYS = {
    SpecVersion.STORE: ("config.json",),
    SpecVersion.REPOSITORY: ("config.json", "config.yaml"),
    SpecVersion.ICECHUNK1: ("config.yaml",),
}
_REFS = {SpecVersion.STORE: "r/", SpecVersion.REPOSITORY: "refs/", SpecVersion.ICECHUNK1: "refs/"}
_MAIN = ("r/main/", "r/branch:main/", "refs/branch.main/", "refs/branch:main/")


def shares_refs(first: SpecVersion, second: SpecVersion) -> bool:
    """Whether two generations keep refs under the same names, so that they cannot stand beside each other."""
    return first is not second and _REFS.get(first, first) == _REFS.get(second, second)


def comes_first(first: SpecVersion, second: SpecVersion) -> bool:
    """Whether a place that holds both generations opens as the first one."""
    return first > second


async def find_marks(storage: Storage) -> set[SpecVersion]:
    """Every generation that has refs at a place; more than one while a conversion is under way."""
    found = set()
    if await storage.exists(REPO_KEY):
        found.add(SpecVersion.ICECHUNK2)
    if await storage.exists("refs/branch.main/ref.json"):
        found.add(SpecVersion.ICECHUNK1)
    for folder in _MAIN:
        if any(parse_sequence(name) for name in await storage.list_names(folder)):
            found.add(SpecVersion.STORE if folder.startswith("r/") else SpecVersion.REPOSITORY)
    if await storage.exists(STATE_KEY):
        found.add(SpecVersion.DATASET)
    if await storage.exists(CONFIG_KEY) and names_generation(await storage.get_versioned(CONFIG_KEY)):
        found.add(SpecVersion.REPOSITORY)
    return found


async def step_back(storage: Storage, version: SpecVersion) -> None:
    """Let a generation be found only by its refs, not by what its configuration says.

    Where the other generation comes first this is the step that lets it be found.
    """
    if version is not SpecVersion.REPOSITORY:
        return
    try:
        found = await storage.get_versioned(CONFIG_KEY)
    except ObjectNotFoundError:
        return
    if not names_generation(found):
        return
    document = stored_config(found).document
    if document is None:
        await storage.delete([CONFIG_KEY])
    else:
        await storage.swap(CONFIG_KEY, json.dumps(document, indent=2).encode(), found.version, unique=False)


async def retire(storage: Storage, version: SpecVersion, successor: SpecVersion) -> None:
    """Take the refs and configuration of a generation away; its other files stay."""
    if version is SpecVersion.ICECHUNK2:
        if await storage.exists(REPO_KEY):
            backup = new_backup_name(time.time_ns() // 1000)
            await storage.copy(REPO_KEY, f"{OVERWRITTEN}{backup}")
            await storage.delete([REPO_KEY])
    elif version is SpecVersion.DATASET:
        await storage.delete([STATE_KEY])
    else:
        await _remove_refs(storage, _REFS[version])
        if version is not SpecVersion.ICECHUNK1:
            # Who saw a branch a moment ago creates the next file without another look, see FRESH_SECONDS.
            await asyncio.sleep(FRESH_SECONDS + 0.1)
    kept = _CONFIG_KEYS.get(successor, ())
    keys = [key for key in _CONFIG_KEYS.get(version, ()) if key not in kept]
    if keys:
        await storage.delete(keys)


async def _remove_refs(storage: Storage, folder: str) -> None:
    keys: list[str] = []
    async for page in storage.list(folder):
        keys += [item.key for item in page]
    # Names of branch files fall: the newest of `main`, which says where it stands, comes first and goes last.
    main = sorted((key for key in keys if key.startswith(_MAIN)), reverse=True)
    await _delete_one_by_one(storage, main)
    rest = [key for key in keys if not key.startswith(_MAIN)]
    if rest:
        await storage.delete(rest)


async def _delete_one_by_one(storage: Storage, keys: Sequence[str]) -> None:
    for key in keys:
        await storage.delete([key])
