"""`icefloe demo`: a month of synthetic weather from files to pictures, on local Spark."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from icefloe.cli.ingest import Master, Settings, spark_session
from icefloe.cli.options import Json
from icefloe.cli.output import print_json, stderr, stdout
from icefloe.errors import InvalidInputError, UnsupportedError


def register_demo(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="Where to build it; a new folder in /tmp by default.")
    ] = None,
    days: Annotated[int, typer.Option("--days", min=2, max=366, help="Days of weather.")] = 31,
    master: Master = None,
    conf: Settings = None,
    json: Json = False,
) -> None:
    """Make a month of weather, ingest it on Spark, branch, travel back, draw a picture."""
    place = folder or Path(tempfile.mkdtemp(prefix="icefloe-demo-"))
    if place.exists() and any(place.iterdir()):
        raise InvalidInputError(f"{place} is not empty; name a new folder, the demo overwrites nothing")
    try:
        from icefloe.cli.demo_steps import tell  # noqa: PLC0415 - needs Spark and matplotlib, which are extras
    except ImportError as error:
        raise UnsupportedError(f"the demo needs more packages: pip install 'icefloe[demo]' ({error})") from error
    facts = tell(place, days, lambda: spark_session(master, conf, quick_start=True), stderr() if json else stdout())
    if json:
        print_json(facts)
