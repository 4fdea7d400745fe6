"""Follows one partition: keeps its fetch position and its failures, appends to its log and truncates it.

`penstock.replication.follower` decides; this module changes the log.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.broker.events import Observer, log_event
from penstock.broker.events.kinds import ReplicaTruncated
from penstock.log.appending import start_with_first_batch
from penstock.protocol.messages.api_01_fetch import FetchPartition, PartitionData
from penstock.protocol.vocabulary import NO_LEADER_EPOCH, NO_OFFSET
from penstock.replication import follower
from penstock.replication.follower import Answer, ResetKind, Trouble

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition
    from penstock.replication.fetch_session import Key

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """Counts fetches, errors and truncations of all partitions that this node follows, for metrics."""

    bytes_in: int = 0
    requests: int = 0
    errors: int = 0
    truncations: int = 0
    truncated_records: int = 0
    resets: int = 0


@dataclass(slots=True)
class FollowerLag:
    """Holds the lag of this node's replicas behind one leader: largest and total lag in records, longest lag in ms."""

    largest: int = 0
    total: int = 0
    longest_ms: int = 0
    answered_ms_ago: int = 0
    """Time since the leader last answered a Fetch."""

    def add(self, records: int, ms: int) -> None:
        self.largest = max(self.largest, records)
        self.total += records
        self.longest_ms = max(self.longest_ms, ms)

    def merge(self, other: FollowerLag) -> None:
        """Adds the lag of another fetcher's partitions. Both fetchers fetch from the same leader."""
        self.add(other.largest, other.longest_ms)
        self.total += other.total - other.largest
        self.answered_ms_ago = max(self.answered_ms_ago, other.answered_ms_ago)


@dataclass(slots=True, eq=False)
class FollowedPartition:
    """Follows a partition in one leader epoch. The methods that use the log raise KafkaError."""

    partition: Partition
    leader_epoch: int
    counts: Counts
    observer: Observer = log_event
    failures: int = 0
    """Number of consecutive errors; each one makes the next pause longer."""
    not_before: float = 0.0
    """End of the current pause, in the event loop's time."""
    asked: int = NO_OFFSET
    """The fetch offset of this partition in the last Fetch request."""
    lag: int = 0
    """The leader's high watermark minus the end of this log, after the last Fetch response with this partition."""
    behind_since: float = 0.0
    """When the lag became greater than 0, in the event loop's time; 0 if there is no lag."""
    key: Key = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.partition.topic_id, self.partition.index

    def follows(self, leader_id: int) -> bool:
        """Returns True if the partition still has this leader and this leader epoch in the metadata."""
        partition = self.partition
        return partition.leader_epoch == self.leader_epoch and partition.image.leader == leader_id

    @property
    def has_unsynced_tail(self) -> bool:
        """Returns True if the end of the log is not synced, and the topic requires fsync before an acknowledgement."""
        log = self.partition.log
        return log.countable_offset < log.log_end_offset and not log.offline

    def position(self, max_bytes: int) -> FetchPartition:
        """Returns the partition's entry for the next Fetch request. The fetch offset is the end of this log."""
        log = self.partition.log
        log.health.check_writable()
        latest = log.epochs.latest_epoch
        self.asked = log.log_end_offset
        return FetchPartition(
            partition=self.partition.index,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=NO_LEADER_EPOCH if latest is None else latest,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=max_bytes,
        )

    def answer(self, data: PartitionData) -> Answer:
        """Returns the action after a Fetch response without an error: append records, truncate the log, or neither."""
        diverging = data.diverging_epoch
        return follower.answer(self.asked, self.partition.log.log_end_offset, diverging.epoch, diverging.end_offset)

    def next_pause_ms(self, kind: Trouble, backoff_ms: int) -> int:
        """Counts a failure and returns how long to pause this partition."""
        pause_ms = follower.pause_ms(kind, self.failures, backoff_ms)
        self.failures += 1
        return pause_ms

    # The log.

    def append(self, data: PartitionData) -> tuple[int, bool]:
        """Appends records from the leader, and takes over the leader's high watermark and log start offset.

        Returns the number of appended bytes, and True if the next Fetch request has to name a new fetch position.
        """
        self.failures = 0
        partition = self.partition
        log = partition.log
        start, appended = log.log_start_offset, 0
        if data.records:
            before = log.size
            if start == log.log_end_offset:
                start_with_first_batch(log, data.records)
            log.append_as_follower(data.records, self.leader_epoch)
            appended = log.size - before
            self.counts.bytes_in += appended
        self._note_lag(data.high_watermark - log.log_end_offset)
        if data.high_watermark > log.high_watermark:
            partition.advance_high_watermark(log, data.high_watermark)
        if data.log_start_offset > log.log_start_offset:
            log.advance_log_start_offset(min(data.log_start_offset, log.high_watermark))
        return appended, appended > 0 or log.log_start_offset != start

    def _note_lag(self, lag: int) -> None:
        if lag <= 0:
            self.lag, self.behind_since = 0, 0.0
        else:
            self.lag = lag
            self.behind_since = self.behind_since or asyncio.get_running_loop().time()

    def truncate(self, epoch: int, end_offset: int) -> bool:
        """Truncates the log where it diverges from the leader's log.

        The Fetch response contains the diverging epoch as `epoch`, and the end of this epoch in the leader's log as
        `end_offset`. Returns False if this log did not change: another Fetch would get the same response.
        """
        log = self.partition.log
        own_epoch, own_end = log.epochs.end_offset_for(epoch, log.log_end_offset)
        step = follower.truncation(epoch, end_offset, own_epoch, own_end, log.log_end_offset, log.high_watermark)
        before = log.log_end_offset, log.epochs.latest_epoch
        self._truncate_to(step.offset)
        return (log.log_end_offset, log.epochs.latest_epoch) != before

    def reset(self, leader_start: int, leader_end: int) -> bool:
        """Truncates or restarts the log so that its end is within the leader's log.

        Returns False if the log did not change.
        """
        self.counts.resets += 1
        log = self.partition.log
        step = follower.reset(log.log_end_offset, leader_start, leader_end)
        if step.kind is ResetKind.TRUNCATE:
            self._truncate_to(step.offset)
        elif step.kind is ResetKind.START_OVER:
            logger.info(
                "%s: the leader's log starts at offset %d, after the end of this replica: the replica restarts there",
                self.partition,
                leader_start,
            )
            log.truncate_fully_and_start_at(step.offset)
        return step.kind is not ResetKind.STAY

    def _truncate_to(self, offset: int) -> None:
        log = self.partition.log
        end, mark = log.log_end_offset, log.high_watermark
        if log.truncate_to(offset):
            self.counts.truncations += 1
            self.counts.truncated_records += end - log.log_end_offset
            name, new_end = f"{log.topic}-{log.partition}", log.log_end_offset
            self.observer(ReplicaTruncated(name, self.leader_epoch, end, new_end, mark))
