"""Compares who may commit, fetch and delete offsets of each kind of group with a plain table of the rules.

Requests are decided in turns that are thrown away, so one coordinator serves all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
from consumer_driver import topic_id
from group_driver import WALL_START_MS
from share_driver import share_beat
from streams_driver import StreamsDriver
from test_group_offsets import subscription

from penstock.groups import offset_requests
from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.config import GroupConfig
from penstock.groups.shard import GroupShard
from penstock.groups.turn import JournalRecord, Turn
from penstock.groups.txn_offsets import commit_in_transaction
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_09_offset_fetch import OffsetFetchRequestGroup
from penstock.protocol.messages.api_28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

CONFIG = GroupConfig(
    initial_rebalance_delay_ms=0,
    consumer_assignment_interval_ms=0,
    share_assignment_interval_ms=0,
    streams_assignment_interval_ms=0,
    streams_initial_rebalance_delay_ms=0,
    offset_metadata_max_bytes=3,
)
Partition = tuple[str, int]
OLD, NEW = ("t", 1), ("t", 3)  # the members hold the first for longer than the second
SHORT, LONG = "123", "1234"


@dataclass
class Known:
    """Describes a group for the table: its kind, and the id and epoch of a member if it has one."""

    kind: str
    member: str = ""
    epoch: int = -1
    is_classic: bool = False  # the member uses the classic protocol
    state: State | None = None


@cache
def coordinator() -> tuple[StreamsDriver, dict[str, Known]]:
    """Returns a coordinator with groups of all kinds and states.

    Members of consumer and streams groups got partitions 0 and 1 of topic t first, and two more with a later epoch.
    """
    driver = StreamsDriver(CONFIG, {"t": 2, "u": 2})
    known = {"missing": Known("missing")}
    for state in State:
        [member] = driver.stable(group=f"classic {state}", protocols=subscription("t"))
        group = driver.shard.groups[f"classic {state}"]
        assert isinstance(group, ClassicGroup)
        if state is State.EMPTY:
            driver.leave(member, group=group.group_id)
        group.state = state
        known[group.group_id] = Known("classic", member, group.generation, True, state)
    first = driver.enter("m", "t", group_id="consumer").member_epoch
    epoch = driver.come("m", group_id="streams").member_epoch
    driver.enter("m", "t", group_id="mixed")
    joined = driver.join(group="mixed", protocols=subscription("t")).joined
    driver.enter("m", "t", group_id="empty consumer")
    driver.beat("m", -1, group_id="empty consumer")
    driver.come("m", group_id="empty streams")
    driver.stream_beat("m", -1, group_id="empty streams")
    for name in ("share", "empty share"):
        share_beat(driver, "m", 0, group_id=name, subscribed_topic_names=["t"])
    share_beat(driver, "m", -1, group_id="empty share")
    known.update({f"empty {kind}": Known(kind) for kind in ("consumer", "streams", "share")})
    driver.see({"t": 4, "u": 2})
    known["consumer"] = Known("consumer", "m", driver.beat("m", first, group_id="consumer").member_epoch)
    answer = driver.stream_beat("m", epoch, group_id="streams", active_tasks=[], standby_tasks=[], warmup_tasks=[])
    known["streams"] = Known("streams", "m", answer.member_epoch)
    known["mixed"] = Known("consumer", joined.member_id, joined.generation_id, True)
    known["share"] = Known("share", "m")
    return driver, known


GROUPS = [
    "missing",
    *(f"classic {state}" for state in State),
    *("consumer", "mixed", "streams", "share"),
    *("empty consumer", "empty streams", "empty share"),
]


def since(group: str, partition: Partition) -> int | None:
    """Returns the member epoch in which the member of the group got the partition; None if it does not hold it."""
    driver, known = coordinator()
    member: Any = driver.shard.groups[group].members[known[group].member]
    name, index = partition
    found = [
        epochs[index]
        for key, epochs in member.assigned.items()
        if name == "t" and index in epochs and (key == topic_id("t") or key[1:] == ("0",))
    ]
    return found[0] if found else None


def by_epoch(group: str, epoch: int, parts: dict[Partition, str], refusal: ErrorCode) -> ErrorCode:
    """Returns the answer to a member's commit with this epoch (KIP-1251)."""
    current = coordinator()[1][group].epoch
    if epoch == current:
        return ErrorCode.NONE
    if epoch > current:
        return refusal
    held = [since(group, partition) for partition, metadata in parts.items() if metadata != LONG]
    return ErrorCode.NONE if all(each is not None and each <= epoch for each in held) else refusal


def expected(
    group: str, member: str, instance: str | None, epoch: int, version: int, parts: dict[Partition, str], txn: bool
) -> ErrorCode:
    known = coordinator()[1][group]
    unnamed = txn and epoch == -1 and not member and instance is None
    found = ErrorCode.NONE
    if known.kind == "share":
        found = ErrorCode.GROUP_ID_NOT_FOUND
    elif known.kind == "missing":
        if epoch >= 0:
            is_new = version >= 9 and not txn
            found = ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION
    elif known.kind == "classic":
        found = expected_classic(known, member, instance, epoch, txn)
    elif (epoch < 0 and not known.member) or unnamed:
        found = ErrorCode.NONE
    elif not known.member or member != known.member:
        found = ErrorCode.UNKNOWN_MEMBER_ID
    elif not txn and version < 9 and not known.is_classic:
        found = ErrorCode.UNSUPPORTED_VERSION
    else:
        generations = txn or known.is_classic
        refusal = ErrorCode.ILLEGAL_GENERATION if generations else ErrorCode.STALE_MEMBER_EPOCH
        found = by_epoch(group, epoch, parts, refusal)
    return found


def expected_classic(known: Known, member: str, instance: str | None, epoch: int, txn: bool) -> ErrorCode:
    if known.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if epoch < 0 and known.state is State.EMPTY:
        return ErrorCode.NONE
    if epoch < 0 and not member and instance is None:
        return ErrorCode.NONE if txn else ErrorCode.UNKNOWN_MEMBER_ID
    if instance is not None or member != known.member or known.state is State.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch != known.epoch:
        return ErrorCode.ILLEGAL_GENERATION
    waits = known.state is State.COMPLETING_REBALANCE and not txn
    return ErrorCode.REBALANCE_IN_PROGRESS if waits else ErrorCode.NONE


PARTS: list[dict[Partition, str]] = [
    {OLD: SHORT},
    {NEW: SHORT},
    {("u", 0): SHORT},
    {OLD: SHORT, ("t", 0): SHORT},
    {OLD: SHORT, NEW: SHORT},
    {OLD: SHORT, ("u", 1): SHORT},
    {OLD: SHORT, NEW: LONG},
    {NEW: LONG, OLD: LONG},
]


def indexes(parts: dict[Partition, str], topic: str) -> list[tuple[int, str]]:
    return [(index, metadata) for (name, index), metadata in parts.items() if name == topic]


def turn_of(shard: GroupShard) -> Turn:
    return shard.turn(1, WALL_START_MS + 1)


def commit(
    group: str, member: str, instance: str | None, epoch: int, version: int, parts: dict[Partition, str]
) -> tuple[dict[Partition, ErrorCode], list[JournalRecord]]:
    shard = coordinator()[0].shard
    turn = turn_of(shard)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member,
        group_instance_id=instance,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata=metadata)
                    for index, metadata in indexes(parts, topic)
                ],
            )
            for topic in sorted({name for name, _ in parts})
        ],
    )
    response = offset_requests.commit(shard, turn, request, version)
    codes = {
        (topic.name, each.partition_index): ErrorCode(each.error_code)
        for topic in response.topics
        for each in topic.partitions
    }
    return codes, turn.records


def commit_transactionally(
    group: str, member: str, instance: str | None, epoch: int, parts: dict[Partition, str]
) -> tuple[dict[Partition, ErrorCode], list[JournalRecord]]:
    shard = coordinator()[0].shard
    turn = turn_of(shard)
    request = TxnOffsetCommitRequest(
        group_id=group,
        producer_id=5,
        generation_id=epoch,
        member_id=member,
        group_instance_id=instance,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=index, committed_offset=7, committed_metadata=metadata
                    )
                    for index, metadata in indexes(parts, topic)
                ],
            )
            for topic in sorted({name for name, _ in parts})
        ],
    )
    return commit_in_transaction(shard, turn, request), turn.records


@pytest.mark.parametrize("group", ["consumer", "streams"])
def test_members_of_the_table_hold_partitions_since_different_epochs(group: str) -> None:
    old, new = since(group, OLD), since(group, NEW)
    assert old is not None
    assert new is not None
    assert old < new == coordinator()[1][group].epoch
    assert since(group, ("u", 0)) is None


@pytest.mark.parametrize("txn", [False, True])
@pytest.mark.parametrize("group", GROUPS)
def test_commit_is_accepted_or_refused_as_the_table_says(group: str, txn: bool) -> None:
    known = coordinator()[1][group]
    epochs = sorted({-2, -1, 0, known.epoch - 1, known.epoch, known.epoch + 1})
    for member, instance, epoch, version, parts in product(
        sorted({"", known.member, "ghost"}), [None, "i"], epochs, [8, 9], PARTS
    ):
        code = expected(group, member, instance, epoch, version, parts, txn)
        each = {
            partition: ErrorCode.OFFSET_METADATA_TOO_LARGE if code is ErrorCode.NONE and metadata == LONG else code
            for partition, metadata in parts.items()
        }
        codes, records = (
            commit_transactionally(group, member, instance, epoch, parts)
            if txn
            else commit(group, member, instance, epoch, version, parts)
        )
        assert codes == each, (member, instance, epoch, version, parts)
        written = {(record.key.topic, record.key.partition): record.value.offset for record in records if record.value}
        assert written == {partition: 7 for partition, answer in each.items() if answer is ErrorCode.NONE}


def answer_to(shard: GroupShard, request: OffsetFetchRequestGroup) -> ErrorCode:
    """Returns the answer to a fetch; the answer to the question for all topics of the group is the same."""
    answers = []
    for ask in (offset_requests.topics_of, partial(offset_requests.fetch, require_stable=False)):
        try:
            ask(shard, request)
            answers.append(ErrorCode.NONE)
        except KafkaError as error:
            answers.append(error.code)
    assert answers[0] is answers[1]
    return answers[0]


@pytest.mark.parametrize("group", GROUPS)
def test_offset_fetch_is_accepted_or_refused_as_the_table_says(group: str) -> None:
    shard = coordinator()[0].shard
    known = coordinator()[1][group]
    for member, epoch in product([None, "", known.member, "ghost"], [-1, 0, known.epoch - 1, known.epoch]):
        request = OffsetFetchRequestGroup(group_id=group, member_id=member, member_epoch=epoch, topics=None)
        code = ErrorCode.NONE
        if known.kind == "share":
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif known.kind in ("consumer", "streams") and not (member is None and epoch < 0):
            if not known.member or member != known.member:
                code = ErrorCode.UNKNOWN_MEMBER_ID
            elif epoch != known.epoch:
                code = ErrorCode.ILLEGAL_GENERATION if known.is_classic else ErrorCode.STALE_MEMBER_EPOCH
        assert answer_to(shard, request) is code, (member, epoch)


@pytest.mark.parametrize("group", GROUPS)
def test_offsets_are_deleted_only_for_topics_that_no_member_reads(group: str) -> None:
    shard = coordinator()[0].shard
    known = coordinator()[1][group]
    partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1)]
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[OffsetDeleteRequestTopic(name=name, partitions=partitions) for name in ("u", "t")],
    )
    turn = turn_of(shard)
    response = offset_requests.delete_offsets(shard, turn, request)
    assert not turn.records, "the group has no offsets"
    if known.kind in ("missing", "share") or known.state is State.DEAD:
        assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        return
    reads = bool(known.member) and known.state is not State.EMPTY
    of_t = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if reads else ErrorCode.NONE
    assert response.error_code == ErrorCode.NONE
    assert [(each.name, [part.error_code for part in each.partitions]) for each in response.topics] == [
        ("u", [ErrorCode.NONE] * 2),
        ("t", [of_t] * 2),
    ]
