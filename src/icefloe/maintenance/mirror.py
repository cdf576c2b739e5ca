"""Copy a repository to another storage. A repeated copy transfers only new objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icefloe.blocking import current_time
from icefloe.display.card import TextCardMixin, format_bytes, format_count
from icefloe.errors import InvalidInputError, ObjectNotFoundError
from icefloe.ledger.generations import detect_generation
from icefloe.maintenance.collect import folders_of
from icefloe.maintenance.inventory import FOLDER, UncachedRepository, open_uncached, report_progress, stream_bounded
from icefloe.session.open_repository import RepositoryContext
from icefloe.storage.contract import ObjectInfo, Storage

_COPIES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class MirrorPlan(TextCardMixin):
    """The objects to copy: chunks first, refs last. `removed` are refs that the source no longer has."""

    copied: tuple[ObjectInfo, ...]
    removed: tuple[str, ...]
    unchanged: int

    def __str__(self) -> str:
        size = sum(item.size_bytes for item in self.copied)
        return (
            f"{format_count(len(self.copied), 'object')} ({format_bytes(size)}) to copy, {self.unchanged:,} are there, "
            f"{len(self.removed)} to remove"
        )


async def plan_mirror(context: RepositoryContext, target: Storage) -> MirrorPlan:
    """Plan a mirror."""
    return (await _prepare(context, target))[0]


async def _prepare(context: RepositoryContext, target: Storage) -> tuple[MirrorPlan, dict[str, bytes]]:
    """The plan, and the bytes of refs as they were before the listing.

    The objects that refs refer to exist at that time, so they are listed and copied. Objects with random names are
    equal if their sizes are. Objects that can change in place are also compared by time, and copied in case of doubt.
    """
    await _check_target(context, target)
    uncached = open_uncached(context)
    order = _folders(uncached)
    theirs = {item.key: item async for page in target.list("") for item in page}
    mutable = [item for item in await _list(uncached.storage) if _rank(item.key, order) > len(order)]
    changed = [item for item in mutable if _differs(item, theirs.get(item.key), ())]
    captured: dict[str, bytes] = {}
    async for key, data in stream_bounded(lambda item: _capture(uncached.storage, item), changed, _COPIES_AT_ONCE):
        if data is not None:
            captured[key] = data
    files = [item for item in await _list(uncached.storage) if _rank(item.key, order) < len(order)]
    copied = [item for item in files if _differs(item, theirs.get(item.key), tuple(order[:-1]))]
    copied += [item for item in changed if item.key in captured]
    copied.sort(key=lambda item: (_rank(item.key, order), item.key))
    present = {item.key for item in mutable}
    removed = [key for key in theirs if key not in present and _rank(key, order) > len(order)]
    unchanged = len(files) + len(mutable) - len(copied)
    return MirrorPlan(tuple(copied), tuple(sorted(removed)), unchanged), captured


async def _list(storage: Storage) -> list[ObjectInfo]:
    return [item async for page in storage.list("") for item in page if not item.key.startswith(FOLDER)]


async def _capture(storage: Storage, item: ObjectInfo) -> tuple[str, bytes | None]:
    try:
        return item.key, await storage.get(item.key)
    except ObjectNotFoundError:
        return item.key, None


def _folders(uncached: UncachedRepository) -> list[str]:
    folders = folders_of(uncached)
    return [
        folders[kind]
        for kind in ("chunks", "attributes", "manifests", "transaction_logs", "snapshots")
        if kind in folders
    ]


def _rank(key: str, order: Sequence[str]) -> int:
    for rank, folder in enumerate(order):
        if key.startswith(folder):
            return rank
    return len(order) + 1


def _differs(ours: ObjectInfo, theirs: ObjectInfo | None, immutable: tuple[str, ...]) -> bool:
    if theirs is None or theirs.size_bytes != ours.size_bytes:
        return True
    if ours.key.startswith(immutable):
        return False
    return theirs.last_modified < ours.last_modified


async def _check_target(context: RepositoryContext, target: Storage) -> None:
    there = await detect_generation(target)
    if there is not None and there is not context.format.spec_version:
        raise InvalidInputError(
            f"{target.url} contains a repository of generation {there.value!r}. Mirror to another storage"
        )
    if there is None and not await target.is_empty():
        raise InvalidInputError(f"{target.url} contains objects that are not a repository. Mirror to an empty storage")
    if there is not None and not await _is_a_copy(context, target):
        raise InvalidInputError(
            f"{target.url} contains another repository: it has no snapshot in common with {context.storage.url}, and "
            "the mirror would replace its branches. Mirror to an empty storage, or delete that repository first"
        )


async def _is_a_copy(context: RepositoryContext, target: Storage) -> bool:
    """Whether the target has a snapshot of the source, or only the first one, which all repositories share."""
    folder = context.format.snapshots_folder
    theirs = set(await target.list_names(folder))
    theirs.discard(context.format.initial_snapshot(current_time()).id + context.format.metadata_extension)
    return not theirs or not theirs.isdisjoint(await context.storage.list_names(folder))


async def mirror(context: RepositoryContext, target: Storage) -> MirrorPlan:
    """Make the target a copy of the repository. Concurrent readers see the old state or the new one.

    There must be no other writer to the target. Objects that the source no longer has stay until garbage is collected
    there.
    """
    plan, captured = await _prepare(context, target)
    uncached = open_uncached(context)
    order = _folders(uncached)

    async def copy(key: str) -> None:
        data = captured.get(key)
        if data is None:
            try:
                data = await uncached.storage.get(key)
            except ObjectNotFoundError:
                return  # collected since the listing; no copied object refers to it
        await target.put(key, data)

    done = 0
    for rank in sorted({_rank(item.key, order) for item in plan.copied}):
        batch = [item.key for item in plan.copied if _rank(item.key, order) == rank]
        async for _ in stream_bounded(copy, batch, _COPIES_AT_ONCE):
            done += 1
            report_progress("copy objects", done, len(plan.copied))
    if plan.removed:
        await target.delete(plan.removed)
    return plan
