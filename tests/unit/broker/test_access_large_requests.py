"""Tests requests with so many items that the authorizer checks them in several passes of the event loop."""

from __future__ import annotations

from access_clients import BOB, GROUP_DENIED, Clients, with_clients

from penstock.protocol.messages import api_08_offset_commit as offset_commit
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
