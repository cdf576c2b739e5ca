"""What to tell when asking for help: versions of everything that matters, and logs."""

from __future__ import annotations

import logging
import os
import platform
import sys
from importlib import metadata

from icefloe.errors import InvalidInputError
from icefloe.version import __version__

_PACKAGES = (
    "zarr",
    "numcodecs",
    "numpy",
    "pyarrow",
    "obstore",
    "zstandard",
    "msgpack",
    "msgspec",
    "flatbuffers",
    "xarray",
    "dask",
    "distributed",
    "pandas",
    "pyspark",
    "h5py",
    "netCDF4",
    "virtualizarr",
    "icechunk",
    "rich",
    "typer",
)
_VARIABLES = ("ICEFLOE_LOG", "ICECHUNK_LOG")
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
_ALIASES = {"icechunk": "icefloe"}


def debug_info() -> dict[str, str]:
    """Versions of the platform, of Python, of this library and of the packages it works with, as far as installed."""
    found = {"platform": platform.platform(), "python": platform.python_version(), "icefloe": __version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def print_debug_info() -> None:
    """Print what a report of a problem should say."""
    sys.stdout.write("".join(f"{name}:  {version}\n" for name, version in debug_info().items()))


def initialize_logs() -> None:
    """Write the logs of this library to standard error, as the variable ICEFLOE_LOG (or ICECHUNK_LOG) says.

    Nothing is set up when neither is there: the library then logs under the name `icefloe` like any other, and the
    program decides with `logging`.
    """
    set_logs_filter(None)


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Set the levels of what is logged, and write it to standard error.

    Parameters
    ----------
    log_filter_directive
        A level, or levels for parts of the library, separated by commas: `"debug"`, `"icefloe=debug"`,
        `"icefloe.storage=debug,warn"`. Levels are trace (as debug), debug, info, warn, error and off. None takes the
        directive from ICEFLOE_LOG or ICECHUNK_LOG.

    Examples
    --------
    >>> set_logs_filter("icefloe=info")
    >>> logging.getLogger("icefloe").level == logging.INFO
    True
    """
    directive = log_filter_directive
    if directive is None:
        directive = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), None)
    if directive is None:
        return
    levels = parse_directive(directive)
    for name in [known for known in logging.Logger.manager.loggerDict if known.startswith("icefloe.")]:
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    root = logging.getLogger("icefloe")
    if not any(isinstance(handler, _StandardError) for handler in root.handlers):
        root.addHandler(_StandardError())


def parse_directive(directive: str) -> dict[str, int]:
    """Levels by name of logger; a level without a name is that of the whole library."""
    levels = {"icefloe": logging.ERROR}
    for part in filter(None, (part.strip() for part in directive.split(","))):
        name, equals, level = part.rpartition("=")
        if level.lower() not in _LEVELS or (equals and not name):
            raise InvalidInputError(
                f"log filter {directive!r}: {part!r} is not LEVEL or NAME=LEVEL with a level of {', '.join(_LEVELS)}"
            )
        first, dot, rest = name.replace("::", ".").partition(".")
        levels[_ALIASES.get(first, first) + dot + rest if name else "icefloe"] = _LEVELS[level.lower()]
    return levels


class _StandardError(logging.StreamHandler):  # type: ignore[type-arg]
    """Standard error, whatever it is at the time of the message."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)
