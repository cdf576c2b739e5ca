"""Configuration, attribution and logs, as `icechunk.config`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from icefloe.debug import initialize_logs, set_logs_filter
from icefloe.errors import InvalidInputError
from icefloe.model.administration import FeatureFlag
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
from icefloe.model.virtual_chunk_container import ObjectStoreConfig
from icefloe.storage.endpoints import USER_AGENT

try:
    from opentelemetry import trace
except ImportError:
    trace = None

_MOST_LABEL_BYTES = 128
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
