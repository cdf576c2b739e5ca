"""How long does it take to reference GRIB messages from their index files alone?

Writes GRIB files with a few hundred messages each and their index files, in ECMWF's and in NOAA's form. Ingests the
index files with `mode="virtual"`. Only the first message of each kind is right. The others are never read.

    python -m benchmarks.grib_index --messages 10000
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import eccodes

from icefloe import Repository
from icefloe.ingest import IngestOptions, ingest_local

_LEVELS = (1000, 925, 850, 700, 600, 500, 400, 300, 250, 200, 150, 100, 50)
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


def write_files(folder: Path, messages: int, form: str, size: int = 40) -> int:
    """Write GRIB files, one per forecast run, and their indexes. Returns the number of messages."""
    steps = tuple(range(0, 24, 6))
    per_file = len(_NAMES) * len(_LEVELS) * len(steps)
    written = 0
    models = {name: _message(name, 500, 20200101, 0, size) for name in _NAMES}
    for run in range(-(-messages // per_file)):
        date = 20200101 + run % 28 + (run // 28 % 12) * 100 + run // 336 * 10000
        path = folder / f"run{run:05d}.grib2"
        lines: list[str] = []
        with path.open("wb") as file:
            for step in steps:
                for name in _NAMES:
                    for level in _LEVELS:
                        is_first = level == _LEVELS[0] and step in steps[:2]
                        content = _message(name, level, date, step, size) if is_first else models[name]
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


def measure(messages: int, form: str) -> None:
    """Reference messages from index files, and print the seconds per thousand."""
    with tempfile.TemporaryDirectory() as folder:
        count = write_files(Path(folder), messages, form)
        repository = Repository.create(str(Path(folder) / "repo"))
        begin, processor = time.perf_counter(), time.process_time()
        result = ingest_local(f"{folder}/*.{form}", repository, IngestOptions(mode="virtual"))
        seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    references = sum(task.references for task in result.tasks)
    assert references == count, (references, count)
    print(
        f"{form:6} {count:>8,} messages by reference: {seconds:.1f} s, per thousand {1000 * seconds / count:.2f} s, "
        f"of which processor time {1000 * processor / count:.2f} s"
    )


def main() -> None:
    """Parse the arguments and measure both forms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000, help="number of messages  [default: 10000]")
    given = parser.parse_args()
    for form in ("index", "idx"):
        measure(given.messages, form)


if __name__ == "__main__":
    main()
