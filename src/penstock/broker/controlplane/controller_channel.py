"""Sends requests to the active controller: by a function call if it is this node, otherwise over the network.

Another node may become the active controller while a request is in flight. The request is then sent again, to the new
controller, until its timeout. So a controller may get the same request twice, as it may from a client that retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

from penstock.broker.peers.links import Links
from penstock.client.credentials import NO_CREDENTIALS, Credentials
from penstock.protocol.apis import APIS, request_header_version, response_class, response_header_version
from penstock.protocol.codec import DecodeError, decode, decode_prefix, encode, encode_parts
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_58_envelope import EnvelopeRequest, EnvelopeResponse
from penstock.protocol.messages.headers import RequestHeader, ResponseHeader
from penstock.protocol.schema import Message, Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.requests.context import RequestContext
    from penstock.net.network import Network

DEFAULT_TIMEOUT_MS = 30_000
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.1
#: Errors after which a retry may succeed, perhaps at another node.
RETRIABLE = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE})


class ActiveController(Protocol):
    """Serves this node's requests to the controller while this node is the active controller."""

    async def answer(self, request: Message) -> Any:
        """Returns the response to a request that this node itself sends. A refusal is a response with an error code."""
        ...

    async def answer_client(self, ctx: RequestContext, request: Message) -> Any:
        """Returns the response to a request that a client sent to this node. Raises KafkaError."""
        ...


class ControllerChannel:
    def __init__(
        self,
        network: Network,
        node_id: int,
        metadata: MetadataLog,
        local: ActiveController,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """Creates the channel. `local` serves the requests while this node itself is the active controller."""
        self._links = Links(network, f"broker-{node_id}-to-controller", credentials=credentials)
        self._metadata = metadata
        self._local = local

    def controller_changed(self, node_id: int) -> None:
        """Closes the connections to all nodes except the new controller.

        The previous controller may hang. Requests to it then fail at once and are sent again to the new controller.
        """
        self._links.keep_only(node_id)

    async def ask(self, request: Message, *, timeout_ms: int | None = None, lane: str = "") -> Any:
        """Sends the request to the active controller and returns the response; the caller checks the error codes in it.

        Raises KafkaError(REQUEST_TIMED_OUT) if no active controller responds in time.
        """
        return await self._until_answered(lambda left_s: self._try_once(request, lane, left_s), timeout_ms, request)

    async def forward(self, ctx: RequestContext, request: Message) -> Any:
        """Forwards a client's request in an Envelope, and returns the response to the client's request.

        The active controller decides on the request with the rights of the client's principal.
        """
        header = RequestHeader(
            request_api_key=ctx.api_key,
            request_api_version=ctx.api_version,
            correlation_id=ctx.correlation_id,
            client_id=ctx.client_id,
        )
        parts = [
            encode(header, request_header_version(ctx.api_key, ctx.api_version)),
            *encode_parts(request, ctx.api_version),
        ]
        envelope = EnvelopeRequest(
            request_data=b"".join(parts),
            request_principal=principal_data(ctx.principal),
            client_host_address=host_bytes(ctx.connection.peer_host),
        )

        async def try_once(left_s: float) -> Any:
            if self._metadata.leading:  # this node became the active controller meanwhile
                return await self._local.answer_client(ctx, request)
            return _response_in(await self._request_remote(envelope, "forward", left_s), ctx)

        timeout_ms = getattr(request, "timeout_ms", 0)
        return await self._until_answered(try_once, timeout_ms if timeout_ms > 0 else None, request)

    def close(self) -> None:
        self._links.close()

    async def _until_answered(
        self, try_once: Callable[[float], Awaitable[Any]], timeout_ms: int | None, request: Message
    ) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms) / 1000
        pause_s = FIRST_PAUSE_S
        why = "no node was asked before the timeout"
        while (left_s := deadline - loop.time()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    answer = await try_once(left_s)
                if not says_not_controller(answer):
                    return answer
                why = "the node that was asked is not the active controller"
            except TimeoutError:
                why = "the controller did not answer in time"
            except KafkaError as error:
                if error.code is not ErrorCode.REQUEST_TIMED_OUT and error.code not in RETRIABLE:
                    raise
                why = error.message or error.code.name
            await asyncio.sleep(min(pause_s, max(0.0, deadline - loop.time())))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{APIS[request.API_KEY].name} got no answer from the active controller: {why.rstrip('.')}. Try again.",
        )

    async def _try_once(self, request: Message, lane: str, left_s: float) -> Any:
        if self._metadata.leading:
            return await self._local.answer(request)
        return await self._request_remote(request, lane, left_s)

    async def _request_remote(self, request: Message, lane: str, left_s: float) -> Any:
        node_id, address = self._metadata.active_controller()
        if address is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "The metadata quorum has no leader now: retry.")
        return await self._links.request((node_id, lane), address, request, left_s)


def _response_in(envelope: EnvelopeResponse, ctx: RequestContext) -> Any:
    code = ErrorCode(envelope.error_code)
    if code or envelope.response_data is None:
        raise KafkaError(
            code or ErrorCode.UNKNOWN_SERVER_ERROR,
            "The active controller refused the forwarded request: see the controller's log.",
        )
    data = envelope.response_data
    try:
        _, start = decode_prefix(ResponseHeader, response_header_version(ctx.api_key, ctx.api_version), data)
        return decode(response_class(ctx.api_key), ctx.api_version, data, start)
    except DecodeError as error:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"The active controller's answer can't be decoded ({error}): check that both nodes run the same version.",
        ) from None


def says_not_controller(answer: Any) -> bool:
    """Returns True if the response, or the first entry of one of its arrays, has the error code NOT_CONTROLLER."""
    if not isinstance(answer, Struct):
        return False
    for field in type(answer).FIELDS:
        value = getattr(answer, field.name)
        if field.name.endswith("error_code") and value == ErrorCode.NOT_CONTROLLER:
            return True
        if field.kind == "array" and value and says_not_controller(value[0]):
            return True
    return False


def principal_data(principal: str) -> bytes:
    """Encodes a principal as Kafka does: type and name, in version 0 of DefaultPrincipalData."""
    from penstock.protocol.messages.default_principal_data import DefaultPrincipalData

    kind, _, name = principal.partition(":")
    return b"\0\0" + encode(DefaultPrincipalData(type=kind, name=name, token_authenticated=False), 0)


def host_bytes(host: str) -> bytes:
    import ipaddress

    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        return bytes(4)
