"""Runs a replica fetcher against a model of its leader in random walks: its sessions, its pauses and its logs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from replica_cluster import TOPIC, run
from scripted_leader import LEADER, LED, SESSION, Follower, data, forgotten, records, response

from penstock.broker.peers.peers import Call, Peers
from penstock.log.log import Log
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.protocol.messages.api_02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.protocol.vocabulary import LATEST
from penstock.records.batches import split_batches

COUNT, BACKOFF_S = 4, 0.1
SOON = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH)
LATER = (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR)
#: A batch: base offset, number of records, leader epoch.
Batch = tuple[int, int, int]


@dataclass
class LeaderLog:
    """Holds all batches, also deleted ones, because the leader knows the ends of earlier epochs."""

    batches: list[Batch] = field(default_factory=list)
    epoch: int = 1
    start: int = 0
    mark: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1][0] + self.batches[-1][1] if self.batches else 0

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Returns the last epoch of this log that is not above `epoch`, and its end."""
        known = [each for each in self.batches if each[2] <= epoch]
        if epoch == self.epoch or not known:
            return (epoch, self.end) if epoch == self.epoch else (-1, 0)
        later = [each[0] for each in self.batches if each[2] > known[-1][2]]
        return known[-1][2], min([self.end, *later])

    def refusal(self, asked: FetchPartition) -> ErrorCode:
        if asked.current_leader_epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE if self.start <= asked.fetch_offset <= self.end else ErrorCode.OFFSET_OUT_OF_RANGE

    def answer(self, asked: FetchPartition, count: int) -> PartitionData:
        """Answers a fetch with at most `count` batches, with an error, or with the epoch at which the logs diverge."""
        found = data(asked.partition, high_watermark=self.mark, log_start_offset=self.start)
        if code := self.refusal(asked):
            found.error_code = code
        elif asked.last_fetched_epoch >= 0:
            epoch, end = self.epoch_end(asked.last_fetched_epoch)
            if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
                found.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
                return found
        if not found.error_code:
            chosen = [each for each in self.batches if each[0] >= asked.fetch_offset][:count]
            found.records = cast(Any, b"".join(records(base, size, epoch=epoch) for base, size, epoch in chosen))
        return found


def batches_of(log: Log) -> Iterator[Batch]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20, upper_bound=log.log_end_offset).read_now()
        for header, _ in split_batches(read, allow_partial=True):
            yield header.base_offset, header.next_offset - header.base_offset, header.partition_leader_epoch
            offset = header.next_offset


class Walk:
    """Plays the leader. Its session must have exactly the positions of the followed partitions after every request."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.follower = Follower(COUNT, replica_fetch_backoff_ms="100")
        self.follower.leader = cast(Any, self)
        self.logs = [LeaderLog() for _ in range(COUNT)]
        self.followed: set[int] = set()
        self.session: dict[int, FetchPartition] = {}
        self.session_id, self.next_epoch = 0, 0
        self.has_sessions = seed % 4 != 0
        #: The newest fetch, if it has no answer yet, with the positions that the leader knew then; and earlier fetches.
        self.parked: tuple[asyncio.Future[FetchResponse], dict[int, FetchPartition], ErrorCode] | None = None
        self.earlier: list[asyncio.Future[FetchResponse]] = []
        #: The number of failures and the end of the pause of each partition, the least and the largest possible one.
        self.failures = [(0, 0)] * COUNT
        self.paused = [(0.0, 0.0)] * COUNT
        self.requests = 0
        #: Failed comparisons. The fetcher only logs an exception, and tries again.
        self.wrong: list[AssertionError] = []

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    # The connections.

    def begin(self, node_id: int, request: FetchRequest, *, lane: str, timeout_ms: int) -> Call:
        assert (node_id, timeout_ms) == (LEADER, self.follower.settings.int("replica.socket.timeout.ms"))
        self.requests += 1
        try:
            code = self._receive(request)
        except AssertionError as error:
            self.wrong.append(error)
            raise
        answer: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        if self.parked is not None:
            self.earlier.append(self.parked[0])
        self.parked = answer, dict(self.session), code

        async def wait() -> FetchResponse:
            return await answer

        return Call.of_task(cast(Peers, None), node_id, asyncio.ensure_future(wait()))

    def _receive(self, request: FetchRequest) -> ErrorCode:
        named = {each.partition: each for topic in request.topics for each in topic.partitions}
        gone = set(forgotten(request))
        if request.session_epoch == 0:
            assert not gone
            self.session, self.session_id = named, (SESSION + self.requests if self.has_sessions else 0)
            self.next_epoch = 1
        elif (request.session_id, request.session_epoch) != (self.session_id, self.next_epoch):
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        else:
            assert gone <= set(self.session)
            assert not gone & set(named)
            self.session = {each: one for each, one in {**self.session, **named}.items() if each not in gone}
            self.next_epoch += 1
        surely = {each for each in self.followed if self.paused[each][1] < self.now() - 0.002}
        perhaps = {each for each in self.followed if self.paused[each][0] < self.now() + 0.002}
        assert surely <= set(self.session) <= perhaps
        for index, one in self.session.items():
            log = self.follower.partitions[index].log
            position = (one.fetch_offset, one.log_start_offset, one.current_leader_epoch)
            assert position == (log.log_end_offset, log.log_start_offset, self.logs[index].epoch), index
            assert one.last_fetched_epoch == (-1 if log.epochs.latest_epoch is None else log.epochs.latest_epoch)
        return ErrorCode.NONE

    async def ask(self, node_id: int, request: ListOffsetsRequest, *, lane: str, timeout_ms: int) -> Any:
        [asked] = request.topics[0].partitions
        log = self.logs[asked.partition_index]
        assert asked.current_leader_epoch == log.epoch
        one = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        one.offset = log.end if asked.timestamp == LATEST else log.start
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=[one])])

    # Steps.

    async def run(self, steps: int) -> None:
        await self.follower.start(0)
        self.followed.add(0)
        names = ("answer",) * 8 + ("write",) * 4 + ("add", "add", "remove", "elect", "elect", "lose", "cut", "late")
        for _ in range(steps):
            await asyncio.sleep(self.rng.choice((0.003, 0.003, 0.01, 0.05, 0.2)))
            getattr(self, self.rng.choice(names))()
            assert not self.wrong, self.wrong[0]
        for index in range(COUNT):
            self._follow(index)
        for _ in range(60):
            await asyncio.sleep(0.05)
            self._answer(faults=False)
            assert not self.wrong, self.wrong[0]
        for index, log in enumerate(self.logs):
            own = self.follower.partitions[index].log
            assert list(batches_of(own)) == [each for each in log.batches if each[0] >= own.log_start_offset]
            assert (own.log_start_offset, own.log_end_offset, own.high_watermark) == (log.start, log.end, log.mark)
        await self.follower.fetcher.close()

    def answer(self) -> None:
        self._answer(faults=True)

    def _answer(self, *, faults: bool) -> None:
        if self.parked is None:
            return
        (answer, positions, code), self.parked = self.parked, None
        if code:
            answer.set_result(FetchResponse(error_code=code))
            return
        found: list[PartitionData] = []
        for index, asked in positions.items():
            kind = self.rng.choice(("records", "records", "nothing", "error")) if faults else "records"
            one = self.logs[index].answer(asked, self.rng.randint(1, 2) if faults else 1000)
            if kind == "error":
                one = data(index, error_code=self.rng.choice((*SOON, *LATER)))
            if kind != "nothing":
                found.append(one)
                self._expect(one, asked)
        answer.set_result(response(*found, session_id=self.session_id))

    def _expect(self, one: PartitionData, asked: FetchPartition) -> None:
        """Notes the pause of a partition whose fetch is refused."""
        index, now = one.partition_index, self.now()
        few, many = self.failures[index]
        if index not in self.followed or one.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return  # a log out of range moves into the leader's bounds at once
        if asked.current_leader_epoch != self.logs[index].epoch:
            # The fetch is from the last epoch. Its refusal counts, unless the follower has abandoned this fetch.
            self.failures[index] = few, many + 1
            self.paused[index] = self.paused[index][0], max(self.paused[index][1], now + BACKOFF_S)
        elif one.error_code:
            pauses = [BACKOFF_S if one.error_code in LATER else min(BACKOFF_S, 0.01 * 2**n) for n in (few, many)]
            self.failures[index] = few + 1, many + 1
            self.paused[index] = now + pauses[0], now + pauses[1]
        elif one.diverging_epoch.end_offset < 0:
            self.failures[index] = 0, 0

    def write(self) -> None:
        """Appends to some logs of the leader, commits records, and deletes some of the committed records."""
        for log in self.rng.sample(self.logs, 2):
            log.batches.append((log.end, self.rng.randint(1, 3), log.epoch))
            log.mark = self.rng.randint(log.mark, log.end)
            if self.rng.random() < 0.2:
                log.start = max(log.start, *(each[0] for each in log.batches if each[0] <= log.mark))

    def add(self) -> None:
        self._follow(self.rng.randrange(COUNT))

    def _follow(self, index: int) -> None:
        if index not in self.followed:
            self.failures[index], self.paused[index] = (0, 0), (0.0, 0.0)
        self.followed.add(index)
        self.follower.fetcher.add(self.follower.partitions[index])

    def remove(self) -> None:
        index = self.rng.randrange(COUNT)
        self.followed.discard(index)
        self.follower.fetcher.remove(self.follower.partitions[index])

    def elect(self) -> None:
        """Elects the leader again. It may have lost records that were not committed."""
        index = self.rng.randrange(COUNT)
        log = self.logs[index]
        log.epoch += 1
        keep = [each for each in log.batches if each[0] + each[1] <= log.mark]
        rest = log.batches[len(keep) :]
        log.batches = keep + rest[: self.rng.randint(0 if log.mark <= log.end else 1, len(rest))]
        if log.end < log.mark:
            log.batches = keep + rest[:1]
        partition = self.follower.partitions[index]
        partition.follow_image(replace(LED, leader_epoch=log.epoch, partition_epoch=log.epoch))
        self.followed.discard(index)
        self._follow(index)

    def lose(self) -> None:
        self.session_id += 1000 if self.has_sessions else 0

    def cut(self) -> None:
        if self.parked is not None:
            self.parked[0].set_exception(KafkaError(ErrorCode.NETWORK_EXCEPTION, "The link is cut."))
            self.parked = None

    def late(self) -> None:
        """Answers the fetches that the follower has abandoned, with records that it may not append."""
        for answer in self.earlier:
            garbage = [data(index, records(self.follower.end(index), epoch=1)) for index in range(COUNT)]
            answer.set_result(response(*garbage, session_id=5))
        self.earlier.clear()


@pytest.mark.parametrize("first", range(0, 40, 4))
def test_follower_and_leader_agree_on_the_session_and_the_records_in_random_walks(first: int) -> None:
    for seed in range(first, first + 4):
        run(Walk(seed).run(100), seed)
