"""Finds the topics that a group subscribes to, by name or by pattern. A hash of these topics shows whether they
changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.groups.consumer.assignors import TopicSpec
from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember, ResolvedRegex
from penstock.groups.consumer.journal import record_regex
from penstock.metadata.patterns import MAX_STEPS, Pattern, Work
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.groups.turn import Turn
    from penstock.metadata.image import MetadataImage, TopicImage

#: Limit of different patterns in one group: each is matched against every topic when topics change.
MAX_PATTERNS = 50


def resolve(turn: Turn, image: MetadataImage, regex: str, work: Work, sees: Callable[[str], bool]) -> ResolvedRegex:
    """Returns the topics that match the pattern and that the client may describe (`sees`).

    Internal topics are included, as in Kafka.
    """
    pattern = Pattern(regex, work)
    topics = frozenset(name for name in image.topics if pattern.matches(name, work) and sees(name))
    return ResolvedRegex(topics, image.offset, turn.wall_ms)


def refresh_regexes(
    turn: Turn,
    image: MetadataImage,
    group: ConsumerGroup,
    members: Mapping[str, ConsumerMember],
    sees: Callable[[str], bool] | None,
) -> dict[str, ResolvedRegex]:
    """Returns the group's patterns with the topics that they match now. Writes records for changed and unused patterns.

    As in Kafka, the patterns are matched when a member sends a heartbeat. They match only topics that this member may
    describe: `sees` returns True for such topics. Other callers (timers, classic members) pass None as `sees`; known
    patterns then keep their topics.

    Matching is limited to MAX_STEPS steps. If a new pattern needs more steps, the member's request is refused. If the
    known patterns together need more steps, the unfinished patterns keep their topics.
    """
    used = {member.regex for member in members.values() if member.regex}
    if len(used) > MAX_PATTERNS and used - group.regexes.keys():
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The group already has {MAX_PATTERNS} patterns: subscribe with one of them.",
        )
    resolved: dict[str, ResolvedRegex] = {}
    left = MAX_STEPS
    for waiting, regex in zip(range(len(used), 0, -1), sorted(used)):
        known = group.regexes.get(regex)
        if known is not None and (sees is None or not group.metadata_changed):
            resolved[regex] = known
            continue
        allowed = MAX_STEPS if known is None else left // waiting
        work = Work(allowed)
        try:
            found = resolve(turn, image, regex, work, sees or _no_topic)
        except KafkaError:
            if known is None:
                raise
            found = known
        if known is not None:
            left -= allowed - max(work.left, 0)
        if known is not None and known.topics == found.topics:
            resolved[regex] = known
        else:
            resolved[regex] = found
            record_regex(turn, group.group_id, regex, found)
    for regex in group.regexes.keys() - used:
        record_regex(turn, group.group_id, regex, None)
    return resolved


def _no_topic(name: str) -> bool:
    return False


def subscribed(member: ConsumerMember, regexes: Mapping[str, ResolvedRegex]) -> frozenset[str]:
    resolved = regexes.get(member.regex) if member.regex else None
    return frozenset(member.topics) | (resolved.topics if resolved is not None else frozenset())


def metadata_hash(image: MetadataImage, topics: Iterable[str]) -> int:
    """Returns a hash of the topics' ids, partition counts and racks; 0 if no topic exists."""
    digest = hashlib.blake2b(digest_size=8)
    found = False
    for name in sorted(topics):
        topic = image.topics.get(name)
        if topic is None:
            continue
        found = True
        digest.update(topic.topic_id)
        digest.update(len(topic.partitions).to_bytes(4, "big"))
        for racks in _racks(image, topic):
            digest.update(",".join(sorted(racks)).encode())
    return int.from_bytes(digest.digest(), "big", signed=True) if found else 0


def _racks(image: MetadataImage, topic: TopicImage) -> tuple[frozenset[str], ...]:
    by_broker = {broker_id: broker.rack for broker_id, broker in image.brokers.items() if broker.rack}
    if not by_broker:
        return ()
    return tuple(
        frozenset(by_broker[replica] for replica in topic.partitions[index].replicas if replica in by_broker)
        for index in sorted(topic.partitions)
    )


def topic_specs(image: MetadataImage, names: Iterable[str]) -> dict[bytes, TopicSpec]:
    specs: dict[bytes, TopicSpec] = {}
    for name in sorted(names):
        topic = image.topics.get(name)
        if topic is not None:
            specs[topic.topic_id] = TopicSpec(len(topic.partitions), _racks(image, topic))
    return specs
