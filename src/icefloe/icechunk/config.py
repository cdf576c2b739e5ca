"""Configuration, attribution and logs, as `icechunk.config`."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from icefloe.debug import DIRECTIVE_VARIABLES, LOG_LEVELS
from icefloe.debug import set_logs_filter as set_levels
from icefloe.errors import InvalidInputError
from icefloe.model.config import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
)
from icefloe.model.manifest_conditions import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.model.manifest_config import (
    ManifestConfig,
    ManifestPreloadConfig,
    ManifestSplittingConfig,
    ManifestVirtualChunkLocationCompressionConfig,
)
from icefloe.model.status import FeatureFlag
from icefloe.model.virtual_chunk_container import ObjectStoreConfig
from icefloe.storage.endpoints import USER_AGENT

try:
    from opentelemetry import trace
except ImportError:
    trace = None

_MOST_LABEL_BYTES = 128
_MISSPELT = 0.8
"""How similar to `icechunk` a module of a log filter must be to count as a misspelling."""
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Labels that the requests of a repository carry in their User-Agent, for the access logs of the bucket.

    Parameters
    ----------
    client
        The software that sends the requests: a name, or a name and a version, such as `weatherlib/0.9`.
    workload
        The job that they are sent for.
    principal
        The user or account that they are sent for.

    Raises
    ------
    InvalidInputError
        A label has more than 128 bytes or a character that a User-Agent cannot hold.

    Examples
    --------
    >>> Attribution(client="weatherlib/0.9", workload="nightly").user_agent().endswith("(workload=nightly)")
    True
    """

    client: str | None = None
    workload: str | None = None
    principal: str | None = None

    def __post_init__(self) -> None:
        for name in ("client", "workload", "principal"):
            value = getattr(self, name)
            if value is None:
                continue
            if len(value.encode()) > _MOST_LABEL_BYTES:
                raise InvalidInputError(f"attribution: {name} is longer than {_MOST_LABEL_BYTES} bytes")
            if name == "client":
                if re.fullmatch(f"{_TOKEN}(/{_TOKEN})?", value) is None:
                    raise InvalidInputError(
                        f"attribution: client is `name` or `name/version` in token characters, not {value!r}"
                    )
            else:
                found = re.search(r"[^ -~]|[()\\;=\"]", value)
                if found is not None:
                    raise InvalidInputError(f"attribution: {name} contains the forbidden character {found[0]!r}")

    def user_agent(self) -> str:
        """Return the User-Agent of requests with these labels."""
        products = USER_AGENT if self.client is None else f"{self.client} {USER_AGENT}"
        labels = [f"{name}={getattr(self, name)}" for name in ("workload", "principal") if getattr(self, name)]
        return f"{products} ({'; '.join(labels)})" if labels else products


ManifestSplitValues: TypeAlias = dict[Any, int]
SplitSizesDict: TypeAlias = dict[ManifestSplitCondition, ManifestSplitValues]


def from_dict(split_sizes: Mapping[ManifestSplitCondition, Mapping[Any, int]]) -> ManifestSplittingConfig:
    """Return the splitting that a dictionary describes: conditions, and the number of chunks by dimension."""
    return ManifestSplittingConfig.from_dict(split_sizes)


def to_dict(config: ManifestSplittingConfig) -> dict[ManifestSplitCondition, dict[Any, int]]:
    """Return the splitting as a dictionary."""
    return config.to_dict()


def initialize_logs() -> None:
    """Write logs to standard error, with the levels of ICECHUNK_LOG. With ICECHUNK_NO_LOGS nothing is changed."""
    if not os.environ.get("ICECHUNK_NO_LOGS"):
        set_logs_filter(None)


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Set the levels of logs: a level, or pairs of a module and a level, separated by commas.

    A part that has no level we know names another program, and changes nothing here. A module that looks like a
    misspelt `icechunk` is reported on standard error.

    Parameters
    ----------
    log_filter_directive
        For example `debug`, `icechunk=debug` or `icechunk::storage=trace,warn`. None uses the environment variable
        ICECHUNK_LOG.
    """
    directive = log_filter_directive
    if directive is None:
        directive = next((os.environ[name] for name in DIRECTIVE_VARIABLES if os.environ.get(name)), None)
        if directive is None:
            set_levels(None)
            return
    own = []
    for part in filter(None, (part.strip() for part in directive.split(","))):
        found = re.fullmatch(r"(?:(?P<module>.*?)\s*(?:=|(?<!:):(?!:))\s*)?(?P<level>\w+)", part)
        level = "" if found is None else found["level"].lower()
        module = None if found is None else found["module"]
        if level not in LOG_LEVELS:
            module, level = part, "off"
        if not module:
            own.append(level)
            continue
        package = re.split(r"::|[.=:]", module)[0].strip()
        if package in ("icechunk", "icefloe"):
            own.append(f"{module}={level}")
        elif difflib.SequenceMatcher(None, package, "icechunk").ratio() > _MISSPELT:
            sys.stderr.write(f"WARNING: the log filter names {package!r}. Did you mean 'icechunk'?\n")
    set_levels(",".join(own))


def shutdown_telemetry() -> None:
    """Send the spans and metrics that are still in memory, and stop telemetry. Nothing happens without a provider."""
    if trace is None:
        return
    stop = getattr(trace.get_tracer_provider(), "shutdown", None)
    if stop is not None:
        stop()


__all__ = [
    "Attribution",
    "CachingConfig",
    "CompressionAlgorithm",
    "CompressionConfig",
    "FeatureFlag",
    "ManifestConfig",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplitValues",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "ObjectStoreConfig",
    "RepoUpdateRetryConfig",
    "RepositoryConfig",
    "SplitSizesDict",
    "from_dict",
    "initialize_logs",
    "set_logs_filter",
    "shutdown_telemetry",
    "to_dict",
]
