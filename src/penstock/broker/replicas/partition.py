"""Keeps one replica of a partition on this node: its log, its role (leader or follower), and its high watermark.

The order of an append, all in one pass of the event loop:

- the log appends the batch;
- the high watermark moves as far as the in-sync replicas allow (for a sole replica: to the end of the log);
- waiters are notified.

With followers, the fetch of the slowest in-sync follower moves the high watermark, and waiters are answered in the same
pass. So a response with acks=all is never sent before the record is visible to consumers.

If a topic requires fsync before an acknowledgement, the high watermark counts only records that are synced to disk. So
everything that waits for the high watermark (consumers, coordinators, markers) sees only synced records.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.replicas.partition_host import PartitionHost, now_ms
from penstock.broker.replicas.partition_waiters import PartitionWaiters
from penstock.log.flush import make_countable
from penstock.log.log import AppendOrigin
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import NO_LEADER_EPOCH
from penstock.replication.epochs import check_leader_epoch, newest_epoch_end
from penstock.replication.leader import Leading, Verdict, effective_min_isr

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.log.log import AppendInfo, Log
    from penstock.log.producers import Verification
    from penstock.metadata.image import PartitionImage
    from penstock.records.validate import Prepared


class Partition:
    __slots__ = (
        "_following",
        "_host",
        "_log",
        "image",
        "index",
        "is_new",
        "leading",
        "topic",
        "topic_id",
        "waiters",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        image: PartitionImage,
        host: PartitionHost[Partition],
        *,
        is_new: bool = False,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.image = image
        #: True if this node became a replica while this process ran: no disk has an older log of the partition.
        self.is_new = is_new
        #: State of the followers, while this node leads and there are other replicas.
        self.leading: Leading | None = None
        self.waiters = PartitionWaiters()
        self._host = host
        self._log: Log | None = None
        self._following: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index})"

    @property
    def node_id(self) -> int:
        return self._host.node_id

    @property
    def log(self) -> Log:
        """Returns the partition's log, and opens it on first use.

        Not all logs are opened when the node starts: opening ten thousand logs at once would block the event loop.
        """
        log = self._log
        if log is None:
            log = self._log = self._host.open_log(self)
            self._take_role(log)
            self.follow_disk(log)
        return log

    @property
    def is_open(self) -> bool:
        return self._log is not None

    @property
    def is_leader(self) -> bool:
        return self.image.leader == self._host.node_id

    @property
    def leader_epoch(self) -> int:
        return self.image.leader_epoch

    @property
    def acks_need_fsync(self) -> bool:
        return self.log.config.fsync_before_ack

    def leader_log(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> Log:
        """Returns the log. Raises KafkaError if this node does not lead, or if the client sent another leader epoch."""
        if current_leader_epoch != NO_LEADER_EPOCH:
            check_leader_epoch(current_leader_epoch, self.image.leader_epoch)
        if self.image.leader != self._host.node_id:
            raise self._not_leader()
        return self._log or self.log

    def _not_leader(self) -> KafkaError:
        leader = f"node {self.image.leader}" if self.image.leader >= 0 else "not elected yet"
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"The leader is {leader}: refresh the metadata.")

    def replica_log(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> Log:
        """Returns the log, even if this node is a follower: consumers may read from followers (KIP-392)."""
        check_leader_epoch(current_leader_epoch, self.image.leader_epoch)
        return self.log

    def epoch_at(self, offset: int) -> int:
        """Returns the leader epoch of the record at this offset; at the end of the log, the current leader epoch."""
        epochs = self.log.epochs
        return self.image.leader_epoch if offset >= self.log.log_end_offset else epochs.epoch_for_offset(offset)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Returns `epoch`, or else the next lower epoch in this log, with its end offset; (-1, -1) if there is none.

        A leader knows its current epoch even before it appends the first record. A follower knows only the epochs of
        its records.
        """
        log = self.log
        end = log.log_end_offset
        image = self.image
        if image.leader == self._host.node_id:
            if epoch == image.leader_epoch:
                return epoch, end  # the usual case for a follower's fetch
            newest = newest_epoch_end(epoch, image.leader_epoch, log.epochs.latest_epoch, end)
            if newest is not None:
                return newest
        return log.epochs.end_offset_for(epoch, end)

    # The role of this replica.

    def follow_image(self, image: PartitionImage) -> None:
        """Takes over the partition's leader, replicas and in-sync set from a new metadata image."""
        old, self.image = self.image, image
        log = self._log
        same_epoch = old.leader_epoch == image.leader_epoch and old.leader == image.leader
        if image.leader != self._host.node_id:
            self.leading = None
            self.waiters.fail(self._not_leader())
            if not same_epoch:
                self.waiters.answer_parked()
        elif log is None:
            pass  # `log` takes the role when it opens the log
        elif same_epoch and self.leading is not None and len(image.replicas) > 1:
            before = len(self.leading.isr)
            self.leading.follow(image, now_ms())
            self._isr_changed(log, before)
        elif not same_epoch or len(old.replicas) != len(image.replicas):
            self._take_role(log)

    def _take_role(self, log: Log) -> None:
        image, me = self.image, self._host.node_id
        self.leading = None
        if image.replicas == (me,):
            self._advance(log)
        elif image.leader == me:
            latest = log.epochs.latest_epoch
            start = log.epochs.starts[-1] if latest == image.leader_epoch else log.log_end_offset
            self.leading = Leading(me, image, start, now_ms())
            self._advance(log)

    def stop(self) -> None:
        """Ends all waits, because the replica is removed from this node or the node stops."""
        self.leading = None
        message = "This node stops or no longer has the partition: refresh the metadata."
        self.waiters.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message))
        self.waiters.answer_parked()

    # Appending as the leader.

    def check_replicas(self) -> None:
        """Raises KafkaError(NOT_ENOUGH_REPLICAS) if fewer replicas are in sync than acks=all needs."""
        need = effective_min_isr(self.log.config.min_insync_replicas, self.image.replicas)
        have = len(self.isr)
        if have < need:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The partition has {have} in-sync replicas, but min.insync.replicas={need}: retry when more replicas "
                "are in sync.",
            )

    @property
    def isr(self) -> tuple[int, ...]:
        """Returns the in-sync replicas that the controller has accepted, even if the image does not have them yet."""
        return self.image.isr if self.leading is None else self.leading.isr

    def append(
        self,
        records: Buffer,
        *,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        required_acks: int = 1,
        verification: Verification | None = None,
        transaction_version: int = -1,
        prepared: Prepared | None = None,
    ) -> AppendInfo:
        """Appends a batch as the leader, moves the high watermark, and notifies waiters.

        A client's transactional batch needs `verification`, unless its transaction is already open in this log. Raises
        UnpackFirstError if a client's batch must be unpacked; the caller unpacks it and calls again with `prepared`.
        """
        log, leading = self.leader_log(), self.leading
        if leading is None:
            if len(self.image.replicas) > 1:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node is stopping: refresh the metadata.")
        elif required_acks == -1:
            self.check_replicas()
        waiters = self.waiters
        before = log.size if waiters.consumers or waiters.followers else None
        info = log.append_as_leader(
            records,
            leader_epoch=self.image.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            verification=verification,
            verification_required=True,
            transaction_version=transaction_version,
            prepared=prepared,
        )
        if not info.duplicate:
            appended = 0 if before is None else log.size - before
            if leading is None and log.countable_offset == log.log_end_offset:
                log.update_high_watermark(log.log_end_offset)
                if waiters.consumers or waiters.commits:
                    waiters.on_high_watermark(log.high_watermark, appended)
            else:
                self._advance(log)
                if waiters.followers:
                    waiters.on_append(appended)
        return info

    # The high watermark.

    def _advance(self, log: Log) -> None:
        """Moves the high watermark as far as the in-sync replicas allow, and notifies waiters."""
        mark = log.countable_offset
        if mark < log.log_end_offset:
            self.follow_disk(log)
        leading, host = self.leading, self._host
        if leading is not None:
            if leading.is_under_min_isr(log.config.min_insync_replicas):
                return  # KIP-966: a committed record is on at least min.insync.replicas replicas
            mark = leading.high_watermark(mark, log.log_end_offset, now_ms(), host.max_lag_ms, host.brokers)
        elif len(self.image.replicas) > 1:
            return  # this node has stopped leading and no longer knows the other replicas' offsets
        self.advance_high_watermark(log, mark)

    def advance_high_watermark(self, log: Log, mark: int) -> None:
        """Moves the high watermark up to `mark`, but not past the end of the log, and notifies waiters."""
        before = log.high_watermark
        if mark > before:
            mark = log.update_high_watermark(mark)
            waiters = self.waiters
            if mark > before and (waiters.commits or waiters.consumers):
                waiters.on_high_watermark(mark, _estimated_bytes(log, mark - before) if waiters.consumers else 0)

    def recheck(self) -> None:
        """Moves the high watermark as far as possible, and ends the waits of finished deletions.

        Called after a broker is fenced, after a config change, and periodically.
        """
        if self._log is not None and self.leading is not None and self._log.high_watermark < self._log.log_end_offset:
            self._advance(self._log)
        if self.waiters.deletions:
            self.waiters.on_low_watermark(self.low_watermark())

    def log_moved(self) -> None:
        """Advances the high watermark after a move to another directory: the move may have synced waiting records."""
        if self._log is not None:
            self._advance(self._log)

    def follow_disk(self, log: Log) -> None:
        """Starts a task that syncs the log and moves the high watermark until the whole log is synced."""
        if self._following is None and log.countable_offset < log.log_end_offset:
            self._following = asyncio.get_running_loop().create_task(
                self._follow_disk(log), name=f"high watermark of {self.topic}-{self.index}"
            )

    async def _follow_disk(self, log: Log) -> None:
        try:
            while log.countable_offset < log.log_end_offset:
                await make_countable(log)
                if not self.is_leader and self.image.replicas != (self.node_id,):
                    return  # a follower's fetcher syncs the log itself before it names a new fetch offset
                self._advance(log)
        except KafkaError as error:
            self.waiters.fail(error)  # the disk failed or the log was closed
        finally:
            self._following = None

    async def committed(self, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Waits until the high watermark has reached `offset`.

        Raises KafkaError if the records can't be committed. A caller that does not call this right after its append
        must pass the leader epoch of the append: after an election the log may have other records at these offsets.
        """
        waiting = self.when_committed(offset, leader_epoch)
        if waiting is not None:
            await waiting

    def when_committed(self, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> asyncio.Future[None] | None:
        """Returns the future that `committed` waits for; None if the records are already committed."""
        log = self.log
        if leader_epoch not in (NO_LEADER_EPOCH, self.image.leader_epoch):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"The leader epoch changed from {leader_epoch} to {self.image.leader_epoch}: refresh the metadata.",
            )
        if log.high_watermark >= offset:
            return None
        if not self.is_leader:
            raise self._not_leader()
        log.health.check_writable()
        return self.waiters.commit(offset)

    # Followers of this leader.

    def has_follower(self, replica_id: int) -> bool:
        return self.leading is not None and replica_id in self.leading.followers

    def on_replica_fetch(self, replica_id: int, broker_epoch: int, offset: int, log_start: int) -> None:
        """Notes that a follower has all records below `offset`, the fetch offset of its Fetch request.

        Call this before reading the records for the response: the response then has the new high watermark.
        """
        leading, log, host = self.leading, self.log, self._host
        follower = leading.followers.get(replica_id) if leading is not None else None
        if leading is None or follower is None:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"This node does not lead the partition, or its metadata lists no replica on node {replica_id}: retry.",
            )
        follower.registered_as(broker_epoch)
        deleted = log_start != follower.log_start
        follower.on_fetch(offset, log_start, log.log_end_offset, now_ms())
        if len(leading.maximal_isr) < len(leading.replicas) and leading.may_join(
            follower, log.high_watermark, host.brokers
        ):
            leading.expand(replica_id, host.broker_epoch())
            host.propose(self)
        if log.high_watermark < log.log_end_offset:
            self._advance(log)
        if deleted and self.waiters.deletions:
            self.waiters.on_low_watermark(self.low_watermark())

    def is_quiet(self, replica_id: int, broker_epoch: int, offset: int, log_start: int, now_ms: int | None) -> bool:
        """Returns True if there is nothing new for an in-sync follower: no record and no change of an offset.

        Then also notes that the follower has caught up at `now_ms`, unless `now_ms` is None. The check must be cheap: a
        fetch session may have thousands of partitions with nothing new.
        """
        leading, log = self.leading, self._log
        if leading is None or log is None or log.offline:
            return False
        follower = leading.followers.get(replica_id)
        if (
            follower is None
            or not follower.log_end == offset == log.log_end_offset == log.high_watermark
            or follower.broker_epoch != broker_epoch
            or log.log_start_offset != log_start
            or replica_id not in leading.isr
        ):
            return False
        if now_ms is not None:
            follower.caught_up_ms = follower.fetch_ms = now_ms
            follower.leader_end = offset
        return True

    def check_laggards(self, now_ms: int) -> bool:
        """Proposes to remove lagging followers from the ISR. Returns True if there are lagging followers."""
        leading = self.leading
        if leading is None or self.log.offline:
            return False  # no follower can fetch from a failed disk: the in-sync followers have to remain eligible
        self.recheck()
        leaving = leading.laggards(self.log.log_end_offset, now_ms, self._host.max_lag_ms)
        if leaving:
            leading.shrink(leaving, self._host.broker_epoch())
            self._host.propose(self)
        return bool(leaving)

    def isr_accepted(self, isr: list[int], leader_epoch: int, partition_epoch: int) -> None:
        leading = self.leading
        before = len(self.isr)
        if leading is not None and leading.accepted(isr, leader_epoch, partition_epoch):
            self._isr_changed(self.log, before)

    def isr_refused(self, code: ErrorCode) -> Verdict:
        return Verdict.DROPPED if self.leading is None else self.leading.refused(code)

    def _isr_changed(self, log: Log, before: int) -> None:
        self._advance(log)
        leading = self.leading
        if leading is None or not self.waiters.commits or len(leading.isr) >= before:
            return
        if leading.is_under_min_isr(log.config.min_insync_replicas):
            self.waiters.fail(
                KafkaError(
                    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                    f"Only {len(leading.isr)} in-sync replicas are left, fewer than min.insync.replicas: retry.",
                )
            )

    # Deleting records.

    def low_watermark(self) -> int:
        start = self.log.log_start_offset
        return start if self.leading is None else self.leading.low_watermark(start, self._host.is_alive)

    def delete_before(self, offset: int) -> asyncio.Future[None] | None:
        """Moves the log start offset to `offset`.

        Returns a future that is done when all live replicas have moved their log start offset; None if all of
        them have moved it already.
        """
        log = self.leader_log()
        log.advance_log_start_offset(offset)
        if self.low_watermark() >= offset:
            return None
        future = self.waiters.deletion(offset)
        self.waiters.answer_followers()  # sends the new log start now, not with the next record
        return future


def _estimated_bytes(log: Log, records: int) -> int:
    """Estimates the total size of a number of records from the average record size in the log.

    The estimate is needed because parked fetches wait for a number of bytes, but offsets only give a number of records.
    """
    return max(1, records * log.size // max(1, log.log_end_offset - log.log_start_offset))
