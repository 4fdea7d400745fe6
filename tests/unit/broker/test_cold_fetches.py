"""A fetch of records that are not in memory: a thread reads them, and meanwhile they count as an unsent response."""

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
    """A fetch that finds one slice, none of which is in memory."""

    __slots__ = ("outcome",)
    outcome: asyncio.Future[bytes]

    def pass_over(self, some: Any, total: int = 0) -> tuple[list[PartitionRead], int, bool]:
        read = PartitionRead(cast(Any, None))
        read.slice = cast(Any, ColdSlice(self.outcome))
        return [read], SIZE, True


@pytest.mark.parametrize("end", ["read", "failed", "hung up"])
def test_the_bytes_of_a_cold_fetch_are_released_however_it_ends(end: str) -> None:
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
