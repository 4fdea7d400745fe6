"""Tests replicas of the quorum on real sockets: elections, replication, failovers and snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from quorum_nodes import CONFIG, Group

from penstock.broker.controlplane.quorum_peers import QuorumPeers
from penstock.metadata.checkpoint import checkpoint_name
from penstock.net.network import RealNetwork
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_80_add_raft_voter import AddRaftVoterRequest, Listener
from penstock.protocol.messages.api_81_remove_raft_voter import RemoveRaftVoterRequest
from penstock.raft.batches import parse_batches
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.messages import BeginEpoch, EndEpoch, Fetch, FetchSnapshot, UpdateVoter, Vote
from penstock.raft.voters import ReplicaKey, Voter
from penstock.raft.wire_requests import request_to_wire


def with_three(test: Callable[[Group], Awaitable[None]]) -> None:
    async def run() -> None:
        group = await Group.three()
        try:
            await test(group)
        finally:
            await group.kill()

    asyncio.run(run())


def test_three_quorum_nodes_elect_one_leader_and_have_the_same_log() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        leader.propose("a", "b")
        end = leader.propose("c")
        await group.all_have(leader)
        assert [one.values() for one in group.replicas] == [["a", "b", "c"]] * 3
        assert {one.running.leader_id for one in group.replicas} == {leader.node_id}
        assert [one.high_watermark for one in group.replicas] == [end] * 3
        assert [voter.key.node_id for voter in leader.running.describe().voters] == [1, 2, 3]

    with_three(run)


def test_quorum_replica_that_does_not_lead_refuses_proposals() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        follower = next(one for one in group.replicas if one is not leader)
        with pytest.raises(KafkaError) as refused:
            follower.propose("no")
        assert refused.value.code is ErrorCode.NOT_CONTROLLER

    with_three(run)


def test_killed_quorum_leader_is_replaced_and_has_the_same_log_after_its_restart() -> None:
    async def run(group: Group) -> None:
        first = await group.leader()
        first.propose("before")
        await group.all_have(first)
        await first.kill()
        second = await group.leader()
        assert second is not first
        second.propose("after")
        await first.listen()
        first.start(second.running.describe().voter_set)
        await group.all_have(second)
        assert [one.values() for one in group.replicas] == [["before", "after"]] * 3

    with_three(run)


def test_stopping_quorum_leader_hands_its_leadership_over() -> None:
    async def run(group: Group) -> None:
        first = await group.leader()
        epoch = first.running.epoch
        await first.stop()
        second = await group.leader()
        assert second.running.epoch == epoch + 1

    with_three(run)


def test_quorum_continues_with_its_log_after_all_replicas_restarted() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        leader.propose("kept")
        await group.all_have(leader)
        voters = leader.running.describe().voter_set
        epoch = leader.running.epoch
        await group.kill()
        for one in group.replicas:
            await one.listen()
            one.start(voters)
        again = await group.leader()
        assert again.running.epoch > epoch
        await group.all_have(again)
        assert [one.values() for one in group.replicas] == [["kept"]] * 3

    with_three(run)


def test_fourth_quorum_node_follows_as_observer_and_then_becomes_a_voter() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        leader.propose("old")
        fourth = await group.add(4)
        fourth.start(leader.running.describe().voter_set)
        await group.all_have(leader)
        request = AddRaftVoterRequest(
            cluster_id="test-cluster",
            timeout_ms=5000,
            voter_id=4,
            voter_directory_id=fourth.voter.directory_id,
            listeners=[Listener(name="CONTROLLER", host="127.0.0.1", port=fourth.port)],
        )
        for _ in range(100):  # the next fetch confirms to the leader that all records arrived
            answer = await leader.running.answer(request)
            if answer.error_code != ErrorCode.REQUEST_TIMED_OUT:
                break
            await asyncio.sleep(0.01)
        assert answer.error_code == ErrorCode.NONE
        await group.all_have(leader)
        assert fourth.values() == ["old"]
        assert {one.running.describe().voter_set.ids for one in group.replicas} == {(1, 2, 3, 4)}

    with_three(run)


def test_node_whose_log_ends_below_the_leaders_log_start_loads_the_snapshot() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        leader.propose("gone", "with", "the", "log")
        await group.all_have(leader)
        snapshot = leader.take_snapshot()
        leader.propose("new")
        fourth = await group.add(4)
        fourth.start(leader.running.describe().voter_set)
        await group.all_have(leader)
        assert fourth.installed == [snapshot]
        assert fourth.log.log_start_offset == snapshot.offset
        assert fourth.values() == ["new"]

    with_three(run)


def test_a_snapshot_damaged_on_the_leaders_disk_is_written_again_when_a_replica_needs_it() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        leader.propose("old")
        await group.all_have(leader)
        snapshot = leader.take_snapshot()
        path = f"{leader.log.path}/{checkpoint_name(*snapshot)}"
        rotten = bytearray(leader.disk.read_bytes(path))
        rotten[len(rotten) // 2] ^= 1
        leader.disk.write_atomic(path, bytes(rotten))
        fourth = await group.add(4)
        fourth.start(leader.running.describe().voter_set)
        await group.all_have(leader)
        assert fourth.installed == [snapshot]
        assert leader.damaged == 1

    with_three(run)


def test_a_snapshot_damaged_in_transit_is_fetched_again() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        leader.propose("old")
        await group.all_have(leader)
        snapshot = leader.take_snapshot()
        fourth = await group.add(4)
        files = fourth.make(leader.running.describe().voter_set)._files
        write = files.write_snapshot
        damaged: list[int] = []

        def damage_once(snapshot_id: OffsetAndEpoch, position: int, data: bytes) -> None:
            if not damaged:
                damaged.append(position)
                data = data[:-1] + bytes([data[-1] ^ 1])
            write(snapshot_id, position, data)

        files.write_snapshot = damage_once  # type: ignore[method-assign, assignment]
        fourth.running.start(fourth)
        await group.all_have(leader)
        assert damaged
        assert fourth.installed == [snapshot]

    with_three(run)


def test_quorum_refuses_a_replica_with_another_or_no_cluster_id() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        observer = ReplicaKey(9, bytes(15) + b"\x09")
        key, epoch = leader.voter.key, leader.running.epoch
        for request in (
            Vote(key, observer, epoch, 0, 0, False),
            BeginEpoch(key, 9, epoch),
            EndEpoch(9, epoch, ()),
            Fetch(observer, epoch, 0, 0, 0, 0),
            FetchSnapshot(observer, epoch, OffsetAndEpoch(1, 1), 0, 1),
            UpdateVoter(epoch, leader.voter),
        ):
            message = request_to_wire(request, "elsewhere", leader.voter)
            for cluster_id in ("elsewhere", None):
                message.cluster_id = cluster_id
                with pytest.raises(KafkaError) as refused:
                    await leader.running.answer(message)
                assert refused.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID

    with_three(run)


def test_quorum_answers_an_administrators_request_without_a_cluster_id() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        answer = await leader.running.answer(RemoveRaftVoterRequest(cluster_id=None, voter_id=9))
        assert answer.error_code == ErrorCode.VOTER_NOT_FOUND
        with pytest.raises(KafkaError):
            await leader.running.answer(RemoveRaftVoterRequest(cluster_id="elsewhere", voter_id=9))

    with_three(run)


def test_requests_with_invalid_numbers_do_not_stop_the_quorum_leader() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        leader.propose("a")
        await group.all_have(leader)
        observer, epoch = ReplicaKey(9, bytes(15) + b"\x09"), leader.running.epoch
        for offset in (-5, 1 << 62):
            fetch = Fetch(observer, epoch, offset, epoch, 0, 0)
            await leader.running.answer(request_to_wire(fetch, "test-cluster", leader.voter))
        snapshot = leader.take_snapshot()
        for request in (
            FetchSnapshot(observer, epoch, snapshot, 0, -1),
            FetchSnapshot(observer, epoch, snapshot, -1, 1),
            FetchSnapshot(observer, epoch, OffsetAndEpoch(-1, -1), 0, 1),
        ):
            await leader.running.answer(request_to_wire(request, "test-cluster", leader.voter))
        leader.propose("b")
        await group.all_have(leader)

    with_three(run)


def test_leader_address_in_a_refused_begin_epoch_request_is_ignored() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        follower = next(one for one in group.replicas if one is not leader)
        third = next(one for one in group.replicas if one not in (leader, follower))
        leader.propose("a")
        await group.all_have(leader)
        forged = Voter(third.node_id, third.voter.directory_id, (("CONTROLLER", "192.0.2.1", 1),))
        begin = BeginEpoch(follower.voter.key, third.node_id, follower.running.epoch)
        await follower.running.answer(request_to_wire(begin, "test-cluster", forged))
        assert follower.running.address_of(third.node_id) == ("127.0.0.1", third.port)

    with_three(run)


def test_leader_address_from_a_message_of_another_node_is_not_trusted_like_a_configured_address() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        voters, epoch = leader.running.describe().voter_set, leader.running.epoch
        fetch = Fetch(ReplicaKey(9, bytes(15) + b"\x09"), epoch, 0, 0, 0, 0)
        peers = [QuorumPeers(RealNetwork(), Voter(9), "test-cluster", CONFIG, {}) for _ in range(2)]
        peers[1].learn({leader.node_id: ("localhost", leader.port)})
        try:
            answers = [await one.ask(leader.node_id, voters, fetch) for one in peers]
        finally:
            for one in peers:
                one.close()
        assert [(answer.epoch, from_known) for answer, from_known in answers] == [(epoch, True), (epoch, False)]

    with_three(run)


def test_fetch_from_the_quorum_leader_returns_one_batch_even_if_it_exceeds_the_requested_bytes() -> None:
    async def run(group: Group) -> None:
        leader = await group.leader()
        for value in "abc":
            leader.propose(value)
        await group.all_have(leader)

        async def fetched(max_bytes: int) -> int:
            observer = ReplicaKey(9, bytes(15) + b"\x09")
            asked = Fetch(observer, leader.running.epoch, 0, 0, 0, 0, max_bytes)
            answer = await leader.running.answer(request_to_wire(asked, "test-cluster", leader.voter))
            return len(parse_batches(answer.responses[0].partitions[0].records))

        for few in (1, 0, -1):
            assert await fetched(few) == 1
        assert await fetched(1 << 20) == 4  # the first record of the epoch, and three more

    with_three(run)
