"""The command `demo`: ingest, branch, query and draw a month of synthetic weather, on local Spark."""

from __future__ import annotations

import datetime as dt
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from icefloe import spark as jobs
from icefloe.cli.console import stderr, stdout
from icefloe.cli.options import Json, SparkOptions
from icefloe.cli.output import print_json
from icefloe.display.card import format_bytes
from icefloe.errors import InvalidInputError, UnsupportedError
from icefloe.lazy_exports import lazy_module
from icefloe.repository import Repository
from icefloe.session.session import Session

if TYPE_CHECKING:
    import xarray as xr

    from icefloe.spark.connect import SparkSession
    from icefloe.testing import synthetic_weather
else:
    xr = lazy_module("xarray")
    synthetic_weather = lazy_module("icefloe.testing.synthetic_weather")

_PACKAGES = ("pyspark", "xarray", "h5py", "matplotlib")


def demo(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Folder to write to.  [default: a new temporary folder]")
    ] = None,
    days: Annotated[int, typer.Option("--days", min=2, max=366, help="Number of days.")] = 31,
    spark: SparkOptions = SparkOptions(),
    json: Json = False,
) -> None:
    """Run a demonstration with synthetic data, on Spark.

    The demonstration writes a month of weather as NetCDF files, ingests them, appends a day, creates a branch, runs
    queries and draws a picture.

    Examples
    --------
    icefloe demo
    icefloe demo /tmp/demo --days 7
    """
    target = folder or Path(tempfile.mkdtemp(prefix="icefloe-demo-"))
    if target.exists() and any(target.iterdir()):
        raise InvalidInputError(f"{target} is not empty. Choose a new or an empty folder")
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"the demo needs more packages: {', '.join(missing)}. Install them with: pip install 'icefloe[demo]'"
        )
    facts = _run_demo(target, days, lambda: spark.session(quick_start=True), stderr() if json else stdout())
    if json:
        print_json(facts)


_COLOURS = ("#1f6f8b", "#d1495b", "#66a182")


def _draw(path: Path, field: xr.DataArray, contours: xr.DataArray, series: Mapping[str, xr.DataArray]) -> Path:
    """Draw a field with contours of another over latitude and longitude, and series over time below it."""
    # Imported here, because `icefloe demo --help` works without it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import MultipleLocator  # noqa: PLC0415

    figure = Figure(figsize=(9, 7.5), layout="constrained")
    # A canvas of its own: no window, no state shared with a notebook's figures.
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, height_ratios=(2.2, 1))
    mesh = above.pcolormesh(field.longitude, field.latitude, field, cmap="turbo", shading="nearest")
    lines = above.contour(
        contours.longitude, contours.latitude, contours, levels=range(940, 1060, 4), colors="white", linewidths=0.8
    )
    above.clabel(lines, fontsize=7)
    figure.colorbar(mesh, ax=above, label="mean temperature (K)", shrink=0.9)
    above.set_title("Mean temperature at 2 m (colours) and pressure of the last hour in hPa (lines)")
    above.xaxis.set_major_locator(MultipleLocator(60))
    above.yaxis.set_major_locator(MultipleLocator(30))
    above.xaxis.set_major_formatter("{x:g}°")
    above.yaxis.set_major_formatter("{x:g}°")
    for (name, values), colour in zip(series.items(), _COLOURS, strict=False):
        below.plot(values.time, values, label=name, color=colour, linewidth=1.2)
    below.set_title("Temperature at 50° N, 10° E, on two branches", loc="left")
    below.set_ylabel("K")
    below.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=len(series), frameon=False)
    below.grid(alpha=0.3)
    below.margins(x=0)
    dates = AutoDateLocator()  # type: ignore[no-untyped-call]
    below.xaxis.set_major_locator(dates)
    below.xaxis.set_major_formatter(ConciseDateFormatter(dates))  # type: ignore[no-untyped-call]
    figure.savefig(path, dpi=130)
    return path


_FIRST_DAY = dt.date(2020, 1, 1)
_VARIABLES = ("t2m", "msl", "tp")
_WARMING = 2.0


@dataclass
class _Steps:
    """Numbers and times the steps."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        number = len(self.seconds) + 1
        self.console.print(f"\n[bold cyan]{number}. {title}[/]", markup=True)
        started = time.monotonic()
        yield
        self.seconds[title] = time.monotonic() - started
        self.console.print(f"   [dim]{self.seconds[title]:.1f} s[/]", markup=True)

    def say(self, text: str) -> None:
        self.console.print(f"   {text}", markup=True)


def _run_demo(folder: Path, days: int, start_spark: Callable[[], SparkSession], console: Console) -> dict[str, Any]:
    """Run the demo in an empty folder and return the facts for JSON."""
    # The sources use a numcodecs codec. The warning would distract from the steps.
    warnings.filterwarnings("ignore", message="Numcodecs codecs are not in the Zarr version 3")
    steps = _Steps(console)
    say = steps.say
    files, native, virtual = folder / "files", folder / "native", folder / "virtual"
    console.print(f"[bold]Icefloe demo[/] in {folder}", markup=True)
    console.print("Ingest a folder of files into a versioned archive, on local Spark. This takes one or two minutes.")
    with steps.step(f"Write {days} days of hourly weather, one NetCDF file per day"):
        paths = synthetic_weather.write_month(files, start=_FIRST_DAY, days=days, variables=_VARIABLES)
        say(f"{len(paths)} files, {format_bytes(sum(path.stat().st_size for path in paths))}: {', '.join(_VARIABLES)}")
    with steps.step("Start Spark"):
        spark = start_spark()
        say(f"Spark {spark.version}")
    month, last = [str(path) for path in paths[:-1]], str(paths[-1])
    with steps.step(
        f"Ingest {len(month)} files natively: decode, concatenate along time, write new chunks, one commit"
    ):
        first = jobs.ingest(spark, month, native, message=f"The first {len(month)} days", chunks={"time": 24})
        say(f"{first.references:,} chunks, {format_bytes(first.decoded_bytes)} decoded, snapshot {first.snapshot_id}")
    with steps.step("Ingest the same files virtually: store references only, the bytes stay in the files"):
        light = jobs.ingest(spark, month, virtual, mode="virtual", message=f"The first {len(month)} days, by reference")
        say(f"{light.references:,} references, {format_bytes(_size(virtual))} stored")
        say(f"(the native repository: {format_bytes(_size(native))})")
        for line in light.authorisation.splitlines():
            say(f"[dim]{line}[/]")
    repository = Repository.open(str(native))
    with steps.step("Append a new day"):
        repository.create_tag("before-the-last-day", repository.lookup_branch("main"))
        day = jobs.ingest(spark, last, native, append_dim="time", message=f"Day {days}")
        say(f"{day.references:,} new chunks, snapshot {day.snapshot_id}; readers see all of it or nothing")
    with steps.step(f"Create a branch and add {_WARMING:g} K there with map_blocks"):
        repository.create_branch("warmer", repository.lookup_branch("main"))
        warm = jobs.map_blocks(
            spark,
            repository,
            _warmer,
            repository,
            branch="warmer",
            overwrite=True,
            variables=["t2m"],
            message=f"{_WARMING:g} K warmer",
            task_bytes=8 << 20,
        )
        say(f"{warm.tasks} blocks, {warm.references} chunks; main did not change")
    with steps.step("Query: the mean temperature of each hour, and the warmest location"):
        main, warmer = repository.readonly_session("main"), repository.readonly_session("warmer")
        series = {name: _hourly_mean(spark, session) for name, session in (("main", main), ("warmer", warmer))}
        mean_map = jobs.reduce(spark, main, "mean", "time", variables=["t2m"])["t2m"]
        warmest = mean_map.where(mean_map == mean_map.max(), drop=True)
        say(f"mean of {series['main'].mean():.2f} K on main, {series['warmer'].mean():.2f} K on warmer")
        say(
            f"warmest at latitude {float(warmest.latitude[0]):.1f}, longitude {float(warmest.longitude[0]):.1f}: "
            f"{float(mean_map.max()):.2f} K"
        )
    with steps.step("Read an older version: the archive before the last day"):
        then = repository.readonly_session(tag="before-the-last-day")
        hours = {name: _hours(session) for name, session in (("now", main), ("before", then))}
        say(f"{hours['now']} hours now, {hours['before']} hours at the tag before-the-last-day")
        same = xr.open_zarr(_open_virtual(virtual, light.plan).store, consolidated=False)["t2m"].isel(time=12).load()
        equal = bool((same == xr.open_zarr(then.store, consolidated=False)["t2m"].isel(time=12)).all())
        say(f"the virtual repository returns the same values: {equal}")
    with steps.step("Draw a map and a time series"):
        world = {
            name: xr.open_zarr(session.store, consolidated=False)
            for name, session in (("main", main), ("warmer", warmer))
        }
        point = {
            name: data["t2m"].sel(latitude=50, longitude=10, method="nearest").load() for name, data in world.items()
        }
        picture = _draw(folder / "weather.png", mean_map, world["main"]["msl"].isel(time=-1).load() / 100, point)
        say(f"[bold]{picture}[/]")
    console.print("\n[bold]History[/]\n", markup=True)
    console.print(repository.ancestry_graph().__rich__(), markup=True)
    console.print("\n[bold]Next steps[/]\n", markup=True)
    for line in _invitations(native, picture):
        console.print(f"   {line}", soft_wrap=True, markup=True)
    console.print(
        f"\n[dim]{sum(steps.seconds.values()):.0f} s in total; delete {folder} when you no longer need it[/]",
        soft_wrap=True,
        markup=True,
    )
    return {
        "folder": str(folder),
        "picture": str(picture),
        "seconds": {title: round(seconds, 2) for title, seconds in steps.seconds.items()},
        "hours": hours,
        "virtual_equals_native": equal,
        "references": {"native": first.references, "virtual": light.references},
    }


def _invitations(native: Path, picture: Path) -> Iterator[str]:
    command = _own_command()
    yield f"look at it in the browser   [bold]{command} view {native}[/]"
    yield f"the picture                 [bold]{picture}[/]"
    yield f"summary of the archive      [bold]{command} info {native}[/]"
    yield f"its history                 [bold]{command} log {native} --graph[/]"
    yield f"changes of the branch       [bold]{command} diff {native} main warmer[/]"
    yield f"a question in SQL           [bold]{command} sql {native} 'select max(t2m) from t2m'[/]"


def _own_command() -> str:
    """How the reader calls this command: by its name, unless whoever started it knows that only its path will do."""
    return os.environ.get("ICEFLOE_COMMAND") or "icefloe"


def _warmer(block: xr.Dataset) -> xr.Dataset:
    return block + _WARMING


def _hourly_mean(spark: SparkSession, session: Session) -> xr.DataArray:
    return jobs.reduce(spark, session, "mean", ("latitude", "longitude"), variables=["t2m"])["t2m"]


def _hours(session: Session) -> int:
    return int(xr.open_zarr(session.store, consolidated=False).sizes["time"])


def _open_virtual(folder: Path, plan: Any) -> Session:
    allowed = dict.fromkeys(plan.containers)
    return Repository.open(str(folder), authorize_virtual_chunk_access=allowed).readonly_session("main")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
