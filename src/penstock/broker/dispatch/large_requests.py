"""Serves requests with too many elements for one pass of the event loop.

A tool may, for example, ask for the configs of a hundred thousand topics. Such requests are decoded and encoded in a
thread, a few requests at a time. If the elements are independent of each other, the request is split into pieces, and
each piece is handled in its own pass. Otherwise a request with too many elements is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.broker.handlers.forwarding import CONTROLLER_APIS
from penstock.broker.requests.error_replies import error_response
from penstock.broker.requests.pieces import cut, join, size
from penstock.net.later import settled
from penstock.net.reply import Close
from penstock.protocol.apis import FETCH, METADATA, OFFSET_COMMIT, OFFSET_FETCH, PRODUCE, TXN_OFFSET_COMMIT
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.protocol.schema import Struct

T = TypeVar("T")

#: A request with at most this many array elements and tags is decoded, handled and encoded at once.
SMALL_ELEMENTS = 5_000
#: A connection that sends a request with more elements than this is closed.
REQUEST_MAX_ELEMENTS = 200_000
#: Maximum number of elements of the deepest arrays in one piece of a request.
PIECE_ELEMENTS = 500
#: Number of large requests that are decoded or encoded at the same time.
IN_THREADS = 2

#: Lower limits than SMALL_ELEMENTS, for APIs whose elements take longer. Fetch's handler serves larger requests in
#: slices itself.
SMALL = {PRODUCE: 2_000, FETCH: 2_000, OFFSET_FETCH: 1_000, OFFSET_COMMIT: 2_000, TXN_OFFSET_COMMIT: 2_000}
#: Served element by element: Produce, Metadata, OffsetCommit, OffsetFetch, FindCoordinator, DescribeGroups,
#: DeleteRecords, OffsetForLeaderEpoch, TxnOffsetCommit, DeleteGroups, DescribeProducers, DescribeTransactions,
#: ConsumerGroupDescribe. Each element has an error code of its own, and no client relies on all or nothing.
IN_PIECES = frozenset(
    {PRODUCE, METADATA, OFFSET_COMMIT, OFFSET_FETCH, 10, 15, 21, 23, TXN_OFFSET_COMMIT, 42, 61, 65, 69}
)
#: A request of an API in `REFUSED`, which is handled as a whole, is refused if it has more than `LARGEST` elements, or
#: more than `WIDEST` at the top level, such as topics or resources.
LARGEST, WIDEST = 50_000, 10_000
#: Lower limits than LARGEST: OffsetDelete writes a record for each element; ShareGroupHeartbeat looks each subscribed
#: topic up, and StreamsGroupHeartbeat each task.
LARGEST_BY_API = {47: 10_000, 76: 10_000, 88: 20_000}
#: APIs whose requests may be refused for their size, with the error code: the controller's APIs, AddPartitionsToTxn
#: (24), JoinGroup, LeaveGroup, SyncGroup, DescribeDelegationToken, OffsetDelete, the heartbeats of consumer, share and
#: streams groups, and DescribeTopicPartitions, whose pages depend on all topics.
REFUSED = {
    **dict.fromkeys(CONTROLLER_APIS, ErrorCode.POLICY_VIOLATION),
    24: ErrorCode.POLICY_VIOLATION,
    **dict.fromkeys((11, 13, 14, 41, 47, 68, 75, 76, 88), ErrorCode.INVALID_REQUEST),
}

Handle = Callable[["RequestContext", Any], Any]


class LargeRequests:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._slots = asyncio.Semaphore(IN_THREADS)

    async def aside(self, function: Callable[..., T], *args: Any) -> T:
        """Runs a pure function in a thread and returns its result.

        While the function runs, no other code may use its arguments.
        """
        async with self._slots:
            with self._broker.slices.uncollected():
                return await self._broker.logs.environment.disk.run(function, *args)

    async def answer(self, ctx: RequestContext, request: Any, handle: Handle) -> Any:
        """Returns the response to a large request.

        Raises KafkaError if the request has too many elements for its API.
        """
        code = REFUSED.get(ctx.api_key)
        largest = LARGEST_BY_API.get(ctx.api_key, LARGEST)
        if code is not None and await self.aside(_is_too_large, request, largest):
            raise KafkaError(
                code,
                f"The request has more than {largest} elements, or more than {WIDEST} in a top-level array: split it "
                "into several requests.",
            )
        if ctx.api_key not in IN_PIECES:
            return await settled(handle(ctx, request))
        response: Any = None
        ends = asyncio.get_running_loop().time() + getattr(request, "timeout_ms", 0) / 1000
        for piece in await self.aside(_pieces, ctx, request):
            answer = await _piece(ctx, piece, handle, ends)
            if isinstance(answer, Close):
                return answer
            await self._broker.slices.turn()
            if response is None:
                response = answer
            else:
                _add(response, answer, ctx, type(request))
        return response

    async def refusal(self, ctx: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
        return await self.aside(error_response, ctx.api_key, ctx.api_version, request, code, message)


def _pieces(ctx: RequestContext, request: Any) -> list[Any]:
    if ctx.api_key == METADATA:
        request.topics = list({(topic.topic_id, topic.name): topic for topic in request.topics}.values())
        request.allow_auto_topic_creation = False  # CreateTopics would refuse so many topics
    return list(cut(request, ctx.api_version, PIECE_ELEMENTS))


def _is_too_large(request: Any, largest: int) -> bool:
    wide, elements = size(request)
    return wide > WIDEST or elements > largest


def _add(response: Any, answer: Any, ctx: RequestContext, request_type: type[Struct]) -> None:
    join(response, answer, ctx.api_key, request_type, ctx.api_version)
    response.throttle_time_ms = max(response.throttle_time_ms, answer.throttle_time_ms)
    if ctx.api_key == PRODUCE:
        listed = {node.node_id for node in response.node_endpoints}
        response.node_endpoints += [node for node in answer.node_endpoints if node.node_id not in listed]


async def _piece(ctx: RequestContext, piece: Any, handle: Handle, ends: float) -> Any:
    if ctx.api_key == PRODUCE:  # pieces wait one after the other: all together no longer than the request's timeout
        piece.timeout_ms = max(0, int((ends - asyncio.get_running_loop().time()) * 1000))
    return await settled(handle(ctx, piece))
