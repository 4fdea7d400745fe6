"""Tests the limits of replication: their rate, changes of the limit, and the replicas that they concern."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any, cast

import pytest
from one_replica import LED, Replica
from replica_cluster import run

from penstock.broker.replicas.throttle import FOLLOWER_RATE, LEADER_RATE, UNLIMITED, Throttle
from penstock.metadata.configs.settings import Settings
from penstock.metadata.configs.topic import LogConfig
from penstock.metadata.image import EMPTY_IMAGE
from penstock.protocol.vocabulary import ResourceType

SAMPLES, SAMPLE_MS = 3, 2000


class Limits:
    """Holds the throttles of node 1, and the bytes that the test has counted."""

    def __init__(self) -> None:
        self.settings = Settings(
            {
                "node.id": "1",
                "replication.quota.window.num": str(SAMPLES),
                "replication.quota.window.size.seconds": str(SAMPLE_MS // 1000),
            }
        )
        self.throttle = Throttle(FOLLOWER_RATE, 1, self.settings)
        self.samples: list[list[int]] = []

    def limit(self, rate: int) -> None:
        key = (int(ResourceType.BROKER), "")
        configs = {key: {FOLLOWER_RATE: str(rate), LEADER_RATE: "7"}}
        self.settings.apply_image(replace(EMPTY_IMAGE, configs=configs))

    def record(self, size: int, now: int) -> None:
        self.throttle.record(size)
        self.samples = [each for each in self.samples if each[0] > now - SAMPLES * SAMPLE_MS]
        if not self.samples or now - self.samples[-1][0] >= SAMPLE_MS:
            self.samples.append([now, 0])
        self.samples[-1][1] += size

    def excess_ms(self, now: int, limit: int) -> int:
        """Returns how long the measured rate is above the limit, if no more bytes are counted."""
        kept = [each for each in self.samples if each[0] > now - SAMPLES * SAMPLE_MS]
        elapsed = now - kept[0][0] if kept else 0
        elapsed += max(0, SAMPLES - 1 - elapsed // SAMPLE_MS) * SAMPLE_MS
        total = sum(size for _, size in kept)
        return max(0, round((total * 1000 / elapsed - limit) / limit * elapsed)) if elapsed else 0


@pytest.mark.parametrize("seed", range(5))
def test_throttle_measures_the_rate_and_follows_changes_of_its_limit(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario() -> None:
        limits, limit = Limits(), 0
        seen = set()
        for _ in range(200):
            await asyncio.sleep(rng.choice((0, 0.001, 0.5, 1.9, 2, 7)))
            now = int(asyncio.get_running_loop().time() * 1000)
            if rng.random() < 0.3 or not limit:
                limit = rng.choice((1, 100, 5000, 10**6))
                limits.limit(limit)
            if rng.random() < 0.6:
                limits.record(rng.choice((1, 50, 10_000)), now)
            assert (limits.throttle.limit, limits.throttle.limited) == (limit, True)
            excess = limits.throttle.excess_ms()
            assert excess == limits.excess_ms(now, limit)
            seen.add(excess > 0)
        assert seen == {False, True}

    run(scenario(), seed)


def test_limit_of_zero_bytes_counts_as_one_byte_per_second_and_no_limit_is_unlimited() -> None:
    async def scenario() -> None:
        limits = Limits()
        assert (limits.throttle.limited, limits.throttle.limit) == (False, UNLIMITED)
        limits.limit(0)
        assert limits.throttle.limited
        assert limits.throttle.excess_ms() == 0
        limits.throttle.record(20)
        assert limits.throttle.excess_ms() == 20_000 - (SAMPLES - 1) * SAMPLE_MS
        limits.limit(UNLIMITED)
        assert (limits.throttle.limited, limits.throttle.excess_ms()) == (False, 0)

    run(scenario())


@pytest.mark.parametrize("rate", [LEADER_RATE, FOLLOWER_RATE])
@pytest.mark.parametrize(
    ("listed", "concerned"),
    [((), False), (("0:1",), True), (("0:2",), False), (("1:1",), False), (("0:2", "0:1"), True), (("*",), True)],
)
def test_throttle_concerns_only_the_replicas_that_the_list_of_its_own_direction_names(
    rate: str, listed: tuple[str, ...], concerned: bool
) -> None:
    async def scenario() -> None:
        for config, expected in (
            (LogConfig(leader_replication_throttled_replicas=listed), rate == LEADER_RATE and concerned),
            (LogConfig(follower_replication_throttled_replicas=listed), rate == FOLLOWER_RATE and concerned),
        ):
            replica = await Replica(LED, config).start()
            throttle = Throttle(rate, 1, cast(Any, None))
            assert throttle.concerns(replica.partition) is expected

    run(scenario())
