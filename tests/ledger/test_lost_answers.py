"""Commits of the early generations whose answer was lost are neither lost nor done twice."""

from __future__ import annotations

import datetime as dt

import pytest

from icefloe.errors import AlreadyExistsError, ConflictError
from icefloe.formats.format import get_format
from icefloe.ids import new_object_id
from icefloe.ledger.generations import make_ledger
from icefloe.metadata_files import MetadataFiles
from icefloe.model.capabilities import SpecVersion
from icefloe.model.snapshot import Snapshot
from icefloe.storage.memory import MemoryStorage
from icefloe.testing.storages import Fault, FaultKind, FaultyStorage

NOW = dt.datetime(2024, 9, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize("version", [SpecVersion.DATASET, SpecVersion.STORE])
@pytest.mark.parametrize("kind", [FaultKind.LOSE_ANSWER, FaultKind.FAIL_BEFORE])
async def test_every_change_of_refs_stands_one_lost_answer(version: SpecVersion, kind: FaultKind) -> None:
    generation = get_format(version)
    inner = MemoryStorage()
    initial = generation.initial_snapshot(NOW)
    first = Snapshot(
        new_object_id(generation.capabilities.object_id_bytes),
        initial.id,
        NOW,
        "first",
        {},
        {},
        {},
        history=(initial.info,),
        total_ancestors=1,
    )
    metadata_files = MetadataFiles(inner, generation)
    for snapshot in (initial, first):
        await metadata_files.write_snapshot(snapshot)

    def ledger_with_fault():  # type: ignore[no-untyped-def]
        write = "swap" if version is SpecVersion.DATASET else "create"
        return make_ledger(version, FaultyStorage(inner, [Fault(kind, methods=(write,))]), metadata_files)

    await make_ledger(version, FaultyStorage(inner, [Fault(kind, methods=("create",))]), metadata_files).create(
        initial, None
    )
    ledger = ledger_with_fault()
    tip = await ledger.fetch_tip("main")
    assert (await ledger.advance("main", tip, first)).snapshot_id == first.id
    await ledger_with_fault().create_branch("dev", first.id)
    await ledger_with_fault().reset_branch("dev", initial.id, first.id)
    await ledger_with_fault().create_tag("v1", first.id)
    plain = make_ledger(version, inner, metadata_files)
    assert (await plain.fetch_tip("main")).snapshot_id == first.id
    assert (await plain.fetch_tip("dev")).snapshot_id == initial.id
    assert await plain.fetch_tag("v1") == first.id
    with pytest.raises(AlreadyExistsError):
        await ledger_with_fault().create_branch("dev", first.id)
    with pytest.raises(ConflictError):
        await ledger_with_fault().advance("main", tip, Snapshot(new_object_id(16), initial.id, NOW, "", {}, {}, {}))
