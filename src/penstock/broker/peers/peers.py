"""Sends requests to other brokers by broker id; the addresses come from the metadata."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.broker.peers.links import Address, Links
from penstock.broker.peers.suspected_nodes import SuspectedNodes
from penstock.client.credentials import NO_CREDENTIALS, Credentials
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client.connection import BrokerConnection
    from penstock.metadata.image import MetadataImage
    from penstock.net.network import Network
    from penstock.protocol.schema import Message


@dataclass(slots=True, eq=False)
class Call:
    """Holds a request in flight. The sender can abandon the request with `leave`."""

    future: asyncio.Future[Any]
    """A future that is done with the response or an error; after `leave`, with None."""
    _peers: Peers
    _node_id: int
    _connection: BrokerConnection | None = None
    _request: tuple[int, int] = (0, 0)
    _task: asyncio.Task[Any] | None = None

    async def answer(self) -> Any:
        """Waits for the response and returns it; returns None if `leave` was called. Raises KafkaError."""
        if self._connection is None:
            return await self.future
        try:
            frame = await self.future
            answer = None if frame is None else self._connection.decoded(frame, *self._request)
        except KafkaError as error:
            self._peers.failed(self._node_id, error)
            raise
        self._peers.suspects.reached(self._node_id)
        return answer

    def leave(self) -> asyncio.Future[Any]:
        """Abandons the request: `answer` then returns None.

        Returns a future that is done when the abandoned request gets its response or fails.
        """
        left: asyncio.Future[Any] = self.future
        if self._task is not None:
            left = self._task
        elif self._connection is not None:
            left = self._connection.leave(self.future)
        if not self.future.done():
            self.future.set_result(None)
        return left

    @classmethod
    def of_task(cls, peers: Peers, node_id: int, task: asyncio.Task[Any]) -> Call:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda done: _copy(done, future))
        future.add_done_callback(lambda done: done.cancelled() and task.cancel())
        return cls(future, peers, node_id, _task=task)


def _copy(done: asyncio.Task[Any], future: asyncio.Future[Any]) -> None:
    if done.cancelled():
        future.cancel()
        return
    error = done.exception()
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


class Peers:
    """Sends requests to brokers, over one connection per node and lane.

    Requests of one lane keep their order; requests of different lanes do not wait for each other.
    """

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        network: Network,
        listener: str,
        request_timeout_s: float = 30.0,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """Creates the peers. `image` returns the metadata image with the addresses of the inter-broker listener
        `listener`.
        """
        self._image = image
        self._listener = listener
        self._links = Links(network, f"broker-{node_id}", request_timeout_s=request_timeout_s, credentials=credentials)
        self.suspects = SuspectedNodes()

    async def ask(self, node_id: int, request: Message, *, lane: str = "", timeout_ms: int | None = None) -> Any:
        """Sends a request to a broker and returns the response without checking its error codes.

        Raises KafkaError(NETWORK_EXCEPTION) as soon as the connection is lost.
        """
        address = self._address(node_id)
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        try:
            answer = await self._links.request((node_id, lane), address, request, timeout_s)
        except KafkaError as error:
            self.failed(node_id, error)
            raise
        self.suspects.reached(node_id)
        return answer

    def begin(self, node_id: int, request: Message, *, lane: str, timeout_ms: int) -> Call:
        """Sends a request like `ask`, but returns a `Call` that can be abandoned.

        Raises KafkaError if the broker is unknown.
        """
        connection = self._links.ready((node_id, lane), self._address(node_id))
        if connection is None:
            asking = self.ask(node_id, request, lane=lane, timeout_ms=timeout_ms)
            return Call.of_task(self, node_id, asyncio.get_running_loop().create_task(asking))
        version = connection.version_of(request.API_KEY)
        future = connection.post(request, version, timeout_ms / 1000)
        return Call(future, self, node_id, connection, (request.API_KEY, version))

    def failed(self, node_id: int, error: KafkaError) -> None:
        if error.code is ErrorCode.NETWORK_EXCEPTION:
            self.suspects.lost(node_id)

    def forget(self, node_id: int) -> None:
        """Closes the connections to a broker; requests in flight fail."""
        self._links.forget(node_id)

    def close(self) -> None:
        self._links.close()

    def _address(self, node_id: int) -> Address:
        broker = self._image().brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoints.get(self._listener)
        if endpoint is None:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"Broker {node_id} registered no listener {self._listener}: start the broker, or add this listener "
                "to its configuration.",
            )
        return endpoint.host, endpoint.port
