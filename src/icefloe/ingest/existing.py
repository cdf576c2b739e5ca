"""What the repository already holds, as far as an ingest needs to know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.ingest.parsers.zarr_metadata import variable_of_v3
from icefloe.ingest.source_model import SourceVariable


@dataclass(frozen=True, slots=True)
class ExistingArray:
    """An array of the repository; one-dimensional coordinates come with their values."""

    path: str
    document: Mapping[str, Any]
    values: npt.NDArray[Any] | None = None

    def variable(self) -> SourceVariable:
        return variable_of_v3(self.path, self.document)

    def resized(self, shape: tuple[int, ...]) -> bytes:
        """The document with another shape."""
        return json.dumps({**self.document, "shape": list(shape)}, indent=2).encode()


@dataclass(frozen=True, slots=True)
class Existing:
    """Arrays and groups of the repository by path; empty for a new one."""

    arrays: Mapping[str, ExistingArray] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Coordinates whose values could not be read, and why: virtual ones that the caller did not authorise."""

    def coordinate(self, path: str) -> npt.NDArray[Any] | None:
        found = self.arrays.get(path)
        return None if found is None else found.values


def find_run(whole: npt.NDArray[Any], part: npt.NDArray[Any]) -> int | None:
    """Where `part` stands in `whole` as a run of neighbours; None when it does not."""
    if len(part) == 0 or len(part) > len(whole):
        return None
    for start in np.flatnonzero(same_coordinates(whole, np.full(len(whole), part[0]))):
        run = whole[start : start + len(part)]
        if len(run) == len(part) and bool(same_coordinates(run, part).all()):
            return int(start)
    return None


def same_coordinates(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which values of two coordinates of equal length are the same.

    Floats of different precision are the same where the coarser type cannot tell them apart.
    """
    if left.dtype.kind == "f" and right.dtype.kind == "f" and left.dtype.itemsize != right.dtype.itemsize:
        coarse = min(left.dtype, right.dtype, key=lambda dtype: dtype.itemsize)
        left, right = left.astype(coarse), right.astype(coarse)
    found: npt.NDArray[np.bool_] = np.asarray(left == right)
    if left.dtype.kind == "f" and right.dtype.kind == "f":
        found |= np.isnan(left) & np.isnan(right)
    return found
