"""Tests heartbeats of streams groups: internal topics, ACLs, refusals and descriptions."""

from __future__ import annotations

import asyncio
from typing import Any

from access_clients import ADMIN, ANN, Clients, with_clients

from penstock.groups.streams.checks import MAX_TOPICS
from penstock.groups.streams.topics import Status
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_88_streams_group_heartbeat as wire
from penstock.protocol.messages.api_03_metadata import MetadataRequest
from penstock.protocol.messages.api_10_find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.api_16_list_groups import ListGroupsRequest
from penstock.protocol.messages.api_32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.protocol.messages.api_57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from penstock.protocol.messages.api_89_streams_group_describe import StreamsGroupDescribeRequest
from penstock.protocol.vocabulary import ResourceType
from penstock.security.vocabulary import AclResource, Operation

EAGER = {"group.streams.initial.rebalance.delay.ms": "0", "group.streams.assignment.interval.ms": "0"}


def changelog(policy: str = "compact") -> wire.Topology:
    config = wire.KeyValue(key="cleanup.policy", value=policy)
    topic = wire.TopicInfo(name="kept", topic_configs=[config])
    each = wire.Subtopology(subtopology_id="0", source_topics=["open"], state_changelog_topics=[topic])
    return wire.Topology(epoch=0, subtopologies=[each])


def joining(topology: wire.Topology, **fields: Any) -> wire.StreamsGroupHeartbeatRequest:
    return wire.StreamsGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        topology=topology,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
        **fields,
    )


async def until(clients: Clients, principal: str, topology: wire.Topology, wanted: str) -> Any:
    """Lets the member rejoin until its status details contain the text, or, for an empty text, are empty."""
    await clients.ask(ADMIN, FindCoordinatorRequest(coordinator_keys=["g"]))
    async with asyncio.timeout(60):
        while True:
            answer = await clients.ask(principal, joining(topology))
            assert answer.error_code in (0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR), answer
            details = [each.status_detail for each in answer.status or ()]
            if answer.error_code == 0 and (any(wanted in each for each in details) if wanted else not details):
                return answer
            await asyncio.sleep(0)  # the node itself runs in this loop, and an answer may come without a pause


def test_missing_internal_topics_of_a_streams_group_are_created_with_partitions_and_configs() -> None:
    async def scenario(clients: Clients) -> None:
        answer = await until(clients, ADMIN, changelog(), "")
        assert [(each.subtopology_id, each.partitions) for each in answer.active_tasks] == [("0", [0])]
        [topic] = [
            each for each in (await clients.ask(ADMIN, MetadataRequest(topics=None))).topics if each.name == "kept"
        ]
        assert len(topic.partitions) == 1
        resource = DescribeConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name="kept", configuration_keys=["cleanup.policy"]
        )
        described = await clients.ask(ADMIN, DescribeConfigsRequest(resources=[resource]))
        assert [each.value for each in described.results[0].configs] == ["compact"]
        shown = await clients.ask(ADMIN, StreamsGroupDescribeRequest(group_ids=["g", "x", "g"]))
        assert [each.group_state for each in shown.groups] == ["Stable", ""], "a repeated id is described once"

    with_clients(scenario, **EAGER)


def test_member_of_a_streams_group_gets_the_reason_for_a_refused_internal_topic() -> None:
    async def scenario(clients: Clients) -> None:
        answer = await until(clients, ADMIN, changelog("nonsense"), "Creation failed: kept (")
        assert [each.status_code for each in answer.status] == [Status.MISSING_INTERNAL_TOPICS]

    with_clients(scenario, **EAGER)


def test_internal_topics_are_created_only_for_a_client_that_may_create_topics() -> None:
    async def scenario(clients: Clients) -> None:
        await clients.allow(ANN, Operation.READ, AclResource.GROUP, "g")
        await clients.allow(ANN, Operation.DESCRIBE, AclResource.TOPIC, "kept")
        answer = await until(clients, ANN, changelog(), "Unauthorized to CREATE on topics kept.")
        assert [each.status_code for each in answer.status] == [Status.MISSING_INTERNAL_TOPICS]
        assert "kept" not in {each.name for each in (await clients.ask(ADMIN, MetadataRequest(topics=None))).topics}
        await clients.allow(ANN, Operation.CREATE, AclResource.TOPIC, "kept")
        await until(clients, ANN, changelog(), "")

    with_clients(scenario, **EAGER)


def test_streams_topology_that_reads_an_internal_or_illegal_or_forbidden_topic_is_refused() -> None:
    async def scenario(clients: Clients) -> None:
        for name in ("__consumer_offsets", "not/legal"):
            each = wire.Subtopology(subtopology_id="0", source_topics=[name])
            answer = await clients.ask(ADMIN, joining(wire.Topology(subtopologies=[each])))
            assert answer.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
        each = wire.Subtopology(subtopology_id="0", source_topics=["secret"])
        await clients.allow(ANN, Operation.READ, AclResource.GROUP, "g")
        answer = await clients.ask(ANN, joining(wire.Topology(subtopologies=[each])))
        assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    with_clients(scenario)


def test_streams_group_heartbeat_with_too_many_topics_or_too_long_client_tags_is_refused() -> None:
    async def scenario(clients: Clients) -> None:
        each = wire.Subtopology(subtopology_id="0", source_topics=["open"] * (MAX_TOPICS + 1))
        answer = await clients.ask(ADMIN, joining(wire.Topology(subtopologies=[each])))
        assert answer.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
        assert f"more than {MAX_TOPICS} topics" in answer.error_message
        tags = [wire.KeyValue(key=f"{number}", value="v" * 30_000) for number in range(3)]
        answer = await clients.ask(ADMIN, joining(changelog(), client_tags=tags))
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "use fewer or shorter client tags" in answer.error_message

    with_clients(scenario)


def test_streams_group_join_that_does_not_fit_into_one_record_creates_no_group() -> None:
    async def scenario(clients: Clients) -> None:
        await until(clients, ADMIN, changelog(), "")
        configs = [wire.KeyValue(key=f"{number}", value="v" * 30_000) for number in range(40)]
        topic = wire.TopicInfo(name="kept", topic_configs=configs)
        each = wire.Subtopology(subtopology_id="0", source_topics=["open"], state_changelog_topics=[topic])
        request = joining(wire.Topology(epoch=0, subtopologies=[each]))
        request.group_id = "large"
        answer = await clients.ask(ADMIN, request)
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert [group.group_id for group in (await clients.ask(ADMIN, ListGroupsRequest())).groups] == ["g"]

    with_clients(scenario, **{**EAGER, "offsets.topic.num.partitions": "1"})


def test_streams_groups_are_refused_while_their_feature_is_disabled() -> None:
    async def scenario(clients: Clients) -> None:
        update = FeatureUpdateKey(feature="streams.version", max_version_level=0, upgrade_type=2)
        await clients.ask(ADMIN, UpdateFeaturesRequest(feature_updates=[update]))
        await clients.node.broker.lifecycle.sees(lambda image: "streams.version" not in image.features, 60)
        assert (await clients.ask(ADMIN, joining(changelog()))).error_code == ErrorCode.UNSUPPORTED_VERSION
        [group] = (await clients.ask(ADMIN, StreamsGroupDescribeRequest(group_ids=["g"]))).groups
        assert group.error_code == ErrorCode.UNSUPPORTED_VERSION

    with_clients(scenario)
