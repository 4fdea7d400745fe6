"""Tests that a group's description has every field that its members sent, also after a load of the log."""

from typing import Any

import pytest
from consumer_driver import ConsumerDriver
from share_driver import ShareDriver
from streams_driver import StreamsDriver, stateful, topology

from penstock.groups import share_requests
from penstock.groups.streams.group import Role, StreamsMember, TaskKey
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_88_streams_group_heartbeat import Endpoint, KeyValue


def fields_of(member: Any, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(member, name) for name in names)


@pytest.mark.parametrize("reloaded", [False, True])
def test_consumer_member_is_described_with_every_field_of_its_heartbeat(reloaded: bool) -> None:
    driver = ConsumerDriver()
    driver.enter("a", instance_id="i", rack_id="r", subscribed_topic_regex="t.*")
    [member] = (driver.reload() if reloaded else driver).describe().members
    names = ("instance_id", "rack_id", "client_id", "client_host", "subscribed_topic_regex")
    assert fields_of(member, *names) == ("i", "r", "client", "/127.0.0.1", "t.*")
    assert member.subscribed_topic_names == ["t"]
    assert [each.partitions for each in member.target_assignment.topic_partitions] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("reloaded", [False, True])
def test_share_member_is_described_with_every_field_of_its_heartbeat(reloaded: bool) -> None:
    driver = ShareDriver()
    driver.share_beat("a", 0, rack_id="r", subscribed_topic_names=["t"])
    shard = (driver.reload() if reloaded else driver).shard
    [member] = driver.run(lambda turn: share_requests.describe_share_group(shard, turn, "g")).members
    names = ("rack_id", "client_id", "client_host", "subscribed_topic_names", "member_epoch")
    assert fields_of(member, *names) == ("r", "client", "/127.0.0.1", ["t"], driver.group.members["a"].epoch)


@pytest.mark.parametrize("reloaded", [False, True])
def test_streams_member_is_described_with_every_field_of_its_heartbeat(reloaded: bool) -> None:
    driver = StreamsDriver()
    tags = [KeyValue(key="zone", value="z"), KeyValue(key="tier", value="1")]
    driver.come(
        "a",
        topology(epoch=0),
        rack_id="r",
        client_tags=tags,
        user_endpoint=Endpoint(host="h", port=80),
    )
    [member] = (driver.reload() if reloaded else driver).streams_description().members
    names = ("rack_id", "client_id", "client_host", "process_id", "topology_epoch")
    assert fields_of(member, *names) == ("r", "client", "/127.0.0.1", "a", 0)
    assert {each.key: each.value for each in member.client_tags} == {"zone": "z", "tier": "1"}
    assert member.user_endpoint is not None
    assert (member.user_endpoint.host, member.user_endpoint.port) == ("h", 80)


def test_streams_group_can_be_described_after_a_load_before_any_member_sends_a_heartbeat() -> None:
    driver = StreamsDriver()
    driver.come("a")
    described = driver.reload().streams_description()
    assert described.error_code == ErrorCode.NONE
    assert described.topology is not None
    assert [each.source_topics for each in described.topology.subtopologies or ()] == [["t"]]


def test_tasks_of_a_streams_member_include_all_subtopologies_and_tasks_to_revoke() -> None:
    first, second, revoked = TaskKey(Role.ACTIVE, "0"), TaskKey(Role.ACTIVE, "1"), TaskKey(Role.STANDBY, "0")
    member = StreamsMember("a", assigned={first: {0: 1, 1: 1}, second: {3: 1}}, pending_revocation={revoked: {2: 1}})
    assert list(member.tasks()) == [(first, 0), (first, 1), (second, 3), (revoked, 2)]


def test_only_active_tasks_count_as_assigned_tasks_of_a_streams_group() -> None:
    driver = StreamsDriver(topics={"t": 2, "g-changelog": 2})
    driver.come("a", stateful())
    driver.group.target["a"] = {
        TaskKey(Role.ACTIVE, "0"): frozenset({0}),
        TaskKey(Role.STANDBY, "0"): frozenset({5}),
        TaskKey(Role.WARMUP, "1"): frozenset({7}),
    }
    assert driver.group.assigned_tasks() == {"0": 1}
