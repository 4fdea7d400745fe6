"""Holds the logs of a node, by partition.

Two directories may have logs of the same name and partition, with different topic ids: a topic was deleted and created
again while one of the directories was offline. The second log is kept as a *namesake* until the broker has read the
metadata and knows which topic exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.protocol.vocabulary import TopicPartition


class LogTable:
    def __init__(self, directories: Iterable[str]) -> None:
        self._logs: dict[TopicPartition, Log] = {}
        self._namesakes: dict[TopicPartition, list[Log]] = {}
        #: The number of logs in each directory, without namesakes.
        self.counts = dict.fromkeys(directories, 0)

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def __len__(self) -> int:
        return len(self._logs)

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._logs

    def get(self, key: TopicPartition) -> Log | None:
        return self._logs.get(key)

    def with_name(self, key: TopicPartition) -> list[Log]:
        """Returns the log of this partition, and logs of other topic ids with the same topic name and partition."""
        log = self._logs.get(key)
        return [] if log is None else [log, *self._namesakes.get(key, ())]

    def with_namesakes(self) -> list[Log]:
        """Returns all logs of the table, including logs that have the same name and partition as another log."""
        return [*self._logs.values(), *chain.from_iterable(self._namesakes.values())]

    def add(self, log: Log) -> None:
        self._logs[log.topic, log.partition] = log
        self.counts[log.log_dir] += 1

    def add_namesake(self, log: Log) -> None:
        self._namesakes.setdefault((log.topic, log.partition), []).append(log)

    def remove(self, log: Log) -> None:
        del self._logs[log.topic, log.partition]
        self.counts[log.log_dir] -= 1

    def take_namesakes(self, key: TopicPartition) -> list[Log]:
        """Removes and returns the namesakes of this partition's log: other logs with the same name and partition."""
        return self._namesakes.pop(key, [])

    def relocated(self, log: Log, source: str) -> None:
        """Updates the number of logs in each directory after `log` was moved out of the directory `source`."""
        self.counts[source] -= 1
        self.counts[log.log_dir] += 1

    def clear(self) -> None:
        self._logs.clear()
        self._namesakes.clear()
