"""Compares committed and pending offsets with a plain list of log records, after every record and marker."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest

from penstock.groups.journal import OffsetKey, encode_record
from penstock.groups.offsets import OFFSET_BYTES, Offsets, size_of
from penstock.groups.turn import JournalRecord
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_09_offset_fetch import OffsetFetchRequestTopics
from penstock.protocol.persisted.group.offset_commit import OffsetCommitKey, OffsetCommitValue
from penstock.protocol.uuid import ZERO_UUID

GROUPS = ("g", "h")
TOPICS = ("t", "u")
INDEXES = (0, 1)
PRODUCERS = (0, 7)
IDS = (ZERO_UUID, b"a" * 16, b"b" * 16)
Slot = tuple[str, int]


class Commit(NamedTuple):
    """Describes one commit for a partition: its place in the log, its offset, its topic id and its metadata."""

    place: int
    offset: int
    topic_id: bytes
    metadata: str


class Model:
    """Keeps for each group, partition and producer (None: not in a transaction) the last commit."""

    def __init__(self) -> None:
        self.commits: dict[tuple[str, Slot, int | None], Commit] = {}

    def put(self, group: str, slot: Slot, producer: int | None, commit: Commit) -> None:
        self.commits[group, slot, producer] = commit

    def erase(self, group: str, slot: Slot) -> None:
        self.commits = {key: each for key, each in self.commits.items() if key[:2] != (group, slot)}

    def end(self, producer: int, commit: bool) -> None:
        ended = {key: each for key, each in self.commits.items() if key[2] == producer}
        for (group, slot, _), each in ended.items():
            del self.commits[group, slot, producer]
            known = self.commits.get((group, slot, None))
            if commit and (known is None or known.place < each.place):
                self.commits[group, slot, None] = each


def slots() -> Iterator[Slot]:
    return ((topic, index) for topic in TOPICS for index in INDEXES)


def ids_of(name: str) -> bytes:
    """Returns the id of the present topic with this name."""
    return {"t": IDS[1], "u": ZERO_UUID}[name]


def is_other(committed: bytes, present: bytes) -> bool:
    return ZERO_UUID not in (committed, present) and committed != present


def check(offsets: Offsets, model: Model) -> None:
    pending = {producer for _, _, producer in model.commits if producer is not None}
    assert set(offsets.pending) == pending, "no empty transaction is kept"
    kept = [offsets.committed, *offsets.pending.values()]
    assert offsets.bytes == sum(size_of(each) for groups in kept for some in groups.values() for each in some.values())
    for group in GROUPS:
        final = {slot: each for (name, slot, who), each in model.commits.items() if name == group and who is None}
        waits = {slot for name, slot, who in model.commits if name == group and who is not None}
        assert (group in offsets.committed) == bool(final)
        assert offsets.count(group) == len(final)
        assert set(offsets.partitions(group)) == set(final) | waits
        for producer in PRODUCERS:
            of_producer = {slot for name, slot, who in model.commits if (name, who) == (group, producer)}
            assert set(offsets.pending.get(producer, {}).get(group, {})) == of_producer
            assert (group in offsets.pending.get(producer, {})) == bool(of_producer)
        for slot in slots():
            assert offsets.has_pending(group, slot) == (slot in waits)
            same = [each.topic_id for key, each in model.commits.items() if key[:2] == (group, slot)]
            assert offsets.topic_ids(group, slot) == set(same)
        check_fetch(offsets, group, final, waits)


def check_fetch(offsets: Offsets, group: str, final: dict[Slot, Commit], waits: set[Slot]) -> None:
    for asked in IDS:
        topics = [OffsetFetchRequestTopics(name=name, topic_id=asked, partition_indexes=[0, 1, 2]) for name in TOPICS]
        for stable in (False, True):
            answer = offsets.fetch(group, topics, stable, ids_of)
            assert [(each.name, each.topic_id) for each in answer.topics] == [(name, asked) for name in TOPICS]
            for topic in answer.topics:
                assert [each.partition_index for each in topic.partitions] == [0, 1, 2]
                for each in topic.partitions:
                    slot = (topic.name, each.partition_index)
                    found = final.get(slot)
                    if found is not None and any(
                        is_other(found.topic_id, other) for other in (asked, ids_of(topic.name))
                    ):
                        found = None
                    unstable = stable and slot in waits
                    found = None if unstable else found
                    assert each.error_code == (ErrorCode.UNSTABLE_OFFSET_COMMIT if unstable else ErrorCode.NONE)
                    shown = (each.committed_offset, each.committed_leader_epoch, each.metadata)
                    wanted = (found.offset, found.offset + 1, found.metadata) if found else (-1, -1, "")
                    assert shown == wanted
    present = {slot for slot, each in final.items() if not is_other(each.topic_id, ids_of(slot[0]))}
    every = offsets.all_topics(group, ids_of)
    assert [each.partition_indexes for each in every] == [sorted(each.partition_indexes) for each in every]
    assert {(each.name, index) for each in every for index in each.partition_indexes} == present
    whole = offsets.fetch(group, None, False, ids_of)
    assert {(each.name, part.partition_index) for each in whole.topics for part in each.partitions} == present


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_offsets_agree_with_the_log_after_every_record_and_marker(seed: int, loaded: bool) -> None:
    """A record is applied as it was decided or, with `loaded`, as it is read from the log."""
    random = Random(seed)
    offsets, model = Offsets(), Model()
    for place in range(50):
        group, slot = random.choice(GROUPS), (random.choice(TOPICS), random.choice(INDEXES))
        key = OffsetCommitKey(group=group, topic=slot[0], partition=slot[1])
        producer = random.choice([None, None, *PRODUCERS])
        match random.randrange(6):
            case 0:
                offsets.apply(key, None, place, -1)
                model.erase(group, slot)
            case 1:
                commit, producer = random.random() < 0.6, random.choice([*PRODUCERS, 99])
                offsets.apply_marker(producer, commit)
                model.end(producer, commit)
            case _:
                given = Commit(place, place * 10, random.choice(IDS), "m" * random.randrange(3))
                value = OffsetCommitValue(
                    offset=given.offset,
                    leader_epoch=given.offset + 1,
                    metadata=given.metadata,
                    commit_timestamp=place,
                    topic_id=given.topic_id,
                )
                written = encode_record(JournalRecord(key, value))[1]
                read_key = OffsetKey(group, *slot) if loaded else key
                offsets.apply(read_key, written if loaded else value, place, -1 if producer is None else producer)
                model.put(group, slot, producer, given)
        check(offsets, model)
        if random.random() < 0.3:
            one = offsets.get(group, slot)
            known = model.commits.get((group, slot, None))
            assert (one and (one.offset, one.log_offset, one.commit_ms)) == (
                known and (known.offset, known.place, known.place)
            )
    for producer in PRODUCERS:
        offsets.apply_marker(producer, True)
        model.end(producer, True)
    check(offsets, model)
    for group in GROUPS:
        offsets.of_group(group)
    assert offsets.bytes == sum(OFFSET_BYTES + len(each.metadata) for each in model.commits.values())
    for group in GROUPS:
        for slot in slots():
            offsets.apply(OffsetCommitKey(group=group, topic=slot[0], partition=slot[1]), None, 99, -1)
    assert (offsets.bytes, offsets.committed, offsets.pending) == (0, {}, {})
