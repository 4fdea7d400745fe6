"""Streams groups (KIP-1071): heartbeats, statuses, tasks, offsets and descriptions, with Kafka's answer for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from oracle_peer import Peer

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_08_offset_commit as committing
from penstock.protocol.messages.api_09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.api_16_list_groups import ListGroupsRequest
from penstock.protocol.messages.api_42_delete_groups import DeleteGroupsRequest
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.protocol.messages.api_76_share_group_heartbeat import ShareGroupHeartbeatRequest
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)
from penstock.protocol.messages.api_89_streams_group_describe import StreamsGroupDescribeRequest
from penstock.protocol.vocabulary import ResourceType

MEMBER = "AAAAAAAAAAAAAAAAAAAAEQ"
OTHER = "AAAAAAAAAAAAAAAAAAAAEg"
LEAVE = -1
DELAYED = 5


@pytest.fixture(autouse=True)
def offsets_topic(peer: Peer) -> None:
    peer.have_offsets_topic()


def beat(group: str, member: str, epoch: int, **more: Any) -> StreamsGroupHeartbeatRequest:
    return StreamsGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **more)


def join(group: str, member: str, topology: Topology | None, **more: Any) -> StreamsGroupHeartbeatRequest:
    fields = {
        "rebalance_timeout_ms": 30_000,
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "process_id": f"process of {member}",
        **more,
    }
    return beat(group, member, 0, topology=topology, **fields)


def reading(*topics: str, epoch: int = 0, **more: Any) -> Topology:
    return Topology(epoch=epoch, subtopologies=[Subtopology(subtopology_id="0", source_topics=list(topics), **more)])


def name(code: int) -> str:
    return ErrorCode(code).name


def note_all(peer: Peer, answers: Mapping[str, str]) -> None:
    for what, code in answers.items():
        peer.note(f"{what}: {code}")


def eager_group(peer: Peer) -> str:
    """Returns the id of a new group that assigns tasks at once. A second group, configured by the same request, shows
    when the coordinator knows the configs."""
    group, probe = peer.unique("g"), peer.unique("probe")
    configs = [
        AlterableConfig(name=config, config_operation=0, value="0")
        for config in ("streams.initial.rebalance.delay.ms", "streams.assignment.interval.ms")
    ]
    resources = [
        AlterConfigsResource(resource_type=ResourceType.GROUP, resource_name=each, configs=configs)
        for each in (group, probe)
    ]
    peer.quietly(IncrementalAlterConfigsRequest(resources=resources))

    def is_eager() -> bool:
        answer = peer.quietly(join(probe, MEMBER, reading("nowhere")))
        peer.quietly(beat(probe, MEMBER, LEAVE))
        return DELAYED not in [each.status_code for each in answer.status]

    peer.settle(is_eager)
    return group


def tasks(**listed: list[int]) -> list[TaskIds]:
    return [TaskIds(subtopology_id=name.lstrip("_"), partitions=indexes) for name, indexes in listed.items()]


class Member:
    """A member that owns what it was assigned."""

    def __init__(self, peer: Peer, group: str, member: str, topology: Topology, **more: Any) -> None:
        self.peer = peer
        self.group = group
        self.member = member
        self.owned: list[TaskIds] = []
        self.epoch = 0
        self.answer = peer.quietly(join(group, member, topology, **more))
        self._take()

    def _take(self) -> None:
        assert self.answer.error_code == 0, self.answer
        self.epoch = self.answer.member_epoch
        if self.answer.active_tasks is not None:
            self.owned = self.answer.active_tasks

    def stay(self, **more: Any) -> Any:
        fields = {"active_tasks": self.owned, "standby_tasks": [], "warmup_tasks": [], **more}
        self.answer = self.peer.quietly(beat(self.group, self.member, self.epoch, **fields))
        self._take()
        return self.answer

    def shown(self) -> str:
        """Returns the answer: statuses, and the active tasks if they are given."""
        said = sorted(each.status_code for each in self.answer.status or ())
        given = self.answer.active_tasks
        listed = "unchanged" if given is None else {each.subtopology_id: each.partitions for each in given}
        return f"epoch {self.answer.member_epoch}, statuses {said}, active tasks {listed}"


def test_penstock_answers_invalid_heartbeats_of_streams_groups_like_kafka(peer: Peer) -> None:
    topic, group, classic, share = peer.topic(), eager_group(peer), peer.unique("c"), peer.unique("s")
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    fields: dict[str, Any] = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "protocol_type": "consumer"}
    peer.quietly(JoinGroupRequest(group_id=classic, protocols=protocols, **fields), 3)
    peer.quietly(
        ShareGroupHeartbeatRequest(group_id=share, member_id=MEMBER, member_epoch=0, subscribed_topic_names=[topic])
    )
    member = Member(peer, group, MEMBER, reading(topic))
    plain = reading(topic)
    fixed = [TopicInfo(name="kept", partitions=3)]
    looped = Subtopology(
        subtopology_id="0", repartition_source_topics=[TopicInfo(name="r")], repartition_sink_topics=["r"]
    )
    unread = Subtopology(subtopology_id="0", state_changelog_topics=[TopicInfo(name="kept")])
    requests = {
        "an empty group": join("", OTHER, plain),
        "an empty member": join(group, "", plain),
        "an empty rack": join(group, OTHER, plain, rack_id=""),
        "an instance id": join(group, OTHER, plain, instance_id="i"),
        "an empty instance id": join(group, OTHER, plain, instance_id=""),
        "no rebalance timeout": join(group, OTHER, plain, rebalance_timeout_ms=-1),
        "no topology": join(group, OTHER, None),
        "owned tasks of a joining member": join(group, OTHER, plain, active_tasks=tasks(_0=[0])),
        "no list of tasks of a joining member": join(group, OTHER, plain, active_tasks=None),
        "warm-up tasks": join(group, OTHER, plain, warmup_tasks=tasks(_0=[0])),
        "task offsets": join(group, OTHER, plain, task_offsets=[TaskOffset(subtopology_id="0")]),
        "no task end offsets": join(group, OTHER, plain, task_end_offsets=[]),
        "a pattern": join(group, OTHER, reading(source_topic_regex=["t.*"])),
        "a changelog with partitions": join(group, OTHER, reading(topic, state_changelog_topics=fixed)),
        "an internal topic of Kafka": join(group, OTHER, reading("__consumer_offsets")),
        "an illegal topic name": join(group, OTHER, reading("not/legal")),
        "a loop": join(peer.unique("n"), OTHER, Topology(subtopologies=[looped])),
        "nothing to read": join(peer.unique("n"), OTHER, Topology(subtopologies=[unread])),
        "an epoch below -2": beat(group, MEMBER, -3),
        "a static member that leaves": beat(group, MEMBER, -2),
        "an unknown group": beat(peer.unique("no"), MEMBER, 1),
        "an unknown group that is left": beat(peer.unique("no"), MEMBER, LEAVE),
        "an unknown member": beat(group, OTHER, 1),
        "an unknown member that leaves": beat(group, OTHER, LEAVE),
        "a later epoch": beat(group, MEMBER, member.epoch + 1),
        "a topology of a known member": beat(group, MEMBER, member.epoch, topology=plain),
        "only active tasks": beat(group, MEMBER, member.epoch, active_tasks=[]),
        "an unknown subtopology": beat(
            group, MEMBER, member.epoch, active_tasks=tasks(x=[0]), standby_tasks=[], warmup_tasks=[]
        ),
        "an unknown task": beat(
            group, MEMBER, member.epoch, active_tasks=tasks(_0=[1]), standby_tasks=[], warmup_tasks=[]
        ),
        "another topology": join(group, OTHER, reading("another")),
        "a newer topology": join(group, OTHER, reading(topic, epoch=1)),
        "a classic group": join(classic, MEMBER, plain),
        "a share group": join(share, MEMBER, plain),
        "the member itself": beat(group, MEMBER, member.epoch),
        "the same member again": join(group, MEMBER, plain),
    }
    note_all(peer, {what: name(peer.quietly(request).error_code) for what, request in requests.items()})
    consumer = ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=OTHER, rebalance_timeout_ms=1000, subscribed_topic_names=[topic], topic_partitions=[]
    )
    peer.note(f"a consumer that joins: {name(peer.quietly(consumer).error_code)}")
    asked = ShareGroupHeartbeatRequest(group_id=group, member_id=OTHER, subscribed_topic_names=[topic])
    peer.note(f"a share consumer that joins: {name(peer.quietly(asked).error_code)}")
    peer.note(
        "a classic member that joins: "
        + name(peer.quietly(JoinGroupRequest(group_id=group, protocols=protocols, **fields), 3).error_code)
    )
    peer.said("""
        an empty group: INVALID_REQUEST
        an empty member: INVALID_REQUEST
        an empty rack: INVALID_REQUEST
        an instance id: INVALID_REQUEST
        an empty instance id: INVALID_REQUEST
        no rebalance timeout: INVALID_REQUEST
        no topology: INVALID_REQUEST
        owned tasks of a joining member: INVALID_REQUEST
        no list of tasks of a joining member: INVALID_REQUEST
        warm-up tasks: INVALID_REQUEST
        task offsets: INVALID_REQUEST
        no task end offsets: INVALID_REQUEST
        a pattern: INVALID_REQUEST
        a changelog with partitions: STREAMS_INVALID_TOPOLOGY
        an internal topic of Kafka: STREAMS_INVALID_TOPOLOGY
        an illegal topic name: STREAMS_INVALID_TOPOLOGY
        a loop: STREAMS_INVALID_TOPOLOGY
        nothing to read: STREAMS_INVALID_TOPOLOGY
        an epoch below -2: INVALID_REQUEST
        a static member that leaves: INVALID_REQUEST
        an unknown group: GROUP_ID_NOT_FOUND
        an unknown group that is left: GROUP_ID_NOT_FOUND
        an unknown member: UNKNOWN_MEMBER_ID
        an unknown member that leaves: UNKNOWN_MEMBER_ID
        a later epoch: FENCED_MEMBER_EPOCH
        a topology of a known member: INVALID_REQUEST
        only active tasks: INVALID_REQUEST
        an unknown subtopology: INVALID_REQUEST
        an unknown task: INVALID_REQUEST
        another topology: INVALID_REQUEST
        a newer topology: INVALID_REQUEST
        a classic group: GROUP_ID_NOT_FOUND
        a share group: GROUP_ID_NOT_FOUND
        the member itself: NONE
        the same member again: NONE
        a consumer that joins: GROUP_ID_NOT_FOUND
        a share consumer that joins: GROUP_ID_NOT_FOUND
        a classic member that joins: INCONSISTENT_GROUP_PROTOCOL
    """)


def test_members_of_streams_groups_get_the_same_tasks_as_in_kafka_at_every_step(peer: Peer) -> None:
    topic, group = peer.topic(partitions=4), eager_group(peer)
    first = Member(peer, group, MEMBER, reading(topic))
    peer.note(f"the first member: {first.shown()}")
    second = Member(peer, group, OTHER, reading(topic))
    peer.note(f"the second member: {second.shown()}")
    given = first.stay(active_tasks=tasks(_0=[0, 1, 2, 3])).active_tasks
    peer.note(f"the first has to revoke: epoch {first.epoch}, {[len(each.partitions) for each in given]} tasks")
    second.stay()
    peer.note(f"the second waits: {second.shown()}")
    first.stay()
    peer.note(f"the first has revoked: {first.shown()}")
    given = second.stay().active_tasks
    peer.note(f"the second gets: epoch {second.epoch}, {[len(each.partitions) for each in given]} tasks")
    both = sorted(index for one in (first, second) for each in one.owned for index in each.partitions)
    peer.note(f"all tasks: {both}")
    peer.note(f"the second leaves: {peer.quietly(beat(group, OTHER, LEAVE)).member_epoch}")
    first.stay()
    peer.note(f"the first again: {first.shown()}")
    peer.said("""
        the first member: epoch 2, statuses [], active tasks {'0': [0, 1, 2, 3]}
        the second member: epoch 3, statuses [], active tasks {}
        the first has to revoke: epoch 2, [2] tasks
        the second waits: epoch 3, statuses [], active tasks unchanged
        the first has revoked: epoch 3, statuses [], active tasks unchanged
        the second gets: epoch 3, [2] tasks
        all tasks: [0, 1, 2, 3]
        the second leaves: -1
        the first again: epoch 4, statuses [], active tasks {'0': [0, 1, 2, 3]}
    """)


def test_heartbeats_of_streams_groups_return_the_same_statuses_as_in_kafka(peer: Peer) -> None:
    topic, missing = peer.topic(partitions=2), peer.unique("missing")
    other = peer.topic("u", partitions=3)
    absent = Member(peer, eager_group(peer), MEMBER, reading(missing))
    peer.note(f"no source topic: {absent.shown()}")
    together = [CopartitionGroup(source_topics=[0, 1])]
    unequal = Member(peer, eager_group(peer), MEMBER, reading(topic, other, copartition_groups=together))
    peer.note(f"unequal topics: {unequal.shown()}")
    group = eager_group(peer)
    stale = reading(topic, epoch=3)
    Member(peer, group, MEMBER, stale)
    older = Member(peer, group, OTHER, reading(topic, epoch=2))
    peer.note(f"an older topology: {older.shown()}")
    group = eager_group(peer)
    first, second = (Member(peer, group, member, reading(topic)) for member in (MEMBER, OTHER))
    first.stay(shutdown_application=True)
    peer.note(f"who asked for the shutdown: {[each.status_code for each in first.answer.status]}")
    second.stay()
    peer.note(f"the other member: {[each.status_code for each in second.answer.status]}")
    delayed = Member(peer, peer.unique("g"), MEMBER, reading(topic))
    peer.note(f"a new group: {delayed.shown()}")
    peer.said("""
        no source topic: epoch 2, statuses [1], active tasks {}
        unequal topics: epoch 2, statuses [2], active tasks {}
        an older topology: epoch 3, statuses [0], active tasks {}
        who asked for the shutdown: [4]
        the other member: [4]
        a new group: epoch 1, statuses [5], active tasks {}
    """)


def test_internal_topics_of_streams_groups_are_created_as_in_kafka(peer: Peer) -> None:
    topic, group = peer.topic(partitions=3), eager_group(peer)
    repartition, changelog = f"{group}-r", f"{group}-c"
    configs = [KeyValue(key="cleanup.policy", value="compact")]
    topology = Topology(
        subtopologies=[
            Subtopology(subtopology_id="0", source_topics=[topic], repartition_sink_topics=[repartition]),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=[TopicInfo(name=repartition)],
                state_changelog_topics=[TopicInfo(name=changelog, topic_configs=configs)],
            ),
        ]
    )
    member = Member(peer, group, MEMBER, topology, user_endpoint=Endpoint(host="h", port=9))
    peer.note(f"at first: {member.shown()}")

    def ready() -> bool:
        member.stay()
        return not member.answer.status

    peer.settle(ready)
    peer.note(f"later: {[(each.subtopology_id, each.partitions) for each in member.owned]}")
    member.stay(endpoint_information_epoch=-1)
    for each in member.answer.partitions_by_user_endpoint:
        for found in sorted(each.active_partitions, key=lambda found: found.topic):
            shown = found.topic.replace(group, "g").split("-x")[0]
            peer.note(f"{each.user_endpoint.host} serves {shown} {sorted(found.partitions)}")
    [described] = peer.quietly(StreamsGroupDescribeRequest(group_ids=[group])).groups
    peer.note(f"{described.group_state} {described.group_epoch == described.assignment_epoch}")
    for part in described.topology.subtopologies:
        for found in (*part.repartition_source_topics, *part.state_changelog_topics):
            shown = [(each.key, each.value) for each in found.topic_configs]
            peer.note(f"{part.subtopology_id}: {found.name.replace(group, 'g')} {found.partitions} {shown}")
    [one] = described.members
    peer.note(f"{one.process_id} {one.topology_epoch} {one.user_endpoint.host} {one.member_epoch == member.epoch}")
    peer.note(f"{[(each.subtopology_id, each.partitions) for each in one.assignment.active_tasks]}")
    peer.note(f"{[(each.subtopology_id, each.partitions) for each in one.target_assignment.active_tasks]}")
    peer.said("""
        at first: epoch 2, statuses [3], active tasks {}
        later: [('0', [0, 1, 2]), ('1', [0, 1, 2])]
        h serves g-r [0, 1, 2]
        h serves t [0, 1, 2]
        Stable True
        1: g-r 3 []
        1: g-c 3 [('cleanup.policy', 'compact')]
        process of AAAAAAAAAAAAAAAAAAAAEQ 0 h True
        [('0', [0, 1, 2]), ('1', [0, 1, 2])]
        [('0', [0, 1, 2]), ('1', [0, 1, 2])]
    """)


def commit(group: str, topic: str, member: str, epoch: int, *partitions: int) -> committing.OffsetCommitRequest:
    parts = [
        committing.OffsetCommitRequestPartition(partition_index=index, committed_offset=1)
        for index in partitions or (0,)
    ]
    return committing.OffsetCommitRequest(
        group_id=group,
        member_id=member,
        generation_id_or_member_epoch=epoch,
        topics=[committing.OffsetCommitRequestTopic(name=topic, partitions=parts)],
    )


def test_penstock_answers_offset_requests_and_deletions_of_streams_groups_like_kafka(peer: Peer) -> None:
    topic, group = peer.topic(), eager_group(peer)
    member = Member(peer, group, MEMBER, reading(topic))

    def committed(version: int = 9, who: str = MEMBER, epoch: int | None = None) -> str:
        request = commit(group, topic, who, member.epoch if epoch is None else epoch)
        return name(peer.quietly(request, version).topics[0].partitions[0].error_code)

    def fetched(who: str | None, epoch: int) -> str:
        wanted = OffsetFetchRequestGroup(group_id=group, member_id=who, member_epoch=epoch, topics=None)
        return name(peer.quietly(OffsetFetchRequest(groups=[wanted]), 9).groups[0].error_code)

    def deleted() -> str:
        return name(peer.quietly(DeleteGroupsRequest(groups_names=[group])).results[0].error_code)

    note_all(
        peer,
        {
            "a commit": committed(),
            "a commit with an old version": committed(8),
            "a commit with a later epoch": committed(epoch=member.epoch + 1),
            "a commit of an epoch before the task came": committed(epoch=0),
            "a commit of an unknown member": committed(who=OTHER),
            "a commit of an administrator": committed(who="", epoch=-1),
            "a fetch": fetched(MEMBER, member.epoch),
            "a fetch with another epoch": fetched(MEMBER, member.epoch + 1),
            "a fetch of an unknown member": fetched(OTHER, 1),
            "a fetch of an administrator": fetched(None, -1),
            "deletion with a member": deleted(),
        },
    )
    [listed] = [
        each for each in peer.quietly(ListGroupsRequest(types_filter=["streams"])).groups if each.group_id == group
    ]
    peer.note(f"listed: {listed.group_state} {listed.group_type} {listed.protocol_type}")
    peer.quietly(beat(group, MEMBER, LEAVE))
    note_all(
        peer,
        {
            "an administrator, without members": committed(who="", epoch=-1),
            "deletion without members": deleted(),
            "deletion again": deleted(),
            "its description": name(peer.quietly(StreamsGroupDescribeRequest(group_ids=[group])).groups[0].error_code),
        },
    )
    peer.said("""
        a commit: NONE
        a commit with an old version: UNSUPPORTED_VERSION
        a commit with a later epoch: STALE_MEMBER_EPOCH
        a commit of an epoch before the task came: STALE_MEMBER_EPOCH
        a commit of an unknown member: UNKNOWN_MEMBER_ID
        a commit of an administrator: UNKNOWN_MEMBER_ID
        a fetch: NONE
        a fetch with another epoch: STALE_MEMBER_EPOCH
        a fetch of an unknown member: UNKNOWN_MEMBER_ID
        a fetch of an administrator: NONE
        deletion with a member: NON_EMPTY_GROUP
        listed: Stable streams streams
        an administrator, without members: NONE
        deletion without members: NONE
        deletion again: GROUP_ID_NOT_FOUND
        its description: GROUP_ID_NOT_FOUND
    """)


def test_offset_commit_with_an_older_epoch_is_refused_if_one_task_went_to_another_member(peer: Peer) -> None:
    topic, group = peer.topic(partitions=2), eager_group(peer)
    member = Member(peer, group, MEMBER, reading(topic))
    peer.settle(lambda: member.stay() is not None and member.owned == tasks(_0=[0, 1]))
    old = member.epoch
    other = Member(peer, group, OTHER, reading(topic))

    def divided() -> bool:
        member.stay()
        other.stay()
        return member.epoch > old and bool(other.owned)

    peer.settle(divided)
    [kept], [gone] = member.owned[0].partitions, other.owned[0].partitions

    def committed(*partitions: int) -> str:
        request = commit(group, topic, MEMBER, old, *partitions)
        return " ".join(name(each.error_code) for each in peer.quietly(request, 9).topics[0].partitions)

    note_all(
        peer,
        {"the task that it kept": committed(kept), "the other": committed(gone), "both": committed(kept, gone)},
    )
    peer.said("""
        the task that it kept: NONE
        the other: STALE_MEMBER_EPOCH
        both: STALE_MEMBER_EPOCH STALE_MEMBER_EPOCH
    """)


def test_list_groups_finds_streams_groups_by_the_state_not_ready(peer: Peer) -> None:
    group = eager_group(peer)
    Member(peer, group, MEMBER, reading("nowhere"))

    def listed(*states: str) -> str:
        groups = peer.quietly(ListGroupsRequest(states_filter=list(states))).groups
        return " ".join(each.group_state for each in groups if each.group_id == group) or "no group"

    note_all(
        peer,
        {
            "not_ready": listed("not_ready"),
            "NOT_READY and a space": listed(" NOT_READY "),
            "Stable": listed("Stable"),
            "all": listed(),
        },
    )
    peer.said("""
        not_ready: NotReady
        NOT_READY and a space: NotReady
        Stable: no group
        all: NotReady
    """)
