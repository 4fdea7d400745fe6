"""The driver that test_sink_kills.py kills: `python sink_query.py BOOTSTRAP TOPIC SOURCE CHECKPOINT`."""

import sys

from penstock.spark import session


def main(bootstrap: str, topic: str, source: str, checkpoint: str) -> None:
    spark = session(
        "killed",
        master="local[2,8]",  # a task may be tried again, and be killed again
        memory="512m",
        config={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"},
    )
    query = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", "1")
        .load(source)
        .repartition(2)
        .writeStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
