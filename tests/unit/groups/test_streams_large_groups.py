"""Tests streams groups with many tasks: the assignment is computed in steps, and limits do not harm running members."""

from __future__ import annotations

from dataclasses import replace

import pytest
from consumer_driver import image_of
from streams_driver import EAGER, StreamsDriver, code, listed, plain, stateful, statuses, topology

from penstock.groups.streams import topics
from penstock.groups.streams.assignor import STEP_TASKS
from penstock.groups.streams.checks import MAX_MEMBER_CHARACTERS, MAX_TOPICS, check_size
from penstock.groups.streams.target import on_next_step
from penstock.groups.streams.topics import MAX_TASKS, Status
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    Endpoint,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)

MANY = 3 * STEP_TASKS


def test_heartbeats_are_served_between_the_steps_of_a_large_assignment() -> None:
    driver = StreamsDriver(topics={"t": MANY})
    joined = driver.come("a")
    assert (statuses(joined), listed(joined.active_tasks)) == ([Status.ASSIGNMENT_DELAYED], {})
    group, steps = driver.group, 0
    while group.computing is not None:
        assert driver.stay("a").active_tasks is None, "a heartbeat between two steps"
        driver.run(lambda turn: on_next_step(turn, group))
        steps += 1
    assert steps >= MANY // STEP_TASKS
    response = driver.stay("a")
    assert (statuses(response), listed(response.active_tasks)) == ([], {"0": list(range(MANY))})
    assert driver.reload().shard.remembered() == driver.shard.remembered()


def test_joins_and_leaves_during_a_large_assignment_take_effect_after_it() -> None:
    driver = StreamsDriver(topics={"t": MANY})
    driver.come("a")
    driver.come("b")
    driver.stream_beat("a", -1)
    driver.advance(1)
    assert driver.group.computing is None
    assert "a" not in driver.group.target
    driver.stay("b")
    driver.advance(1)
    assert listed(driver.stay("b").active_tasks) == {"0": list(range(MANY))}


def test_join_whose_records_are_refused_does_not_stop_a_large_assignment() -> None:
    driver = StreamsDriver(topics={"t": MANY})
    driver.come("a")
    driver.advance(1)
    driver.refuse_records = True
    driver.come("b")
    driver.refuse_records = False
    driver.advance(1)
    assert driver.group.assignment_epoch == driver.group.epoch
    assert listed(driver.stay("a").active_tasks) == {"0": list(range(MANY))}


def test_large_assignment_gives_no_tasks_if_its_topics_are_deleted_meanwhile() -> None:
    driver = StreamsDriver(topics={"t": MANY})
    driver.come("a")
    driver.see({})
    assert statuses(driver.stay("a")) == [Status.MISSING_SOURCE_TOPICS]
    driver.advance(1)
    assert driver.group.target["a"] == {}


def grown(driver: StreamsDriver, **counts: int) -> None:
    driver.shard.see(image_of(counts, version=driver.shard.image.version + 1))


def test_running_streams_members_keep_their_tasks_when_a_source_topic_gets_too_many_partitions() -> None:
    driver = StreamsDriver()
    driver.come("a")
    grown(driver, t=MAX_TASKS + 1)
    for member in ("a", "b"):
        response = driver.stay(member) if member == "a" else driver.come(member)
        assert code(response) is ErrorCode.NONE
        assert statuses(response) == [Status.ASSIGNMENT_DELAYED]
        assert response.status is not None
        assert f"{MAX_TASKS + 1} tasks" in response.status[0].status_detail
    driver.settle()
    assert {key: len(each.assigned) for key, each in driver.group.members.items()} == {"a": 1, "b": 1}
    held = sorted(index for each in driver.group.members.values() for some in each.assigned.values() for index in some)
    assert held == [0, 1, 2, 3]
    other = driver.reload()
    assert statuses(other.stay("a")) == [Status.ASSIGNMENT_DELAYED], "also after a change of coordinator"
    assert len(other.group.target["a"]) == 1


def test_stateful_streams_group_keeps_its_tasks_when_a_source_topic_gets_too_many_partitions() -> None:
    driver = StreamsDriver(topics={"t": 4, "g-changelog": 4})
    driver.come("a", stateful())
    driver.see({"t": MAX_TASKS + 1, "g-changelog": 4})
    assert statuses(driver.stay("a")) == [Status.ASSIGNMENT_DELAYED]
    assert driver.group.state == "Stable"


def test_streams_group_without_tasks_gets_an_error_status_if_its_topic_has_too_many_partitions() -> None:
    driver = StreamsDriver(topics={"u": 1})
    driver.come("a")
    driver.see({"t": MAX_TASKS + 1})
    assert statuses(driver.stay("a")) == [Status.INCORRECTLY_PARTITIONED_TOPICS]
    assert code(driver.come("b", group_id="new")) is ErrorCode.STREAMS_INVALID_TOPOLOGY, "a new group is refused"


def test_topology_that_reads_too_many_partitions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_PARTITIONS", 9)
    driver = StreamsDriver(replace(EAGER), {"t": 5, "u": 5})
    reading = plain()
    reading.source_topics = ["t", "u"]
    assert code(driver.come("a", topology(reading))) is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_endpoint_information_lists_only_existing_partitions_of_each_topic() -> None:
    driver = StreamsDriver(topics={"t": 4, "u": 2})
    reading = plain()
    reading.source_topics = ["t", "u"]
    response = driver.come("a", topology(reading), user_endpoint=Endpoint(host="one", port=1))
    found = driver.stay("a", endpoint_information_epoch=-1).partitions_by_user_endpoint
    assert response.error_code == 0
    assert found is not None
    assert {each.topic: each.partitions for each in found[0].active_partitions} == {"t": [0, 1, 2, 3], "u": [0, 1]}


def test_number_of_topics_of_a_topology_is_limited() -> None:
    def request(count: int) -> StreamsGroupHeartbeatRequest:
        sources = [f"t{number}" for number in range(count - 1)]  # the subtopology counts too
        only = Subtopology(subtopology_id="0", source_topics=sources)
        return StreamsGroupHeartbeatRequest(topology=Topology(epoch=0, subtopologies=[only]))

    check_size(request(MAX_TOPICS))
    with pytest.raises(KafkaError) as refused:
        check_size(request(MAX_TOPICS + 1))
    assert refused.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_streams_heartbeat_with_too_long_member_fields_is_refused() -> None:
    check_size(StreamsGroupHeartbeatRequest(member_id="m", rack_id="r" * (MAX_MEMBER_CHARACTERS - 1)))
    with pytest.raises(KafkaError) as refused:
        check_size(StreamsGroupHeartbeatRequest(member_id="m", rack_id="r" * MAX_MEMBER_CHARACTERS))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
