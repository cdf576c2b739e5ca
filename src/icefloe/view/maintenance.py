"""Maintenance at a glance: what expiry and garbage collection would free, and the latest operations."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from typing import Any

from icefloe.blocking import current_time, run_blocking
from icefloe.errors import UnsupportedError
from icefloe.maintenance.collect import KINDS, CollectionPlan, CollectionRequest, plan_collection_of
from icefloe.maintenance.inventory import UncachedRepository, open_uncached
from icefloe.storage.contract import Storage
from icefloe.storage.wrappers import WrappedStorage
from icefloe.view.history import ViewedRepository, plain

_MOST_OPERATIONS = 50


class _ReadOnlyStorage(WrappedStorage):
    """A storage that says it is read-only, so that a plan does not write an object to learn the time of the store."""

    @property
    def read_only(self) -> bool:
        return True

    def _rewrap(self, inner: Storage) -> Storage:
        return _ReadOnlyStorage(inner)


def maintenance(viewed: ViewedRepository, keep_days: float, grace_days: float) -> dict[str, Any]:
    """The plans of an expiry and of a garbage collection. Nothing is changed."""
    expiry = viewed.repository.plan_expiry(older_than=dt.timedelta(days=keep_days))
    cutoff = current_time() - dt.timedelta(days=grace_days)
    request = CollectionRequest(cutoff, None, ignore_running=True)
    plan = run_blocking(plan_collection_of(_read_only(open_uncached(viewed.context)), request)).plan
    return {
        "expiry": {
            "older_than_days": keep_days,
            "expired": len(expiry.expired),
            "kept": expiry.kept,
            "oldest": min((info.written_at for info in expiry.expired), default=None),
        },
        "collection": {"grace_days": grace_days, **_collection_json(plan)},
        "operations": _operations(viewed),
    }


def _read_only(uncached: UncachedRepository) -> UncachedRepository:
    return dataclasses.replace(uncached, storage=_ReadOnlyStorage(uncached.storage))


def _collection_json(plan: CollectionPlan) -> dict[str, Any]:
    kinds = [
        {
            "kind": kind.replace("_", " "),
            "garbage": len(plan.garbage[kind]),
            "bytes": int(plan.garbage[kind].size.sum()),
            "in_use": plan.live.get(kind, 0),
            "too_young": plan.young.get(kind, 0),
        }
        for kind in KINDS
    ]
    return {"cutoff": plan.cutoff, "kinds": kinds, "bytes": plan.summary().bytes_deleted}


def _operations(viewed: ViewedRepository) -> list[dict[str, Any]] | None:
    """The latest operations, if the repository has a log of them."""
    try:
        found = list(itertools.islice(viewed.repository.ops_log(), _MOST_OPERATIONS))
    except UnsupportedError:
        return None
    return [
        {"kind": type(each.kind).__name__, "at": each.updated_at, "detail": plain(str(each.kind))} for each in found
    ]
