"""Writes measurements into docs/performance.md and draws them.

A page has blocks between `<!-- figures NAME: begin -->` and `<!-- figures NAME: end -->`. A benchmark replaces its
block as a whole, so that the figures, the commit and the machine of a block always belong together.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
BLUE, RED, GREY = "#1f6f8b", "#d1495b", "#8a9aa3"
COLUMNS = ("workload", "official", "Icefloe", "ratio", "goal", "processor time", "peak memory", "bytes", "objects")


def where_measured(load: tuple[float, float, float]) -> str:
    """Return a sentence with the commit, the versions, the machine and its load at the start of the run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = [f"{name} {importlib.metadata.version(package)}" for name, package in _VERSIONS.items()]
    machine = f"{platform.system()} {platform.machine()} with {os.cpu_count()} cores and {memory:.0f} GiB"
    return (
        f"Measured at commit `{commit()}` on {dt.datetime.now(dt.UTC):%d %B %Y} with Python "
        f"{platform.python_version()}, {', '.join(versions)}, on {machine}, local files. The load of the machine was "
        f"{load[0]:.1f} before the run and {os.getloadavg()[0]:.1f} after it."
    )


_VERSIONS = {"zarr": "zarr", "numpy": "numpy", "the official package": "icechunk"}


def commit() -> str:
    """Return the commit of this checkout. `+` means that files were changed after it, apart from the documentation."""
    try:
        done = _git("rev-parse", "--short", "HEAD")
        changed = [line for line in _git("status", "--porcelain").splitlines() if not line[3:].startswith("docs/")]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.strip() + ("+" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def replace_block(page: Path, name: str, text: str) -> None:
    """Replace the block of a page."""
    begin, end = f"<!-- figures {name}: begin -->", f"<!-- figures {name}: end -->"
    old = page.read_text()
    if old.count(begin) != 1 or old.count(end) != 1:
        raise SystemExit(f"{page} has no block {name!r}: it needs one line {begin} and one line {end}")
    head, _, rest = old.partition(begin)
    page.write_text(f"{head}{begin}\n\n{text.strip()}\n\n{end}{rest.partition(end)[2]}")


def read_block(page: Path, name: str) -> str:
    """Return the text of a block."""
    return page.read_text().partition(f"figures {name}: begin -->")[2].partition(f"<!-- figures {name}: end")[0]


def read_table(text: str) -> list[list[str]]:
    """Return the cells of the first Markdown table of a text, without its header."""
    rows = re.findall(r"^\|.*\|$", text.split("\n\n![")[0], re.MULTILINE)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [row for row in cells[1:] if not set("".join(row)) <= set("-: ")]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Return a Markdown table. The first `texts` columns are on the left, the numbers on the right."""
    line = ["---" if index < texts else "---:" for index in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, line, *rows))


def ratios(rows: Sequence[Row]) -> list[list[str]]:
    """Return the rows of the table: seconds of both packages, and official / Icefloe for all that was measured."""
    return [
        [
            f"{row.workload}: {row.step}",
            _amount(row.official.seconds if row.official else None, row.unit),
            _amount(row.ours.seconds, row.unit),
            _number(_ratio(row, "seconds")),
            format_goal(row.goal),
            *(_number(_ratio(row, name)) for name in ("cpu_seconds", "peak_mb", "added_mb", "objects")),
        ]
        for row in rows
        if not row.step.startswith("prepare")
    ]


def _ratio(row: Row, name: str) -> float | None:
    theirs, ours = (getattr(measured, name) if measured else None for measured in (row.official, row.ours))
    return theirs / ours if theirs and ours and theirs > 0 and ours > 0 else None


def format_goal(goal: float | str | None) -> str:
    """Return the goal of a row as text."""
    return goal if isinstance(goal, str) else "" if goal is None else f"{goal:g}"


def _amount(value: float | None, unit: str) -> str:
    """Return seconds, requests and so on with their unit."""
    if value is None:
        return "-"
    if unit == "s":
        return f"{_number(value)} s" if value >= 0.1 else f"{value * 1000:.1f} ms"
    return f"{value:g} {unit}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def figure_of(width: float, height: float) -> Figure:
    """Return a figure that shares no state with others."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_ratios(table: Sequence[Sequence[str]], target: Path) -> None:
    """Draw the ratio of wall time of each row as a bar. The official package is the line at 1, a goal is a mark."""
    drawn = [row for row in table if row[3] != "-"]
    shown = [(row[0], float(row[3].replace(",", ""))) for row in drawn]
    goals = {place: float(row[4]) for place, row in enumerate(drawn) if re.fullmatch(r"[\d.]+", row[4])}
    figure = figure_of(9, 1.0 + 0.27 * len(shown))
    axes = figure.subplots()
    values = [value for _, value in shown]
    colours = [BLUE if value >= 1 else RED for value in values]
    bars = axes.barh(range(len(shown)), [value - 1 for value in values], 0.7, left=1, color=colours)
    for place, (bar, value) in enumerate(zip(bars, values, strict=True)):
        # The label is behind the mark of a goal that is just ahead of the bar.
        goal = goals.get(place, 0.0)
        end = max(value, goal) if value >= goal / 1.4 else value
        side, away = ("left", 3) if value >= 1 else ("right", -3)
        at = (end, bar.get_y() + bar.get_height() / 2)
        shift: Any = {"xytext": (away, 0), "textcoords": "offset points", "ha": side, "va": "center"}
        axes.annotate(f"{value:.1f}", at, fontsize=8, **shift)
    axes.set_yticks(range(len(shown)), [name for name, _ in shown], fontsize=8)
    axes.margins(y=0.01)
    axes.set_xscale("log")
    axes.set_xlim(min([0.5, *(value / 1.5 for value in values)]), max([2, *values]) * 1.8)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(1, color=GREY)
    axes.scatter(list(goals.values()), list(goals), marker="|", s=160, color="black", zorder=3, label="goal")
    if goals:
        axes.legend(loc="lower right", frameon=False)
    axes.invert_yaxis()
    axes.set_xlabel("wall time or requests of the official package / those of Icefloe (more is better)")
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, target)


def save(figure: Any, target: Path) -> None:
    """Save a figure. The same figures give the same bytes."""
    import matplotlib

    target.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": target.name}):
        figure.savefig(target, metadata={"Date": None})


def publish_ratios(rows: Sequence[Row], load: tuple[float, float, float], *, runs: int, scale: float) -> None:
    """Write the table and the picture of `python3 dev.py bench`."""
    best = "Each step ran once." if runs == 1 else f"The fastest of {runs} runs of each step counts."
    if scale != 1:
        best += f" The data had {scale:g} times the size that the names say."
    text = (
        f"{where_measured(load)} {best} Every step runs in a process of its own, and the packages take turns. "
        "Before a step, everything is written to the disk (`sync`). The column `ratio` and those after `goal` are "
        "ratios, official / Icefloe: more than 1 is better. A goal is a ratio by the clock, or the most that a step "
        "may take.\n\n"
        f"{markdown(COLUMNS, ratios(rows))}\n\n"
        "![Wall time or requests of the official package divided by those of Icefloe, as bars](images/ratios.svg)"
    )
    replace_block(PAGE, "ratios", text)
    draw_ratios(read_table(read_block(PAGE, "ratios")), IMAGES / "ratios.svg")
    print(f"wrote {PAGE.relative_to(ROOT)} and docs/images/ratios.svg", file=sys.stderr)
