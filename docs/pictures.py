"""Draw the pictures of the documentation: `python3 dev.py docs --pictures`.

A small archive is made as `icefloe demo` makes it: a month of synthetic weather, appended to, branched and merged. All
pictures are drawn from it, except the bars, which show the tables of docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import xarray as xr
from benchmarks import report, scale_100m
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

import icefloe
from icefloe.ingest import IngestOptions, ingest_local
from icefloe.testing import write_month
from icefloe.xarray import to_icechunk

DOCS = Path(__file__).resolve().parent
BLUE, RED, GREEN, GREY = "#1f6f8b", "#d1495b", "#66a182", "#8a9aa3"
INK = "#24343c"


@dataclass(frozen=True)
class Archive:
    """The repository of the pictures."""

    folder: Path
    repository: icefloe.Repository

    def dataset(self, ref: str) -> xr.Dataset:
        return xr.open_zarr(self.repository.readonly_session(ref).store, consolidated=False)


def make_archive(folder: Path, days: int) -> Archive:
    """Ingest, append, branch and merge, as a team would do it in a week."""
    warnings.filterwarnings("ignore", message="Numcodecs codecs")
    files = write_month(folder / "files", days=days, variables=("t2m", "msl", "tp"))
    path = folder / "weather"
    repo = icefloe.Repository.create(str(path))
    first, later = files[: days - 2], files[days - 2 :]
    options = IngestOptions(chunks={"time": 24, "latitude": 25, "longitude": 48})
    ingest_local([str(file) for file in first], repo, options, message=f"The first {len(first)} days")
    repo.create_tag("v1", repo.lookup_branch("main"))
    append = IngestOptions(append_dim="time")
    ingest_local(str(later[0]), repo, append, message=f"Day {days - 1}")
    repo.create_branch("quality", repo.lookup_branch("main"))
    correct(repo, "quality", "t2m", {"time": slice(0, 72), "latitude": slice(25, 50), "longitude": slice(48, 96)}, 1.5)
    correct(repo, "quality", "msl", {"time": slice(24, 48), "longitude": slice(0, 48)}, 40.0)
    ingest_local(str(later[1]), repo, append, message=f"Day {days}")
    repo.merge("quality", "main", message="Take over the corrections")
    repo.create_tag("v2", repo.lookup_branch("main"))
    repo.create_branch("warmer", repo.lookup_branch("main"))
    correct(repo, "warmer", "t2m", {}, 2.0, "A scenario: 2 K warmer")
    return Archive(path, repo)


def correct(
    repo: icefloe.Repository, branch: str, name: str, where: dict[str, slice], by: float, why: str = ""
) -> None:
    """Add a value to a part of an array and commit it."""
    session = repo.writable_session(branch)
    part = xr.open_zarr(session.store, consolidated=False)[[name]].isel(where).load() + by
    region = {str(dim): where.get(str(dim), slice(0, size)) for dim, size in part.sizes.items()}
    to_icechunk(part.drop_vars(list(part.coords)), session, region=region)
    session.commit(why or f"Correct {name} by {by:g}")


# Charts ---------------------------------------------------------------------------------------------------------------


def figure_of(width: float, height: float) -> Figure:
    """Return a figure that shares no state with others."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def degrees(axes) -> None:
    axes.xaxis.set_major_formatter("{x:g}°")
    axes.yaxis.set_major_formatter("{x:g}°")


def draw_map(archive: Archive, target: Path) -> None:
    """Mean temperature with lines of equal pressure."""
    world = archive.dataset("main")
    mean, pressure = world.t2m.mean("time"), world.msl.isel(time=-1) / 100
    figure = figure_of(8, 4)
    axes = figure.subplots()
    mesh = axes.pcolormesh(mean.longitude, mean.latitude, mean, cmap="turbo", shading="nearest")
    lines = axes.contour(pressure.longitude, pressure.latitude, pressure, levels=range(940, 1060, 8), colors="white")
    axes.clabel(lines, fontsize=7)
    figure.colorbar(mesh, ax=axes, label="K", shrink=0.9)
    axes.set_title("main: mean temperature at 2 m, and pressure of the last hour in hPa", fontsize=10)
    degrees(axes)
    figure.savefig(target, dpi=110)


def draw_comparison(archive: Archive, target: Path) -> None:
    """The same hour at two refs, and the difference."""
    before = archive.dataset("main").t2m.isel(time=12).load()
    tagged = xr.open_zarr(archive.repository.readonly_session(tag="v1").store, consolidated=False).t2m.isel(time=12)
    figure = figure_of(11, 3.2)
    left, middle, right = figure.subplots(1, 3, sharey=True)
    for axes, values, title in ((left, tagged.load(), "tag v1"), (middle, before, "branch main")):
        mesh = axes.pcolormesh(values.longitude, values.latitude, values, cmap="turbo", vmin=230, vmax=310)
        axes.set_title(title, fontsize=10)
        degrees(axes)
    figure.colorbar(mesh, ax=middle, label="K", shrink=0.9)
    change = right.pcolormesh(before.longitude, before.latitude, before - tagged, cmap="RdBu_r", vmin=-2, vmax=2)
    right.set_title("main − v1", fontsize=10)
    degrees(right)
    figure.colorbar(change, ax=right, label="K", shrink=0.9)
    figure.savefig(target, dpi=110)


def draw_series(archive: Archive, target: Path) -> None:
    """One place on two branches."""
    figure = figure_of(8, 3)
    axes = figure.subplots()
    for ref, colour in (("warmer", RED), ("main", BLUE)):
        place = archive.dataset(ref).t2m.sel(latitude=50, longitude=10, method="nearest")
        axes.plot(place.time, place, color=colour, label=f"branch {ref}", linewidth=1.2)
    axes.set_title("Temperature at 50° N, 10° E, on two branches", fontsize=10, loc="left")
    axes.set_ylabel("K")
    axes.legend(frameon=False, ncols=2, loc="lower right")
    axes.grid(alpha=0.3)
    axes.margins(x=0)
    dates = AutoDateLocator()
    axes.xaxis.set_major_locator(dates)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(dates))
    figure.savefig(target, dpi=110)


def commits_of_chunks(archive: Archive, array: str, ref: str = "main") -> tuple[np.ndarray, list[str]]:
    """Return the number of the commit that wrote each chunk, and the messages of the commits."""
    repo = archive.repository
    stored = archive.dataset(ref)[array]
    shape = [-(-size // chunk) for size, chunk in zip(stored.shape, stored.encoding["chunks"], strict=True)]
    written = np.full(shape, -1)
    history = list(repo.ancestry(branch=ref))[::-1]
    messages = []
    for before, after in itertools.pairwise(history):
        changed = repo.diff(from_snapshot_id=before.id, to_snapshot_id=after.id).updated_chunks.get(f"/{array}", [])
        for coordinates in changed:
            written[tuple(coordinates)] = len(messages)
        messages.append(after.message)
    return written, messages


def draw_chunks(archive: Archive, target: Path) -> None:
    """The chunk grid of an array, coloured by the commit that wrote each chunk."""
    written, messages = commits_of_chunks(archive, "t2m")
    used = sorted({int(number) for number in np.unique(written) if number >= 0})
    colours = [BLUE, GREEN, "#e0a458", RED, "#7d6b91"][: len(used)]
    shown = np.searchsorted(used, written)
    rows = shown.reshape(shown.shape[0], -1).T
    figure = figure_of(9, 3.3)
    axes = figure.subplots()
    axes.pcolormesh(
        rows, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(used) - 0.5, edgecolors="white", linewidth=1
    )
    axes.set_xlabel("chunk along time (one day each)")
    axes.set_ylabel("chunk of the map")
    axes.invert_yaxis()
    axes.set_title("t2m on main: which commit wrote which chunk", fontsize=10, loc="left")
    patches = [Patch(color=colour, label=messages[number]) for number, colour in zip(used, colours, strict=True)]
    axes.legend(handles=patches, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False, fontsize=8)
    figure.savefig(target)


def draw_sizes(archive: Archive, target: Path) -> None:
    """Bytes on storage by array, and the growth over commits."""
    repo = archive.repository
    figure = figure_of(9, 3)
    left, right = figure.subplots(1, 2)
    sizes = asyncio.run(bytes_of_arrays(repo.readonly_session("main")))
    names = sorted(sizes, key=sizes.__getitem__)
    left.barh(names, [sizes[name] / 1e6 for name in names], color=BLUE)
    left.set_xlabel("MB on storage")
    left.set_title("main: size of each array", fontsize=10, loc="left")
    history = list(repo.ancestry(branch="main"))[::-1]
    total = [sum(asyncio.run(bytes_of_arrays(repo.readonly_session(snapshot_id=s.id))).values()) for s in history]
    right.step(range(len(total)), [size / 1e6 for size in total], where="post", color=GREEN)
    right.plot(range(len(total)), [size / 1e6 for size in total], "o", color=GREEN)
    right.set_xticks(range(len(total)), [s.message[:18] for s in history], rotation=20, ha="right", fontsize=7)
    right.set_ylabel("MB")
    right.set_title("main: growth over commits", fontsize=10, loc="left")
    figure.savefig(target)


async def bytes_of_arrays(session: icefloe.Session) -> dict[str, int]:
    """Return the bytes of the chunks of each array of the root group."""
    sizes: dict[str, int] = {}
    for name in [name async for name in session.store.list_dir("") if name != "zarr.json"]:
        sizes[name] = 0
        async for batch in session.chunk_columns(f"/{name}", 100_000):
            sizes[name] += int(batch[4].sum())
    return sizes


def table_after(heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading of docs/performance.md."""
    text = (DOCS / "performance.md").read_text().partition(f"\n## {heading}\n")[2]
    rows = [line for line in re.split(r"\n## ", text)[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows]
    return [row for row in cells if not set(row[0]) <= {"-", " ", ":"}]


def draw_ratios(_: Archive, target: Path) -> None:
    """The table of `python3 dev.py bench` as bars."""
    report.draw_ratios(report.read_table(report.read_block(report.PAGE, "ratios")), target)


def draw_growth(_: Archive, target: Path) -> None:
    """The measurements of `python -m benchmarks.scale_100m` as lines."""
    scale_100m.draw_growth(json.loads(scale_100m.FIGURES.read_text()), target)


def draw_durability(_: Archive, target: Path) -> None:
    """The table of durable commits as bars."""
    _header, *rows = table_after("Durable commits")
    figure = figure_of(7, 2.8)
    axes = figure.subplots()
    positions = np.arange(len(rows))
    for offset, (column, label, colour) in enumerate(((1, "fsync=False", GREY), (2, "fsync=True", BLUE))):
        bars = axes.bar(
            positions + (offset - 0.5) * 0.38, [float(row[column]) for row in rows], 0.36, label=label, color=colour
        )
        axes.bar_label(bars, fmt="%.1f", fontsize=8)
    axes.set_xticks(positions, [row[0] for row in rows])
    axes.set_ylabel("ms per commit")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target)


# Drawings in SVG ------------------------------------------------------------------------------------------------------


class Drawing:
    """A small SVG drawing: boxes, text and arrows."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        text: str = "",
        *,
        fill: str = "#eaf4f7",
        edge: str = BLUE,
        size: int = 13,
    ) -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{fill}" stroke="{edge}" stroke-width="1.3"/>'
        )
        lines = text.split("\n") if text else []
        for number, line in enumerate(lines):
            self.text(
                x + w / 2, y + h / 2 + size * 0.36 + (number - (len(lines) - 1) / 2) * size * 1.25, line, size=size
            )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 13,
        colour: str = INK,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}>'
            f"{escape(text)}</text>"
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, colour: str = GREY, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        middle = (x1 + x2) / 2
        path = (
            f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"
            if abs(x1 - x2) > abs(y1 - y2)
            else f"M{x1} {y1}L{x2} {y2}"
        )
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash} marker-end="url(#arrow)"/>'
        )

    def dot(self, x: float, y: float, colour: str, radius: int = 8) -> None:
        self.parts.append(f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{colour}" stroke="#fff" stroke-width="2"/>')

    def line(self, points: str, colour: str, width: float = 3) -> None:
        self.parts.append(f'<path d="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>')

    def save(self, target: Path) -> None:
        marker = (
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto">'
            f'<path d="M0 0 8 4 0 8z" fill="{GREY}"/></marker></defs>'
        )
        target.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'font-family="system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif" role="img">'
            f"<title>{escape(self.title)}</title>{marker}"
            f'<rect width="{self.width}" height="{self.height}" fill="#fff"/>{"".join(self.parts)}</svg>\n'
        )


def draw_overview(_: Archive, target: Path) -> None:
    """What Icefloe is, in one picture: writers, a repository, readers."""
    d = Drawing(900, 350, "Writers commit to a repository of arrays; readers see whole commits")
    d.text(110, 30, "Writers", size=15, bold=True)
    d.text(450, 30, "One repository, on a folder or a bucket", size=15, bold=True)
    d.text(790, 30, "Readers", size=15, bold=True)
    writers = (
        "NetCDF, HDF5, GRIB,\nGeoTIFF, Zarr files",
        "xarray, Zarr, Dask",
        "Spark jobs, streams",
        "the official package",
    )
    readers = ("xarray, Zarr, Dask", "SQL and DataFrames", "the viewer, Zarr over HTTP", "the official package")
    for number, (left, right) in enumerate(zip(writers, readers, strict=True)):
        y = 55 + number * 70
        d.box(15, y, 190, 52, left)
        d.box(695, y, 190, 52, right)
        d.arrow(207, y + 26, 252, 120 + number * 30)
        d.arrow(648, 120 + number * 30, 693, y + 26)
    d.box(255, 45, 390, 285, fill="#f7fafb", edge="#b9ccd4")
    d.line("M285 120H560", BLUE)
    d.line("M365 120C390 120 385 170 410 170H475C505 170 495 120 525 120", GREEN)
    d.line("M560 120H600", BLUE)
    d.line("M525 120C550 120 545 170 570 170H600", RED)
    for x, colour in ((285, BLUE), (365, BLUE), (445, BLUE), (525, BLUE), (600, BLUE)):
        d.dot(x, 120, colour)
    for x, colour in ((410, GREEN), (475, GREEN), (600, RED)):
        d.dot(x, 170, colour)
    d.text(600, 100, "main", colour=BLUE, bold=True)
    d.text(365, 100, "tag v1", colour=INK)
    d.text(525, 100, "merge", colour=INK)
    d.text(442, 195, "quality", colour=GREEN, bold=True)
    d.text(600, 195, "warmer", colour=RED, bold=True)
    d.text(450, 76, "every commit is visible as a whole, or not at all", size=12, colour="#5b6d76")
    for number in range(12):
        x = 285 + number * 27
        shade = (BLUE, BLUE, BLUE, GREEN, BLUE, BLUE, RED, RED, BLUE, BLUE, GREY, GREY)[number]
        for row in range(3):
            d.parts.append(
                f'<rect x="{x}" y="{225 + row * 24}" width="22" height="19" rx="2" fill="{shade}" '
                f'opacity="{0.85 - row * 0.2:.2f}"/>'
            )
    d.text(450, 318, "chunks: written once, shared by all commits", size=12, colour="#5b6d76")
    d.save(target)


def draw_parts(_: Archive, target: Path) -> None:
    """What a repository consists of: refs, snapshots, manifests, chunks."""
    d = Drawing(860, 330, "Branches and tags lead to snapshots, snapshots to manifests, manifests to chunks")
    for x, title in ((80, "refs"), (270, "snapshots"), (500, "manifests"), (750, "chunks")):
        d.text(x, 26, title, size=15, bold=True)
    d.box(20, 50, 120, 40, "branch main", fill="#fdf1f2", edge=RED)
    d.box(20, 130, 120, 40, "tag v1", fill="#fdf1f2", edge=RED)
    for number in range(3):
        d.box(210, 50 + number * 80, 120, 40, f"snapshot {3 - number}")
    d.arrow(270, 91, 270, 128)
    d.arrow(270, 171, 270, 208)
    d.arrow(141, 70, 208, 70)
    d.arrow(141, 150, 208, 150)
    d.box(410, 50, 180, 40, "t2m, new split", fill="#eef6f0", edge=GREEN)
    d.box(410, 130, 180, 40, "t2m, old splits", fill="#eef6f0", edge=GREEN)
    d.box(410, 210, 180, 40, "coordinates", fill="#eef6f0", edge=GREEN)
    for y1, y2 in ((70, 70), (74, 146), (78, 222), (150, 154), (156, 230), (230, 236)):
        d.arrow(331, y1, 408, y2)
    d.box(670, 40, 160, 36, "chunk objects", fill="#f4f1f7", edge="#7d6b91")
    d.box(670, 90, 160, 36, "files outside", fill="#f4f1f7", edge="#7d6b91")
    d.box(670, 150, 160, 36, "packs of small chunks", fill="#f4f1f7", edge="#7d6b91")
    d.box(670, 215, 160, 36, "inline, in the manifest", fill="#f4f1f7", edge="#7d6b91")
    for y1, y2 in ((66, 58), (76, 106), (150, 168), (230, 233)):
        d.arrow(591, y1, 668, y2, dashed=y2 == 106)
    d.text(
        430,
        290,
        "Everything but the refs is written once, under a random id. A commit is the one write that moves a branch.",
        size=12,
        colour="#5b6d76",
    )
    d.save(target)


def draw_history(archive: Archive, target: Path) -> None:
    """The history graph as Icefloe draws it."""
    target.write_text(archive.repository.ancestry_graph(plain=False).to_svg())


def colours(text: str) -> list[tuple[int, int, int]]:
    """Parse colours such as `10242c`."""
    return [(int(c[:2], 16), int(c[2:4], 16), int(c[4:], 16)) for c in text.split()]


THEME = TerminalTheme(
    *colours("10242c e2ecf0"),
    colours("10242c e8697a 78be8c e0b464 69b2d6 b496d2 6ec8cd e2ecf0"),
    colours("6e828c f08291 8cd2a0 f0c878 82c8eb c8aae6 82dce1 ffffff"),
)


def terminal(archive: Archive, target: Path, *commands: list[str]) -> None:
    """Draw commands of `icefloe` and their output as a terminal."""
    console = Console(record=True, width=92, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    variables = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "92", "LINES": "40", "TERM": "xterm-256color"}
    variables["PYTHONPATH"] = str(DOCS.parent / "src")
    for arguments in commands:
        console.print(Text("$ ", style="bold cyan") + Text("icefloe " + " ".join(arguments), style="bold"))
        command = [sys.executable, "-m", "icefloe.cli.app", *arguments]
        done = subprocess.run(
            command, cwd=archive.folder.parent, env=variables, capture_output=True, text=True, check=True
        )
        console.print(Text.from_ansi(done.stdout.rstrip("\n")))
        console.print()
    svg = console.export_svg(title="icefloe", theme=THEME)
    # Fonts come from the reader's machine, not from another server.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")
    target.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def draw_terminal_history(archive: Archive, target: Path) -> None:
    terminal(archive, target, ["log", "weather", "--graph"], ["diff", "weather", "v1", "v2"])


def draw_terminal_info(archive: Archive, target: Path) -> None:
    terminal(archive, target, ["info", "weather"], ["tree", "weather"])


def draw_terminal_stats(archive: Archive, target: Path) -> None:
    terminal(archive, target, ["stats", "weather"], ["expire", "weather", "--retain-last", "2", "--dry-run"])


PICTURES: dict[str, Callable[[Archive, Path], None]] = {
    "overview.svg": draw_overview,
    "parts.svg": draw_parts,
    "history.svg": draw_history,
    "map.png": draw_map,
    "comparison.png": draw_comparison,
    "series.png": draw_series,
    "chunks.svg": draw_chunks,
    "sizes.svg": draw_sizes,
    "ratios.svg": draw_ratios,
    "growth.svg": draw_growth,
    "durability.svg": draw_durability,
    "terminal-history.svg": draw_terminal_history,
    "terminal-info.svg": draw_terminal_info,
    "terminal-stats.svg": draw_terminal_stats,
}


def draw_all(target: Path, *, days: int = 12, only: tuple[str, ...] = ()) -> Iterator[Path]:
    """Draw the pictures into a folder and yield them."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        archive = make_archive(Path(folder), days)
        for name, draw in PICTURES.items():
            if not only or name in only:
                draw(archive, target / name)
                yield target / name


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the pictures of the documentation.")
    parser.add_argument("names", nargs="*", help="only these, such as history.svg")
    parser.add_argument("--target", type=Path, default=DOCS / "images")
    arguments = parser.parse_args()
    started = dt.datetime.now(dt.UTC)
    for path in draw_all(arguments.target, only=tuple(arguments.names)):
        print(f"{path.name:24} {path.stat().st_size / 1024:7.1f} kB")
    print(f"{(dt.datetime.now(dt.UTC) - started).total_seconds():.0f} s")


if __name__ == "__main__":
    main()
