"""Writes bad records to a separate topic. Added headers hold the error and the record's origin.

Key, value, timestamp and the record's own headers are unchanged. Delivery is at least once: a retried task sends its
bad records again.
"""

from __future__ import annotations

from typing import Any

from penstock.client.producer import ProducerSettings
from penstock.client.sync import Client, SyncProducer
from penstock.spark.brokers import connect
from penstock.spark.decode import Decoded
from penstock.spark.errors import in_one_sentence
from penstock.spark.options import SourceOptions

PREFIX = "penstock.bad."


class DeadLetters:
    def __init__(self, options: SourceOptions, topic: str) -> None:
        self._options = options
        self._topic = topic
        self._client: Client | None = None
        self._producer: SyncProducer | None = None

    def send(self, columns: dict[str, Any], decoded: Decoded, rows: Any, reasons: list[str]) -> None:
        """Sends the bad records, and returns when the brokers have acknowledged them.

        The wait is needed because a batch must not count as read before its bad records are stored.
        """
        with in_one_sentence(f"Bad records could not be written to {self._topic!r}"):
            if self._producer is None:
                self._client = connect(self._options)
                self._producer = self._client.producer(ProducerSettings(acks=-1))
            records = []
            for row, reason in zip(rows.tolist(), reasons):
                pairs = (decoded.headers[row].as_py() or []) if decoded.headers is not None else []
                headers = [(pair["key"], pair["value"]) for pair in pairs]
                headers += [
                    (f"{PREFIX}reason", reason.encode()),
                    (f"{PREFIX}offset", str(int(decoded.offset[row])).encode()),
                    *((f"{PREFIX}{name}", str(columns[name][row].as_py()).encode()) for name in _where(columns)),
                ]
                key, value = decoded.key[row].as_py(), decoded.value[row].as_py()
                records.append((key, value, tuple(headers), int(decoded.timestamp_ms[row])))
            self._producer.send_many(self._topic, records)
            self._producer.flush()

    def close(self) -> None:
        if self._producer is not None and self._client is not None:
            self._producer.close()
            self._client.close()


def _where(columns: dict[str, Any]) -> list[str]:
    return [name for name in ("topic", "partition") if name in columns]
