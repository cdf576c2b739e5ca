"""What time it is for the store: objects are judged by its clock, not by ours."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from icefloe.environment import current_time
from icefloe.errors import InvalidInputError
from icefloe.ids import new_object_id
from icefloe.session.history import check_past, check_zone
from icefloe.storage.contract import Storage

FOLDER = "icefloe/"
_ARGUMENT = "delete_object_older_than"
_RESOLUTION = dt.timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Up to what time objects are judged, and what time it was when that was decided; both by the store's clock."""

    time: dt.datetime
    now: dt.datetime

    def started(self, age: dt.timedelta) -> dt.datetime:
        """The earliest time that the store may have given to an object of a writer of this age."""
        began = self.now - age
        # A store that tells whole seconds cuts the rest off.
        return began if self.now.microsecond else began.replace(microsecond=0)


async def fetch_cutoff(storage: Storage, older_than: dt.datetime | dt.timedelta) -> Cutoff:
    """A time as given, or so long ago by the store's clock; never one that is in the future by that clock."""
    if isinstance(older_than, dt.datetime):
        check_zone(older_than, _ARGUMENT)
        # A plan may be made where nothing can be written; nothing is deleted there either.
        now = current_time() if storage.read_only else await fetch_store_time(storage)
        check_past(older_than, _ARGUMENT, now)
        # Some stores tell whole seconds.
        return Cutoff(older_than if older_than <= now + _RESOLUTION else now, now)
    if older_than < dt.timedelta(0):
        raise InvalidInputError(f"{older_than} is in the future; garbage is older than a time span, not younger")
    now = await fetch_store_time(storage)
    return Cutoff(now - older_than, now)


async def fetch_store_time(storage: Storage) -> dt.datetime:
    """The store's time: that of an object written for the purpose."""
    key = f"{FOLDER}clock-{new_object_id()}"
    await storage.put(key, b"what time is it?")
    try:
        return (await storage.head(key)).last_modified
    finally:
        await storage.delete([key])
