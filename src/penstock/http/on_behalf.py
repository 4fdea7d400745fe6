"""Sends Kafka requests for an HTTP caller, with a client of the whole cluster that enforces the caller's ACLs.

A request to the controller is handled as if a Kafka client had sent it to this node: it is forwarded with the caller's
principal. Any other request is checked here, with the same authorizer and the same rules as on a Kafka listener. It is
then sent with this node's own credentials, because it can't carry the caller's principal. Each change gets a line in
the audit file with the caller's principal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.handlers.access import guarded, guarded_on_behalf
from penstock.broker.handlers.audited import audited
from penstock.broker.handlers.forwarding import CONTROLLER_APIS, by_the_controller
from penstock.broker.handlers.registry import load_handler
from penstock.broker.handlers.token_calls import TOKEN_APIS, for_logged_in
from penstock.broker.requests.encoded_responses import Encoded
from penstock.client.client import AsyncClient
from penstock.client.connection import BrokerConnection
from penstock.net.later import Later, settled
from penstock.net.reply import Close
from penstock.protocol.apis import APIS, response_class
from penstock.protocol.codec import decode
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.handlers.registry import Handler
    from penstock.broker.requests.context import RequestContext
    from penstock.http.guard import Caller
    from penstock.protocol.schema import Message

#: DescribeDelegationToken and DescribeTopicPartitions: their handlers choose what the client may see, and every node
#: can answer.
ANSWERED_HERE = frozenset({41, 75})
#: GetTelemetrySubscriptions, PushTelemetry, and heartbeats of members, whose handlers choose topics for the member.
NEVER_SENT = frozenset({68, 71, 72, 76, 88})


class CallerClient(AsyncClient):
    """Acts as the Kafka client of one HTTP request.

    It has its own view of the cluster, and uses the connections of a client that all HTTP requests share.
    """

    def __init__(self, shared: AsyncClient, broker: Broker, caller: Caller) -> None:
        super().__init__(
            [f"[{host}]:{port}" for host, port in shared.bootstrap],
            settings=shared.settings,
            retry=shared.retry,
            random=shared.random,
            network=shared.network,
        )
        self._shared = shared
        self._broker = broker
        self._caller = caller

    async def connection(self, node: int | None = None, channel: str = "") -> BrokerConnection:
        return CallerConnection(await self._shared.connection(node, channel), self._broker, self._caller)


class CallerConnection(BrokerConnection):
    """Sends the requests of one caller over a connection of the shared client, and enforces the caller's ACLs."""

    def __init__(self, shared: BrokerConnection, broker: Broker, caller: Caller) -> None:
        super().__init__(shared._stream, shared._settings)
        self.versions, self.features = shared.versions, shared.features
        self._shared = shared
        self._broker = broker
        self._caller = caller

    async def request(self, message: Message, *, version: int | None = None, timeout_s: float | None = None) -> Any:
        """Sends a request for the caller, and returns the response. A denied request gets a response with an error
        code.

        Raises KafkaError.
        """
        api_key, broker = message.API_KEY, self._broker
        version = self.version_of(api_key) if version is None else version
        context = self._caller.context(broker, api_key, version)

        def send(broker: Broker, ctx: RequestContext, allowed: Message) -> Any:
            return Later(self._shared.request(allowed, version=version, timeout_s=timeout_s))

        response = await settled(self._handler(api_key, send)(broker, context, message))
        if isinstance(response, Encoded):
            response = decode(response_class(api_key), version, response.body)
        if isinstance(response, Close):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{APIS[api_key].name} was refused by the broker: {response.reason}."
            )
        return response

    def _handler(self, api_key: int, send: Handler) -> Handler:
        access, audit = self._broker.access, self._broker.audit
        if api_key in NEVER_SENT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{APIS[api_key].name} can't be sent over HTTP: use a Kafka client."
            )
        if api_key in CONTROLLER_APIS or api_key in ANSWERED_HERE:
            handler = guarded(load_handler(api_key), api_key, access)
            handler = by_the_controller(handler) if api_key in CONTROLLER_APIS else handler
            handler = for_logged_in(handler) if api_key in TOKEN_APIS else handler
        else:
            handler = guarded_on_behalf(send, api_key, access)
        return audited(handler, api_key, audit)

    async def send(self, message: Message, *, version: int | None = None) -> None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "A request without a response can't be sent over HTTP: use a Kafka client."
        )

    def close(self) -> None:
        """Does nothing: the connection belongs to the shared client."""
