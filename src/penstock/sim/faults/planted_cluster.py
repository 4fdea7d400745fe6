"""Lists planted bugs of clusters: a leader, a follower, the controller or a voter breaks one rule."""

from __future__ import annotations

from typing import Any

from penstock.broker.controlplane.quorum_files import QuorumFiles
from penstock.broker.replicas.followed_partition import FollowedPartition
from penstock.broker.replicas.isr_changes import IsrChanges
from penstock.broker.replicas.partition import Partition
from penstock.broker.replicas.replica_fetcher import ReplicaFetcher
from penstock.log import producers as producers_module
from penstock.log.epochs import LeaderEpochCache
from penstock.log.log import Log
from penstock.log.producers import ProducerStateManager
from penstock.log.segment import Segment
from penstock.metadata.controller import alter_partition as alter_partition_module
from penstock.metadata.controller import partition_change
from penstock.metadata.controller.partition_change import Elected
from penstock.protocol.errors import ErrorCode
from penstock.replication.leader import Leading

NODES = 3


def _followers_not_asked(old: Any) -> Any:
    def high_watermark(self: Leading, own_end: int, *args: Any) -> int:
        return own_end

    return high_watermark


def _nobody_waits(old: Any) -> Any:
    def when_committed(self: Partition, offset: int, *args: Any) -> Any:
        return old(self, offset, *args) if self.topic.startswith("__") else None

    return when_committed


def _cut_at_watermark(old: Any) -> Any:
    def add(self: ReplicaFetcher, partition: Partition) -> None:
        if partition.is_open:
            partition.log.truncate_to(partition.log.high_watermark)
        old(self, partition)

    return add


def _epochs_unknown(old: Any) -> Any:
    def position(self: FollowedPartition, max_bytes: int) -> Any:
        asked = old(self, max_bytes)
        asked.last_fetched_epoch = -1
        return asked

    return position


def _joins_early(old: Any) -> Any:
    def may_join(self: Leading, follower: Any, high_watermark: int, brokers: Any) -> bool:
        return self.proposal is None and follower.broker_id not in self._largest and self.is_eligible(follower, brokers)

    return may_join


def _not_stale(old: Any) -> Any:
    return lambda broker_id, partition, wish: ErrorCode.NONE


def _any_incarnation(old: Any) -> Any:
    return lambda image, broker_id, epoch: broker_id in image.brokers


def _any_follower(old: Any) -> Any:
    return staticmethod(lambda follower, brokers: follower.broker_id in brokers)


def _any_replica(old: Any) -> Any:
    def choose_leader(change: Any, target: Any, elr_enabled: bool) -> Elected:
        for broker_id in (change.partition.leader, *target.replicas):
            if change.may_lead(broker_id):
                return Elected(broker_id, unclean=broker_id not in target.isr)
        return Elected(-1)

    return choose_leader


def _no(old: Any) -> Any:
    return lambda self, *args: False


def _nothing_checked(old: Any) -> Any:
    return lambda self: None


def _follower_notes_nothing(old: Any) -> Any:
    def append_as_follower(self: Log, records: Any, leader_epoch: int) -> Any:
        update = ProducerStateManager.update
        ProducerStateManager.update = lambda self, header, marker=None: None  # type: ignore[method-assign]
        try:
            return old(self, records, leader_epoch)
        finally:
            ProducerStateManager.update = update  # type: ignore[method-assign]

    return append_as_follower


def _vote_forgotten(old: Any) -> Any:
    def save_state(self: QuorumFiles, state: Any) -> None:
        """Planted bug: saves nothing to disk."""

    return save_state


def _vote_unsynced(old: Any) -> Any:
    def save_state(self: QuorumFiles, state: Any) -> None:
        disk: Any = self._disk
        write = disk.write_atomic
        disk.write_atomic = lambda path, data, sync=True: write(path, data, sync=False)
        try:
            old(self, state)
        finally:
            disk.write_atomic = write

    return save_state


def _any_marker(old: Any) -> Any:
    return lambda entry, header, origin, marker, transaction_version: None


def _checkpoint_believed(old: Any) -> Any:
    """Planted bug: the node trusts the checkpoint, although a power loss may have erased records below it."""

    def update_high_watermark(self: Log, offset: int) -> int:
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.producers.on_high_watermark(offset)
        return self.high_watermark

    return update_high_watermark


def unsynced(old: Any) -> Any:
    async def flush(self: QuorumFiles) -> None:
        log = self._log
        log.durability.flushed_offset = max(log.flushed_offset, log.log_end_offset)

    return flush


def _index_stays(old: Any) -> Any:
    def truncate_to(self: Segment, offset: int) -> None:
        reset = Segment.reset_indexes
        Segment.reset_indexes = lambda self, *args: None  # type: ignore[method-assign]
        try:
            old(self, offset)
        finally:
            Segment.reset_indexes = reset  # type: ignore[method-assign]

    return truncate_to


def _shrunk_at_once(old: Any) -> Any:
    """Planted bug: the leader uses the smaller ISR before the controller has accepted it."""

    def submit(self: IsrChanges, partition: Partition) -> None:
        leading = partition.leading
        if leading is not None and leading.proposal is not None:
            leading.isr = leading.proposal.isr
            leading._largest = frozenset(leading.proposal.isr)
        old(self, partition)

    return submit


def _watermark_of_the_end(old: Any) -> Any:
    def update_high_watermark(self: Log, offset: int) -> int:
        return int(old(self, self.log_end_offset if offset else 0))

    return update_high_watermark


def _epoch_not_noted(old: Any) -> Any:
    def assign(self: LeaderEpochCache, epoch: int, start_offset: int) -> Any:
        if self.latest_epoch is None:
            return old(self, epoch, start_offset)
        return False

    return assign


#: name → (about, profile, replacements)
CLUSTER_BUGS: dict[str, tuple[str, str, tuple[tuple[Any, str, Any], ...]]] = {
    "watermark-without-followers": (
        "the high watermark follows the leader's log and ignores the followers",
        "crash",
        ((Leading, "high_watermark", _followers_not_asked),),
    ),
    "ack-before-watermark": (
        "a write is acknowledged before the high watermark has passed it",
        "network",
        ((Partition, "when_committed", _nobody_waits),),
    ),
    "truncate-to-watermark": (
        "a follower truncates to its high watermark instead of to the point of divergence",
        "crash",
        ((ReplicaFetcher, "add", _cut_at_watermark),),
    ),
    "divergence-not-asked": (
        "a follower's fetch leaves out its last epoch: the leader cannot detect divergence",
        "network",
        ((FollowedPartition, "position", _epochs_unknown),),
    ),
    "isr-expanded-early": (
        "a follower joins the ISR before it has reached the high watermark",
        "crash",
        ((Leading, "may_join", _joins_early),),
    ),
    "isr-shrunk-at-once": (
        "a leader uses a smaller ISR before the controller has accepted it",
        "network",
        ((IsrChanges, "submit", _shrunk_at_once),),
    ),
    "stale-isr-accepted": (
        "the controller accepts an ISR change with an old partition epoch",
        "late",
        ((alter_partition_module, "_stale", _not_stale),),
    ),
    "dead-replica-in-sync": (
        "the controller adds a replica to the ISR for records that an earlier incarnation of its broker had",
        "late",
        ((alter_partition_module, "is_eligible", _any_incarnation), (Leading, "is_eligible", _any_follower)),
    ),
    "unclean-leader": (
        "any live replica is elected leader",
        "crash",
        ((partition_change, "choose_leader", _any_replica),),
    ),
    "min-isr-ignored": (
        "writes are committed with fewer replicas in sync than min.insync.replicas",
        "crash",
        ((Leading, "is_under_min_isr", _no), (Partition, "check_replicas", _nothing_checked)),
    ),
    "followers-forget-producers": (
        "followers keep no producer state: a batch retried after a failover is written twice",
        "crash",
        ((Log, "append_as_follower", _follower_notes_nothing),),
    ),
    "vote-forgotten": (
        "a vote is not saved: a restarted voter votes twice in an epoch",
        "elections",
        ((QuorumFiles, "save_state", _vote_forgotten),),
    ),
    "vote-not-synced": (
        "a vote is not synced: after a power loss a voter votes twice in an epoch",
        "elections",
        ((QuorumFiles, "save_state", _vote_unsynced),),
    ),
    "marker-written-twice": (
        "a repeated marker is written again, and ends the next transaction",
        "late",
        ((producers_module, "_check_marker", _any_marker),),
    ),
    "watermark-beyond-the-log": (
        "a start restores a high watermark above the log end",
        "power",
        ((Log, "update_high_watermark", _checkpoint_believed),),
    ),
    "metadata-not-synced": (
        "a voter acknowledges metadata records before their fsync",
        "power",
        ((QuorumFiles, "flush", unsynced),),
    ),
    "index-not-truncated": (
        "truncation of a log does not truncate its index",
        "network",
        ((Segment, "truncate_to", _index_stays),),
    ),
    "epoch-not-noted": (
        "only the first leader epoch of a log is recorded",
        "network",
        ((LeaderEpochCache, "assign", _epoch_not_noted),),
    ),
    "watermark-of-the-end": (
        "a replica sets its high watermark to its log end",
        "network",
        ((Log, "update_high_watermark", _watermark_of_the_end),),
    ),
}
