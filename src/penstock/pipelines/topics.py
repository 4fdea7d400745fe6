"""Topics as the pipelines name them: where they are, and how their records become rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: What a record is besides its value; in tables with an underscore, for values have columns of their own.
PLACE = ("topic", "partition", "offset", "timestamp")
PLACES = tuple(f"_{name}" for name in PLACE)


@dataclass(frozen=True, slots=True)
class Topic:
    bootstrap: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    """More options of `format("penstock")`, such as kafka.* and startingOffsets."""
    cluster_id: str = ""
    """Where it has been looked up."""

    def reader_options(self, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.name, **self.options, **more}


def read_stream(spark: Any, topic: Topic, **more: str) -> Any:
    """From the earliest record on, unless told otherwise."""
    options = {"startingOffsets": "earliest", **topic.reader_options(**more)}
    if any(name.startswith(("startingTimestamp", "startingOffsetsByTimestamp")) for name in options):
        options.pop("startingOffsets")
    return spark.readStream.format("penstock").options(**options).load()


def read_batch(spark: Any, topic: Topic, **more: str) -> Any:
    return spark.read.format("penstock").options(**topic.reader_options(**more)).load()


def read_ends(spark: Any, topic: Topic, count: int) -> Any:
    """About so many of the first records, and so many of the newest: asked for by offset, for a limit would cut their
    readers off."""
    there = bounds(topic.bootstrap, topic.name)
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
            failOnDataLoss="false",  # retention may take some meanwhile, and others will do
        )

    return between(starts, early).unionByName(between(late, ends))


def create_like(bootstrap: str, name: str, partitions: int, *, replication_factor: int = -1) -> bool:
    """Makes the topic if it is not there; False if it was."""
    from penstock.client.sync import Client
    from penstock.protocol.errors import ErrorCode, KafkaError
    from penstock.spark.errors import in_one_sentence

    with in_one_sentence(f"Topic {name!r} could not be created"), Client(bootstrap) as client:
        try:
            client.create_topic(name, partitions, replication_factor)
        except KafkaError as problem:
            if problem.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            return False
    return True


def bounds(bootstrap: str, name: str) -> dict[int, tuple[int, int]]:
    """Of each partition the first offset and the one behind the last. Raises SourceError."""
    from penstock.client.offsets import EARLIEST, LATEST
    from penstock.client.sync import Client
    from penstock.spark.errors import in_one_sentence

    wanted = [(name, index) for index in range(partitions_of(bootstrap, name))]
    with in_one_sentence(f"The offsets of {name!r} could not be had"), Client(bootstrap) as client:
        first = client.list_offsets(dict.fromkeys(wanted, EARLIEST))
        last = client.list_offsets(dict.fromkeys(wanted, LATEST))
    return {key[1]: (first[key].offset, last[key].offset) for key in wanted}


def partitions_of(bootstrap: str, name: str) -> int:
    """How many; raises SourceError if the topic is not there."""
    from penstock.spark.errors import SourceError

    count = _partitions(bootstrap, name)
    if not count:
        raise SourceError(f"There is no topic {name!r} at {bootstrap}: `penstock topic create {name}` makes it.")
    return count


def exists(bootstrap: str, name: str) -> bool:
    return _partitions(bootstrap, name) > 0


def _partitions(bootstrap: str, name: str) -> int:
    from penstock.client.sync import Client
    from penstock.spark.errors import in_one_sentence

    with in_one_sentence("The topic can't be looked up"), Client(bootstrap) as client:
        [found] = client.metadata([name]).topics
    return 0 if found.error_code else len(found.partitions)
