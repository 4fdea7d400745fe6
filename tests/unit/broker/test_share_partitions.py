"""Tests the share partitions of a node together: which records the end of a session releases."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_share_led_partition import SETTINGS, Coordinator, DeadLetters, next_pass, until

from penstock.broker.share.share_partitions import SharePartitions
from penstock.share.acquiring import Wish
from penstock.share.state_journal import ShareKey
from penstock.share.states import FetchedBatch, RecordState, ShareLimits

TOPIC = bytes(16)
SLOTS = [(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)]


def test_closed_connection_releases_the_records_of_its_own_member_only_and_in_all_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = SETTINGS._replace(limits=ShareLimits())
    monkeypatch.setattr(SharePartitions, "settings_of", lambda shares, group: settings)

    async def scenario() -> None:
        coordinator = Coordinator()
        log = SimpleNamespace(log_start_offset=0, high_watermark=7)
        partition = SimpleNamespace(topic="jobs", leader_epoch=0, leader_log=lambda epoch=0: log)
        shares = SharePartitions(
            settings=cast(Any, SimpleNamespace(int=lambda name: 10)),
            clock=cast(Any, SimpleNamespace(wall_ms=lambda: 0)),
            partitions=cast(Any, SimpleNamespace(get_by_id=lambda topic_id, index: partition)),
            metadata=cast(Any, None),
            persister=cast(Any, coordinator),
            dead_letters=DeadLetters(coordinator),
            turn=next_pass,
        )
        connections = {member: object() for member in ("dies", "stays")}
        for member, connection in connections.items():
            shares.sessions.fetch("group", member, 0, connection, SLOTS, (), acknowledges=False)
        leds = [shares.open(ShareKey("group", *slot)) for slot in SLOTS]
        async with asyncio.timeout(20):
            for led in leds:
                await led.loaded(20)
                led.acquire(Wish("dies", 1), 7, [FetchedBatch(7, 9)])
                led.acquire(Wish("stays", 1), 10, [FetchedBatch(10, 14)])
            shares.connection_closed(connections["dies"])
            for led in leds:
                state = led.ready()
                assert state is not None
                totals = state.window.totals
                await until(led, lambda totals=totals: totals[RecordState.AVAILABLE] == 3)  # type: ignore[misc]
                assert totals[RecordState.ACQUIRED] == 5
        await shares.close()

    asyncio.run(scenario())
