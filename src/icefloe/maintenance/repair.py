"""Repairing what needs no guess: logs, sizes and quotes follow from files that are whole."""

from __future__ import annotations

import dataclasses

from icefloe.errors import FormatError, NotFoundError
from icefloe.ids import ObjectId
from icefloe.maintenance.history import correct_quotes
from icefloe.maintenance.reading import Reading, read_anew
from icefloe.maintenance.recover import recover
from icefloe.maintenance.verify import VerifyRequest, verify
from icefloe.maintenance.verify_logs import true_log
from icefloe.maintenance.verify_report import Damage, DamageKind, VerifyReport
from icefloe.model.snapshot import ManifestFileInfo
from icefloe.session.engine import Engine


async def repair(engine: Engine, request: VerifyRequest | None = None) -> tuple[VerifyReport, VerifyReport]:
    """Verify, repair what can be, verify again; both reports."""
    before = found = await verify(engine, request)
    if any(damage.repairable for damage in found.damages):
        await engine.check_writable()
    if any(damage.repairable and damage.what in ("ref", "configuration") for damage in found.damages):
        await recover(engine.storage, version=engine.format.spec_version)
        found = await verify(engine, request)
    damages = [damage for damage in found.damages if damage.repairable]
    if not damages:
        return before, found
    reading = read_anew(engine)
    if any(damage.kind is DamageKind.MISQUOTED for damage in damages):
        await correct_quotes(engine, reading)
    for snapshot_id in dict.fromkeys(d.snapshot_id for d in damages if d.kind is DamageKind.WRONG_SIZE):
        assert snapshot_id is not None
        await _correct_sizes(engine, reading, snapshot_id)
    for damage in damages:
        if damage.what == "transaction log":
            await _write_log(engine, reading, damage)
    return before, await verify(engine, request)


async def _correct_sizes(engine: Engine, reading: Reading, snapshot_id: ObjectId) -> None:
    """Write a snapshot again with the sizes that its manifests have."""
    snapshot = await reading.archive.fetch_snapshot(snapshot_id)
    infos = {}
    for manifest_id in snapshot.manifests:
        size = (await reading.storage.head(reading.format.manifest_key(manifest_id))).size_bytes
        manifest = await reading.archive.fetch_manifest(manifest_id)
        infos[manifest_id] = ManifestFileInfo(manifest_id, size, len(manifest))
    await engine.archive.flush_snapshot(dataclasses.replace(snapshot, manifests=infos))
    engine.archive.forget_snapshot(snapshot_id)


async def _write_log(engine: Engine, reading: Reading, damage: Damage) -> None:
    """Write a log anew from what its snapshot and the parent hold."""
    assert damage.snapshot_id is not None
    parent_id = (await reading.ledger.fetch_info(damage.snapshot_id)).parent_id
    if parent_id is None:
        return
    try:
        log = await true_log(reading, damage.snapshot_id, parent_id)
    except (NotFoundError, FormatError):
        return
    await engine.archive.flush_transaction_log(damage.snapshot_id, log)
    engine.archive.forget_transaction_log(damage.snapshot_id)
