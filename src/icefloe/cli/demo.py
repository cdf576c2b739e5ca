"""The command `demo`: ingest, branch, query and draw a month of synthetic weather, on local Spark."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from icefloe.cli.console import stderr, stdout
from icefloe.cli.options import Json, SparkOptions
from icefloe.cli.output import print_json
from icefloe.errors import InvalidInputError, UnsupportedError


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
    """
    target = folder or Path(tempfile.mkdtemp(prefix="icefloe-demo-"))
    if target.exists() and any(target.iterdir()):
        raise InvalidInputError(f"{target} is not empty. Choose a new or an empty folder")
    try:
        from icefloe.cli.demo_steps import run_demo  # noqa: PLC0415 - needs Spark and matplotlib, which are extras
    except ImportError as error:
        raise UnsupportedError(
            f"the demo needs more packages. Install them with: pip install 'icefloe[demo]' ({error})"
        ) from error
    facts = run_demo(target, days, lambda: spark.session(quick_start=True), stderr() if json else stdout())
    if json:
        print_json(facts)
