"""The object that keeps a repository's configuration, replaced only if nobody else did."""

from __future__ import annotations

from icefloe.errors import AlreadyExistsError, ConflictError, ObjectNotFoundError, VersionMismatchError
from icefloe.storage.contract import Storage, Version


async def save_config_file(storage: Storage, key: str, data: bytes, mark: Version | None) -> None:
    """Create the object, or replace the version that was read; ConflictError when it is another one by now."""
    try:
        if mark is None:
            await storage.create(key, data, unique=False)
        else:
            await storage.swap(key, data, mark, unique=False)
    except (AlreadyExistsError, VersionMismatchError, ObjectNotFoundError) as error:
        raise ConflictError("the stored configuration changed since it was read; fetch it, then save") from error
