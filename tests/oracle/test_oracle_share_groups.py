"""Share groups (KIP-932): heartbeats, share sessions, acknowledgements and offsets, with Kafka's answer for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from oracle_peer import Peer

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_78_share_fetch as fetching
from penstock.protocol.messages import api_79_share_acknowledge as acknowledging
from penstock.protocol.messages import api_90_describe_share_group_offsets as describing
from penstock.protocol.messages import api_91_alter_share_group_offsets as altering
from penstock.protocol.messages import api_92_delete_share_group_offsets as deleting
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.api_42_delete_groups import DeleteGroupsRequest
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.protocol.messages.api_76_share_group_heartbeat import ShareGroupHeartbeatRequest
from penstock.protocol.messages.api_77_share_group_describe import ShareGroupDescribeRequest
from penstock.protocol.vocabulary import Acknowledge, ResourceType

MEMBER = "AAAAAAAAAAAAAAAAAAAAEQ"
OTHER = "AAAAAAAAAAAAAAAAAAAAEg"
LEAVE = -1
ACCEPT, RELEASE, REJECT, RENEW = Acknowledge.ACCEPT, Acknowledge.RELEASE, Acknowledge.REJECT, Acknowledge.RENEW


@pytest.fixture(autouse=True)
def offsets_topic(peer: Peer) -> None:
    peer.have_offsets_topic()


def beat(group: str, member: str, epoch: int, **more: Any) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **more)


def join(group: str, member: str, *topics: str) -> ShareGroupHeartbeatRequest:
    return beat(group, member, 0, subscribed_topic_names=list(topics))


def name(code: int) -> str:
    return ErrorCode(code).name


def shared_topic(peer: Peer, records: int = 4) -> tuple[str, str, int]:
    """Returns a topic, a share group that starts at its first record, and the member's epoch once it has partitions."""
    topic, group = peer.topic(), peer.unique("g")
    config = AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
    resource = AlterConfigsResource(resource_type=ResourceType.GROUP, resource_name=group, configs=[config])
    peer.quietly(IncrementalAlterConfigsRequest(resources=[resource]))
    for _ in range(records):
        peer.produce(topic)
    epoch = 0

    def assigned() -> bool:
        nonlocal epoch
        request = join(group, MEMBER, topic) if not epoch else beat(group, MEMBER, epoch)
        answer = peer.quietly(request)
        epoch = answer.member_epoch
        return bool(answer.assignment and answer.assignment.topic_partitions)

    peer.settle(assigned)
    return topic, group, epoch


class Fetcher:
    """A share group member that fetches and acknowledges. It counts the epochs of its share session."""

    def __init__(self, peer: Peer, group: str, topic: str, member: str = MEMBER) -> None:
        self.peer = peer
        self.group = group
        self.member = member
        self.topic_id = peer.topic_id(topic)
        self.epoch = 0

    def fetch(self, *acks: Any, epoch: int | None = None, **more: Any) -> Any:
        part = fetching.FetchPartition(partition_index=0, acknowledgement_batches=list(acks))
        fields = {"max_wait_ms": 500, "min_bytes": 1, "max_records": 100, "batch_size": 100, **more}
        request = fetching.ShareFetchRequest(
            group_id=self.group,
            member_id=self.member,
            share_session_epoch=self.epoch if epoch is None else epoch,
            topics=[fetching.FetchTopic(topic_id=self.topic_id, partitions=[part])],
            **fields,
        )
        answer = self.peer.quietly(request)
        if not answer.error_code:
            self.epoch += 1
        return answer

    def acquired(self, answer: Any) -> list[tuple[int, int, int]]:
        return [
            (each.first_offset, each.last_offset, each.delivery_count)
            for topic in answer.responses
            for part in topic.partitions
            for each in part.acquired_records
        ]

    def hold(self, count: int, **more: Any) -> None:
        """Fetches until the member holds this many records."""
        held = 0

        def got() -> bool:
            nonlocal held
            held += sum(last - first + 1 for first, last, _ in self.acquired(self.fetch(**more)))
            return held >= count

        self.peer.settle(got)

    def next(self, **more: Any) -> list[tuple[int, int, int]]:
        """Fetches until there are records. Returns the records that the member has acquired."""
        got: list[tuple[int, int, int]] = []

        def some() -> bool:
            got.extend(self.acquired(self.fetch(**more)))
            return bool(got)

        self.peer.settle(some)
        return got

    def acknowledge(self, *acks: Any, epoch: int | None = None, **more: Any) -> str:
        batches = [
            acknowledging.AcknowledgementBatch(
                first_offset=each.first_offset, last_offset=each.last_offset, acknowledge_types=each.acknowledge_types
            )
            for each in acks
        ]
        part = acknowledging.AcknowledgePartition(partition_index=0, acknowledgement_batches=batches)
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.member,
            share_session_epoch=self.epoch if epoch is None else epoch,
            topics=[acknowledging.AcknowledgeTopic(topic_id=self.topic_id, partitions=[part])],
            **more,
        )
        answer = self.peer.quietly(request)
        if answer.error_code:
            return f"{name(answer.error_code)} for the request"
        self.epoch += 1
        return name(answer.responses[0].partitions[0].error_code)


def acks(*types: int, first: int = 0, last: int | None = None) -> Any:
    end = first if last is None else last
    return fetching.AcknowledgementBatch(first_offset=first, last_offset=end, acknowledge_types=list(types))


def note_all(peer: Peer, answers: Mapping[str, str]) -> None:
    for what, code in answers.items():
        peer.note(f"{what}: {code}")


def test_penstock_answers_invalid_heartbeats_of_share_groups_like_kafka(peer: Peer) -> None:
    topic, group, epoch = shared_topic(peer)
    classic = peer.unique("c")
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    fields: dict[str, Any] = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "protocol_type": "consumer"}
    peer.quietly(JoinGroupRequest(group_id=classic, protocols=protocols, **fields), 3)
    requests = {
        "an empty group": join("", MEMBER, topic),
        "an empty member": join(group, "", topic),
        "an empty rack": beat(group, OTHER, 0, subscribed_topic_names=[topic], rack_id=""),
        "no topics": join(group, OTHER),
        "no list of topics": beat(group, OTHER, 0),
        "an epoch below -1": beat(group, MEMBER, -2),
        "an unknown group": beat(peer.unique("no"), MEMBER, 1),
        "an unknown member": beat(group, OTHER, 1),
        "an unknown member that leaves": beat(group, OTHER, LEAVE),
        "a later epoch": beat(group, MEMBER, epoch + 1),
        "the same member again": join(group, MEMBER, topic),
        "the member itself": beat(group, MEMBER, epoch),
        "a classic group": join(classic, MEMBER, topic),
    }
    note_all(peer, {what: name(peer.quietly(request).error_code) for what, request in requests.items()})
    consumer = ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=OTHER, rebalance_timeout_ms=1000, subscribed_topic_names=[topic], topic_partitions=[]
    )
    peer.note(f"a consumer that joins: {name(peer.quietly(consumer).error_code)}")
    peer.note(
        "a classic member that joins: "
        + name(peer.quietly(JoinGroupRequest(group_id=group, protocols=protocols, **fields), 3).error_code)
    )
    peer.said("""
        an empty group: INVALID_REQUEST
        an empty member: INVALID_REQUEST
        an empty rack: INVALID_REQUEST
        no topics: INVALID_REQUEST
        no list of topics: INVALID_REQUEST
        an epoch below -1: INVALID_REQUEST
        an unknown group: GROUP_ID_NOT_FOUND
        an unknown member: UNKNOWN_MEMBER_ID
        an unknown member that leaves: UNKNOWN_MEMBER_ID
        a later epoch: FENCED_MEMBER_EPOCH
        the same member again: NONE
        the member itself: NONE
        a classic group: GROUP_ID_NOT_FOUND
        a consumer that joins: GROUP_ID_NOT_FOUND
        a classic member that joins: INCONSISTENT_GROUP_PROTOCOL
    """)


def test_penstock_answers_share_fetch_requests_with_valid_and_invalid_sessions_like_kafka(peer: Peer) -> None:
    topic, group, _ = shared_topic(peer)
    one = Fetcher(peer, group, topic)
    codes = {
        "a session that was never begun": name(one.fetch(epoch=1).error_code),
        "the end of no session": name(one.fetch(epoch=-1).error_code),
        "acknowledging without a session": one.acknowledge(acks(ACCEPT), epoch=1),
        "acknowledging with epoch 0": one.acknowledge(acks(ACCEPT), epoch=0),
        "a new session with acknowledgements": name(one.fetch(acks(ACCEPT)).error_code),
    }
    one.hold(4)
    one.fetch(max_wait_ms=0)
    codes["a repeated epoch"] = name(one.fetch(epoch=one.epoch - 1).error_code)
    codes["a skipped epoch"] = name(one.fetch(epoch=one.epoch + 1).error_code)
    codes["a skipped epoch of an acknowledgement"] = one.acknowledge(acks(ACCEPT), epoch=one.epoch + 1)
    codes["the session goes on"] = name(one.fetch(max_wait_ms=0).error_code)
    codes["the last request"] = name(one.fetch(epoch=-1).error_code)
    codes["after the last request"] = name(one.fetch(epoch=-1).error_code)
    note_all(peer, codes)
    peer.said("""
        a session that was never begun: SHARE_SESSION_NOT_FOUND
        the end of no session: SHARE_SESSION_NOT_FOUND
        acknowledging without a session: SHARE_SESSION_NOT_FOUND for the request
        acknowledging with epoch 0: INVALID_SHARE_SESSION_EPOCH for the request
        a new session with acknowledgements: INVALID_REQUEST
        a repeated epoch: INVALID_SHARE_SESSION_EPOCH
        a skipped epoch: INVALID_SHARE_SESSION_EPOCH
        a skipped epoch of an acknowledgement: INVALID_SHARE_SESSION_EPOCH for the request
        the session goes on: NONE
        the last request: NONE
        after the last request: SHARE_SESSION_NOT_FOUND
    """)


def test_penstock_answers_acknowledgements_of_share_groups_like_kafka(peer: Peer) -> None:
    topic, group, _ = shared_topic(peer)
    one, other = Fetcher(peer, group, topic), Fetcher(peer, group, topic, OTHER)
    one.hold(4)
    other.fetch(max_wait_ms=0)
    codes = {
        "reversed offsets": one.acknowledge(acks(ACCEPT, first=1, last=0)),
        "overlapping batches": one.acknowledge(acks(ACCEPT, last=1), acks(ACCEPT, first=1)),
        "no type": one.acknowledge(acks()),
        "too few types": one.acknowledge(acks(ACCEPT, ACCEPT, last=2)),
        "an unknown type": one.acknowledge(acks(5)),
        "a negative type": one.acknowledge(acks(-1)),
        "a renewal that is not declared": one.acknowledge(acks(RENEW)),
        "a declared renewal": one.acknowledge(acks(RENEW), is_renew_ack=True),
        "offsets that nobody fetched": one.acknowledge(acks(ACCEPT, first=4, last=6)),
        "more offsets than were fetched": one.acknowledge(acks(ACCEPT, first=2, last=6)),
        "another member's record": other.acknowledge(acks(ACCEPT)),
        "released": one.acknowledge(acks(RELEASE, first=3)),
        "a released record": one.acknowledge(acks(ACCEPT, first=3)),
        "accepted, rejected and a gap": one.acknowledge(acks(ACCEPT, REJECT, 0, last=2)),
        "a record that is done": one.acknowledge(acks(ACCEPT, first=1)),
    }
    note_all(peer, codes)
    peer.note(f"the other member gets {other.next()}")
    peer.said("""
        reversed offsets: INVALID_REQUEST
        overlapping batches: INVALID_RECORD_STATE
        no type: INVALID_REQUEST
        too few types: INVALID_REQUEST
        an unknown type: INVALID_REQUEST
        a negative type: INVALID_REQUEST
        a renewal that is not declared: INVALID_REQUEST
        a declared renewal: NONE
        offsets that nobody fetched: INVALID_REQUEST
        more offsets than were fetched: INVALID_REQUEST
        another member's record: INVALID_RECORD_STATE
        released: NONE
        a released record: INVALID_RECORD_STATE
        accepted, rejected and a gap: NONE
        a record that is done: NONE
        the other member gets [(3, 3, 2)]
    """)


def test_limits_of_a_share_fetch_have_the_same_effect_as_in_kafka(peer: Peer) -> None:
    topic, group, _ = shared_topic(peer)
    one = Fetcher(peer, group, topic)
    codes = {
        "a renewal with limits": name(one.fetch(is_renew_ack=True).error_code),
    }
    note_all(peer, codes)
    strict = {"share_acquire_mode": 1, "max_records": 2}
    peer.note(f"strict: {one.next(**strict)}")
    peer.note(f"then: {one.acquired(one.fetch(**strict))}")
    peer.said("""
        a renewal with limits: INVALID_REQUEST
        strict: [(0, 1, 1)]
        then: [(2, 3, 1)]
    """)


def test_penstock_answers_offset_requests_and_deletions_of_share_groups_like_kafka(peer: Peer) -> None:
    topic, group, _ = shared_topic(peer)
    one = Fetcher(peer, group, topic)
    one.hold(4)

    def describe(which: str) -> str:
        asked = describing.DescribeShareGroupOffsetsRequestGroup(group_id=which, topics=None)
        found = peer.quietly(describing.DescribeShareGroupOffsetsRequest(groups=[asked])).groups[0]
        return name(found.error_code)

    def alter(which: str, where: str = topic, offset: int = 1) -> str:
        part = altering.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=offset)
        wanted = altering.AlterShareGroupOffsetsRequestTopic(topic_name=where, partitions=[part])
        answer = peer.quietly(altering.AlterShareGroupOffsetsRequest(group_id=which, topics=[wanted]))
        return name(answer.error_code) + "".join(
            f", {name(part.error_code)}" for each in answer.responses for part in each.partitions
        )

    def delete(which: str, where: str = topic) -> str:
        wanted = deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=where)
        answer = peer.quietly(deleting.DeleteShareGroupOffsetsRequest(group_id=which, topics=[wanted]))
        return name(answer.error_code) + "".join(f", {name(each.error_code)}" for each in answer.responses)

    unknown = peer.unique("no")
    note_all(
        peer,
        {
            "describe": describe(group),
            "describe an unknown group": describe(unknown),
            "alter with members": alter(group),
            "delete with members": delete(group),
            "delete from an unknown group": delete(unknown),
            "alter an unknown group": alter(peer.unique("created")),
        },
    )
    one.fetch(epoch=-1)
    peer.quietly(beat(group, MEMBER, LEAVE))
    described = peer.quietly(ShareGroupDescribeRequest(group_ids=[group, unknown])).groups
    note_all(
        peer,
        {
            "alter": alter(group),
            "alter an unknown topic": alter(group, unknown),
            "describe groups": ", ".join(sorted(name(each.error_code) for each in described)),
            "delete": delete(group),
            "delete an unknown topic": delete(group, unknown),
            "delete groups": ", ".join(
                sorted(
                    name(each.error_code)
                    for each in peer.quietly(DeleteGroupsRequest(groups_names=[group, unknown])).results
                )
            ),
        },
    )
    peer.said("""
        describe: NONE
        describe an unknown group: NONE
        alter with members: NON_EMPTY_GROUP
        delete with members: NON_EMPTY_GROUP
        delete from an unknown group: GROUP_ID_NOT_FOUND
        alter an unknown group: NONE, NONE
        alter: NONE, NONE
        alter an unknown topic: NONE, UNKNOWN_TOPIC_OR_PARTITION
        describe groups: GROUP_ID_NOT_FOUND, NONE
        delete: NONE, NONE
        delete an unknown topic: NONE, UNKNOWN_TOPIC_OR_PARTITION
        delete groups: GROUP_ID_NOT_FOUND, NONE
    """)
