"""One partition as its leader serves it: the log, its epoch, and who waits for what on it.

Order of an append, all in one pass of the loop: the log takes the batch, the high watermark moves as far as the
in-sync replicas allow (here: to the end of the log, the node being the only replica), then the parked fetches are
told. An answer with acks=all therefore never goes out before the record is visible to consumers. Where a topic's
acknowledgements promise fsync, a replica counts what it has synced: the high watermark follows the disk, and
everybody who waits for it (consumers, coordinators, markers) gets the same promise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.log.log import AppendOrigin
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.log.log import AppendInfo, Log
    from penstock.log.producers import Verification
    from penstock.metadata.image import PartitionImage

NO_EPOCH = -1


class Waiter(Protocol):
    def notify(self, appended_bytes: int) -> None:
        """More can be read: about this many bytes."""
        ...

    def abandon(self) -> None:
        """The partition is going away: answer now with what there is."""
        ...


class Partition:
    __slots__ = ("_following", "_log", "_open_log", "_waiters", "image", "index", "node_id", "topic", "topic_id")

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        image: PartitionImage,
        node_id: int,
        open_log: Callable[[Partition], Log],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.image = image
        self.node_id = node_id
        self._open_log = open_log
        self._log: Log | None = None
        self._waiters: dict[Waiter, None] | None = None
        self._following: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index})"

    @property
    def log(self) -> Log:
        """Opened or created on first use, so that ten thousand new partitions don't hold up the loop at once."""
        log = self._log
        if log is None:
            log = self._log = self._open_log(self)
        return log

    @property
    def is_open(self) -> bool:
        return self._log is not None

    @property
    def leader_epoch(self) -> int:
        return self.image.leader_epoch

    @property
    def acks_need_fsync(self) -> bool:
        return self.log.config.fsync_before_ack

    def leader_log(self, current_leader_epoch: int = NO_EPOCH) -> Log:
        """The log, if this node leads the partition in the epoch that the client believes in."""
        image = self.image
        if current_leader_epoch != NO_EPOCH and current_leader_epoch != image.leader_epoch:
            if current_leader_epoch < image.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"The leader epoch is {image.leader_epoch}.")
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"The leader epoch is {image.leader_epoch}.")
        if image.leader != self.node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"The leader is node {image.leader}.")
        return self.log

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at this offset, or the one the next record will have."""
        epochs = self.log.epochs
        return self.image.leader_epoch if offset >= self.log.log_end_offset else epochs.epoch_for_offset(offset)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch at or below this one and where it ends; (-1, -1) if nothing is known of it.

        The leader's own epoch begins with its leadership, before its first batch puts it into the log's list.
        """
        log = self.log
        if epoch == self.image.leader_epoch:
            return epoch, log.log_end_offset
        latest = log.epochs.latest_epoch
        if latest is None and NO_EPOCH != epoch < self.image.leader_epoch:
            return epoch, log.log_end_offset
        if latest is not None and latest <= epoch < self.image.leader_epoch:
            return latest, log.log_end_offset
        return log.epochs.end_offset_for(epoch, log.log_end_offset)

    def append(
        self,
        records: Buffer,
        *,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        required_acks: int = 1,
        verification: Verification | None = None,
        transaction_version: int = -1,
    ) -> AppendInfo:
        """A client's transactional batch needs `verification`, unless its transaction is open here already."""
        log = self.leader_log()
        if required_acks == -1 and len(self.image.isr) < log.config.min_insync_replicas:
            have, need = len(self.image.isr), log.config.min_insync_replicas
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{have} in-sync replicas: min.insync.replicas={need}.")
        before = log.size
        info = log.append_as_leader(
            records,
            leader_epoch=self.image.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            verification=verification,
            verification_required=True,
            transaction_version=transaction_version,
        )
        if not info.duplicate:
            if self.acks_need_fsync:
                self.follow_disk(log)
            else:
                log.update_high_watermark(log.log_end_offset)
                if self._waiters:
                    self._notify(log.size - before)
        return info

    def follow_disk(self, log: Log) -> None:
        """The high watermark goes where the synced part of the log ends, until that is its end."""
        if self._following is None and log.high_watermark < log.log_end_offset:
            self._following = asyncio.get_running_loop().create_task(
                self._follow_disk(log), name=f"high watermark of {self.topic}-{self.index}"
            )

    async def _follow_disk(self, log: Log) -> None:
        try:
            while log.high_watermark < log.log_end_offset:
                await log.flushed(log.log_end_offset)
                before = log.high_watermark
                log.update_high_watermark(log.flushed_offset)
                self._notify(log.high_watermark - before)
        except KafkaError:
            pass  # the disk failed or the log was closed: whoever waits for it is told so elsewhere
        finally:
            self._following = None

    async def committed(self, offset: int) -> None:
        """Returns when the high watermark has passed everything below `offset`. Raises if the disk fails first."""
        if self.acks_need_fsync and self.log.high_watermark < offset:
            await self.log.flushed(offset)

    def _notify(self, appended_bytes: int) -> None:
        for waiter in tuple(self._waiters or ()):
            waiter.notify(appended_bytes)

    def park(self, waiter: Waiter) -> None:
        if self._waiters is None:
            self._waiters = {}
        self._waiters[waiter] = None

    def unpark(self, waiter: Waiter) -> None:
        if self._waiters:
            self._waiters.pop(waiter, None)

    def release_waiters(self) -> None:
        for waiter in tuple(self._waiters or ()):
            waiter.abandon()
