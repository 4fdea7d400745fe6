"""Tests requests to a node with an authorizer: refused requests, partly refused requests, and filtered responses."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

import pytest
from access_clients import ADMIN, ANN, BOB, CLUSTER_DENIED, GROUP_DENIED, TOPIC_DENIED, Clients, acl, with_clients

from penstock.broker.controlplane.controller_channel import principal_data
from penstock.broker.handlers.access import ACCESS, ON_CONTROLLERS
from penstock.broker.handlers.registry import HANDLERS
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.local_connection import LocalConnection
from penstock.net.connection import Connection
from penstock.net.reply import Close
from penstock.protocol.codec import decode, encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_00_produce as produce
from penstock.protocol.messages import api_01_fetch as fetch
from penstock.protocol.messages import api_02_list_offsets as list_offsets
from penstock.protocol.messages import api_03_metadata as metadata
from penstock.protocol.messages import api_08_offset_commit as offset_commit
from penstock.protocol.messages import api_09_offset_fetch as offset_fetch
from penstock.protocol.messages import api_10_find_coordinator as find_coordinator
from penstock.protocol.messages import api_19_create_topics as create_topics
from penstock.protocol.messages import api_22_init_producer_id as init_producer_id
from penstock.protocol.messages import api_29_describe_acls as describe_acls
from penstock.protocol.messages import api_30_create_acls as create_acls
from penstock.protocol.messages import api_31_delete_acls as delete_acls
from penstock.protocol.messages import api_32_describe_configs as describe_configs
from penstock.protocol.messages import api_60_describe_cluster as describe_cluster
from penstock.protocol.messages import api_68_consumer_group_heartbeat as heartbeat
from penstock.protocol.messages import api_75_describe_topic_partitions as describe_topics
from penstock.protocol.messages.api_58_envelope import EnvelopeRequest
from penstock.protocol.messages.headers import RequestHeader
from penstock.protocol.schema import Message
from penstock.protocol.vocabulary import ResourceType
from penstock.records.build import build_batch
from penstock.security.vocabulary import AclResource, Operation, PatternType, Permission

pytestmark = pytest.mark.exhaustive


def produced(
    *topics: str, acks: int = -1, transactional_id: str | None = None, records: bytes | None = None
) -> Message:
    records = records or build_batch([(1000, b"k", b"v", ())])
    partitions = [produce.PartitionProduceData(index=0, records=records)]
    return produce.ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        transactional_id=transactional_id,
        topic_data=[produce.TopicProduceData(name=topic, partition_data=partitions) for topic in topics],
    )


def test_every_served_api_has_access_rules_and_all_rules_belong_to_a_served_api() -> None:
    assert HANDLERS.keys() == ACCESS.keys()
    assert ON_CONTROLLERS.keys() <= ACCESS.keys()


def test_produce_to_an_allowed_and_a_forbidden_topic_is_refused_for_the_forbidden_topic_only() -> None:
    async def scenario(clients: Clients) -> None:
        answer = await clients.ask(ANN, produced("open", "secret"), version=12)
        codes = {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}
        assert codes == {"open": 0, "secret": TOPIC_DENIED}
        answer = await clients.ask(BOB, produced("open", "nowhere"), version=12)
        assert {topic.partition_responses[0].error_code for topic in answer.responses} == {TOPIC_DENIED}

    with_clients(scenario)


def test_produce_with_acks_0_to_a_forbidden_topic_closes_the_connection() -> None:
    async def scenario(clients: Clients) -> None:
        assert isinstance(await clients.ask(BOB, produced("open", acks=0), version=12), Close)

    with_clients(scenario)


def test_producing_transactional_records_needs_the_write_permission_for_the_transactional_id() -> None:
    async def scenario(clients: Clients) -> None:
        answer = await clients.ask(ANN, produced("open", transactional_id="mine"), version=12)
        code = answer.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        hidden = bytearray(build_batch([(1000, b"k", b"v", ())]))
        hidden[22] |= 0x10  # a transactional batch in a request without a transactional id
        answer = await clients.ask(ANN, produced("open", records=bytes(hidden)), version=12)
        assert answer.responses[0].partition_responses[0].error_code == code

    with_clients(scenario)


def fetched(topic: str, *, session: tuple[int, int] = (0, -1), replica: int = -1) -> Message:
    asked = fetch.FetchTopic(
        topic=topic, partitions=[fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    )
    return fetch.FetchRequest(
        replica_id=replica,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        session_id=session[0],
        session_epoch=session[1],
        topics=[asked] if session[1] <= 0 else [],
    )


def test_fetch_of_a_forbidden_topic_gets_the_same_error_whether_or_not_the_topic_exists() -> None:
    async def scenario(clients: Clients) -> None:
        for topic in ("secret", "nowhere"):
            answer = await clients.ask(ANN, fetched(topic), version=12)
            assert answer.responses[0].partitions[0].error_code == TOPIC_DENIED
        answer = await clients.ask(ANN, fetched("open"), version=12)
        assert answer.responses[0].partitions[0].error_code == 0

    with_clients(scenario)


def test_fetch_session_loses_access_when_an_acl_is_removed_and_cannot_be_used_by_another_user() -> None:
    async def scenario(clients: Clients) -> None:
        opened = await clients.ask(ANN, fetched("open", session=(0, 0)), version=12)
        await clients.ask(ADMIN, produced("open"), version=12)
        stolen = await clients.ask(BOB, fetched("open", session=(opened.session_id, 1)), version=12)
        assert stolen.responses[0].partitions[0].error_code == TOPIC_DENIED
        assert not stolen.responses[0].partitions[0].records
        selected = delete_acls.DeleteAclsFilter(
            resource_type_filter=AclResource.TOPIC,
            resource_name_filter=None,
            pattern_type_filter=PatternType.ANY,
            principal_filter=None,
            host_filter=None,
            operation=Operation.ANY,
            permission_type=Permission.ANY,
        )
        deleted = await clients.ask(ADMIN, delete_acls.DeleteAclsRequest(filters=[selected]))
        assert [each.resource_name for each in deleted.filter_results[0].matching_acls] == ["open"]
        later = await clients.ask(ANN, fetched("open", session=(opened.session_id, 2)), version=12)
        assert later.responses[0].partitions[0].error_code == TOPIC_DENIED

    with_clients(scenario)


def test_fetch_as_a_follower_needs_the_cluster_action_permission() -> None:
    async def scenario(clients: Clients) -> None:
        answer = await clients.ask(ANN, fetched("open", replica=1), version=12)
        assert answer.responses[0].partitions[0].error_code == TOPIC_DENIED

    with_clients(scenario)


@pytest.mark.parametrize("version", [0, 1, 8, 13])
def test_metadata_shows_only_topics_that_the_client_may_describe(version: int) -> None:
    async def scenario(clients: Clients) -> None:
        def names(answer: Any) -> dict[str, int]:
            return {topic.name: topic.error_code for topic in answer.topics}

        everything = metadata.MetadataRequest(topics=[] if version == 0 else None)
        assert names(await clients.ask(ANN, everything, version=version)) == {"open": 0}
        assert set(names(await clients.ask(ADMIN, everything, version=version))) == {"open", "secret"}
        asked = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name) for name in ("open", "secret", "new")],
            allow_auto_topic_creation=True,
        )
        answer = await clients.ask(ANN, asked, version=version)
        assert names(answer) == {"open": 0, "secret": TOPIC_DENIED, "new": TOPIC_DENIED}
        assert len(answer.brokers) == 1
        only = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="secret")])
        answer = await clients.ask(ANN, only, version=version)
        assert names(answer) == {"secret": TOPIC_DENIED}
        assert len(answer.brokers) == 1
        assert "new" not in names(await clients.ask(ADMIN, everything, version=version))

    with_clients(scenario)


def test_metadata_request_creates_a_missing_topic_only_if_the_client_has_the_create_permission() -> None:
    async def scenario(clients: Clients) -> None:
        await clients.allow(ANN, Operation.DESCRIBE, AclResource.TOPIC, "new", prefixed=True)
        request = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name="new1")], allow_auto_topic_creation=True
        )
        assert (await clients.ask(ANN, request)).topics[0].error_code == TOPIC_DENIED
        await clients.allow(ANN, Operation.CREATE, AclResource.TOPIC, "new", prefixed=True)
        assert (await clients.ask(ANN, request)).topics[0].error_code == 0

    with_clients(scenario)


def test_metadata_reports_the_operations_that_the_client_is_allowed() -> None:
    async def scenario(clients: Clients) -> None:
        await clients.allow(BOB, Operation.READ, AclResource.TOPIC, "open")
        request = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name="open")],
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        answer = await clients.ask(BOB, request, version=8)
        assert answer.topics[0].topic_authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE
        assert answer.cluster_authorized_operations == 0
        answer = await clients.ask(
            ADMIN, describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=True)
        )
        assert answer.cluster_authorized_operations & 1 << Operation.CLUSTER_ACTION

    with_clients(scenario)


def test_describe_topic_partitions_does_not_count_invisible_topics_towards_its_page_limit() -> None:
    async def scenario(clients: Clients) -> None:
        request = describe_topics.DescribeTopicPartitionsRequest(response_partition_limit=1)
        answer = await clients.ask(ANN, request)
        assert [topic.name for topic in answer.topics] == ["open"]
        assert answer.next_cursor is None

    with_clients(scenario)


def test_offset_requests_need_permission_for_the_group_and_then_for_each_topic() -> None:
    async def scenario(clients: Clients) -> None:
        partitions = [offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=3)]
        request = offset_commit.OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            topics=[
                offset_commit.OffsetCommitRequestTopic(name=name, partitions=partitions) for name in ("open", "secret")
            ],
        )

        def codes(answer: Any) -> dict[str, int]:
            return {topic.name: topic.partitions[0].error_code for topic in answer.topics}

        assert codes(await clients.ask(ANN, request, version=8)) == {"open": GROUP_DENIED, "secret": GROUP_DENIED}
        await clients.ask(ADMIN, find_coordinator.FindCoordinatorRequest(key="g"), version=3)  # makes the offsets topic
        await clients.allow(ANN, Operation.READ, AclResource.GROUP, "g")
        assert codes(await clients.ask(ANN, request, version=8)) == {"open": 0, "secret": TOPIC_DENIED}
        assert codes(await clients.ask(ADMIN, request, version=8)) == {"open": 0, "secret": 0}

        everything = offset_fetch.OffsetFetchRequest(
            groups=[offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=None) for group in ("g", "other")]
        )
        answer = await clients.ask(ANN, everything, version=9)
        groups = {group.group_id: group for group in answer.groups}
        assert groups["other"].error_code == GROUP_DENIED
        assert {topic.name: topic.partitions[0].committed_offset for topic in groups["g"].topics} == {"open": 3}
        named = offset_fetch.OffsetFetchRequest(
            group_id="g",
            topics=[
                offset_fetch.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in ("open", "secret")
            ],
        )
        answer = await clients.ask(ANN, named, version=7)
        seen = {t.name: (t.partitions[0].error_code, t.partitions[0].committed_offset) for t in answer.topics}
        assert seen == {"open": (0, 3), "secret": (TOPIC_DENIED, -1)}

    with_clients(scenario)


def test_find_coordinator_answers_only_for_groups_that_the_client_may_describe() -> None:
    async def scenario(clients: Clients) -> None:
        await clients.allow(ANN, Operation.READ, AclResource.GROUP, "g")
        request = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g", "h"])
        answer = await clients.ask(ANN, request, version=4)
        assert {each.key: each.error_code for each in answer.coordinators}["h"] == GROUP_DENIED
        single = find_coordinator.FindCoordinatorRequest(key="h")
        assert (await clients.ask(ANN, single, version=3)).error_code == GROUP_DENIED

    with_clients(scenario)


def test_client_gets_a_producer_id_if_it_may_write_to_at_least_one_topic() -> None:
    async def scenario(clients: Clients) -> None:
        request = init_producer_id.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        assert (await clients.ask(ANN, request)).error_code == 0
        assert (await clients.ask(BOB, request)).error_code == CLUSTER_DENIED
        request = init_producer_id.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
        assert (await clients.ask(ANN, request)).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    with_clients(scenario)


def test_describe_configs_refuses_only_forbidden_resources_and_the_error_code_depends_on_their_type() -> None:
    async def scenario(clients: Clients) -> None:
        request = describe_configs.DescribeConfigsRequest(
            resources=[
                describe_configs.DescribeConfigsResource(resource_type=kind, resource_name=name)
                for kind, name in (
                    (ResourceType.TOPIC, "open"),
                    (ResourceType.TOPIC, "secret"),
                    (ResourceType.BROKER, "1"),
                    (ResourceType.GROUP, "g"),
                )
            ]
        )
        answer = await clients.ask(ANN, request)
        codes = {(each.resource_type, each.resource_name): each.error_code for each in answer.results}
        assert codes == {
            (ResourceType.TOPIC, "open"): 0,
            (ResourceType.TOPIC, "secret"): TOPIC_DENIED,
            (ResourceType.BROKER, "1"): CLUSTER_DENIED,
            (ResourceType.GROUP, "g"): GROUP_DENIED,
        }

    with_clients(scenario)


def test_create_topics_response_hides_configs_from_clients_without_the_describe_configs_permission() -> None:
    async def scenario(clients: Clients) -> None:
        await clients.allow(BOB, Operation.CREATE, AclResource.CLUSTER, "kafka-cluster")
        topics = [create_topics.CreatableTopic(name="bobs", num_partitions=1, replication_factor=1)]
        request = create_topics.CreateTopicsRequest(topics=topics, timeout_ms=1000)
        answer = await clients.ask(BOB, request)
        assert (answer.topics[0].error_code, answer.topics[0].topic_config_error_code) == (0, TOPIC_DENIED)
        assert answer.topics[0].configs == []
        assert (await clients.ask(ANN, request)).topics[0].error_code == TOPIC_DENIED

    with_clients(scenario)


def test_acl_with_a_host_applies_only_to_clients_from_that_address() -> None:
    async def scenario(clients: Clients) -> None:
        await clients.allow(BOB, Operation.WRITE, AclResource.TOPIC, "open", host="10.0.0.1")
        answer = await clients.ask(BOB, produced("open"), version=12, host="10.0.0.1")
        assert answer.responses[0].partition_responses[0].error_code == 0
        answer = await clients.ask(BOB, produced("open"), version=12, host="10.0.0.2")
        assert answer.responses[0].partition_responses[0].error_code == TOPIC_DENIED

    with_clients(scenario)


def test_acl_that_is_created_twice_is_described_once() -> None:
    async def scenario(clients: Clients) -> None:
        await clients.allow(BOB, Operation.READ, AclResource.TOPIC, "op", prefixed=True)
        await clients.allow(BOB, Operation.READ, AclResource.TOPIC, "op", prefixed=True)
        request = describe_acls.DescribeAclsRequest(
            resource_type_filter=AclResource.TOPIC,
            resource_name_filter="open",
            pattern_type_filter=PatternType.MATCH,
            principal_filter=None,
            host_filter=None,
            operation=Operation.ANY,
            permission_type=Permission.ANY,
        )
        answer = await clients.ask(ADMIN, request)
        assert answer.error_code == 0, answer
        found = {
            (each.resource_name, each.pattern_type, acl.principal) for each in answer.resources for acl in each.acls
        }
        assert found == {("open", PatternType.LITERAL, ANN), ("op", PatternType.PREFIXED, BOB)}
        assert sum(len(each.acls) for each in answer.resources) == 2
        assert (await clients.ask(ANN, request)).error_code == CLUSTER_DENIED
        request.operation = 99
        assert (await clients.ask(ADMIN, request)).error_code == ErrorCode.INVALID_REQUEST

    with_clients(scenario)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resource_type": 1}, "resource type"),
        ({"resource_pattern_type": 2}, "pattern type"),
        ({"operation": 1}, "operation"),
        ({"permission_type": 0}, "permission type"),
        ({"resource_name": ""}, "must not be empty"),
        ({"resource_type": 4, "resource_name": "other"}, "kafka-cluster"),
        ({"principal": "ann"}, "not a principal"),
        ({"host": ""}, "host"),
    ],
)
def test_invalid_acl_is_refused_and_the_other_acls_of_the_request_are_created(
    change: dict[str, Any], message: str
) -> None:
    async def scenario(clients: Clients) -> None:
        wrong, right = (acl(ANN, Operation.READ, AclResource.GROUP, name) for name in ("wrong", "right"))
        for field, value in change.items():
            setattr(wrong, field, value)
        answer = await clients.ask(ADMIN, create_acls.CreateAclsRequest(creations=[wrong, right]))
        assert [each.error_code for each in answer.results] == [ErrorCode.INVALID_REQUEST, 0]
        assert message in answer.results[0].error_message

    with_clients(scenario)


def test_property_allow_everyone_if_no_acl_found_opens_resources_without_acls() -> None:
    async def scenario(clients: Clients) -> None:
        assert (await clients.ask(BOB, produced("secret"), version=12)).responses[0].partition_responses[
            0
        ].error_code == 0
        denied = await clients.ask(BOB, produced("open"), version=12)
        assert denied.responses[0].partition_responses[0].error_code == TOPIC_DENIED

    with_clients(scenario, **{"allow.everyone.if.no.acl.found": "true"})


def test_forwarded_request_is_authorized_for_the_client_that_sent_it() -> None:
    async def scenario(clients: Clients) -> None:
        topics = [create_topics.CreatableTopic(name="x", num_partitions=1, replication_factor=1)]
        inner = create_topics.CreateTopicsRequest(topics=topics, timeout_ms=1000)
        header = RequestHeader(request_api_key=19, request_api_version=7, correlation_id=1, client_id="c")
        envelope = EnvelopeRequest(
            request_data=encode(header, 2) + encode(inner, 7),
            request_principal=principal_data(BOB),
            client_host_address=struct.pack("4B", 1, 2, 3, 4),
        )
        answer = await clients.ask(ADMIN, envelope, role="CONTROLLER")
        assert answer.error_code == 0
        response = decode(create_topics.CreateTopicsResponse, 7, answer.response_data, 5)
        assert response.topics[0].error_code == TOPIC_DENIED
        assert (await clients.ask(ANN, envelope, role="CONTROLLER")).error_code == CLUSTER_DENIED

    with_clients(scenario)


@pytest.mark.parametrize(("address", "code"), [((10, 0, 0, 1), 0), ((1, 2, 3, 4), TOPIC_DENIED)])
def test_forwarded_request_is_authorized_for_the_host_of_the_client_that_sent_it(
    address: tuple[int, int, int, int], code: int
) -> None:
    """Forwards a request from a broker whose own address is 1.2.3.4."""

    async def scenario(clients: Clients) -> None:
        await clients.allow(BOB, Operation.CREATE, AclResource.TOPIC, "x", host="10.0.0.1")
        topics = [create_topics.CreatableTopic(name="x", num_partitions=1, replication_factor=1)]
        header = RequestHeader(request_api_key=19, request_api_version=7, correlation_id=1, client_id="c")
        envelope = EnvelopeRequest(
            request_data=encode(header, 2) + encode(create_topics.CreateTopicsRequest(topics=topics), 7),
            request_principal=principal_data(BOB),
            client_host_address=bytes(address),
        )
        answer = await clients.ask(ADMIN, envelope, role="CONTROLLER", host="1.2.3.4")
        response = decode(create_topics.CreateTopicsResponse, 7, answer.response_data, 5)
        assert response.topics[0].error_code == code

    with_clients(scenario)


def test_subscribed_pattern_matches_only_topics_that_the_client_may_describe() -> None:
    async def scenario(clients: Clients) -> None:
        await clients.ask(ADMIN, find_coordinator.FindCoordinatorRequest(key="g"), version=3)
        await clients.allow(ANN, Operation.READ, AclResource.GROUP, "g")
        named = await clients.ask(ADMIN, metadata.MetadataRequest(topics=None))
        names = {topic.topic_id: topic.name for topic in named.topics}

        async def assigned(epoch: int, **fields: Any) -> tuple[int, set[str]]:
            request = heartbeat.ConsumerGroupHeartbeatRequest(
                group_id="g", member_id="m", member_epoch=epoch, topic_partitions=[], **fields
            )
            answer = await clients.ask(ANN, request)
            assert answer.error_code == 0, answer
            return answer.member_epoch, {names[each.topic_id] for each in answer.assignment.topic_partitions}

        joining: dict[str, Any] = {"rebalance_timeout_ms": 1000, "subscribed_topic_regex": "open|secret|__.*"}
        epoch, topics = await assigned(0, **joining)
        assert topics == {"open"}
        await clients.allow(ANN, Operation.DESCRIBE, AclResource.TOPIC, "secret")
        epoch, topics = await assigned(epoch, **joining)
        assert topics == {"open", "secret"}
        await clients.allow(ANN, Operation.DESCRIBE, AclResource.TOPIC, "secret", deny=True)
        _, topics = await assigned(epoch, **joining)
        assert topics == {"open"}

    with_clients(scenario, **{"group.consumer.assignment.interval.ms": "0"})


def test_request_to_the_controller_on_the_same_node_is_authorized_for_the_client_that_sent_it() -> None:
    async def scenario(clients: Clients) -> None:
        topics = [create_topics.CreatableTopic(name="x", num_partitions=1, replication_factor=1)]
        request = create_topics.CreateTopicsRequest(topics=topics, timeout_ms=1000)

        async def code(principal: str) -> int:
            connection = cast(Connection, LocalConnection("PLAINTEXT", principal))
            ctx = RequestContext(19, 7, 1, "c", connection, 0)
            answer = await clients.node.broker.channel.forward(ctx, request)
            found: int = answer.topics[0].error_code
            return found

        assert await code(ANN) == TOPIC_DENIED
        assert await code(ADMIN) == 0

    with_clients(scenario)


def test_fetch_by_topic_id_is_authorized_by_the_name_of_the_topic() -> None:
    async def scenario(clients: Clients) -> None:
        named = await clients.ask(ADMIN, metadata.MetadataRequest(topics=None))
        ids = {topic.name: topic.topic_id for topic in named.topics}
        for topic, code in (("secret", TOPIC_DENIED), ("open", 0)):
            asked = fetch.FetchTopic(
                topic_id=ids[topic],
                partitions=[fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)],
            )
            answer = await clients.ask(
                ANN, fetch.FetchRequest(max_wait_ms=0, max_bytes=1000, topics=[asked]), version=17
            )
            assert answer.responses[0].partitions[0].error_code == code

    with_clients(scenario)


def test_long_names_in_a_denied_request_are_shortened_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(clients: Clients) -> None:
        keys = ["x" * 30_000 + str(number) for number in range(20)]
        await clients.ask(BOB, find_coordinator.FindCoordinatorRequest(coordinator_keys=keys), version=4)

    with caplog.at_level("INFO"):
        with_clients(scenario)
    lines = [record.getMessage() for record in caplog.records if "was denied" in record.getMessage()]
    assert lines
    assert max(map(len, lines)) < 1_000


@pytest.mark.parametrize("allowed", [0, 3_000])
def test_other_requests_are_served_while_a_denied_client_names_very_many_topics(allowed: int) -> None:
    async def scenario(clients: Clients) -> None:
        if allowed:
            await clients.allow(BOB, Operation.DESCRIBE, AclResource.TOPIC, "may-", prefixed=True)
        names = [f"{'may' if number < allowed else 'no'}-{number}" for number in range(20_000)]
        partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=name, partitions=[partition]) for name in names]
        )
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        answer = await clients.ask(BOB, request, version=6)
        counting.cancel()
        codes = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
        assert codes.keys() == set(names)
        assert [name for name, code in codes.items() if code != TOPIC_DENIED] == names[:allowed]
        assert turns > 40

    with_clients(scenario)
