"""Keeps fetch sessions (KIP-227): the broker stores a client's partitions, and a Fetch names only changed partitions.

A session has an id, an epoch, and partitions in fetch order. A request with epoch 0 opens a session; -1 closes the
session, or fetches without a session; any other epoch must be the session's next epoch. After a lost or repeated
request the client gets INVALID_FETCH_SESSION_EPOCH and opens a new session. Partitions that returned data move to the
back of the order, so that a busy partition does not keep the other partitions from being read.

The number of sessions, and of partitions in all sessions, is limited. At the limit, the least recently used sessions
are evicted if they were idle for `EVICTION_MS`. If all sessions were used more recently, the client gets no session.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.broker.replicas.partition import Partition
from penstock.broker.requests.error_replies import clone
from penstock.broker.requests.slices import SLICE_PARTITIONS, Slices, starts
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from penstock.disk.api import Disk

EVICTION_MS = 120_000
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NOT_INCREMENTAL = (INITIAL_EPOCH, FINAL_EPOCH)
NO_SESSION = 0
DEFAULT_MAX_PARTITIONS = 500_000

Key = tuple[bytes | str, int]  # topic id (or name before v13), partition


class Wanted:
    """Holds one partition that a client fetches, and the offsets that the last response had for this partition."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "last_high_watermark",
        "last_log_start_offset",
        "log_start_offset",
        "max_bytes",
        "name",
        "partition",
        "quiet",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: bytes, spec: FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.name: str | None = None  # the last known name of a topic that is fetched by id
        self.partition = spec.partition
        self.last_high_watermark = -1
        self.last_log_start_offset = -1
        #: Set if a follower's last fetch found nothing new, until the follower names another fetch position.
        self.quiet: Partition | None = None
        self.update(spec)

    def update(self, spec: FetchPartition) -> None:
        self.quiet = None
        self.fetch_offset = spec.fetch_offset
        self.log_start_offset = spec.log_start_offset  # log start offset of the follower
        self.max_bytes = spec.partition_max_bytes
        self.current_leader_epoch = max(NO_LEADER_EPOCH, spec.current_leader_epoch)  # negative: no epoch
        self.last_fetched_epoch = max(NO_LEADER_EPOCH, spec.last_fetched_epoch)

    @property
    def key(self) -> Key:
        return (self.topic or self.topic_id, self.partition)


class FetchSession:
    __slots__ = ("busy", "counted", "epoch", "id", "last_used_ms", "partitions")

    def __init__(self, session_id: int, partitions: dict[Key, Wanted], now_ms: int) -> None:
        self.id = session_id
        self.epoch = INITIAL_EPOCH + 1
        self.partitions = partitions
        self.counted = len(partitions)
        self.last_used_ms = now_ms
        self.busy = False  # while a large request updates the session in slices; other requests are refused

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == 0x7FFFFFFF else self.epoch + 1

    def rotate(self, served: Iterable[Wanted]) -> None:
        for wanted in served:
            key = wanted.key
            known = self.partitions.pop(key, None)
            if known is not None:  # the client may have removed the partition while the fetch was parked
                self.partitions[key] = known


def wanted_partitions(request: FetchRequest) -> dict[Key, Wanted]:
    found: dict[Key, Wanted] = {}
    for topic in request.topics:
        for spec in topic.partitions:
            wanted = Wanted(topic.topic, topic.topic_id, spec)
            found[wanted.key] = wanted
    return found


def _update(session: FetchSession, topics: list[FetchTopic], forgotten: list[ForgottenTopic]) -> None:
    for gone in forgotten:
        for partition in gone.partitions:
            session.partitions.pop((gone.topic or gone.topic_id, partition), None)
    for topic in topics:
        for spec in topic.partitions:
            known = session.partitions.get((topic.topic or topic.topic_id, spec.partition))
            if known is not None:
                known.update(spec)
            else:
                wanted = Wanted(topic.topic, topic.topic_id, spec)
                session.partitions[wanted.key] = wanted


async def _update_in_slices(session: FetchSession, request: FetchRequest, slices: Slices) -> None:
    done = 0
    changes: list[FetchTopic | ForgottenTopic] = [*request.forgotten_topics_data, *request.topics]
    for topic in changes:
        for start in starts(len(topic.partitions)):
            part = clone(topic)
            part.partitions = topic.partitions[start : start + SLICE_PARTITIONS]
            if isinstance(part, FetchTopic):
                _update(session, [part], [])
            else:
                _update(session, [], [part])
            done += len(part.partitions)
            if done >= SLICE_PARTITIONS:
                done = 0
                await slices.turn()


Opened = tuple[FetchSession | None, list[Wanted], bool]


class FetchSessions:
    def __init__(self, slots: int, rng: random.Random, max_partitions: int = DEFAULT_MAX_PARTITIONS) -> None:
        """Creates the cache of sessions: at most `slots` sessions, with at most `max_partitions` partitions in all."""
        self._slots = slots
        self._max_partitions = max_partitions
        self.partitions = 0
        self._random = rng
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, now_ms: int) -> Opened:
        """Returns the session of the request, the partitions to read, and True if the response may be incremental."""
        if request.session_epoch in NOT_INCREMENTAL:
            return self._start(request, wanted_partitions(request), now_ms)
        session = self._found(request, now_ms)
        _update(session, request.topics, request.forgotten_topics_data)
        return self._updated(session)

    async def open_in_slices(self, request: FetchRequest, now_ms: int, slices: Slices, disk: Disk) -> Opened:
        """Does the same as `open`, in slices, for a request with very many partitions.

        Other requests are served between the slices. A request for the same session is refused meanwhile.
        """
        if request.session_epoch in NOT_INCREMENTAL:
            return self._start(request, await disk.run(wanted_partitions, request), now_ms)
        session = self._found(request, now_ms)
        session.busy = True
        try:
            await _update_in_slices(session, request, slices)
        finally:
            session.busy = False
        return self._updated(session)

    def _start(self, request: FetchRequest, partitions: dict[Key, Wanted], now_ms: int) -> Opened:
        self._drop(self._sessions.get(request.session_id))
        session = None
        if request.session_epoch == INITIAL_EPOCH:
            session = self._create(partitions, now_ms)
        return session, list(partitions.values()), False

    def _found(self, request: FetchRequest, now_ms: int) -> FetchSession:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "The fetch session is unknown or was evicted: open a new session."
            )
        if session.epoch != request.session_epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"The fetch session has epoch {session.epoch}, not {request.session_epoch}: open a new session.",
            )
        if session.busy:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                "The fetch session still serves an earlier request: wait for its answer, or open a new session.",
            )
        self._check_id_use(session, request)
        session.advance()
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.id)
        return session

    def _updated(self, session: FetchSession) -> Opened:
        if self._sessions.get(session.id) is not session:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                "The fetch session was closed while it served this request: open a new session.",
            )
        grown = len(session.partitions) - session.counted
        session.counted += grown
        self.partitions += grown
        if self.partitions > self._max_partitions and grown > 0:
            self._drop(session)
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"The fetch sessions hold the maximum of {self._max_partitions} partitions: fetch without a session.",
            )
        return session, list(session.partitions.values()), True

    @staticmethod
    def _check_id_use(session: FetchSession, request: FetchRequest) -> None:
        """Raises KafkaError if the session has topic ids and the request has topic names, or the other way round."""
        if not request.topics or not session.partitions:
            return
        by_id = next(iter(session.partitions.values())).topic_id != ZERO_UUID
        if any((topic.topic_id != ZERO_UUID) != by_id for topic in request.topics):
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                "The request and its fetch session must both use topic ids or both use names: open a new session.",
            )

    def _create(self, partitions: dict[Key, Wanted], now_ms: int) -> FetchSession | None:
        if len(partitions) > self._max_partitions:
            return None
        while len(self._sessions) >= self._slots or self.partitions + len(partitions) > self._max_partitions:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms < EVICTION_MS:
                return None
            self._drop(oldest)
        self.partitions += len(partitions)
        session_id = self._new_id(lambda: self._random.randint(1, 0x7FFFFFFF))
        session = self._sessions[session_id] = FetchSession(session_id, partitions, now_ms)
        return session

    def _drop(self, session: FetchSession | None) -> None:
        if session is not None:
            del self._sessions[session.id]
            self.partitions -= session.counted

    def _new_id(self, draw: Callable[[], int]) -> int:
        while (session_id := draw()) in self._sessions:
            pass
        return session_id
