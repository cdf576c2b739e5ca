"""The SQL table function `icefloe_scan('repo', 'condition')`: a selection of cells, or a table of metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from icefloe.errors import InvalidInputError
from icefloe.tables.metadata_tables import SCHEMAS, metadata_batches, plan_parts
from icefloe.tables.options import READ_OPTIONS, TableOptions, normalise_options, options_document, parse_options
from icefloe.tables.places import open_place, session_at
from icefloe.tables.reading import layout_schema, scan_batches
from icefloe.tables.scans import ScanPlan, plan_scan

_POSITIONAL = ("path", "where", "variables")


@dataclass
class _Planned(AnalyzeResult):
    """What analysis found out, handed on to the function itself."""

    plan: ScanPlan | None = None
    options: TableOptions | None = None
    snapshot_id: str = ""


class IcefloeScan:
    """`SELECT ... FROM icefloe_scan('repo', 'lat BETWEEN 40 AND 60 AND time >= ''2020-01-01''', 't2m')`.

    Further options are named: `icefloe_scan('repo', tag => 'v1', group => '/daily')`. The condition is decided by this
    function alone (times without a zone are UTC), so one that it does not understand is an error.
    """

    def __init__(self, planned: _Planned) -> None:
        self._planned = planned

    @staticmethod
    def analyze(*args: AnalyzeArgument, **kwargs: AnalyzeArgument) -> AnalyzeResult:
        options = _options(args, kwargs)
        if options.table is not None:
            session = options.pin()
            schema = from_arrow_schema(SCHEMAS[options.table], prefer_timestamp_ntz=False)
            return _Planned(schema, options=options, snapshot_id=session.snapshot_id)
        plan = plan_scan(options)
        return _Planned(from_arrow_schema(layout_schema(plan.scan), prefer_timestamp_ntz=False), plan=plan)

    def eval(self, *args: Any, **kwargs: Any) -> Iterator[tuple[Any, ...]]:
        for batch in self._batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        plan, options = self._planned.plan, self._planned.options
        if plan is not None:
            for part in plan.parts:
                yield from scan_batches(plan.scan, part)
        elif options is not None and options.table is not None:
            session = session_at(options.place, self._planned.snapshot_id)
            repository = open_place(options.place)
            for share in plan_parts(options.table, session):
                yield from metadata_batches(options.table, repository, session, share, options.from_snapshot_id)


def _options(args: tuple[AnalyzeArgument, ...], kwargs: dict[str, AnalyzeArgument]) -> TableOptions:
    if len(args) > len(_POSITIONAL):
        raise InvalidInputError(
            f"icefloe_scan takes {', '.join(_POSITIONAL)} by position, others by name: {', '.join(READ_OPTIONS)}"
        )
    given = dict(zip(_POSITIONAL, args)) | kwargs
    values: dict[str, Any] = {}
    for name, argument in given.items():
        if argument.isTable or not argument.isConstantExpression:
            raise InvalidInputError(f"the argument {name} of icefloe_scan must be a constant")
        if argument.value is not None:
            values[name] = argument.value
    return parse_options(normalise_options(options_document(values)))
