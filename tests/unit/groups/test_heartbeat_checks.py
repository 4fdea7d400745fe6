"""Compares the checks of heartbeat requests with tables of their rules, for all combinations of the fields."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import pytest

from penstock.groups.config import GroupConfig
from penstock.groups.consumer import heartbeat as consumer_heartbeat
from penstock.groups.shard import GroupShard
from penstock.groups.share import heartbeat as share_heartbeat
from penstock.groups.streams import checks
from penstock.groups.streams.checks import MAX_MEMBER_CHARACTERS, MAX_TOPICS
from penstock.groups.streams.topology import from_request
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from penstock.protocol.messages.api_76_share_group_heartbeat import ShareGroupHeartbeatRequest
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)


def refusal(check: Callable[..., Any], *given: Any) -> ErrorCode:
    """Returns the error with which the check refuses the given request; NONE if it accepts it."""
    try:
        check(*given)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


# --- streams groups

TASKS = [TaskIds(subtopology_id="0", partitions=[0])]
PLAIN = Topology(epoch=0, subtopologies=[Subtopology(subtopology_id="0", source_topics=["t"])])
PATTERN = Topology(
    epoch=0,
    subtopologies=[
        Subtopology(subtopology_id="0", source_topics=["t"]),
        Subtopology(subtopology_id="1", source_topic_regex=["t.*"]),
    ],
)


def is_valid_streams_heartbeat(request: StreamsGroupHeartbeatRequest) -> bool:
    joins = request.member_epoch == 0
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    return (
        bool(request.member_id)
        and bool(request.group_id)
        and request.rack_id != ""
        and request.instance_id is None
        and request.task_offsets is None
        and request.task_end_offsets is None
        and not request.warmup_tasks
        and request.topology is not PATTERN
        and request.member_epoch >= -1
        and (request.topology is not None) == joins
        and (not joins or request.rebalance_timeout_ms >= 0)
        and (tasks == ([], [], []) if joins else len({each is None for each in tasks}) == 1)
    )


STREAMS_FIELDS: dict[str, list[Any]] = {
    "member_id": ["m", ""],
    "group_id": ["g", ""],
    "rack_id": [None, "r", ""],
    "instance_id": [None, "i"],
    "task_offsets": [None, [TaskOffset(subtopology_id="0")]],
    "task_end_offsets": [None, []],
    "rebalance_timeout_ms": [-1, 0, 5],
    "topology": [None, PLAIN, PATTERN],
    "active_tasks": [None, [], TASKS],
    "standby_tasks": [None, [], TASKS],
    "warmup_tasks": [None, [], TASKS],
}


def variants(fields: dict[str, list[Any]], *defaults: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the defaults with any two fields changed to any of their values."""
    return [
        {**default, first: one, second: other}
        for default in defaults
        for first, second in product(fields, fields)
        for one, other in product(fields[first], fields[second])
    ]


@pytest.mark.parametrize("epoch", [-3, -2, -1, 0, 1])
def test_streams_heartbeat_is_refused_exactly_if_one_of_its_fields_is_wrong(epoch: int) -> None:
    lists: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    base = {"member_id": "m", "group_id": "g", "rebalance_timeout_ms": 5}
    defaults = [{**base, **lists, "topology": PLAIN}, {**base, **lists}, base]
    seen = set()
    for fields in variants(STREAMS_FIELDS, *defaults):
        request = StreamsGroupHeartbeatRequest(member_epoch=epoch, **fields)
        valid = is_valid_streams_heartbeat(request)
        expected = ErrorCode.NONE if valid else ErrorCode.INVALID_REQUEST
        assert refusal(checks.check_request, request) is expected, fields
        seen.add(valid)
    assert seen == ({True, False} if epoch >= -1 else {False})


@pytest.mark.parametrize(("place", "topic"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_partition_count_of_any_changelog_topic_is_refused(place: int, topic: int) -> None:
    topics = [[TopicInfo(name="a"), TopicInfo(name="b")], [TopicInfo(name="c"), TopicInfo(name="d")]]
    given = Topology(
        epoch=0,
        subtopologies=[
            Subtopology(subtopology_id=str(number), source_topics=["t"], state_changelog_topics=some)
            for number, some in enumerate(topics)
        ],
    )
    request = StreamsGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        rebalance_timeout_ms=1,
        topology=given,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )
    checks.check_request(request)
    topics[place][topic].partitions = 1
    assert refusal(checks.check_request, request) is ErrorCode.STREAMS_INVALID_TOPOLOGY


def filled(part: str, count: int) -> Topology:
    """Returns a topology of two subtopologies with this many entries, most of them in one part of the second one."""
    left = count - 2
    config = [KeyValue(key=str(number), value="") for number in range(left - 1)]
    parts: dict[str, dict[str, Any]] = {
        "sources": {"source_topics": ["t"] * left},
        "sinks": {"repartition_sink_topics": ["t"] * left},
        "repartitions": {"repartition_source_topics": [TopicInfo(name="t")] * left},
        "changelogs": {"state_changelog_topics": [TopicInfo(name="t")] * left},
        "configs": {"state_changelog_topics": [TopicInfo(name="t", topic_configs=config)]},
        "repartition configs": {"repartition_source_topics": [TopicInfo(name="t", topic_configs=config)]},
        "groups": {"copartition_groups": [CopartitionGroup()] * left},
        "group sources": {"copartition_groups": [CopartitionGroup(source_topics=[0] * (left - 1))]},
        "group repartitions": {"copartition_groups": [CopartitionGroup(repartition_source_topics=[0] * (left - 1))]},
    }
    second = Subtopology(subtopology_id="1", **parts[part])
    return Topology(epoch=0, subtopologies=[Subtopology(subtopology_id="0"), second])


@pytest.mark.parametrize(
    "part",
    [
        *("sources", "sinks", "repartitions", "changelogs", "configs"),
        *("repartition configs", "groups", "group sources", "group repartitions"),
    ],
)
def test_entries_of_every_part_of_a_topology_count_towards_its_limit(part: str) -> None:
    for count, code in ((MAX_TOPICS, ErrorCode.NONE), (MAX_TOPICS + 1, ErrorCode.STREAMS_INVALID_TOPOLOGY)):
        request = StreamsGroupHeartbeatRequest(topology=filled(part, count))
        assert refusal(checks.check_size, request) is code


@pytest.mark.parametrize("part", ["member_id", "rack_id", "process_id", "endpoint", "key", "value", "tags"])
def test_texts_of_a_streams_member_count_towards_their_limit(part: str) -> None:
    for count, code in (
        (MAX_MEMBER_CHARACTERS, ErrorCode.NONE),
        (MAX_MEMBER_CHARACTERS + 1, ErrorCode.INVALID_REQUEST),
    ):
        text = "x" * (count - 1)
        fields: dict[str, Any] = {"member_id": "m", part: text}
        if part == "member_id":
            fields = {"member_id": text + "m"}
        elif part == "endpoint":
            fields = {"member_id": "m", "user_endpoint": Endpoint(host=text, port=1)}
        elif part in ("key", "value"):
            tag = KeyValue(key="", value="")
            setattr(tag, part, text[2:])
            fields = {"member_id": "m", "client_tags": [tag]}
        elif part == "tags":
            odd = [KeyValue(key="k", value="")] if (count - 1) % 2 else []
            tags = [KeyValue(key="", value="")] * ((count - 1 - 3 * len(odd)) // 2)
            fields = {"member_id": "m", "client_tags": tags + odd}
        request = StreamsGroupHeartbeatRequest(**fields)
        assert refusal(checks.check_size, request) is code, count


def test_indexes_of_a_copartition_group_name_topics_of_its_subtopology() -> None:
    for sources, repartitions, source, repartition in product(range(3), range(3), range(-1, 3), range(-1, 3)):
        group = CopartitionGroup(source_topics=[source], repartition_source_topics=[repartition])
        given = Subtopology(
            subtopology_id="0",
            source_topics=["s"] * sources,
            repartition_source_topics=[TopicInfo(name="r")] * repartitions,
            copartition_groups=[CopartitionGroup(), group],
        )
        fits = source in range(sources) and repartition in range(repartitions)
        expected = ErrorCode.NONE if fits else ErrorCode.STREAMS_INVALID_TOPOLOGY
        found = refusal(from_request, Topology(epoch=0, subtopologies=[given]))
        assert found is expected


# --- consumer groups

CONSUMER_FIELDS: dict[str, list[Any]] = {
    "member_id": ["m", ""],
    "group_id": ["g", ""],
    "instance_id": [None, "i", ""],
    "rack_id": [None, "r", ""],
    "rebalance_timeout_ms": [-1, 0, 5],
    "topic_partitions": [None, [], [TopicPartitions(topic_id=bytes(16), partitions=[0])]],
    "subscribed_topic_names": [None, [], ["t"]],
    "subscribed_topic_regex": [None, "t.*"],
    "server_assignor": [None, "range", "uniform", "other"],
}


def expected_for_consumer(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]
) -> ErrorCode:
    joins = request.member_epoch == 0
    has_id = bool(request.member_id) or (version == 0 and joins)
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    valid = (
        has_id
        and bool(request.group_id)
        and request.instance_id != ""
        and request.rack_id != ""
        and (not joins or (request.rebalance_timeout_ms != -1 and request.topic_partitions == [] and subscribes))
        and request.member_epoch >= -2
        and (request.member_epoch != -2 or request.instance_id is not None)
    )
    if not valid:
        return ErrorCode.INVALID_REQUEST
    known = request.server_assignor is None or request.server_assignor in assignors
    return ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_ASSIGNOR


@pytest.mark.parametrize("assignors", [("range", "uniform"), ("uniform",)])
@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("epoch", [-3, -2, -1, 0, 1])
def test_consumer_heartbeat_is_refused_exactly_if_one_of_its_fields_is_wrong(
    epoch: int, version: int, assignors: tuple[str, ...]
) -> None:
    turn = GroupShard(GroupConfig(consumer_assignors=assignors), Random(1)).turn(0, 0)
    base = {"member_id": "m", "group_id": "g"}
    joining = {"rebalance_timeout_ms": 5, "topic_partitions": [], "subscribed_topic_names": ["t"]}
    for fields in variants(CONSUMER_FIELDS, {**base, **joining}, base):
        request = ConsumerGroupHeartbeatRequest(member_epoch=epoch, **fields)
        expected = expected_for_consumer(request, version, assignors)
        found = refusal(consumer_heartbeat.check_request, turn, request, version)
        assert found is expected, fields


# --- share groups

SHARE_FIELDS: dict[str, list[Any]] = {
    "member_id": ["m", ""],
    "group_id": ["g", ""],
    "rack_id": [None, "r", ""],
    "subscribed_topic_names": [None, [], ["t"]],
}


@pytest.mark.parametrize("epoch", [-3, -2, -1, 0, 1])
def test_share_heartbeat_is_refused_exactly_if_one_of_its_fields_is_wrong(epoch: int) -> None:
    base = {"member_id": "m", "group_id": "g"}
    for fields in variants(SHARE_FIELDS, base, {**base, "subscribed_topic_names": ["t"]}):
        request = ShareGroupHeartbeatRequest(member_epoch=epoch, **fields)
        valid = (
            bool(request.member_id)
            and bool(request.group_id)
            and request.rack_id != ""
            and epoch >= -1
            and (epoch != 0 or bool(request.subscribed_topic_names))
        )
        expected = ErrorCode.NONE if valid else ErrorCode.INVALID_REQUEST
        assert refusal(share_heartbeat.check_request, request) is expected, fields
