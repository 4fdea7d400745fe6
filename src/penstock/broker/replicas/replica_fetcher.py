"""Follows the partitions that one other node leads: sends one Fetch at a time and appends the fetched records.

The leader keeps a fetch session, so a request names only partitions with a new position. After an error a partition
leaves the session and pauses; the other partitions continue. Memory is bounded by the size of one response.

The leader may park a fetch for `replica.fetch.wait.max.ms`. Partitions that are added meanwhile, as after a failover,
don't wait for the parked fetch: the fetcher abandons it, and begins a new session on its second connection to the
leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, assert_never

from penstock.broker.events import Observer, log_event
from penstock.broker.replicas.followed_partition import Counts, FollowedPartition, FollowerLag
from penstock.broker.replicas.partition_host import OPEN_SLICE_SECONDS
from penstock.log.flush import make_countable
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import (
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from penstock.protocol.messages.api_02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.protocol.vocabulary import EARLIEST, LATEST
from penstock.replication import follower
from penstock.replication.fetch_session import NO_SESSION, Key, ReplicaSession
from penstock.replication.follower import Answer, Trouble

if TYPE_CHECKING:
    from penstock.broker.peers.peers import Call, Peers
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.replicas.throttle import Throttle
    from penstock.metadata.configs.settings import Settings

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.005  # maximum time that a response's appends keep the event loop busy


def _ignore_result(abandoned: asyncio.Future[Any]) -> None:
    """Retrieves the exception of an abandoned fetch. Otherwise asyncio would log it as never retrieved."""
    if not abandoned.cancelled():
        abandoned.exception()


class ReplicaFetcher:
    def __init__(
        self,
        node_id: int,
        leader_id: int,
        number: int,
        *,
        peers: Peers,
        settings: Settings,
        broker_epoch: Callable[[], int],
        throttle: Throttle,
        counts: Counts,
        observer: Observer = log_event,
    ) -> None:
        self._node_id = node_id
        self.leader_id = leader_id
        self.number = number
        self._peers = peers
        self._settings = settings
        self._broker_epoch = broker_epoch
        self._throttle = throttle
        self._counts = counts
        self._observer = observer
        self._followed: dict[Key, FollowedPartition] = {}
        self._paused: dict[Key, None] = {}
        self._session = ReplicaSession()
        self._lane = 0
        self._failures = 0
        self._answered_at = asyncio.get_running_loop().time()
        self._partition_added = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._call: Call | None = None  # the fetch in flight
        self._abandoned: asyncio.Future[Any] | None = None  # an earlier fetch whose answer is ignored

    def __len__(self) -> int:
        return len(self._followed)

    def lag(self) -> FollowerLag:
        """Returns how far the followed partitions are behind the leader."""
        now, lag = asyncio.get_running_loop().time(), FollowerLag()
        lag.answered_ms_ago = int((now - self._answered_at) * 1000)
        for each in self._followed.values():
            if each.lag:
                lag.add(each.lag, int((now - each.behind_since) * 1000))
        return lag

    # --- followed partitions

    def add(self, partition: Partition) -> None:
        known = self._followed.get((partition.topic_id, partition.index))
        if known is not None and known.partition is partition and known.leader_epoch == partition.leader_epoch:
            return
        entry = FollowedPartition(partition, partition.leader_epoch, self._counts, self._observer)
        if known is not None:
            self._paused.pop(entry.key, None)
        self._followed[entry.key] = entry
        self._session.come_back(entry.key)
        if partition.is_open:
            self._session.mention(entry.key)
        else:
            self._pause(entry, 0.0)  # a few logs are opened in each round: thousands at once would block the loop
        self._partition_added.set()
        self._abandon_parked()
        if self._task is None:
            name = f"follow node {self.leader_id}, {self.number}"
            self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    def remove(self, partition: Partition) -> None:
        entry = self._followed.get((partition.topic_id, partition.index))
        if entry is not None and entry.partition is partition:
            self._drop(entry)

    def _drop(self, entry: FollowedPartition) -> None:
        del self._followed[entry.key]
        self._paused.pop(entry.key, None)
        self._session.leave(entry.key)

    async def close(self) -> None:
        self._followed.clear()
        ending = [each for each in (self._task, self._abandoned) if each is not None]
        for each in ending:
            each.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    # --- rounds

    async def _run(self) -> None:
        while True:
            try:
                await self._round()
            except Exception:
                logger.exception("the replica fetcher for leader %d failed and retries", self.leader_id)
                self._session.begin()
                await asyncio.sleep(self._settings.int("replica.fetch.backoff.ms") / 1000)

    async def _round(self) -> None:
        loop = asyncio.get_running_loop()
        self._partition_added.clear()
        wake_at = self._resume(loop.time())
        await self._sync_tails()
        if len(self._paused) < len(self._followed):
            request = self._request(wake_at, loop.time())
            answer = await self._ask(request) if request is not None else None
            if answer is not None:
                await self._take(answer)
        else:
            await self._sleep(None if wake_at is None else wake_at - loop.time())

    async def _sync_tails(self) -> None:
        """Fsyncs the records of topics that require fsync before an acknowledgement.

        Called before each Fetch, because the leader counts all records below the fetch offset as synced.
        """
        while tails := self._unsynced_tails():
            for entry in tails:
                try:
                    await make_countable(entry.partition.log)
                except KafkaError as error:
                    self._broken(entry, error)

    def _unsynced_tails(self) -> list[FollowedPartition]:
        found: list[FollowedPartition] = []
        for key in self._followed if self._session.begins else self._session.changed:
            if key in self._paused:
                continue
            try:
                if self._followed[key].has_unsynced_tail:
                    found.append(self._followed[key])
            except KafkaError:
                continue  # `_request` gets the same error and handles it
        return found

    def _resume(self, now: float) -> float | None:
        """Adds the partitions whose pause is over to the next Fetch, and opens their logs.

        Returns the end of the next pause; None if no partition is paused. The time for opening logs is limited: the
        remaining partitions stay paused until the next call.
        """
        self._hold_back_throttled(now)
        if not self._paused:
            return None
        clock, opened = asyncio.get_running_loop().time, 0
        for key in [key for key in self._paused if self._followed[key].not_before <= now]:
            partition = self._followed[key].partition
            if not partition.is_open:
                if opened and clock() >= now + OPEN_SLICE_SECONDS:
                    continue
                opened += 1
                with suppress(KafkaError):  # `_request` gets the same error and handles it
                    _ = partition.log
            del self._paused[key]
            self._session.mention(key)
        return min((self._followed[key].not_before for key in self._paused), default=None)

    def _hold_back_throttled(self, now: float) -> None:
        if not self._throttle.limited or (excess_ms := self._throttle.excess_ms()) <= 0:
            return
        for entry in list(self._followed.values()):
            if entry.key not in self._paused and self._is_throttled(entry.partition):
                self._pause(entry, now + excess_ms / 1000)

    def _is_throttled(self, partition: Partition) -> bool:
        return self._node_id not in partition.image.isr and self._throttle.concerns(partition)

    async def _sleep(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(None if seconds is None else max(0.001, seconds)):
                await self._partition_added.wait()
        except TimeoutError:
            pass

    def _pause(self, entry: FollowedPartition, until: float) -> None:
        entry.not_before = until
        self._paused[entry.key] = None
        self._session.leave(entry.key)

    # --- requests

    def _request(self, wake_at: float | None, now: float) -> FetchRequest | None:
        """Returns the next Fetch request; None if all partitions are paused.

        `wake_at` is the time at which the next pause of a partition ends. The leader may not park the fetch beyond this
        time.
        """
        settings, session = self._settings, self._session
        max_bytes = settings.int("replica.fetch.max.bytes")
        topics: dict[bytes, FetchTopic] = {}
        for key in session.due(key for key in self._followed if key not in self._paused):
            entry = self._followed[key]
            try:
                asked = entry.position(max_bytes)
            except KafkaError as error:
                self._give_up(entry, error)
                continue
            topics.setdefault(key[0], FetchTopic(topic_id=key[0])).partitions.append(asked)
            session.named(key)
        if len(self._paused) == len(self._followed):
            return None
        max_wait_ms = settings.int("replica.fetch.wait.max.ms")
        if wake_at is not None:
            max_wait_ms = max(1, min(max_wait_ms, int((wake_at - now) * 1000)))
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=self._broker_epoch()),
            max_wait_ms=max_wait_ms,
            min_bytes=settings.int("replica.fetch.min.bytes"),
            max_bytes=settings.int("replica.fetch.response.max.bytes"),
            session_id=session.id,
            session_epoch=session.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=session.ask(),
        )

    def _give_up(self, entry: FollowedPartition, error: KafkaError) -> None:
        """Stops following a partition after an error of this node's disk.

        The partition is followed again in the next leader epoch, or after a restart.
        """
        logger.error("%s is no longer followed: %s", entry.partition, error)
        self._drop(entry)

    async def _ask(self, request: FetchRequest) -> FetchResponse | None:
        """Sends a Fetch and returns the response; None after an error, or if the fetch was abandoned."""
        self._counts.requests += 1
        timeout_ms = self._settings.int("replica.socket.timeout.ms")
        lane = f"replica-{self.number}-{self._lane}"
        try:
            call = self._call = self._peers.begin(self.leader_id, request, lane=lane, timeout_ms=timeout_ms)
            self._abandon_parked()  # a partition may have been added while the request was built
            answer: FetchResponse | None = await call.answer()
        except KafkaError as error:
            await self._failed(error)
            return None
        finally:
            self._call = None
        if answer is None:
            self._lane = 1 - self._lane
            self._session.begin()
            return None
        if answer.error_code:
            await self._failed(KafkaError(ErrorCode(answer.error_code), "The leader refused the fetch."))
            return None
        self._failures = 0
        self._answered_at = asyncio.get_running_loop().time()
        self._session.answered(answer.session_id)
        return answer

    def _abandon_parked(self, _: object = None) -> None:
        """Abandons the fetch in flight if partitions were added, because they should not wait for its response.

        Only one fetch is abandoned at a time, so that abandoned fetches don't pile up at the leader.
        """
        call = self._call
        if call is None or call.future.done() or not self._partition_added.is_set():
            return
        if self._abandoned is None or self._abandoned.done():
            self._abandoned = call.leave()
            self._abandoned.add_done_callback(_ignore_result)
            self._abandoned.add_done_callback(self._abandon_parked)

    async def _failed(self, error: KafkaError) -> None:
        self._counts.errors += 1
        if self._session.failed(error.code) and self._failures == 0:
            self._failures = 1
            return
        backoff_ms = self._settings.int("replica.fetch.backoff.ms")
        pause_ms = follower.pause_ms(follower.trouble(error.code), self._failures, backoff_ms)
        self._failures += 1
        level = logging.INFO if self._failures == 1 else logging.DEBUG
        logger.log(level, "the fetch from leader %d failed, retrying: %s", self.leader_id, error)
        await asyncio.sleep(pause_ms / 1000)

    # --- answers

    async def _take(self, answer: FetchResponse) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SLICE_SECONDS
        for topic in answer.responses:
            for data in topic.partitions:
                entry = self._followed.get((topic.topic_id, data.partition_index))
                if entry is None or entry.key in self._paused or not entry.follows(self.leader_id):
                    continue
                try:
                    await self._take_one(entry, data)
                except KafkaError as error:
                    self._broken(entry, error)
                    continue
                except Exception:  # fails this partition only; the others in the answer continue
                    logger.exception("%s: the leader's answer could not be applied, retrying", entry.partition)
                    self._trouble(entry, Trouble.LATER)
                    continue
                if loop.time() >= deadline:
                    await asyncio.sleep(0)
                    deadline = loop.time() + SLICE_SECONDS

    def _broken(self, entry: FollowedPartition, error: KafkaError) -> None:
        if self._followed.get(entry.key) is not entry:
            return
        if follower.is_final(error.code):
            self._give_up(entry, error)
        else:
            logger.error("%s: the leader's records could not be appended, retrying: %s", entry.partition, error)
            self._trouble(entry, Trouble.LATER)

    async def _take_one(self, entry: FollowedPartition, data: PartitionData) -> None:
        if data.error_code:
            await self._refused(entry, ErrorCode(data.error_code))
            return
        match entry.answer(data):
            case Answer.APPEND:
                self._append(entry, data)
            case Answer.TRUNCATE:
                self._truncate(entry, data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
            case Answer.STALE:
                pass
            case kind:
                assert_never(kind)

    def _append(self, entry: FollowedPartition, data: PartitionData) -> None:
        size, moved = entry.append(data)
        if size:
            if self._session.id == NO_SESSION:
                # Without a session the leader fills its answer in the order of the request and may stop before the
                # end: a partition that got records moves to the end. In a session the leader rotates partitions.
                self._followed[entry.key] = self._followed.pop(entry.key)
            if self._throttle.limited and self._throttle.concerns(entry.partition):
                self._throttle.record(size)
        if moved:
            self._session.mention(entry.key)

    def _truncate(self, entry: FollowedPartition, epoch: int, end_offset: int) -> None:
        if entry.truncate(epoch, end_offset):
            self._session.mention(entry.key)
        else:
            self._trouble(entry, Trouble.LATER)  # an unchanged request would get the same answer

    async def _refused(self, entry: FollowedPartition, code: ErrorCode) -> None:
        self._counts.errors += 1
        kind = follower.trouble(code)
        if kind is Trouble.OUT_OF_RANGE:
            try:
                await self._reset(entry)
                return
            except KafkaError as error:
                code = error.code
                kind = Trouble.LATER
        logger.debug("%s: leader %d answered %s", entry.partition, self.leader_id, code.name)
        self._trouble(entry, kind)

    def _trouble(self, entry: FollowedPartition, kind: Trouble) -> None:
        if self._followed.get(entry.key) is not entry:
            return
        pause_ms = entry.next_pause_ms(kind, self._settings.int("replica.fetch.backoff.ms"))
        self._pause(entry, asyncio.get_running_loop().time() + pause_ms / 1000)

    async def _reset(self, entry: FollowedPartition) -> None:
        """Asks the leader for the start and end of its log, and moves the end of this replica's log into that range."""
        end = await self._leader_offset(entry, LATEST)
        start = await self._leader_offset(entry, EARLIEST)
        if self._followed.get(entry.key) is not entry or not entry.follows(self.leader_id):
            return
        if entry.reset(start, end):
            self._session.mention(entry.key)
        else:
            self._trouble(entry, Trouble.SOON)  # already within the bounds, or the leader lacks this log's last epoch

    async def _leader_offset(self, entry: FollowedPartition, timestamp: int) -> int:
        partition = entry.partition
        asked = ListOffsetsPartition(
            partition_index=partition.index, current_leader_epoch=entry.leader_epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=self._node_id, topics=[ListOffsetsTopic(name=partition.topic, partitions=[asked])]
        )
        answer: ListOffsetsResponse = await self._peers.ask(
            self.leader_id,
            request,
            lane=f"replica-{self.number}-{self._lane}",
            timeout_ms=self._settings.int("replica.socket.timeout.ms"),
        )
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise KafkaError(ErrorCode(found.error_code), "The leader refused the ListOffsets request: retry.")
        return found.offset
