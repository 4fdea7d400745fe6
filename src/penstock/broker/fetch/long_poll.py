"""Serves a Fetch: locates records in its partitions. If there are too few bytes, parks the fetch and tries again.

To locate records is to find their segment, position and size. The bytes are read once, just before the response is
sent: on the event loop if they are few and in the page cache, otherwise in a thread. Consumers read up to the high
watermark or the last stable offset, and park until this offset moves. Followers read up to the end of the log, and park
until records are appended. A follower's fetch offset advances the high watermark before the follower gets its response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.broker.replicas.partition import Partition
from penstock.net.later import Later
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import CONSUMER_REPLICA, NO_BROKER_EPOCH, NO_LEADER_EPOCH, NO_REPLICA, READ_COMMITTED

if TYPE_CHECKING:
    from penstock.broker.fetch.fetch_sessions import Wanted
    from penstock.broker.replicas.partitions import Partitions
    from penstock.log.log import Log, LogSlice
    from penstock.log.txn_index import AbortedTransaction
    from penstock.net.limits import ByteBudget

R = TypeVar("R")

NOWHERE = -1  # as upper bound of a read: no record may be read
UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
#: Up to this many bytes are copied out of the page cache on the event loop, at 2 ms per megabyte; a larger answer is
#: read in a thread.
READ_AT_ONCE = 8 * 1024 * 1024
MAX_WAIT_MS = 600_000  # upper limit of a request's max_wait_ms; the client then polls again


class PartitionRead:
    """Holds the located records of one partition of a Fetch, with its offsets or its error."""

    __slots__ = (
        "aborted",
        "diverging",
        "error",
        "has_news",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "partition",
        "preferred",
        "slice",
        "wanted",
    )

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.partition: Partition | None = None
        self.error = ErrorCode.NONE
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.slice: LogSlice | None = None
        self.aborted: list[AbortedTransaction] | None = None
        self.diverging: tuple[int, int] | None = None
        self.preferred = NO_REPLICA
        self.has_news = False

    def fail(self, error: KafkaError) -> None:
        """Sets the partition's error, such as a failed disk or a damaged record.

        The fetch continues with the other partitions.
        """
        self.error, self.slice = error.code, None

    def found(self, log: Log, piece: LogSlice | None) -> None:
        self.slice = piece
        self.high_watermark = log.high_watermark
        self.last_stable_offset = log.last_stable_offset
        self.log_start_offset = log.log_start_offset

    @property
    def unknown(self) -> bool:
        """Returns True if the partition does not exist.

        An unknown partition does not keep the fetch from parking at its other partitions: otherwise the client would
        fetch in a tight loop. All other errors are sent to the client at once.
        """
        return self.partition is None and self.error in UNKNOWN

    @property
    def size(self) -> int:
        return self.slice.size if self.slice is not None else 0


@dataclass(frozen=True, slots=True)
class Reader:
    """Describes the sender of a Fetch: a follower or a consumer, and what it may read."""

    replica_id: int = CONSUMER_REPLICA
    broker_epoch: int = NO_BROKER_EPOCH
    any_replica: bool = False
    #: Returns the replica that the consumer should read from at this offset instead, or NO_REPLICA (KIP-392).
    prefer: Callable[[Partition, int], int] | None = None
    #: True if a new high watermark is sent to the follower without delay, because consumers read from followers.
    wants_marks: bool = False
    #: Returns True if a throttled follower gets no records of this partition now.
    holds_back: Callable[[Partition, int], bool] | None = None
    #: Returns True if the consumer may not read the topic; None where every client may read every topic.
    denies: Callable[[str], bool] | None = None
    #: Why this fetch is not accepted as a follower's, although it names a replica id.
    refusal: KafkaError | None = None

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0 and self.refusal is None


ANY_CONSUMER = Reader()


class Fetching:
    """Serves one Fetch, from the search for records to the response."""

    __slots__ = (
        "_finish",
        "_future",
        "_missing",
        "_parked",
        "_timer",
        "_woken",
        "again",
        "by_id",
        "isolation",
        "max_bytes",
        "min_bytes",
        "partitions",
        "quiet",
        "reader",
        "unsent",
        "wanted",
    )

    def __init__(
        self,
        partitions: Partitions,
        wanted: Sequence[Wanted],
        *,
        min_bytes: int,
        max_bytes: int,
        isolation: int,
        by_id: bool = False,
        reader: Reader = ANY_CONSUMER,
        unsent: ByteBudget | None = None,
    ) -> None:
        """Creates the fetch. `unsent` limits the memory for all responses that wait to be sent; None means no limit."""
        self.partitions = partitions
        self.wanted = wanted
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation = isolation
        self.by_id = by_id
        self.reader = reader
        self.unsent = unsent
        self.again = False  # in the second pass: a follower's fetch offsets were counted in the first
        self._woken = False
        self._finish: Callable[[list[PartitionRead], list[Any]], Any] | None = None
        self._future: asyncio.Future[Any] | None = None
        self._parked: list[Partition] = []
        self.quiet: list[Partition] = []  # partitions in which the follower has all records and offsets
        self._timer: asyncio.TimerHandle | None = None
        self._missing = 0

    def run(self, max_wait_ms: int, finish: Callable[[list[PartitionRead], list[Any]], R]) -> R | Later[R]:
        """Returns the response that `finish` builds.

        If the fetch has to wait, returns a `Later`: a response that is made after the wait.
        """
        self._finish = finish
        reads, total, urgent = self.pass_over(self.wanted)
        nothing_there = not self.quiet and all(read.unknown for read in reads)
        if urgent or total >= self.min_bytes or max_wait_ms <= 0 or nothing_there:
            answer: R | Later[R] = self._answer(reads)
            return answer
        loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        self.again = True
        self._missing = self.min_bytes - total
        self._parked = [read.partition for read in reads if read.partition is not None] + self.quiet
        from_follower = self.reader.replica_id >= 0
        for partition in self._parked:
            partition.waiters.park(self, from_follower=from_follower)
        self._timer = loop.call_later(min(max_wait_ms, MAX_WAIT_MS) / 1000, self.abandon)
        future.add_done_callback(self._unpark)
        return Later(future)

    def notify(self, appended_bytes: int) -> None:
        """Counts appended bytes, and ends the fetch's wait when there are enough bytes.

        The response is built only after the request that appended these bytes is done, because this request may append
        to several partitions of the fetch.
        """
        self._missing -= appended_bytes
        if self._missing <= 0 and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self.abandon)

    def abandon(self) -> None:
        """Ends the wait of a parked fetch: locates records once more and responds with the available records."""
        future, self._future = self._future, None  # a second call does nothing, while a thread reads the answer
        if future is None or future.done():
            return
        self._unpark()
        self.quiet = []
        try:
            answer = self._answer(self.pass_over(self.wanted)[0])
        except Exception as error:  # fails this fetch, not the request whose append woke it
            future.set_exception(error)
            return
        if isinstance(answer, Later):
            task = asyncio.ensure_future(answer.source)
            task.add_done_callback(lambda done: _copy(done, future))
        else:
            future.set_result(answer)

    def _unpark(self, _: object = None) -> None:
        for partition in self._parked:
            partition.waiters.unpark(self)
        self._parked = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pass_over(self, some: Sequence[Wanted], total: int = 0) -> tuple[list[PartitionRead], int, bool]:
        """Locates the records of the partitions in `some`, without reading them.

        `total` is the number of bytes that were already located in other partitions. Returns a `PartitionRead` for each
        partition, the new total, and True if the response must be sent without waiting. A partition without news for a
        follower is added to the list `quiet` instead.
        """
        reads: list[PartitionRead] = []
        urgent = False
        # The first batch is returned even if it exceeds the share: a client makes progress even while other clients
        # fill the budget, because they don't read their answers. The server closes the connections of such clients.
        max_bytes = self.max_bytes if self.unsent is None else min(self.max_bytes, self.unsent.share)
        now_ms = None if self.again else int(asyncio.get_running_loop().time() * 1000)
        for wanted in some:
            if wanted.quiet is not None and self._is_quiet(wanted, wanted.quiet, now_ms):
                self.quiet.append(wanted.quiet)
                continue
            read = PartitionRead(wanted)
            reads.append(read)
            try:
                self._read(read, max_bytes - total, whole_batch=total == 0)
            except KafkaError as error:
                read.fail(error)
                urgent = urgent or not read.unknown
            total += read.size
            urgent = urgent or read.diverging is not None or read.preferred != NO_REPLICA or read.has_news
        return reads, total, urgent

    def _read(self, read: PartitionRead, budget: int, *, whole_batch: bool) -> None:
        wanted = read.wanted
        reader = self.reader
        if self.by_id:
            partition = self._by_id(wanted)
            if reader.denies is not None:
                _check_access(reader.denies, partition.topic)
        else:
            if reader.denies is not None:  # before the look-up: the answer must not say whether the topic exists
                _check_access(reader.denies, wanted.topic)
            partition = self.partitions.get(wanted.topic, wanted.partition)
        read.partition = partition
        if reader.replica_id >= 0:
            self._read_as_follower(read, partition, budget, whole_batch=whole_batch)
            return
        log = (partition.replica_log if reader.any_replica else partition.leader_log)(wanted.current_leader_epoch)
        if wanted.last_fetched_epoch != NO_LEADER_EPOCH and self._diverged(read, partition):
            return
        upper = log.last_stable_offset if self.isolation == READ_COMMITTED else log.high_watermark
        limit = max(0, min(wanted.max_bytes, budget))
        if reader.prefer is not None:
            read.preferred = reader.prefer(partition, wanted.fetch_offset)
            if read.preferred != NO_REPLICA:
                upper, limit = NOWHERE, 0
        found = log.read(wanted.fetch_offset, limit, upper_bound=upper, min_one_batch=whole_batch)
        read.found(log, found)
        if self.isolation == READ_COMMITTED and found.size:
            read.aborted = found.aborted(wanted.fetch_offset, upper)

    def _read_as_follower(self, read: PartitionRead, partition: Partition, budget: int, *, whole_batch: bool) -> None:
        wanted, reader = read.wanted, self.reader
        log = partition.leader_log(wanted.current_leader_epoch)
        if reader.refusal is not None:
            raise KafkaError(reader.refusal.code, reader.refusal.message)
        if wanted.last_fetched_epoch != NO_LEADER_EPOCH and self._diverged(read, partition):
            return  # the follower's records differ from the leader's: its fetch offset does not count
        end = log.log_end_offset
        limit = max(0, min(wanted.max_bytes, budget))
        if reader.holds_back is not None and reader.holds_back(partition, reader.replica_id):
            end, limit = NOWHERE, 0
        found = log.read(wanted.fetch_offset, limit, upper_bound=end, min_one_batch=whole_batch)
        if not partition.has_follower(reader.replica_id) and wanted.current_leader_epoch != NO_LEADER_EPOCH:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"This node's metadata does not list broker {reader.replica_id} as a replica yet: retry.",
            )
        if not self.again:
            partition.on_replica_fetch(
                reader.replica_id, reader.broker_epoch, wanted.fetch_offset, wanted.log_start_offset
            )
        read.found(log, found)

        read.has_news = reader.wants_marks and log.high_watermark > wanted.last_high_watermark
        if not found.size and reader.holds_back is None:
            wanted.quiet = partition

    def _is_quiet(self, wanted: Wanted, partition: Partition, now_ms: int | None) -> bool:
        log_start, reader = wanted.last_log_start_offset, self.reader
        return (
            reader.refusal is None
            and partition.leader_epoch == wanted.current_leader_epoch
            and wanted.last_high_watermark == wanted.fetch_offset
            and partition.is_quiet(reader.replica_id, reader.broker_epoch, wanted.fetch_offset, log_start, now_ms)
        )

    def _by_id(self, wanted: Wanted) -> Partition:
        try:
            partition = self.partitions.get_by_id(wanted.topic_id, wanted.partition)
        except KafkaError as error:
            if wanted.name is None or error.code is not ErrorCode.UNKNOWN_TOPIC_ID:
                raise
            # The session has the topic's name: the topic was deleted, or deleted and created again.
            self.partitions.get(wanted.name, wanted.partition)
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, "The topic was deleted and created again: refresh the metadata."
            ) from None
        wanted.name = partition.topic
        return partition

    @staticmethod
    def _diverged(read: PartitionRead, partition: Partition) -> bool:
        wanted, log = read.wanted, partition.log
        epoch, end_offset = partition.epoch_end(wanted.last_fetched_epoch)
        if epoch == -1 or end_offset == -1:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"This replica does not know leader epoch {wanted.last_fetched_epoch}: reset the fetch offset.",
            )
        if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
            if not partition.is_leader and end_offset >= log.high_watermark:
                # This replica may lag, or may have records to truncate: only the leader knows.
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"This replica may not have offset {wanted.fetch_offset} yet: fetch from the leader.",
                )
            read.diverging = (epoch, end_offset)
            read.found(log, None)
            return True
        return False

    def _answer(self, reads: list[PartitionRead]) -> Any:
        if sum(read.size for read in reads) > READ_AT_ONCE:
            return Later(self._answer_cold(reads))
        chunks: list[Any] = []
        for read in reads:
            if not read.size:
                chunks.append(b"")
                continue
            assert read.slice is not None
            try:
                data = read.slice.read_cached()
            except KafkaError as error:
                read.fail(error)
                data = b""
            if data is None:
                return Later(self._answer_cold(reads))
            chunks.append(data)
        assert self._finish is not None
        return self._finish(reads, chunks)

    async def _answer_cold(self, reads: list[PartitionRead]) -> Any:
        if self.unsent is None:
            return await self._read_cold(reads)
        size = sum(read.size for read in reads)
        self.unsent.take(size)
        try:
            return await self._read_cold(reads)
        finally:
            self.unsent.give_back(size)

    async def _read_cold(self, reads: list[PartitionRead]) -> Any:
        chunks: list[Any] = []
        for read in reads:
            try:
                chunks.append(await read.slice.read() if read.size and read.slice is not None else b"")
            except KafkaError as error:
                read.fail(error)
                chunks.append(b"")
        assert self._finish is not None
        return self._finish(reads, chunks)


def _copy(done: asyncio.Task[Any], future: asyncio.Future[Any]) -> None:
    if future.done():
        return
    if done.cancelled():
        future.cancel()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


def _check_access(denies: Callable[[str], bool], topic: str) -> None:
    if denies(topic):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"The client may not read {topic}: add an ACL for READ.")
