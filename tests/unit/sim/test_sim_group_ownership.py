"""Tests the rules for owners of partitions in groups: by the answers to members, and by the coordinator's state."""

from typing import Any, cast

from penstock.client.connection import BrokerConnection
from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember
from penstock.groups.streams.group import Role, StreamsGroup, StreamsMember, TaskKey
from penstock.protocol.codec import encode
from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.protocol.messages.api_42_delete_groups import DeleteGroupsRequest
from penstock.protocol.messages.api_68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
)
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, TopicPartition
from penstock.sim.checks.group_ownership import GroupOwnership

TOPIC = bytes(15) + b"\7"


class Node:
    def __init__(self, address: str) -> None:
        self.address = address


def consumer_request(who: str, epoch: int, owned: list[int]) -> ConsumerGroupHeartbeatRequest:
    own = [TopicPartitions(topic_id=TOPIC, partitions=owned)]
    return ConsumerGroupHeartbeatRequest(group_id="g", member_id=who, member_epoch=epoch, topic_partitions=own)


class Told:
    """Sends assignments to members, one answer per second."""

    def __init__(self, *, excused: bool = False) -> None:
        self.time = 0.0
        self.broken: list[str] = []
        self.ownership = GroupOwnership(
            [], lambda: self.time, lambda rule, what: self.broken.append(rule), excused=lambda: excused
        )

    def ask(self, request: Any, answer: Any, node: str = "n1") -> None:
        self.time += 0.5
        answered = self.ownership._asked(cast(BrokerConnection, Node(node)), request)
        self.time += 0.5
        if answered is not None:
            answered(answer)

    def heartbeat(
        self,
        who: str,
        epoch: int,
        owned: list[int],
        told: list[int] | None,
        *,
        node: str = "n1",
        joins: bool = False,
    ) -> None:
        request = consumer_request(who, 0 if joins else epoch, owned)
        answer = ConsumerGroupHeartbeatResponse(member_id=who, member_epoch=epoch)
        if told is not None:
            answer.assignment = Assignment(topic_partitions=[TopicPartitions(topic_id=TOPIC, partitions=told)])
        self.ask(request, answer, node)

    def lose(self, who: str, epoch: int, owned: list[int]) -> None:
        """Sends a heartbeat that gets no answer."""
        self.ownership._asked(cast(BrokerConnection, Node("n1")), consumer_request(who, epoch, owned))
        self.time += 1

    def tasks(
        self, who: str, epoch: int, owned: list[int], told: list[int] | None, standbys: tuple[int, ...] = ()
    ) -> None:
        def listed(indexes: list[int]) -> list[TaskIds]:
            return [TaskIds(subtopology_id="0", partitions=indexes)]

        request = StreamsGroupHeartbeatRequest(
            group_id="g", member_id=who, member_epoch=epoch, active_tasks=listed(owned)
        )
        answer = StreamsGroupHeartbeatResponse(member_id=who, member_epoch=epoch, standby_tasks=listed(list(standbys)))
        if told is not None:
            answer.active_tasks = listed(told)
        self.ask(request, answer)

    def sync(self, who: str, generation: int, told: list[int], instance: str | None = None) -> None:
        assigned = ConsumerProtocolAssignment(assigned_partitions=[TopicPartition(topic="t", partitions=told)])
        request = SyncGroupRequest(group_id="g", generation_id=generation, member_id=who, group_instance_id=instance)
        data = b"\0\0" + bytes(encode(assigned, 0))
        self.ask(request, SyncGroupResponse(assignment=data))


def test_partition_reassigned_after_its_release_breaks_no_rule() -> None:
    told = Told()
    told.heartbeat("a", 1, [], [0, 1])
    told.heartbeat("b", 2, [], [])
    told.heartbeat("a", 1, [0, 1], [0])
    told.heartbeat("a", 2, [0], None)
    told.heartbeat("b", 2, [], [1])
    told.heartbeat("a", 2, [0], None)
    assert told.broken == []


def test_check_finds_a_partition_that_is_reassigned_before_its_release() -> None:
    told = Told()
    told.heartbeat("a", 1, [], [0, 1])
    told.heartbeat("a", 1, [0, 1], [0])
    told.heartbeat("b", 2, [], [1])
    assert told.broken == []
    told.heartbeat("a", 2, [0], None)
    assert told.broken == ["one owner at a time"]


def test_member_that_joins_again_after_its_session_expired_no_longer_holds_its_partitions() -> None:
    told = Told()
    told.heartbeat("a", 1, [], [0, 1], joins=True)
    told.heartbeat("b", 2, [], [1], joins=True)
    told.heartbeat("a", 3, [], [], joins=True)
    assert told.broken == []


def test_partition_counts_as_released_even_if_the_heartbeat_got_no_answer() -> None:
    told = Told()
    told.heartbeat("a", 1, [], [0, 1])
    told.heartbeat("a", 1, [0, 1], [0])
    told.lose("a", 1, [0])
    told.heartbeat("b", 2, [], [1])
    told.heartbeat("a", 2, [0], None)
    assert told.broken == []


def test_member_owns_a_partition_that_is_assigned_to_it_again_after_its_release() -> None:
    told = Told()
    told.heartbeat("a", 1, [], [0, 1])
    told.lose("a", 1, [0])
    told.heartbeat("a", 2, [0], [0, 1])
    told.heartbeat("b", 2, [], [1])
    told.heartbeat("a", 3, [0, 1], None)
    assert told.broken == ["one owner per epoch", "one owner at a time"]


def test_check_ignores_answers_of_an_old_coordinator_that_was_replaced() -> None:
    told = Told()
    told.heartbeat("a", 1, [], [0], node="n1")
    told.heartbeat("b", 2, [], [0], node="n2")
    told.heartbeat("a", 1, [0], None, node="n1")
    assert told.broken == []


def test_check_finds_two_owners_in_one_epoch_unless_the_coordinator_lost_its_state() -> None:
    for excused, broken in ((False, ["one owner per epoch"]), (True, [])):
        told = Told(excused=excused)
        told.heartbeat("a", 3, [], [0])
        told.heartbeat("b", 3, [], [0])
        assert told.broken == broken


def test_check_finds_two_owners_in_one_generation_and_accepts_a_returning_static_member() -> None:
    told = Told()
    told.sync("a", 4, [0], instance="i")
    told.sync("a-again", 4, [0], instance="i")
    told.sync("b", 5, [0])
    assert told.broken == []
    told.sync("c", 5, [0])
    assert told.broken == ["one owner per epoch"]


def test_check_forgets_the_owners_of_a_deleted_group() -> None:
    told = Told()
    told.sync("a", 1, [0])
    told.ask(DeleteGroupsRequest(groups_names=["g"]), None)
    told.sync("b", 1, [0])
    assert told.broken == []


def test_check_finds_two_members_with_the_same_partition_in_the_state_of_a_coordinator() -> None:
    told, group = Told(), ConsumerGroup("g")
    group.members.put(ConsumerMember("a", assigned={TOPIC: {0: 1}}, pending_revocation={TOPIC: {1: 1}}))
    group.members.put(ConsumerMember("b", assigned={TOPIC: {2: 2}}))
    told.ownership._state("n1", group)
    assert told.broken == []
    group.members.put(ConsumerMember("b", assigned={TOPIC: {1: 2}}))
    told.ownership._state("n1", group)
    assert told.broken == ["one owner by state"]


def test_check_finds_two_owners_of_an_active_task_and_allows_several_owners_of_a_standby_task() -> None:
    told = Told()
    told.tasks("a", 2, [], [0, 1])
    told.tasks("b", 3, [], [], standbys=(0,))
    told.tasks("c", 3, [], [], standbys=(0,))
    told.tasks("a", 2, [0, 1], [0])
    told.tasks("a", 3, [0], None)
    told.tasks("b", 3, [], [1])
    assert told.broken == []
    told.tasks("c", 3, [], [1])
    assert told.broken == ["one owner per epoch"]


def test_check_finds_an_active_task_that_moves_before_its_old_owner_has_released_it() -> None:
    told = Told()
    told.tasks("a", 2, [], [0, 1])
    told.tasks("b", 3, [], [1])
    told.tasks("a", 2, [0, 1], [0])
    assert told.broken == ["one owner at a time"]


def test_check_finds_two_members_with_the_same_active_task_in_the_state_of_a_coordinator() -> None:
    told, group = Told(), StreamsGroup("g")
    active, standby = TaskKey(Role.ACTIVE, "0"), TaskKey(Role.STANDBY, "0")
    group.put(StreamsMember("a", assigned={active: {0: 1}}, pending_revocation={active: {1: 1}}))
    group.put(StreamsMember("b", assigned={active: {2: 2}, standby: {0: 0}}))
    told.ownership._state("n1", group)
    assert told.broken == []
    group.put(StreamsMember("b", assigned={active: {1: 2}}))
    told.ownership._state("n1", group)
    assert told.broken == ["one owner by state"]
