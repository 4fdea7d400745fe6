"""Lists the names of options that the source and the sink know, and checks unknown names. Pure code.

A job written for Spark's Kafka connector may have options with unknown names: labels, or properties of a vendor's
client. These are ignored, and a warning lists them. A name that is probably a misspelt known name is refused: otherwise
a misspelt limit would have no effect, and users would notice it only in production. With `compatibility=kafka` such a
name is ignored too. An option of TLS or SASL without its prefix `kafka.` is always refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from penstock.client.client_security import SECURITY_PREFIXES, SECURITY_PROPERTIES
from penstock.spark.errors import SourceError


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PREFIX = "kafka."
#: `safe` behaves like Spark's connector except where records could be lost; `kafka` behaves like it even there.
COMPATIBILITIES = ("safe", "kafka")
#: Options of the source. The source does not refuse options of the sink, nor the sink options of the source.
SOURCE = words(
    "subscribe subscribePattern assign startingOffsets endingOffsets startingTimestamp endingTimestamp "
    "startingOffsetsByTimestamp endingOffsetsByTimestamp startingOffsetsByTimestampStrategy failOnDataLoss "
    "maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition includeHeaders "
    "groupIdPrefix kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs path "
    "read.mode push.filters commit.group value.format value.schema value.bad value.message value.descriptor "
    "value.csv.delimiter value.avro.confluent value.infer.records compatibility"
)
SINK = words("topic exactlyOnce includeHeaders autoCreateTopics extraColumns checkpointLocation queryName")
OPTIONS = tuple(dict.fromkeys((*SOURCE, *SINK)))
_SECURITY = tuple(sorted(SECURITY_PROPERTIES))
#: Client properties that the source uses; other consumer properties are ignored, because existing jobs set them.
CONSUMER_ACTED_ON = (
    *words(
        "bootstrap.servers client.id isolation.level fetch.max.wait.ms fetch.min.bytes fetch.max.bytes "
        "max.partition.fetch.bytes check.crcs request.timeout.ms socket.connection.setup.timeout.ms retries "
        "retry.backoff.ms retry.backoff.max.ms group.id"
    ),
    *_SECURITY,
)
CONSUMER_IGNORED = words(
    "allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter client.dns.lookup client.rack "
    "connections.max.idle.ms default.api.timeout.ms enable.metrics.push exclude.internal.topics "
    "group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms "
    "max.poll.interval.ms max.poll.records metadata.max.age.ms metadata.recovery.strategy metric.reporters "
    "metrics.num.samples metrics.recording.level metrics.sample.window.ms partition.assignment.strategy "
    "receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms security.providers send.buffer.bytes "
    "session.timeout.ms socket.connection.setup.timeout.max.ms "
    "ssl.keymanager.algorithm ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm"
)
CONSUMER_REFUSED = {
    "auto.offset.reset": "use startingOffsets instead",
    "enable.auto.commit": "use commit.group to commit progress to a group",
    "key.deserializer": "column `key` is binary, cast it if needed",
    "value.deserializer": "use value.format instead",
    "interceptor.classes": "nothing here runs Java classes",
}
PRODUCER_ACTED_ON = (
    *words(
        "bootstrap.servers client.id acks compression.type compression.gzip.level compression.lz4.level "
        "compression.zstd.level batch.size max.request.size buffer.memory delivery.timeout.ms request.timeout.ms "
        "transaction.timeout.ms enable.idempotence socket.connection.setup.timeout.ms retry.backoff.ms "
        "retry.backoff.max.ms"
    ),
    *_SECURITY,
)
PRODUCER_IGNORED = (
    *CONSUMER_IGNORED,
    *words(
        "linger.ms retries max.in.flight.requests.per.connection max.block.ms metadata.max.idle.ms "
        "partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.ignore.keys"
    ),
)
PRODUCER_REFUSED = {
    "key.serializer": "keys are written as bytes, convert the column before",
    "value.serializer": "values are written as bytes, convert the column before",
    "transactional.id": "the sink chooses ids by which a restarted query finds its transactions; use exactlyOnce",
    "transaction.two.phase.commit.enable": "use exactlyOnce, which sets it",
    "partitioner.class": "give rows a column `partition` instead",
    "interceptor.classes": "nothing here runs Java classes",
}
#: Similarity, from 0 to 1, from which on an unknown name counts as a misspelt known name.
_SLIP = 0.8


def unknown_options(options: Iterable[str], *, lenient: bool) -> list[str]:
    """Returns the options that have no effect, in the user's spelling. Raises SourceError for a misspelt option."""
    known = {name.lower(): name for name in OPTIONS}
    found = [name for name in options if name.lower() not in known and not name.lower().startswith(PREFIX)]
    for name in found:
        if name.lower().startswith(SECURITY_PREFIXES):  # the query would run without the protection that it names
            raise SourceError(f"Option {name!r} has no effect: write {PREFIX}{name}.")
        meant = None if lenient else _meant(name.lower(), known)
        if meant is not None:
            raise SourceError(f"Option {name!r} is unknown (is {known[meant]} meant?).{_remedy(name)}")
    return found


def client_properties(
    options: Mapping[str, str], known: Iterable[str], refused: Mapping[str, str], *, lenient: bool
) -> tuple[dict[str, str], list[str]]:
    """Returns the `kafka.*` options without this prefix, and the names of options that have no effect.

    The names in `options` are in lower case. Raises SourceError for an option that is refused or misspelt.
    """
    found = {name.removeprefix(PREFIX): text for name, text in options.items() if name.startswith(PREFIX)}
    names = set(known)
    # One set of options may serve a job's source and its sink.
    others = {*CONSUMER_ACTED_ON, *CONSUMER_IGNORED, *PRODUCER_ACTED_ON, *PRODUCER_IGNORED}
    unknown = [name for name in found if name not in names | others and not name.startswith(SECURITY_PREFIXES)]
    for name in found:
        if name in refused:
            raise SourceError(f"Option kafka.{name} can't be set here: {refused[name]}.")
    for name in unknown:
        meant = None if lenient else _meant(name, names)
        if meant is not None:
            raise SourceError(
                f"Option kafka.{name} is not a property of Kafka's clients (is kafka.{meant} meant?).{_remedy(name)}"
            )
    if not found.get("bootstrap.servers"):
        raise SourceError("Option kafka.bootstrap.servers is missing: set it to the host:port of a broker.")
    return found, [PREFIX + name for name in unknown]


def _meant(name: str, known: Iterable[str]) -> str | None:
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=_SLIP)), None)


def _remedy(name: str) -> str:
    return f" With compatibility=kafka {name!r} is ignored."
