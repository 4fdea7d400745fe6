"""A driver that copies topic `in` to topic `out`, exactly once: `python copy_query.py BOOTSTRAP CHECKPOINT MASTER`.

Batches are small, so that tests can kill processes in many of them. Further arguments are Spark's settings.
"""

import sys

from penstock.spark import session

PER_BATCH = 100


def main(bootstrap: str, checkpoint: str, master: str, *settings: str) -> None:
    config = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}
    config |= dict(each.split("=", 1) for each in settings)
    spark = session("copy", master=master, memory="600m", config=config)
    query = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(PER_BATCH))
        .option("failOnDataLoss", spark.conf.get("spark.penstock.test.failOnDataLoss", "true"))
        .load()
        .selectExpr("CAST(partition AS STRING) AS key", "value")
        .writeStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "out")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
