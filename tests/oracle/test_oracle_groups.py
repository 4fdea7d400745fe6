"""Consumer groups, mostly refusals: the classic protocol, offsets, and admin requests."""

from __future__ import annotations

from typing import Any

import pytest
from oracle_peer import Peer
from oracle_transcript import render

from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.api_12_heartbeat import HeartbeatRequest
from penstock.protocol.messages.api_13_leave_group import LeaveGroupRequest, MemberIdentity
from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from penstock.protocol.messages.api_15_describe_groups import DescribeGroupsRequest
from penstock.protocol.messages.api_16_list_groups import ListGroupsRequest
from penstock.protocol.messages.api_42_delete_groups import DeleteGroupsRequest
from penstock.protocol.messages.api_47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

UNKNOWN_ID = bytes(15) + b"\x07"


@pytest.fixture(autouse=True)
def offsets_topic(peer: Peer) -> None:
    peer.have_offsets_topic()


def join(group: str, member: str = "", **more: Any) -> JoinGroupRequest:
    fields: dict[str, Any] = {
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=b"\x00\x01")],
        **more,
    }
    return JoinGroupRequest(group_id=group, member_id=member, **fields)


def sync(group: str, member: str, generation: int = 1, **more: Any) -> SyncGroupRequest:
    given = [SyncGroupRequestAssignment(member_id=member, assignment=b"mine")]
    fields: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range", "assignments": given, **more}
    return SyncGroupRequest(group_id=group, member_id=member, generation_id=generation, **fields)


def stable(peer: Peer, group: str, **more: Any) -> str:
    """Forms a group of one member, in its first generation. Returns the member id."""
    first = peer.quietly(join(group, **more), 9)
    member: str = first.member_id
    if first.error_code:
        joined = peer.quietly(join(group, member, **more), 9)
        assert joined.error_code == 0, joined
    assert peer.quietly(sync(group, member, group_instance_id=more.get("group_instance_id")), 5).error_code == 0
    return member


# --- joining ----------------------------------------------------------------------------------------------------


def test_every_version_of_join_group_lets_a_member_join(peer: Peer) -> None:
    for version in range(10):
        group = peer.unique("g")
        answer = peer.ask(join(group), version)
        if answer.error_code:
            peer.ask(join(group, answer.member_id), version)
    peer.said("""
        JoinGroup v0 generation_id=1 protocol_name=range leader=<leader 1> member_id=<member 1>
          members: member_id=<member 1> metadata=b'\\x00\\x01'
        JoinGroup v1 generation_id=1 protocol_name=range leader=<leader 2> member_id=<member 2>
          members: member_id=<member 2> metadata=b'\\x00\\x01'
        JoinGroup v2 generation_id=1 protocol_name=range leader=<leader 3> member_id=<member 3>
          members: member_id=<member 3> metadata=b'\\x00\\x01'
        JoinGroup v3 generation_id=1 protocol_name=range leader=<leader 4> member_id=<member 4>
          members: member_id=<member 4> metadata=b'\\x00\\x01'
        JoinGroup v4 error_code=MEMBER_ID_REQUIRED member_id=<member 5>
        JoinGroup v4 generation_id=1 protocol_name=range leader=<leader 5> member_id=<member 5>
          members: member_id=<member 5> metadata=b'\\x00\\x01'
        JoinGroup v5 error_code=MEMBER_ID_REQUIRED member_id=<member 6>
        JoinGroup v5 generation_id=1 protocol_name=range leader=<leader 6> member_id=<member 6>
          members: member_id=<member 6> metadata=b'\\x00\\x01'
        JoinGroup v6 error_code=MEMBER_ID_REQUIRED member_id=<member 7>
        JoinGroup v6 generation_id=1 protocol_name=range leader=<leader 7> member_id=<member 7>
          members: member_id=<member 7> metadata=b'\\x00\\x01'
        JoinGroup v7 error_code=MEMBER_ID_REQUIRED protocol_name=null member_id=<member 8>
        JoinGroup v7 generation_id=1 protocol_type=consumer protocol_name=range leader=<leader 8>
              member_id=<member 8>
          members: member_id=<member 8> metadata=b'\\x00\\x01'
        JoinGroup v8 error_code=MEMBER_ID_REQUIRED protocol_name=null member_id=<member 9>
        JoinGroup v8 generation_id=1 protocol_type=consumer protocol_name=range leader=<leader 9>
              member_id=<member 9>
          members: member_id=<member 9> metadata=b'\\x00\\x01'
        JoinGroup v9 error_code=MEMBER_ID_REQUIRED protocol_name=null member_id=<member 10>
        JoinGroup v9 generation_id=1 protocol_type=consumer protocol_name=range leader=<leader 10>
              member_id=<member 10>
          members: member_id=<member 10> metadata=b'\\x00\\x01'
    """)


def test_penstock_answers_invalid_join_group_requests_like_kafka(peer: Peer) -> None:
    for what, request in {
        "an empty group": join(""),
        "a session too short": join(peer.unique("g"), session_timeout_ms=1),
        "a session too long": join(peer.unique("g"), session_timeout_ms=10_000_000),
        "a negative session": join(peer.unique("g"), session_timeout_ms=-1),
        "no protocols": join(peer.unique("g"), protocols=[]),
        "no protocol type": join(peer.unique("g"), protocol_type=""),
        "a member nobody knows": join(peer.unique("g"), "nobody"),
        "an empty instance": join(peer.unique("g"), group_instance_id=""),
        "a bad instance": join(peer.unique("g"), group_instance_id="a b"),
        "an instance called .": join(peer.unique("g"), group_instance_id="."),
        "an instance of 300 letters": join(peer.unique("g"), group_instance_id="x" * 300),
        "a group with strange letters": join(peer.unique("ä b/c")),
    }.items():
        peer.note(what)
        peer.ask(request, 9)
        if request.group_instance_id is None:
            peer.ask(request, 4)
    peer.said("""
        an empty group
        JoinGroup v9 error_code=INVALID_GROUP_ID protocol_name=null
        JoinGroup v4 error_code=INVALID_GROUP_ID
        a session too short
        JoinGroup v9 error_code=INVALID_SESSION_TIMEOUT protocol_name=null
        JoinGroup v4 error_code=INVALID_SESSION_TIMEOUT
        a session too long
        JoinGroup v9 error_code=INVALID_SESSION_TIMEOUT protocol_name=null
        JoinGroup v4 error_code=INVALID_SESSION_TIMEOUT
        a negative session
        JoinGroup v9 error_code=INVALID_SESSION_TIMEOUT protocol_name=null
        JoinGroup v4 error_code=INVALID_SESSION_TIMEOUT
        no protocols
        JoinGroup v9 error_code=INCONSISTENT_GROUP_PROTOCOL protocol_name=null
        JoinGroup v4 error_code=INCONSISTENT_GROUP_PROTOCOL
        no protocol type
        JoinGroup v9 error_code=INCONSISTENT_GROUP_PROTOCOL protocol_name=null
        JoinGroup v4 error_code=INCONSISTENT_GROUP_PROTOCOL
        a member nobody knows
        JoinGroup v9 error_code=UNKNOWN_MEMBER_ID protocol_name=null member_id=<member 1>
        JoinGroup v4 error_code=UNKNOWN_MEMBER_ID member_id=<member 1>
        an empty instance
        JoinGroup v9 generation_id=1 protocol_type=consumer protocol_name=range leader=<leader 1>
              member_id=<member 2>
          members: member_id=<member 2> group_instance_id='' metadata=b'\\x00\\x01'
        a bad instance
        JoinGroup v9 generation_id=1 protocol_type=consumer protocol_name=range leader=<leader 2>
              member_id=<member 3>
          members: member_id=<member 3> group_instance_id=a b metadata=b'\\x00\\x01'
        an instance called .
        JoinGroup v9 generation_id=1 protocol_type=consumer protocol_name=range leader=<leader 3>
              member_id=<member 4>
          members: member_id=<member 4> group_instance_id=. metadata=b'\\x00\\x01'
        an instance of 300 letters
        JoinGroup v9 generation_id=1 protocol_type=consumer protocol_name=range leader=<leader 4>
              member_id=<member 5>
          members: member_id=<member 5> group_instance_id=xxxxxxxx…(300) metadata=b'\\x00\\x01'
        a group with strange letters
        JoinGroup v9 error_code=MEMBER_ID_REQUIRED protocol_name=null member_id=<member 6>
        JoinGroup v4 error_code=MEMBER_ID_REQUIRED member_id=<member 7>
    """)


def test_join_group_without_a_protocol_of_the_existing_members_is_refused(peer: Peer) -> None:
    group = peer.unique("g")
    stable(peer, group)
    other = [JoinGroupRequestProtocol(name="other", metadata=b"")]
    peer.ask(join(group, protocols=other), 9)
    peer.ask(join(group, protocol_type="connect"), 9)
    peer.ask(join(group, "nobody"), 9)
    peer.said("""
        JoinGroup v9 error_code=INCONSISTENT_GROUP_PROTOCOL protocol_name=null
        JoinGroup v9 error_code=INCONSISTENT_GROUP_PROTOCOL protocol_name=null
        JoinGroup v9 error_code=UNKNOWN_MEMBER_ID protocol_name=null member_id=<member 1>
    """)


def test_penstock_answers_invalid_heartbeat_and_sync_group_requests_like_kafka(peer: Peer) -> None:
    group = peer.unique("g")
    member = stable(peer, group)
    for what, beat in {
        "fine": HeartbeatRequest(group_id=group, member_id=member, generation_id=1),
        "an old generation": HeartbeatRequest(group_id=group, member_id=member, generation_id=0),
        "a generation to come": HeartbeatRequest(group_id=group, member_id=member, generation_id=2),
        "no generation": HeartbeatRequest(group_id=group, member_id=member, generation_id=-1),
        "an unknown member": HeartbeatRequest(group_id=group, member_id="nobody", generation_id=1),
        "no member": HeartbeatRequest(group_id=group, member_id="", generation_id=1),
        "an unknown group": HeartbeatRequest(group_id=peer.unique("h"), member_id=member, generation_id=1),
        "an empty group": HeartbeatRequest(group_id="", member_id=member, generation_id=1),
        "an unknown instance": HeartbeatRequest(
            group_id=group, member_id=member, generation_id=1, group_instance_id="x"
        ),
    }.items():
        peer.note(what)
        peer.ask(beat)
    for what, request in {
        "again": sync(group, member),
        "an old generation": sync(group, member, 0),
        "an unknown member": sync(group, "nobody"),
        "another protocol": sync(group, member, protocol_name="other"),
        "another type": sync(group, member, protocol_type="connect"),
        "no protocol": sync(group, member, protocol_name=None),
        "an unknown group": sync(peer.unique("h"), member),
        "an empty group": sync("", member),
        "an unknown instance": sync(group, member, group_instance_id="x"),
    }.items():
        peer.note(what)
        peer.ask(request)
    peer.said("""
        fine
        Heartbeat v4
        an old generation
        Heartbeat v4 error_code=ILLEGAL_GENERATION
        a generation to come
        Heartbeat v4 error_code=ILLEGAL_GENERATION
        no generation
        Heartbeat v4 error_code=ILLEGAL_GENERATION
        an unknown member
        Heartbeat v4 error_code=UNKNOWN_MEMBER_ID
        no member
        Heartbeat v4 error_code=UNKNOWN_MEMBER_ID
        an unknown group
        Heartbeat v4 error_code=UNKNOWN_MEMBER_ID
        an empty group
        Heartbeat v4 error_code=INVALID_GROUP_ID
        an unknown instance
        Heartbeat v4 error_code=UNKNOWN_MEMBER_ID
        again
        SyncGroup v5 protocol_type=consumer protocol_name=range assignment=b'mine'
        an old generation
        SyncGroup v5 error_code=ILLEGAL_GENERATION
        an unknown member
        SyncGroup v5 error_code=UNKNOWN_MEMBER_ID
        another protocol
        SyncGroup v5 error_code=INCONSISTENT_GROUP_PROTOCOL
        another type
        SyncGroup v5 error_code=INCONSISTENT_GROUP_PROTOCOL
        no protocol
        SyncGroup v5 error_code=INCONSISTENT_GROUP_PROTOCOL
        an unknown group
        SyncGroup v5 error_code=UNKNOWN_MEMBER_ID
        an empty group
        SyncGroup v5 error_code=INVALID_GROUP_ID
        an unknown instance
        SyncGroup v5 error_code=UNKNOWN_MEMBER_ID
    """)


def leave(group: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
    gone = [MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in members]
    return LeaveGroupRequest(group_id=group, members=gone)


def test_leave_group_removes_known_members_and_refuses_unknown_members(peer: Peer) -> None:
    group, old = peer.unique("g"), peer.unique("old")
    member, before = stable(peer, group), stable(peer, old)
    peer.ask(leave(group, ("nobody", None), ("", "nobody"), (member, "x")))
    peer.ask(leave(group, (member, None)))
    peer.ask(leave(group, (member, None)))
    peer.ask(leave(peer.unique("h"), (member, None)))
    peer.ask(leave(""))
    peer.ask(leave(group))
    for version in (0, 2):
        peer.ask(LeaveGroupRequest(group_id=old, member_id="nobody"), version)
        peer.ask(LeaveGroupRequest(group_id=peer.unique("h"), member_id="nobody"), version)
        peer.ask(LeaveGroupRequest(group_id="", member_id="nobody"), version)
    peer.ask(LeaveGroupRequest(group_id=old, member_id=before), 1)
    peer.said("""
        LeaveGroup v5
          members: member_id=<member 1> group_instance_id=null error_code=UNKNOWN_MEMBER_ID
          members: group_instance_id=nobody error_code=UNKNOWN_MEMBER_ID
          members: member_id=<member 2> group_instance_id=x error_code=UNKNOWN_MEMBER_ID
        LeaveGroup v5
          members: member_id=<member 2> group_instance_id=null
        LeaveGroup v5
          members: member_id=<member 2> group_instance_id=null error_code=UNKNOWN_MEMBER_ID
        LeaveGroup v5
          members: member_id=<member 2> group_instance_id=null error_code=UNKNOWN_MEMBER_ID
        LeaveGroup v5 error_code=INVALID_GROUP_ID
        LeaveGroup v5
        LeaveGroup v0 error_code=UNKNOWN_MEMBER_ID
        LeaveGroup v0 error_code=UNKNOWN_MEMBER_ID
        LeaveGroup v0 error_code=INVALID_GROUP_ID
        LeaveGroup v2 error_code=UNKNOWN_MEMBER_ID
        LeaveGroup v2 error_code=UNKNOWN_MEMBER_ID
        LeaveGroup v2 error_code=INVALID_GROUP_ID
        LeaveGroup v1
    """)


def test_static_member_is_fenced_by_a_new_member_with_its_instance_id(peer: Peer) -> None:
    group = peer.unique("g")
    first = stable(peer, group, group_instance_id="i")
    second = peer.ask(join(group, group_instance_id="i"), 9)
    peer.ask(HeartbeatRequest(group_id=group, member_id=first, generation_id=1, group_instance_id="i"))
    peer.ask(HeartbeatRequest(group_id=group, member_id=second.member_id, generation_id=1, group_instance_id="i"))
    peer.ask(commit(group, topic=peer.topic(), member=first, generation=1, instance="i"), 9)
    peer.ask(leave(group, ("", "i")))
    peer.said("""
        JoinGroup v9 generation_id=1 protocol_type=consumer protocol_name=range leader=<leader 1>
              skip_assignment=True member_id=<member 1>
          members: member_id=<member 1> group_instance_id=i metadata=b'\\x00\\x01'
        Heartbeat v4 error_code=FENCED_INSTANCE_ID
        Heartbeat v4
        OffsetCommit v9
          topics: name=t
            partitions: error_code=FENCED_INSTANCE_ID
        LeaveGroup v5
          members: group_instance_id=i
    """)


# --- offsets ----------------------------------------------------------------------------------------------------


def commit(
    group: str,
    topic: str | bytes,
    *offsets: int,
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    metadata: str | None = "m",
    partition: int = 0,
) -> OffsetCommitRequest:
    parts = [
        OffsetCommitRequestPartition(
            partition_index=partition + index,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata=metadata,
        )
        for index, offset in enumerate(offsets or (5,))
    ]
    named: dict[str, Any] = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
    return OffsetCommitRequest(
        group_id=group,
        member_id=member,
        generation_id_or_member_epoch=generation,
        group_instance_id=instance,
        topics=[OffsetCommitRequestTopic(partitions=parts, **named)],
    )


def offsets_of(group: str, topic: str | bytes | None, *partitions: int, **more: Any) -> OffsetFetchRequest:
    topics: list[OffsetFetchRequestTopics] | None = None
    if topic is not None:
        named: dict[str, Any] = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
        topics = [OffsetFetchRequestTopics(partition_indexes=list(partitions), **named)]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics, **more)])


def test_offsets_of_a_group_are_committed_and_fetched_as_in_kafka(peer: Peer) -> None:
    group, topic = peer.unique("g"), peer.topic(partitions=2)
    for version in (2, 5, 8, 9):
        peer.ask(commit(group, topic, 5 + version, metadata=f"v{version}"), version)
    peer.ask(commit(group, peer.topic_id(topic), 20), 10)
    asked = [OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1, 7])]
    for version in (1, 2, 5, 7):
        peer.ask(OffsetFetchRequest(group_id=group, topics=asked), version)
    peer.ask(OffsetFetchRequest(group_id=group, topics=None), 6)
    peer.ask(offsets_of(group, topic, 0, 1), 8)
    peer.ask(offsets_of(group, topic, 0, 1), 9)
    peer.ask(offsets_of(group, peer.topic_id(topic), 0, 1), 10)
    peer.ask(offsets_of(group, None), 9)
    peer.ask(offsets_of(group, None), 10)
    peer.said("""
        OffsetCommit v2
          topics: name=t
            partitions:
        OffsetCommit v5
          topics: name=t
            partitions:
        OffsetCommit v8
          topics: name=t
            partitions:
        OffsetCommit v9
          topics: name=t
            partitions:
        OffsetCommit v10
          topics: topic_id=<id of t>
            partitions:
        OffsetFetch v1
          topics: name=t
            partitions: committed_offset=20 metadata=m
            partitions: partition_index=1 committed_offset=-1
            partitions: partition_index=7 committed_offset=-1
        OffsetFetch v2
          topics: name=t
            partitions: committed_offset=20 metadata=m
            partitions: partition_index=1 committed_offset=-1
            partitions: partition_index=7 committed_offset=-1
        OffsetFetch v5
          topics: name=t
            partitions: committed_offset=20 metadata=m
            partitions: partition_index=1 committed_offset=-1
            partitions: partition_index=7 committed_offset=-1
        OffsetFetch v7
          topics: name=t
            partitions: committed_offset=20 metadata=m
            partitions: partition_index=1 committed_offset=-1
            partitions: partition_index=7 committed_offset=-1
        OffsetFetch v6
          topics: name=t
            partitions: committed_offset=20 metadata=m
        OffsetFetch v8
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=20 metadata=m
              partitions: partition_index=1 committed_offset=-1
        OffsetFetch v9
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=20 metadata=m
              partitions: partition_index=1 committed_offset=-1
        OffsetFetch v10
          groups: group_id=g
            topics: topic_id=<id of t>
              partitions: committed_offset=20 metadata=m
              partitions: partition_index=1 committed_offset=-1
        OffsetFetch v9
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=20 metadata=m
        OffsetFetch v10
          groups: group_id=g
            topics: topic_id=<id of t>
              partitions: committed_offset=20 metadata=m
    """)


def test_penstock_answers_invalid_offset_commits_like_kafka(peer: Peer) -> None:
    group, topic = peer.unique("g"), peer.topic()
    peer.ask(commit(group, peer.unique("nope")), 9)
    peer.ask(commit(group, topic, partition=7), 9)
    peer.ask(commit(group, topic, partition=-1), 9)
    peer.ask(commit(group, UNKNOWN_ID), 10)
    peer.ask(commit(group, bytes(16)), 10)
    peer.ask(commit(group, topic, -5), 9)
    peer.ask(commit(group, topic, metadata="x" * 5000), 9)
    peer.ask(commit(group, topic, metadata=None), 9)
    peer.ask(commit("", topic), 9)
    peer.ask(HeartbeatRequest(group_id="", generation_id=1, member_id="nobody"), 4)
    peer.ask(OffsetCommitRequest(group_id=group), 9)
    peer.ask(OffsetCommitRequest(group_id=peer.unique("h")), 9)
    peer.said("""
        OffsetCommit v9
          topics: name=nope
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION
        OffsetCommit v9
          topics: name=t
            partitions: partition_index=7 error_code=UNKNOWN_TOPIC_OR_PARTITION
        OffsetCommit v9
          topics: name=t
            partitions: partition_index=-1 error_code=UNKNOWN_TOPIC_OR_PARTITION
        OffsetCommit v10
          topics: topic_id=AAAAAAAAAAAAAAAAAAAABw
            partitions: error_code=UNKNOWN_TOPIC_ID
        OffsetCommit v10
          topics:
            partitions: error_code=UNKNOWN_TOPIC_ID
        OffsetCommit v9
          topics: name=t
            partitions:
        OffsetCommit v9
          topics: name=t
            partitions: error_code=OFFSET_METADATA_TOO_LARGE
        OffsetCommit v9
          topics: name=t
            partitions:
        OffsetCommit v9
          topics: name=t
            partitions:
        Heartbeat v4 error_code=INVALID_GROUP_ID
        OffsetCommit v9
        OffsetCommit v9
    """)


def test_offset_commits_of_unknown_members_are_refused(peer: Peer) -> None:
    group, topic, empty = peer.unique("g"), peer.topic(), peer.unique("e")
    member = stable(peer, group)
    for what, request in {
        "the member": commit(group, topic, member=member, generation=1),
        "an old generation": commit(group, topic, member=member, generation=0),
        "a generation to come": commit(group, topic, member=member, generation=9),
        "no member": commit(group, topic),
        "no member, a generation": commit(group, topic, generation=1),
        "an unknown member": commit(group, topic, member="nobody", generation=1),
        "an unknown instance": commit(group, topic, member=member, generation=1, instance="x"),
        "a member of no group": commit(empty, topic, member="nobody", generation=1),
        "a generation of no group": commit(empty, topic, generation=4),
    }.items():
        peer.note(what)
        peer.ask(request, 9)
    peer.said("""
        the member
        OffsetCommit v9
          topics: name=t
            partitions:
        an old generation
        OffsetCommit v9
          topics: name=t
            partitions: error_code=ILLEGAL_GENERATION
        a generation to come
        OffsetCommit v9
          topics: name=t
            partitions: error_code=ILLEGAL_GENERATION
        no member
        OffsetCommit v9
          topics: name=t
            partitions: error_code=UNKNOWN_MEMBER_ID
        no member, a generation
        OffsetCommit v9
          topics: name=t
            partitions: error_code=UNKNOWN_MEMBER_ID
        an unknown member
        OffsetCommit v9
          topics: name=t
            partitions: error_code=UNKNOWN_MEMBER_ID
        an unknown instance
        OffsetCommit v9
          topics: name=t
            partitions: error_code=UNKNOWN_MEMBER_ID
        a member of no group
        OffsetCommit v9
          topics: name=t
            partitions: error_code=GROUP_ID_NOT_FOUND
        a generation of no group
        OffsetCommit v9
          topics: name=t
            partitions: error_code=GROUP_ID_NOT_FOUND
    """)


def test_penstock_answers_offset_fetch_for_missing_groups_and_topics_like_kafka(peer: Peer) -> None:
    group, topic = peer.unique("g"), peer.topic()
    peer.ask(offsets_of(group, topic, 0, 9), 9)
    peer.ask(offsets_of(group, peer.unique("nope"), 0), 9)
    peer.ask(offsets_of(group, UNKNOWN_ID, 0), 10)
    peer.ask(offsets_of(group, bytes(16), 0), 10)
    peer.ask(offsets_of(group, None), 9)
    peer.ask(offsets_of(group, topic, 0, member_id="nobody", member_epoch=3), 9)
    peer.ask(offsets_of(group, topic), 9)
    peer.ask(OffsetFetchRequest(groups=[]), 9)
    peer.said("""
        OffsetFetch v9
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=-1
              partitions: partition_index=9 committed_offset=-1
        OffsetFetch v9
          groups: group_id=g
            topics: name=nope
              partitions: committed_offset=-1
        OffsetFetch v10
          groups: group_id=g
            topics: topic_id=AAAAAAAAAAAAAAAAAAAABw
              partitions: committed_offset=-1 error_code=UNKNOWN_TOPIC_ID
        OffsetFetch v10
          groups: group_id=g
            topics:
              partitions: committed_offset=-1 error_code=UNKNOWN_TOPIC_ID
        OffsetFetch v9
          groups: group_id=g
        OffsetFetch v9
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=-1
        OffsetFetch v9
          groups: group_id=g
            topics: name=t
        OffsetFetch v9
    """)


def test_penstock_answers_deletions_of_committed_offsets_like_kafka(peer: Peer) -> None:
    group, topic = peer.unique("g"), peer.topic()

    def forget(group: str, topic: str, *partitions: int) -> OffsetDeleteRequest:
        parts = [OffsetDeleteRequestPartition(partition_index=index) for index in partitions]
        return OffsetDeleteRequest(group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=parts)])

    peer.ask(forget(group, topic, 0))
    peer.ask(forget(group, peer.unique("nope"), 0))
    peer.ask(forget(group, peer.unique("nope")))
    peer.ask(OffsetDeleteRequest(group_id=group))
    peer.quietly(commit(group, topic), 9)
    peer.ask(forget(group, peer.unique("nope"), 0))
    peer.ask(forget(group, peer.unique("nope")))
    peer.ask(OffsetDeleteRequest(group_id=group))
    peer.ask(forget(group, topic, 7))
    peer.ask(forget(group, topic, 0))
    peer.ask(forget(group, topic, 0))
    peer.ask(forget("", topic, 0))
    peer.said("""
        OffsetDelete v0 error_code=GROUP_ID_NOT_FOUND
        OffsetDelete v0 error_code=GROUP_ID_NOT_FOUND
        OffsetDelete v0 error_code=GROUP_ID_NOT_FOUND
        OffsetDelete v0 error_code=GROUP_ID_NOT_FOUND
        OffsetDelete v0
          topics: name=nope
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION
        OffsetDelete v0
          topics: name=nope
        OffsetDelete v0
        OffsetDelete v0
          topics: name=t
            partitions: partition_index=7 error_code=UNKNOWN_TOPIC_OR_PARTITION
        OffsetDelete v0
          topics: name=t
            partitions:
        OffsetDelete v0
          topics: name=t
            partitions:
        OffsetDelete v0 error_code=INVALID_GROUP_ID
    """)


# --- the admin's side -------------------------------------------------------------------------------------------


def test_penstock_answers_describe_groups_like_kafka(peer: Peer) -> None:
    group, nope = peer.unique("g"), peer.unique("nope")
    stable(peer, group)
    for version in (0, 3, 5, 6):
        answer = peer.quietly(DescribeGroupsRequest(groups=[group, nope]), version)
        answer.groups.sort(key=lambda each: each.group_id)
        for each in answer.groups:
            for member in each.members:
                assert member.client_host.lstrip("/") == "127.0.0.1"
                member.client_host = ""
        peer.note(render(answer, version, peer.masks))
    peer.ask(DescribeGroupsRequest(groups=[nope], include_authorized_operations=True), 6)
    peer.ask(DescribeGroupsRequest(groups=[]), 6)
    peer.said("""
        DescribeGroups v0
          groups: group_id=g group_state=Stable protocol_type=consumer protocol_data=range
            members: member_id=<member 1> client_id=oracle member_metadata=b'\\x00\\x01'
                  member_assignment=b'mine'
          groups: group_id=nope group_state=Dead
        DescribeGroups v3
          groups: group_id=g group_state=Stable protocol_type=consumer protocol_data=range
            members: member_id=<member 1> client_id=oracle member_metadata=b'\\x00\\x01'
                  member_assignment=b'mine'
          groups: group_id=nope group_state=Dead
        DescribeGroups v5
          groups: group_id=g group_state=Stable protocol_type=consumer protocol_data=range
            members: member_id=<member 1> client_id=oracle member_metadata=b'\\x00\\x01'
                  member_assignment=b'mine'
          groups: group_id=nope group_state=Dead
        DescribeGroups v6
          groups: group_id=g group_state=Stable protocol_type=consumer protocol_data=range
            members: member_id=<member 1> client_id=oracle member_metadata=b'\\x00\\x01'
                  member_assignment=b'mine'
          groups: error_code=GROUP_ID_NOT_FOUND group_id=nope group_state=Dead
        DescribeGroups v6
          groups: error_code=GROUP_ID_NOT_FOUND group_id=nope group_state=Dead
        DescribeGroups v6
    """)


def ask_list(peer: Peer, states: list[str], types: list[str], version: int = 5) -> None:
    answer = peer.quietly(ListGroupsRequest(states_filter=states, types_filter=types), version)
    answer.groups = [group for group in answer.groups if group.group_id in peer.names]
    answer.groups.sort(key=lambda group: group.group_id)
    peer.note(f"states {states}, types {types}")
    peer.note(render(answer, version, peer.masks))


def test_penstock_answers_list_groups_like_kafka(peer: Peer) -> None:
    group, empty = peer.unique("g"), peer.unique("e")
    stable(peer, group)
    peer.quietly(commit(empty, peer.topic()), 9)
    for version in (0, 3):
        ask_list(peer, [], [], version)
    for states in ([], ["Stable"], ["stable"], ["Empty", "Dead"], ["nonsense"]):
        ask_list(peer, states, [])
    for types in (["classic"], ["Classic"], ["consumer"], ["nonsense"]):
        ask_list(peer, [], types)
    peer.said("""
        states [], types []
        ListGroups v0
          groups: group_id=e
          groups: group_id=g protocol_type=consumer
        states [], types []
        ListGroups v3
          groups: group_id=e
          groups: group_id=g protocol_type=consumer
        states [], types []
        ListGroups v5
          groups: group_id=e group_state=Empty group_type=classic
          groups: group_id=g protocol_type=consumer group_state=Stable group_type=classic
        states ['Stable'], types []
        ListGroups v5
          groups: group_id=g protocol_type=consumer group_state=Stable group_type=classic
        states ['stable'], types []
        ListGroups v5
          groups: group_id=g protocol_type=consumer group_state=Stable group_type=classic
        states ['Empty', 'Dead'], types []
        ListGroups v5
          groups: group_id=e group_state=Empty group_type=classic
        states ['nonsense'], types []
        ListGroups v5
        states [], types ['classic']
        ListGroups v5
          groups: group_id=e group_state=Empty group_type=classic
          groups: group_id=g protocol_type=consumer group_state=Stable group_type=classic
        states [], types ['Classic']
        ListGroups v5
          groups: group_id=e group_state=Empty group_type=classic
          groups: group_id=g protocol_type=consumer group_state=Stable group_type=classic
        states [], types ['consumer']
        ListGroups v5
        states [], types ['nonsense']
        ListGroups v5
    """)


def test_penstock_answers_delete_groups_like_kafka(peer: Peer) -> None:
    group, empty = peer.unique("g"), peer.unique("e")
    stable(peer, group)
    peer.quietly(commit(empty, peer.topic()), 9)
    for name in (group, peer.unique("nope"), empty, empty):
        peer.ask(DeleteGroupsRequest(groups_names=[name]))
    peer.ask(DeleteGroupsRequest(groups_names=[]))
    peer.said("""
        DeleteGroups v2
          results: group_id=g error_code=NON_EMPTY_GROUP
        DeleteGroups v2
          results: group_id=nope error_code=GROUP_ID_NOT_FOUND
        DeleteGroups v2
          results: group_id=e
        DeleteGroups v2
          results: group_id=e error_code=GROUP_ID_NOT_FOUND
        DeleteGroups v2
    """)
