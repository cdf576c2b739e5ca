"""How long does it take to reference GRIB messages from their index files alone?

Writes GRIB files with a few hundred messages each and their index files, in ECMWF's and in NOAA's form. Ingests the
index files with `mode="virtual"`. Then reads a random sample of messages through the repository, and compares it with
what ecCodes decodes from the same bytes of the files.

    python -m benchmarks.grib_index --messages 100000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import eccodes
import numpy as np
import xarray as xr

from icefloe import Repository
from icefloe.ingest import IngestOptions, ingest_local

_LEVELS = (1000, 925, 850, 700, 600, 500, 400, 300, 250, 200, 150, 100, 50)
_STEPS = (0, 6, 12, 18)
_NAMES = ("t", "u", "v", "q", "r", "gh", "w", "vo")


def _message(name: str, level: int, date: int, step: int, size: int) -> bytes:
    """A message on a grid of `size` points in each direction."""
    handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
    increment = 0.25
    for key, value in (
        ("Ni", size),
        ("Nj", size),
        ("iDirectionIncrementInDegrees", increment),
        ("jDirectionIncrementInDegrees", increment),
        ("latitudeOfFirstGridPointInDegrees", 60.0),
        ("latitudeOfLastGridPointInDegrees", 60.0 - increment * (size - 1)),
        ("longitudeOfFirstGridPointInDegrees", 0.0),
        ("longitudeOfLastGridPointInDegrees", increment * (size - 1)),
        ("shortName", name),
        ("level", level),
        ("dataDate", date),
        ("step", step),
    ):
        eccodes.codes_set(handle, key, value)
    eccodes.codes_set_values(handle, [280.0 + (i % 7) for i in range(size * size)])
    try:
        return bytes(eccodes.codes_get_message(handle))
    finally:
        eccodes.codes_release(handle)


def _section(message: bytes, wanted: int) -> int:
    """The offset of a section of a message in GRIB 2."""
    offset = 16
    while message[offset + 4] != wanted:
        offset += int.from_bytes(message[offset : offset + 4], "big")
    return offset


def _dated(message: bytes, date: int, reference: float) -> bytes:
    """The message of another day, with other values: its reference value is the smallest one of the packed field."""
    changed = bytearray(message)
    day, values = _section(message, 1) + 12, _section(message, 5) + 11
    changed[day : day + 4] = struct.pack(">HBB", date // 10000, date // 100 % 100, date % 100)
    changed[values : values + 4] = struct.pack(">f", reference)
    return bytes(changed)


def write_files(folder: Path, messages: int, form: str, size: int = 16) -> int:
    """Write GRIB files, one per forecast run, and their indexes. Returns the number of messages."""
    per_file = len(_NAMES) * len(_LEVELS) * len(_STEPS)
    written = 0
    models = {
        (name, level, step): _message(name, level, 20200101, step, size)
        for name in _NAMES
        for level in _LEVELS
        for step in _STEPS
    }
    for run in range(-(-messages // per_file)):
        date = _date(run)
        path = folder / f"run{run:05d}.grib2"
        lines: list[str] = []
        with path.open("wb") as file:
            for step in _STEPS:
                for name in _NAMES:
                    for level in _LEVELS:
                        content = _dated(models[name, level, step], date, 200.0 + len(lines) + run / 1024)
                        offset = file.tell()
                        file.write(content)
                        if form == "idx":
                            when = "anl" if step == 0 else f"{step} hour fcst"
                            text = f"{len(lines) + 1}:{offset}:d={date}12:{name}:{level} mb:{when}:"
                        else:
                            keys = {"date": str(date), "time": "1200", "step": str(step), "levtype": "pl"}
                            place = {"levelist": str(level), "param": name, "_offset": offset, "_length": len(content)}
                            text = json.dumps({**keys, **place})
                        lines.append(text)
        path.with_name(f"{path.name}.{form}").write_text("\n".join(lines) + "\n")
        written += len(lines)
    return written


def _date(run: int) -> int:
    return 20200101 + run % 28 + (run // 28 % 12) * 100 + run // 336 * 10000


def compare_sample(folder: Path, repository: Repository, runs: int, sample: int) -> None:
    """Compare random messages, read through the repository, with ecCodes. Every bit must be equal."""
    dataset = xr.open_zarr(
        repository.readonly_session("main").store, consolidated=False, chunks=None, decode_timedelta=False
    )
    chosen = random.Random(0)
    for _ in range(sample):
        run = chosen.randrange(runs)
        name, level, step = chosen.choice(_NAMES), chosen.choice(_LEVELS), chosen.choice(_STEPS)
        number = (_STEPS.index(step) * len(_NAMES) + _NAMES.index(name)) * len(_LEVELS) + _LEVELS.index(level)
        expected = _decode(folder / f"run{run:05d}.grib2", number)
        found = dataset[name].isel(time=run).sel(isobaricInhPa=level, step=step)
        assert np.array_equal(found.values.reshape(-1), expected), (run, name, level, step)


def _decode(path: Path, number: int) -> Any:
    """The values of a message, by its number in the file."""
    with path.open("rb") as file:
        for _ in range(number + 1):
            handle = eccodes.codes_grib_new_from_file(file)
            values = eccodes.codes_get_values(handle)
            eccodes.codes_release(handle)
    return values


def measure(messages: int, form: str, sample: int) -> None:
    """Reference messages from index files, compare a sample with ecCodes, and print the seconds per thousand."""
    with tempfile.TemporaryDirectory() as folder:
        count = write_files(Path(folder), messages, form)
        repository = Repository.create(str(Path(folder) / "repo"))
        begin, processor = time.perf_counter(), time.process_time()
        result = ingest_local(f"{folder}/*.{form}", repository, IngestOptions(mode="virtual"))
        seconds, processor = time.perf_counter() - begin, time.process_time() - processor
        opened = Repository.open(str(Path(folder) / "repo"), authorize_virtual_chunk_access={f"file://{folder}/": None})
        compare_sample(Path(folder), opened, len(list(Path(folder).glob("*.grib2"))), sample)
    references = sum(task.references for task in result.tasks)
    assert references == count, (references, count)
    print(
        f"{form:6} {count:>8,} messages by reference: {seconds:.1f} s, per thousand {1000 * seconds / count:.2f} s, "
        f"of which processor time {1000 * processor / count:.2f} s. {sample} of them equal ecCodes. "
        f"Load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


def main() -> None:
    """Parse the arguments and measure both forms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000, help="number of messages  [default: 10000]")
    parser.add_argument("--sample", type=int, default=100, help="messages to compare with ecCodes  [default: 100]")
    parser.add_argument("--form", choices=["index", "idx"], help="only this form of index  [default: both]")
    given = parser.parse_args()
    for form in ("index", "idx") if given.form is None else (given.form,):
        measure(given.messages, form, given.sample)


if __name__ == "__main__":
    main()
