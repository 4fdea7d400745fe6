"""The other brokers, as this one talks to them: by id, at the address that the metadata has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.doubts import Doubts
from penstock.broker.links import Address, Links
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.broker.metadata_log import MetadataLog
    from penstock.net.network import Network
    from penstock.protocol.schema import Message


class Peers:
    """One connection for each node and lane: a lane's requests keep their order, lanes don't wait for each other."""

    def __init__(
        self, node_id: int, metadata: MetadataLog, network: Network, listener: str, request_timeout_s: float = 30.0
    ) -> None:
        self._metadata = metadata
        self._listener = listener
        self._links = Links(network, f"broker-{node_id}", request_timeout_s=request_timeout_s)
        self.doubts = Doubts()
        metadata.subscribe(self.doubts.apply)

    async def ask(self, node_id: int, request: Message, *, lane: str = "", timeout_ms: int | None = None) -> Any:
        """The answer, its error codes unread. NETWORK_EXCEPTION as soon as the connection is lost."""
        address = self._address(node_id)
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        try:
            answer = await self._links.request((node_id, lane), address, request, timeout_s)
        except KafkaError as error:
            if error.code is ErrorCode.NETWORK_EXCEPTION:
                self.doubts.lost(node_id)
            raise
        self.doubts.reached(node_id)
        return answer

    def forget(self, node_id: int) -> None:
        """Closes its connections; whoever waits for an answer hears so."""
        self._links.forget(node_id)

    def close(self) -> None:
        self._links.close()

    def _address(self, node_id: int) -> Address:
        broker = self._metadata.image.brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoints.get(self._listener)
        if endpoint is None:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"Broker {node_id} has said of no listener {self._listener}: start it, or give it this listener.",
            )
        return endpoint.host, endpoint.port
