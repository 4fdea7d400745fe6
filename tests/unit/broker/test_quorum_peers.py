"""Tests to which addresses the quorum connects, and which of them count as confirmed. The test plays the peers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_quorum_steps import CLUSTER, Stage, play

from penstock.broker.controlplane.quorum_peers import QuorumPeers
from penstock.client.connection import BrokerConnection
from penstock.net.network import RealNetwork
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_52_vote import VoteRequest
from penstock.raft.config import RaftConfig
from penstock.raft.messages import Answer, BeginEpoch, EndEpoch, EpochAnswer, Fetch, FetchAnswer, Vote, VoteAnswer
from penstock.raft.voters import ReplicaKey, Voter, VoterSet
from penstock.raft.wire_answers import answer_from_wire, answer_to_wire, endpoints_in
from penstock.raft.wire_requests import request_from_wire, request_to_wire

Address = tuple[str, int]
NONE = ErrorCode.NONE


def voter(node_id: int) -> Voter:
    listeners = (("CONTROLLER", f"host{node_id}", 9093), ("INSIDE", f"inside{node_id}", 9094))
    return Voter(node_id, bytes([node_id] * 16), listeners)


VOTERS = VoterSet.of(map(voter, (1, 2, 3)))
ASKED = Vote(voter(2).key, voter(1).key, 5, 0, 0, True)


class PlayedNetwork:
    """Replaces the connections to other nodes. Each node is reached unless its address is down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[Address] = []
        self.down: set[Address] = set()
        self.connections: list[PlayedConnection] = []
        self.leader = voter(3)
        monkeypatch.setattr(BrokerConnection, "open", self.open)

    async def open(self, _: object, host: str, port: int, *__: object) -> PlayedConnection:
        self.opened.append((host, port))
        if (host, port) in self.down:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "The connection was refused.")
        self.connections.append(PlayedConnection(self, f"{host}:{port}"))
        return self.connections[-1]


class PlayedConnection:
    writable = True

    def __init__(self, network: PlayedNetwork, address: str) -> None:
        self.network = network
        self.address = address
        self.closed = False
        self.parked = asyncio.Event()

    async def request(self, message: Any, timeout_s: float | None = None) -> Any:
        request = request_from_wire(message, ReplicaKey(2))
        answer: Answer
        if isinstance(request, Fetch):
            await self.parked.wait()
            answer = FetchAnswer(NONE, request.epoch, 3, 0)
        else:
            assert isinstance(message, VoteRequest)
            answer = VoteAnswer(NONE, 5, 3)
        return answer_to_wire(request, answer, b"", self.network.leader)

    def close(self) -> None:
        self.closed = True


def peers_with(bootstrap: dict[int, Address], listener: str | None = None) -> QuorumPeers:
    return QuorumPeers(RealNetwork(), voter(1), CLUSTER, RaftConfig(), bootstrap, listener=listener)


def test_leader_that_an_answer_names_is_asked_at_the_address_in_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    network = PlayedNetwork(monkeypatch)
    network.leader = Voter(3, endpoints=(("CONTROLLER", "moved", 1),))

    async def script() -> None:
        peers = peers_with({})
        assert await peers.ask(2, VOTERS, ASKED) == (VoteAnswer(NONE, 5, 3), True)
        assert peers.address_of(3, VOTERS) == ("moved", 1)
        assert await peers.ask(3, VOTERS, ASKED) == (VoteAnswer(NONE, 5, 3), False)  # only another node named it
        assert network.opened == [("host2", 9093), ("moved", 1)]
        peers.close()

    play(script)


def test_address_from_an_answer_is_forgotten_when_it_refuses_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    network = PlayedNetwork(monkeypatch)
    network.down = {("old", 1)}

    async def script() -> None:
        peers = peers_with({})
        peers.learn({2: ("old", 1), 3: ("old", 2)})
        with pytest.raises(KafkaError) as refused:
            await peers.ask(2, VOTERS, ASKED)
        assert refused.value.code is ErrorCode.NETWORK_EXCEPTION
        assert (peers.address_of(2, VOTERS), peers.address_of(3, VOTERS)) == (("host2", 9093), ("old", 2))
        assert (await peers.ask(2, VOTERS, ASKED))[1]
        assert network.opened == [("old", 1), ("host2", 9093)]
        peers.close()

    play(script)


def test_only_addresses_in_the_configuration_and_in_the_log_are_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    network = PlayedNetwork(monkeypatch)
    network.leader = voter(1)

    async def confirmed(bootstrap: dict[int, Address], voters: VoterSet, learned: dict[int, Address]) -> bool:
        peers = peers_with(bootstrap)
        peers.learn(learned)
        _, is_confirmed = await peers.ask(2, voters, ASKED)
        peers.close()
        return is_confirmed

    async def script() -> None:
        nobody = VoterSet()
        assert await confirmed({2: ("boot", 1)}, nobody, {})
        assert await confirmed({7: ("boot", 1)}, nobody, {2: ("boot", 1)})
        assert await confirmed({}, VOTERS, {})
        assert await confirmed({}, VOTERS, {2: ("inside2", 9094)})
        assert await confirmed({}, VOTERS, {2: ("host3", 9093)})
        for address in (("other", 9093), ("host2", 9094)):
            assert not await confirmed({2: ("boot", 1)}, VOTERS, {2: address})

    play(script)


def test_vote_is_not_delayed_by_a_fetch_that_the_leader_has_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    network = PlayedNetwork(monkeypatch)

    async def script() -> None:
        peers = peers_with({})
        fetch = Fetch(voter(1).key, 5, 0, 0, 0, 500)
        fetching = asyncio.ensure_future(peers.ask(2, VOTERS, fetch))
        await asyncio.sleep(0.001)
        await peers.ask(2, VOTERS, ASKED)
        assert not fetching.done()
        assert len(network.connections) == 2
        network.connections[0].parked.set()
        await fetching
        assert len(network.connections) == 2
        peers.close()

    play(script)


@pytest.mark.parametrize(
    ("listener", "host"), [(None, "host2"), ("CONTROLLER", "host2"), ("INSIDE", "inside2"), ("UNKNOWN", "host2")]
)
def test_voter_is_reached_at_its_endpoint_of_the_controllers_listener(listener: str | None, host: str) -> None:
    peers = peers_with({}, listener)
    address = peers.address_of(2, VOTERS)
    assert address is not None
    assert address[0] == host
    peers.close()


# --- the leader that an answer names -------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", [None, "CONTROLLER", "INSIDE", "UNKNOWN"])
def test_leader_names_its_own_current_endpoint_of_the_listener_that_was_asked(listener: str | None) -> None:
    async def script() -> None:
        current = Voter(1, voter(1).directory_id, (("CONTROLLER", "now", 1), ("INSIDE", "now inside", 2)))
        # The properties of the voters still have the endpoints before the restart.
        stage = Stage(config=RaftConfig(dynamic_voters=False), me=current, listed=VoterSet.of([voter(1)]))
        await stage.leading()
        vote = Vote(voter(1).key, voter(3).key, 1, 0, 0, True)
        answer = await stage.quorum.answer(request_to_wire(vote, CLUSTER, voter(3)), listener)
        assert endpoints_in(answer) == {1: ("now inside", 2) if listener == "INSIDE" else ("now", 1)}
        assert isinstance(answer_from_wire(answer), VoteAnswer)
        await stage.quorum.abandon()

    play(script)


@pytest.mark.parametrize("listener", [None, "CONTROLLER", "INSIDE", "UNKNOWN"])
def test_follower_names_its_leaders_endpoint_of_the_listener_that_was_asked(listener: str | None) -> None:
    async def script() -> None:
        stage = Stage(me=voter(1), listed=VOTERS)
        stage.quorum.start(stage)
        begin = request_to_wire(BeginEpoch(voter(1).key, 2, 5), CLUSTER, voter(2))
        answer = await stage.quorum.answer(begin, listener)
        assert endpoints_in(answer) == {2: ("inside2", 9094) if listener == "INSIDE" else ("host2", 9093)}
        await stage.quorum.abandon()

    play(script)


def test_replica_knows_the_addresses_of_other_voters_only() -> None:
    async def script() -> None:
        stage = Stage(me=voter(1), listed=VOTERS)
        stage.quorum._peers = peers_with({1: ("own", 1), -1: ("nobody", 1)})
        stage.quorum.start(stage)
        known = [stage.quorum.address_of(node_id) for node_id in (-1, 1, 2, 3, 4)]
        assert known == [None, None, ("host2", 9093), ("host3", 9093), None]
        await stage.quorum.abandon()

    play(script)


def test_follower_is_in_contact_from_its_first_answered_fetch_of_the_epoch_on() -> None:
    async def script() -> None:
        stage = Stage(me=voter(1), listed=VOTERS)
        stage.quorum.start(stage)
        assert not stage.quorum.in_contact
        for epoch, leader_id in ((5, 2), (6, 3)):
            begin = BeginEpoch(voter(1).key, leader_id, epoch)
            await stage.quorum.answer(request_to_wire(begin, CLUSTER, voter(leader_id)))
            assert not stage.quorum.in_contact
            stage.peers.fetches = [FetchAnswer(NONE, epoch, leader_id, 0)]
            await asyncio.sleep(0.05)
            assert stage.quorum.in_contact
        end = EndEpoch(3, 6, (voter(2).key,))
        ended = await stage.quorum.answer(request_to_wire(end, CLUSTER, voter(3)))
        assert answer_from_wire(ended) == EpochAnswer(NONE, 6, 3)
        await stage.quorum.abandon()

    play(script)
