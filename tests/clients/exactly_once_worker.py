"""Copies the records of one topic to another topic in transactions, together with its offsets, until it is killed.

Any error ends the process, and so does a transaction that takes too long (librdkafka 2.16 may wait forever for a lost
group coordinator). The test restarts the process. Run as `python exactly_once_worker.py BOOTSTRAP SOURCE SINK GROUP
INSTANCE`.
"""

from __future__ import annotations

import os
import signal
import sys

from confluent_kafka import Consumer, KafkaException, Producer

LIMIT_S = 5.0
ROUND_LIMIT_S = 3.0
BATCH = 7


def work(bootstrap: str, source: str, sink: str, group: str, instance: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"{group}-{instance}",
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    producer.init_transactions(LIMIT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.instance.id": instance,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    consumer.subscribe([source])
    while True:
        signal.setitimer(signal.ITIMER_REAL, ROUND_LIMIT_S)  # ends the process
        messages = consumer.consume(BATCH, timeout=0.2)
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
            producer.produce(sink, message.value(), partition=message.partition() or 0)
        positions = consumer.position(consumer.assignment())
        moved = [each for each in positions if each.offset >= 0]
        producer.send_offsets_to_transaction(moved, consumer.consumer_group_metadata(), LIMIT_S)
        producer.commit_transaction(LIMIT_S)


if __name__ == "__main__":
    try:
        work(*sys.argv[1:])
    except KafkaException as problem:
        print(problem, flush=True)
        os._exit(1)  # as abrupt as being killed
