"""Builds Produce requests: divides batches into requests, and chooses the version of a request. No I/O."""

from penstock.client.accumulator import PendingBatch
from penstock.client.cluster import Cluster
from penstock.client.transactions import OLD_PRODUCE
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.uuid import ZERO_UUID

_LAST_VERSION_WITH_NAMES = 12


def divide(batches: list[PendingBatch], max_bytes: int) -> list[list[PendingBatch]]:
    """Divides batches into requests of at most `max_bytes`, in order. A larger batch gets a request of its own."""
    groups: list[list[PendingBatch]] = []
    room = 0
    for batch in batches:
        if batch.size > room:
            groups.append([])
            room = max_bytes
        groups[-1].append(batch)
        room -= batch.size
    return groups


def build(
    batches: list[PendingBatch], cluster: Cluster, *, transactional_id: str | None, acks: int, timeout_s: float
) -> ProduceRequest:
    """Returns the Produce request for these encoded batches, with topic ids if the cluster's metadata has them."""
    topics: dict[str, TopicProduceData] = {}
    for batch in batches:
        name, index = batch.partition
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = TopicProduceData(name=name, topic_id=cluster.topic_id(name), partition_data=[])
        topic.partition_data.append(PartitionProduceData(index=index, records=batch.encoded))
    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=int(timeout_s * 1000), topic_data=list(topics.values())
    )


def last_version(request: ProduceRequest, *, adds_partitions: bool) -> int | None:
    """Returns the highest Produce version to use; None means the highest version that client and broker support.

    `adds_partitions` is False if the producer's transaction version requires AddPartitionsToTxn before Produce.
    """
    if not adds_partitions:
        return OLD_PRODUCE
    with_names = any(topic.topic_id == ZERO_UUID for topic in request.topic_data)
    return _LAST_VERSION_WITH_NAMES if with_names else None
