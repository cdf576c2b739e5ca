"""The Spark session of a verb: a master or a Connect server, and settings, as the command line names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.errors import UnsupportedError

if TYPE_CHECKING:
    from icefloe.spark.connection import SparkSession

Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master, or sc://HOST:PORT of a Connect server [local cores]."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="Setting of the Spark session; can be repeated."),
]


def spark_session(master: str | None, settings: Sequence[str] | None, *, quick_start: bool = False) -> SparkSession:
    """The session that the options ask for; `quick_start` for verbs that leave the work to Python."""
    try:
        from icefloe.spark.connection import connect  # noqa: PLC0415 - Spark is an extra
    except ImportError as error:
        raise UnsupportedError(f"this verb needs Spark: pip install 'icefloe[spark]' ({error})") from error
    if master is not None and master.startswith("sc://"):
        return connect(remote=master)
    return connect(master, quick_start=quick_start, settings=parse_pairs(settings, "--conf"))


def parse_pairs(pairs: Sequence[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE as a dictionary; several may stand behind one option, separated by commas."""
    parsed: dict[str, str] = {}
    for text in pairs or ():
        for pair in text.split(",") if option != "--conf" else [text]:
            name, equals, value = pair.partition("=")
            if not equals or not name.strip():
                raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
            parsed[name.strip()] = value.strip()
    return parsed


def parse_numbers(pairs: Sequence[str] | None, option: str) -> dict[str, int]:
    """DIM=LENGTH as a dictionary."""
    try:
        return {name: int(value) for name, value in parse_pairs(pairs, option).items()}
    except ValueError as error:
        raise typer.BadParameter(f"a length is a whole number ({error})", param_hint=option) from error


def parse_region(pairs: Sequence[str] | None, option: str = "--region") -> dict[str, tuple[int, int]]:
    """DIM=FIRST:END as bounds."""
    bounds: dict[str, tuple[int, int]] = {}
    for name, value in parse_pairs(pairs, option).items():
        first, colon, end = value.partition(":")
        if not colon or not first.isdigit() or not end.isdigit():
            raise typer.BadParameter(f"{name}={value} is not DIM=FIRST:END", param_hint=option)
        bounds[name] = (int(first), int(end))
    return bounds


def parse_names(texts: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names, repeated or separated by commas; None when there are none."""
    names = [name.strip() for text in texts or () for name in text.split(",") if name.strip()]
    return tuple(names) or None


def without_none(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}
