"""Tests what a replica fetcher does with answers: throttled partitions, the leader's bounds, errors and the lag."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from replica_cluster import run, until
from scripted_leader import LED, SESSION, Follower, data, forgotten, named, records, refusal, response

from penstock.broker.replicas.replica_fetcher import ReplicaFetcher
from penstock.broker.replicas.throttle import Throttle
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import FetchResponse
from penstock.protocol.vocabulary import EARLIEST, LATEST

OUT_OF_SYNC = replace(LED, isr=(1,))


def now() -> float:
    return asyncio.get_running_loop().time()


# Throttled partitions.


@pytest.mark.parametrize(
    ("listed", "in_sync", "pauses"),
    [
        pytest.param(("0:2",), False, True, id="listed"),
        pytest.param(("*",), False, True, id="all replicas are listed"),
        pytest.param(("0:1", "1:2"), False, False, id="other replicas are listed"),
        pytest.param((), False, False, id="nothing is listed"),
        pytest.param(("0:2",), True, False, id="in sync"),
    ],
)
def test_throttle_holds_back_only_the_listed_replicas_that_are_out_of_sync(
    listed: tuple[str, ...], in_sync: bool, pauses: bool
) -> None:
    async def scenario() -> None:
        follower = Follower(2, throttled_rate=100)
        follower.configs[0] = LogConfig(follower_replication_throttled_replicas=listed)
        follower.partitions[0].image = LED if in_sync else OUT_OF_SYNC
        follower.partitions[1].image = OUT_OF_SYNC
        await follower.start()
        await follower.asked(1)
        follower.throttle.record(100_000)
        follower.answer(data(0, records(0)), data(1, records(0)))
        second = await follower.asked(2)
        assert named(second) == ({1: 1} if pauses else {0: 1, 1: 1})
        assert (follower.is_paused(0), follower.is_paused(1)) == (pauses, False)
        await follower.fetcher.close()

    run(scenario())


@pytest.mark.parametrize(("rate", "listed", "counts"), [(100, "0:2", True), (100, "1:2", False), (None, "0:2", False)])
def test_fetched_bytes_count_for_the_throttle_only_if_the_replica_is_listed_and_a_limit_is_set(
    rate: int | None, listed: str, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(Throttle, "record", lambda self, size: seen.append(size))

    async def scenario() -> None:
        follower = Follower(1, throttled_rate=rate)
        follower.configs[0] = LogConfig(follower_replication_throttled_replicas=(listed,))
        follower.partitions[0].image = OUT_OF_SYNC
        await follower.start()
        await follower.asked(1)
        follower.answer(data(0, records(0)))
        await follower.asked(2)
        assert seen == ([follower.partitions[0].log.size] if counts else [])
        await follower.fetcher.close()

    run(scenario())


def test_throttle_neither_shortens_nor_prolongs_the_pause_of_a_partition_after_an_error() -> None:
    async def scenario() -> None:
        follower = Follower(3, throttled_rate=100)
        follower.configs = dict.fromkeys(range(3), LogConfig(follower_replication_throttled_replicas=("*",)))
        for each in follower.partitions[:2]:
            each.image = OUT_OF_SYNC
        await follower.start()
        await follower.asked(1)
        began = now()
        follower.fetcher._pause(follower.entry(0), began + 5000)
        follower.throttle.record(100_000)
        excess = follower.throttle.excess_ms() / 1000
        follower.answer()
        assert named(await follower.asked(2)) == {}
        assert follower.entry(0).not_before == began + 5000
        assert follower.entry(1).not_before == pytest.approx(began + excess, abs=0.01)
        assert [follower.is_paused(index) for index in range(3)] == [True, True, False]
        await follower.fetcher.close()

    run(scenario())


# Answers.


@pytest.mark.parametrize(
    ("leader_start", "leader_end", "start", "end", "paused", "truncations"),
    [
        pytest.param(0, 2, 0, 2, False, 1, id="the leader's log is shorter"),
        pytest.param(0, 4, 0, 4, True, 0, id="the same end"),
        pytest.param(2, 9, 0, 4, True, 0, id="within the leader's log"),
        pytest.param(6, 9, 6, 6, False, 0, id="the leader's log begins later"),
    ],
)
def test_follower_out_of_range_asks_for_the_leaders_bounds_and_moves_its_log_end_into_them(
    leader_start: int, leader_end: int, start: int, end: int, paused: bool, truncations: int
) -> None:
    async def scenario() -> None:
        follower = await Follower(2).start()
        follower.leader.offset_at = {LATEST: leader_end, EARLIEST: leader_start}.__getitem__
        await follower.asked(1)
        follower.answer(data(0, b"".join(records(offset) for offset in range(4))))
        await follower.asked(2)
        follower.answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE), data(1, records(0)))
        request = await follower.asked(3)
        log = follower.partitions[0].log
        assert (log.log_start_offset, log.log_end_offset, follower.is_paused(0)) == (start, end, paused)
        assert named(request) == ({1: 1} if paused else {0: end, 1: 1})
        assert (follower.counts.resets, follower.counts.truncations, follower.counts.errors) == (1, truncations, 1)
        assert len(follower.events) == truncations
        asked = [
            (topic.name, each.partition_index, each.current_leader_epoch, request.replica_id, lane)
            for request, lane in follower.leader.listings
            for topic in request.topics
            for each in topic.partitions
        ]
        assert asked == [("t", 0, 1, 2, "replica-3-0")] * 2
        await follower.fetcher.close()

    run(scenario())


@pytest.mark.parametrize("asked_for", [LATEST, EARLIEST])
@pytest.mark.parametrize("lost", [True, False], ids=["no answer", "refused"])
def test_partition_pauses_if_the_leader_does_not_tell_its_bounds(asked_for: int, lost: bool) -> None:
    async def scenario() -> None:
        follower = await Follower(2).start()
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        follower.leader.offset_at = lambda timestamp: (refusal(code) if lost else code) if timestamp == asked_for else 0
        await follower.asked(1)
        follower.answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE), data(1, records(0)))
        second = await follower.asked(2)
        assert (named(second), follower.is_paused(0), follower.counts.resets) == ({1: 1}, True, 0)
        assert follower.entry(0).not_before == pytest.approx(now() + 0.1, abs=0.01), "the full backoff"
        await follower.fetcher.close()

    run(scenario())


@pytest.mark.parametrize("answered", [True, False])
def test_partition_that_leaves_while_the_leader_is_asked_for_its_bounds_stays_as_it_is(answered: bool) -> None:
    async def scenario() -> None:
        follower = await Follower(2).start()
        gate = asyncio.Event()

        async def bound() -> int:
            await gate.wait()
            if not answered:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "The link is cut.")
            return 6

        follower.leader.offset_at = lambda timestamp: bound()
        await follower.asked(1)
        follower.answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE), data(1, records(0)))
        await until(lambda: bool(follower.leader.listings))
        follower.fetcher.remove(follower.partitions[0])
        gate.set()
        began = now()
        second = await follower.asked(2)
        assert (named(second), forgotten(second), second.session_epoch) == ({1: 1}, [0], 1)
        await asyncio.sleep(1)
        assert (follower.end(0), len(follower.fetcher), follower.fetcher._paused) == (0, 1, {})
        assert (len(follower.leader.fetches), now() - began < 2) == (2, True)
        await follower.fetcher.close()

    run(scenario())


def test_error_of_the_program_in_a_round_begins_a_new_session_after_the_backoff(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    take, failures = ReplicaFetcher._take, [ValueError("seven")]

    async def failing(self: ReplicaFetcher, answer: object) -> None:
        if failures:
            raise failures.pop()
        await take(self, answer)  # type: ignore[arg-type]

    monkeypatch.setattr(ReplicaFetcher, "_take", failing)

    async def scenario() -> None:
        follower = await Follower(2).start()
        await follower.asked(1)
        began = now()
        follower.answer(data(0, records(0)))
        second = await follower.asked(2)
        assert now() - began == pytest.approx(0.1, abs=0.01)
        assert (named(second), second.session_id, second.session_epoch) == ({0: 0, 1: 0}, SESSION, 0)
        await follower.fetcher.close()

    run(scenario())


def test_lag_is_the_largest_total_and_longest_lag_of_the_partitions_and_the_time_since_the_last_answer() -> None:
    async def scenario() -> None:
        follower = await Follower(3).start()
        await asyncio.sleep(3)
        assert follower.fetcher.lag().answered_ms_ago == 3000
        await follower.asked(1)
        follower.answer(data(0, records(0), high_watermark=5), data(1, high_watermark=0))
        await follower.asked(2)
        await asyncio.sleep(2)
        follower.answer(data(0, records(1), high_watermark=9), data(2, high_watermark=3))
        await follower.asked(3)
        await asyncio.sleep(1)
        lag = follower.fetcher.lag()
        assert (lag.largest, lag.total) == (7, 10)
        assert (lag.longest_ms, lag.answered_ms_ago) == pytest.approx((3000, 1000), abs=10)
        follower.answer(data(0, records(2, 7), high_watermark=9), data(2, high_watermark=3))
        await follower.asked(4)
        await asyncio.sleep(1)
        lag = follower.fetcher.lag()
        assert (lag.largest, lag.total) == (3, 3)
        assert (lag.longest_ms, lag.answered_ms_ago) == pytest.approx((2000, 1000), abs=10)
        follower.answer(data(0, records(9), high_watermark=12), data(2, records(0, 3), high_watermark=3))
        await follower.asked(5)
        await asyncio.sleep(0.5)
        lag = follower.fetcher.lag()
        assert (lag.largest, lag.total) == (2, 2)
        assert lag.longest_ms == pytest.approx(500, abs=10), "partition 0 had no lag in between"
        await follower.fetcher.close()

    run(scenario())


def test_all_partitions_whose_pauses_end_together_are_named_in_one_fetch() -> None:
    async def scenario() -> None:
        follower = await Follower(4).start()
        await follower.asked(1)
        for index in (0, 1, 2):
            follower.fetcher._pause(follower.entry(index), now() + 0.05)
        follower.answer()
        assert named(await follower.asked(2)) == {}
        await asyncio.sleep(0.1)
        follower.answer()
        assert named(await follower.asked(3)) == {0: 0, 1: 0, 2: 0}
        await follower.fetcher.close()

    run(scenario())


def test_records_of_every_topic_of_an_answer_are_appended_except_those_of_a_paused_partition() -> None:
    async def scenario() -> None:
        follower = await Follower(4).start()
        await follower.asked(1)
        follower.fetcher._pause(follower.entry(0), now() + 50)
        answers = [response(data(index, records(0)), data(index + 1, records(0))).responses[0] for index in (0, 2)]
        follower.leader.fetches[-1][2].set_result(FetchResponse(session_id=SESSION, responses=answers))
        assert named(await follower.asked(2)) == {1: 1, 2: 1, 3: 1}
        assert [follower.end(index) for index in range(4)] == [0, 1, 1, 1]
        await follower.fetcher.close()

    run(scenario())
