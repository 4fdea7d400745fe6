"""Keeps the committed offsets of groups, and the pending offsets of open transactions.

An offset that is committed in a transaction is pending until the transaction's marker is written. Of two commits for a
partition, the commit that is later in the log wins; so every commit keeps the log offset of its record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from typing import TYPE_CHECKING, NamedTuple, cast

from penstock.groups.journal import NO_EXPIRY, OffsetKey, decode_offset_value
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_09_offset_fetch import (
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from penstock.protocol.persisted.group.offset_commit import OffsetCommitKey, OffsetCommitValue
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import NO_LEADER_EPOCH, NO_OFFSET, TopicPartition

if TYPE_CHECKING:
    from penstock.groups.turn import Turn

OFFSET_BYTES = 300  # approximate size of a committed offset without its metadata


class Stored(NamedTuple):
    """Holds a committed offset that was loaded from the log. It stays encoded until it is first read."""

    value: bytes
    log_offset: int


class Committed(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int
    topic_id: bytes
    log_offset: int

    def expired(self, base_ms: int, wall_ms: int, retention_ms: int) -> bool:
        if self.expire_ms != NO_EXPIRY:
            return wall_ms >= self.expire_ms
        return wall_ms - base_ms >= retention_ms


_Offsets = dict[str, dict[TopicPartition, Committed]]


def size_of(committed: Committed | Stored) -> int:
    """Returns the approximate size of a committed offset in memory."""
    return OFFSET_BYTES + len(committed.value if isinstance(committed, Stored) else committed.metadata)


class Offsets:
    def __init__(self) -> None:
        self.committed: dict[str, dict[TopicPartition, Committed | Stored]] = {}
        self.pending: dict[int, dict[str, dict[TopicPartition, Committed | Stored]]] = {}  # by producer id, then group
        self.bytes = 0
        """Approximate memory of all committed and pending offsets."""

    # --- changes

    def apply(
        self,
        key: OffsetCommitKey | OffsetKey,
        value: OffsetCommitValue | bytes | None,
        log_offset: int,
        producer_id: int,
    ) -> None:
        partition = (key.topic, key.partition)
        if value is None:
            self._delete(key.group, partition)
            return
        committed: Committed | Stored
        if isinstance(value, bytes):
            committed = Stored(value, log_offset)
        else:
            committed = _committed(value, log_offset)
        if producer_id < 0:
            self._put(self.committed.setdefault(key.group, {}), partition, committed)
        else:
            self._put(self.pending.setdefault(producer_id, {}).setdefault(key.group, {}), partition, committed)

    def _put(
        self,
        offsets: dict[TopicPartition, Committed | Stored],
        partition: TopicPartition,
        committed: Committed | Stored,
    ) -> None:
        known = offsets.get(partition)
        self.bytes += size_of(committed) - (size_of(known) if known is not None else 0)
        offsets[partition] = committed

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        groups = self.pending.pop(producer_id, None)
        if groups is None:
            return
        self.bytes -= sum(size_of(each) for offsets in groups.values() for each in offsets.values())
        if not commit:
            return
        for group_id, offsets in groups.items():
            current = self.committed.setdefault(group_id, {})
            for partition, committed in offsets.items():
                known = current.get(partition)
                if known is None or known.log_offset < committed.log_offset:
                    self._put(current, partition, committed)

    def _delete(self, group_id: str, partition: TopicPartition) -> None:
        offsets = self.committed.get(group_id)
        if offsets is not None:
            gone = offsets.pop(partition, None)
            self.bytes -= size_of(gone) if gone is not None else 0
            if not offsets:
                del self.committed[group_id]
        for producer_id, groups in list(self.pending.items()):
            pending = groups.get(group_id)
            gone = pending.pop(partition, None) if pending is not None else None
            if gone is not None:
                self.bytes -= size_of(gone)
                if not pending:
                    del groups[group_id]
                if not groups:
                    del self.pending[producer_id]

    # --- reading

    def remembered(self) -> tuple[_Offsets, dict[int, _Offsets]]:
        """Returns all committed and all pending offsets, decoded. Changes nothing."""
        return _read_all(self.committed), {producer_id: _read_all(each) for producer_id, each in self.pending.items()}

    def of_group(self, group_id: str) -> Mapping[TopicPartition, Committed]:
        """Returns all committed offsets of the group, decoded."""
        offsets = self.committed.get(group_id, {})
        for partition, committed in offsets.items():
            if isinstance(committed, Stored):
                self._put(offsets, partition, _read(committed))
        return cast("Mapping[TopicPartition, Committed]", offsets)

    def get(self, group_id: str, partition: TopicPartition) -> Committed | None:
        """Returns the committed offset of one partition, decoded; None if the group has none."""
        offsets = self.committed.get(group_id, {})
        found = offsets.get(partition)
        if isinstance(found, Stored):
            found = _read(found)
            self._put(offsets, partition, found)
        return found

    def has_pending(self, group_id: str, partition: TopicPartition) -> bool:
        return any(partition in groups.get(group_id, ()) for groups in self.pending.values())

    def partitions(self, group_id: str) -> Collection[TopicPartition]:
        """Returns every partition with a committed or pending offset. A deletion of the group erases these offsets."""
        found: Set[TopicPartition] = self.committed.get(group_id, {}).keys()
        for groups in self.pending.values():
            found = found | groups.get(group_id, {}).keys()
        return found

    def topic_ids(self, group_id: str, partition: TopicPartition) -> set[bytes]:
        """Returns the topic ids in the group's committed and pending offsets for this partition."""
        commits = [self.committed.get(group_id, {}).get(partition)]
        commits += [groups.get(group_id, {}).get(partition) for groups in self.pending.values()]
        return {_read(each).topic_id for each in commits if each is not None}

    def fetch(
        self,
        group_id: str,
        topics: list[OffsetFetchRequestTopics] | None,
        require_stable: bool,
        topic_id_of: Callable[[str], bytes],
    ) -> OffsetFetchResponseGroup:
        """Returns the group's offsets for the given topics; for all topics by default.

        A partition without a commit gets -1. `topic_id_of` maps a topic name to the id of the current topic. A commit
        for a deleted topic with the same name is ignored.
        """
        offsets = self.of_group(group_id)
        if topics is None:
            topics = self.all_topics(group_id, topic_id_of)
        return OffsetFetchResponseGroup(
            group_id=group_id,
            topics=[
                OffsetFetchResponseTopics(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        self._fetch_one(group_id, offsets, topic, partition, require_stable, present_id)
                        for partition in topic.partition_indexes
                    ],
                )
                for topic in topics
                for present_id in (topic_id_of(topic.name),)
            ],
        )

    def count(self, group_id: str) -> int:
        """Returns the number of partitions with a committed offset of the group."""
        return len(self.committed.get(group_id, {}))

    def all_topics(self, group_id: str, topic_id_of: Callable[[str], bytes]) -> list[OffsetFetchRequestTopics]:
        """Returns the partitions with a committed offset of the group. Offsets of deleted topics do not count."""
        by_topic: dict[str, list[int]] = {}
        present: dict[str, bytes] = {}
        for (topic, partition), committed in self.of_group(group_id).items():
            if topic not in present:
                present[topic] = topic_id_of(topic)
            if not _of_another_topic(committed.topic_id, present[topic]):
                by_topic.setdefault(topic, []).append(partition)
        return [
            OffsetFetchRequestTopics(name=topic, partition_indexes=sorted(partitions))
            for topic, partitions in by_topic.items()
        ]

    def _fetch_one(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, Committed],
        topic: OffsetFetchRequestTopics,
        partition: int,
        require_stable: bool,
        present_id: bytes,
    ) -> OffsetFetchResponsePartitions:
        if require_stable and self.pending and self.has_pending(group_id, (topic.name, partition)):
            return no_offset(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        committed = offsets.get((topic.name, partition))
        if (
            committed is None
            or _of_another_topic(committed.topic_id, topic.topic_id)
            or _of_another_topic(committed.topic_id, present_id)
        ):
            return no_offset(partition)
        return OffsetFetchResponsePartitions(
            partition_index=partition,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
        )

    # --- deciding

    def erase(self, turn: Turn, group_id: str, partition: TopicPartition) -> None:
        turn.record(OffsetCommitKey(group=group_id, topic=partition[0], partition=partition[1]), None)

    def erase_group(self, turn: Turn, group_id: str) -> None:
        for partition in sorted(self.partitions(group_id)):
            self.erase(turn, group_id, partition)


def _read(committed: Committed | Stored) -> Committed:
    if isinstance(committed, Committed):
        return committed
    return _committed(decode_offset_value(committed.value), committed.log_offset)


def _read_all(
    groups: Mapping[str, Mapping[TopicPartition, Committed | Stored]],
) -> _Offsets:
    return {
        group_id: {partition: _read(each) for partition, each in offsets.items()}
        for group_id, offsets in groups.items()
    }


def _committed(value: OffsetCommitValue, log_offset: int) -> Committed:
    return Committed(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
        log_offset,
    )


def _of_another_topic(committed: bytes, asked: bytes) -> bool:
    """Returns True if the offset belongs to a deleted topic with the same name: such an offset is ignored."""
    return ZERO_UUID not in (committed, asked) and committed != asked


def no_offset(partition: int, code: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=NO_OFFSET,
        committed_leader_epoch=NO_LEADER_EPOCH,
        metadata="",
        error_code=code,
    )
