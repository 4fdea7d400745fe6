"""The cluster and the node: brokers, quorum, features, directories, quotas, producer ids, telemetry, elections and
reassignments.
"""

from __future__ import annotations

from typing import Any

import pytest
from oracle_peer import Peer
from oracle_transcript import render

from penstock.protocol.messages.api_10_find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest
from penstock.protocol.messages.api_29_describe_acls import DescribeAclsRequest
from penstock.protocol.messages.api_30_create_acls import AclCreation, CreateAclsRequest
from penstock.protocol.messages.api_31_delete_acls import DeleteAclsFilter, DeleteAclsRequest
from penstock.protocol.messages.api_34_alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from penstock.protocol.messages.api_35_describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from penstock.protocol.messages.api_43_elect_leaders import ElectLeadersRequest, TopicPartitions
from penstock.protocol.messages.api_45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.api_46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from penstock.protocol.messages.api_48_describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from penstock.protocol.messages.api_49_alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from penstock.protocol.messages.api_55_describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from penstock.protocol.messages.api_57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterRequest
from penstock.protocol.messages.api_64_unregister_broker import UnregisterBrokerRequest
from penstock.protocol.messages.api_71_get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from penstock.protocol.messages.api_72_push_telemetry import PushTelemetryRequest

METADATA = "__cluster_metadata"


def test_penstock_answers_describe_cluster_like_kafka(peer: Peer) -> None:
    for version in (0, 1, 2):
        peer.ask(DescribeClusterRequest(), version)
    peer.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
    peer.ask(DescribeClusterRequest(include_fenced_brokers=True), 2)
    peer.said("""
        DescribeCluster v0 cluster_id=<cluster_id> controller_id=1
          brokers: broker_id=1 host=<host> port=<port>
        DescribeCluster v1 cluster_id=<cluster_id> controller_id=1
          brokers: broker_id=1 host=<host> port=<port>
        DescribeCluster v2 cluster_id=<cluster_id> controller_id=1
          brokers: broker_id=1 host=<host> port=<port>
        DescribeCluster v1 cluster_id=<cluster_id> controller_id=1 cluster_authorized_operations=8096
          brokers: broker_id=1 host=<host> port=<port>
        DescribeCluster v2 cluster_id=<cluster_id> controller_id=1
          brokers: broker_id=1 host=<host> port=<port>
    """)


def test_broker_refuses_to_describe_controllers_and_unknown_endpoint_types_as_kafka_does(peer: Peer) -> None:
    for kind in (2, 0, 9):
        peer.ask(DescribeClusterRequest(endpoint_type=kind), 2)
    peer.said("""
        DescribeCluster v2 error_code=MISMATCHED_ENDPOINT_TYPE
        DescribeCluster v2 error_code=UNSUPPORTED_ENDPOINT_TYPE
        DescribeCluster v2 error_code=UNSUPPORTED_ENDPOINT_TYPE
    """)


# --- the quorum -------------------------------------------------------------------------------------------------


def quorum(topic: str = METADATA, *partitions: int) -> DescribeQuorumRequest:
    asked = [PartitionData(partition_index=index) for index in partitions]
    return DescribeQuorumRequest(topics=[TopicData(topic_name=topic, partitions=asked)])


@pytest.mark.parametrize("version", [0, 1, 2])
def test_penstock_answers_describe_quorum_with_one_voter_like_kafka(peer: Peer, version: int) -> None:
    answer = peer.quietly(quorum(METADATA, 0), version)
    (partition,) = answer.topics[0].partitions
    assert partition.leader_epoch >= 1
    assert partition.high_watermark > 0
    assert partition.current_voters[0].log_end_offset >= partition.high_watermark
    partition.leader_epoch = partition.high_watermark = 1
    for voter in partition.current_voters:
        voter.log_end_offset = 1
    for node in answer.nodes:
        node.listeners = []
    peer.note(render(answer, version, peer.masks))
    if version == 0:
        peer.said("""
            DescribeQuorum v0
              topics: topic_name=__cluster_metadata
                partitions: leader_id=1 leader_epoch=1 high_watermark=1
                  current_voters: replica_id=1 log_end_offset=1
        """)
    elif version == 2:
        peer.said("""
            DescribeQuorum v2
              topics: topic_name=__cluster_metadata
                partitions: leader_id=1 leader_epoch=1 high_watermark=1
                  current_voters: replica_id=1 replica_directory_id=<uuid 1> log_end_offset=1
                        last_fetch_timestamp=<now> last_caught_up_timestamp=<now>
              nodes: node_id=1
        """)


def test_describe_quorum_of_any_other_partition_than_the_metadata_partition_is_refused(peer: Peer) -> None:
    peer.ask(quorum(METADATA, 1))
    peer.ask(quorum("other", 0))
    peer.ask(quorum(METADATA))
    peer.ask(quorum(METADATA, 0, 1))
    peer.ask(DescribeQuorumRequest())
    peer.said("""
        DescribeQuorum v2
          topics: topic_name=__cluster_metadata
            partitions: partition_index=1 error_code=UNKNOWN_TOPIC_OR_PARTITION
        DescribeQuorum v2
          topics: topic_name=other
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION
        DescribeQuorum v2
          topics: topic_name=__cluster_metadata
        DescribeQuorum v2
          topics: topic_name=__cluster_metadata
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION
            partitions: partition_index=1 error_code=UNKNOWN_TOPIC_OR_PARTITION
        DescribeQuorum v2
    """)


# --- features ---------------------------------------------------------------------------------------------------


def features(*updates: tuple[str, int, int], **more: Any) -> UpdateFeaturesRequest:
    keys = [FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=how) for name, level, how in updates]
    return UpdateFeaturesRequest(feature_updates=keys, **more)


def test_penstock_answers_invalid_feature_updates_like_kafka(peer: Peer) -> None:
    upgrade, safe, unsafe = 1, 2, 3
    for what in (
        ("no.such", 1, upgrade),
        ("metadata.version", 99, upgrade),
        ("metadata.version", 7, upgrade),
        ("metadata.version", 30, upgrade),
        ("metadata.version", 29, safe),
        ("metadata.version", 0, unsafe),
        ("kraft.version", 9, upgrade),
        ("kraft.version", 1, upgrade),
        ("group.version", 9, upgrade),
        ("group.version", 1, upgrade),
        ("group.version", 0, upgrade),
        ("group.version", 0, safe),
        ("transaction.version", 2, upgrade),
        ("transaction.version", 1, safe),
        ("group.version", 1, 0),
        ("group.version", 1, 9),
        ("group.version", -1, safe),
        ("", 1, upgrade),
    ):
        peer.note(str(what))
        for version in (1, 2):
            answer = peer.quietly(features(what, validate_only=True), version)
            for result in answer.results:
                result.error_message = None  # Kafka: "NONE"
            peer.note(render(answer, version, peer.masks))
    peer.ask(features(), 1)
    peer.ask(features(), 2)
    peer.ask(features(("group.version", 1, upgrade), ("no.such", 1, upgrade), validate_only=True), 2)
    peer.ask(features(("group.version", 1, upgrade), ("group.version", 1, upgrade), validate_only=True), 2)
    peer.said("""
        ('no.such', 1, 1)
        UpdateFeatures v1 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        ('metadata.version', 99, 1)
        UpdateFeatures v1 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        ('metadata.version', 7, 1)
        UpdateFeatures v1 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        ('metadata.version', 30, 1)
        UpdateFeatures v1 error_message=null
          results: feature=metadata.version error_message=null
        UpdateFeatures v2 error_message=null
        ('metadata.version', 29, 2)
        UpdateFeatures v1 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        ('metadata.version', 0, 3)
        UpdateFeatures v1 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        ('kraft.version', 9, 1)
        UpdateFeatures v1 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        ('kraft.version', 1, 1)
        UpdateFeatures v1 error_message=null
          results: feature=kraft.version error_message=null
        UpdateFeatures v2 error_message=null
        ('group.version', 9, 1)
        UpdateFeatures v1 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        ('group.version', 1, 1)
        UpdateFeatures v1 error_message=null
          results: feature=group.version error_message=null
        UpdateFeatures v2 error_message=null
        ('group.version', 0, 1)
        UpdateFeatures v1 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        ('group.version', 0, 2)
        UpdateFeatures v1 error_message=null
          results: feature=group.version error_message=null
        UpdateFeatures v2 error_message=null
        ('transaction.version', 2, 1)
        UpdateFeatures v1 error_message=null
          results: feature=transaction.version error_message=null
        UpdateFeatures v2 error_message=null
        ('transaction.version', 1, 2)
        UpdateFeatures v1 error_message=null
          results: feature=transaction.version error_message=null
        UpdateFeatures v2 error_message=null
        ('group.version', 1, 0)
        UpdateFeatures v1 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        ('group.version', 1, 9)
        UpdateFeatures v1 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        ('group.version', -1, 2)
        UpdateFeatures v1 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        ('', 1, 1)
        UpdateFeatures v1 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v1 error_message=null
        UpdateFeatures v2 error_message=null
        UpdateFeatures v2 error_code=INVALID_UPDATE_VERSION
        UpdateFeatures v2 error_message=null
    """)


# --- log directories --------------------------------------------------------------------------------------------


def log_dirs(topics: dict[str, list[int]] | None) -> DescribeLogDirsRequest:
    asked = [DescribableLogDirTopic(topic=name, partitions=parts) for name, parts in (topics or {}).items()]
    return DescribeLogDirsRequest(topics=None if topics is None else asked)


@pytest.mark.parametrize("version", [1, 3, 4, 5])
def test_penstock_answers_describe_log_dirs_like_kafka(peer: Peer, version: int) -> None:
    topic = peer.topic(partitions=2)
    peer.produce(topic, (1, 2))
    answer = peer.quietly(log_dirs({topic: [0, 1, 9]}), version)
    for directory in answer.results:
        for found in directory.topics:
            found.partitions.sort(key=lambda partition: partition.partition_index)
    peer.note(render(answer, version, peer.masks))
    if version == 1:
        peer.said("""
            DescribeLogDirs v1
              results: log_dir=<log_dir>
                topics: name=t
                  partitions: partition_size=79
                  partitions: partition_index=1
        """)
    elif version == 5:
        peer.said("""
            DescribeLogDirs v5
              results: log_dir=<log_dir>
                topics: name=t
                  partitions: partition_size=79
                  partitions: partition_index=1
        """)


def moved(path: str, topics: dict[str, list[int]]) -> AlterReplicaLogDirsRequest:
    asked = [AlterReplicaLogDirTopic(name=name, partitions=parts) for name, parts in topics.items()]
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=asked)])


@pytest.mark.parametrize("version", [1, 2])
def test_penstock_answers_a_request_to_move_a_replica_on_a_node_with_one_log_directory_like_kafka(
    peer: Peer, version: int
) -> None:
    topic = peer.topic(partitions=2)
    here = peer.quietly(log_dirs({topic: [0]})).results[0].log_dir
    peer.ask(moved(here, {topic: [0]}), version)
    peer.ask(moved(here, {topic: [7]}), version)
    peer.ask(moved(here, {peer.unique("nope"): [0]}), version)
    peer.ask(moved("/nowhere", {topic: [0]}), version)
    peer.ask(moved("/nowhere", {peer.unique("nope"): [0]}), version)
    peer.ask(moved(here, {"n" * 230: [0]}), version)
    peer.ask(moved("", {topic: [0]}), version)
    peer.ask(AlterReplicaLogDirsRequest(), version)
    if version == 2:
        peer.said("""
            AlterReplicaLogDirs v2
              results: topic_name=t
                partitions:
            AlterReplicaLogDirs v2
              results: topic_name=t
                partitions: partition_index=7 error_code=UNKNOWN_TOPIC_OR_PARTITION
            AlterReplicaLogDirs v2
              results: topic_name=nope
                partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION
            AlterReplicaLogDirs v2
              results: topic_name=t
                partitions: error_code=LOG_DIR_NOT_FOUND
            AlterReplicaLogDirs v2
              results: topic_name=nope
                partitions: error_code=LOG_DIR_NOT_FOUND
            AlterReplicaLogDirs v2
              results: topic_name=nnnnnnnn…(230)
                partitions: error_code=INVALID_TOPIC_EXCEPTION
            AlterReplicaLogDirs v2
              results: topic_name=t
                partitions: error_code=LOG_DIR_NOT_FOUND
            AlterReplicaLogDirs v2
        """)


def test_describe_log_dirs_omits_topics_that_do_not_exist(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(log_dirs({peer.unique("nope"): [0]}))
    peer.ask(log_dirs({}))
    peer.ask(log_dirs({topic: []}))
    peer.said("""
        DescribeLogDirs v5
          results: log_dir=<log_dir>
        DescribeLogDirs v5
          results: log_dir=<log_dir>
        DescribeLogDirs v5
          results: log_dir=<log_dir>
    """)
    everything = {found.name for found in peer.quietly(log_dirs(None)).results[0].topics}
    assert topic in everything
    assert METADATA not in everything


# --- producer ids and coordinators ------------------------------------------------------------------------------


def producer(transactional_id: str | None = None, timeout: int = 1000, **more: Any) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout, **more)


def test_init_producer_id_returns_a_different_producer_id_each_time(peer: Peer) -> None:
    peer.settle(lambda: bool(peer.quietly(producer(), 4).error_code == 0))
    seen = set()
    for version in range(6):
        answer = peer.quietly(producer(), version)
        assert (answer.error_code, answer.producer_epoch) == (0, 0)
        seen.add(answer.producer_id)
    assert len(seen) == 6


def test_penstock_answers_invalid_init_producer_id_requests_like_kafka(peer: Peer) -> None:
    peer.settle(lambda: bool(peer.quietly(producer(), 4).error_code == 0))
    peer.ask(producer(""), 4)
    peer.ask(producer(timeout=-1), 4)
    peer.ask(producer(timeout=0), 4)
    peer.ask(producer(producer_id=5), 4)
    peer.ask(producer(producer_epoch=5), 4)
    peer.ask(producer(producer_id=5, producer_epoch=5), 4)
    peer.ask(producer(producer_id=-2, producer_epoch=3), 4)
    peer.said("""
        InitProducerId v4 error_code=INVALID_REQUEST producer_id=-1 producer_epoch=-1
        InitProducerId v4 producer_id=<producer 1>
        InitProducerId v4 producer_id=<producer 2>
        InitProducerId v4 error_code=INVALID_REQUEST producer_id=-1 producer_epoch=-1
        InitProducerId v4 error_code=INVALID_REQUEST producer_id=-1 producer_epoch=-1
        InitProducerId v4 producer_id=<producer 3>
        InitProducerId v4 producer_id=<producer 4>
    """)


def test_penstock_answers_find_coordinator_like_kafka(peer: Peer) -> None:
    peer.have_offsets_topic()
    for version in (0, 1, 2, 3):
        peer.ask(FindCoordinatorRequest(key="g", key_type=0), version)
    peer.ask(FindCoordinatorRequest(coordinator_keys=["g", "h", "g"], key_type=0), 4)
    peer.ask(FindCoordinatorRequest(coordinator_keys=[], key_type=0), 6)
    peer.ask(FindCoordinatorRequest(coordinator_keys=[""], key_type=0), 6)
    peer.said("""
        FindCoordinator v0 node_id=1 host=<host> port=<port>
        FindCoordinator v1 error_message=… node_id=1 host=<host> port=<port>
        FindCoordinator v2 error_message=… node_id=1 host=<host> port=<port>
        FindCoordinator v3 error_message=… node_id=1 host=<host> port=<port>
        FindCoordinator v4
          coordinators: key=g node_id=1 host=<host> port=<port>
          coordinators: key=h node_id=1 host=<host> port=<port>
          coordinators: key=g node_id=1 host=<host> port=<port>
        FindCoordinator v6
        FindCoordinator v6
          coordinators: node_id=1 host=<host> port=<port>
    """)


def test_penstock_answers_invalid_find_coordinator_requests_like_kafka(peer: Peer) -> None:
    for kind in (3, -1, 100):
        peer.ask(FindCoordinatorRequest(key="g", key_type=kind), 3)
        peer.ask(FindCoordinatorRequest(coordinator_keys=["g"], key_type=kind), 6)
    peer.ask(FindCoordinatorRequest(coordinator_keys=["g"], key_type=2), 5)
    peer.ask(FindCoordinatorRequest(coordinator_keys=["g", "g:x:0", "g:AAAAAAAAAAAAAAAAAAAABw:0:1"], key_type=2), 6)
    peer.said("""
        FindCoordinator v3 error_code=INVALID_REQUEST node_id=-1 port=<port>
        FindCoordinator v6
          coordinators: key=g node_id=-1 port=<port> error_code=INVALID_REQUEST
        FindCoordinator v3 error_code=INVALID_REQUEST node_id=-1 port=<port>
        FindCoordinator v6
          coordinators: key=g node_id=-1 port=<port> error_code=INVALID_REQUEST
        FindCoordinator v3 error_code=INVALID_REQUEST node_id=-1 port=<port>
        FindCoordinator v6
          coordinators: key=g node_id=-1 port=<port> error_code=INVALID_REQUEST
        FindCoordinator v5
          coordinators: key=g node_id=-1 port=<port> error_code=INVALID_REQUEST
        FindCoordinator v6
          coordinators: key=g node_id=-1 port=<port> error_code=INVALID_REQUEST
          coordinators: key=g:x:0 node_id=-1 port=<port> error_code=INVALID_REQUEST
          coordinators: key=g:AAAAAAAAAAAAAAAAAAAABw:0:1 node_id=-1 port=<port> error_code=INVALID_REQUEST
    """)


# --- quotas -----------------------------------------------------------------------------------------------------


def limit(*entity: tuple[str, str | None], validate_only: bool = False, **ops: float | None) -> Any:
    return AlterClientQuotasRequest(entries=[entry(*entity, **ops)], validate_only=validate_only)


def entry(*entity: tuple[str, str | None], **ops: float | None) -> EntryData:
    made = [OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops.items()]
    return EntryData(entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity], ops=made)


def quotas(*components: tuple[str, int, str | None], strict: bool = False) -> DescribeClientQuotasRequest:
    wanted = [ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    return DescribeClientQuotasRequest(components=wanted, strict=strict)


def test_client_quotas_are_set_described_and_removed_as_in_kafka(peer: Peer) -> None:
    exact, default, anything = 0, 1, 2
    client, user = peer.unique("c"), peer.unique("u")
    peer.ask(limit(("client-id", client), producer_byte_rate=1e9, consumer_byte_rate=2e9))
    peer.ask(limit(("user", user), ("client-id", client), request_percentage=200.0))
    peer.settle(lambda: len(peer.quietly(quotas(("client-id", exact, client))).entries or ()) == 2)
    for wanted in (
        quotas(("client-id", exact, client)),
        quotas(("client-id", exact, client), strict=True),
        quotas(("user", exact, user)),
        quotas(("user", exact, user), strict=True),
        quotas(("user", exact, user), ("client-id", exact, client), strict=True),
        quotas(("user", anything, None), ("client-id", exact, client)),
        quotas(("user", default, None), ("client-id", exact, client)),
        quotas(("ip", anything, None)),
    ):
        answer = peer.quietly(wanted)
        for each in answer.entries or ():
            each.entity.sort(key=lambda part: part.entity_type)
            each.values.sort(key=lambda value: value.key)
        answer.entries = sorted(answer.entries or (), key=lambda each: (len(each.entity), len(each.values)))
        peer.note(render(answer, 1, peer.masks))
    peer.ask(limit(("client-id", client), producer_byte_rate=None, consumer_byte_rate=None))
    peer.ask(limit(("user", user), ("client-id", client), request_percentage=None))
    peer.settle(lambda: not peer.quietly(quotas(("client-id", exact, client))).entries)
    peer.said("""
        AlterClientQuotas v1
          entries: error_message=null
            entity: entity_type=client-id entity_name=c
        AlterClientQuotas v1
          entries: error_message=null
            entity: entity_type=client-id entity_name=c
            entity: entity_type=user entity_name=u
        DescribeClientQuotas v1
          entries:
            entity: entity_type=client-id entity_name=c
            values: key=consumer_byte_rate value=2000000000.0
            values: key=producer_byte_rate value=1000000000.0
          entries:
            entity: entity_type=client-id entity_name=c
            entity: entity_type=user entity_name=u
            values: key=request_percentage value=200.0
        DescribeClientQuotas v1
          entries:
            entity: entity_type=client-id entity_name=c
            values: key=consumer_byte_rate value=2000000000.0
            values: key=producer_byte_rate value=1000000000.0
        DescribeClientQuotas v1
          entries:
            entity: entity_type=client-id entity_name=c
            entity: entity_type=user entity_name=u
            values: key=request_percentage value=200.0
        DescribeClientQuotas v1
        DescribeClientQuotas v1
          entries:
            entity: entity_type=client-id entity_name=c
            entity: entity_type=user entity_name=u
            values: key=request_percentage value=200.0
        DescribeClientQuotas v1
          entries:
            entity: entity_type=client-id entity_name=c
            entity: entity_type=user entity_name=u
            values: key=request_percentage value=200.0
        DescribeClientQuotas v1
        DescribeClientQuotas v1
        AlterClientQuotas v1
          entries: error_message=null
            entity: entity_type=client-id entity_name=c
        AlterClientQuotas v1
          entries: error_message=null
            entity: entity_type=client-id entity_name=c
            entity: entity_type=user entity_name=u
    """)


def test_penstock_answers_invalid_changes_of_quotas_like_kafka(peer: Peer) -> None:
    name = peer.unique("n")
    for wanted in (
        limit(("client-id", name), no_such=1.0, validate_only=True),
        limit(("client-id", name), connection_creation_rate=1.0, validate_only=True),
        limit(("ip", "127.0.0.1"), connection_creation_rate=1.0, validate_only=True),
        limit(("ip", "127.0.0.1"), producer_byte_rate=1.0, validate_only=True),
        limit(("ip", "not an ip"), connection_creation_rate=1.0, validate_only=True),
        limit(("ip", "127.0.0.1"), connection_creation_rate=1.5, validate_only=True),
        limit(("client-id", name), producer_byte_rate=-1.0, validate_only=True),
        limit(("client-id", name), producer_byte_rate=0.0, validate_only=True),
        limit(("client-id", name), producer_byte_rate=1.5, validate_only=True),
        limit(("client-id", name), controller_mutation_rate=1.5, validate_only=True),
        limit(("planet", "mars"), producer_byte_rate=1.0, validate_only=True),
        limit(("client-id", ""), producer_byte_rate=1.0, validate_only=True),
        limit(("user", None), producer_byte_rate=1.0, validate_only=True),
        limit(("ip", "127.0.0.1"), ("user", name), producer_byte_rate=1.0, validate_only=True),
        limit(("user", name), ("user", name), producer_byte_rate=1.0, validate_only=True),
        limit(producer_byte_rate=1.0, validate_only=True),
        limit(("client-id", name), validate_only=True),
        limit(("client-id", name), producer_byte_rate=None, validate_only=True),
    ):
        answer = peer.quietly(wanted)
        for each in answer.entries:
            each.entity.sort(key=lambda part: part.entity_type)
        peer.note(render(answer, 1, peer.masks))
    peer.ask(AlterClientQuotasRequest())
    peer.said("""
        AlterClientQuotas v1
          entries: error_code=INVALID_REQUEST
            entity: entity_type=client-id entity_name=n
        AlterClientQuotas v1
          entries: error_code=INVALID_REQUEST
            entity: entity_type=client-id entity_name=n
        AlterClientQuotas v1
          entries: error_message=null
            entity: entity_type=ip entity_name=127.0.0.1
        AlterClientQuotas v1
          entries: error_code=INVALID_REQUEST
            entity: entity_type=ip entity_name=127.0.0.1
        AlterClientQuotas v1
          entries: error_code=INVALID_REQUEST
            entity: entity_type=ip entity_name=not an ip
        AlterClientQuotas v1
          entries: error_code=INVALID_REQUEST
            entity: entity_type=ip entity_name=127.0.0.1
        AlterClientQuotas v1
          entries: error_code=INVALID_REQUEST
            entity: entity_type=client-id entity_name=n
        AlterClientQuotas v1
          entries: error_code=INVALID_REQUEST
            entity: entity_type=client-id entity_name=n
        AlterClientQuotas v1
          entries: error_code=INVALID_REQUEST
            entity: entity_type=client-id entity_name=n
        AlterClientQuotas v1
          entries: error_message=null
            entity: entity_type=client-id entity_name=n
        AlterClientQuotas v1
          entries: error_code=INVALID_REQUEST
            entity: entity_type=planet entity_name=mars
        AlterClientQuotas v1
          entries: error_code=INVALID_REQUEST
            entity: entity_type=client-id
        AlterClientQuotas v1
          entries: error_message=null
            entity: entity_type=user entity_name=null
        AlterClientQuotas v1
          entries: error_code=INVALID_REQUEST
            entity: entity_type=ip entity_name=127.0.0.1
            entity: entity_type=user entity_name=n
        AlterClientQuotas v1
          entries: error_message=null
            entity: entity_type=user entity_name=n
        AlterClientQuotas v1
          entries: error_code=INVALID_REQUEST
        AlterClientQuotas v1
          entries: error_message=null
            entity: entity_type=client-id entity_name=n
        AlterClientQuotas v1
          entries: error_message=null
            entity: entity_type=client-id entity_name=n
        AlterClientQuotas v1
    """)


def test_penstock_answers_invalid_quota_filters_like_kafka(peer: Peer) -> None:
    peer.ask(quotas(("planet", 0, "mars")))
    peer.ask(quotas(("user", 9, "x")))
    peer.ask(quotas(("user", 0, None)))
    peer.ask(quotas(("user", 1, "x")))
    peer.ask(quotas(("user", 2, "x")))
    peer.ask(quotas(("user", 0, "x"), ("user", 0, "y")))
    peer.ask(quotas(("user", 0, "x"), ("ip", 0, "127.0.0.1")))
    peer.ask(quotas(("", 0, "x")))
    peer.said("""
        DescribeClientQuotas v1 error_code=UNSUPPORTED_VERSION entries=null
        DescribeClientQuotas v1 error_code=INVALID_REQUEST entries=null
        DescribeClientQuotas v1 error_code=INVALID_REQUEST entries=null
        DescribeClientQuotas v1 error_code=INVALID_REQUEST entries=null
        DescribeClientQuotas v1 error_code=INVALID_REQUEST entries=null
        DescribeClientQuotas v1 error_code=INVALID_REQUEST entries=null
        DescribeClientQuotas v1 error_code=INVALID_REQUEST entries=null
        DescribeClientQuotas v1 error_code=INVALID_REQUEST entries=null
    """)


# --- ACLs without an authorizer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_penstock_answers_acl_requests_without_an_authorizer_like_kafka(peer: Peer, version: int) -> None:
    any_of_them: dict[str, Any] = {"pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    described = peer.quietly(DescribeAclsRequest(resource_type_filter=1, **any_of_them), version)
    peer.note(f"{described.error_code} {described.resources}")
    topic = AclCreation(
        resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
    )
    created = peer.quietly(CreateAclsRequest(creations=[topic, topic]), version)
    peer.note(str([each.error_code for each in created.results]))
    peer.note(str(peer.quietly(CreateAclsRequest(), version).results))
    deleted = peer.quietly(
        DeleteAclsRequest(filters=[DeleteAclsFilter(resource_type_filter=1, **any_of_them)]), version
    )
    peer.note(str([(each.error_code, each.matching_acls) for each in deleted.filter_results]))
    peer.said("""
        54 []
        [54, 54]
        []
        [(54, [])]
    """)


# --- telemetry --------------------------------------------------------------------------------------------------


def test_client_gets_an_empty_list_of_metrics_if_there_is_no_metrics_subscription(peer: Peer) -> None:
    # subscriptions of other tests are deleted
    peer.settle(lambda: bool(peer.quietly(GetTelemetrySubscriptionsRequest()).push_interval_ms == 300_000))
    answer = peer.ask(GetTelemetrySubscriptionsRequest())
    peer.ask(GetTelemetrySubscriptionsRequest(client_instance_id=answer.client_instance_id))
    peer.said("""
        GetTelemetrySubscriptions v0 client_instance_id=<uuid 1> subscription_id=<subscription 1>
              accepted_compression_types=[4 3 1 2] push_interval_ms=300000 telemetry_max_bytes=1048576
              delta_temporality=True
        GetTelemetrySubscriptions v0 error_code=THROTTLING_QUOTA_EXCEEDED
    """)


def test_penstock_answers_invalid_push_telemetry_requests_like_kafka(peer: Peer) -> None:
    given = peer.quietly(GetTelemetrySubscriptionsRequest())
    for what, changed in {
        "another subscription": {"subscription_id": given.subscription_id + 1},
        "another codec": {"compression_type": 77},
        "the zero id": {"client_instance_id": bytes(16)},
        "the reserved id": {"client_instance_id": bytes(15) + b"\x01"},
        "an unknown id": {"client_instance_id": bytes(15) + b"\x09"},
        "terminating": {"terminating": True},
        "terminating again": {"terminating": True},
    }.items():
        peer.note(what)
        fields: dict[str, Any] = {
            "client_instance_id": given.client_instance_id,
            "subscription_id": given.subscription_id,
            "metrics": b"",
            **changed,
        }
        peer.ask(PushTelemetryRequest(**fields))
    peer.said("""
        another subscription
        PushTelemetry v0 error_code=UNKNOWN_SUBSCRIPTION_ID
        another codec
        PushTelemetry v0 error_code=THROTTLING_QUOTA_EXCEEDED
        the zero id
        PushTelemetry v0 error_code=INVALID_REQUEST
        the reserved id
        PushTelemetry v0 error_code=INVALID_REQUEST
        an unknown id
        PushTelemetry v0 error_code=UNKNOWN_SUBSCRIPTION_ID
        terminating
        PushTelemetry v0
        terminating again
        PushTelemetry v0 error_code=INVALID_REQUEST
    """)


# --- elections, reassignments, unregistration -------------------------------------------------------------------


def elect(topic: str, *partitions: int, kind: int = 0) -> ElectLeadersRequest:
    asked = [TopicPartitions(topic=topic, partitions=list(partitions))]
    return ElectLeadersRequest(election_type=kind, topic_partitions=asked, timeout_ms=5000)


def test_penstock_answers_valid_and_invalid_elect_leaders_requests_like_kafka(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(elect(topic, 0))
    peer.ask(elect(topic, 0, kind=1))
    peer.ask(elect(topic, 7))
    peer.ask(elect(peer.unique("nope"), 0))
    peer.ask(elect(topic, 0, kind=9))
    peer.ask(elect(topic))
    peer.ask(ElectLeadersRequest(topic_partitions=[], timeout_ms=5000))
    everywhere = peer.quietly(ElectLeadersRequest(topic_partitions=None, timeout_ms=5000))
    everywhere.replica_election_results = [
        each for each in everywhere.replica_election_results if each.topic in peer.names
    ]
    peer.note(render(everywhere, 2, peer.masks))
    peer.said("""
        ElectLeaders v2
          replica_election_results: topic=t
            partition_result: error_code=ELECTION_NOT_NEEDED
        ElectLeaders v2
          replica_election_results: topic=t
            partition_result: error_code=ELECTION_NOT_NEEDED
        ElectLeaders v2
          replica_election_results: topic=t
            partition_result: partition_id=7 error_code=UNKNOWN_TOPIC_OR_PARTITION
        ElectLeaders v2
          replica_election_results: topic=nope
            partition_result: error_code=UNKNOWN_TOPIC_OR_PARTITION
        ElectLeaders v2 error_code=INVALID_REQUEST
          replica_election_results: topic=t
            partition_result: error_code=INVALID_REQUEST
        ElectLeaders v2
          replica_election_results: topic=t
        ElectLeaders v2
        ElectLeaders v2
          replica_election_results: topic=t
    """)


def move(topic: str, partition: int, replicas: list[int] | None, **more: Any) -> AlterPartitionReassignmentsRequest:
    partitions = [ReassignablePartition(partition_index=partition, replicas=replicas)]
    topics = [ReassignableTopic(name=topic, partitions=partitions)]
    return AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=5000, **more)


def test_penstock_answers_valid_and_invalid_reassignments_like_kafka(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(move(topic, 0, [1]))
    peer.ask(move(topic, 0, None))
    peer.ask(move(topic, 0, []))
    peer.ask(move(topic, 0, [9]))
    peer.ask(move(topic, 0, [1, 1]))
    peer.ask(move(topic, 0, [-1]))
    peer.ask(move(topic, 0, [1, 9], allow_replication_factor_change=False))
    peer.ask(move(topic, 7, [1]))
    peer.ask(move(peer.unique("nope"), 0, [1]))
    peer.ask(AlterPartitionReassignmentsRequest(timeout_ms=5000))
    peer.said("""
        AlterPartitionReassignments v1 error_message=null
          responses: name=t
            partitions: error_message=null
        AlterPartitionReassignments v1 error_message=null
          responses: name=t
            partitions: error_code=NO_REASSIGNMENT_IN_PROGRESS
        AlterPartitionReassignments v1 error_message=null
          responses: name=t
            partitions: error_code=INVALID_REPLICA_ASSIGNMENT
        AlterPartitionReassignments v1 error_message=null
          responses: name=t
            partitions: error_code=INVALID_REPLICA_ASSIGNMENT
        AlterPartitionReassignments v1 error_message=null
          responses: name=t
            partitions: error_code=INVALID_REPLICA_ASSIGNMENT
        AlterPartitionReassignments v1 error_message=null
          responses: name=t
            partitions: error_code=INVALID_REPLICA_ASSIGNMENT
        AlterPartitionReassignments v1 allow_replication_factor_change=False error_message=null
          responses: name=t
            partitions: error_code=INVALID_REPLICA_ASSIGNMENT
        AlterPartitionReassignments v1 error_message=null
          responses: name=t
            partitions: partition_index=7 error_code=UNKNOWN_TOPIC_OR_PARTITION
        AlterPartitionReassignments v1 error_message=null
          responses: name=nope
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION
        AlterPartitionReassignments v1
    """)


def test_list_of_reassignments_is_empty_if_no_reassignment_is_in_progress(peer: Peer) -> None:
    topic = peer.topic()
    for name, partitions in ((topic, [0]), (topic, [7]), (peer.unique("nope"), [0])):
        topics = [ListPartitionReassignmentsTopics(name=name, partition_indexes=partitions)]
        peer.ask(ListPartitionReassignmentsRequest(topics=topics))
    peer.ask(ListPartitionReassignmentsRequest(topics=None))
    peer.ask(ListPartitionReassignmentsRequest(topics=[]))
    peer.said("""
        ListPartitionReassignments v0 error_message=null
        ListPartitionReassignments v0 error_message=null
        ListPartitionReassignments v0 error_message=null
        ListPartitionReassignments v0 error_message=null
        ListPartitionReassignments v0 error_message=null
    """)


def test_unregister_broker_with_an_unknown_broker_id_is_refused(peer: Peer) -> None:
    for broker in (99, -1):
        peer.ask(UnregisterBrokerRequest(broker_id=broker))
    peer.said("""
        UnregisterBroker v0 error_code=BROKER_ID_NOT_REGISTERED
        UnregisterBroker v0 error_code=BROKER_ID_NOT_REGISTERED
    """)
