"""The ledger of each generation."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from icefloe.archive.files import Archive
from icefloe.ledger.contract import Ledger
from icefloe.model.capabilities import SpecVersion
from icefloe.storage.contract import Storage

_LEDGERS = {
    SpecVersion.DATASET: ("dataset", "DatasetLedger"),
    SpecVersion.STORE: ("store", "StoreLedger"),
    SpecVersion.REPOSITORY: ("sequence", "SequenceLedger"),
    SpecVersion.ICECHUNK1: ("icechunk1", "Icechunk1Ledger"),
    SpecVersion.ICECHUNK2: ("icechunk2", "Icechunk2Ledger"),
}
"""Module and class; only those in use are loaded, because some bring large libraries with them."""


def make_ledger(spec_version: SpecVersion, storage: Storage, archive: Archive) -> Ledger:
    """The ledger of a repository of that generation."""
    module, name = _LEDGERS[spec_version]
    make = cast(
        Callable[[Storage, Archive], Ledger], getattr(importlib.import_module(f"icefloe.ledger.{module}"), name)
    )
    return make(storage, archive)


async def locate_files(spec_version: SpecVersion, storage: Storage) -> Storage:
    """The storage of all files of a repository, which may be elsewhere than where it is opened."""
    if spec_version is SpecVersion.DATASET:
        from icefloe.ledger.dataset import locate_data  # noqa: PLC0415 - see _LEDGERS

        return await locate_data(storage)
    if spec_version is SpecVersion.STORE:
        from icefloe.ledger.store_code_form import locate_code_form  # noqa: PLC0415 - see _LEDGERS

        return await locate_code_form(storage)
    return storage
