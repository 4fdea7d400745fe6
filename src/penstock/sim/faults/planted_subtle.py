"""Lists subtle planted bugs: one named rule finds each bug, often long before a client could notice any harm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from penstock.broker.controlplane import metadata_log
from penstock.broker.controlplane.metadata_log import MetadataLog
from penstock.broker.coordinators.runtime import Coordinator, Phase
from penstock.broker.fetch.long_poll import Fetching, PartitionRead
from penstock.broker.handlers import api_00_produce as produce
from penstock.broker.replicas.partition import Partition
from penstock.broker.replicas.partitions import Partitions
from penstock.broker.replicas.replica_fetcher import ReplicaFetcher
from penstock.groups import reconciliation
from penstock.groups.consumer import heartbeat
from penstock.log import shorten
from penstock.log.flush import Durability
from penstock.log.log import Log
from penstock.log.scan import scan_headers
from penstock.log.segment import Segment
from penstock.metadata import snapshot
from penstock.metadata.controller import partition_change
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_00_produce import PartitionProduceResponse
from penstock.raft import follower
from penstock.records.batches import split_batches
from penstock.replication.leader import Leading
from penstock.transactions.shard import TransactionShard
from penstock.transactions.states import State


class Subtle(NamedTuple):
    about: str
    rule: str
    """The name of the rule that finds the planted bug."""
    profile: str
    nodes: int
    replacements: tuple[tuple[Any, str, Any], ...]


def _one_early(old: Any) -> Any:
    def when_committed(self: Partition, offset: int, *args: Any) -> Any:
        return old(self, offset if self.topic.startswith("__") else offset - 1, *args)

    return when_committed


def _majority(old: Any) -> Any:
    def high_watermark(self: Leading, own_end: int, *args: Any) -> int:
        ends = sorted([own_end, *(self.followers[each].log_end for each in self._largest if each in self.followers)])
        return max(ends[(len(ends) - 1) // 2], int(old(self, own_end, *args)))

    return high_watermark


def _newest_only(old: Any) -> Any:
    def append_as_follower(self: Log, records: Any, leader_epoch: int) -> Any:
        if self.config.compact:
            found = [view for header, view in split_batches(records, allow_partial=True) if not header.is_control]
            if len(found) > 1:
                records = b"".join(found[1:])
        return old(self, records, leader_epoch)

    return append_as_follower


def _refused_in_silence(old: Any) -> Any:
    def refusal(self: Any, topic: Any, index: int, partition: Partition | None, error: KafkaError) -> Any:
        answer = old(self, topic, index, partition, error)
        return PartitionProduceResponse(index=index) if self.acks == 1 else answer

    return refusal


def _large_batch_skipped(old: Any) -> Any:
    def read(self: Fetching, read: PartitionRead, budget: int, *, whole_batch: bool) -> None:
        wanted = read.wanted
        log = self.partitions.get_by_id(wanted.topic_id, wanted.partition).log
        if self.reader.replica_id < 0 and wanted.fetch_offset < log.last_stable_offset:
            segment = log.segments.starting_at(wanted.fetch_offset)[0]
            found = segment.locate(wanted.fetch_offset)
            if found is not None and found[1] > wanted.max_bytes:
                header = next(scan_headers(segment.file, found[0], found[0] + found[1]))[1]
                wanted.fetch_offset = header.next_offset
        old(self, read, budget, whole_batch=whole_batch)

    return read


def _first_segment_only(old: Any) -> Any:
    def sync_directories(self: Durability) -> None:
        if not self._synced_bases:
            old(self)

    return sync_directories


def _until_full(old: Any) -> Any:
    def pass_over(self: Fetching, *args: Any) -> Any:
        found = old(self, *args)
        while self.reader.replica_id < 0 and 0 < found[1] < 65_536:
            found = old(self, *args)
        return found

    return pass_over


def _nothing_held(old: Any) -> Any:
    def step(member: Any, target_epoch: int, target: Any, owned: Any, is_held: Any) -> Any:
        return old(member, target_epoch, target, owned, lambda topic_id, partition: False)

    return step


def _owns_nothing(old: Any) -> Any:
    return lambda owned, revoked: False


def _producers_stay(old: Any) -> Any:
    def rebuild_producers(log: Log, *args: Any) -> dict[int, Any]:
        log.producers.map_end_offset = log.log_end_offset
        return {}

    return rebuild_producers


def _last_is_largest(old: Any) -> Any:
    def account(self: Segment, header: Any, position: int) -> None:
        self._max_timestamp = min(self.max_timestamp, header.max_timestamp - 1)
        old(self, header, position)

    return account


def _answered_at_once(old: Any) -> Any:
    async def _commit(self: MetadataLog) -> None:
        """Does not wait."""

    return _commit


def _images_stay(old: Any) -> Any:
    def _step_down(self: MetadataLog) -> None:
        images = list(self._unpublished)
        old(self)
        self._unpublished.extend(images)

    return _step_down


def _configs_stay(old: Any) -> Any:
    def replay(log: Log, image: Any, end_offset: int) -> Any:
        loaded = old(log, image, end_offset)
        return loaded._replace(image=replace(loaded.image, configs=image.configs or loaded.image.configs))

    return replay


def _one_eligible_too_many(old: Any) -> Any:
    def eligible_leaders(change: Any, target: Any) -> list[int]:
        if len(target.isr) != change.rules.min_isr(change.image, change.topic):
            return list(old(change, target))
        left = dict.fromkeys((*change.partition.elr, *change.partition.isr)).keys() - {*target.isr}
        return sorted(left & {*target.replicas} - {*change.unclean_shutdown})

    return eligible_leaders


def _reads_do_not_wait(old: Any) -> Any:
    def _has_uncommitted(self: Coordinator[Any]) -> bool:
        return False

    return _has_uncommitted


def _load_acts_at_once(old: Any) -> Any:
    def _start(self: Coordinator[Any]) -> None:
        self.phase = Phase.ACTIVE
        turn = self.machine.turn(self.now_ms, self._clock.wall_ms())
        self.machine.loaded(turn)
        if turn.records:
            self._take(turn, None, None)
        else:
            self._settle(turn, ErrorCode.NONE)
        self._arm()

    return _start


def _flush_not_awaited(old: Any) -> Any:
    def poll_follower(core: Any, state: Any) -> None:
        flushed, core.log.flushed_offset = core.log.flushed_offset, core.log.end_offset
        old(core, state)
        core.log.flushed_offset = flushed

    return poll_follower


def _tails_stay_unsynced(old: Any) -> Any:
    return lambda fetcher: []


def _leaders_only(old: Any) -> Any:
    def _apply_configs(self: Partitions, before: Any, after: Any) -> None:
        every = self._by_name
        self._by_name = {name: partition for name, partition in every.items() if partition.is_leader}
        try:
            old(self, before, after)
        finally:
            self._by_name = every

    return _apply_configs


def _moved_replicas_stay(old: Any) -> Any:
    def _remove(self: Partitions, topic: Any, index: int) -> None:
        if self._image is None or topic.name not in self._image.topics:
            old(self, topic, index)

    return _remove


def _no_configs(old: Any) -> Any:
    return lambda image: iter(())


def _no_tombstones(old: Any) -> Any:
    def _enqueue(self: Coordinator[Any], encoded: Any) -> None:
        old(self, [(key, value) for key, value in encoded if value is not None])

    return _enqueue


def _last_partition_missing(old: Any) -> Any:
    def encode(self: TransactionShard, record: Any) -> Any:
        txn = record[1]
        if txn is not None and txn.state is State.ONGOING and len(txn.partitions) > 1:
            record = record._replace(transaction=replace(txn, partitions=frozenset(sorted(txn.partitions)[:-1])))
        return old(self, record)

    return encode


SUBTLE_BUGS: dict[str, Subtle] = {
    "ack-one-offset-early": Subtle(
        "acks=all is answered when the high watermark is one offset below the batch's end",
        "acknowledgements follow commits",
        "calm",
        3,
        ((Partition, "when_committed", _one_early),),
    ),
    "watermark-of-the-majority": Subtle(
        "the high watermark is what a majority of the in-sync replicas has, not all of them",
        "in sync by content",
        "calm",
        3,
        ((Leading, "high_watermark", _majority),),
    ),
    "follower-leaves-out-a-batch": Subtle(
        "a follower of a compacted topic leaves out the first of several fetched batches",
        "same contents",
        "crash",
        3,
        ((Log, "append_as_follower", _newest_only),),
    ),
    "acks-1-refused-in-silence": Subtle(
        "with acks=1, a refused batch is answered without an error",
        "nothing acknowledged is lost",
        "crash",
        3,
        ((produce._Produce, "_refusal", _refused_in_silence),),
    ),
    "large-batch-skipped": Subtle(
        "a batch that is larger than a consumer's partition limit is passed over",
        "readers go forward",
        "calm",
        3,
        ((Fetching, "_read", _large_batch_skipped),),
    ),
    "fetch-without-end": Subtle(
        "a fetch that finds few bytes looks again in the same turn, until there are more",
        "liveness",
        "calm",
        1,
        ((Fetching, "pass_over", _until_full),),
    ),
    "partition-given-before-its-release": Subtle(
        "a group gives a partition to a member although another one has not released it",
        "one owner by state",
        "calm",
        3,
        ((heartbeat, "reconcile", _nothing_held),),
    ),
    "revocation-not-awaited": Subtle(
        "a partition counts as released as soon as its member is told to release it",
        "one owner at a time",
        "calm",
        3,
        ((reconciliation, "_still_owns", _owns_nothing),),
    ),
    "producers-of-truncated-batches": Subtle(
        "a truncation keeps the producer state of the batches that it removes",
        "producer state",
        "network",
        3,
        ((shorten, "rebuild_producers", _producers_stay),),
    ),
    "time-index-of-the-last-batch": Subtle(
        "the time index has the timestamp of the last batch, not the largest so far",
        "offset and time index",
        "hostile",
        3,
        ((Segment, "account", _last_is_largest),),
    ),
    "later-segments-without-directory-sync": Subtle(
        "a flush syncs the directory of a log for its first segment only, so a later segment may vanish",
        "durability",
        "calm",
        3,
        ((Durability, "_sync_directories", _first_segment_only),),
    ),
    "decision-answered-early": Subtle(
        "a controller answers a decision before its records are committed",
        "answered decisions",
        "calm",
        3,
        ((MetadataLog, "_commit", _answered_at_once),),
    ),
    "uncommitted-images-kept": Subtle(
        "a deposed controller keeps the images of decisions that were not committed, and publishes them later",
        "published metadata",
        "elections",
        3,
        ((MetadataLog, "_step_down", _images_stay),),
    ),
    "configs-never-change-on-followers": Subtle(
        "followers of the quorum keep the configs that they learned first",
        "published metadata",
        "configs",
        3,
        ((metadata_log, "replay", _configs_stay),),
    ),
    "eligible-although-others-commit": Subtle(
        "a replica that leaves an ISR stays an eligible leader, although the others are enough to commit records",
        "eligible leaders are complete",
        "crash",
        3,
        ((partition_change, "eligible_leaders", _one_eligible_too_many),),
    ),
    "reads-do-not-wait-for-commits": Subtle(
        "a coordinator answers a request that changes nothing from changes that are not committed",
        "coordinators answer from committed state",
        "groups",
        3,
        ((Coordinator, "_has_uncommitted", _reads_do_not_wait),),
    ),
    "load-acts-before-the-commit": Subtle(
        "a coordinator sends the markers of a decision that it has loaded and that is not committed",
        "coordinators answer from committed state",
        "crash",
        3,
        ((Coordinator, "_start", _load_acts_at_once),),
    ),
    "metadata-fetched-before-fsync": Subtle(
        "a voter fetches the next metadata before its fsync of the last is done, so the leader counts it as on disk",
        "durability",
        "calm",
        3,
        ((follower, "poll_follower", _flush_not_awaited),),
    ),
    "unsynced-records-counted": Subtle(
        "a follower fetches from an offset that is not synced, where acknowledgements promise fsync",
        "durability",
        "calm",
        3,
        ((ReplicaFetcher, "_unsynced_tails", _tails_stay_unsynced),),
    ),
    "configs-of-leaders-only": Subtle(
        "a changed topic config takes effect on the leader only, until the next leader starts again",
        "configs as set",
        "configs",
        3,
        ((Partitions, "_apply_configs", _leaders_only),),
    ),
    "moved-replicas-stay": Subtle(
        "a node keeps a replica that was moved to another node",
        "replicas as assigned",
        "reassign",
        4,
        ((Partitions, "_remove", _moved_replicas_stay),),
    ),
    "snapshot-without-configs": Subtle(
        "a snapshot of the metadata has no configs, so a node that starts from it has the defaults",
        "snapshots of metadata",
        "configs",
        3,
        ((snapshot, "_configs", _no_configs),),
    ),
    "coordinator-writes-no-tombstones": Subtle(
        "a coordinator forgets members and offsets without a tombstone, so the next coordinator has them again",
        "coordinators remember what their logs say",
        "groups",
        3,
        ((Coordinator, "_enqueue", _no_tombstones),),
    ),
    "transaction-record-lacks-a-partition": Subtle(
        "the record of an open transaction lacks one of its partitions, which gets no marker after a failover",
        "coordinators remember what their logs say",
        "recreation",
        3,
        ((TransactionShard, "encode", _last_partition_missing),),
    ),
}
