"""Tests parked share fetches: when they respond, and in which order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from test_share_led_partition import SETTINGS, Coordinator, loaded, run

from penstock.broker.share.led_partition import LedSharePartition
from penstock.broker.share.share_fetch import ShareFetching, ShareWish
from penstock.records.build import build_batch
from penstock.share.states import AcquireMode, ShareLimits


class Records:
    """Replaces the log of the share partition: holds batches of one record each."""

    def __init__(self, led: LedSharePartition, batch_bytes: int) -> None:
        self.log_start_offset = 0
        self.high_watermark = self.last_stable_offset = 7
        self._batches: list[bytes] = []
        self._value = bytes(batch_bytes - len(build_batch([(0, None, b"", ())])))
        self._led = led
        partition = cast(Any, led.partition)
        partition.leader_log = lambda epoch: self
        partition.waiters = SimpleNamespace(park=lambda waiter, from_follower: None, unpark=lambda waiter: None)

    def append(self) -> None:
        self._batches.append(build_batch([(0, None, self._value, ())], base_offset=self.high_watermark))
        self.high_watermark += 1
        self._led.wake()

    def read(self, offset: int, max_bytes: int, *, upper_bound: int, min_one_batch: bool) -> Any:
        data = b"".join(self._batches[offset - 7 :])
        return SimpleNamespace(size=len(data), read_cached=lambda: data)


def fetch(led: LedSharePartition, member: str, min_bytes: int = 1) -> asyncio.Task[list[Any]]:
    wish = ShareWish(member, 60_000, min_bytes, 1 << 20, 1, 1, AcquireMode.RECORD_LIMIT, committed_only=False)
    return asyncio.get_running_loop().create_task(ShareFetching(wish, [led]).run())


async def passes() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_parked_share_fetches_get_records_in_the_order_in_which_they_parked() -> None:
    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        led = await loaded(Coordinator(), tasks, SETTINGS._replace(limits=ShareLimits()))
        records = Records(led, 100)
        waiting = {member: fetch(led, member) for member in "abc"}
        await passes()
        served = []
        for _ in range(6):
            records.append()
            await passes()
            [member] = [member for member, task in waiting.items() if task.done()]
            served.append(member)
            [delivery] = waiting[member].result()
            assert len(delivery.acquired) == 1
            waiting[member] = fetch(led, member)
            await passes()
        assert "".join(served) == "abcabc"
        for task in waiting.values():
            task.cancel()

    run(scenario)


def test_share_fetch_waits_for_its_minimum_bytes() -> None:
    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        led = await loaded(Coordinator(), tasks, SETTINGS._replace(limits=ShareLimits()))
        records = Records(led, 100)
        waiting = fetch(led, "a", min_bytes=201)
        for count in (1, 2, 3):
            records.append()
            await passes()
            assert waiting.done() is (count == 3)
        assert len((await waiting)[0].acquired) == 1

    run(scenario)
