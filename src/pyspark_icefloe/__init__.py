"""Where Spark finds the format `icefloe` by itself: modules named pyspark_* whose `DefaultSource` is a data source."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

# In a worker of Spark, this suppresses the traceback of a connection that the JVM closes. It loads little.
import icefloe.spark  # noqa: F401


class DefaultSource(DataSource):
    """The format `icefloe`; the library behind it is loaded only when the format is used.

    Spark imports this module in every application that names any Python format.
    """

    @classmethod
    def name(cls) -> str:
        return "icefloe"

    def schema(self) -> StructType:
        return self._source().schema()  # type: ignore[no-any-return]

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source().reader(schema)  # type: ignore[no-any-return]

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return self._source().writer(schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return self._source().streamReader(schema)  # type: ignore[no-any-return]

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        return self._source().streamWriter(schema, overwrite)

    def _source(self) -> Any:
        from icefloe.spark.source import IcefloeDataSource  # noqa: PLC0415 - see the class

        return IcefloeDataSource(self.options)
