"""Tests when a streams group assigns tasks, and which tasks a group keeps that has grown too large."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from streams_driver import EAGER, StreamsDriver, active, counting, internal, plain, topology

from penstock.groups.streams import target, topics
from penstock.groups.streams.topics import Status, configure
from penstock.groups.streams.topology import from_request
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_88_streams_group_heartbeat import CopartitionGroup, Subtopology


def test_heartbeats_of_a_settled_streams_group_write_no_record() -> None:
    driver = StreamsDriver()
    driver.come("a")
    driver.come("b")
    driver.settle()
    written, assigned_ms = len(driver.journal), driver.group.assignment_ms
    driver.advance(5)
    driver.settle(2)
    assert (len(driver.journal), driver.group.assignment_ms) == (written, assigned_ms)


def test_tasks_are_assigned_when_the_initial_delay_ends_without_another_heartbeat() -> None:
    driver = StreamsDriver(replace(EAGER, streams_initial_rebalance_delay_ms=1_000))
    driver.come("a")
    driver.advance(999)
    driver.come("b")
    group = driver.group
    assert (group.target, group.assignment_epoch < group.epoch) == ({}, True)
    driver.advance(1)
    assert group.assignment_epoch == group.epoch
    assert {name: [len(indexes) for indexes in tasks.values()] for name, tasks in group.target.items()} == {
        "a": [2],
        "b": [2],
    }
    driver.settle()
    assert sorted(index for tasks in active(driver).values() for index in tasks["0"]) == [0, 1, 2, 3]


@pytest.mark.parametrize("standbys", [0, 1])
@pytest.mark.parametrize("tasks", [3, 4, 5])
def test_assignment_is_computed_in_later_steps_only_if_it_has_more_tasks_than_one_step(
    monkeypatch: pytest.MonkeyPatch, standbys: int, tasks: int
) -> None:
    monkeypatch.setattr(target, "STEP_TASKS", 4)
    driver = StreamsDriver(replace(EAGER, streams_standby_replicas=standbys), {"t": tasks})
    driver.come("a")  # has no state, so it has no standby tasks
    assert (driver.group.computing is None) == (tasks <= 4)
    assert (driver.group.assignment_epoch == driver.group.epoch) == (tasks <= 4)
    driver.advance(1)
    driver.settle()
    assert active(driver) == {"a": {"0": list(range(tasks))}}
    assert driver.group.computing is None


def test_running_group_whose_topics_grow_beyond_the_limit_keeps_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is six tasks. Two subtopologies read topics t and u; `former` holds their tasks before the change."""
    monkeypatch.setattr(topics, "MAX_TASKS", 6)
    given = from_request(topology(plain("0", "t"), plain("1", "u")))
    counts = [None, 1, 2, 4, 5]
    formers: list[dict[str, int]] = [{}, {"0": 2}, {"0": 2, "1": 4}, {"0": 3, "1": 1}]
    seen = set()
    for sizes, former in product(product(counts, counts), formers):
        existing = dict(zip("tu", sizes)).get
        found = configure(given, existing, former)
        if None in sizes:
            assert found.problem is not None
            assert found.problem.status is Status.MISSING_SOURCE_TOPICS
            seen.add("missing")
            continue
        now = dict(zip("01", (size or 0 for size in sizes)))
        kept = {name: min(count, former.get(name, count)) for name, count in now.items()}
        tasks = {name: each.tasks for name, each in found.subtopologies.items()}
        if sum(now.values()) <= 6:
            assert (tasks, found.problem, found.notice) == (now, None, None)
            seen.add("all")
        elif sum(kept.values()) <= 6:
            assert (tasks, found.problem) == (kept, None)
            assert found.notice is not None
            seen.add("kept")
        else:
            assert found.problem is not None
            assert found.problem.status is Status.INCORRECTLY_PARTITIONED_TOPICS
            seen.add("refused")
        if sum(now.values()) > 6:
            with pytest.raises(KafkaError):
                configure(given, existing)
    assert seen == {"missing", "all", "kept", "refused"}


def test_topics_of_every_copartition_group_need_the_same_number_of_partitions() -> None:
    groups = [CopartitionGroup(source_topics=[0, 1]), CopartitionGroup(source_topics=[2, 3])]
    both = [
        Subtopology(
            subtopology_id=name, source_topics=[f"{name}{index}" for index in range(4)], copartition_groups=groups
        )
        for name in "ab"
    ]
    given = from_request(topology(*both))
    for sizes in product((1, 2), repeat=8):
        names = [f"{name}{index}" for name in "ab" for index in range(4)]
        found = configure(given, dict(zip(names, sizes)).get)
        pairs = [sizes[first : first + 2] for first in range(0, 8, 2)]
        assert found.is_ready == all(one == other for one, other in pairs), sizes
        if found.problem is not None:
            assert found.problem.status is Status.INCORRECTLY_PARTITIONED_TOPICS


@pytest.mark.parametrize("most", [19, 20, 21])
def test_partitions_of_all_topics_of_a_topology_count_towards_its_limit(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Subtopology 0 reads two topics of 2 and 4 partitions, and has two changelogs; subtopology 1 reads 4 and has one
    changelog of 2 partitions."""
    monkeypatch.setattr(topics, "MAX_PARTITIONS", most)
    changelogs = [internal(f"changelog{number}") for number in range(3)]
    first = Subtopology(subtopology_id="0", source_topics=["t", "u"], state_changelog_topics=changelogs[:2])
    second = Subtopology(subtopology_id="1", source_topics=["v", "w"], state_changelog_topics=changelogs[2:])
    given = from_request(topology(first, second))
    existing = {"t": 2, "u": 4, "v": 2, "w": 2}.get  # 6 and 2 * 4, then 4 and 2
    if most < 20:
        with pytest.raises(KafkaError):
            configure(given, existing)
    else:
        found = configure(given, existing)
        assert {name: each.partitions for name, each in found.missing.items()} == {
            "changelog0": 4,
            "changelog1": 4,
            "changelog2": 2,
        }


def test_running_group_beyond_the_limit_creates_a_missing_internal_topic_with_its_former_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "MAX_TASKS", 6)
    found = configure(from_request(counting()), {"t": 10, "g-changelog": 2}.get, {"0": 2, "1": 2})
    assert {name: each.tasks for name, each in found.subtopologies.items()} == {"0": 2, "1": 2}
    assert {name: each.partitions for name, each in found.missing.items()} == {"g-repartition": 2}
    assert found.problem is not None
    assert found.problem.status is Status.MISSING_INTERNAL_TOPICS
    assert found.notice is not None


def test_every_repartition_topic_with_a_fixed_size_must_match_its_copartitioned_source() -> None:
    for sizes in product((0, 1, 2, 3), repeat=3):
        names = [f"r{index}" for index in range(3)]
        reader = Subtopology(
            subtopology_id="0",
            source_topics=["t"],
            repartition_source_topics=[internal(name, size) for name, size in zip(names, sizes)],
            copartition_groups=[CopartitionGroup(source_topics=[0], repartition_source_topics=[0, 1, 2])],
        )
        writer = Subtopology(subtopology_id="1", source_topics=["u"], repartition_sink_topics=names)
        found = configure(from_request(topology(reader, writer)), {"t": 2, "u": 4}.get)
        assert found.problem is not None
        if set(sizes) <= {0, 2}:
            assert found.problem.status is Status.MISSING_INTERNAL_TOPICS
            assert {name: each.partitions for name, each in found.missing.items()} == dict.fromkeys(names, 2)
        else:
            assert found.problem.status is Status.INCORRECTLY_PARTITIONED_TOPICS
