"""Tests fetches of records that are not in the page cache: a thread reads them, and their bytes count as unsent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.fetch.long_poll import Fetching, PartitionRead
from penstock.net.later import settled
from penstock.net.limits import ByteBudget
from penstock.protocol.errors import ErrorCode, KafkaError

SIZE = 1000


class ColdSlice:
    size = SIZE

    def __init__(self, outcome: asyncio.Future[bytes]) -> None:
        self.outcome = outcome

    def read_cached(self) -> None:
        return None

    async def read(self) -> bytes:
        return await self.outcome


class ColdFetching(Fetching):
    """Fetches one slice of records that is not in the page cache."""

    __slots__ = ("outcome",)
    outcome: asyncio.Future[bytes]

    def pass_over(self, some: Any, total: int = 0) -> tuple[list[PartitionRead], int, bool]:
        read = PartitionRead(cast(Any, None))
        read.slice = cast(Any, ColdSlice(self.outcome))
        return [read], SIZE, True


@pytest.mark.parametrize("end", ["read", "failed", "hung up"])
def test_fetch_from_disk_releases_its_reserved_memory_after_success_error_or_disconnect(end: str) -> None:
    async def scenario() -> None:
        unsent = ByteBudget(10 * SIZE)
        fetching = ColdFetching(
            cast(Any, SimpleNamespace()), [], min_bytes=1, max_bytes=SIZE, isolation=0, unsent=unsent
        )
        fetching.outcome = asyncio.get_running_loop().create_future()
        answer = asyncio.ensure_future(settled(fetching.run(0, lambda reads, chunks: chunks)))
        await asyncio.sleep(0)
        assert unsent.used == SIZE
        if end == "read":
            fetching.outcome.set_result(bytes(SIZE))
            assert await answer == [bytes(SIZE)]
        elif end == "failed":
            fetching.outcome.set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
            assert await answer == [b""]
        else:
            answer.cancel()
            await asyncio.wait([answer])
        assert unsent.used == 0

    asyncio.run(scenario())


class ParkedColdFetching(ColdFetching):
    """Fetches no records at first, and later one slice that is not in the page cache."""

    __slots__ = ("passes",)
    passes: int

    def pass_over(self, some: Any, total: int = 0) -> tuple[list[PartitionRead], int, bool]:
        self.passes += 1
        return super().pass_over(some) if self.passes > 1 else ([PartitionRead(cast(Any, None))], 0, False)


def test_parked_fetch_that_is_notified_and_then_abandoned_is_answered_only_once() -> None:
    async def scenario() -> None:
        fetching = ParkedColdFetching(cast(Any, SimpleNamespace()), [], min_bytes=1, max_bytes=SIZE, isolation=0)
        fetching.passes = 0
        fetching.outcome = asyncio.get_running_loop().create_future()
        answers: list[list[Any]] = []
        answer = asyncio.ensure_future(settled(fetching.run(60_000, lambda reads, chunks: answers.append(chunks))))
        await asyncio.sleep(0)
        fetching.notify(SIZE)
        fetching.abandon()
        await asyncio.sleep(0)
        fetching.outcome.set_result(bytes(SIZE))
        await answer
        assert (fetching.passes, answers) == (2, [[bytes(SIZE)]])

    asyncio.run(scenario())
