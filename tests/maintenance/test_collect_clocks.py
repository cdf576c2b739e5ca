"""Collections see the writers of their process, whatever the clocks of the store and of the machine say."""

from __future__ import annotations

import datetime as dt
import os
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest
import zarr
from tests.maintenance.histories import GENERATIONS

import icefloe
from icefloe.blocking import Environment, run_blocking, using
from icefloe.session.open_repository import WriterStart
from icefloe.testing.storages import SimulatedStorage, SimulatedStore

EPOCH = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
CONFIG = icefloe.RepositoryConfig(
    inline_chunk_threshold_bytes=0, chunk_packing=icefloe.ChunkPackingConfig(enabled=False)
)


@dataclass
class Clocks:
    """The clocks of a machine and of a store, in seconds."""

    wall: float = 0.0
    monotonic: float = 0.0
    store: float = 0.0

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds
        self.store += seconds

    def wall_time(self) -> dt.datetime:
        return EPOCH + dt.timedelta(seconds=self.wall)

    def store_time(self) -> dt.datetime:
        return EPOCH + dt.timedelta(seconds=self.store)

    def environment(self) -> Environment:
        return Environment(now=self.wall_time, monotonic=lambda: self.monotonic)


def make_repo(clocks: Clocks, resolution: int, generation: str) -> icefloe.Repository:
    storage = SimulatedStorage(SimulatedStore(clocks.store_time, resolution), "client")
    repo = icefloe.Repository.create(storage, spec_version=generation, config=CONFIG)
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i8", compressors=None)
    return repo


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("resolution", [0, 1])
@pytest.mark.parametrize("skew_seconds", [-200_000.4, -2371.0, 0.0, 3600.7])
def test_a_collection_sees_writers_of_its_process_whatever_the_store_s_clock_says(
    generation: str, resolution: int, skew_seconds: float
) -> None:
    clocks = Clocks(wall=500_000.3, store=500_000.3 + skew_seconds)
    with using(clocks.environment()):
        repo = make_repo(clocks, resolution, generation)
        clocks.wait(0.4)
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[:] = 7
        run_blocking(session.state.writer.store_all(session.state.changes))
        clocks.wait(9)
        for cutoff in (
            dt.timedelta(0),
            dt.timedelta(seconds=8.9),
            clocks.store_time(),
            clocks.store_time() - dt.timedelta(seconds=8.9),
        ):
            with pytest.raises(icefloe.InvalidInputError, match="clock of the store"):
                repo.garbage_collect(cutoff)
        assert repo.garbage_collect(dt.timedelta(seconds=12)).chunks_deleted == 0
        assert repo.garbage_collect(clocks.store_time() - dt.timedelta(seconds=12)).chunks_deleted == 0
        session.commit("done")
        assert repo.garbage_collect(dt.timedelta(0)).chunks_deleted == 0
        assert zarr.open_array(repo.readonly_session("main").store, path="a")[:].tolist() == [7] * 4


@pytest.mark.parametrize("what", ["the clock is set back", "the machine sleeps"])
def test_a_writer_is_no_younger_than_either_clock_of_its_machine_says(what: str) -> None:
    clocks = Clocks(wall=500_000.0, store=500_000.0)
    with using(clocks.environment()):
        repo = make_repo(clocks, 0, "repository")
        session = repo.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[:] = 7
        clocks.wait(7200)
        if what == "the clock is set back":
            clocks.wall -= 7200
        else:
            clocks.monotonic -= 7200
        with pytest.raises(icefloe.InvalidInputError, match="clock of the store"):
            repo.garbage_collect(dt.timedelta(hours=1))
        repo.garbage_collect(dt.timedelta(hours=3))
        session.discard_changes()


def test_the_age_of_a_writer_travels_to_processes_with_other_clocks() -> None:
    here, there = Clocks(wall=1000.0, monotonic=50.0), Clocks(wall=-5000.0, monotonic=9.0)
    with using(here.environment()):
        start = WriterStart()
        here.wait(100)
        sent = pickle.dumps(start)
    with using(there.environment()):
        arrived = pickle.loads(sent)
        assert arrived.age() == dt.timedelta(seconds=100)
        there.wait(20)
        assert arrived.age() == dt.timedelta(seconds=120)


async def test_unfinished_files_are_judged_by_the_clock_that_gives_files_their_times(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    await storage.put("a", b"")
    unfinished = tmp_path / ".new#123"
    unfinished.write_bytes(b"")
    behind = dt.datetime.now(dt.UTC) - dt.timedelta(hours=2)
    os.utime(unfinished, (behind.timestamp() - 60, behind.timestamp() - 60))
    assert await storage.remove_leftovers(dt.timedelta(minutes=5), behind) == 0
    assert await storage.remove_leftovers(dt.timedelta(minutes=5), behind + dt.timedelta(hours=1)) == 1
