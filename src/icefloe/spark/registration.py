"""Making the data source and the table functions known to a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from icefloe.spark.source import IcefloeDataSource


def register(spark: SparkSession) -> None:
    """Make `format("icefloe")` and `icefloe_scan(...)` known to a session.

    The format is found without this where the package is installed on the driver; the table function is not.

    Examples
    --------
    >>> from icefloe.spark import connect, register
    >>> spark = connect("local[2]")  # doctest: +SKIP
    >>> register(spark)  # doctest: +SKIP
    """
    spark.dataSource.register(IcefloeDataSource)
