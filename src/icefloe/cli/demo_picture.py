"""The picture of the demo: a map and a time series, as PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

_COLOURS = ("#1f6f8b", "#d1495b", "#66a182")


def draw(path: Path, field: xr.DataArray, contours: xr.DataArray, series: Mapping[str, xr.DataArray]) -> Path:
    """Draw a field with contours of another over latitude and longitude, and series over time below it."""
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
