"""Keeps a partition leader's view of its followers: their progress, the in-sync set, and a pending change of this set.

The committed in-sync set is the set that the controller committed last. While a change is pending, the next leader may
be elected from the committed set or from the new set. The leader therefore uses the union of both sets: every
replica that can be elected must have all acknowledged records. One change is pending at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.metadata.image import BrokerImage, PartitionImage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import NO_BROKER_EPOCH, NO_OFFSET
from penstock.raft.progress import caught_up_at

NEVER_MS = -(1 << 62)

#: Errors after which the leader waits for the next image: the partition's epoch has changed, with or without the
#: proposed change. A refusal alone proves nothing: an earlier attempt without an answer may still arrive, and would be
#: granted at the same epoch. Therefore the controller increments the epoch when it refuses an ineligible replica.
_WAIT_FOR_IMAGE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.INELIGIBLE_REPLICA,
    }
)


class Verdict(Enum):
    """Names the action that the leader takes after the controller has refused a change of the ISR."""

    DROPPED = "dropped"
    WAIT = "wait"
    RETRY = "retry"


def effective_min_isr(min_insync: int, replicas: Collection[int]) -> int:
    """Returns how many replicas must be in sync for acks=all: `min_insync`, but at most the number of the partition's
    replicas.
    """
    return min(min_insync, len(replicas))


class Progress:
    """Tracks the progress of one follower by its fetches."""

    __slots__ = (
        *("broker_epoch", "broker_id", "caught_up_ms", "fetch_ms", "leader_end", "log_end", "log_start", "retreat"),
        "since_ms",
    )

    def __init__(self, broker_id: int, caught_up_ms: int, since_ms: int) -> None:
        self.broker_id = broker_id
        self.since_ms = since_ms
        """When the replica became a follower of this leader."""
        self.broker_epoch = NO_BROKER_EPOCH
        self.log_end = NO_OFFSET
        self.log_start = NO_OFFSET
        self.caught_up_ms = caught_up_ms
        self.fetch_ms = caught_up_ms
        self.leader_end = NO_OFFSET
        """The end of the leader's log at the previous fetch."""
        self.retreat: tuple[int, int] | None = None
        """Two successive fetch offsets of which the second is lower; None if there were none. The guard reads it."""

    def registered_as(self, broker_epoch: int) -> None:
        """Sets the broker epoch of the follower.

        If the epoch is new, the follower's fetch offset is forgotten: the follower has restarted and may have lost
        records that were not synced.
        """
        if broker_epoch != self.broker_epoch:
            self.broker_epoch, self.log_end = broker_epoch, NO_OFFSET

    def on_fetch(self, offset: int, log_start: int, leader_end: int, now_ms: int) -> None:
        self.caught_up_ms = caught_up_at(
            offset,
            leader_end,
            now_ms,
            earlier_end=self.leader_end,
            earlier_ms=self.fetch_ms,
            caught_up_ms=self.caught_up_ms,
        )
        if offset < self.log_end:
            self.retreat = self.log_end, offset
        self.log_end = offset
        self.log_start = log_start
        self.leader_end = leader_end
        self.fetch_ms = now_ms

    def is_caught_up(self, leader_end: int, now_ms: int, max_lag_ms: int) -> bool:
        return self.log_end == leader_end or now_ms - self.caught_up_ms <= max_lag_ms

    def lag_ms(self, leader_end: int, now_ms: int) -> int:
        """Returns for how many milliseconds the follower has been behind the leader; 0 if it has all records.

        Counts at most the time since the replica began to follow this leader.
        """
        return 0 if self.log_end == leader_end else max(0, now_ms - max(self.caught_up_ms, self.since_ms))


@dataclass(frozen=True, slots=True)
class Proposal:
    """Describes a change of the in-sync set, for the controller. `members` are (broker id, broker epoch) pairs."""

    isr: tuple[int, ...]
    members: tuple[tuple[int, int], ...]
    leader_epoch: int
    partition_epoch: int
    expands: bool

    def counts_when_granted(self, partition_epoch: int) -> bool:
        """Returns True if the new in-sync set takes effect as soon as the controller has granted it.

        A smaller set takes effect only with the metadata image, which may also bring a new value of
        min.insync.replicas. The controller has already chosen the eligible leaders by the new value. With the old
        value, this leader could commit records that an eligible leader lacks.
        """
        return self.expands or partition_epoch <= self.partition_epoch


class Leading:
    """Holds a leader's state of one partition, for one leader epoch."""

    __slots__ = (
        "_largest",
        "epoch_start",
        "followers",
        "isr",
        "leader_epoch",
        "node_id",
        "partition_epoch",
        "proposal",
        "replicas",
    )

    def __init__(self, node_id: int, image: PartitionImage, epoch_start: int, now_ms: int) -> None:
        self.node_id = node_id
        self.leader_epoch = image.leader_epoch
        self.epoch_start = epoch_start
        self.isr = image.isr
        self.replicas = image.replicas
        self.partition_epoch = image.partition_epoch
        self.proposal: Proposal | None = None
        self._largest = frozenset(image.isr)
        self.followers: dict[int, Progress] = {}
        self._take_on(now_ms)

    def _take_on(self, now_ms: int) -> None:
        """Adds a progress entry for each new follower. In-sync followers get the full `replica.lag.time.max.ms` to
        fetch again; other followers start out of sync."""
        others = [each for each in self.replicas if each != self.node_id]
        self.followers = {
            each: self.followers.get(each) or Progress(each, now_ms if each in self.isr else NEVER_MS, now_ms)
            for each in others
        }

    @property
    def maximal_isr(self) -> frozenset[int]:
        return self._largest

    def _settle(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        self.isr = isr
        self.partition_epoch = partition_epoch
        self.proposal = None
        self._largest = frozenset(isr)

    def follow(self, image: PartitionImage, now_ms: int) -> None:
        """Adopts a metadata image of the same leader epoch.

        Ignores the image if its partition epoch is older than the partition epoch in the controller's last answer.
        """
        if image.partition_epoch < self.partition_epoch:
            return
        if image.partition_epoch > self.partition_epoch or self.proposal is None:
            self._settle(image.isr, image.partition_epoch)
        if image.replicas != self.replicas:
            self.replicas = image.replicas
            self._take_on(now_ms)

    # Progress of the replicas.

    def high_watermark(self, own_end: int, leader_end: int, now_ms: int, max_lag_ms: int, brokers: Brokers) -> int:
        """Returns the offset below which every replica that may be in sync has all records.

        A follower that is about to join the in-sync set counts too. Otherwise the high watermark could move on before
        the follower reaches it, and the follower would never join.
        """
        mark = own_end
        for broker_id, follower in self.followers.items():
            if follower.log_end < mark and (
                broker_id in self._largest
                or (follower.is_caught_up(leader_end, now_ms, max_lag_ms) and self.is_eligible(follower, brokers))
            ):
                mark = follower.log_end
        return mark

    def is_under_min_isr(self, min_insync: int) -> bool:
        return len(self.isr) < effective_min_isr(min_insync, self.replicas)

    def low_watermark(self, own_start: int, is_alive: Callable[[int], bool]) -> int:
        """Returns the smallest log start offset of the live replicas."""
        starts = [each.log_start for each in self.followers.values() if is_alive(each.broker_id)]
        return min(own_start, *starts) if starts else own_start

    # In-sync replicas.

    @staticmethod
    def is_eligible(follower: Progress, brokers: Brokers) -> bool:
        """Returns True if the broker is unfenced and fetches with its registered broker epoch (KIP-903)."""
        broker = brokers.get(follower.broker_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return False
        return follower.broker_epoch == broker.epoch

    def may_join(self, follower: Progress, high_watermark: int, brokers: Brokers) -> bool:
        """Returns True if the follower may join the in-sync set.

        The follower must have reached the high watermark and the start of this leader epoch. The second condition is
        needed because a new leader's high watermark may be below records that its predecessor acknowledged.
        """
        return (
            self.proposal is None
            and follower.broker_id not in self._largest
            and follower.log_end >= high_watermark
            and follower.log_end >= self.epoch_start
            and self.is_eligible(follower, brokers)
        )

    def expand(self, broker_id: int, own_epoch: int) -> Proposal:
        return self._propose((*self.isr, broker_id), own_epoch, expands=True)

    def laggards(self, leader_end: int, now_ms: int, max_lag_ms: int) -> list[int]:
        if self.proposal is not None:
            return []
        return [
            broker_id
            for broker_id in self.isr
            if broker_id in self.followers
            and not self.followers[broker_id].is_caught_up(leader_end, now_ms, max_lag_ms)
        ]

    def shrink(self, leaving: Iterable[int], own_epoch: int) -> Proposal:
        gone = set(leaving)
        return self._propose(tuple(each for each in self.isr if each not in gone), own_epoch, expands=False)

    def _propose(self, isr: tuple[int, ...], own_epoch: int, *, expands: bool) -> Proposal:
        members = tuple((each, own_epoch if each == self.node_id else self._epoch_of(each)) for each in isr)
        self.proposal = Proposal(isr, members, self.leader_epoch, self.partition_epoch, expands)
        self._largest = frozenset(self.isr) | frozenset(isr)
        return self.proposal

    def _epoch_of(self, broker_id: int) -> int:
        follower = self.followers.get(broker_id)
        return follower.broker_epoch if follower is not None else NO_BROKER_EPOCH

    # Answers of the controller.

    def accepted(self, isr: Iterable[int], leader_epoch: int, partition_epoch: int) -> bool:
        """Adopts the ISR that the controller's answer grants. Returns False if the answer is outdated."""
        if leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
            return False
        self._settle(tuple(isr), partition_epoch)
        return True

    def refused(self, code: ErrorCode) -> Verdict:
        return Verdict.WAIT if code in _WAIT_FOR_IMAGE else Verdict.RETRY


Brokers = Mapping[int, BrokerImage]


class Figures(NamedTuple):
    """Holds the replication state of one partition, as its leader sees it.

    Each metrics scrape creates one object per partition.
    """

    topic: str
    partition: int
    leader_epoch: int
    log_start: int
    log_end: int
    high_watermark: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    lag_records: Mapping[int, int]
    lag_ms: Mapping[int, int]
    under_replicated: bool
    under_min_isr: bool
    isr_change_pending: bool
