"""Reads and writes the consumer protocol inside classic groups: subscriptions, owned partitions, assignments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.codec import DecodeError, decode_prefix, encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)

if TYPE_CHECKING:
    from penstock.groups.consumer.group import Partitions
    from penstock.metadata.image import MetadataImage


def version_of(data: bytes) -> int:
    """Returns the version with which to parse a member's subscription or assignment.

    Newer versions only append fields, so an unknown version is parsed as the newest known version.
    """
    if len(data) < 2:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "The member's metadata is not in the format of the consumer protocol.",
        )
    return max(min(int.from_bytes(data[:2], "big", signed=True), ConsumerProtocolSubscription.MAX_VERSION), 0)


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    version = version_of(metadata)
    try:
        subscription, _ = decode_prefix(ConsumerProtocolSubscription, version, metadata, 2)
    except DecodeError:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "The member's metadata is not in the format of the consumer protocol.",
        ) from None
    return subscription


def owned_partitions(subscription: ConsumerProtocolSubscription, image: MetadataImage) -> dict[bytes, frozenset[int]]:
    return {
        image.topics[each.topic].topic_id: frozenset(each.partitions)
        for each in subscription.owned_partitions
        if each.topic in image.topics
    }


def read_assignment(assignment: bytes, image: MetadataImage) -> dict[bytes, frozenset[int]]:
    """Returns the partitions in a member's assignment; an empty dict for a member without an assignment."""
    if not assignment:
        return {}
    version = version_of(assignment)
    try:
        decoded, _ = decode_prefix(ConsumerProtocolAssignment, version, assignment, 2)
    except DecodeError:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "The group's assignment is not in the format of the consumer protocol.",
        ) from None
    return {
        image.topics[each.topic].topic_id: frozenset(each.partitions)
        for each in decoded.assigned_partitions
        if each.topic in image.topics and each.partitions
    }


def write_assignment(partitions: Partitions, image: MetadataImage, version: int) -> bytes:
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=image.topics_by_id[topic_id].name, partitions=sorted(indexes))
            for topic_id, indexes in sorted(partitions.items())
            if topic_id in image.topics_by_id
        ]
    )
    return version.to_bytes(2, "big") + encode(assignment, version)
