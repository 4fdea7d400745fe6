"""Tests that DescribeShareGroupOffsets asks the share coordinators for a limited number of partitions at a time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from penstock.broker.handlers import api_90_describe_share_group_offsets as describing
from penstock.protocol.messages import api_90_describe_share_group_offsets as wire
from penstock.share.state_journal import ShareKey
from penstock.share.state_requests import Summary

TOPIC = bytes(15) + b"\x01"
COUNT = 3 * describing.AT_ONCE + 1


class Persister:
    """Replaces the share coordinators: the start offset of a partition is its number."""

    def __init__(self) -> None:
        self.asking = self.most = 0

    async def summary(self, key: ShareKey, leader_epoch: int) -> Summary:
        self.asking += 1
        self.most = max(self.most, self.asking)
        await asyncio.sleep(0)
        self.asking -= 1
        return Summary(1, 0, key.partition, 0)


def test_offsets_of_many_share_partitions_are_described_a_limited_number_at_a_time() -> None:
    persister, turns = Persister(), 0

    async def turn() -> None:
        nonlocal turns
        turns += 1

    topic = SimpleNamespace(name="jobs", topic_id=TOPIC)
    image = SimpleNamespace(
        topics={"jobs": topic},
        topics_by_id={TOPIC: topic},
        partition=lambda name, index: SimpleNamespace(leader_epoch=0),
    )
    known = {TOPIC: dict.fromkeys(range(COUNT))}
    broker = SimpleNamespace(
        groups=SimpleNamespace(coordinator=lambda group: SimpleNamespace(run=lambda decide: known)),
        metadata=SimpleNamespace(image=image),
        persister=persister,
        slices=SimpleNamespace(turn=turn),
    )
    request = wire.DescribeShareGroupOffsetsRequest(groups=[wire.DescribeShareGroupOffsetsRequestGroup(group_id="g")])
    request.groups[0].topics = None
    answer = asyncio.run(describing.handle(cast(Any, broker), cast(Any, SimpleNamespace(api_version=0)), request))
    (described,) = answer.groups[0].topics
    assert [(each.partition_index, each.start_offset) for each in described.partitions] == [
        (index, index) for index in range(COUNT)
    ]
    assert persister.most == describing.AT_ONCE
    assert turns == 4
