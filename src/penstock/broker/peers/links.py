"""Keeps connections to other nodes, one per node and lane. A connection opens on first use, and again after a loss.

A lane is a connection for one kind of requests, so that requests of different kinds don't wait for each other.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.client.credentials import NO_CREDENTIALS, Credentials
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.net.network import Network
    from penstock.protocol.schema import Message

Address = tuple[str, int]
Key = tuple[int, str]  # node, lane

CONNECT_TIMEOUT_S = 5.0


class Links:
    """Holds the connections by node and lane. A connection sends its requests in order, and several at a time."""

    def __init__(
        self,
        network: Network,
        client_id: str,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = 30.0,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self._network = network
        self._settings = ConnectionSettings(
            client_id=client_id,
            connect_timeout_s=connect_timeout_s,
            request_timeout_s=request_timeout_s,
            login=credentials.login,
        )
        self._credentials = credentials
        self._open: dict[Key, tuple[Address, BrokerConnection]] = {}
        #: Lanes whose connection is being opened, and the number of waiting requests: later requests queue behind them.
        self._opening: dict[Key, tuple[asyncio.Lock, int]] = {}
        self._closed = False

    def ready(self, key: Key, address: Address) -> BrokerConnection | None:
        """Returns the connection if it is open to this address and can send a request at once; otherwise None."""
        found = self._open.get(key)
        if found is None or found[0] != address or found[1].closed or not found[1].writable or key in self._opening:
            return None
        return found[1]

    async def request(self, key: Key, address: Address, message: Message, timeout_s: float | None = None) -> Any:
        """Sends a request on a lane's connection and returns the response.

        Raises KafkaError: NETWORK_EXCEPTION if the connection cannot be opened or is lost.
        """
        connection = self.ready(key, address) or await self._in_turn(key, lambda: address)
        return await connection.request(message, timeout_s=timeout_s)

    async def connection(self, key: Key, find: Callable[[], Address]) -> BrokerConnection:
        """Returns the open connection of this lane. If there is none, opens a connection to the address from `find`.

        An open connection is used even if `find` would return a new address. Raises KafkaError if the connection can't
        be opened.
        """
        return await self._in_turn(key, lambda: self._address_of(key) or find())

    def _address_of(self, key: Key) -> Address | None:
        found = self._open.get(key)
        return None if found is None or found[1].closed else found[0]

    async def _in_turn(self, key: Key, find: Callable[[], Address]) -> BrokerConnection:
        lock, waiting = self._opening.get(key) or (asyncio.Lock(), 0)
        self._opening[key] = (lock, waiting + 1)
        try:
            async with lock:
                return await self._opened(key, find())
        finally:
            waiting = self._opening[key][1] - 1
            if waiting:
                self._opening[key] = (lock, waiting)
            else:
                del self._opening[key]

    async def _opened(self, key: Key, address: Address) -> BrokerConnection:
        self._check_open()
        found = self._open.get(key)
        if found is not None and found[0] == address and not found[1].closed:
            return found[1]
        if found is not None:
            found[1].close()  # the node has another address now
        connection = await BrokerConnection.open(
            self._network, *address, replace(self._settings, tls=self._credentials.tls)
        )
        try:
            self._check_open()
        except KafkaError:
            connection.close()
            raise
        self._open[key] = (address, connection)
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "This node is stopping: retry at another node.")

    def forget(self, node_id: int) -> None:
        """Closes the connections to a node; requests in flight fail."""
        for key in [key for key in self._open if key[0] == node_id]:
            self._open.pop(key)[1].close()

    def keep_only(self, node_id: int) -> None:
        for other in {key[0] for key in self._open} - {node_id}:
            self.forget(other)

    def close(self) -> None:
        self._closed = True
        for _, connection in self._open.values():
            connection.close()
        self._open.clear()
