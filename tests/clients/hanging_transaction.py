"""Opens a transaction that no coordinator knows, which was possible on brokers before KIP-890."""

from __future__ import annotations

import secrets
import time
from typing import NamedTuple

from penstock.client.sync import Client
from penstock.protocol.messages.api_00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.records.build import build_batch

VERIFICATION = "transaction.partition.verification.enable"
HOUR_MS = 60 * 60 * 1000
BROKER = 4
SET, DELETE = 0, 1
PRODUCE_WITH_NAMES = 12


class Hanging(NamedTuple):
    producer_id: int
    start_offset: int


def open_one(bootstrap: str, topic: str, partition: int = 0) -> Hanging:
    """Opens a hanging transaction whose records are an hour old.

    Turns off the brokers' transaction verification meanwhile.
    """
    _verify(bootstrap, "false")
    try:
        producer_id = 1_000_000 + secrets.randbelow(1_000_000)
        return Hanging(producer_id, _produce(bootstrap, topic, partition, producer_id))
    finally:
        _verify(bootstrap, None)


def _verify(bootstrap: str, value: str | None) -> None:
    """Sets transaction verification on all brokers; None restores the default."""
    change = AlterableConfig(name=VERIFICATION, config_operation=SET if value else DELETE, value=value)
    resource = AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[change])
    with Client(bootstrap) as client:
        [answer] = client.request(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert answer.error_code == 0, answer.error_message


def _produce(bootstrap: str, topic: str, partition: int, producer_id: int) -> int:
    batch = build_batch(
        [(int(time.time() * 1000) - HOUR_MS, None, b"hanging", ())],
        producer_id=producer_id,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    request = ProduceRequest(
        transactional_id="nobody",
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )

    async def ask(client: Client) -> ProduceResponse:
        leader = await client.asynchronous.leader(topic, partition)
        connection = await client.asynchronous.connection(leader)
        response: ProduceResponse = await connection.request(request, version=PRODUCE_WITH_NAMES)
        return response

    with Client(bootstrap) as client:
        [answer] = client.run(ask(client)).responses[0].partition_responses
    assert answer.error_code == 0
    return answer.base_offset
