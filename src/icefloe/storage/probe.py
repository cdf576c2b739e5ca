"""Whether a storage keeps its word about conditional writes."""

from __future__ import annotations

import secrets

from icefloe.errors import AlreadyExistsError, OutcomeUnknownError, UnsupportedError, VersionMismatchError
from icefloe.storage.contract import Storage

_ADVICE = (
    "every writer would believe to have won and commits would be lost; use a store with conditional writes "
    "(If-None-Match and If-Match), or write from one process at a time elsewhere and copy"
)


async def check_conditional_writes(storage: Storage, folder: str = "") -> None:
    """UnsupportedError when the store takes a create of an object that is there, or a swap of a stale version."""
    key = f"{folder}probe-{secrets.token_hex(8)}"
    try:
        first = await storage.create(key, f"first {secrets.token_hex(8)}".encode())
        try:
            await storage.create(key, f"second {secrets.token_hex(8)}".encode())
        except AlreadyExistsError:
            pass
        else:
            raise UnsupportedError(f"{storage.url} creates an object that is there already: {_ADVICE}")
        second = await storage.swap(key, f"third {secrets.token_hex(8)}".encode(), first)
        try:
            await storage.swap(key, f"fourth {secrets.token_hex(8)}".encode(), first)
        except (VersionMismatchError, OutcomeUnknownError):
            pass
        else:
            raise UnsupportedError(f"{storage.url} replaces an object that changed since it was read: {_ADVICE}")
        if second == first:
            raise UnsupportedError(f"{storage.url} gives two states of an object the same version: {_ADVICE}")
    finally:
        await storage.delete([key])
