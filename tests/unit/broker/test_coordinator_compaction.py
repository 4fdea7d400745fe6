"""The journal of a coordinator is a compacted topic: it stays small, and what is left of it is all that counts."""

import asyncio
import time
from collections.abc import Callable

from penstock.client.connection import BrokerConnection
from penstock.groups.journal import OffsetKey, decode_record
from penstock.net.network import RealNetwork
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_09_offset_fetch import OffsetFetchRequest
from penstock.protocol.messages.api_10_find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.api_42_delete_groups import DeleteGroupsRequest
from penstock.testing import Broker

EAGER = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "1048576",  # as small as segments may be
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.delete.retention.ms": "0",
}
COMMITS = 900
NOTE = "x" * 4000  # fills segments sooner


def commit(group: str, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=NOTE)
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])])


async def commit_often(broker: Broker) -> None:
    connection = await BrokerConnection.open(RealNetwork(), broker.host, broker.port)
    try:
        async with asyncio.timeout(20):
            await connection.request(FindCoordinatorRequest(coordinator_keys=["any"]), version=4)
            await connection.request(commit("gone", 1), version=8)
            await connection.request(DeleteGroupsRequest(groups_names=["gone"]), version=2)
            for offset in range(COMMITS):
                [topic] = (await connection.request(commit("kept", offset + 1), version=8)).topics
                assert topic.partitions[0].error_code == 0
    finally:
        connection.close()
        await connection.wait_closed()


async def committed(broker: Broker, group: str) -> int:
    connection = await BrokerConnection.open(RealNetwork(), broker.host, broker.port)
    try:
        fetched = await connection.request(OffsetFetchRequest(group_id=group, topics=None), version=7)
        return int(fetched.topics[0].partitions[0].committed_offset) if fetched.topics else -1
    finally:
        connection.close()
        await connection.wait_closed()


def wait_until(done: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, "the journal was not compacted in time"
        time.sleep(0.05)


def groups_in_the_journal(broker: Broker) -> list[str]:
    entries = [decode_record(record.key, record.value) for record in broker.records("__consumer_offsets")]
    return [entry.key.group for entry in entries if entry is not None and type(entry.key) is OffsetKey]


def test_a_compacted_journal_keeps_the_last_commit_and_drops_tombstones() -> None:
    with Broker(config=EAGER, topics={"t": 1}) as broker:
        asyncio.run(commit_often(broker))
        wait_until(lambda: len(groups_in_the_journal(broker)) <= COMMITS // 2)
        wait_until(lambda: "gone" not in groups_in_the_journal(broker))
        broker.kill()
        broker.start()
        assert asyncio.run(committed(broker, "kept")) == COMMITS
        assert asyncio.run(committed(broker, "gone")) == -1
