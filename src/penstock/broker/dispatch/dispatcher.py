"""Serves a request frame: parses the header, finds the handler, decodes the body, and encodes the response.

If a frame can't be decoded, its connection closes and the reason is logged. If a handler raises an unexpected
exception, the stack trace is logged and the client gets the API's response with UNKNOWN_SERVER_ERROR. A handler that
has to wait returns a `Later`: a response that is made when a future or coroutine is done. Any other handler returns its
response directly, so that no task or future is created.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker.dispatch.large_requests import REQUEST_MAX_ELEMENTS, SMALL, SMALL_ELEMENTS, LargeRequests
from penstock.broker.handlers.access import guarded
from penstock.broker.handlers.audited import audited
from penstock.broker.handlers.forwarding import CONTROLLER_APIS, by_the_controller
from penstock.broker.handlers.registry import Role, load_handler, served_versions, serves_unstable
from penstock.broker.handlers.token_calls import TOKEN_APIS, for_logged_in
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.encoded_responses import Encoded
from penstock.broker.requests.error_replies import error_response
from penstock.broker.requests.request_times import RequestTimes, Sample
from penstock.net.connection import Connection
from penstock.net.later import Later
from penstock.net.limits import LimitedLog
from penstock.net.reply import Close, Reply
from penstock.protocol.apis import (
    API_VERSIONS,
    APIS,
    FETCH,
    request_class,
    request_header_version,
    response_class,
    response_header_version,
)
from penstock.protocol.codec import DecodeError, TooManyElementsError, reader, writer
from penstock.protocol.errors import ErrorCode, KafkaError, without_frames
from penstock.protocol.primitives import read_uvarint

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

logger = logging.getLogger(__name__)

FIXED_HEADER = struct.Struct(">hhih")  # api key, version, correlation id, length of the client id
CORRELATION = struct.Struct(">i")
FLEXIBLE_REQUEST_HEADER = 2
FLEXIBLE_RESPONSE_HEADER = 1
#: Requests of nodes that Kafka does not count as requests of clients: WriteTxnMarkers, Vote, BeginQuorumEpoch,
#: EndQuorumEpoch, AlterPartition and FetchSnapshot.
EXEMPT_APIS = frozenset({27, 52, 53, 54, 56, 59})
#: Maximum number of tagged fields in a request header: Kafka defines none, and no client sends more than a few.
MAX_HEADER_TAGS = 100


@dataclass(slots=True)
class Route:
    """Holds the handler and codecs of one API version.

    The fields `left`, `until` and `gap` count down to the next request whose duration is measured: see `Countdown`.
    """

    left: int
    until: int
    gap: int
    handle: Callable[[Broker, RequestContext, Any], Any]
    read: Callable[[memoryview, int, int], tuple[Any, int]]
    write: Callable[[Any], list[Any]]
    response: type
    flexible_request: bool
    flexible_response: bool
    small: int


class Dispatcher:
    """Serves the listeners of one role: a controller's listener and a broker's listener serve different APIs."""

    def __init__(self, broker: Broker, role: Role = "BROKER", times: RequestTimes | None = None) -> None:
        self._broker = broker
        self._times = times or RequestTimes()
        self._role: Role = role
        self._routes: dict[int, Route] = {}
        self._large = LargeRequests(broker)
        self._log = LimitedLog(logger, lambda: broker.clock.wall_ms() / 1000)

    def __call__(self, connection: Connection, frame: memoryview) -> Reply | Later[Reply]:
        try:
            api_key, version, correlation_id, name_length = FIXED_HEADER.unpack_from(frame)
        except struct.error:
            return Close("a request frame is shorter than its header")
        route = self._routes.get(api_key << 16 | version)
        if route is None:
            route = self._find_route(api_key, version)
            if route is None:
                return self._refuse(api_key, version, correlation_id)
        route.left -= 1
        began = None if route.left else self._times.begin(route)
        try:
            client_id, position = _client_id(frame, name_length)
            if route.flexible_request:
                position = _skip_tags(frame, position)
            request, _ = route.read(frame, position, route.small)
        except TooManyElementsError as error:
            if len(frame) - position <= route.small:
                return _undecodable(api_key, version, error)
            now_ms = self._broker.clock.wall_ms()
            ctx = RequestContext(api_key, version, correlation_id, client_id, connection, now_ms, large=True)
            reply: Later[Reply] = Later(self._serve_large(route, ctx, frame, position))
            return reply if began is None else Sample(self._times, APIS[api_key].name, began, connection).watch(reply)
        except DecodeError as error:
            return _undecodable(api_key, version, error)
        ctx = RequestContext(api_key, version, correlation_id, client_id, connection, self._broker.clock.wall_ms())
        if began is not None:
            sample = Sample(self._times, _timed_name(api_key, request), began, connection)
            return sample.watch(self._run(route, ctx, request))
        return self._run(route, ctx, request)

    async def _serve_large(self, route: Route, ctx: RequestContext, frame: memoryview, position: int) -> Reply:
        answer = await self._broker.slices.serve(self._large_answer(route, ctx, frame, position))
        return self._encode(route, ctx, answer)

    async def _large_answer(
        self, route: Route, ctx: RequestContext, frame: memoryview, position: int
    ) -> Encoded | Close | None:
        large = self._large
        try:
            request, _ = await large.aside(route.read, frame, position, REQUEST_MAX_ELEMENTS)
        except DecodeError as error:
            return _undecodable(ctx.api_key, ctx.api_version, error)
        try:
            response = await large.answer(ctx, request, partial(self._handle, route))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            response = await large.refusal(ctx, request, *self._code_and_message(ctx, error))
        if response is None or isinstance(response, Close | Encoded):
            return response
        box = [response, request]
        del response, request  # so that the thread frees them: to free so many objects takes long, too
        return await large.aside(_written, route, box)

    def _handle(self, route: Route, ctx: RequestContext, request: Any) -> Any:
        broker = self._broker
        if broker.faults.rules:
            return Later(broker.faults.apply(ctx, request, partial(route.handle, broker), self._topic_name))
        if broker.quotas.request.limits and not _is_exempt(broker, ctx, request):
            return self._handle_timed(route, ctx, request)
        return route.handle(broker, ctx, request)

    def _topic_name(self, topic_id: bytes) -> str | None:
        topic = self._broker.metadata.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def _run(self, route: Route, ctx: RequestContext, request: Any) -> Reply | Later[Reply]:
        try:
            response = self._handle(route, ctx, request)
        except Exception as error:
            return self._failed(route, ctx, request, error)
        if type(response) is Later:
            return Later(response.source, partial(self._finish, route, ctx, request, response.make))
        return self._encode(route, ctx, response)

    def _finish(
        self,
        route: Route,
        ctx: RequestContext,
        request: Any,
        make: Callable[[asyncio.Future[Any]], Any],
        done: asyncio.Future[Any],
    ) -> Reply:
        try:
            response = make(done)
        except Exception as error:
            return self._failed(route, ctx, request, error)
        return self._encode(route, ctx, response)

    def _handle_timed(self, route: Route, ctx: RequestContext, request: Any) -> Any:
        """Calls the handler, and counts its running time on the event loop against the client's request quota.

        Time spent waiting is not counted.
        """
        quotas = self._broker.quotas
        began = quotas.nanoseconds()
        response = route.handle(self._broker, ctx, request)
        throttle_ms = quotas.record_request(ctx, quotas.nanoseconds() - began)
        if throttle_ms and type(response) is route.response and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = max(response.throttle_time_ms, throttle_ms)
        elif throttle_ms:
            ctx.connection.mute_for(throttle_ms / 1000)
        return response

    def _encode(self, route: Route, ctx: RequestContext, response: Any) -> Reply:
        if response is None or isinstance(response, Close):
            return response
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms:
            ctx.connection.mute_for(throttle_ms / 1000)
        head = CORRELATION.pack(ctx.correlation_id)
        parts = [response.body] if type(response) is Encoded else route.write(response)
        parts.insert(0, head + b"\0" if route.flexible_response else head)
        return parts

    def _failed(self, route: Route, ctx: RequestContext, request: Any, error: Exception) -> Reply:
        code, message = self._code_and_message(ctx, error)
        return self._encode(route, ctx, error_response(ctx.api_key, ctx.api_version, request, code, message))

    def _code_and_message(self, ctx: RequestContext, error: Exception) -> tuple[ErrorCode, str | None]:
        """Returns the error code and the message for the client. Logs the error if it is not a KafkaError."""
        code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
        if isinstance(error, KafkaError):
            code, message = error.code, error.message
        else:
            name = APIS[ctx.api_key].name
            self._log.exception(name, f"the handler of {name} v{ctx.api_version} failed", error)
        without_frames(error)  # a future in one of the frames may hold the error: a reference cycle
        return code, message

    def _find_route(self, api_key: int, version: int) -> Route | None:
        unstable = serves_unstable(api_key, self._broker)
        if version not in served_versions(api_key, self._role, unstable=unstable):
            return None
        first = self._times.first()
        route = self._routes[api_key << 16 | version] = Route(
            first,
            first,
            first,
            self._handler(api_key),
            reader(request_class(api_key), version),
            writer(response_class(api_key), version),
            response_class(api_key),
            request_header_version(api_key, version) >= FLEXIBLE_REQUEST_HEADER,
            response_header_version(api_key, version) >= FLEXIBLE_RESPONSE_HEADER,
            SMALL.get(api_key, SMALL_ELEMENTS),
        )
        self._times.countdowns.append((APIS[api_key].name, route))
        return route

    def _handler(self, api_key: int) -> Callable[[Broker, RequestContext, Any], Any]:
        access = self._broker.access
        if self._role == "CONTROLLER":
            handler = guarded(load_handler(api_key, self._role), api_key, access, self._role)
        else:
            handler = guarded(load_handler(api_key), api_key, access)
            handler = by_the_controller(handler) if api_key in CONTROLLER_APIS else handler
        if api_key in TOKEN_APIS:
            handler = for_logged_in(handler)
        return audited(handler, api_key, self._broker.audit)

    def _refuse(self, api_key: int, version: int, correlation_id: int) -> Reply:
        if api_key == API_VERSIONS:
            from penstock.broker.handlers.api_18_api_versions import unsupported_version

            return [CORRELATION.pack(correlation_id), *writer(response_class(API_VERSIONS), 0)(unsupported_version())]
        name = APIS[api_key].name if api_key in APIS else f"API key {api_key}"
        return Close(f"{name} v{version} is not served on this {self._role.lower()} listener")


def _written(route: Route, box: list[Any]) -> Encoded:
    encoded = Encoded(b"".join(route.write(box[0])), getattr(box[0], "throttle_time_ms", 0))
    box.clear()
    return encoded


def _undecodable(api_key: int, version: int, error: DecodeError) -> Close:
    return Close(f"a {APIS[api_key].name} v{version} request can't be decoded: {without_frames(error)}")


def _timed_name(api_key: int, request: Any) -> str:
    """Returns the name under which a request is timed. As in Kafka, fetches of followers have their own name."""
    if api_key != FETCH:
        return APIS[api_key].name
    return "FetchFollower" if _follows(request) else "FetchConsumer"


def _follows(fetch: Any) -> bool:
    return bool(fetch.replica_id >= 0 or fetch.replica_state.replica_id >= 0)


def _is_exempt(broker: Broker, ctx: RequestContext, request: Any) -> bool:
    """Returns True for a request of another node: it does not count against the quota `request_percentage`."""
    return (
        ctx.api_key in EXEMPT_APIS or (ctx.api_key == FETCH and _follows(request)) or broker.fetch_policy.is_node(ctx)
    )


def _client_id(frame: memoryview, length: int) -> tuple[str | None, int]:
    start = FIXED_HEADER.size
    if length < 0:
        if length == -1:
            return None, start
        raise DecodeError("the client id has a negative length")
    end = start + length
    if end > len(frame):
        raise DecodeError("the client id is longer than the frame")
    try:
        return str(frame[start:end], "utf-8"), end
    except UnicodeDecodeError:
        raise DecodeError("the client id is not UTF-8") from None


def _skip_tags(frame: memoryview, position: int) -> int:
    """Skips the tagged fields of a request's header, and returns the position after them."""
    if position < len(frame) and frame[position] == 0:
        return position + 1
    try:
        count, position = read_uvarint(frame, position)
        if count > MAX_HEADER_TAGS:
            raise DecodeError(f"the header has {count} tagged fields, more than {MAX_HEADER_TAGS}")
        for _ in range(count):
            _, position = read_uvarint(frame, position)
            size, position = read_uvarint(frame, position)
            position += size
    except IndexError:
        raise DecodeError("the frame ends inside the header's tagged fields") from None
    if position > len(frame):
        raise DecodeError("a tagged field of the header is longer than the frame")
    return position
