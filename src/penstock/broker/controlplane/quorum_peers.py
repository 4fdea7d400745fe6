"""Connections to the other replicas of the quorum. Two to a peer: a fetch may wait there while a vote must not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.client.connection import BrokerConnection, ConnectionSettings
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

Lane = tuple[int, bool]
MAX_LEARNED = 1000


class QuorumPeers:
    def __init__(
        self,
        network: Network,
        me: Voter,
        cluster_id: str,
        config: RaftConfig,
        bootstrap: Mapping[int, tuple[str, int]],
    ) -> None:
        self._network = network
        self._me = me
        self._cluster_id = cluster_id
        timeout_s = config.request_timeout_ms / 1000
        self._settings = ConnectionSettings(
            client_id=f"quorum-{me.node_id}",
            connect_timeout_s=timeout_s,
            request_timeout_s=timeout_s + config.fetch_max_wait_ms / 1000,
        )
        #: What peers said of themselves beats what the properties or the log say.
        self._learned: dict[int, tuple[str, int]] = {}
        self._bootstrap = bootstrap
        self._connections: dict[Lane, BrokerConnection] = {}
        self._opening: dict[Lane, asyncio.Lock] = {}

    def learn(self, endpoints: Mapping[int, tuple[str, int]]) -> None:
        for node_id, address in endpoints.items():
            known = node_id in self._learned or len(self._learned) < MAX_LEARNED
            if address[0] and node_id != self._me.node_id and known:
                self._learned[node_id] = address

    async def ask(self, node_id: int, voters: VoterSet, request: Request) -> tuple[Answer, bool]:
        """The answer, and True if the properties or the log name the address that it came from.

        Raises KafkaError: NETWORK_EXCEPTION when the peer isn't there, others when it doesn't do as asked.
        """
        connection = await self._connection((node_id, isinstance(request, Fetch)), voters)
        message = await connection.request(request_to_wire(request, self._cluster_id, self._me))
        self.learn(endpoints_in(message))
        return answer_from_wire(message), connection.address in self._known_addresses(voters)

    def _known_addresses(self, voters: VoterSet) -> set[str]:
        listed = [(host, port) for voter in voters.voters for _, host, port in voter.endpoints]
        return {f"{host}:{port}" for host, port in (*listed, *self._bootstrap.values())}

    async def _connection(self, lane: Lane, voters: VoterSet) -> BrokerConnection:
        async with self._opening.setdefault(lane, asyncio.Lock()):
            connection = self._connections.get(lane)
            if connection is None or connection.closed:
                host, port = self._address(lane[0], voters)
                try:
                    connection = await BrokerConnection.open(self._network, host, port, self._settings)
                except KafkaError:
                    self._learned.pop(lane[0], None)  # it may have moved: the log knows the latest, or somebody does
                    raise
                self._connections[lane] = connection
            return connection

    def _address(self, node_id: int, voters: VoterSet) -> tuple[str, int]:
        address = self.address_of(node_id, voters)
        if address is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"Nobody has said where node {node_id} is.")
        return address

    def address_of(self, node_id: int, voters: VoterSet) -> tuple[str, int] | None:
        if node_id in self._learned:
            return self._learned[node_id]
        voter = voters.find(node_id)
        if voter is not None and voter.endpoints:
            _, host, port = voter.endpoints[0]
            return host, port
        return self._bootstrap.get(node_id)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
