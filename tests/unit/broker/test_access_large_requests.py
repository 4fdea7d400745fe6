"""Tests requests with so many items that the authorizer checks them in several passes of the event loop."""

from __future__ import annotations

from access_clients import BOB, GROUP_DENIED, TOPIC_DENIED, Clients, with_clients

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_08_offset_commit as offset_commit
from penstock.protocol.messages import api_24_add_partitions_to_txn as add_partitions
from penstock.security.vocabulary import AclResource, Operation


def test_very_large_commit_of_a_client_without_access_to_the_group_is_refused_as_a_whole() -> None:
    async def scenario(clients: Clients) -> None:
        await clients.allow(BOB, Operation.READ, AclResource.TOPIC, "*")
        partitions = [offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        topics = [
            offset_commit.OffsetCommitRequestTopic(name=f"topic-{number}", partitions=partitions)
            for number in range(3_000)
        ]
        request = offset_commit.OffsetCommitRequest(group_id="g", topics=topics)
        answer = await clients.ask(BOB, request, version=9)
        assert {each.error_code for topic in answer.topics for each in topic.partitions} == {GROUP_DENIED}
        assert len(answer.topics) == len(topics)

    with_clients(scenario)


def test_large_add_partitions_to_txn_with_one_refused_topic_attempts_no_other_topic() -> None:
    async def scenario(clients: Clients) -> None:
        await clients.allow(BOB, Operation.WRITE, AclResource.TRANSACTIONAL_ID, "tx")
        await clients.allow(BOB, Operation.WRITE, AclResource.TOPIC, "open-", prefixed=True)
        names = [f"open-{number}" for number in range(3_000)]
        names[1_500] = "secret"
        request = add_partitions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_topics=[
                add_partitions.AddPartitionsToTxnTopic(name=name, partitions=[0, 1]) for name in names
            ],
        )
        answer = await clients.ask(BOB, request, version=3)
        codes = {
            topic.name: {each.partition_error_code for each in topic.results_by_partition}
            for topic in answer.results_by_topic_v3_and_below
        }
        assert codes.pop("secret") == {TOPIC_DENIED}
        assert set().union(*codes.values()) == {ErrorCode.OPERATION_NOT_ATTEMPTED}
        assert len(codes) == len(names) - 1

    with_clients(scenario)
