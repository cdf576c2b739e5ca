"""What a person can ask of an ingest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from icefloe.errors import InvalidInputError

Mode: TypeAlias = Literal["native", "virtual", "mixed"]
OnError: TypeAlias = Literal["fail", "skip"]
AppendOrder: TypeAlias = Literal["after", "any"]
Region: TypeAlias = "Mapping[str, tuple[int, int] | slice] | Literal['auto']"


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How sources become arrays.

    mode            native: values are decoded and written as new chunks; virtual: references only;
                    mixed: coordinates and small arrays native, the rest virtual
    concat_dims     dimensions to join files along; None finds them from the coordinates
    append_dim      extend the repository's arrays along this dimension
    append_order    after: appended coordinates follow the repository's; any: it is enough that none is there already
    region          write into existing arrays: [first, end) by dimension, or "auto" to find it from coordinates
    group           target group of everything
    group_pattern   regular expression searched in each URL; its first group names a target group below `group`
    variables       only these (and the coordinates they need); names as in the sources
    drop_variables  all but these
    rename          new names of variables and dimensions
    chunks          native chunk length by dimension
    codecs          native codecs, as in zarr.json; the array-to-bytes codec included
    dtypes          native data type by variable (target name); values that do not fit it are refused
    unpack          native: apply scale_factor and add_offset instead of keeping packed integers
    time_units      native: CF units for every time coordinate; None: the repository's, or units that hold all
    allow_missing   a variable that some files (or the repository) lack is missing there
    unchecked       go on although the repository's own coordinates cannot be read and compared
    on_error        what a broken file does: fail, or skip (its region, where its place is known, is missing)
    native_below_bytes  mixed: arrays smaller than this are native
    task_bytes      decoded bytes a native task handles, about
    files_per_task  files a virtual task handles, at most
    container_prefix    virtual: URL prefix under which the sources are reached
    format          parser to use instead of looking at the bytes
    """

    mode: Mode = "native"
    concat_dims: tuple[str, ...] | None = None
    append_dim: str | None = None
    append_order: AppendOrder = "after"
    region: Region | None = None
    group: str = ""
    group_pattern: str | None = None
    variables: tuple[str, ...] | None = None
    drop_variables: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    chunks: Mapping[str, int] = field(default_factory=dict)
    codecs: tuple[Mapping[str, Any], ...] | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    unpack: bool = False
    time_units: str | None = None
    allow_missing: bool = False
    unchecked: bool = False
    on_error: OnError = "fail"
    native_below_bytes: int = 1 << 20
    task_bytes: int = 128 << 20
    files_per_task: int = 32
    container_prefix: str | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        _choose("mode", self.mode, ("native", "virtual", "mixed"))
        _choose("append_order", self.append_order, ("after", "any"))
        _choose("on_error", self.on_error, ("fail", "skip"))
        if self.append_dim is not None and self.region is not None:
            raise InvalidInputError("append_dim and region exclude each other: a region lies in arrays that exist")
        if self.mode == "virtual" and (self.chunks or self.codecs or self.dtypes or self.unpack or self.time_units):
            raise InvalidInputError(
                "mode='virtual' keeps the sources' bytes as they are; chunks, codecs, dtypes, unpack and time_units "
                "need mode='native' (or 'mixed' for small arrays)"
            )
        for name, length in self.chunks.items():
            if length < 1:
                raise InvalidInputError(f"the chunk length {length} of dimension {name} is not positive")
        for name, dtype in self.dtypes.items():
            try:
                np.dtype(dtype)
            except TypeError as error:
                raise InvalidInputError(f"{dtype!r} (for {name}) is not a data type") from error
        if self.group_pattern is not None:
            try:
                groups = re.compile(self.group_pattern).groups
            except re.error as error:
                raise InvalidInputError(f"the group pattern {self.group_pattern!r} is wrong: {error}") from error
            if groups < 1:
                raise InvalidInputError(f"the group pattern {self.group_pattern!r} has no ( ) around the group's name")


def _choose(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInputError(f"{name} is {value!r}; it is one of {', '.join(allowed)}")
