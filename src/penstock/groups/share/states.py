"""Tracks which partitions of a share group have a state at the share coordinator.

subscribed ──heartbeat──► initializing ──the share coordinator has answered──► initialized, may be assigned
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.groups.share import journal
from penstock.groups.share.group import ShareGroup, StatePartitions

if TYPE_CHECKING:
    from penstock.groups.turn import Turn
    from penstock.metadata.image import MetadataImage, TopicImage

NOWHERE = -1  # as a start offset: the partition's leader decides by share.auto.offset.reset
Slots = Iterable[tuple[bytes, int]]


class InitializeStates(NamedTuple):
    """Tells the runtime to ask the share coordinator to create the states of these partitions."""

    group_id: str
    state_epoch: int
    partitions: tuple[tuple[bytes, int], ...]


def initialize_missing(turn: Turn, image: MetadataImage, group: ShareGroup, topics: Iterable[str], epoch: int) -> None:
    """Marks partitions without a state as initializing, and asks the share coordinator to create their states.

    Repeats the request for states that the share coordinator has not created in time.
    """
    states = group.states
    missing: dict[bytes, frozenset[int]] = {}
    names = dict(states.names)
    for name in topics:
        topic = image.topics.get(name)
        if topic is None:
            continue
        left = frozenset(topic.partitions)
        if topic.topic_id not in states.deleting:  # else a deletion of offsets was not finished: the group starts anew
            left -= states.known(topic.topic_id)
        if left:
            missing[topic.topic_id] = left
            names[topic.topic_id] = name
    retry = group.asked_ms is None or turn.now_ms - group.asked_ms >= turn.config.share_initialize_retry_ms
    wanted = _joined(missing, states.initializing) if retry else missing
    if missing:
        joined = _joined(states.initializing, missing)
        restarted = states.deleting & missing.keys()
        kept = {each: indexes for each, indexes in states.initialized.items() if each not in restarted}
        deleting = states.deleting - restarted
        journal.record_states(turn, group.group_id, StatePartitions(joined, kept, deleting, names))
    if wanted:
        group.asked_ms = turn.now_ms
        slots = tuple((topic_id, index) for topic_id in sorted(wanted) for index in sorted(wanted[topic_id]))
        turn.effects.append(InitializeStates(group.group_id, epoch, slots))


def initialized(turn: Turn, image: MetadataImage, group: ShareGroup, slots: Slots) -> None:
    """Marks partitions as initialized, because the share coordinator has created their states."""
    done = _by_topic(slots)
    states = group.states
    joined = _joined(states.initialized, done)
    names = {**states.names, **{each: topic.name for each, topic in _topics(image, done).items()}}
    left = _without(states.initializing, done)
    journal.record_states(turn, group.group_id, replace(states, initializing=left, initialized=joined, names=names))


def forget(turn: Turn, group: ShareGroup, topic_ids: Iterable[bytes]) -> None:
    """Removes topics from the lists of partitions, because the share coordinator has deleted their states."""
    states = group.states
    gone = frozenset(topic_ids) & (states.initializing.keys() | states.initialized.keys() | states.deleting)
    if not gone:
        return

    def kept(partitions: Mapping[bytes, frozenset[int]]) -> dict[bytes, frozenset[int]]:
        return {each: indexes for each, indexes in partitions.items() if each not in gone}

    left = StatePartitions(
        kept(states.initializing),
        kept(states.initialized),
        states.deleting - gone,
        {each: name for each, name in states.names.items() if each not in gone},
    )
    journal.record_states(turn, group.group_id, left)


def _topics(image: MetadataImage, partitions: Mapping[bytes, frozenset[int]]) -> dict[bytes, TopicImage]:
    return {each: image.topics_by_id[each] for each in partitions if each in image.topics_by_id}


def _by_topic(slots: Slots) -> dict[bytes, frozenset[int]]:
    found: dict[bytes, set[int]] = {}
    for topic_id, index in slots:
        found.setdefault(topic_id, set()).add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}


def _joined(
    some: Mapping[bytes, frozenset[int]], others: Mapping[bytes, frozenset[int]]
) -> dict[bytes, frozenset[int]]:
    nothing: frozenset[int] = frozenset()
    return {each: some.get(each, nothing) | others.get(each, nothing) for each in some.keys() | others.keys()}


def _without(
    some: Mapping[bytes, frozenset[int]], others: Mapping[bytes, frozenset[int]]
) -> dict[bytes, frozenset[int]]:
    left = {each: indexes - others.get(each, frozenset()) for each, indexes in some.items()}
    return {each: indexes for each, indexes in left.items() if indexes}
