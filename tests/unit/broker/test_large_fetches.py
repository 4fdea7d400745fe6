"""Tests that a Fetch with many partitions is handled in slices and gets the same response as in one pass."""

from __future__ import annotations

import asyncio
import gc
import random
from types import SimpleNamespace
from typing import Any

import pytest
from replica_cluster import TOPIC, Cluster, run

from penstock.broker.fetch import large_fetch, long_poll
from penstock.broker.fetch.fetch_sessions import FetchSessions, Wanted
from penstock.broker.fetch.long_poll import Fetching
from penstock.broker.handlers import api_01_fetch
from penstock.broker.requests.encoded_responses import Encoded
from penstock.broker.requests.slices import SLICE_PARTITIONS, Slices
from penstock.disk.memory import MemoryDisk
from penstock.log.slices import LogSlice
from penstock.metadata.image import PartitionImage
from penstock.protocol.codec import decode, encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

VERSION = 12
MANY = 3_000


def asked(
    count: int = MANY, *, session_id: int = 0, epoch: int = 0, max_wait_ms: int = 0, topic: str = TOPIC
) -> FetchRequest:
    """Returns a request for many partitions. Its last partition is partition 0, the only partition that exists."""
    partitions = [
        FetchPartition(partition=index, partition_max_bytes=1 << 20, current_leader_epoch=-1, last_fetched_epoch=-1)
        for index in reversed(range(count))
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic=topic, partitions=partitions)] if count else [],
    )


def handled(cluster: Cluster, request: FetchRequest, *, large: bool = False) -> Any:
    ctx: Any = SimpleNamespace(api_version=VERSION, now_ms=0, listener_name="PLAINTEXT", large=large)
    return api_01_fetch.handle(cluster[1].broker, ctx, request)


def decoded(answer: FetchResponse | Encoded) -> FetchResponse:
    body = answer.body if isinstance(answer, Encoded) else encode(answer, VERSION)
    return decode(FetchResponse, VERSION, body)


async def leader() -> Cluster:
    cluster = Cluster(1)
    await cluster.start(PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=1))
    cluster[1].partition.leader_log()  # its log is opened
    return cluster


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the number of partitions in each slice."""
    sizes: list[int] = []
    pass_over = Fetching.pass_over

    def counted(self: Fetching, some: Any, total: int = 0) -> Any:
        sizes.append(len(some))
        return pass_over(self, some, total)

    monkeypatch.setattr(Fetching, "pass_over", counted)
    return sizes


@pytest.mark.parametrize("large", [False, True])
def test_a_fetch_in_slices_returns_the_same_response_as_a_fetch_in_one_pass(
    large: bool, passed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        cluster = await leader()
        cluster[1].append(b"a", b"b")
        answer = decoded(await handled(cluster, asked(epoch=-1), large=large))
        assert max(passed) == SLICE_PARTITIONS
        assert sum(passed) == MANY
        monkeypatch.setattr(api_01_fetch, "SMALL_FETCH_PARTITIONS", MANY)
        assert answer == decoded(handled(cluster, asked(epoch=-1)))
        assert answer.responses[0].partitions[0].records
        assert len(answer.responses[0].partitions) == MANY
        await cluster.close()

    run(scenario())


def test_small_fetch_in_a_large_session_is_served_in_slices_too(passed: list[int]) -> None:
    async def scenario() -> None:
        cluster = await leader()
        first = decoded(await handled(cluster, asked(), large=True))
        assert first.session_id
        passed.clear()
        again = decoded(await handled(cluster, asked(0, session_id=first.session_id, epoch=1)))
        assert max(passed) == SLICE_PARTITIONS
        unknown = [each.error_code for each in again.responses[0].partitions]
        assert unknown == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (MANY - 1)
        await cluster.close()

    run(scenario())


def test_fetch_of_few_partitions_is_answered_in_the_same_event_loop_iteration(passed: list[int]) -> None:
    async def scenario() -> None:
        cluster = await leader()
        assert isinstance(handled(cluster, asked(1_000)), FetchResponse)
        assert passed == [1_000]
        await cluster.close()

    run(scenario())


@pytest.mark.parametrize("count", [1, MANY])
def test_large_fetch_is_read_in_a_thread_even_if_its_records_are_in_the_page_cache(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        cluster = await leader()
        cluster[1].append(b"a", b"b")
        expected = handled(cluster, asked(count, epoch=-1))
        if count > 1:
            expected = await expected
        monkeypatch.setattr(long_poll, "READ_AT_ONCE", 1)
        monkeypatch.setattr(large_fetch, "READ_AT_ONCE", 1)
        monkeypatch.delattr(LogSlice, "read_cached")
        assert decoded(await handled(cluster, asked(count, epoch=-1))) == decoded(expected)
        await cluster.close()

    run(scenario())


@pytest.mark.parametrize("passes", [0, 3, 1000])
def test_append_completes_a_large_fetch_both_during_its_first_read_and_while_it_is_parked(passes: int) -> None:
    async def scenario() -> None:
        cluster = await leader()
        loop = asyncio.get_running_loop()
        request = asked(max_wait_ms=60_000)
        request.topics[0].partitions.reverse()  # the existing partition is read first
        poll = asyncio.ensure_future(handled(cluster, request))
        began = loop.time()
        for _ in range(passes):
            await asyncio.sleep(0)
        cluster[1].append(b"a")
        answer = decoded(await poll)
        assert answer.responses[0].partitions[0].records
        assert loop.time() - began < 1
        assert not cluster[1].partition.waiters.consumers
        await cluster.close()

    run(scenario())


def test_a_large_parked_fetch_ends_after_its_maximum_wait_and_garbage_is_collected_meanwhile() -> None:
    async def scenario() -> None:
        cluster = await leader()
        loop = asyncio.get_running_loop()
        assert gc.isenabled()
        began = loop.time()
        poll = asyncio.ensure_future(handled(cluster, asked(max_wait_ms=5_000)))
        await asyncio.sleep(2)
        assert gc.isenabled()
        answer = decoded(await poll)
        assert 5 <= loop.time() - began < 6
        assert not answer.responses[0].partitions[0].records
        assert gc.isenabled()
        await cluster.close()

    run(scenario())


def test_large_fetch_session_serves_one_request_at_a_time() -> None:
    async def scenario() -> None:
        cluster = await leader()
        opened = decoded(await handled(cluster, asked()))
        cluster[1].broker.fetch_sessions._sessions[opened.session_id].partitions.pop((TOPIC, MANY - 1))
        poll = asyncio.ensure_future(handled(cluster, asked(0, session_id=opened.session_id, epoch=1)))
        await asyncio.sleep(0)
        second = handled(cluster, asked(0, session_id=opened.session_id, epoch=2))
        assert second.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert decoded(await poll).error_code == 0
        third = decoded(await handled(cluster, asked(0, session_id=opened.session_id, epoch=2)))
        assert third.error_code == 0
        await cluster.close()

    run(scenario())


# --- sessions


def state(cache: FetchSessions, session_id: int) -> tuple[int, list[tuple[Any, int]]]:
    session = cache._sessions[session_id]
    return cache.partitions, [(key, wanted.fetch_offset) for key, wanted in session.partitions.items()]


def changes(session_id: int) -> FetchRequest:
    """Returns a request that updates, adds and forgets partitions. It also forgets one partition that it adds."""
    request = asked(MANY, session_id=session_id, epoch=1)
    request.topics.append(FetchTopic(topic="other", partitions=[FetchPartition(partition=0, fetch_offset=9)]))
    for spec in request.topics[0].partitions:
        spec.partition += MANY // 2
        spec.fetch_offset = 7
    request.forgotten_topics_data = [
        ForgottenTopic(topic=TOPIC, partitions=list(range(1_000))),
        ForgottenTopic(topic="other", partitions=[0]),
    ]
    return request


def test_updating_a_fetch_session_in_slices_gives_the_same_session_as_in_one_pass() -> None:
    async def scenario() -> None:
        states = []
        for in_slices in (False, True):
            cache = FetchSessions(10, random.Random(1))
            session, _, _ = cache.open(asked(), 0)
            assert session is not None
            if in_slices:
                opened = await cache.open_in_slices(changes(session.id), 0, Slices(), MemoryDisk())
            else:
                opened = cache.open(changes(session.id), 0)
            assert opened[0] is session
            assert [type(each) for each in opened[1]] == [Wanted] * len(session.partitions)
            assert cache.partitions == len(session.partitions)
            states.append(state(cache, session.id))
        assert states[0] == states[1]

    run(scenario())


def test_fetch_session_closed_during_its_update_keeps_no_partitions() -> None:
    async def scenario() -> None:
        cache = FetchSessions(10, random.Random(1))
        session, _, _ = cache.open(asked(), 0)
        assert session is not None
        update = asyncio.ensure_future(cache.open_in_slices(changes(session.id), 0, Slices(), MemoryDisk()))
        await asyncio.sleep(0)
        with pytest.raises(KafkaError) as refused:
            cache.open(asked(0, session_id=session.id, epoch=2), 0)
        assert refused.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        cache.open(asked(0, session_id=session.id, epoch=-1), 0)
        with pytest.raises(KafkaError) as refused:
            await update
        assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert (len(cache), cache.partitions) == (0, 0)

    run(scenario())


# --- turns


def test_only_one_of_all_waiting_large_fetches_runs_a_slice_in_an_event_loop_iteration() -> None:
    async def scenario() -> None:
        slices = Slices()
        done: list[str] = []

        async def request(name: str) -> None:
            for _ in range(3):
                await slices.turn()
                done.append(name)

        requests = [asyncio.ensure_future(request(name)) for name in "abc"]
        before = 0
        while not all(each.done() for each in requests):
            await asyncio.sleep(0)
            assert len(done) - before <= 1
            before = len(done)
        assert "".join(done) == "abcabcabc"

    run(scenario())
