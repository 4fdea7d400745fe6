"""Lists planted bugs that only one workload finds: actors, topics and settings of other profiles never trigger them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.broker.coordinators.marker_sender import MarkerSender
from penstock.groups import offset_requests
from penstock.groups.streams.group import StreamsGroup
from penstock.log import shorten
from penstock.log.epochs import LeaderEpochCache
from penstock.log.log import Log
from penstock.log.producers import ProducerStateManager
from penstock.log.segment import Segment
from penstock.metadata.configs.topic import LogConfig
from penstock.metadata.controller import partition_change
from penstock.protocol.vocabulary import MAX_PRODUCER_EPOCH
from penstock.records.compact import Compactor, OffsetMap, TransactionScan
from penstock.transactions import ending
from penstock.transactions.transaction import Owner


def _tombstones_dropped(old: Any) -> Any:
    def keeps(self: Compactor, header: Any, record: Any) -> bool:
        return bool(old(self, header, record)) and record.has_value

    return keeps


def _aborted_keys_count(old: Any) -> Any:
    def add_batch(self: OffsetMap, header: Any, batch: Any, transactions: TransactionScan) -> bool:
        return bool(old(self, header, batch, TransactionScan()))

    return add_batch


def _oldest_timestamp(old: Any) -> Any:
    def newest(segment: Segment) -> int:
        first = segment.first_timestamp
        return int(old(segment)) if first is None else first

    return newest


def _open_transactions_expire(old: Any) -> Any:
    def remove_expired(self: ProducerStateManager, now_ms: int, expiration_ms: int) -> int:
        for producer_id, entry in list(self._entries.items()):
            if entry.txn_first_offset is not None and now_ms - entry.last_timestamp >= expiration_ms:
                self._ongoing.pop(entry.txn_first_offset, None)
                del self._entries[producer_id]
        return int(old(self, now_ms, expiration_ms))

    return remove_expired


def _stable_below_start(old: Any) -> Any:
    def last_stable_offset(self: Log) -> int:
        unstable = self.producers.first_unstable_offset
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)

    return property(last_stable_offset)


def _deleted_partitions_retried(old: Any) -> Any:
    def route(self: MarkerSender, ending: Any, partitions: Any) -> None:
        gone = [partition for partition in partitions if self._metadata.image.partition(*partition) is None]
        for partition in gone:
            self._retry_later(ending, partition)
        old(self, ending, [partition for partition in partitions if partition not in gone])

    return route


def _nothing(old: Any) -> Any:
    return lambda *args, **more: None


def _never_held(old: Any) -> Any:
    return lambda self, process_id, key, partition: False


def _epoch_taken_for_known(old: Any) -> Any:
    def end_offset_for(self: LeaderEpochCache, epoch: int, log_end_offset: int) -> tuple[int, int]:
        known, end = old(self, epoch, log_end_offset)
        return (epoch, end) if known >= 0 else (known, end)

    return end_offset_for


def _last_epoch_again(old: Any) -> Any:
    def epoch_after(shard: Any, owner: Owner) -> Owner:
        return Owner(owner.producer_id, min(owner.producer_epoch + 1, MAX_PRODUCER_EPOCH))

    return epoch_after


def _ends_early(old: Any) -> Any:
    def complete_reassignment(target: Any) -> None:
        if target.adding and {*target.adding} & {*target.isr}:
            target.replicas = [each for each in target.replicas if each not in target.removing]
            target.isr = list(target.replicas)
            target.adding, target.removing = [], []
            return
        old(target)

    return complete_reassignment


def _promise_not_followed(old: Any) -> Any:
    def update_config(self: Log, config: LogConfig) -> None:
        before = getattr(self, "config", config)
        kept = replace(config, flush_messages=before.flush_messages, penstock_acks_fsync=before.penstock_acks_fsync)
        old(self, kept)

    return update_config


def _min_insync_not_followed(old: Any) -> Any:
    def update_config(self: Log, config: LogConfig) -> None:
        before = getattr(self, "config", config)
        old(self, replace(config, min_insync_replicas=before.min_insync_replicas))

    return update_config


#: name → (about, profile, replacements, number of machines)
WORKLOAD_BUGS: dict[str, tuple[str, str, tuple[tuple[Any, str, Any], ...], int]] = {
    "tombstones-dropped-at-once": (
        "compaction removes tombstones before delete.retention.ms: a reader under way misses the deletion",
        "compaction",
        ((Compactor, "_keeps", _tombstones_dropped),),
        1,
    ),
    "aborted-keys-supersede": (
        "compaction removes committed values, because an aborted transaction wrote their keys",
        "compaction",
        ((OffsetMap, "add_batch", _aborted_keys_count),),
        1,
    ),
    "young-records-expire": (
        "retention deletes a segment when its first record is old, not when its last record is",
        "expiry",
        ((shorten, "_newest", _oldest_timestamp),),
        1,
    ),
    "open-transactions-expire": (
        "a partition forgets producers with open transactions after producer.id.expiration.ms",
        "expiry",
        ((ProducerStateManager, "remove_expired", _open_transactions_expire),),
        1,
    ),
    "markers-wait-for-deleted-topics": (
        "a transaction with records in a deleted topic never ends",
        "recreation",
        ((MarkerSender, "_route", _deleted_partitions_retried),),
        1,
    ),
    "unknown-epoch-taken-for-known": (
        "a leader gives the end of an older epoch for an epoch that it never had: a follower keeps other records",
        "unclean",
        ((LeaderEpochCache, "end_offset_for", _epoch_taken_for_known),),
        3,
    ),
    "active-task-given-twice": (
        "a streams group gives a task to its next member while the last one still runs it",
        "groups",
        ((StreamsGroup, "is_held", _never_held),),
        3,
    ),
    "any-generation-commits": (
        "a classic group accepts commits of former members and of old generations",
        "groups",
        ((offset_requests, "check_commit", _nothing),),
        1,
    ),
    "epochs-never-used-up": (
        "a transactional producer keeps its id after its last epoch",
        "wrap",
        ((ending, "epoch_after", _last_epoch_again),),
        1,
    ),
    "fsync-switched-on-in-vain": (
        "a log follows a change of fsync acknowledgements only after a restart",
        "configs",
        ((Log, "update_config", _promise_not_followed),),
        1,
    ),
    "min-insync-raised-in-vain": (
        "a log follows a change of min.insync.replicas only after a restart",
        "configs",
        ((Log, "update_config", _min_insync_not_followed),),
        3,
    ),
    "reassignment-ends-early": (
        "a reassignment ends as soon as one new replica is in sync, and counts all new ones as in sync",
        "reassign",
        ((partition_change, "complete_reassignment", _ends_early),),
        4,
    ),
    "stable-offset-below-start": (
        "the last stable offset stays below the log start offset after records of an open transaction were deleted",
        "expiry",
        ((Log, "last_stable_offset", _stable_below_start),),
        1,
    ),
}

#: Bug → a seed that finds it, and the length of that run in seconds.
WORKLOAD_BUGS_FOUND_BY: dict[str, tuple[int, float]] = {
    "tombstones-dropped-at-once": (4, 25),
    "aborted-keys-supersede": (2, 25),
    "young-records-expire": (1, 25),
    "open-transactions-expire": (2, 25),
    "stable-offset-below-start": (5, 25),
    "markers-wait-for-deleted-topics": (5, 25),
    "unknown-epoch-taken-for-known": (11, 30),
    "active-task-given-twice": (2, 15),
    "any-generation-commits": (7, 25),
    "epochs-never-used-up": (1, 20),
    "fsync-switched-on-in-vain": (13, 25),
    "min-insync-raised-in-vain": (5, 25),
    "reassignment-ends-early": (3, 20),
}
