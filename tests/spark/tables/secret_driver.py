"""A driver of its own for tests that read all it says: queries and writes with credentials, logging everything."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c: %m%n%ex
logger.sql.name = org.apache.spark.sql
logger.sql.level = debug
logger.python.name = org.apache.spark.api.python
logger.python.level = debug
"""


def main(arguments: dict[str, Any]) -> None:
    sys.path.insert(0, arguments["package"])
    logging.basicConfig(level=logging.DEBUG)
    from pyspark.errors import PySparkException

    import icefloe
    from icefloe.spark import analyze, connect, register_views, table, write

    folder = Path(arguments["folder"])
    (folder / "log4j2.properties").write_text(LOGGING)
    (folder / "events").mkdir()
    settings = {
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = connect("local[2]", settings=settings)
    repository = icefloe.Repository.open(icefloe.s3_storage(**arguments["storage"]))
    df = table(spark, repository, variables="t2m", where="lat > 0 and t2m > 250")
    df.explain("extended")
    df.explain("formatted")
    sys.stdout.write(df._jdf.queryExecution().toString() + str(df._jdf.queryExecution().logical()) + "\n")
    told: dict[str, Any] = {"rows": df.count()}
    analyze(spark, repository, variables=["t2m"])
    register_views(spark, repository)
    told["sum"] = spark.sql("select sum(t2m) from t2m").head()[0]
    spark.sql("select * from refs").show(truncate=False)
    told["written"] = write(df, repository, group="/copy", dims=["time", "lat", "lon"]).cells
    try:
        # A query that fails in its tasks: Spark tells all it knows of them.
        table(spark, repository, variables="t2m").selectExpr("raise_error(concat('row ', lat))").collect()
    except PySparkException as error:
        sys.stdout.write(f"{error!r} {error}\n")
        told["failed"] = True
    spark.stop()
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.stdin.read()))
