"""What every format offers: a schema, chunk references, and values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import FormatError, NodeNotFoundError, UnsupportedError
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.chunk_grids import Region
from icefloe.ingest.references import decode_references
from icefloe.ingest.source_model import References, SourceFile, SourceSchema, SourceVariable


class OpenSource(ABC):
    """A source opened for reading; a context manager. Values are as stored: packed ones stay packed."""

    format: str

    def __init__(self, file: SourceFile, access: SourceAccess) -> None:
        self.file = file
        self.access = access

    @abstractmethod
    def schema(self) -> SourceSchema:
        """Everything but the chunk references."""

    @abstractmethod
    def references(self, variable: SourceVariable) -> References:
        """Where the chunks of a variable lie.

        `variable.chunks` is obeyed where the file's layout leaves a choice (contiguous and record variables).
        """

    def values(self, variable: SourceVariable, region: Region) -> npt.NDArray[Any]:
        """The stored values of a region; by default decoded from the references by zarr's own codecs."""
        if variable.not_virtual is not None:
            raise UnsupportedError(
                f"{variable.path} of {self.file.url} cannot be read: {variable.not_virtual}",
                url=self.file.url, variable=variable.path,
            )  # fmt: skip
        return decode_references(variable, self.references(variable).table, region, self.access)

    @abstractmethod
    def close(self) -> None:
        """Let go of the file."""

    def __enter__(self) -> OpenSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def find_variable(self, path: str) -> SourceVariable:
        """A variable by its path in the file."""
        variables = self.schema().variables
        if path not in variables:
            raise NodeNotFoundError(f"{self.file.url} has no variable {path!r}; it has {sorted(variables)}")
        return variables[path]


def broken(file: SourceFile, format_name: str, reason: object) -> FormatError:
    """The error for a file that is not what it should be."""
    return FormatError(
        f"{file.url} is not a readable {format_name} file: {reason}", url=file.url, format=format_name,
        reason=str(reason),
    )  # fmt: skip


def check_inside(
    file: SourceFile, format_name: str, offsets: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]
) -> None:
    """Refuse references that lead beyond the end of the file."""
    if len(offsets) == 0 or file.size_bytes == 0:
        return
    end = int((offsets.astype(np.int64) + lengths.astype(np.int64)).max())
    if end > file.size_bytes:
        raise broken(file, format_name, f"its data end at byte {end}, the file at byte {file.size_bytes} (truncated?)")


def with_chunks(variable: SourceVariable, chunks: Sequence[int]) -> SourceVariable:
    """The variable cut into other chunks, where its layout allows."""
    return replace(variable, chunks=tuple(int(c) for c in chunks))
