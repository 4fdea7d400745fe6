"""Defines the topics of pipelines: their addresses and options, and functions that read them as DataFrames."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.sync import Client
    from penstock.spark.options import SourceOptions

#: The fields of a record other than its value. Tables name them with an underscore, apart from the value's fields.
PLACE = ("topic", "partition", "offset", "timestamp")
PLACES = tuple(f"_{name}" for name in PLACE)


def client_part(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the `kafka.*` options, without this prefix."""
    lowered = {name.lower(): value for name, value in options.items()}
    return {name.removeprefix("kafka."): value for name, value in lowered.items() if name.startswith("kafka.")}


@dataclass(frozen=True, slots=True)
class Topic:
    bootstrap: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    """More options of `format("penstock")`, such as kafka.* and startingOffsets."""
    cluster_id: str = ""
    """The id of the topic's cluster; set once the topic has been looked up."""

    def connect(self) -> Client:
        """Returns a connected client, with the same `kafka.*` options as the source and the sink.

        Raises SourceError.
        """
        from penstock.spark.brokers import connect

        return connect(self.client_options)

    @property
    def client_options(self) -> SourceOptions:
        from penstock.spark.options import SourceOptions

        return SourceOptions(self.bootstrap, client=client_part(self.options))

    def reader_options(self, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.name, **self.options, **more}


def read_stream(spark: Any, topic: Topic, **more: str) -> Any:
    """Returns a streaming DataFrame of a topic. It starts at the earliest record unless an option sets another
    start."""
    options = {"startingOffsets": "earliest", **topic.reader_options(**more)}
    if any(name.startswith(("startingTimestamp", "startingOffsetsByTimestamp")) for name in options):
        options.pop("startingOffsets")
    return spark.readStream.format("penstock").options(**options).load()


def read_batch(spark: Any, topic: Topic, **more: str) -> Any:
    return spark.read.format("penstock").options(**topic.reader_options(**more)).load()


def read_ends(spark: Any, topic: Topic, count: int) -> Any:
    """Returns a DataFrame of about `count` records from the start of the topic, and about `count` from its end.

    Selects the records by offset. A LIMIT would stop the reading tasks, and they would log errors.
    """
    there = bounds(topic)
    each = -(-count // len(there))
    starts = {str(index): first for index, (first, _) in there.items()}
    early = {str(index): min(end, first + each) for index, (first, end) in there.items()}
    late = {str(index): max(early[str(index)], end - each) for index, (_, end) in there.items()}
    ends = {str(index): end for index, (_, end) in there.items()}
    options = {name: value for name, value in topic.options.items() if not name.startswith(("starting", "ending"))}
    plain = Topic(topic.bootstrap, topic.name, options)

    def between(first: dict[str, int], last: dict[str, int]) -> Any:
        return read_batch(
            spark,
            plain,
            startingOffsets=json.dumps({topic.name: first}),
            endingOffsets=json.dumps({topic.name: last}),
            failOnDataLoss="false",  # retention may delete some meanwhile; fewer records are enough
        )

    return between(starts, early).unionByName(between(late, ends))


def create_like(topic: Topic, partitions: int, *, replication_factor: int = -1) -> bool:
    """Creates the topic with this number of partitions. Returns False if the topic exists already. Raises
    SourceError."""
    from penstock.protocol.errors import ErrorCode, KafkaError
    from penstock.spark.errors import in_one_sentence

    with in_one_sentence(f"Topic {topic.name!r} could not be created"), topic.connect() as client:
        try:
            client.create_topic(topic.name, partitions, replication_factor)
        except KafkaError as problem:
            if problem.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            return False
    return True


def bounds(topic: Topic) -> dict[int, tuple[int, int]]:
    """Returns the first offset and the end offset of each partition. Raises SourceError."""
    from penstock.protocol.vocabulary import EARLIEST, LATEST
    from penstock.spark.errors import in_one_sentence

    wanted = [(topic.name, index) for index in range(partitions_of(topic))]
    with in_one_sentence(f"The offsets of topic {topic.name!r} could not be listed"), topic.connect() as client:
        first = client.list_offsets(dict.fromkeys(wanted, EARLIEST))
        last = client.list_offsets(dict.fromkeys(wanted, LATEST))
    return {key[1]: (first[key].offset, last[key].offset) for key in wanted}


def counted_partitions(count: int) -> str:
    """Returns the number with its noun: `1 partition`, `2 partitions`."""
    return f"{count:,} partition{'' if count == 1 else 's'}"


def partitions_of(topic: Topic) -> int:
    """Returns the number of partitions of the topic. Raises SourceError if the topic does not exist."""
    from penstock.spark.errors import SourceError

    count = _partitions(topic)
    if not count:
        name = topic.name
        raise SourceError(
            f"There is no topic {name!r} at {topic.bootstrap}: create it with `penstock topic create {name}`."
        )
    return count


def exists(topic: Topic) -> bool:
    return _partitions(topic) > 0


def _partitions(topic: Topic) -> int:
    from penstock.spark.errors import in_one_sentence

    with in_one_sentence(f"Topic {topic.name!r} could not be looked up"), topic.connect() as client:
        [found] = client.metadata([topic.name]).topics
    return 0 if found.error_code else len(found.partitions)
