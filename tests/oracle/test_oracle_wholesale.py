"""Compares answers that are too large for a literal: every API key, config and default that both brokers have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from oracle_peer import Peer

from penstock.protocol.messages.api_18_api_versions import ApiVersionsRequest
from penstock.protocol.messages.api_32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource

pytestmark = [pytest.mark.java, pytest.mark.slow]

TOPIC, BROKER, GROUP = 2, 4, 32
# The two were started with different properties, from different sources.
STARTED_WITH = 4


class Both(NamedTuple):
    penstock: Peer
    kafka: Peer


@pytest.fixture
def both(penstock_address: tuple[str, int], kafka_address: tuple[str, int]) -> Iterator[Both]:
    peers = Both(Peer("penstock", penstock_address), Peer("kafka", kafka_address))
    yield peers
    for peer in peers:
        peer.close()


def test_every_served_api_has_the_same_versions_as_in_kafka(both: Both) -> None:
    served, known = (
        {key.api_key: (key.min_version, key.max_version) for key in peer.quietly(ApiVersionsRequest(), 0).api_keys}
        for peer in both
    )
    assert {key: versions for key, versions in served.items() if known.get(key) != versions} == {}


def configs(peer: Peer, kind: int, name: str) -> dict[str, Any]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    (result,) = peer.quietly(request, 4).results
    assert result.error_code == 0
    found = {}
    for config in result.configs:
        synonyms = [(each.name, each.value, each.source) for each in config.synonyms if each.source != STARTED_WITH]
        value = None if config.config_source == STARTED_WITH else config.value
        fixed = (config.config_type, config.read_only, config.is_sensitive, bool(config.documentation))
        found[config.name] = (value, fixed, synonyms)
    return {name: told for name, told in found.items() if not name.startswith("penstock.")}


def test_every_config_of_a_broker_is_described_as_in_kafka(both: Both) -> None:
    mine, theirs = (configs(peer, BROKER, "1") for peer in both)
    assert mine.keys() == theirs.keys()
    started_with = {name for told in (mine, theirs) for name, (value, *_) in told.items() if value is None}
    differing = {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}
    assert {name: told for name, told in differing.items() if name not in started_with} == {}
    for name, (ours, kafkas) in differing.items():
        assert ours[1:] == kafkas[1:], name


def test_every_config_of_topics_and_groups_is_described_as_in_kafka(both: Both) -> None:
    topics = [configs(peer, TOPIC, peer.topic()) for peer in both]
    assert topics[0] == topics[1]
    groups = [configs(peer, GROUP, peer.unique("g")) for peer in both]
    assert groups[0] == groups[1]
