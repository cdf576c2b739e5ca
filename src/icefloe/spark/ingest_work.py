"""What one Spark task of an ingest does: run the plan's task on a fork, and deal with files that turn out broken."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from icefloe.errors import FormatError, IcefloeError, InvalidInputError, StorageError
from icefloe.ingest.access import SourceAccess
from icefloe.ingest.array_plan import ArrayPlan
from icefloe.ingest.chunk_grids import Region
from icefloe.ingest.execution import TaskResult, run_task
from icefloe.ingest.options import OnError
from icefloe.ingest.session_sink import SessionSink
from icefloe.ingest.source_model import SourceFailure
from icefloe.ingest.target_arrays import fill_means_missing
from icefloe.ingest.tasks import IngestTask, PlacedFile
from icefloe.model.chunk_table import ChunkTable
from icefloe.session.session import ForkSession
from icefloe.spark.distributed import OpenFork

_BROKEN = (IcefloeError, OSError, ValueError, RuntimeError, EOFError, zlib.error)
"""What parsers and codecs say about bytes that are not what they should be."""


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What a task did, and the files it had to leave out."""

    result: TaskResult
    failures: tuple[SourceFailure, ...] = ()


class _Nowhere:
    """A sink that keeps nothing: to find out whether files can be read."""

    def write_block(self, array_path: str, region: Region, values: npt.NDArray[Any]) -> None:
        pass

    def write_table(self, array_path: str, table: ChunkTable) -> None:
        pass


@dataclass(frozen=True, slots=True)
class IngestWork:
    """The arrays of a plan and how its sources are reached."""

    arrays: Mapping[str, ArrayPlan]
    access: SourceAccess
    format: str | None
    on_error: OnError

    def __call__(self, open_fork: OpenFork, task: IngestTask) -> tuple[ForkSession, IngestReport]:
        fork = open_fork()
        try:
            return fork, IngestReport(self._run(task, SessionSink(fork)))
        except _BROKEN as error:
            failures = self._find_broken(task)
            if not failures:
                raise
            if self.on_error == "fail":
                raise FormatError(
                    f"{failures[0].file.url} cannot be read; nothing was committed (on_error='skip' leaves its region "
                    f"at the fill value): {failures[0].reason}",
                    url=failures[0].file.url,
                ) from error
        self._check_holes(task, failures)
        broken = {failure.file.url for failure in failures}
        rest = replace(task, files=tuple(placed for placed in task.files if placed.file.url not in broken))
        fork = open_fork()
        return fork, IngestReport(self._run(rest, SessionSink(fork)), failures)

    def _check_holes(self, task: IngestTask, failures: Sequence[SourceFailure]) -> None:
        """Refuse to leave a file out of an array in which cells that were never written are ordinary values."""
        for path in task.arrays:
            if not fill_means_missing(self.arrays[path]):
                raise FormatError(
                    f"{failures[0].file.url} cannot be read, and cells of /{path} that are left out would not read as "
                    f"missing; nothing was committed: {failures[0].reason}",
                    url=failures[0].file.url,
                )

    def _run(self, task: IngestTask, sink: Any) -> TaskResult:
        return run_task(task, self.arrays, sink, access=self.access, format=self.format)

    def _find_broken(self, task: IngestTask) -> tuple[SourceFailure, ...]:
        """The files that fail by themselves; a store that does not answer is no fault of a file and is raised."""
        found = []
        for placed in task.files:
            failure = self._try_file(task, placed)
            if failure is not None:
                found.append(failure)
        return tuple(found)

    def _try_file(self, task: IngestTask, placed: PlacedFile) -> SourceFailure | None:
        try:
            self._run(replace(task, files=(placed,)), _Nowhere())
        except StorageError:
            raise
        except InvalidInputError:
            # Its values do not fit the arrays: the file is not broken, and leaving it out is not for us to decide.
            raise
        except _BROKEN as error:
            return SourceFailure(placed.file, f"{type(error).__name__}: {error}", type(error).__name__)
        return None
