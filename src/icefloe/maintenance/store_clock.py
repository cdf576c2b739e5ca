"""What time it is for the store: objects are judged by its clock, not by ours."""

from __future__ import annotations

import datetime as dt

from icefloe.errors import InvalidInputError
from icefloe.ids import new_object_id
from icefloe.storage.contract import Storage

FOLDER = "icefloe/"


async def cutoff_time(storage: Storage, older_than: dt.datetime | dt.timedelta) -> dt.datetime:
    """A time as given, or so long ago by the store's clock."""
    if isinstance(older_than, dt.datetime):
        return older_than if older_than.tzinfo is not None else older_than.replace(tzinfo=dt.UTC)
    if older_than < dt.timedelta(0):
        raise InvalidInputError(f"{older_than} is in the future; garbage is older than a time span, not younger")
    return await fetch_store_time(storage) - older_than


async def fetch_store_time(storage: Storage) -> dt.datetime:
    """The store's time: that of an object written for the purpose."""
    key = f"{FOLDER}clock-{new_object_id()}"
    await storage.put(key, b"what time is it?")
    try:
        return (await storage.head(key)).last_modified
    finally:
        await storage.delete([key])
