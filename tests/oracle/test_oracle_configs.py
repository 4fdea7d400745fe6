"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from oracle_peer import Peer
from oracle_transcript import render

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_33_alter_configs as whole
from penstock.protocol.messages import api_44_incremental_alter_configs as step
from penstock.protocol.messages.api_32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.protocol.messages.api_74_list_config_resources import ListConfigResourcesRequest

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe(kind: int, name: str, keys: Sequence[str] | None = None, **more: Any) -> DescribeConfigsRequest:
    wanted = None if keys is None else list(keys)
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=wanted)
    return DescribeConfigsRequest(resources=[resource], **more)


def ask_describe(
    peer: Peer, kind: int, name: str, keys: Sequence[str] | None = None, version: int = 4, **more: Any
) -> None:
    answer = peer.quietly(describe(kind, name, keys, **more), version)
    for result in answer.results:
        shared = [config for config in result.configs if not config.name.startswith("penstock.")]
        result.configs = sorted(shared, key=lambda config: config.name)
        for config in result.configs:
            config.documentation = None
    peer.note(render(answer, version, peer.masks))


def change(kind: int, name: str, *configs: tuple[str, int, str | None], **more: Any) -> Any:
    made = [step.AlterableConfig(name=key, config_operation=how, value=value) for key, how, value in configs]
    resource = step.AlterConfigsResource(resource_type=kind, resource_name=name, configs=made)
    return step.IncrementalAlterConfigsRequest(resources=[resource], **more)


def replace(kind: int, name: str, *configs: tuple[str, str | None], **more: Any) -> Any:
    made = [whole.AlterableConfig(name=key, value=value) for key, value in configs]
    resource = whole.AlterConfigsResource(resource_type=kind, resource_name=name, configs=made)
    return whole.AlterConfigsRequest(resources=[resource], **more)


def value_of(peer: Peer, kind: int, name: str, key: str) -> tuple[str | None, int]:
    (result,) = peer.quietly(describe(kind, name, [key])).results
    found = [(config.value, config.config_source) for config in result.configs]
    return found[0] if found else ("(none)", -1)


def settled(peer: Peer, kind: int, name: str, key: str, value: str | None) -> None:
    peer.settle(lambda: value_of(peer, kind, name, key)[0] == value)


# --- DescribeConfigs --------------------------------------------------------------------------------------------


def test_describe_configs_lists_every_config_of_a_topic(peer: Peer) -> None:
    ask_describe(peer, TOPIC, peer.topic(retention_ms="5000"))
    peer.said("""
        DescribeConfigs v4
          results: resource_type=2 resource_name=t
            configs: name=cleanup.policy value=delete config_source=5 config_type=7 documentation=null
            configs: name=compression.gzip.level value=-1 config_source=5 config_type=3 documentation=null
            configs: name=compression.lz4.level value=9 config_source=5 config_type=3 documentation=null
            configs: name=compression.type value=producer config_source=5 config_type=2 documentation=null
            configs: name=compression.zstd.level value=3 config_source=5 config_type=3 documentation=null
            configs: name=delete.retention.ms value=86400000 config_source=5 config_type=5
                  documentation=null
            configs: name=file.delete.delay.ms value=60000 config_source=5 config_type=5 documentation=null
            configs: name=flush.messages value=9223372036854775807 config_source=5 config_type=5
                  documentation=null
            configs: name=flush.ms value=9223372036854775807 config_source=5 config_type=5
                  documentation=null
            configs: name=follower.replication.throttled.replicas config_source=5 config_type=7
                  documentation=null
            configs: name=index.interval.bytes value=4096 config_source=5 config_type=3 documentation=null
            configs: name=leader.replication.throttled.replicas config_source=5 config_type=7
                  documentation=null
            configs: name=local.retention.bytes value=-2 config_source=5 config_type=5 documentation=null
            configs: name=local.retention.ms value=-2 config_source=5 config_type=5 documentation=null
            configs: name=max.compaction.lag.ms value=9223372036854775807 config_source=5 config_type=5
                  documentation=null
            configs: name=max.message.bytes value=1048588 config_source=5 config_type=3 documentation=null
            configs: name=message.timestamp.after.max.ms value=3600000 config_source=5 config_type=5
                  documentation=null
            configs: name=message.timestamp.before.max.ms value=9223372036854775807 config_source=5
                  config_type=5 documentation=null
            configs: name=message.timestamp.type value=CreateTime config_source=5 config_type=2
                  documentation=null
            configs: name=min.cleanable.dirty.ratio value=0.5 config_source=5 config_type=6
                  documentation=null
            configs: name=min.compaction.lag.ms value=0 config_source=5 config_type=5 documentation=null
            configs: name=min.insync.replicas value=1 config_source=3 config_type=3 documentation=null
            configs: name=preallocate value=false config_source=5 config_type=1 documentation=null
            configs: name=remote.log.copy.disable value=false config_source=5 config_type=1
                  documentation=null
            configs: name=remote.log.delete.on.disable value=false config_source=5 config_type=1
                  documentation=null
            configs: name=remote.storage.enable value=false config_source=5 config_type=1 documentation=null
            configs: name=retention.bytes value=-1 config_source=5 config_type=5 documentation=null
            configs: name=retention.ms value=5000 config_source=1 config_type=5 documentation=null
            configs: name=segment.bytes value=1073741824 config_source=5 config_type=3 documentation=null
            configs: name=segment.index.bytes value=10485760 config_source=5 config_type=3
                  documentation=null
            configs: name=segment.jitter.ms value=0 config_source=5 config_type=5 documentation=null
            configs: name=segment.ms value=604800000 config_source=5 config_type=5 documentation=null
            configs: name=unclean.leader.election.enable value=false config_source=5 config_type=1
                  documentation=null
    """)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_describe_configs_shows_sources_and_synonyms_of_topic_configs(peer: Peer, version: int) -> None:
    topic = peer.topic(retention_ms="5000")
    keys = ["retention.ms", "segment.bytes", "max.message.bytes", "cleanup.policy", "message.timestamp.type"]
    ask_describe(peer, TOPIC, topic, keys, version, include_synonyms=True)
    if version == 1:
        peer.said("""
            DescribeConfigs v1
              results: resource_type=2 resource_name=t
                configs: name=cleanup.policy value=delete config_source=5 documentation=null
                  synonyms: name=log.cleanup.policy value=delete source=5
                configs: name=max.message.bytes value=1048588 config_source=5 documentation=null
                  synonyms: name=message.max.bytes value=1048588 source=5
                configs: name=message.timestamp.type value=CreateTime config_source=5 documentation=null
                  synonyms: name=log.message.timestamp.type value=CreateTime source=5
                configs: name=retention.ms value=5000 config_source=1 documentation=null
                  synonyms: name=retention.ms value=5000 source=1
                configs: name=segment.bytes value=1073741824 config_source=5 documentation=null
                  synonyms: name=log.segment.bytes value=1073741824 source=5
        """)
    elif version == 4:
        peer.said("""
            DescribeConfigs v4
              results: resource_type=2 resource_name=t
                configs: name=cleanup.policy value=delete config_source=5 config_type=7 documentation=null
                  synonyms: name=log.cleanup.policy value=delete source=5
                configs: name=max.message.bytes value=1048588 config_source=5 config_type=3 documentation=null
                  synonyms: name=message.max.bytes value=1048588 source=5
                configs: name=message.timestamp.type value=CreateTime config_source=5 config_type=2
                      documentation=null
                  synonyms: name=log.message.timestamp.type value=CreateTime source=5
                configs: name=retention.ms value=5000 config_source=1 config_type=5 documentation=null
                  synonyms: name=retention.ms value=5000 source=1
                configs: name=segment.bytes value=1073741824 config_source=5 config_type=3 documentation=null
                  synonyms: name=log.segment.bytes value=1073741824 source=5
        """)


def test_describe_configs_shows_types_and_documentation_on_request(peer: Peer) -> None:
    topic = peer.topic()
    answer = peer.quietly(describe(TOPIC, topic, ["retention.ms"], include_documentation=True)).results[0].configs[0]
    assert answer.documentation
    assert peer.quietly(describe(TOPIC, topic, ["retention.ms"])).results[0].configs[0].documentation is None


def test_describe_configs_omits_unknown_config_names(peer: Peer) -> None:
    topic = peer.topic()
    ask_describe(peer, TOPIC, topic, ["no.such", "retention.ms", "retention.ms"])
    ask_describe(peer, TOPIC, topic, [])
    peer.said("""
        DescribeConfigs v4
          results: resource_type=2 resource_name=t
            configs: name=retention.ms value=604800000 config_source=5 config_type=5 documentation=null
        DescribeConfigs v4
          results: resource_type=2 resource_name=t
            configs: name=cleanup.policy value=delete config_source=5 config_type=7 documentation=null
            configs: name=compression.gzip.level value=-1 config_source=5 config_type=3 documentation=null
            configs: name=compression.lz4.level value=9 config_source=5 config_type=3 documentation=null
            configs: name=compression.type value=producer config_source=5 config_type=2 documentation=null
            configs: name=compression.zstd.level value=3 config_source=5 config_type=3 documentation=null
            configs: name=delete.retention.ms value=86400000 config_source=5 config_type=5
                  documentation=null
            configs: name=file.delete.delay.ms value=60000 config_source=5 config_type=5 documentation=null
            configs: name=flush.messages value=9223372036854775807 config_source=5 config_type=5
                  documentation=null
            configs: name=flush.ms value=9223372036854775807 config_source=5 config_type=5
                  documentation=null
            configs: name=follower.replication.throttled.replicas config_source=5 config_type=7
                  documentation=null
            configs: name=index.interval.bytes value=4096 config_source=5 config_type=3 documentation=null
            configs: name=leader.replication.throttled.replicas config_source=5 config_type=7
                  documentation=null
            configs: name=local.retention.bytes value=-2 config_source=5 config_type=5 documentation=null
            configs: name=local.retention.ms value=-2 config_source=5 config_type=5 documentation=null
            configs: name=max.compaction.lag.ms value=9223372036854775807 config_source=5 config_type=5
                  documentation=null
            configs: name=max.message.bytes value=1048588 config_source=5 config_type=3 documentation=null
            configs: name=message.timestamp.after.max.ms value=3600000 config_source=5 config_type=5
                  documentation=null
            configs: name=message.timestamp.before.max.ms value=9223372036854775807 config_source=5
                  config_type=5 documentation=null
            configs: name=message.timestamp.type value=CreateTime config_source=5 config_type=2
                  documentation=null
            configs: name=min.cleanable.dirty.ratio value=0.5 config_source=5 config_type=6
                  documentation=null
            configs: name=min.compaction.lag.ms value=0 config_source=5 config_type=5 documentation=null
            configs: name=min.insync.replicas value=1 config_source=3 config_type=3 documentation=null
            configs: name=preallocate value=false config_source=5 config_type=1 documentation=null
            configs: name=remote.log.copy.disable value=false config_source=5 config_type=1
                  documentation=null
            configs: name=remote.log.delete.on.disable value=false config_source=5 config_type=1
                  documentation=null
            configs: name=remote.storage.enable value=false config_source=5 config_type=1 documentation=null
            configs: name=retention.bytes value=-1 config_source=5 config_type=5 documentation=null
            configs: name=retention.ms value=604800000 config_source=5 config_type=5 documentation=null
            configs: name=segment.bytes value=1073741824 config_source=5 config_type=3 documentation=null
            configs: name=segment.index.bytes value=10485760 config_source=5 config_type=3
                  documentation=null
            configs: name=segment.jitter.ms value=0 config_source=5 config_type=5 documentation=null
            configs: name=segment.ms value=604800000 config_source=5 config_type=5 documentation=null
            configs: name=unclean.leader.election.enable value=false config_source=5 config_type=1
                  documentation=null
    """)


def test_penstock_answers_describe_configs_of_missing_resources_like_kafka(peer: Peer) -> None:
    ask_describe(peer, TOPIC, peer.unique("nope"), ["retention.ms"])
    ask_describe(peer, TOPIC, "a b", ["retention.ms"])
    ask_describe(peer, TOPIC, "", ["retention.ms"])
    ask_describe(peer, BROKER, "99", ["node.id"])
    ask_describe(peer, BROKER, "one", ["node.id"])
    ask_describe(peer, LOGGER, "", [])
    ask_describe(peer, LOGGER, "99", [])
    ask_describe(peer, LOGGER, "one", [])
    ask_describe(peer, CLIENT_METRICS, peer.unique("nope"), None)
    ask_describe(peer, CLIENT_METRICS, "", None)
    ask_describe(peer, GROUP, "", None)
    peer.ask(describe(0, "x"))
    peer.ask(describe(3, "x"))
    peer.ask(describe(77, "x"))
    peer.ask(DescribeConfigsRequest(resources=[]))
    peer.said("""
        DescribeConfigs v4
          results: error_code=UNKNOWN_TOPIC_OR_PARTITION resource_type=2 resource_name=nope
        DescribeConfigs v4
          results: error_code=INVALID_TOPIC_EXCEPTION resource_type=2 resource_name=a b
        DescribeConfigs v4
          results: error_code=INVALID_TOPIC_EXCEPTION resource_type=2
        DescribeConfigs v4
          results: error_code=INVALID_REQUEST resource_type=4 resource_name=99
        DescribeConfigs v4
          results: error_code=INVALID_REQUEST resource_type=4 resource_name=one
        DescribeConfigs v4
          results: error_code=INVALID_REQUEST resource_type=8
        DescribeConfigs v4
          results: error_code=INVALID_REQUEST resource_type=8 resource_name=99
        DescribeConfigs v4
          results: error_code=INVALID_REQUEST resource_type=8 resource_name=one
        DescribeConfigs v4
          results: resource_type=16 resource_name=nope
            configs: name=interval.ms value=300000 config_source=5 config_type=3 documentation=null
            configs: name=match config_source=5 config_type=7 documentation=null
            configs: name=metrics config_source=5 config_type=7 documentation=null
        DescribeConfigs v4
          results: error_code=INVALID_REQUEST resource_type=16
        DescribeConfigs v4
          results: error_code=INVALID_REQUEST resource_type=32
        DescribeConfigs v4
          results: error_code=INVALID_REQUEST resource_name=x
        DescribeConfigs v4
          results: error_code=INVALID_REQUEST resource_type=3 resource_name=x
        DescribeConfigs v4
          results: error_code=INVALID_REQUEST resource_type=77 resource_name=x
        DescribeConfigs v4
    """)


def test_describe_configs_of_a_group_without_configs_returns_default_values(peer: Peer) -> None:
    ask_describe(peer, GROUP, peer.unique("g"), include_synonyms=True)
    peer.said("""
        DescribeConfigs v4
          results: resource_type=32 resource_name=g
            configs: name=consumer.assignment.interval.ms value=1000 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.consumer.assignment.interval.ms value=1000 source=5
            configs: name=consumer.heartbeat.interval.ms value=5000 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.consumer.heartbeat.interval.ms value=5000 source=5
            configs: name=consumer.session.timeout.ms value=45000 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.consumer.session.timeout.ms value=45000 source=5
            configs: name=share.assignment.interval.ms value=1000 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.share.assignment.interval.ms value=1000 source=5
            configs: name=share.auto.offset.reset value=latest config_source=5 config_type=2
                  documentation=null
              synonyms: name=share.auto.offset.reset value=latest source=5
            configs: name=share.delivery.count.limit value=5 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.share.delivery.count.limit value=5 source=5
            configs: name=share.heartbeat.interval.ms value=5000 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.share.heartbeat.interval.ms value=5000 source=5
            configs: name=share.isolation.level value=read_uncommitted config_source=5 config_type=2
                  documentation=null
              synonyms: name=share.isolation.level value=read_uncommitted source=5
            configs: name=share.partition.max.record.locks value=2000 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.share.partition.max.record.locks value=2000 source=5
            configs: name=share.record.lock.duration.ms value=30000 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.share.record.lock.duration.ms value=30000 source=5
            configs: name=share.renew.acknowledge.enable value=true config_source=5 config_type=1
                  documentation=null
              synonyms: name=share.renew.acknowledge.enable value=true source=5
            configs: name=share.session.timeout.ms value=45000 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.share.session.timeout.ms value=45000 source=5
            configs: name=streams.assignment.interval.ms value=1000 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.streams.assignment.interval.ms value=1000 source=5
            configs: name=streams.heartbeat.interval.ms value=5000 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.streams.heartbeat.interval.ms value=5000 source=5
            configs: name=streams.initial.rebalance.delay.ms value=3000 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.streams.initial.rebalance.delay.ms value=3000 source=5
            configs: name=streams.num.standby.replicas value=0 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.streams.num.standby.replicas value=0 source=5
            configs: name=streams.session.timeout.ms value=45000 config_source=5 config_type=3
                  documentation=null
              synonyms: name=group.streams.session.timeout.ms value=45000 source=5
    """)


BROKER_KEYS = [
    "node.id",
    "num.io.threads",
    "log.retention.ms",
    "log.retention.hours",
    "log.cleaner.threads",
    "message.max.bytes",
    "log.segment.bytes",
    "auto.create.topics.enable",
    "ssl.keystore.password",
    "sasl.enabled.mechanisms",
    "max.connections",
    "compression.type",
    "log.cleanup.policy",
    "log.roll.hours",
    "log.message.timestamp.type",
    "broker.rack",
    "num.partitions",
]


def test_describe_configs_of_a_broker_shows_the_source_of_each_config(peer: Peer) -> None:
    answer = peer.quietly(describe(BROKER, "1", BROKER_KEYS, include_synonyms=True))
    answer.results[0].configs.sort(key=lambda config: config.name)
    peer.note(render(answer, 4, peer.masks))
    peer.said("""
        DescribeConfigs v4
          results: resource_type=4 resource_name=1
            configs: name=auto.create.topics.enable value=true read_only=True config_source=5 config_type=1
                  documentation=null
              synonyms: name=auto.create.topics.enable value=true source=5
            configs: name=broker.rack value=null read_only=True config_source=5 config_type=2
                  documentation=null
            configs: name=compression.type value=producer config_source=5 config_type=2 documentation=null
              synonyms: name=compression.type value=producer source=5
            configs: name=log.cleaner.threads value=1 config_source=5 config_type=3 documentation=null
              synonyms: name=log.cleaner.threads value=1 source=5
            configs: name=log.cleanup.policy value=delete config_source=5 config_type=7 documentation=null
              synonyms: name=log.cleanup.policy value=delete source=5
            configs: name=log.message.timestamp.type value=CreateTime config_source=5 config_type=2
                  documentation=null
              synonyms: name=log.message.timestamp.type value=CreateTime source=5
            configs: name=log.retention.hours value=168 read_only=True config_source=5 config_type=3
                  documentation=null
              synonyms: name=log.retention.hours value=168 source=5
            configs: name=log.retention.ms value=null config_source=5 config_type=5 documentation=null
            configs: name=log.roll.hours value=168 read_only=True config_source=5 config_type=3
                  documentation=null
              synonyms: name=log.roll.hours value=168 source=5
            configs: name=log.segment.bytes value=1073741824 config_source=5 config_type=3
                  documentation=null
              synonyms: name=log.segment.bytes value=1073741824 source=5
            configs: name=max.connections value=2147483647 config_source=5 config_type=3 documentation=null
              synonyms: name=max.connections value=2147483647 source=5
            configs: name=message.max.bytes value=1048588 config_source=5 config_type=3 documentation=null
              synonyms: name=message.max.bytes value=1048588 source=5
            configs: name=node.id value=1 read_only=True config_source=4 config_type=3 documentation=null
              synonyms: name=node.id value=1 source=4
            configs: name=num.io.threads value=8 config_source=5 config_type=3 documentation=null
              synonyms: name=num.io.threads value=8 source=5
            configs: name=num.partitions value=1 read_only=True config_source=5 config_type=3
                  documentation=null
              synonyms: name=num.partitions value=1 source=5
            configs: name=sasl.enabled.mechanisms value=GSSAPI config_source=5 config_type=7
                  documentation=null
              synonyms: name=sasl.enabled.mechanisms value=GSSAPI source=5
            configs: name=ssl.keystore.password value=null config_source=5 is_sensitive=True config_type=9
                  documentation=null
    """)


def test_describe_configs_of_the_cluster_default_lists_only_configs_that_were_set(peer: Peer) -> None:
    ask_describe(peer, BROKER, "", ["min.insync.replicas", "num.io.threads"], include_synonyms=True)
    peer.said("""
        DescribeConfigs v4
          results: resource_type=4
            configs: name=min.insync.replicas value=1 config_source=3 config_type=3 documentation=null
              synonyms: name=min.insync.replicas value=1 source=3
    """)


# --- IncrementalAlterConfigs ------------------------------------------------------------------------------------


def test_topic_configs_are_set_and_deleted(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(change(TOPIC, topic, ("retention.ms", SET, "7000"), ("cleanup.policy", APPEND, "compact")))
    settled(peer, TOPIC, topic, "retention.ms", "7000")
    ask_describe(peer, TOPIC, topic, ["retention.ms", "cleanup.policy"])
    peer.ask(change(TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None)))
    settled(peer, TOPIC, topic, "retention.ms", "604800000")
    ask_describe(peer, TOPIC, topic, ["retention.ms", "cleanup.policy"])
    peer.said("""
        IncrementalAlterConfigs v1
          responses: error_message=null resource_type=2 resource_name=t
        DescribeConfigs v4
          results: resource_type=2 resource_name=t
            configs: name=cleanup.policy value=delete,compact config_source=1 config_type=7
                  documentation=null
            configs: name=retention.ms value=7000 config_source=1 config_type=5 documentation=null
        IncrementalAlterConfigs v1
          responses: error_message=null resource_type=2 resource_name=t
        DescribeConfigs v4
          results: resource_type=2 resource_name=t
            configs: name=cleanup.policy value=compact config_source=1 config_type=7 documentation=null
            configs: name=retention.ms value=604800000 config_source=5 config_type=5 documentation=null
    """)


def refusals(peer: Peer, kind: int, name: str, *changes: tuple[str, int, str | None]) -> None:
    for each in changes:
        (answer,) = peer.quietly(change(kind, name, each, validate_only=True)).responses
        peer.note(f"{each} {ErrorCode(answer.error_code).name}")


def test_penstock_answers_invalid_changes_of_topic_configs_like_kafka(peer: Peer) -> None:
    refusals(
        peer,
        TOPIC,
        peer.topic(),
        ("no.such", SET, "1"),
        ("no.such", DELETE, None),
        ("retention.ms", SET, "soon"),
        ("retention.ms", SET, None),
        ("retention.ms", SET, ""),
        ("retention.ms", APPEND, "5"),
        ("retention.ms", SUBTRACT, "5"),
        ("retention.ms", DELETE, "ignored"),
        ("cleanup.policy", APPEND, "shred"),
        ("cleanup.policy", SUBTRACT, "compact"),
        ("cleanup.policy", SUBTRACT, "delete"),
        ("cleanup.policy", APPEND, "delete"),
        ("cleanup.policy", SET, ""),
        ("min.insync.replicas", SET, "0"),
        ("min.insync.replicas", SET, "7"),
        ("compression.type", SET, "rar"),
        ("max.message.bytes", SET, "-5"),
        ("follower.replication.throttled.replicas", APPEND, "0:1"),
        ("", SET, "x"),
    )
    peer.said("""
        ('no.such', 0, '1') INVALID_CONFIG
        ('no.such', 1, None) NONE
        ('retention.ms', 0, 'soon') INVALID_CONFIG
        ('retention.ms', 0, None) INVALID_REQUEST
        ('retention.ms', 0, '') INVALID_CONFIG
        ('retention.ms', 2, '5') INVALID_CONFIG
        ('retention.ms', 3, '5') INVALID_CONFIG
        ('retention.ms', 1, 'ignored') NONE
        ('cleanup.policy', 2, 'shred') INVALID_CONFIG
        ('cleanup.policy', 3, 'compact') NONE
        ('cleanup.policy', 3, 'delete') NONE
        ('cleanup.policy', 2, 'delete') NONE
        ('cleanup.policy', 0, '') NONE
        ('min.insync.replicas', 0, '0') INVALID_CONFIG
        ('min.insync.replicas', 0, '7') NONE
        ('compression.type', 0, 'rar') INVALID_CONFIG
        ('max.message.bytes', 0, '-5') INVALID_CONFIG
        ('follower.replication.throttled.replicas', 2, '0:1') NONE
        ('', 0, 'x') INVALID_CONFIG
    """)


def test_unknown_operation_in_incremental_alter_configs_is_refused(peer: Peer) -> None:
    topic = peer.topic()
    for operation in (9, -1):
        (answer,) = peer.quietly(change(TOPIC, topic, ("retention.ms", operation, "5"))).responses
        wanted = {"kafka": ErrorCode.UNKNOWN_SERVER_ERROR, "penstock": ErrorCode.INVALID_REQUEST}
        assert answer.error_code == wanted[peer.name]


def test_alter_configs_request_with_the_same_resource_twice_is_refused(peer: Peer) -> None:
    if peer.name == "kafka":
        pytest.skip("Kafka's handler fails on it and never answers")
    twice = replace(TOPIC, peer.topic(), ("retention.ms", "1"))
    twice.resources.append(twice.resources[0])
    assert {each.error_code for each in peer.quietly(twice).responses} == {ErrorCode.INVALID_REQUEST}


def test_penstock_answers_config_changes_of_invalid_resources_like_kafka(peer: Peer) -> None:
    topic = peer.topic()
    retention = ("retention.ms", SET, "1")
    peer.ask(change(TOPIC, peer.unique("nope"), retention))
    peer.ask(change(TOPIC, "", retention))
    peer.ask(change(TOPIC, "a b", retention))
    peer.ask(change(0, "x", retention))
    peer.ask(change(99, "x", retention))
    peer.ask(change(0, "x", ("retention.ms", SUBTRACT, "1")))
    peer.ask(change(BROKER, "99", ("num.io.threads", SET, "9"), validate_only=True))
    peer.ask(change(BROKER, "one", ("num.io.threads", SET, "9"), validate_only=True))
    peer.ask(change(GROUP, "", ("consumer.session.timeout.ms", SET, "50000"), validate_only=True))
    peer.ask(change(CLIENT_METRICS, "", ("interval.ms", SET, "1000"), validate_only=True))
    peer.ask(change(TOPIC, topic, retention, ("retention.ms", SET, "2")))
    peer.ask(change(TOPIC, topic))
    twice = change(TOPIC, topic, retention)
    twice.resources.append(twice.resources[0])
    peer.ask(twice)
    peer.ask(step.IncrementalAlterConfigsRequest())
    peer.said("""
        IncrementalAlterConfigs v1
          responses: error_code=UNKNOWN_TOPIC_OR_PARTITION resource_type=2 resource_name=nope
        IncrementalAlterConfigs v1
          responses: error_code=INVALID_REQUEST resource_type=2
        IncrementalAlterConfigs v1
          responses: error_code=INVALID_TOPIC_EXCEPTION resource_type=2 resource_name=a b
        IncrementalAlterConfigs v1
          responses: error_code=INVALID_REQUEST resource_name=x
        IncrementalAlterConfigs v1
          responses: error_code=INVALID_REQUEST resource_type=99 resource_name=x
        IncrementalAlterConfigs v1
          responses: error_code=INVALID_REQUEST resource_name=x
        IncrementalAlterConfigs v1
          responses: error_code=INVALID_REQUEST resource_type=4 resource_name=99
        IncrementalAlterConfigs v1
          responses: error_code=INVALID_REQUEST resource_type=4 resource_name=one
        IncrementalAlterConfigs v1
          responses: error_code=INVALID_REQUEST resource_type=32
        IncrementalAlterConfigs v1
          responses: error_code=INVALID_REQUEST resource_type=16
        IncrementalAlterConfigs v1
          responses: error_code=INVALID_REQUEST resource_type=2 resource_name=t
        IncrementalAlterConfigs v1
          responses: error_message=null resource_type=2 resource_name=t
        IncrementalAlterConfigs v1
          responses: error_code=INVALID_REQUEST resource_type=2 resource_name=t
          responses: error_code=INVALID_REQUEST resource_type=2 resource_name=t
        IncrementalAlterConfigs v1
    """)


def test_invalid_config_in_a_request_prevents_all_config_changes_of_the_resource(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(change(TOPIC, topic, ("retention.ms", SET, "1"), ("segment.bytes", SET, "x")))
    assert value_of(peer, TOPIC, topic, "retention.ms")[0] == "604800000"
    peer.ask(change(TOPIC, topic, ("retention.ms", SET, "1"), validate_only=True))
    assert value_of(peer, TOPIC, topic, "retention.ms")[0] == "604800000"
    peer.said("""
        IncrementalAlterConfigs v1
          responses: error_code=INVALID_CONFIG resource_type=2 resource_name=t
        IncrementalAlterConfigs v1
          responses: error_message=null resource_type=2 resource_name=t
    """)


def test_penstock_answers_changes_of_broker_configs_like_kafka(peer: Peer) -> None:
    for name in ("1", ""):
        peer.note(f"broker '{name}'")
        refusals(
            peer,
            BROKER,
            name,
            ("num.io.threads", SET, "9"),
            ("num.io.threads", SET, "0"),
            ("num.io.threads", SET, "x"),
            ("num.io.threads", SET, "10000"),
            ("num.io.threads", DELETE, None),
            ("node.id", SET, "2"),
            ("log.dirs", SET, "/tmp/x"),
            ("listeners", SET, "PLAINTEXT://127.0.0.1:1"),
            ("no.such", SET, "2"),
            ("log.retention.ms", SET, "5000"),
            ("log.retention.ms", SET, "-5"),
            ("log.retention.hours", SET, "5"),
            ("min.insync.replicas", SET, "1"),
            ("min.insync.replicas", SET, "0"),
            ("message.max.bytes", SET, "2000000"),
            ("max.connections", SET, "10"),
            ("max.connections.per.ip", SET, "10"),
            ("max.connections.per.ip.overrides", SET, "127.0.0.1:5"),
            ("log.cleaner.threads", SET, "2"),
            ("log.cleaner.threads", SET, "20"),
            ("log.cleanup.policy", APPEND, "compact"),
            ("log.flush.interval.ms", SET, "5"),
            ("auto.create.topics.enable", SET, "false"),
            ("ssl.keystore.location", SET, "/tmp/none"),
            ("unclean.leader.election.enable", SET, "true"),
            ("compression.type", SET, "rar"),
            ("background.threads", SET, "12"),
            ("leader.replication.throttled.rate", SET, "12"),
            ("leader.replication.throttled.rate", SET, "-1"),
        )
    peer.said("""
        broker '1'
        ('num.io.threads', 0, '9') NONE
        ('num.io.threads', 0, '0') INVALID_REQUEST
        ('num.io.threads', 0, 'x') INVALID_REQUEST
        ('num.io.threads', 0, '10000') INVALID_REQUEST
        ('num.io.threads', 1, None) NONE
        ('node.id', 0, '2') INVALID_REQUEST
        ('log.dirs', 0, '/tmp/x') INVALID_REQUEST
        ('listeners', 0, 'PLAINTEXT://127.0.0.1:1') INVALID_REQUEST
        ('no.such', 0, '2') NONE
        ('log.retention.ms', 0, '5000') NONE
        ('log.retention.ms', 0, '-5') NONE
        ('log.retention.hours', 0, '5') INVALID_REQUEST
        ('min.insync.replicas', 0, '1') INVALID_CONFIG
        ('min.insync.replicas', 0, '0') INVALID_REQUEST
        ('message.max.bytes', 0, '2000000') NONE
        ('max.connections', 0, '10') NONE
        ('max.connections.per.ip', 0, '10') NONE
        ('max.connections.per.ip.overrides', 0, '127.0.0.1:5') NONE
        ('log.cleaner.threads', 0, '2') NONE
        ('log.cleaner.threads', 0, '20') INVALID_REQUEST
        ('log.cleanup.policy', 2, 'compact') NONE
        ('log.flush.interval.ms', 0, '5') NONE
        ('auto.create.topics.enable', 0, 'false') INVALID_REQUEST
        ('ssl.keystore.location', 0, '/tmp/none') INVALID_REQUEST
        ('unclean.leader.election.enable', 0, 'true') NONE
        ('compression.type', 0, 'rar') INVALID_REQUEST
        ('background.threads', 0, '12') NONE
        ('leader.replication.throttled.rate', 0, '12') NONE
        ('leader.replication.throttled.rate', 0, '-1') INVALID_REQUEST
        broker ''
        ('num.io.threads', 0, '9') NONE
        ('num.io.threads', 0, '0') INVALID_REQUEST
        ('num.io.threads', 0, 'x') INVALID_REQUEST
        ('num.io.threads', 0, '10000') INVALID_REQUEST
        ('num.io.threads', 1, None) NONE
        ('node.id', 0, '2') INVALID_REQUEST
        ('log.dirs', 0, '/tmp/x') INVALID_REQUEST
        ('listeners', 0, 'PLAINTEXT://127.0.0.1:1') INVALID_REQUEST
        ('no.such', 0, '2') NONE
        ('log.retention.ms', 0, '5000') NONE
        ('log.retention.ms', 0, '-5') NONE
        ('log.retention.hours', 0, '5') INVALID_REQUEST
        ('min.insync.replicas', 0, '1') NONE
        ('min.insync.replicas', 0, '0') INVALID_REQUEST
        ('message.max.bytes', 0, '2000000') NONE
        ('max.connections', 0, '10') NONE
        ('max.connections.per.ip', 0, '10') NONE
        ('max.connections.per.ip.overrides', 0, '127.0.0.1:5') NONE
        ('log.cleaner.threads', 0, '2') NONE
        ('log.cleaner.threads', 0, '20') INVALID_REQUEST
        ('log.cleanup.policy', 2, 'compact') NONE
        ('log.flush.interval.ms', 0, '5') NONE
        ('auto.create.topics.enable', 0, 'false') INVALID_REQUEST
        ('ssl.keystore.location', 0, '/tmp/none') INVALID_REQUEST
        ('unclean.leader.election.enable', 0, 'true') NONE
        ('compression.type', 0, 'rar') INVALID_REQUEST
        ('background.threads', 0, '12') NONE
        ('leader.replication.throttled.rate', 0, '12') NONE
        ('leader.replication.throttled.rate', 0, '-1') INVALID_REQUEST
    """)


def test_describe_configs_names_the_cluster_default_as_source_of_a_value_set_there(peer: Peer) -> None:
    topic = peer.topic()
    try:
        peer.ask(change(BROKER, "", ("log.segment.bytes", SET, "1000000000")))
        settled(peer, TOPIC, topic, "segment.bytes", "1000000000")
        ask_describe(peer, TOPIC, topic, ["segment.bytes"], include_synonyms=True)
        peer.ask(change(BROKER, "1", ("log.segment.bytes", SET, "900000000")))
        settled(peer, TOPIC, topic, "segment.bytes", "900000000")
        ask_describe(peer, TOPIC, topic, ["segment.bytes"], include_synonyms=True)
        ask_describe(peer, BROKER, "1", ["log.segment.bytes"], include_synonyms=True)
        ask_describe(peer, BROKER, "", ["log.segment.bytes"], include_synonyms=True)
    finally:
        for name in ("1", ""):
            peer.quietly(change(BROKER, name, ("log.segment.bytes", DELETE, None)))
        settled(peer, TOPIC, topic, "segment.bytes", "1073741824")
    peer.said("""
        IncrementalAlterConfigs v1
          responses: error_message=null resource_type=4
        DescribeConfigs v4
          results: resource_type=2 resource_name=t
            configs: name=segment.bytes value=1000000000 config_source=3 config_type=3 documentation=null
              synonyms: name=log.segment.bytes value=1000000000 source=3
              synonyms: name=log.segment.bytes value=1073741824 source=5
        IncrementalAlterConfigs v1
          responses: error_message=null resource_type=4 resource_name=1
        DescribeConfigs v4
          results: resource_type=2 resource_name=t
            configs: name=segment.bytes value=900000000 config_source=2 config_type=3 documentation=null
              synonyms: name=log.segment.bytes value=900000000 source=2
              synonyms: name=log.segment.bytes value=1000000000 source=3
              synonyms: name=log.segment.bytes value=1073741824 source=5
        DescribeConfigs v4
          results: resource_type=4 resource_name=1
            configs: name=log.segment.bytes value=900000000 config_source=2 config_type=3 documentation=null
              synonyms: name=log.segment.bytes value=900000000 source=2
              synonyms: name=log.segment.bytes value=1000000000 source=3
              synonyms: name=log.segment.bytes value=1073741824 source=5
        DescribeConfigs v4
          results: resource_type=4
            configs: name=log.segment.bytes value=1000000000 config_source=3 config_type=3
                  documentation=null
              synonyms: name=log.segment.bytes value=1000000000 source=3
    """)


def test_penstock_answers_changes_of_group_configs_like_kafka(peer: Peer) -> None:
    group = peer.unique("g")
    refusals(
        peer,
        GROUP,
        group,
        ("consumer.session.timeout.ms", SET, "50000"),
        ("consumer.session.timeout.ms", SET, "1"),
        ("consumer.session.timeout.ms", SET, "x"),
        ("consumer.heartbeat.interval.ms", SET, "6000"),
        ("consumer.heartbeat.interval.ms", SET, "999999"),
        ("share.record.lock.duration.ms", SET, "30000"),
        ("share.auto.offset.reset", SET, "earliest"),
        ("share.auto.offset.reset", SET, "middle"),
        ("no.such", SET, "1"),
        ("consumer.session.timeout.ms", DELETE, None),
        ("consumer.session.timeout.ms", APPEND, "1"),
    )
    peer.ask(change(GROUP, group, ("consumer.session.timeout.ms", SET, "50000")))
    settled(peer, GROUP, group, "consumer.session.timeout.ms", "50000")
    ask_describe(peer, GROUP, group, ["consumer.session.timeout.ms"], include_synonyms=True)
    peer.said("""
        ('consumer.session.timeout.ms', 0, '50000') NONE
        ('consumer.session.timeout.ms', 0, '1') INVALID_CONFIG
        ('consumer.session.timeout.ms', 0, 'x') INVALID_CONFIG
        ('consumer.heartbeat.interval.ms', 0, '6000') NONE
        ('consumer.heartbeat.interval.ms', 0, '999999') INVALID_CONFIG
        ('share.record.lock.duration.ms', 0, '30000') NONE
        ('share.auto.offset.reset', 0, 'earliest') NONE
        ('share.auto.offset.reset', 0, 'middle') INVALID_CONFIG
        ('no.such', 0, '1') INVALID_CONFIG
        ('consumer.session.timeout.ms', 1, None) NONE
        ('consumer.session.timeout.ms', 2, '1') INVALID_CONFIG
        IncrementalAlterConfigs v1
          responses: error_message=null resource_type=32 resource_name=g
        DescribeConfigs v4
          results: resource_type=32 resource_name=g
            configs: name=consumer.session.timeout.ms value=50000 config_source=8 config_type=3
                  documentation=null
              synonyms: name=consumer.session.timeout.ms value=50000 source=8
              synonyms: name=group.consumer.session.timeout.ms value=45000 source=5
    """)


def test_penstock_answers_config_changes_of_client_metrics_subscriptions_like_kafka(peer: Peer) -> None:
    name = peer.unique("m")
    refusals(
        peer,
        CLIENT_METRICS,
        name,
        ("interval.ms", SET, "1000"),
        ("interval.ms", SET, "10"),
        ("interval.ms", SET, "9999999"),
        ("interval.ms", SET, "x"),
        ("metrics", SET, "org.apache.kafka.producer."),
        ("metrics", SET, ""),
        ("metrics", SET, "*"),
        ("match", SET, "client_id=abc"),
        ("match", SET, "client_id"),
        ("match", SET, "no_such=abc"),
        ("match", SET, "client_id=("),
        ("no.such", SET, "1"),
    )
    peer.ask(change(CLIENT_METRICS, name, ("interval.ms", SET, "1000"), ("metrics", SET, "org.a,org.b")))
    settled(peer, CLIENT_METRICS, name, "interval.ms", "1000")
    ask_describe(peer, CLIENT_METRICS, name, include_synonyms=True)
    peer.quietly(change(CLIENT_METRICS, name, ("interval.ms", DELETE, None), ("metrics", DELETE, None)))
    peer.settle(lambda: value_of(peer, CLIENT_METRICS, name, "interval.ms")[0] != "1000")
    ask_describe(peer, CLIENT_METRICS, name, include_synonyms=True)
    peer.said("""
        ('interval.ms', 0, '1000') NONE
        ('interval.ms', 0, '10') INVALID_REQUEST
        ('interval.ms', 0, '9999999') INVALID_REQUEST
        ('interval.ms', 0, 'x') INVALID_CONFIG
        ('metrics', 0, 'org.apache.kafka.producer.') NONE
        ('metrics', 0, '') NONE
        ('metrics', 0, '*') NONE
        ('match', 0, 'client_id=abc') NONE
        ('match', 0, 'client_id') INVALID_CONFIG
        ('match', 0, 'no_such=abc') INVALID_CONFIG
        ('match', 0, 'client_id=(') INVALID_CONFIG
        ('no.such', 0, '1') INVALID_REQUEST
        IncrementalAlterConfigs v1
          responses: error_message=null resource_type=16 resource_name=m
        DescribeConfigs v4
          results: resource_type=16 resource_name=m
            configs: name=interval.ms value=1000 config_source=7 config_type=3 documentation=null
              synonyms: name=interval.ms value=1000 source=7
            configs: name=match config_source=5 config_type=7 documentation=null
            configs: name=metrics value=org.a,org.b config_source=7 config_type=7 documentation=null
              synonyms: name=metrics value=org.a,org.b source=7
        DescribeConfigs v4
          results: resource_type=16 resource_name=m
            configs: name=interval.ms value=300000 config_source=5 config_type=3 documentation=null
            configs: name=match config_source=5 config_type=7 documentation=null
            configs: name=metrics config_source=5 config_type=7 documentation=null
    """)


# --- AlterConfigs -----------------------------------------------------------------------------------------------


def test_alter_configs_replaces_all_configs_of_a_topic(peer: Peer) -> None:
    topic = peer.topic(retention_ms="5000", segment_ms="6000")
    peer.ask(replace(TOPIC, topic, ("retention.ms", "7000")))
    settled(peer, TOPIC, topic, "retention.ms", "7000")
    ask_describe(peer, TOPIC, topic, ["retention.ms", "segment.ms"])
    peer.ask(replace(TOPIC, topic, ("retention.ms", "x")))
    peer.ask(replace(TOPIC, topic, ("retention.ms", None)))
    peer.ask(replace(TOPIC, topic, ("no.such", "1")))
    peer.ask(replace(TOPIC, topic, ("retention.ms", "1"), validate_only=True))
    peer.ask(replace(TOPIC, peer.unique("nope"), ("retention.ms", "1")))
    peer.ask(replace(TOPIC, topic))
    settled(peer, TOPIC, topic, "retention.ms", "604800000")
    peer.ask(replace(BROKER, "1", ("node.id", "1"), validate_only=True))
    peer.ask(replace(BROKER, "one", ("num.io.threads", "9"), validate_only=True))
    peer.ask(replace(0, "x"))
    peer.said("""
        AlterConfigs v2
          responses: error_message=null resource_type=2 resource_name=t
        DescribeConfigs v4
          results: resource_type=2 resource_name=t
            configs: name=retention.ms value=7000 config_source=1 config_type=5 documentation=null
            configs: name=segment.ms value=604800000 config_source=5 config_type=5 documentation=null
        AlterConfigs v2
          responses: error_code=INVALID_CONFIG resource_type=2 resource_name=t
        AlterConfigs v2
          responses: error_code=INVALID_REQUEST resource_type=2 resource_name=t
        AlterConfigs v2
          responses: error_code=INVALID_CONFIG resource_type=2 resource_name=t
        AlterConfigs v2
          responses: error_message=null resource_type=2 resource_name=t
        AlterConfigs v2
          responses: error_code=UNKNOWN_TOPIC_OR_PARTITION resource_type=2 resource_name=nope
        AlterConfigs v2
          responses: error_message=null resource_type=2 resource_name=t
        AlterConfigs v2
          responses: error_code=INVALID_REQUEST resource_type=4 resource_name=1
        AlterConfigs v2
          responses: error_code=INVALID_REQUEST resource_type=4 resource_name=one
        AlterConfigs v2
          responses: error_code=INVALID_REQUEST resource_name=x
    """)


# --- ListConfigResources ----------------------------------------------------------------------------------------


def ask_list(peer: Peer, *kinds: int, version: int = 1) -> None:
    answer = peer.quietly(ListConfigResourcesRequest(resource_types=list(kinds)), version)
    kept = [each for each in answer.config_resources if each.resource_name in {*peer.names, "1", ""}]
    answer.config_resources = sorted(kept, key=lambda each: (each.resource_type, each.resource_name))
    peer.note(render(answer, version, peer.masks))


def test_list_config_resources_returns_the_resources_of_a_type(peer: Peer) -> None:
    topic = peer.topic()
    group, metrics = peer.unique("g"), peer.unique("m")
    peer.quietly(change(GROUP, group, ("consumer.session.timeout.ms", SET, "50000")))
    peer.quietly(change(CLIENT_METRICS, metrics, ("interval.ms", SET, "1000")))
    listed = ListConfigResourcesRequest()
    peer.settle(lambda: metrics in {each.resource_name for each in peer.quietly(listed, 0).config_resources})
    peer.settle(lambda: group in {each.resource_name for each in peer.quietly(listed, 1).config_resources})
    assert topic
    ask_list(peer)
    ask_list(peer, TOPIC)
    ask_list(peer, BROKER)
    ask_list(peer, LOGGER)
    ask_list(peer, GROUP, CLIENT_METRICS, GROUP)
    ask_list(peer, 0)
    ask_list(peer, 99)
    ask_list(peer, TOPIC, 99)
    ask_list(peer, version=0)
    peer.quietly(change(CLIENT_METRICS, metrics, ("interval.ms", DELETE, None)))
    peer.said("""
        ListConfigResources v1
          config_resources: resource_name=t resource_type=2
          config_resources: resource_name=1 resource_type=4
          config_resources: resource_name=1 resource_type=8
          config_resources: resource_name=m
          config_resources: resource_name=g resource_type=32
        ListConfigResources v1
          config_resources: resource_name=t resource_type=2
        ListConfigResources v1
          config_resources: resource_name=1 resource_type=4
        ListConfigResources v1
          config_resources: resource_name=1 resource_type=8
        ListConfigResources v1
          config_resources: resource_name=m
          config_resources: resource_name=g resource_type=32
        ListConfigResources v1 error_code=UNSUPPORTED_VERSION
        ListConfigResources v1 error_code=UNSUPPORTED_VERSION
        ListConfigResources v1 error_code=UNSUPPORTED_VERSION
        ListConfigResources v0
          config_resources: resource_name=m
    """)


# --- loggers ----------------------------------------------------------------------------------------------------


def test_penstock_answers_changes_of_log_levels_like_kafka(peer: Peer) -> None:
    known = {"kafka": "kafka.server.KafkaApis", "penstock": "penstock.broker"}[peer.name]
    for name in ("1", "99", ""):
        peer.note(f"broker '{name}'")
        for what, each in {
            "a level": (known, SET, "INFO"),
            "a level in small letters": (known, SET, "info"),
            "every level": (known, SET, "TRACE"),
            "no level": (known, SET, "LOUD"),
            "off": (known, SET, "OFF"),
            "a null level": (known, SET, None),
            "an empty level": (known, SET, ""),
            "an unknown logger": ("no.such.logger", SET, "INFO"),
            "an append": (known, APPEND, "INFO"),
            "a deletion": (known, DELETE, None),
            "a deletion of the root": ("root", DELETE, None),
            "a level of the root": ("root", SET, "INFO"),
        }.items():
            (answer,) = peer.quietly(change(LOGGER, name, each, validate_only=True)).responses
            peer.note(f"{what}: {ErrorCode(answer.error_code).name}")
    peer.ask(replace(LOGGER, "1", ("root", "INFO"), validate_only=True))
    peer.said("""
        broker '1'
        a level: NONE
        a level in small letters: INVALID_CONFIG
        every level: NONE
        no level: INVALID_CONFIG
        off: INVALID_CONFIG
        a null level: INVALID_REQUEST
        an empty level: INVALID_CONFIG
        an unknown logger: INVALID_CONFIG
        an append: INVALID_REQUEST
        a deletion: NONE
        a deletion of the root: INVALID_REQUEST
        a level of the root: NONE
        broker '99'
        a level: INVALID_REQUEST
        a level in small letters: INVALID_REQUEST
        every level: INVALID_REQUEST
        no level: INVALID_REQUEST
        off: INVALID_REQUEST
        a null level: INVALID_REQUEST
        an empty level: INVALID_REQUEST
        an unknown logger: INVALID_REQUEST
        an append: INVALID_REQUEST
        a deletion: INVALID_REQUEST
        a deletion of the root: INVALID_REQUEST
        a level of the root: INVALID_REQUEST
        broker ''
        a level: INVALID_REQUEST
        a level in small letters: INVALID_REQUEST
        every level: INVALID_REQUEST
        no level: INVALID_REQUEST
        off: INVALID_REQUEST
        a null level: INVALID_REQUEST
        an empty level: INVALID_REQUEST
        an unknown logger: INVALID_REQUEST
        an append: INVALID_REQUEST
        a deletion: INVALID_REQUEST
        a deletion of the root: INVALID_REQUEST
        a level of the root: INVALID_REQUEST
        AlterConfigs v2
          responses: error_code=INVALID_REQUEST resource_type=8 resource_name=1
    """)
