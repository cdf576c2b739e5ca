"""A first repository: write, commit, branch, tag, read an earlier state, and show the tree and the history.

Run it with `python examples/quickstart.py [FOLDER]`. Without a folder it uses a temporary one.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
import zarr

import icefloe

HOURS, LATITUDES, LONGITUDES = 24, 45, 90


def day_of_weather(day: int) -> np.ndarray:
    """Return temperatures in kelvin. They are higher at the equator and at noon, and rise a little every day."""
    hours = np.arange(HOURS)[:, None, None]
    latitudes = np.linspace(-88, 88, LATITUDES)[None, :, None]
    longitudes = np.linspace(0, 356, LONGITUDES)[None, None, :]
    sun = np.cos(np.deg2rad(longitudes + 15 * (hours - 12)))
    return (258 + 40 * np.cos(np.deg2rad(latitudes)) + 5 * sun + 0.1 * day).astype("float32")


def create(storage: icefloe.Storage) -> icefloe.Repository:
    """Create a repository. The first commit has one group, two coordinates and an empty temperature array."""
    repository = icefloe.Repository.create(storage)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store, attributes={"title": "A small weather archive"})
    surface = root.create_group("surface")
    grid = (LATITUDES, LONGITUDES)
    for name, values in {"latitude": np.linspace(-88, 88, grid[0]), "longitude": np.linspace(0, 356, grid[1])}.items():
        surface.create_array(name, data=values.astype("float32"), dimension_names=[name])
    surface.create_array(
        "t2m",
        shape=(0, *grid),
        chunks=(HOURS, *grid),
        dtype="float32",
        dimension_names=["time", "latitude", "longitude"],
        attributes={"units": "K", "long_name": "temperature at 2 m"},
    )
    session.commit("An empty grid")
    return repository


def append_day(repository: icefloe.Repository, branch: str, day: int, *, warmer: float = 0.0) -> str:
    """Append one day to a branch with one commit. Readers see all of it or nothing."""
    with_more = repository.writable_session(branch)
    array = zarr.open_array(with_more.store, path="surface/t2m", mode="r+")
    array.append(day_of_weather(day) + np.float32(warmer))
    return with_more.commit(f"Day {day}", metadata={"day": day})


def mean_temperature(session: icefloe.Session) -> tuple[int, float]:
    """Return the number of hours and their mean temperature."""
    array = zarr.open_array(session.store, path="surface/t2m", mode="r")
    return array.shape[0], float(np.mean(np.asarray(array[:])))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a small repository and show its history.")
    parser.add_argument("folder", nargs="?", type=Path, help="folder of the repository (default: a temporary folder)")
    chosen: Path | None = parser.parse_args().folder
    folder = chosen or Path(tempfile.mkdtemp(prefix="icefloe-"))
    try:
        show(folder)
    finally:
        if chosen is None:
            shutil.rmtree(folder)


def show(folder: Path) -> None:
    print(f"A repository in {folder}\n")
    repository = create(icefloe.local_filesystem_storage(str(folder)))
    for day in (1, 2, 3):
        append_day(repository, "main", day)
    repository.create_tag("three-days", repository.lookup_branch("main"))

    # A branch is a name for a snapshot. Creating one copies no data.
    repository.create_branch("experiment", repository.lookup_tag("three-days"))
    append_day(repository, "experiment", 4, warmer=2.0)
    append_day(repository, "main", 4)

    # A rename is part of an ordinary commit and rewrites no data.
    session = repository.writable_session("main")
    session.move("/surface", "/ground")
    session.commit("The group is called ground")
    session = repository.writable_session("main")
    session.move("/ground", "/surface")
    session.commit("No, surface")

    print("Contents of main:\n")
    print(zarr.open_group(repository.readonly_session("main").store, mode="r").tree())

    print("History:\n")
    print(repository.ancestry_graph())

    print("\nMean temperature over the archive, at different points of its history:\n")
    views = {
        "main": repository.readonly_session("main"),
        "experiment": repository.readonly_session("experiment"),
        "three-days": repository.readonly_session(tag="three-days"),
    }
    oldest = [info for info in repository.ancestry(branch="main") if info.message == "Day 1"]
    views["Day 1"] = repository.readonly_session(snapshot_id=oldest[0].id)
    for name, view in views.items():
        hours, mean = mean_temperature(view)
        print(f"  {name:<12} {hours:>4} hours   {mean:7.2f} K")

    changes = repository.diff(from_tag="three-days", to_branch="experiment")
    print("\nChanges on the branch experiment since the tag:\n")
    print(changes)


if __name__ == "__main__":
    main()
