"""Tests members of streams groups: topology, epochs, tasks, statuses, endpoints, timeouts, offsets and refused
requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from streams_driver import (
    EAGER,
    REVOKE_MS,
    StreamsDriver,
    active,
    code,
    counting,
    internal,
    listed,
    plain,
    stateful,
    statuses,
    topology,
)

from penstock.groups import admin, offset_requests
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.config import GroupConfig
from penstock.groups.streams.topics import Status
from penstock.groups.txn_offsets import commit_in_transaction
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    Endpoint,
    Subtopology,
    TaskIds,
    TaskOffset,
)
from penstock.protocol.vocabulary import ResourceType

CREATED = {"t": 4, "g-repartition": 4, "g-changelog": 4}


# --- joining and topics


def test_first_streams_member_gets_all_tasks() -> None:
    driver = StreamsDriver()
    response = driver.come("a")
    assert code(response) is ErrorCode.NONE
    assert listed(response.active_tasks) == {"0": [0, 1, 2, 3]}
    assert (listed(response.standby_tasks), listed(response.warmup_tasks)) == ({}, {})
    assert response.member_epoch == driver.group.epoch == 2
    assert response.status == []
    assert driver.group.state == "Stable"


def test_streams_members_get_no_tasks_until_internal_topics_exist() -> None:
    driver = StreamsDriver()
    response = driver.come("a", counting())
    assert statuses(response) == [Status.MISSING_INTERNAL_TOPICS]
    assert {name: topic.partitions for name, topic in driver.answers["a"].missing.items()} == {
        "g-repartition": 4,
        "g-changelog": 4,
    }
    assert listed(response.active_tasks) == {}
    assert driver.group.state == "NotReady"
    driver.see(CREATED)
    response = driver.stay("a")
    assert statuses(response) == []
    assert listed(response.active_tasks) == {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}
    assert driver.group.state == "Stable"
    assert not driver.answers["a"].missing


def test_streams_member_gets_no_tasks_while_its_source_topic_is_missing() -> None:
    driver = StreamsDriver(topics={"other": 1})
    assert statuses(driver.come("a")) == [Status.MISSING_SOURCE_TOPICS]
    driver.see({"t": 2})
    assert listed(driver.stay("a").active_tasks) == {"0": [0, 1]}


def test_deleting_a_source_topic_removes_the_tasks_of_the_members() -> None:
    driver = StreamsDriver()
    driver.come("a")
    driver.see({"other": 1})
    response = driver.stay("a")
    assert statuses(response) == [Status.MISSING_SOURCE_TOPICS]
    assert listed(response.active_tasks) == {}
    assert driver.group.state == "NotReady"


def test_new_partitions_of_a_source_topic_add_tasks() -> None:
    driver = StreamsDriver()
    driver.come("a")
    driver.see({"t": 6})
    assert listed(driver.stay("a").active_tasks) == {"0": [0, 1, 2, 3, 4, 5]}


def test_streams_member_with_an_older_topology_epoch_gets_status_stale_topology_and_no_error() -> None:
    driver = StreamsDriver()
    driver.come("a", topology(epoch=3))
    response = driver.come("b", topology(plain(), plain("1"), epoch=2))
    assert statuses(response) == [Status.STALE_TOPOLOGY]
    assert code(response) is ErrorCode.NONE


def test_different_topology_with_the_same_or_a_newer_epoch_is_refused() -> None:
    driver = StreamsDriver()
    driver.come("a")
    for other in (topology(plain("other")), topology(plain(), epoch=1)):
        assert code(driver.come("b", other)) is ErrorCode.INVALID_REQUEST
    assert list(driver.group.members) == ["a"]


# --- moving tasks


def test_streams_task_moves_only_after_its_owner_revoked_it() -> None:
    driver = StreamsDriver()
    driver.come("a")
    joined = driver.come("b")
    assert listed(joined.active_tasks) == {}, "a still has all tasks"
    asked = driver.stay("a")
    assert listed(asked.active_tasks) == {"0": [0, 1]}
    assert driver.group.state == "Reconciling"
    assert driver.stay("b").active_tasks is None, "a has not confirmed that it stopped"
    before = driver.group.members["a"].epoch
    driver.stay("a")
    assert driver.group.members["a"].epoch > before
    assert listed(driver.stay("b").active_tasks) == {"0": [2, 3]}
    assert driver.group.state == "Stable"


def test_streams_task_is_not_assigned_to_another_member_while_its_old_owner_still_reports_it() -> None:
    driver = StreamsDriver()
    driver.come("a")
    driver.come("b")
    driver.stay("a")
    known = driver.group.members["a"]
    everything = [TaskIds(subtopology_id="0", partitions=[0, 1, 2, 3])]
    driver.stream_beat("a", known.epoch, active_tasks=everything, standby_tasks=[], warmup_tasks=[])
    assert driver.stay("b").active_tasks is None


def test_streams_member_that_does_not_revoke_tasks_in_time_is_removed() -> None:
    driver = StreamsDriver()
    driver.come("a")
    driver.come("b")
    driver.stay("a")
    driver.advance(REVOKE_MS)
    assert list(driver.group.members) == ["b"]
    assert listed(driver.stay("b").active_tasks) == {"0": [0, 1, 2, 3]}


def test_tasks_of_a_lost_streams_member_are_assigned_to_the_other_members() -> None:
    driver = StreamsDriver()
    driver.come("a")
    driver.come("b")
    driver.settle()
    assert driver.stream_beat("a", -1).member_epoch == -1
    assert listed(driver.stay("b").active_tasks) == {"0": [0, 1, 2, 3]}


def test_streams_member_without_heartbeats_is_removed() -> None:
    driver = StreamsDriver()
    driver.come("a")
    driver.advance(driver.config.streams_session_timeout_ms)
    assert driver.group.state == "Empty"
    assert code(driver.stream_beat("a", 2)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_standby_task_is_on_another_process_and_becomes_active_when_the_owner_is_lost() -> None:
    driver = StreamsDriver(replace(EAGER, streams_standby_replicas=1), {"t": 4, "g-changelog": 4})
    driver.come("a", stateful())
    assert all(key.role == 0 for key in driver.group.target["a"]), "there is no other process"
    driver.come("b", stateful())
    driver.settle()
    for member in driver.group.members.values():
        assert {key.role: len(indexes) for key, indexes in member.assigned.items()} == {0: 2, 1: 2}
    driver.stream_beat("b", -1)
    driver.settle()
    assert active(driver) == {"a": {"0": [0, 1, 2, 3]}}


def test_two_members_of_one_process_never_have_the_same_task() -> None:
    driver = StreamsDriver(replace(EAGER, streams_standby_replicas=1), {"t": 4, "g-changelog": 4})
    driver.come("a", stateful(), process_id="one")
    driver.come("b", stateful(), process_id="one")
    driver.settle()
    assert all(key.role == 0 for member in driver.group.members.values() for key in member.assigned)


# --- delays


def test_streams_members_that_join_within_the_initial_delay_get_one_common_assignment() -> None:
    driver = StreamsDriver(replace(EAGER, streams_initial_rebalance_delay_ms=3000))
    first = driver.come("a")
    assert statuses(first) == [Status.ASSIGNMENT_DELAYED]
    assert (first.member_epoch, listed(first.active_tasks)) == (1, {})
    driver.advance(1000)
    assert statuses(driver.come("b")) == [Status.ASSIGNMENT_DELAYED]
    driver.advance(2000)
    assert listed(driver.stay("a").active_tasks) == {"0": [0, 2]}
    assert listed(driver.stay("b").active_tasks) == {"0": [1, 3]}, "nobody has to revoke a task"


def test_new_streams_assignment_is_delayed_until_the_assignment_interval_ends() -> None:
    driver = StreamsDriver(replace(EAGER, streams_assignment_interval_ms=1000))
    driver.come("a")
    driver.advance(500)
    assert statuses(driver.come("b")) == [Status.ASSIGNMENT_DELAYED]
    driver.advance(500)
    assert statuses(driver.stay("b")) == []
    assert driver.group.assignment_epoch == driver.group.epoch


def test_group_configs_set_the_number_of_standbys_and_the_intervals() -> None:
    driver = StreamsDriver(topics={"t": 2, "g-changelog": 2})
    driver.come("a", stateful())
    driver.come("b", stateful())
    driver.settle()
    own = {"streams.num.standby.replicas": "1", "streams.heartbeat.interval.ms": "7000"}
    image = replace(driver.shard.image, configs={(ResourceType.GROUP, "g"): own})
    driver.shard.see(image)
    assert driver.stay("a").heartbeat_interval_ms == 7000
    driver.settle()
    assert all(len(member.assigned) == 2 for member in driver.group.members.values())


# --- epochs


def test_streams_heartbeat_with_the_previous_epoch_is_accepted_only_if_it_reports_assigned_tasks() -> None:
    driver = StreamsDriver()
    driver.come("a")
    driver.see({"t": 6})
    epoch = driver.group.members["a"].epoch
    driver.stay("a")
    owned = [TaskIds(subtopology_id="0", partitions=[0, 1])]
    repeated = driver.stream_beat("a", epoch, active_tasks=owned, standby_tasks=[], warmup_tasks=[])
    assert code(repeated) is ErrorCode.NONE
    assert code(driver.stream_beat("a", epoch)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert code(driver.stream_beat("a", epoch + 7)) is ErrorCode.FENCED_MEMBER_EPOCH


def test_streams_member_that_rejoins_keeps_its_tasks() -> None:
    driver = StreamsDriver()
    driver.come("a")
    epoch = driver.group.epoch
    again = driver.come("a")
    assert listed(again.active_tasks) == {"0": [0, 1, 2, 3]}
    assert driver.group.epoch == epoch


def test_replaying_the_log_restores_a_streams_group() -> None:
    driver = StreamsDriver(replace(EAGER, streams_standby_replicas=1), {**CREATED})
    driver.come("a", counting(), client_tags=[], user_endpoint=Endpoint(host="h", port=1), rack_id="r")
    driver.come("b", counting())
    driver.stay("a")
    assert driver.group.members["a"].pending_revocation
    other = driver.reload()
    assert other.shard.remembered() == driver.shard.remembered()
    assert other.group.holders == driver.group.holders
    other.settle()
    assert other.group.state == "Stable"
    assert other.reload().shard.remembered() == other.shard.remembered()


def test_replay_after_the_deletion_of_a_streams_group_restores_no_group() -> None:
    driver = StreamsDriver()
    driver.come("a")
    assert driver.run(lambda turn: admin.delete_group(driver.shard, turn, "g")) is ErrorCode.NON_EMPTY_GROUP
    driver.stream_beat("a", -1)
    assert driver.run(lambda turn: admin.delete_group(driver.shard, turn, "g")) is ErrorCode.NONE
    kept: dict[bytes, bytes | None] = dict(driver.journal)
    assert not any(value is not None for value in kept.values())
    assert driver.reload().shard.groups == {}


# --- shutdown and endpoints


def test_shutdown_request_of_a_streams_member_reaches_the_other_members() -> None:
    driver = StreamsDriver()
    driver.come("a")
    driver.come("b")
    driver.stay("a", shutdown_application=True)
    assert Status.SHUTDOWN_APPLICATION in statuses(driver.stay("b"))
    driver.stream_beat("a", -1)
    assert Status.SHUTDOWN_APPLICATION in statuses(driver.stay("b"))
    driver.stream_beat("b", -1)
    assert statuses(driver.come("c")) == [], "an empty group forgets the request"


def test_streams_members_get_the_endpoints_of_other_members() -> None:
    driver = StreamsDriver()
    driver.come("a", user_endpoint=Endpoint(host="one", port=1))
    driver.come("b", user_endpoint=Endpoint(host="two", port=2))
    driver.settle()
    response = driver.stay("a", endpoint_information_epoch=0)
    found = {
        each.user_endpoint.host: {topic.topic: topic.partitions for topic in each.active_partitions}
        for each in response.partitions_by_user_endpoint or ()
    }
    assert found == {"one": {"t": [0, 1]}, "two": {"t": [2, 3]}}
    known = response.endpoint_information_epoch
    assert driver.stay("a", endpoint_information_epoch=known).partitions_by_user_endpoint is None


# --- offsets


def test_commit_with_an_older_epoch_is_accepted_only_if_the_member_has_held_the_task_since_that_epoch() -> None:
    driver = StreamsDriver()
    old = driver.come("a").member_epoch
    driver.see({"t": 6})
    driver.stay("a")
    new = driver.group.members["a"].epoch
    assert driver.commit({("t", 5): 1}, member_id="a", generation=new) == [ErrorCode.NONE]
    assert driver.commit({("t", 3): 1}, member_id="a", generation=old) == [ErrorCode.NONE]
    assert driver.commit({("t", 5): 1}, member_id="a", generation=old) == [ErrorCode.STALE_MEMBER_EPOCH]
    assert driver.commit({("u", 0): 1}, member_id="a", generation=old) == [ErrorCode.STALE_MEMBER_EPOCH]
    both = {("t", 3): 2, ("t", 5): 2}
    assert driver.commit(both, member_id="a", generation=old) == [ErrorCode.STALE_MEMBER_EPOCH] * 2, "as a whole"
    assert driver.fetch(*both) == {("t", 3): 1, ("t", 5): 1}
    assert driver.commit({("t", 0): 1}, member_id="a", generation=new + 1) == [ErrorCode.STALE_MEMBER_EPOCH]
    assert driver.commit({("t", 0): 1}, member_id="b", generation=new) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.commit({("t", 0): 1}, member_id="a", generation=new, version=8) == [ErrorCode.UNSUPPORTED_VERSION]
    assert driver.commit({("t", 0): 1}) == [ErrorCode.UNKNOWN_MEMBER_ID], "an administrator, while there are members"
    driver.stream_beat("a", -1)
    assert driver.commit({("t", 0): 1}) == [ErrorCode.NONE]


def test_commit_with_an_older_epoch_is_accepted_for_a_task_that_the_member_has_to_revoke() -> None:
    driver = StreamsDriver()
    old = driver.come("a").member_epoch
    driver.see({"t": 6})
    driver.stay("a")
    driver.come("b")
    driver.stay("a")
    member = driver.group.members["a"]
    revoked = {index for tasks in member.pending_revocation.values() for index in tasks}
    assert member.epoch > old
    assert revoked & {0, 1, 2, 3}
    for index in revoked & {0, 1, 2, 3}:
        assert driver.commit({("t", index): 1}, member_id="a", generation=old) == [ErrorCode.NONE]


def test_transactional_commit_of_a_streams_member_is_accepted_if_the_member_holds_the_task() -> None:
    driver = StreamsDriver()
    old = driver.come("a").member_epoch
    driver.see({"t": 6})
    driver.stay("a")

    def sent(partition: int, member: str, epoch: int) -> ErrorCode:
        topic = TxnOffsetCommitRequestTopic(
            name="t", partitions=[TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=1)]
        )
        request = TxnOffsetCommitRequest(
            group_id="g", producer_id=5, member_id=member, generation_id=epoch, topics=[topic]
        )
        codes = driver.run(lambda turn: commit_in_transaction(driver.shard, turn, request))
        return codes["t", partition]

    assert sent(0, "a", old) is ErrorCode.NONE
    assert sent(5, "a", old) is ErrorCode.ILLEGAL_GENERATION
    assert sent(5, "a", old + 1) is ErrorCode.NONE
    assert sent(0, "a", old + 2) is ErrorCode.ILLEGAL_GENERATION
    assert sent(0, "", -1) is ErrorCode.NONE, "a producer that names no member"
    assert sent(0, "b", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_a_streams_group_without_members_expire_with_the_group() -> None:
    driver = StreamsDriver()
    epoch = driver.come("a").member_epoch
    driver.commit({("t", 0): 1}, member_id="a", generation=epoch)
    driver.stream_beat("a", -1)
    driver.advance(driver.config.offsets_retention_ms + 1)
    driver.run(lambda turn: offset_requests.expire(driver.shard, turn, "g"))
    assert "g" not in driver.shard.groups


# --- refusals


@pytest.mark.parametrize(
    "change",
    [
        {"instance_id": "i"},
        {"task_offsets": [TaskOffset(subtopology_id="0")]},
        {"task_end_offsets": []},
        {"warmup_tasks": [TaskIds(subtopology_id="0", partitions=[0])]},
        {"topology": topology(Subtopology(subtopology_id="0", source_topic_regex=["t.*"]))},
        {"member_id": ""},
        {"group_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"active_tasks": None},
        {"active_tasks": [TaskIds(subtopology_id="0", partitions=[0])]},
        {"topology": None},
        {"member_epoch": -2},
        {"member_epoch": -3},
        {"member_epoch": 1},
    ],
)
def test_malformed_streams_heartbeat_is_refused(change: dict[str, Any]) -> None:
    driver = StreamsDriver()
    fields = {
        "topology": topology(),
        "rebalance_timeout_ms": 1000,
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        **change,
    }
    response = driver.stream_beat(fields.pop("member_id", "a"), fields.pop("member_epoch", 0), **fields)
    assert code(response) is ErrorCode.INVALID_REQUEST
    assert not driver.shard.groups
    assert not driver.journal


def test_topology_that_sets_the_partition_count_of_a_changelog_topic_is_refused() -> None:
    given = topology(Subtopology(subtopology_id="0", source_topics=["t"], state_changelog_topics=[internal("c", 3)]))
    assert code(StreamsDriver().come("a", given)) is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_streams_heartbeat_that_reports_a_task_outside_the_topology_is_refused() -> None:
    driver = StreamsDriver()
    epoch = driver.come("a").member_epoch
    for tasks in (TaskIds(subtopology_id="0", partitions=[4]), TaskIds(subtopology_id="x", partitions=[0])):
        response = driver.stream_beat("a", epoch, active_tasks=[tasks], standby_tasks=[], warmup_tasks=[])
        assert code(response) is ErrorCode.INVALID_REQUEST


def test_topic_change_is_noticed_after_an_earlier_streams_heartbeat_was_refused() -> None:
    driver = StreamsDriver()
    epoch = driver.come("a").member_epoch
    driver.see({"t": 6})
    wrong = [TaskIds(subtopology_id="x", partitions=[0])]
    driver.stream_beat("a", epoch, active_tasks=wrong, standby_tasks=[], warmup_tasks=[])
    assert listed(driver.stay("a").active_tasks) == {"0": [0, 1, 2, 3, 4, 5]}


def test_full_streams_group_refuses_new_members() -> None:
    driver = StreamsDriver(replace(EAGER, streams_max_size=1))
    driver.come("a")
    assert code(driver.come("b")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert code(driver.come("a")) is ErrorCode.NONE


def test_streams_requests_for_unknown_groups_and_members_are_refused() -> None:
    driver = StreamsDriver()
    assert code(driver.stream_beat("a", 1)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert code(driver.stream_beat("a", -1)) is ErrorCode.GROUP_ID_NOT_FOUND
    driver.come("a")
    assert code(driver.stream_beat("b", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(driver.stream_beat("b", -1)) is ErrorCode.UNKNOWN_MEMBER_ID


# --- other protocols


def test_empty_classic_group_becomes_a_streams_group_and_keeps_its_offsets() -> None:
    driver = StreamsDriver()
    driver.commit({("t", 0): 7})
    assert isinstance(driver.shard.groups["g"], ClassicGroup)
    driver.come("a")
    assert driver.group.state == "Stable"
    assert driver.shard.offsets.partitions("g")
    assert driver.reload().shard.remembered() == driver.shard.remembered()


def test_an_empty_streams_group_becomes_a_classic_group() -> None:
    driver = StreamsDriver()
    driver.come("a")
    assert driver.join().error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    driver.stream_beat("a", -1)
    driver.join()
    assert isinstance(driver.shard.groups["g"], ClassicGroup)


def test_consumer_heartbeats_to_a_streams_group_are_refused() -> None:
    driver = StreamsDriver()
    driver.come("a")
    assert ErrorCode(driver.enter("c").error_code) is ErrorCode.GROUP_ID_NOT_FOUND


def test_streams_group_is_listed_with_type_streams() -> None:
    driver = StreamsDriver()
    driver.come("a")
    [found] = admin.list_groups(driver.shard.groups.values(), frozenset(), frozenset({"streams"}))
    assert (found.group_id, found.group_type, found.protocol_type, found.group_state) == (
        "g",
        "streams",
        "streams",
        "Stable",
    )


def test_description_of_a_streams_group_contains_its_topology_and_tasks() -> None:
    driver = StreamsDriver(topics=CREATED)
    driver.come("a", counting())
    group = driver.streams_description()
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
    assert group.topology is not None
    [first, second] = group.topology.subtopologies or []
    assert (first.source_topics, first.repartition_sink_topics) == (["t"], ["g-repartition"])
    assert [(each.name, each.partitions) for each in second.state_changelog_topics] == [("g-changelog", 4)]
    [member] = group.members
    assert [(each.subtopology_id, each.partitions) for each in member.assignment.active_tasks] == [
        ("0", [0, 1, 2, 3]),
        ("1", [0, 1, 2, 3]),
    ]
    assert ErrorCode(driver.streams_description("other").error_code) is ErrorCode.GROUP_ID_NOT_FOUND


def test_memory_for_topologies_of_streams_groups_is_limited() -> None:
    driver = StreamsDriver(GroupConfig(streams_initial_rebalance_delay_ms=0))
    driver.come("a", topology(*(plain(str(number), "t" * 200) for number in range(100))))
    assert driver.shard.held_bytes() > 100 * 200
