"""Cases that users of the official package published, with both packages.

* 5,760 arrays in one commit: earth-mover/icechunk#2348. The commit of a plate of images took over ten minutes.
* Appends to 142 and 175 arrays: dynamical-org/reformatters#744 and earth-mover/icechunk#2273. A commit took 34 to 71 s.
* 72 million references: earth-mover/icechunk#1558, and 100 million in #401. A panic, or over 100 GB of memory.
* Workers that commit at once: earth-mover/icechunk#1205, #1012 and #2318. Retries take longer than the work.

They were published with S3, where every request takes tens of milliseconds. Here both packages use local files, so that
seconds show the work and not the latency. The tenth part of the 72 million references is the default. `--scale 10` is
the published size.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.harness import Meter, Workload, create_repository, open_repository
from benchmarks.scale import PREFIX, _config

LEVELS = 3
APPENDED, APPENDS = 175, 10
WORKERS, COMMITS = 16, 3


def commit_plate(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """The fields of the wells of a plate, three levels of resolution each: 1 to 16 virtual chunks an array."""
    session = create_repository(library, folder, config=_config(library)).writable_session("main")
    root = zarr.group(session.store)
    for field in range(int(5760 * scale) // LEVELS):
        for level in range(LEVELS):
            side = 4 >> level
            path = f"well-{field // 4}/{field % 4}/{level}"
            root.create_array(path, shape=(side * 64, side * 64), chunks=(64, 64), dtype="u2")
            count = side * side
            files = [f"{PREFIX}{path}/{chunk}" for chunk in range(count)]
            lengths = np.full(count, 8192, dtype="u8")
            session.store.set_virtual_refs_arr(f"/{path}", (side, side), files, np.zeros(count, "u8"), lengths)
    with meter.timed():
        session.commit("plate")


def prepare_forecasts(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """175 variables of a forecast, with the references of 2,400 runs of 49 hours."""
    runs = max(10, int(240 * scale))
    session = create_repository(library, folder, config=_config(library)).writable_session("main")
    root = zarr.group(session.store)
    files = [f"{PREFIX}run-{run:05d}/f{hour:02d}.grib2" for run in range(runs) for hour in range(49)]
    offsets, lengths = np.arange(runs * 49, dtype="u8") * 1000, np.full(runs * 49, 1000, dtype="u8")
    for number in range(APPENDED):
        root.create_array(f"v{number}", shape=(runs, 49), chunks=(1, 1), dtype="f4")
        session.store.set_virtual_refs_arr(f"/v{number}", (runs, 49), files, offsets + number, lengths)
    session.commit("archive")


def append_to_all(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """One file of a run arrives after the other. Each adds a reference to every variable, and is committed."""
    repo = open_repository(library, folder)
    runs = max(10, int(240 * scale))
    for hour in range(APPENDS):
        with meter.timed():
            session = repo.writable_session("main")
            root = zarr.open_group(session.store, mode="r+")
            for number in range(APPENDED):
                if hour == 0:
                    root[f"v{number}"].resize((runs + 1, 49))
                file = f"{PREFIX}run-{runs:05d}/f{hour:02d}.grib2"
                session.store.set_virtual_ref(f"v{number}/c/{runs}/{hour}", file, offset=number, length=1000)
            session.commit(f"hour {hour}")


def commit_many_references(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """References of many variables in one session and one commit."""
    arrays, side = 24, int((7_200_000 * scale / 24) ** 0.5)
    session = create_repository(library, folder, config=_config(library)).writable_session("main")
    root = zarr.group(session.store)
    names = np.array([f"{PREFIX}file-{index:05d}.grib2" for index in range(side)], dtype=object)
    codes = np.repeat(np.arange(side), side)
    offsets, lengths = np.arange(side * side, dtype="u8") * 100, np.full(side * side, 100, dtype="u8")
    with meter.timed():
        for index in range(arrays):
            root.create_array(f"v{index}", shape=(side, side), chunks=(1, 1), dtype="f4")
            locations = names[codes] if library.__name__ == "icefloe" else names[codes].tolist()
            session.store.set_virtual_refs_arr(f"/v{index}", (side, side), locations, offsets, lengths)
        session.commit("all")
    meter.count("references", arrays * side * side)


def prepare_workers(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    with create_repository(library, folder).transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(WORKERS * COMMITS, 100), chunks=(1, 100), dtype="i4")


def commit_at_once(library: Any, folder: Path, meter: Meter, scale: float) -> None:
    """Workers that share nothing write one chunk each, and commit with automatic rebase."""
    tries: list[float] = []

    def work(worker: int) -> None:
        repo = open_repository(library, folder)
        for number in range(COMMITS):
            session = repo.writable_session("main")
            zarr.open_array(session.store, path="a", mode="r+")[worker * COMMITS + number] = worker
            started = time.perf_counter()
            session.commit(f"{worker}/{number}", rebase_with=library.ConflictDetector())
            tries.append(time.perf_counter() - started)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(WORKERS)]
    with meter.timed():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(tries) == WORKERS * COMMITS, "a worker failed"
    meter.count("slowest ms", 1000 * max(tries))


WORKLOADS = [
    Workload("5,760 arrays, icechunk#2348", "Many small virtual arrays", {"commit": commit_plate}),
    Workload(
        "175 arrays, icechunk#2273",
        "A commit that adds a reference to each of 175 arrays",
        {"prepare": prepare_forecasts, "10 appends": append_to_all},
    ),
    Workload(
        "7,200,000 references, icechunk#1558",
        "A tenth of 72 million references in one commit",
        {"set + commit": commit_many_references},
    ),
    Workload(
        "16 workers, icechunk#1205",
        "Workers that commit at the same time",
        {"prepare": prepare_workers, "48 commits": commit_at_once},
    ),
]
