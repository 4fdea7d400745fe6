"""Tests the filters of responses: hidden items are removed, or get an error if the request names them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.broker.handlers import access_filters as filters
from penstock.broker.handlers.access_rules import Asker
from penstock.broker.requests.access_control import AccessControl
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.local_connection import LocalConnection
from penstock.metadata.image import EMPTY_IMAGE, AclImage
from penstock.net.connection import Connection
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_65_describe_transactions as transactions
from penstock.protocol.messages import api_66_list_transactions as listed
from penstock.protocol.messages import api_69_consumer_group_describe as consumer
from penstock.protocol.messages import api_77_share_group_describe as share
from penstock.protocol.messages import api_89_streams_group_describe as streams
from penstock.protocol.messages import api_90_describe_share_group_offsets as share_offsets
from penstock.security.vocabulary import AclResource, Operation, PatternType, Permission

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def ann(key: int, resource: AclResource = AclResource.TOPIC) -> Asker:
    """Returns a client that may describe only the resource `open`, by default a topic."""
    acl = AclImage(resource, "open", PatternType.LITERAL, "User:ann", "*", Operation.DESCRIBE, Permission.ALLOW)
    image = EMPTY_IMAGE.__class__(acls={b"1": acl})
    access = AccessControl(super_users=frozenset(), allow_without_acls=False)
    access.apply_image(None, image)
    connection = cast(Connection, LocalConnection("PLAINTEXT", "User:ann"))
    return Asker(access, RequestContext(key, 0, 0, "c", connection, 0), image)


@pytest.mark.parametrize("where", ["subscribed", "assignment", "target_assignment"])
def test_members_of_a_consumer_group_are_hidden_if_one_of_its_topics_is_invisible_to_the_client(where: str) -> None:
    def described(topic: str) -> Any:
        member = consumer.Member(member_id="m", subscribed_topic_names=[topic] if where == "subscribed" else [])
        if where != "subscribed":
            partitions = [consumer.TopicPartitions(topic_name=topic, partitions=[0])]
            setattr(member, where, consumer.Assignment(topic_partitions=partitions))
        groups = [consumer.DescribedGroup(group_id="g", members=[member])]
        response = consumer.ConsumerGroupDescribeResponse(groups=groups)
        filters.described_members(ann(69), consumer.ConsumerGroupDescribeRequest(group_ids=["g"]), response)
        return response.groups[0]

    assert (described("open").error_code, len(described("open").members)) == (0, 1)
    assert (described("secret").error_code, described("secret").members) == (DENIED, [])


@pytest.mark.parametrize("where", ["subscribed", "assignment"])
def test_members_of_a_share_group_are_hidden_if_one_of_its_topics_is_invisible_to_the_client(where: str) -> None:
    member = share.Member(member_id="m", subscribed_topic_names=["secret"] if where == "subscribed" else ["open"])
    if where == "assignment":
        member.assignment = share.Assignment(topic_partitions=[share.TopicPartitions(topic_name="secret")])
    response = share.ShareGroupDescribeResponse(groups=[share.DescribedGroup(group_id="g", members=[member])])
    filters.described_members(ann(77), share.ShareGroupDescribeRequest(group_ids=["g"]), response)
    assert (response.groups[0].error_code, response.groups[0].members) == (DENIED, [])


@pytest.mark.parametrize("where", ["source", "sink", "repartition", "changelog"])
def test_topology_and_members_of_a_streams_group_are_hidden_if_one_of_its_topics_is_invisible(where: str) -> None:
    def described(topic: str) -> Any:
        names = dict.fromkeys(("source", "sink", "repartition", "changelog"), "open") | {where: topic}
        subtopology = streams.Subtopology(
            subtopology_id="0",
            source_topics=[names["source"]],
            repartition_sink_topics=[names["sink"]],
            repartition_source_topics=[streams.TopicInfo(name=names["repartition"])],
            state_changelog_topics=[streams.TopicInfo(name=names["changelog"])],
        )
        group = streams.DescribedGroup(
            group_id="g",
            topology=streams.Topology(subtopologies=[subtopology]),
            members=[streams.Member(member_id="m")],
        )
        response = streams.StreamsGroupDescribeResponse(groups=[group])
        filters.described_topologies(ann(89), streams.StreamsGroupDescribeRequest(group_ids=["g"]), response)
        return group

    assert (described("open").error_code, len(described("open").members)) == (0, 1)
    hidden = described("secret")
    assert (hidden.error_code, hidden.members, hidden.topology) == (DENIED, [], None)


@pytest.mark.parametrize("named", [True, False])
def test_share_offsets_of_an_invisible_topic_get_an_error_if_requested_by_name_and_are_omitted_otherwise(
    named: bool,
) -> None:
    asked = [share_offsets.DescribeShareGroupOffsetsRequestTopic(topic_name=name) for name in ("open", "secret")]
    request = share_offsets.DescribeShareGroupOffsetsRequest(
        groups=[share_offsets.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=asked if named else None)]
    )
    topics = [
        share_offsets.DescribeShareGroupOffsetsResponseTopic(
            topic_name=name,
            partitions=[share_offsets.DescribeShareGroupOffsetsResponsePartition(start_offset=7, lag=5)],
        )
        for name in ("open", "secret")
    ]
    response = share_offsets.DescribeShareGroupOffsetsResponse(
        groups=[share_offsets.DescribeShareGroupOffsetsResponseGroup(group_id="g", topics=topics)]
    )
    filters.visible_share_offsets(ann(90), request, response)
    seen = {
        topic.topic_name: (part.start_offset, part.lag, part.error_code)
        for topic in response.groups[0].topics
        for part in topic.partitions
    }
    assert seen == {"open": (7, 5, 0)} | ({"secret": (-1, -1, DENIED)} if named else {})


def test_description_of_a_transaction_omits_topics_that_the_client_may_not_describe() -> None:
    state = transactions.TransactionState(
        transactional_id="t",
        topics=[transactions.TopicData(topic=name, partitions=[0]) for name in ("open", "secret")],
    )
    response = transactions.DescribeTransactionsResponse(transaction_states=[state])
    filters.visible_transaction_topics(ann(65), transactions.DescribeTransactionsRequest(), response)
    assert [topic.topic for topic in response.transaction_states[0].topics] == ["open"]


def test_list_of_transactions_omits_transactional_ids_that_the_client_may_not_describe() -> None:
    states = [listed.TransactionState(transactional_id=name) for name in ("open", "secret")]
    response = listed.ListTransactionsResponse(transaction_states=states)
    filters.visible_transactions(ann(66, AclResource.TRANSACTIONAL_ID), listed.ListTransactionsRequest(), response)
    assert [state.transactional_id for state in response.transaction_states] == ["open"]
