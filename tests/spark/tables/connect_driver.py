"""A client of its own for tests behind Spark Connect: asks a repository and says what it was told, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any


def agreement(spark: Any, df: Any) -> dict[str, Any]:
    """Filtered, unfiltered and joined reads of one frame."""
    filtered = df.where("lat > 0")
    df.createOrReplaceTempView("agreeing")
    joined = "select (select count(*) from agreeing where lat > 0), (select count(*) from agreeing)"
    return {
        "filtered": filtered.count(),
        "all": df.count(),
        "joined": filtered.union(df).count(),
        "halves": df.where("lat <= 0").union(filtered).count(),
        "in sql": list(spark.sql(joined).head()),
        "sum": df.selectExpr("sum(t2m)").head()[0],
    }


def main(arguments: dict[str, str]) -> None:
    sys.path.insert(0, arguments["package"])
    from icefloe.spark import connect, register, table, write

    spark = connect(remote="local[2]")
    register(spark)
    place = arguments["place"]
    frames = {
        "format": spark.read.format("icefloe").option("path", place).option("variables", "t2m").load(),
        "table": table(spark, place, variables="t2m"),
        "function": spark.sql(f"select * from icefloe_scan('{place}', 'lat > -91', 't2m')"),
    }
    told: dict[str, Any] = {"module": type(spark).__module__}
    told |= {name: agreement(spark, df) for name, df in frames.items()}
    selected = table(spark, place, variables="t2m", where="lat > 0 and time < '2020-01-02'")
    told["selected"] = selected.selectExpr("count(*)", "sum(t2m)").head().asDict()
    told["refs"] = spark.read.format("icefloe").option("path", place).option("table", "refs").load().count()
    outcome = write(frames["table"], arguments["copy"], dims=["time", "lat", "lon"])
    told["written"] = outcome.cells
    back = table(spark, arguments["copy"])
    told["differences"] = back.exceptAll(frames["table"]).count() + frames["table"].exceptAll(back).count()
    sys.stdout.write("\n" + json.dumps(told) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
