"""A driver of its own for tests that kill it: streams a folder of rows into a repository until nothing is left."""

from __future__ import annotations

import json
import sys


def main(arguments: dict[str, str]) -> None:
    sys.path.insert(0, arguments["package"])
    from icefloe.spark import connect, write_stream

    settings = {
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.fileSource.cleaner.numThreads": "0",
    }
    spark = connect("local[2,4]", settings=settings)
    reader = spark.readStream.schema("t long, s long, v double").option("maxFilesPerTrigger", 1)
    rows = reader.parquet(arguments["source"])
    if arguments["door"] == "format":
        writer = rows.writeStream.format("icefloe").option("path", arguments["place"]).option("dims", "t,s")
        writer = writer.option("chunks", "t=4").option("query", "q")
    else:
        writer = write_stream(rows, arguments["place"], query="q", dims=["t", "s"], chunks={"t": 4})
    query = writer.option("checkpointLocation", arguments["checkpoint"]).trigger(availableNow=True).start()
    sys.stdout.write("streaming\n")
    sys.stdout.flush()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
