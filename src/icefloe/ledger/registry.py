"""The ledger of each generation."""

from __future__ import annotations

from collections.abc import Callable

from icefloe.archive.files import Archive
from icefloe.ledger.contract import Ledger
from icefloe.ledger.dataset import DatasetLedger, locate_data
from icefloe.ledger.icechunk1 import Icechunk1Ledger
from icefloe.ledger.icechunk2 import Icechunk2Ledger
from icefloe.ledger.sequence import SequenceLedger
from icefloe.ledger.store import StoreLedger
from icefloe.ledger.store_code_form import locate_code_form
from icefloe.model.capabilities import SpecVersion
from icefloe.storage.contract import Storage

_LEDGERS: dict[SpecVersion, Callable[[Storage, Archive], Ledger]] = {
    SpecVersion.DATASET: DatasetLedger,
    SpecVersion.STORE: StoreLedger,
    SpecVersion.REPOSITORY: SequenceLedger,
    SpecVersion.ICECHUNK1: Icechunk1Ledger,
    SpecVersion.ICECHUNK2: Icechunk2Ledger,
}


def make_ledger(spec_version: SpecVersion, storage: Storage, archive: Archive) -> Ledger:
    """The ledger of a repository of that generation."""
    return _LEDGERS[spec_version](storage, archive)


async def locate_files(spec_version: SpecVersion, storage: Storage) -> Storage:
    """The storage of all files of a repository, which may be elsewhere than where it is opened."""
    if spec_version is SpecVersion.DATASET:
        return await locate_data(storage)
    if spec_version is SpecVersion.STORE:
        return await locate_code_form(storage)
    return storage
