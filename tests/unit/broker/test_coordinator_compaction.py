"""Tests the compaction of a coordinator's log: the log stays small and keeps the latest state."""

import asyncio
import time
from collections.abc import Callable

import pytest

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
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest
from penstock.protocol.messages.api_42_delete_groups import DeleteGroupsRequest
from penstock.testing import Broker
from penstock.transactions.journal import decode_record as decode_transaction
from penstock.transactions.transaction import Transaction

EAGER = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "1048576",  # the smallest segment size
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
        async with asyncio.timeout(120):
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


def wait_until(done: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, "the journal was not compacted in time"
        time.sleep(0.05)


def groups_in_the_journal(broker: Broker) -> list[str]:
    entries = [decode_record(record.key, record.value) for record in broker.records("__consumer_offsets")]
    return [entry.key.group for entry in entries if entry is not None and type(entry.key) is OffsetKey]


EAGER_TRANSACTIONS = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.segment.bytes": "1048576",
    "transactional.id.expiration.ms": "1500",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "300",
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.delete.retention.ms": "0",
}
LONG_ID = "x" * 30_000  # fills segments sooner


def states_in_the_journal(broker: Broker) -> list[Transaction | None]:
    """Returns the transaction states that are still in the log, in the order of the log."""
    records = broker.records("__transaction_state")
    entries = [decode_transaction(record.key, record.value) for record in records]
    return [entry.transaction for entry in entries if entry is not None]


def epochs_of(broker: Broker, transactional_id: str) -> list[int]:
    return [
        each.producer_epoch
        for each in states_in_the_journal(broker)
        if each is not None and each.transactional_id == transactional_id
    ]


async def start_often(broker: Broker, transactional_id: str, times: int) -> tuple[int, int]:
    """Sends `times` InitProducerId requests; each writes a record. Returns the last producer id and epoch."""
    connection = await BrokerConnection.open(RealNetwork(), broker.host, broker.port)
    try:
        async with asyncio.timeout(120):
            find = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
            await connection.request(find, version=4)
            request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000)
            for _ in range(times):
                answer = await connection.request(request, version=4)
                assert answer.error_code == 0
            return answer.producer_id, answer.producer_epoch
    finally:
        connection.close()
        await connection.wait_closed()


def test_compacted_transaction_log_keeps_the_last_state_of_each_transactional_id() -> None:
    with Broker(config={**EAGER_TRANSACTIONS, "transactional.id.expiration.ms": "604800000"}) as broker:
        quiet = asyncio.run(start_often(broker, "quiet", 3))
        busy = asyncio.run(start_often(broker, LONG_ID, 100))
        wait_until(lambda: len(epochs_of(broker, LONG_ID)) < 50 and epochs_of(broker, "quiet") == [2])
        assert epochs_of(broker, LONG_ID)[-1] == 99
        broker.kill()
        broker.start()
        assert asyncio.run(start_often(broker, "quiet", 1)) == (quiet[0], quiet[1] + 1)
        assert asyncio.run(start_often(broker, LONG_ID, 1)) == (busy[0], busy[1] + 1)


@pytest.mark.slow
def test_expired_transactional_id_leaves_no_record_in_the_compacted_log() -> None:
    with Broker(config=EAGER_TRANSACTIONS) as broker:
        old_id, _ = asyncio.run(start_often(broker, "gone", 1))
        wait_until(lambda: None in states_in_the_journal(broker))
        asyncio.run(start_often(broker, LONG_ID, 50))
        wait_until(lambda: epochs_of(broker, "gone") == [])
        broker.kill()
        broker.start()
        new_id, epoch = asyncio.run(start_often(broker, "gone", 1))
        assert (new_id != old_id, epoch) == (True, 0)


def test_compacted_offsets_log_keeps_the_last_commit_of_each_key_and_drops_tombstones() -> None:
    with Broker(config=EAGER, topics={"t": 1}) as broker:
        asyncio.run(commit_often(broker))
        wait_until(lambda: len(groups_in_the_journal(broker)) <= COMMITS // 2)
        wait_until(lambda: "gone" not in groups_in_the_journal(broker))
        broker.kill()
        broker.start()
        assert asyncio.run(committed(broker, "kept")) == COMMITS
        assert asyncio.run(committed(broker, "gone")) == -1
