"""Version information for bug reports, logging, and spans of OpenTelemetry."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import platform
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

from icefloe import __version__
from icefloe.errors import InvalidInputError

P = ParamSpec("P")
T = TypeVar("T")

_PACKAGES = (
    "zarr",
    "numcodecs",
    "numpy",
    "pyarrow",
    "obstore",
    "zstandard",
    "msgspec",
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
DIRECTIVE_VARIABLES = ("ICEFLOE_LOG", "ICECHUNK_LOG")
LOG_LEVELS = {
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
    """Return the versions of the platform, Python, this library and the installed packages that it works with."""
    from importlib import metadata  # noqa: PLC0415 - slow to import, and no command but this one needs it

    found = {"platform": platform.platform(), "python": platform.python_version(), "icefloe": __version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def print_debug_info() -> None:
    """Print the versions of the platform, Python, this library and related packages, for bug reports.

    Examples
    --------
    >>> print_debug_info()  # doctest: +ELLIPSIS
    platform: ...
    """
    sys.stdout.write("".join(f"{name}:  {version}\n" for name, version in debug_info().items()))


def initialize_logs() -> None:
    """Write the logs of this library to standard error, with the levels of ICEFLOE_LOG or ICECHUNK_LOG.

    Without either variable, the library logs to the logger `icefloe`, which the program configures with `logging`.

    Examples
    --------
    >>> initialize_logs()
    """
    set_logs_filter(None)


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Set log levels, and write the logs to standard error.

    Parameters
    ----------
    log_filter_directive
        A level, or levels of parts of the library, separated by commas: `"debug"`, `"icefloe=debug"`,
        `"icefloe.storage=debug,warn"`. Levels are trace (as debug), debug, info, warn, error and off. None reads the
        directive from ICEFLOE_LOG or ICECHUNK_LOG. Without either, an earlier call of this function is undone.

    Raises
    ------
    InvalidInputError
        The directive has an unknown level.

    Examples
    --------
    >>> set_logs_filter("icefloe=info")
    >>> logging.getLogger("icefloe").level == logging.INFO
    True
    """
    directive = log_filter_directive
    if directive is None:
        directive = next((os.environ[name] for name in DIRECTIVE_VARIABLES if os.environ.get(name)), None)
    root = logging.getLogger("icefloe")
    own = [handler for handler in root.handlers if isinstance(handler, _StandardError)]
    if directive is None:
        if own:
            _reset_levels()
            root.setLevel(logging.NOTSET)
            root.removeHandler(own[0])
        return
    levels = parse_directive(directive)
    _reset_levels()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    if not own:
        root.addHandler(_StandardError())


def _reset_levels() -> None:
    for name in [known for known in logging.Logger.manager.loggerDict if known.startswith("icefloe.")]:
        logging.getLogger(name).setLevel(logging.NOTSET)


def parse_directive(directive: str) -> dict[str, int]:
    """Return levels by logger name. A level without a name applies to the whole library."""
    levels = {"icefloe": logging.ERROR}
    for part in filter(None, (part.strip() for part in directive.split(","))):
        name, equals, level = part.rpartition("=")
        if level.lower() not in LOG_LEVELS or (equals and not name):
            raise InvalidInputError(
                f"log filter {directive!r}: {part!r} is not LEVEL or NAME=LEVEL with a level of {', '.join(LOG_LEVELS)}"
            )
        first, dot, rest = name.replace("::", ".").partition(".")
        levels[_ALIASES.get(first, first) + dot + rest if name else "icefloe"] = LOG_LEVELS[level.lower()]
    return levels


HAS_TELEMETRY = importlib.util.find_spec("opentelemetry") is not None
_NO_SPAN: AbstractContextManager[Any] = nullcontext()


@functools.cache
def _tracer() -> Any:
    from opentelemetry import trace  # noqa: PLC0415 - it takes longer to import than many operations take

    return trace.get_tracer("icefloe", __version__)


def span(name: str, **attributes: str) -> AbstractContextManager[Any]:
    """A span of OpenTelemetry around a block of code. Nothing happens where OpenTelemetry is not installed."""
    if not HAS_TELEMETRY:
        return _NO_SPAN
    started: AbstractContextManager[Any] = _tracer().start_as_current_span(f"icefloe.{name}", attributes=attributes)
    return started


def traced(
    name: str,
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Decorate an async function: each call is a span. The function is unchanged if OpenTelemetry is not installed."""

    def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        if not HAS_TELEMETRY:
            return function

        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name):
                return await function(*args, **kwargs)

        return call

    return decorate


class _StandardError(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the `sys.stderr` of the time of the message, or to `sys.stdout` with ICECHUNK_LOG_TO_STDOUT."""

    to_stdout = False

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout if self.to_stdout or os.environ.get("ICECHUNK_LOG_TO_STDOUT") else sys.stderr
        super().emit(record)


def set_log_stream(*, to_stdout: bool) -> None:
    """Write logs to standard output, as version 1 of the official package does, or to standard error."""
    _StandardError.to_stdout = to_stdout
