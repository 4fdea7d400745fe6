"""Limits of a whole node: what is answered once a client has taken all that it may."""

from __future__ import annotations

import pytest
from test_node_life import Fixture, node_on, run

from penstock.broker.auto_topics import ensure_topic
from penstock.disk.memory import MemoryDisk
from penstock.protocol.errors import ErrorCode


def test_a_fetch_waits_for_room_while_slow_readers_hold_the_memory_of_answers() -> None:
    async def scenario() -> None:
        node = node_on(MemoryDisk())
        await node.start()
        user = Fixture(node)
        await user.create("t", 1)
        for value in (b"a" * 1000, b"b" * 1000):
            assert (await user.produce("t", 0, value))[0] is ErrorCode.NONE
        unsent = node.broker.unsent
        assert unsent.limit == 256 * 1024 * 1024
        unsent.take(unsent.limit - 10)
        assert await user.fetch("t", 0) == (ErrorCode.NONE, [b"a" * 1000])  # one batch, so that a consumer gets on
        unsent.take(10)
        assert await user.fetch("t", 0) == (ErrorCode.NONE, [])
        unsent.give_back(unsent.limit)
        assert await user.fetch("t", 0) == (ErrorCode.NONE, [b"a" * 1000, b"b" * 1000])
        await node.stop()

    run(scenario)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_no_client_id_may_write_to_internal_topics(topic: str) -> None:
    async def scenario() -> None:
        node = node_on(MemoryDisk())
        await node.start()
        user = Fixture(node, client_id="__admin_client")
        await ensure_topic(node.broker, topic)
        assert await user.produce(topic, 0, b"garbage") == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
        await node.stop()

    run(scenario)
