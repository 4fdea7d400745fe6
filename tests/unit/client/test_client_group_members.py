"""Tests how assignments of classic group members are read. The group leader wrote them, and they may be malformed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client import group_members
from penstock.client.group_members import Claim, Described, Owner, claims_in, describe_members
from penstock.protocol.codec import encode
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, TopicPartition

ASSIGNMENT = ConsumerProtocolAssignment(
    assigned_partitions=[
        TopicPartition(topic="orders", partitions=[2, 0, 7]),
        TopicPartition(topic="Zahlungen-ä", partitions=[]),
        TopicPartition(topic="orders", partitions=[2, -1]),
    ]
)
ANNA = Owner("anna", "reader", "/127.0.0.1", None)
BERT = Owner("bert", "reader", "/127.0.0.1", None)


def written(version: int, assignment: ConsumerProtocolAssignment = ASSIGNMENT) -> bytes:
    return version.to_bytes(2, "big") + encode(assignment, min(version, ConsumerProtocolAssignment.MAX_VERSION))


def claims(assignment: bytes, protocol_type: str = "consumer") -> list[tuple[str, list[int]]]:
    return [(topic, list(partitions)) for topic, partitions in claims_in(protocol_type, assignment)]


def described(client: Any, named: Iterable[tuple[Owner, Iterable[Claim]]]) -> Described:
    return asyncio.run(describe_members(client, "Stable", named))


class Topics:
    """Answers Metadata requests of `describe_members` for topics with three partitions each."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.asked: list[str] = []

    async def metadata(self, topics: Iterable[str]) -> Any:
        wanted = list(topics)
        self.asked += wanted
        parts = [SimpleNamespace(partition_index=index) for index in range(3)]
        return SimpleNamespace(
            topics=[SimpleNamespace(name=each, partitions=parts if each in self.names else []) for each in wanted]
        )


@pytest.mark.parametrize("version", [0, 1, 2, 3, 9])
def test_assignment_of_a_classic_member_is_parsed_in_every_version(version: int) -> None:
    assert claims(written(version)) == [("orders", [2, 0, 7]), ("Zahlungen-ä", []), ("orders", [2, -1])]


def test_assignment_of_a_protocol_type_other_than_consumer_is_not_parsed() -> None:
    assert claims(written(0), "connect") == []


def test_malformed_assignment_of_a_group_member_is_parsed_up_to_its_first_malformed_byte() -> None:
    whole = written(0)
    for length in range(len(whole)):
        assert len(claims(whole[:length])) <= 3
    assert claims(b"\0\0" + b"\x7f\xff\xff\xff") == []
    assert claims(b"\0\0" + b"\xff\xff\xff\xff" + bytes(100)) == []
    assert claims(b"\0\0\0\0\0\1" + b"\0\1\xff" + bytes(4)) == []
    backwards = b"\0\0" + b"\x7f\xff\xff\xff" + b"\0\1a" + b"\xff\xff\xff\xff"
    assert claims(backwards) == [("a", [])]


def test_group_description_lists_only_existing_partitions_of_a_member() -> None:
    client: Any = Topics("orders")
    named = [(BERT, claims_in("consumer", written(0))), (ANNA, [("orders", [1]), ("invented", [0])])]
    found = described(client, named)
    assert found.members == {ANNA: [("orders", 1)], BERT: [("orders", 0), ("orders", 2)]}
    assert list(found.members) == [ANNA, BERT]
    assert found.owners == {("orders", 0): BERT, ("orders", 1): ANNA, ("orders", 2): BERT}
    assert not found.truncated


def test_group_description_requests_no_metadata_for_topic_names_that_are_too_long() -> None:
    client: Any = Topics("orders")
    found = described(client, [(ANNA, [("x" * 65_000, [0]), ("orders", [1])])])
    assert client.asked == ["orders"]
    assert found.members == {ANNA: [("orders", 1)]}


def test_group_description_lists_a_limited_number_of_partitions_per_member_and_per_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_members, "MEMBER_ITEMS_MAX", 4)
    monkeypatch.setattr(group_members, "GROUP_ITEMS_MAX", 7)
    client: Any = Topics("orders")
    exactly = described(client, [(ANNA, [("orders", [0, 1, 2])])])
    assert (exactly.members[ANNA], exactly.truncated) == ([("orders", 0), ("orders", 1), ("orders", 2)], False)
    longer = described(client, [(ANNA, [("orders", [9, 9, 0, 1])])])
    assert (longer.members[ANNA], longer.truncated) == ([("orders", 0)], True)
    both = described(client, [(ANNA, [("orders", [9, 9, 0])]), (BERT, [("orders", [0, 1, 2])])])
    assert both.members == {ANNA: [("orders", 0)], BERT: [("orders", 0), ("orders", 1)]}
    assert both.truncated


def test_group_description_requests_metadata_for_a_limited_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_members, "TOPICS_MAX", 3)
    monkeypatch.setattr(group_members, "TOPICS_AT_ONCE", 2)
    client: Any = Topics("t0", "t9")
    named = [(ANNA, [(f"t{number}", [0]) for number in range(10)]), (BERT, [("t0", [1])])]
    found = described(client, named)
    assert client.asked == ["t0", "t1", "t2"]
    assert found.members == {ANNA: [("t0", 0)], BERT: [("t0", 1)]}
    assert found.truncated
