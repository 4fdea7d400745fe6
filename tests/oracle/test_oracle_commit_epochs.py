"""Commits of members with an epoch that is older than the member (KIP-1251), with Kafka's answer for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from oracle_peer import Peer

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest
from penstock.protocol.messages.api_25_add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.protocol.messages.api_26_end_txn import EndTxnRequest
from penstock.protocol.messages.api_28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions

MEMBER = "AAAAAAAAAAAAAAAAAAAAEQ"
OTHER = "AAAAAAAAAAAAAAAAAAAAEg"
Offset = tuple[str, int, str]  # topic, partition, metadata
TOO_LONG = "m" * 5000


@pytest.fixture(autouse=True)
def coordinator_topics(peer: Peer) -> None:
    peer.have_offsets_topic()
    peer.have_transactions_topic()


class Member:
    """A member of a consumer group, which owns what it was assigned."""

    def __init__(self, peer: Peer, group: str, member: str) -> None:
        self.peer, self.group, self.member, self.epoch = peer, group, member, 0
        self.owned: dict[bytes, list[int]] = {}

    def beat(self, **more: Any) -> None:
        owned = [TopicPartitions(topic_id=topic, partitions=indexes) for topic, indexes in self.owned.items()]
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member, member_epoch=self.epoch, topic_partitions=owned, **more
        )
        answer = self.peer.quietly(request)
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}

    def reads(self, *topics: str) -> None:
        """Subscribes to topics of two partitions each, and sends heartbeats until the member has all of them."""

        def assigned() -> bool:
            self.beat(subscribed_topic_names=list(topics), rebalance_timeout_ms=30_000)
            return sum(map(len, self.owned.values())) == 2 * len(topics)

        self.peer.settle(assigned)


def both_topics(peer: Peer) -> tuple[str, str]:
    return peer.topic("t", partitions=2), peer.topic("u", partitions=2)


def codes(answer: Any) -> str:
    return " ".join(ErrorCode(part.error_code).name for topic in answer.topics for part in topic.partitions)


def committed(peer: Peer, member: Member, epoch: int, offsets: Sequence[Offset], version: int) -> str:
    """Commits the offsets, and returns the error codes."""
    request = OffsetCommitRequest(
        group_id=member.group,
        member_id=member.member,
        generation_id_or_member_epoch=epoch,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=peer.topic_id(topic),
                partitions=[
                    OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=text)
                ],
            )
            for topic, index, text in offsets
        ],
    )
    return codes(peer.quietly(request, version))


def test_offset_commit_with_an_older_member_epoch_is_accepted_for_partitions_owned_since_that_epoch(peer: Peer) -> None:
    t, u = both_topics(peer)
    member = Member(peer, peer.unique("g"), MEMBER)
    member.reads(t)
    old = member.epoch
    member.reads(t, u)
    for version in (9, 10):
        for what, epoch, offsets in (
            ("t at the old epoch", old, [(t, 0, "")]),
            ("u at the old epoch", old, [(u, 0, "")]),
            ("both at the old epoch", old, [(t, 0, ""), (u, 0, "")]),
            ("both, u with too long metadata", old, [(t, 0, ""), (u, 0, TOO_LONG)]),
            ("both at the current epoch", member.epoch, [(t, 0, ""), (u, 0, "")]),
            ("t at an epoch before the first", old - 1, [(t, 0, "")]),
            ("t at no epoch", -1, [(t, 0, "")]),
            ("t at a later epoch", member.epoch + 1, [(t, 0, "")]),
        ):
            peer.note(f"v{version}: {what}: {committed(peer, member, epoch, offsets, version)}")
    peer.said("""
        v9: t at the old epoch: NONE
        v9: u at the old epoch: STALE_MEMBER_EPOCH
        v9: both at the old epoch: STALE_MEMBER_EPOCH STALE_MEMBER_EPOCH
        v9: both, u with too long metadata: NONE OFFSET_METADATA_TOO_LARGE
        v9: both at the current epoch: NONE NONE
        v9: t at an epoch before the first: STALE_MEMBER_EPOCH
        v9: t at no epoch: STALE_MEMBER_EPOCH
        v9: t at a later epoch: STALE_MEMBER_EPOCH
        v10: t at the old epoch: NONE
        v10: u at the old epoch: STALE_MEMBER_EPOCH
        v10: both at the old epoch: STALE_MEMBER_EPOCH STALE_MEMBER_EPOCH
        v10: both, u with too long metadata: NONE OFFSET_METADATA_TOO_LARGE
        v10: both at the current epoch: NONE NONE
        v10: t at an epoch before the first: STALE_MEMBER_EPOCH
        v10: t at no epoch: STALE_MEMBER_EPOCH
        v10: t at a later epoch: STALE_MEMBER_EPOCH
    """)


def test_offset_commit_with_an_older_member_epoch_is_accepted_for_partitions_being_revoked(peer: Peer) -> None:
    t, u = both_topics(peer)
    member = Member(peer, peer.unique("g"), MEMBER)
    member.reads(t)
    old = member.epoch
    member.reads(t, u)
    other = Member(peer, member.group, OTHER)

    def revokes() -> bool:
        other.beat(subscribed_topic_names=[t, u], rebalance_timeout_ms=30_000)
        before = member.owned
        member.beat()
        return member.owned != before

    peer.settle(revokes)
    for topic in (t, u):
        shown = " ".join(committed(peer, member, old, [(topic, index, "")], 10) for index in (0, 1))
        peer.note(f"{topic.split('-')[0]}: {shown}")
    peer.said("""
        t: NONE NONE
        u: STALE_MEMBER_EPOCH STALE_MEMBER_EPOCH
    """)


def transactional_producer(peer: Peer, txn: str) -> dict[str, Any]:
    """Returns the fields of a producer's requests, once its coordinator is available."""
    given: list[Any] = []

    def got() -> bool:
        given.append(peer.quietly(InitProducerIdRequest(transactional_id=txn, transaction_timeout_ms=60_000), 4))
        return bool(given[-1].error_code == 0)

    peer.settle(got)
    return {"transactional_id": txn, "producer_id": given[-1].producer_id, "producer_epoch": given[-1].producer_epoch}


def test_penstock_answers_a_transactional_offset_commit_with_an_older_member_epoch_like_kafka(peer: Peer) -> None:
    t, u = both_topics(peer)
    member = Member(peer, peer.unique("g"), MEMBER)
    member.reads(t)
    old = member.epoch
    member.reads(t, u)
    txn = peer.unique("txn")
    producer = transactional_producer(peer, txn)
    peer.quietly(AddOffsetsToTxnRequest(**producer, group_id=member.group), 3)
    for what, who_commits, epoch, topics in (
        ("t at the old epoch", MEMBER, old, [t]),
        ("u at the old epoch", MEMBER, old, [u]),
        ("both at the old epoch", MEMBER, old, [t, u]),
        ("t at a later epoch", MEMBER, member.epoch + 1, [t]),
        ("t of an unknown member", OTHER, old, [t]),
        ("t of no member", "", -1, [t]),
    ):
        part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
        request = TxnOffsetCommitRequest(
            **producer,
            group_id=member.group,
            member_id=who_commits,
            generation_id=epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[part]) for topic in topics],
        )
        peer.note(f"{what}: {codes(peer.quietly(request, 3))}")
    peer.quietly(EndTxnRequest(**producer, committed=False), 3)
    peer.said("""
        t at the old epoch: NONE
        u at the old epoch: ILLEGAL_GENERATION
        both at the old epoch: ILLEGAL_GENERATION ILLEGAL_GENERATION
        t at a later epoch: ILLEGAL_GENERATION
        t of an unknown member: UNKNOWN_MEMBER_ID
        t of no member: NONE
    """)
