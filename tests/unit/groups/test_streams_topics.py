"""Tests the tasks and internal topics of a topology: partition counts, missing topics and copartitioning."""

from __future__ import annotations

import time

import pytest
from streams_driver import counting, internal, plain, topology

from penstock.groups.streams.topics import MAX_TASKS, ConfiguredTopology, InternalTopic, Problem, Status, configure
from penstock.groups.streams.topology import from_request
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_88_streams_group_heartbeat import CopartitionGroup, Subtopology, Topology


def configured(given: Topology, **topics: int) -> ConfiguredTopology:
    existing = {name.replace("_", "-"): count for name, count in topics.items()}
    return configure(from_request(given), existing.get)


def problem(given: Topology, **topics: int) -> Problem:
    found = configured(given, **topics).problem
    assert found is not None
    return found


def test_a_subtopology_has_one_task_for_each_partition_of_its_largest_topic() -> None:
    given = topology(Subtopology(subtopology_id="0", source_topics=["a", "b"]))
    found = configured(given, a=2, b=5)
    assert found.is_ready
    assert found.subtopologies["0"].tasks == 5


def test_repartition_and_changelog_topics_get_the_partition_count_of_the_source_topic() -> None:
    found = configured(counting(), t=6)
    assert found.missing == {
        "g-repartition": InternalTopic("g-repartition", 6, 0, {"cleanup.policy": "delete"}),
        "g-changelog": InternalTopic("g-changelog", 6, 0, {"cleanup.policy": "compact"}),
    }
    assert found.problem == (
        Status.MISSING_INTERNAL_TOPICS,
        "Internal topics are missing: g-changelog, g-repartition",
    )
    assert {name: each.tasks for name, each in found.subtopologies.items()} == {"0": 6, "1": 6}


def test_a_topology_is_ready_once_its_internal_topics_exist() -> None:
    found = configured(counting(), t=6, g_repartition=6, g_changelog=6)
    assert found.is_ready
    assert not found.missing


def test_error_for_a_missing_source_topic_contains_its_name() -> None:
    given = topology(*(plain(name, name) for name in "abcde"))
    assert problem(given, a=1) == (
        Status.MISSING_SOURCE_TOPICS,
        "Source topics b, c, d and 1 additional topics are missing.",
    )


def test_existing_internal_topic_with_another_partition_count_is_refused() -> None:
    assert problem(counting(), t=6, g_repartition=6, g_changelog=4) == (
        Status.INCORRECTLY_PARTITIONED_TOPICS,
        "Existing topic g-changelog has different number of partitions: expected 6, found 4",
    )


def test_copartitioned_source_topics_need_the_same_partition_count() -> None:
    given = topology(
        Subtopology(
            subtopology_id="0", source_topics=["a", "b"], copartition_groups=[CopartitionGroup(source_topics=[0, 1])]
        )
    )
    assert configured(given, a=3, b=3).is_ready
    assert problem(given, a=3, b=4).status is Status.INCORRECTLY_PARTITIONED_TOPICS


def joining(partitions: int) -> Topology:
    """Returns a topology that joins a source topic with a repartition topic.

    `partitions` is the partition count that the topology sets for the repartition topic; 0 means that the group
    decides.
    """
    return topology(
        Subtopology(subtopology_id="0", source_topics=["a"], repartition_sink_topics=["r"]),
        Subtopology(
            subtopology_id="1",
            source_topics=["b"],
            repartition_source_topics=[internal("r", partitions)],
            copartition_groups=[CopartitionGroup(source_topics=[0], repartition_source_topics=[0])],
        ),
    )


def test_repartition_topic_gets_the_partition_count_of_the_topic_that_it_is_joined_with() -> None:
    assert configured(joining(0), a=2, b=7).missing["r"].partitions == 7


def test_repartition_topic_with_another_partition_count_than_its_join_partner_is_refused() -> None:
    assert configured(joining(7), a=2, b=7).missing["r"].partitions == 7
    assert problem(joining(5), a=2, b=7).status is Status.INCORRECTLY_PARTITIONED_TOPICS


def test_copartitioned_repartition_topics_get_the_largest_partition_count() -> None:
    given = topology(
        Subtopology(subtopology_id="0", source_topics=["a"], repartition_sink_topics=["r"]),
        Subtopology(subtopology_id="1", source_topics=["b"], repartition_sink_topics=["s"]),
        Subtopology(
            subtopology_id="2",
            repartition_source_topics=[internal("r"), internal("s")],
            copartition_groups=[CopartitionGroup(repartition_source_topics=[0, 1])],
        ),
    )
    missing = configured(given, a=2, b=7).missing
    assert (missing["r"].partitions, missing["s"].partitions) == (7, 7)


def test_partition_counts_of_chained_repartition_topics_do_not_depend_on_the_order_of_subtopologies() -> None:
    links = [
        Subtopology(
            subtopology_id=f"{9 - number}",
            repartition_source_topics=[internal(f"r{number}")],
            repartition_sink_topics=[f"r{number + 1}"],
        )
        for number in range(5)
    ]
    first = Subtopology(subtopology_id="a", source_topics=["t"], repartition_sink_topics=["r0"])
    last = Subtopology(subtopology_id="0", repartition_source_topics=[internal("r5")])
    found = configured(topology(*links, first, last), t=3)
    assert {topic.partitions for topic in found.missing.values()} == {3}


def test_inconsistent_topology_is_answered_streams_invalid_topology() -> None:
    loop = topology(
        Subtopology(subtopology_id="0", repartition_source_topics=[internal("r")], repartition_sink_topics=["r"])
    )
    unwritten = topology(
        Subtopology(subtopology_id="0", source_topics=["t"], repartition_source_topics=[internal("r")])
    )
    unread = topology(Subtopology(subtopology_id="0", state_changelog_topics=[internal("c")]))
    twice = topology(plain("0"), plain("0"))
    outside = topology(
        Subtopology(subtopology_id="0", source_topics=["t"], copartition_groups=[CopartitionGroup(source_topics=[1])])
    )
    unborn = topology(plain(), epoch=-1)
    for given in (loop, unwritten, unread, twice, outside, unborn):
        with pytest.raises(KafkaError) as refused:
            configured(given, t=1)
        assert refused.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_topology_with_too_many_tasks_is_refused() -> None:
    half = MAX_TASKS // 2
    assert configured(topology(plain("0"), plain("1")), t=half).is_ready
    with pytest.raises(KafkaError, match=f"has {2 * half + 2} tasks") as refused:
        configured(topology(plain("0"), plain("1")), t=half + 1)
    assert refused.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_sizing_of_thousands_of_repartition_topics_takes_little_time() -> None:
    topics = [f"r{number}" for number in range(20_000)]
    writer = Subtopology(subtopology_id="0", source_topics=["t"] * len(topics), repartition_sink_topics=topics)
    reader = Subtopology(
        subtopology_id="1",
        repartition_source_topics=[internal(topic) for topic in topics],
        repartition_sink_topics=["last"],
        copartition_groups=[CopartitionGroup(repartition_source_topics=[0])] * len(topics),
    )
    given = topology(writer, reader, plain("2", "t"))
    started = time.process_time()
    assert {topic.partitions for topic in configured(given, t=2).missing.values()} == {2}
    assert time.process_time() - started < 2, "each topic is looked at some times, not once for each other topic"
