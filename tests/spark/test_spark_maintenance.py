"""Collection and compaction on Spark do what they do alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.maintenance.histories import count, make_past, now

import icefloe
from icefloe.blocking import run_blocking
from icefloe.ingest import IngestOptions, ingest_local
from icefloe.maintenance.compact import CompactRequest, Layout
from icefloe.testing.synthetic_weather import write_month

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_collection_on_spark_deletes_what_one_alone_would(spark, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from icefloe.spark import maintenance

    past = make_past(icefloe.local_filesystem_storage(str(tmp_path)), "repository")
    assert len(past.repo.expire_snapshots(retain_last=1)) == 5
    expected = past.repo.garbage_collect(now(), dry_run=True)
    assert maintenance.collect_garbage(spark, past.repo, now(), dry_run=True) == expected
    assert maintenance.collect_garbage(spark, past.repo, now()) == expected
    assert past.repo.garbage_collect(now()) == icefloe.GCSummary()
    assert past.repo.verify().is_clean
    past.check()


def test_an_inventory_replaces_the_listing(spark, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from icefloe.spark import maintenance

    past = make_past(icefloe.local_filesystem_storage(str(tmp_path)), "repository")
    past.repo.expire_snapshots(retain_last=1)
    expected = past.repo.garbage_collect(now(), dry_run=True)

    async def everything() -> list[tuple[str, int, object]]:
        return [
            (item.key, item.size_bytes, item.last_modified)
            async for page in past.repo.storage.list("")
            for item in page
        ]

    rows = run_blocking(everything())
    table = pa.table(
        {
            "key": [row[0] for row in rows],
            "size": [row[1] for row in rows],
            "last_modified": pa.array([row[2] for row in rows], pa.timestamp("us", tz="UTC")),
        }
    )
    assert maintenance.collect_garbage(spark, past.repo, now(), inventory=table, dry_run=True) == expected
    elsewhere = table.set_column(0, "key", pa.array([f"weather/{row[0]}" for row in rows]))
    pq.write_table(elsewhere, tmp_path / "inventory.parquet")
    done = maintenance.collect_garbage(
        spark, past.repo, now(), inventory=tmp_path / "inventory.parquet", inventory_prefix="weather/"
    )
    assert done == expected
    assert past.repo.garbage_collect(now()) == icefloe.GCSummary()
    past.check()


def test_an_inventory_with_other_columns_is_refused(spark, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from icefloe.spark import maintenance

    past = make_past(icefloe.local_filesystem_storage(str(tmp_path)), "repository", commits=1)
    with pytest.raises(icefloe.InvalidInputError, match="no column size, last_modified"):
        maintenance.collect_garbage(spark, past.repo, now(), inventory=pa.table({"key": ["chunks/x"]}))


def test_an_unreadable_manifest_stops_it_before_it_deletes(spark, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from icefloe.spark import maintenance

    past = make_past(icefloe.local_filesystem_storage(str(tmp_path)), "repository")
    manifest = next(iter(past.repo.inspect_snapshot(past.repo.lookup_branch("main"))["manifests"]))["id"]
    past.repo.expire_snapshots(retain_last=1)
    key = past.repo.context.format.manifest_key(manifest)
    run_blocking(past.repo.storage.put(key, b"damaged"))
    before = count(past.repo)
    with pytest.raises(icefloe.StorageError, match="Nothing was deleted"):
        maintenance.collect_garbage(spark, past.repo, now())
    assert count(past.repo) == before


def test_arrays_are_compacted_in_tasks(spark, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from icefloe.spark import maintenance

    past = make_past(icefloe.local_filesystem_storage(str(tmp_path)), "repository")
    done = maintenance.compact(spark, past.repo, CompactRequest(layout=Layout.UNPACK))
    assert sum(each.chunks for each in done) == 3  # type: ignore[union-attr]
    past.repo.expire_snapshots(retain_last=1)
    past.repo.garbage_collect(now())
    assert count(past.repo)["chunks"] == 6
    past.check()


def test_an_audit_of_virtual_files_on_spark_finds_what_one_alone_finds(spark, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from icefloe.spark import verify_sources

    write_month(tmp_path / "in", days=5, nlat=5, nlon=6, variables=("t2m",))
    ingest_local(tmp_path / "in", icefloe.Repository.create(str(tmp_path / "repo")), IngestOptions(mode="virtual"))
    sorted((tmp_path / "in").rglob("*.nc"))[2].unlink()
    allowed = {f"file://{tmp_path}/in/": None}
    repository = icefloe.Repository.open(str(tmp_path / "repo"), authorize_virtual_chunk_access=allowed)
    alone, found = repository.verify_sources(), verify_sources(spark, repository)
    assert dict(found.counts) == dict(alone.counts) == {"ok": 4, "missing": 1}
    assert dict(found.references) == dict(alone.references)
    assert found.problems() == alone.problems()
