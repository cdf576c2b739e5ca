"""Messy archives are ingested as xarray reads them, or refused before anything is written."""

from __future__ import annotations

import collections
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.ingest.archive_oracle import check_archive
from tests.ingest.messy_archives import MessyArchive, archives

pytestmark = pytest.mark.filterwarnings("ignore")
_SEEN: collections.Counter[str] = collections.Counter()


def _check(archive: MessyArchive) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _SEEN["equal" if check_archive(Path(folder), archive) == "equal" else "refused"] += 1


@pytest.mark.long
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(archive=archives())
def test_an_archive_is_ingested_as_xarray_reads_it_or_refused(archive: MessyArchive) -> None:
    _check(archive)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(int(os.environ.get("ICEFLOE_ARCHIVES", "5000")) // 100))
def test_thousands_of_archives_are_ingested_as_xarray_reads_them_or_refused(part: int) -> None:
    """Hundred archives a part, each part from a seed of its own, so that a long run can be cut and gone on with."""

    @seed(1000 + part)
    @settings(
        max_examples=100,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(archive=archives())
    def check(archive: MessyArchive) -> None:
        _check(archive)

    check()


def test_most_archives_are_not_refused() -> None:
    if sum(_SEEN.values()) < 100:
        pytest.skip("runs behind the archives, in the same process")
    assert _SEEN["equal"] > _SEEN["refused"]
