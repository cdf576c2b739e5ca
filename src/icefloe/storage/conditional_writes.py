"""Conditional writes: the outcome of a write whose answer was lost, and a probe that a store honours conditions."""

from __future__ import annotations

import asyncio
import enum
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from icefloe.errors import (
    AlreadyExistsError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    StorageError,
    UnsupportedError,
    VersionMismatchError,
)
from icefloe.storage.contract import Storage, Version, Versioned
from icefloe.storage.requests import RetryPolicy


class WriteOutcome(enum.Enum):
    """What lies under the key, seen by the writer."""

    OURS = "our own bytes"
    UNTOUCHED = "what was there before"
    OTHERS = "another writer's bytes"
    UNCLEAR = "nothing that says whose bytes these are"


@dataclass(frozen=True, slots=True)
class ConditionalWrite:
    """A create (no version) or a swap, as one try and one look."""

    action: str
    url: str
    attempt: Callable[[], Awaitable[Version]]
    look: Callable[[], Awaitable[tuple[WriteOutcome, Version]]]
    is_swap: bool


async def write_conditionally(write: ConditionalWrite, policy: RetryPolicy) -> Version:
    """Carry out a conditional write; a refusal or failure is believed only after a look.

    A refused try may be the repetition, somewhere below, of a try that had succeeded, or a store's way to say that
    another conditional write was under way which then failed.
    """
    doubtful = False
    last: IcefloeError = StorageError(f"cannot {write.action} in {write.url}: not tried")
    for pause in policy.pauses():
        try:
            return await write.attempt()
        except (AlreadyExistsError, VersionMismatchError) as refusal:
            last = refusal
        except PermissionDeniedError:
            raise
        except StorageError as failure:
            doubtful = True
            last = failure
        try:
            outcome, version = await write.look()
        except (StorageError, InvalidInputError) as unseen:
            raise (_unknown(write, "and it cannot be looked at") if doubtful else last) from unseen
        if outcome is WriteOutcome.OURS:
            return version
        if outcome is WriteOutcome.UNTOUCHED:
            await asyncio.sleep(pause)
            continue
        # A created object is never replaced by another creator, but a swapped one may be swapped again.
        if doubtful and (write.is_swap or outcome is WriteOutcome.UNCLEAR):
            raise _unknown(write, f"and {outcome.value} is there now") from last
        raise _refused(write) from last
    if doubtful:
        raise _unknown(write, "and the object does not show the write") from last
    raise last


def _refused(write: ConditionalWrite) -> IcefloeError:
    if write.is_swap:
        return VersionMismatchError(f"cannot {write.action} in {write.url}: it has changed since it was read")
    return AlreadyExistsError(f"cannot {write.action} in {write.url}: it already exists")


def _unknown(write: ConditionalWrite, found: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"the result of the request to {write.action} in {write.url} is unknown: the response was lost, {found}. Look "
        "at the object before you retry"
    )


async def look_by_content(
    fetch: Callable[[], Awaitable[Versioned]], data: bytes | memoryview, before: Version | None
) -> tuple[WriteOutcome, Version]:
    """Recognise our own write by its bytes, which no other writer would write."""
    try:
        found = await fetch()
    except ObjectNotFoundError:
        return (WriteOutcome.UNTOUCHED if before is None else WriteOutcome.OTHERS), Version()
    if found.data == data:
        return WriteOutcome.OURS, found.version
    is_before = before is not None and found.version.agrees_with(before)
    return (WriteOutcome.UNTOUCHED if is_before else WriteOutcome.OTHERS), found.version


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
            raise UnsupportedError(f"{storage.url} creates an object although it exists: {_ADVICE}")
        second = await storage.swap(key, f"third {secrets.token_hex(8)}".encode(), first)
        try:
            await storage.swap(key, f"fourth {secrets.token_hex(8)}".encode(), first)
        except (VersionMismatchError, OutcomeUnknownError):
            pass
        else:
            raise UnsupportedError(f"{storage.url} replaces an object although it has changed: {_ADVICE}")
        if second == first:
            raise UnsupportedError(f"{storage.url} reports the same version for two different contents: {_ADVICE}")
    finally:
        await storage.delete([key])
