"""Groups of the new consumer protocol (KIP-848): heartbeats, their refusals, and admin requests."""

from __future__ import annotations

from typing import Any

import pytest
from oracle_peer import Peer
from oracle_transcript import render

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.api_12_heartbeat import HeartbeatRequest
from penstock.protocol.messages.api_15_describe_groups import DescribeGroupsRequest
from penstock.protocol.messages.api_16_list_groups import ListGroupsRequest
from penstock.protocol.messages.api_42_delete_groups import DeleteGroupsRequest
from penstock.protocol.messages.api_68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.protocol.messages.api_69_consumer_group_describe import ConsumerGroupDescribeRequest

LEAVE, LEAVE_FOR_A_WHILE = -1, -2


@pytest.fixture(autouse=True)
def offsets_topic(peer: Peer) -> None:
    peer.have_offsets_topic()


def beat(group: str, member: str, epoch: int, **more: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **more)


def join(group: str, member: str, *topics: str, **more: Any) -> ConsumerGroupHeartbeatRequest:
    fields: dict[str, Any] = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": list(topics),
        "topic_partitions": [],
        **more,
    }
    return beat(group, member, 0, **fields)


def topic_that_coordinators_know(peer: Peer, partitions: int = 1) -> str:
    """Creates a topic and waits for Kafka's coordinators, which learn of it a moment after its leaders."""
    topic = peer.topic(partitions=partitions)

    def assigned() -> bool:
        answer = peer.quietly(join(peer.unique("probe"), MEMBER, topic))
        return bool(answer.assignment and answer.assignment.topic_partitions)

    peer.settle(assigned)
    return topic


MEMBER = "AAAAAAAAAAAAAAAAAAAAEQ"
OTHER = "AAAAAAAAAAAAAAAAAAAAEg"


def test_member_of_a_consumer_group_joins_and_gets_partitions(peer: Peer) -> None:
    group, topic = peer.unique("g"), topic_that_coordinators_know(peer, 2)
    joined = peer.ask(join(group, MEMBER, topic))
    epoch = joined.member_epoch
    owned = [TopicPartitions(topic_id=peer.topic_id(topic), partitions=[0, 1])]
    peer.ask(beat(group, MEMBER, epoch, topic_partitions=owned))
    peer.ask(beat(group, MEMBER, epoch))
    peer.ask(beat(group, MEMBER, epoch, subscribed_topic_names=[topic], rebalance_timeout_ms=30_000))
    peer.ask(beat(group, MEMBER, LEAVE))
    peer.ask(beat(group, MEMBER, epoch))
    peer.said("""
        ConsumerGroupHeartbeat v1 member_id=<member 1> member_epoch=2 heartbeat_interval_ms=5000
          assignment:
            topic_partitions: topic_id=<id of t> partitions=[0 1]
        ConsumerGroupHeartbeat v1 member_id=<member 1> member_epoch=2 heartbeat_interval_ms=5000
        ConsumerGroupHeartbeat v1 member_id=<member 1> member_epoch=2 heartbeat_interval_ms=5000
        ConsumerGroupHeartbeat v1 member_id=<member 1> member_epoch=2 heartbeat_interval_ms=5000
        ConsumerGroupHeartbeat v1 member_id=<member 1> member_epoch=-1
        ConsumerGroupHeartbeat v1 error_code=UNKNOWN_MEMBER_ID
    """)


def test_heartbeat_version_0_without_a_member_id_gets_a_member_id_from_the_broker(peer: Peer) -> None:
    group, topic = peer.unique("g"), topic_that_coordinators_know(peer)
    peer.ask(join(group, "", topic), 0)
    peer.ask(join(group, "", topic), 1)
    peer.said("""
        ConsumerGroupHeartbeat v0 member_id=<member 1> member_epoch=2 heartbeat_interval_ms=5000
          assignment:
            topic_partitions: topic_id=<id of t> partitions=[0]
        ConsumerGroupHeartbeat v1 error_code=INVALID_REQUEST
    """)


def test_penstock_answers_invalid_heartbeats_of_consumer_groups_like_kafka(peer: Peer) -> None:
    group, topic = peer.unique("g"), topic_that_coordinators_know(peer)
    epoch = peer.quietly(join(group, MEMBER, topic)).member_epoch
    for what, request in {
        "an empty group": join("", MEMBER, topic),
        "an unknown group": beat(peer.unique("h"), MEMBER, 1),
        "leaving an unknown group": beat(peer.unique("h"), MEMBER, LEAVE),
        "an unknown member": beat(group, OTHER, 1),
        "an unknown member, leaving": beat(group, OTHER, LEAVE),
        "an epoch to come": beat(group, MEMBER, epoch + 5),
        "an epoch below -2": beat(group, MEMBER, -3),
        "leaving for a while without an instance": beat(group, MEMBER, LEAVE_FOR_A_WHILE),
        "no timeout in the first": join(peer.unique("h"), MEMBER, topic, rebalance_timeout_ms=-1),
        "no subscription in the first": join(peer.unique("h"), MEMBER, subscribed_topic_names=None),
        "an empty subscription in the first": join(peer.unique("h"), MEMBER),
        "no partitions in the first": join(peer.unique("h"), MEMBER, topic, topic_partitions=None),
        "owned partitions in the first": join(
            peer.unique("h"),
            MEMBER,
            topic,
            topic_partitions=[TopicPartitions(topic_id=peer.topic_id(topic), partitions=[0])],
        ),
        "an empty instance": join(peer.unique("h"), MEMBER, topic, instance_id=""),
        "an empty rack": join(peer.unique("h"), MEMBER, topic, rack_id=""),
        "an unknown assignor": join(peer.unique("h"), MEMBER, topic, server_assignor="nope"),
        "a known assignor": join(peer.unique("h"), MEMBER, topic, server_assignor="range"),
        "an expression that is none": join(
            peer.unique("h"), MEMBER, subscribed_topic_names=None, subscribed_topic_regex="("
        ),
    }.items():
        peer.note(what)
        peer.ask(request)
    peer.said("""
        an empty group
        ConsumerGroupHeartbeat v1 error_code=INVALID_REQUEST
        an unknown group
        ConsumerGroupHeartbeat v1 error_code=GROUP_ID_NOT_FOUND
        leaving an unknown group
        ConsumerGroupHeartbeat v1 error_code=GROUP_ID_NOT_FOUND
        an unknown member
        ConsumerGroupHeartbeat v1 error_code=UNKNOWN_MEMBER_ID
        an unknown member, leaving
        ConsumerGroupHeartbeat v1 error_code=UNKNOWN_MEMBER_ID
        an epoch to come
        ConsumerGroupHeartbeat v1 error_code=FENCED_MEMBER_EPOCH
        an epoch below -2
        ConsumerGroupHeartbeat v1 error_code=INVALID_REQUEST
        leaving for a while without an instance
        ConsumerGroupHeartbeat v1 error_code=INVALID_REQUEST
        no timeout in the first
        ConsumerGroupHeartbeat v1 error_code=INVALID_REQUEST
        no subscription in the first
        ConsumerGroupHeartbeat v1 error_code=INVALID_REQUEST
        an empty subscription in the first
        ConsumerGroupHeartbeat v1 member_id=<member 1> member_epoch=1 heartbeat_interval_ms=5000
          assignment:
        no partitions in the first
        ConsumerGroupHeartbeat v1 error_code=INVALID_REQUEST
        owned partitions in the first
        ConsumerGroupHeartbeat v1 error_code=INVALID_REQUEST
        an empty instance
        ConsumerGroupHeartbeat v1 error_code=INVALID_REQUEST
        an empty rack
        ConsumerGroupHeartbeat v1 error_code=INVALID_REQUEST
        an unknown assignor
        ConsumerGroupHeartbeat v1 error_code=UNSUPPORTED_ASSIGNOR
        a known assignor
        ConsumerGroupHeartbeat v1 member_id=<member 1> member_epoch=2 heartbeat_interval_ms=5000
          assignment:
            topic_partitions: topic_id=<id of t> partitions=[0]
        an expression that is none
        ConsumerGroupHeartbeat v1 error_code=INVALID_REGULAR_EXPRESSION
    """)


def found_by(peer: Peer, expression: str) -> ConsumerGroupHeartbeatResponse:
    """Returns the heartbeat answer that assigns the topics which match the expression."""
    group = peer.unique("g")
    joined = peer.quietly(join(group, MEMBER, subscribed_topic_names=None, subscribed_topic_regex=expression))
    epochs, answers = [joined.member_epoch], [joined]

    def assigned() -> bool:
        """Repeats heartbeats until the assignment comes: Kafka resolves expressions in the background."""
        if not (answers[-1].assignment and answers[-1].assignment.topic_partitions):
            answers.append(peer.quietly(beat(group, MEMBER, epochs[-1])))
            epochs.append(answers[-1].member_epoch)
            return False
        return True

    peer.settle(assigned)
    found: ConsumerGroupHeartbeatResponse = answers[-1]
    return found


def test_subscribed_regular_expression_of_a_consumer_group_matches_internal_topics(peer: Peer) -> None:
    found = found_by(peer, "__consumer_offsets").assignment
    assert found is not None
    peer.note(f"{len(found.topic_partitions)} topic")
    peer.said("""
        1 topic
    """)


def test_subscribed_regular_expression_of_a_consumer_group_matches_topics(peer: Peer) -> None:
    topic = peer.topic("found")
    peer.note(render(found_by(peer, f"{topic[:-1]}."), 1, peer.masks))
    peer.said("""
        ConsumerGroupHeartbeat v1 member_id=<member 1> member_epoch=2 heartbeat_interval_ms=5000
          assignment:
            topic_partitions: topic_id=<id of found> partitions=[0]
    """)


def test_new_static_member_of_a_consumer_group_replaces_and_fences_the_old_member(peer: Peer) -> None:
    group, topic = peer.unique("g"), topic_that_coordinators_know(peer)
    epoch = peer.ask(join(group, MEMBER, topic, instance_id="i")).member_epoch
    peer.ask(join(group, OTHER, topic, instance_id="i"))
    peer.ask(beat(group, OTHER, epoch, instance_id="i"))
    peer.ask(beat(group, MEMBER, LEAVE_FOR_A_WHILE, instance_id="i"))
    peer.ask(join(group, OTHER, topic, instance_id="i"))
    peer.ask(beat(group, MEMBER, epoch, instance_id="i"))
    peer.ask(beat(group, OTHER, LEAVE, instance_id="j"))
    peer.ask(beat(group, OTHER, LEAVE, instance_id="i"))
    peer.said("""
        ConsumerGroupHeartbeat v1 member_id=<member 1> member_epoch=2 heartbeat_interval_ms=5000
          assignment:
            topic_partitions: topic_id=<id of t> partitions=[0]
        ConsumerGroupHeartbeat v1 error_code=UNRELEASED_INSTANCE_ID
        ConsumerGroupHeartbeat v1 error_code=FENCED_INSTANCE_ID
        ConsumerGroupHeartbeat v1 member_id=<member 1> member_epoch=-2
        ConsumerGroupHeartbeat v1 member_id=<member 2> member_epoch=2 heartbeat_interval_ms=5000
          assignment:
            topic_partitions: topic_id=<id of t> partitions=[0]
        ConsumerGroupHeartbeat v1 error_code=FENCED_INSTANCE_ID
        ConsumerGroupHeartbeat v1 error_code=UNKNOWN_MEMBER_ID
        ConsumerGroupHeartbeat v1 member_id=<member 2> member_epoch=-1
    """)


def commit(group: str, topic: str, member: str, epoch: int) -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="m")
    return OffsetCommitRequest(
        group_id=group,
        member_id=member,
        generation_id_or_member_epoch=epoch,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )


def offsets_of(group: str, topic: str, **more: Any) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics, **more)])


def test_members_of_a_consumer_group_commit_and_fetch_offsets(peer: Peer) -> None:
    group, topic = peer.unique("g"), topic_that_coordinators_know(peer)
    epoch = peer.quietly(join(group, MEMBER, topic)).member_epoch
    peer.ask(commit(group, topic, MEMBER, epoch), 9)
    peer.ask(commit(group, topic, MEMBER, epoch), 8)
    peer.ask(commit(group, topic, MEMBER, epoch + 1), 9)
    peer.ask(commit(group, topic, MEMBER, 0), 9)
    peer.ask(commit(group, topic, OTHER, epoch), 9)
    peer.ask(commit(group, topic, "", -1), 9)
    peer.ask(offsets_of(group, topic), 9)
    peer.ask(offsets_of(group, topic, member_id=MEMBER, member_epoch=epoch), 9)
    peer.ask(offsets_of(group, topic, member_id=MEMBER, member_epoch=epoch + 3), 9)
    peer.ask(offsets_of(group, topic, member_id=OTHER, member_epoch=epoch), 9)
    peer.said("""
        OffsetCommit v9
          topics: name=t
            partitions:
        OffsetCommit v8
          topics: name=t
            partitions: error_code=UNSUPPORTED_VERSION
        OffsetCommit v9
          topics: name=t
            partitions: error_code=STALE_MEMBER_EPOCH
        OffsetCommit v9
          topics: name=t
            partitions: error_code=STALE_MEMBER_EPOCH
        OffsetCommit v9
          topics: name=t
            partitions: error_code=UNKNOWN_MEMBER_ID
        OffsetCommit v9
          topics: name=t
            partitions: error_code=UNKNOWN_MEMBER_ID
        OffsetFetch v9
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=5 metadata=m
        OffsetFetch v9
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=5 metadata=m
        OffsetFetch v9
          groups: group_id=g error_code=STALE_MEMBER_EPOCH
        OffsetFetch v9
          groups: group_id=g error_code=UNKNOWN_MEMBER_ID
    """)


def test_consumer_groups_are_described_listed_and_deleted_as_in_kafka(peer: Peer) -> None:
    group, topic, nope = peer.unique("g"), topic_that_coordinators_know(peer), peer.unique("nope")
    peer.quietly(join(group, MEMBER, topic))

    def described(*names: str) -> None:
        answer = peer.quietly(ConsumerGroupDescribeRequest(group_ids=list(names)))
        answer.groups.sort(key=lambda each: each.group_id)
        for each in answer.groups:
            for member in each.members:
                member.client_host = ""
        peer.note(render(answer, 1, peer.masks))

    described(group, nope)
    described("")
    peer.ask(DescribeGroupsRequest(groups=[group]), 5)
    peer.ask(DescribeGroupsRequest(groups=[group]), 6)
    tried: list[dict[str, Any]] = [
        {},
        {"types_filter": ["consumer"]},
        {"types_filter": ["classic"]},
        {"states_filter": ["stable"]},
    ]
    for filters in tried:
        answer = peer.quietly(ListGroupsRequest(**filters))
        answer.groups = [each for each in answer.groups if each.group_id == group]
        peer.note(f"{filters}")
        peer.note(render(answer, 5, peer.masks))
    peer.ask(DeleteGroupsRequest(groups_names=[group]))
    peer.quietly(beat(group, MEMBER, LEAVE))
    described(group)
    peer.ask(DeleteGroupsRequest(groups_names=[group]))
    described(group)
    peer.said("""
        ConsumerGroupDescribe v1
          groups: group_id=g group_state=Stable group_epoch=2 assignment_epoch=2 assignor_name=uniform
            members: member_id=<member 1> member_epoch=2 client_id=oracle subscribed_topic_names=[t]
                  subscribed_topic_regex='' member_type=1
              assignment:
                topic_partitions: topic_id=<id of t> topic_name=t partitions=[0]
              target_assignment:
                topic_partitions: topic_id=<id of t> topic_name=t partitions=[0]
          groups: error_code=GROUP_ID_NOT_FOUND group_id=nope
        ConsumerGroupDescribe v1
          groups: error_code=INVALID_GROUP_ID
        DescribeGroups v5
          groups: group_id=g group_state=Dead
        DescribeGroups v6
          groups: error_code=GROUP_ID_NOT_FOUND group_id=g group_state=Dead
        {}
        ListGroups v5
          groups: group_id=g protocol_type=consumer group_state=Stable group_type=consumer
        {'types_filter': ['consumer']}
        ListGroups v5
          groups: group_id=g protocol_type=consumer group_state=Stable group_type=consumer
        {'types_filter': ['classic']}
        ListGroups v5
        {'states_filter': ['stable']}
        ListGroups v5
          groups: group_id=g protocol_type=consumer group_state=Stable group_type=consumer
        DeleteGroups v2
          results: group_id=g error_code=NON_EMPTY_GROUP
        ConsumerGroupDescribe v1
          groups: group_id=g group_state=Empty group_epoch=3 assignment_epoch=2 assignor_name=uniform
        DeleteGroups v2
          results: group_id=g
        ConsumerGroupDescribe v1
          groups: error_code=GROUP_ID_NOT_FOUND group_id=g
    """)


def test_consumer_group_describe_refuses_a_classic_group(peer: Peer) -> None:
    group, topic = peer.unique("g"), topic_that_coordinators_know(peer)
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"\x00\x01")]
    classic = JoinGroupRequest(
        group_id=group, session_timeout_ms=30_000, rebalance_timeout_ms=30_000, protocol_type="x", protocols=protocols
    )
    peer.quietly(classic, 3)
    peer.ask(ConsumerGroupDescribeRequest(group_ids=[group]))
    peer.ask(join(group, MEMBER, topic))
    peer.said("""
        ConsumerGroupDescribe v1
          groups: error_code=GROUP_ID_NOT_FOUND group_id=g
        ConsumerGroupHeartbeat v1 error_code=GROUP_ID_NOT_FOUND
    """)


def test_classic_group_requests_to_a_consumer_group_are_refused(peer: Peer) -> None:
    group, topic = peer.unique("g"), topic_that_coordinators_know(peer)
    peer.quietly(join(group, MEMBER, topic))
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"\x00\x01")]
    request = JoinGroupRequest(
        group_id=group, session_timeout_ms=30_000, rebalance_timeout_ms=30_000, protocol_type="x", protocols=protocols
    )
    peer.ask(request, 3)
    request.protocol_type = "consumer"  # with bytes that are not a subscription, on which Kafka fails
    unreadable = peer.quietly(request, 3).error_code
    wanted = {"kafka": ErrorCode.UNKNOWN_SERVER_ERROR, "penstock": ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
    assert unreadable == wanted[peer.name]
    peer.ask(HeartbeatRequest(group_id=group, generation_id=1, member_id=MEMBER))
    peer.ask(HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody"))
    peer.said("""
        JoinGroup v3 error_code=INCONSISTENT_GROUP_PROTOCOL
        Heartbeat v4 error_code=UNKNOWN_MEMBER_ID
        Heartbeat v4 error_code=UNKNOWN_MEMBER_ID
    """)
