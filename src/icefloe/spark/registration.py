"""Making the data source and the table function known to a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf

from icefloe.spark.source import IcefloeDataSource
from icefloe.spark.table_function import IcefloeScan


def register(spark: SparkSession) -> None:
    """Make `format("icefloe")` and `icefloe_scan(...)` known to a session.

    The format is found without this where the package is installed on the driver; the table function is not.

    Examples
    --------
    >>> from icefloe.spark import connect, register
    >>> spark = connect("local[2]")  # doctest: +SKIP
    >>> register(spark)  # doctest: +SKIP
    >>> spark.sql("SELECT * FROM icefloe_scan('s3://bucket/weather', 'lat > 60')")  # doctest: +SKIP
    """
    spark.dataSource.register(IcefloeDataSource)
    spark.udtf.register("icefloe_scan", udtf(IcefloeScan, useArrow=True))  # type: ignore[arg-type]
