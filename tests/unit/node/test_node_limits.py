"""Tests limits of a whole node: the answers to a client that reaches a limit."""

from __future__ import annotations

import pytest
from test_node_restart import Fixture, node_on, run

from penstock.disk.memory import MemoryDisk
from penstock.net.limits import SHARES
from penstock.protocol.errors import ErrorCode
from penstock.records.build import build_batch


def test_fetch_returns_fewer_batches_but_at_least_one_batch_if_response_memory_is_short() -> None:
    async def scenario() -> None:
        node = node_on(MemoryDisk())
        await node.start()
        user = Fixture(node)
        await user.create("t", 1)
        values = [bytes([letter]) * 1000 for letter in b"abcdefgh"]
        for value in values:
            assert (await user.produce("t", 0, value))[0] is ErrorCode.NONE
        unsent = node.broker.unsent
        assert unsent.limit == 256 * 1024 * 1024
        assert await user.fetch("t", 0) == (ErrorCode.NONE, values)
        room = SHARES * 2 * len(build_batch([(node.clock.wall_ms(), None, values[0], ())]))
        unsent.take(unsent.limit - room)
        assert await user.fetch("t", 0) == (ErrorCode.NONE, values[:2])
        unsent.take(room)
        assert await user.fetch("t", 0) == (ErrorCode.NONE, values[:1])
        unsent.take(unsent.limit)
        assert await user.fetch("t", 0) == (ErrorCode.NONE, values[:1])
        unsent.give_back(2 * unsent.limit)
        assert await user.fetch("t", 0) == (ErrorCode.NONE, values)
        assert unsent.used == 0
        await node.stop()

    run(scenario)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_produce_to_an_internal_topic_is_refused_even_for_kafkas_admin_client_id(topic: str) -> None:
    async def scenario() -> None:
        node = node_on(MemoryDisk())
        await node.start()
        user = Fixture(node, client_id="__admin_client")
        await node.broker.topic_creator.ensure(topic)
        assert await user.produce(topic, 0, b"garbage") == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
        await node.stop()

    run(scenario)
