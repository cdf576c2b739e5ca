"""The picture of the demo: a map and a time series, as PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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
    figure.colorbar(mesh, ax=above, label="K", shrink=0.9)
    above.set_title("Mean temperature at 2 m (colours) and pressure of the last hour in hPa (lines)")
    above.set_xlabel("longitude")
    above.set_ylabel("latitude")
    for (name, values), colour in zip(series.items(), _COLOURS, strict=False):
        below.plot(values.time, values, label=name, color=colour, linewidth=1.2)
    below.set_title("Temperature at 50° N, 10° E, on two branches")
    below.set_ylabel("K")
    below.legend(loc="upper right", frameon=False)
    below.grid(alpha=0.3)
    below.tick_params(axis="x", rotation=20)
    figure.savefig(path, dpi=130)
    return path
