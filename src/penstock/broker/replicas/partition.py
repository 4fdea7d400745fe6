"""One partition on this node: its log, the role that this node has for it, and its high watermark.

Order of an append, all in one pass of the loop: the log takes the batch, the high watermark moves as far as the
in-sync replicas allow (of a sole replica: to the end of the log), then waiters are notified. With followers the fetch
of the slowest one moves it, and waiters are answered in that very pass. An answer with acks=all therefore never goes
out before the record is visible to consumers. Where a topic's acknowledgements promise fsync, a replica counts what it
has synced: the high watermark follows the disks, and all who wait for it (consumers, coordinators, markers) get the
same promise.
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
        #: This node became a replica while this process ran: no disk has a log of the partition from before.
        self.is_new = is_new
        #: What is known of the followers, while this node leads and has any.
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
        """Opened or created on first use, so that ten thousand new partitions don't hold up the loop at once."""
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
        """The log, if this node leads the partition in the epoch that the client believes in."""
        if current_leader_epoch != NO_LEADER_EPOCH:
            check_leader_epoch(current_leader_epoch, self.image.leader_epoch)
        if self.image.leader != self._host.node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"The leader is node {self.image.leader}.")
        return self._log or self.log

    def replica_log(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> Log:
        """The log, also where this node only follows: consumers may read there (KIP-392)."""
        check_leader_epoch(current_leader_epoch, self.image.leader_epoch)
        return self.log

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at this offset, or the one the next record will have."""
        epochs = self.log.epochs
        return self.image.leader_epoch if offset >= self.log.log_end_offset else epochs.epoch_for_offset(offset)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch at or below this one and where it ends; (-1, -1) if nothing is known of it.

        The leader knows more than its list of epochs has. A follower knows only what is in its list: it may not have
        heard yet where the leader's epoch begins.
        """
        log = self.log
        end = log.log_end_offset
        image = self.image
        if image.leader == self._host.node_id:
            if epoch == image.leader_epoch:
                return epoch, end  # most fetches of followers
            newest = newest_epoch_end(epoch, image.leader_epoch, log.epochs.latest_epoch, end)
            if newest is not None:
                return newest
        return log.epochs.end_offset_for(epoch, end)

    # The role that this node has.

    def follow_image(self, image: PartitionImage) -> None:
        """The controller has changed something of this partition."""
        old, self.image = self.image, image
        log = self._log
        same_epoch = old.leader_epoch == image.leader_epoch and old.leader == image.leader
        if image.leader != self._host.node_id:
            self.leading = None
            self.waiters.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"The leader is node {image.leader}."))
            if not same_epoch:
                self.waiters.answer_parked()
        elif log is None:
            pass  # it will, once it is opened
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
        """Ends all waiting: the partition has left this node, or the node stops."""
        self.leading = None
        self.waiters.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The partition has left this node."))
        self.waiters.answer_parked()

    # Appending as the leader.

    def check_replicas(self) -> None:
        """Raises NOT_ENOUGH_REPLICAS where acks=all could not be kept."""
        need = effective_min_isr(self.log.config.min_insync_replicas, self.image.replicas)
        have = len(self.isr)
        if have < need:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{have} in-sync replicas: min.insync.replicas={need}.")

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync set as committed: the leader may have heard of a change before the image has it."""
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
        """A client's transactional batch needs `verification`, unless its transaction is open here already.

        UnpackFirstError for a client's batch that has to be `prepared` first.
        """
        log, leading = self.leader_log(), self.leading
        if leading is None:
            if len(self.image.replicas) > 1:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node stops: look up the leader again.")
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
        """Move it as far as the replicas that count allow, and tell who waits for it."""
        mark = log.countable_offset
        if mark < log.log_end_offset:
            self.follow_disk(log)
        leading, host = self.leading, self._host
        if leading is not None:
            if leading.is_under_min_isr(log.config.min_insync_replicas):
                return  # KIP-966: what is committed has to be on enough replicas to survive
            mark = leading.high_watermark(mark, log.log_end_offset, now_ms(), host.max_lag_ms, host.brokers)
        elif len(self.image.replicas) > 1:
            return  # it has stopped leading: what others have is not known here any more
        self.advance_high_watermark(log, mark)

    def advance_high_watermark(self, log: Log, mark: int) -> None:
        """Moves the high watermark up to `mark`, as far as the log reaches, and notifies waiters."""
        before = log.high_watermark
        if mark > before:
            mark = log.update_high_watermark(mark)
            waiters = self.waiters
            if mark > before and (waiters.commits or waiters.consumers):
                waiters.on_high_watermark(mark, _estimated_bytes(log, mark - before) if waiters.consumers else 0)

    def recheck(self) -> None:
        """Something that the high watermark depends on may have changed: a broker died, or time has passed."""
        if self._log is not None and self.leading is not None and self._log.high_watermark < self._log.log_end_offset:
            self._advance(self._log)
        if self.waiters.deletions:
            self.waiters.on_low_watermark(self.low_watermark())

    def follow_disk(self, log: Log) -> None:
        """The high watermark goes where the synced part of the log ends, until that is its end."""
        if self._following is None and log.countable_offset < log.log_end_offset:
            self._following = asyncio.get_running_loop().create_task(
                self._follow_disk(log), name=f"high watermark of {self.topic}-{self.index}"
            )

    async def _follow_disk(self, log: Log) -> None:
        try:
            while log.countable_offset < log.log_end_offset:
                await make_countable(log)
                if not self.is_leader and self.image.replicas != (self.node_id,):
                    return  # a follower waits by itself before it names what has come meanwhile
                self._advance(log)
        except KafkaError as error:
            self.waiters.fail(error)  # the disk failed or the log was closed
        finally:
            self._following = None

    async def committed(self, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Returns when the high watermark has passed everything below `offset`.

        Raises if that won't be: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS_AFTER_APPEND, KAFKA_STORAGE_ERROR. Whoever
        asks later than it appended names the epoch: led by another since, the log may hold other records there.
        """
        waiting = self.when_committed(offset, leader_epoch)
        if waiting is not None:
            await waiting

    def when_committed(self, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> asyncio.Future[None] | None:
        """What `committed` waits for; None if there is nothing to wait for."""
        log = self.log
        if leader_epoch not in (NO_LEADER_EPOCH, self.image.leader_epoch):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"The leader epoch is {self.image.leader_epoch} by now.")
        if log.high_watermark >= offset:
            return None
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"The leader is node {self.image.leader}.")
        log.check_writable()
        return self.waiters.commit(offset)

    # Followers of ours.

    def has_follower(self, replica_id: int) -> bool:
        return self.leading is not None and replica_id in self.leading.followers

    def on_replica_fetch(self, replica_id: int, broker_epoch: int, offset: int, log_start: int) -> None:
        """A follower with its registered epoch has everything below `offset`. Call before reading: the answer
        then tells the new mark.
        """
        leading, log, host = self.leading, self.log, self._host
        follower = leading.followers.get(replica_id) if leading is not None else None
        if leading is None or follower is None:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"Node {replica_id} holds no replica of this, as far as is known here.",
            )
        follower.broker_epoch = broker_epoch
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
        """Whether a follower in sync is at the end and knows it all; if so, it is caught up now (None: not asked now).

        For sessions of thousands of partitions: most of them have nothing to say in most of the fetches.
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
        """Whether the in-sync set is to shrink."""
        leading = self.leading
        if leading is None or self.log.offline:
            return False  # nobody can follow a disk that failed: those in sync are who is left to lead
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
                    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, f"{len(leading.isr)} in-sync replicas are left: retry."
                )
            )

    # Deleting records.

    def low_watermark(self) -> int:
        start = self.log.log_start_offset
        return start if self.leading is None else self.leading.low_watermark(start, self._host.is_alive)

    def delete_before(self, offset: int) -> asyncio.Future[None] | None:
        """Moves the log start. What to wait for until all living replicas have done so; None if they have."""
        log = self.leader_log()
        log.advance_log_start_offset(offset)
        if self.low_watermark() >= offset:
            return None
        future = self.waiters.deletion(offset)
        self.waiters.answer_followers()  # they hear of the new log start now, not with the next record
        return future


def _estimated_bytes(log: Log, records: int) -> int:
    """What so many records are about; a poll that waits for more than the next ones goes by it."""
    return max(1, records * log.size // max(1, log.log_end_offset - log.log_start_offset))
