"""Sends requests to the other replicas of the quorum and learns their addresses.

Each peer has two connections, one for fetches and one for all other requests. The leader may park a fetch, and a vote
must not wait for the parked fetch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.peers.links import Address, Links
from penstock.client.credentials import NO_CREDENTIALS, Credentials
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.raft.messages import Fetch
from penstock.raft.wire_answers import answer_from_wire, endpoints_in
from penstock.raft.wire_requests import request_to_wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.net.network import Network
    from penstock.raft.config import RaftConfig
    from penstock.raft.messages import Answer, Request
    from penstock.raft.voters import Voter, VoterSet

FETCHES, OTHERS = "fetches", "votes"  # lanes
MAX_LEARNED = 1000


class QuorumPeers:
    def __init__(
        self,
        network: Network,
        me: Voter,
        cluster_id: str,
        config: RaftConfig,
        bootstrap: Mapping[int, Address],
        credentials: Credentials = NO_CREDENTIALS,
        listener: str | None = None,
    ) -> None:
        """Creates the peers. `listener` names the listener to connect to; None means each peer's first listener."""
        self._listener = listener
        self._me = me
        self._cluster_id = cluster_id
        timeout_s = config.request_timeout_ms / 1000
        self._links = Links(
            network,
            f"quorum-{me.node_id}",
            connect_timeout_s=timeout_s,
            request_timeout_s=timeout_s + config.fetch_max_wait_ms / 1000,
            credentials=credentials,
        )
        #: Addresses from peers' answers; they take precedence over those in the configuration and in the log.
        self._learned: dict[int, Address] = {}
        self._bootstrap = bootstrap

    def learn(self, endpoints: Mapping[int, Address]) -> None:
        for node_id, address in endpoints.items():
            known = node_id in self._learned or len(self._learned) < MAX_LEARNED
            if address[0] and node_id != self._me.node_id and known:
                self._learned[node_id] = address

    async def ask(self, node_id: int, voters: VoterSet, request: Request) -> tuple[Answer, bool]:
        """Sends the request to the peer. Returns the response, and True if the peer's address is confirmed.

        An address is confirmed if it is in the configuration or in the voter set of the log. An address that was only
        learned from another peer's response is not confirmed. Raises KafkaError: NETWORK_EXCEPTION if the peer can't be
        reached, other codes if the peer refuses the request.
        """
        link = (node_id, FETCHES if isinstance(request, Fetch) else OTHERS)
        try:
            connection = await self._links.connection(link, lambda: self._address(node_id, voters))
        except KafkaError:
            self._learned.pop(node_id, None)  # the peer may have moved: the log or another peer may know where
            raise
        message = await connection.request(request_to_wire(request, self._cluster_id, self._me))
        self.learn(endpoints_in(message, self._listener))
        return answer_from_wire(message), connection.address in self._known_addresses(voters)

    def _known_addresses(self, voters: VoterSet) -> set[str]:
        listed = [(host, port) for voter in voters.voters for _, host, port in voter.endpoints]
        return {f"{host}:{port}" for host, port in (*listed, *self._bootstrap.values())}

    def _address(self, node_id: int, voters: VoterSet) -> Address:
        address = self.address_of(node_id, voters)
        if address is None:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"Controller {node_id} has no known address: list it in controller.quorum.bootstrap.servers.",
            )
        return address

    def address_of(self, node_id: int, voters: VoterSet) -> Address | None:
        """Returns the peer's address; None if it is unknown."""
        if node_id in self._learned:
            return self._learned[node_id]
        voter = voters.find(node_id)
        if voter is not None and voter.endpoints:
            _, host, port = voter.preferring(self._listener).endpoints[0]
            return host, port
        return self._bootstrap.get(node_id)

    def close(self) -> None:
        self._links.close()
