"""Implements a fake broker for tests: it reads real frames from a real socket and sends responses that a test
defines."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from penstock.client.retry import Retry
from penstock.net.connection import Connection
from penstock.net.later import Later
from penstock.net.loop import new_event_loop
from penstock.net.reply import Reply
from penstock.net.server import Listener, Server
from penstock.protocol.apis import APIS, request_class, request_header_version, response_header_version
from penstock.protocol.codec import decode, decode_prefix, encode, encode_parts
from penstock.protocol.messages.api_01_fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from penstock.protocol.messages.api_02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.protocol.messages.api_03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.protocol.messages.api_18_api_versions import ApiVersion, ApiVersionsResponse
from penstock.protocol.messages.headers import RequestHeader, ResponseHeader
from penstock.protocol.schema import Message

FAST = Retry(attempts=4, first_pause_s=0.001, longest_pause_s=0.002)
TOPIC_ID = bytes(range(16))

Answer = Message | list[bytes] | None
Handler = Callable[[Any, int], Answer | Awaitable[Answer]]


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await test

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(bounded())


class FakeBroker:
    """Implements a broker whose responses a test defines.

    `on[key]` answers the requests with this API key. Other requests get default responses about one topic `t`, which
    this node leads.
    """

    def __init__(self, node_id: int = 1) -> None:
        self.node_id = node_id
        self.server = Server(self._dispatch)
        self.versions = {api.key: (api.min_version, api.latest_stable) for api in APIS.values()}
        self.on: dict[int, Handler] = {18: self._api_versions, 3: self._metadata}
        self.seen: list[Any] = []
        self.nodes: list[FakeBroker] = [self]
        self.leaders = {0: node_id}
        self.unknown_topics: set[str] = set()

    @property
    def port(self) -> int:
        return self.server.listeners[0].port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def requests(self, kind: type[Any]) -> list[Any]:
        return [request for request in self.seen if isinstance(request, kind)]

    def _dispatch(self, connection: Connection, frame: memoryview) -> Reply | Later[Reply]:
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        header_version = request_header_version(key, version)
        _, start = decode_prefix(RequestHeader, header_version, frame)
        request = decode(request_class(key), version, frame, start)
        self.seen.append(request)
        answer = self.on[key](request, version)
        if isinstance(answer, Message | list) or answer is None:
            return self._reply(answer, key, version, correlation_id)
        return Later(self._later(answer, key, version, correlation_id))

    async def _later(self, answer: Awaitable[Answer], key: int, version: int, correlation_id: int) -> Reply:
        return self._reply(await answer, key, version, correlation_id)

    def _reply(self, answer: Answer, key: int, version: int, correlation_id: int) -> Reply:
        if answer is None or isinstance(answer, list):
            return answer  # type: ignore[return-value]
        header = encode(ResponseHeader(correlation_id=correlation_id), response_header_version(key, version))
        return [header, *encode_parts(answer, version)]

    def _api_versions(self, request: Any, version: int) -> Message:
        keys = [
            ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in self.versions.items()
        ]
        return ApiVersionsResponse(api_keys=keys)

    def _metadata(self, request: Any, version: int) -> Message:
        brokers = [MetadataResponseBroker(node_id=n.node_id, host="127.0.0.1", port=n.port) for n in self.nodes]
        names = ["t"] if request.topics is None else [topic.name for topic in request.topics]
        topics = [
            MetadataResponseTopic(name=name, error_code=3)
            if name in self.unknown_topics
            else MetadataResponseTopic(
                name=name,
                topic_id=TOPIC_ID,
                partitions=[
                    MetadataResponsePartition(partition_index=p, leader_id=leader, leader_epoch=5)
                    for p, leader in self.leaders.items()
                ],
            )
            for name in names
        ]
        return MetadataResponse(brokers=brokers, topics=topics, cluster_id="fake", controller_id=self.node_id)


@asynccontextmanager
async def fake_broker(node_id: int = 1) -> AsyncIterator[FakeBroker]:
    broker = FakeBroker(node_id)
    await broker.server.start([Listener()])
    try:
        yield broker
    finally:
        await broker.server.stop(grace_s=0.1)


def fetched(
    *records: bytes, offset: int = 0, aborted: list[AbortedTransaction] | None = None, code: int = 0
) -> Message:
    """Returns a Fetch response for partition 0 of topic `t`."""
    data = PartitionData(
        partition_index=0,
        error_code=code,
        high_watermark=offset,
        records=b"".join(records),
        aborted_transactions=aborted,
    )
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=[data])])


def offset_answer(offset: int, code: int = 0) -> Message:
    part = ListOffsetsPartitionResponse(partition_index=0, offset=offset, error_code=code)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[part])])
