from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.consumer.assignors import (
    ASSIGNORS,
    Assignment,
    MemberSpec,
    TopicSpec,
    assign_range,
    assign_uniform,
)
from tools.examples import examples

T, U = b"t" * 16, b"u" * 16
TOPICS = [bytes([index]) * 16 for index in range(4)]

topic_specs = st.dictionaries(st.sampled_from(TOPICS), st.builds(TopicSpec, st.integers(1, 12)), max_size=4)
member_specs = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.builds(MemberSpec, st.frozensets(st.sampled_from(TOPICS))),
    min_size=1,
    max_size=8,
)


def sizes(assignment: Assignment) -> list[int]:
    return sorted(sum(map(len, partitions.values())) for partitions in assignment.values())


def moved(before: Assignment, after: Assignment) -> int:
    """Returns how many partitions were taken from members that are in both assignments."""
    return sum(
        len(indexes - after[member].get(topic, frozenset()))
        for member, partitions in before.items()
        if member in after
        for topic, indexes in partitions.items()
    )


def check_owners(members: Mapping[str, MemberSpec], topics: Mapping[bytes, TopicSpec], assignment: Assignment) -> None:
    assert assignment.keys() == members.keys()
    owners: dict[tuple[bytes, int], str] = {}
    for member, partitions in assignment.items():
        for topic, indexes in partitions.items():
            assert topic in members[member].topics
            for index in indexes:
                assert (topic, index) not in owners, "a partition has one owner"
                owners[topic, index] = member
    readable = frozenset().union(*(spec.topics for spec in members.values()))
    assert owners.keys() == {
        (topic, index) for topic, spec in topics.items() if topic in readable for index in range(spec.partitions)
    }


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@settings(deadline=None, max_examples=examples(60))
@given(members=member_specs, topics=topic_specs, later=member_specs)
def test_each_assignor_gives_every_subscribed_partition_exactly_one_owner(
    name: str, members: dict[str, MemberSpec], topics: dict[bytes, TopicSpec], later: dict[str, MemberSpec]
) -> None:
    assign = ASSIGNORS[name]
    first = assign(members, topics, {})
    check_owners(members, topics, first)
    assert assign(members, topics, first) == first, "nothing changed, so nothing moves"
    check_owners(later, topics, assign(later, topics, first))


@settings(deadline=None, max_examples=examples(60))
@given(count=st.integers(1, 9), later=st.integers(1, 9), topics=topic_specs)
def test_uniform_assignor_balances_partitions_and_takes_them_from_remaining_members_only_for_new_members(
    count: int, later: int, topics: dict[bytes, TopicSpec]
) -> None:
    everything = MemberSpec(frozenset(TOPICS))
    before = assign_uniform({f"m{index}": everything for index in range(count)}, topics, {})
    after = assign_uniform({f"m{index}": everything for index in range(later)}, topics, before)
    for assignment in (before, after):
        assert max(sizes(assignment)) - min(sizes(assignment)) <= 1
    if later <= count:
        assert moved(before, after) == 0, "those who stay keep what they have"
    else:
        new = [sum(map(len, after[f"m{index}"].values())) for index in range(count, later)]
        assert moved(before, after) == sum(new), "only what newcomers get is taken away"


def test_uniform_assignor_gives_members_with_different_subscriptions_equally_many_partitions() -> None:
    members = {"a": MemberSpec(frozenset({T, U})), "b": MemberSpec(frozenset({U}))}
    assert sizes(assign_uniform(members, {T: TopicSpec(2), U: TopicSpec(4)}, {})) == [3, 3]
    lopsided: Assignment = {"a": {T: frozenset({0, 1}), U: frozenset({0, 1, 2, 3})}, "b": {}}
    assert sizes(assign_uniform(members, {T: TopicSpec(2), U: TopicSpec(4)}, lopsided)) == [3, 3]


def test_uniform_assignor_prefers_members_in_the_rack_of_a_replica() -> None:
    racks = tuple(frozenset({"east" if index % 2 else "west"}) for index in range(6))
    members = {
        "a": MemberSpec(frozenset({T}), "east"),
        "b": MemberSpec(frozenset({T}), "west"),
    }
    assignment = assign_uniform(members, {T: TopicSpec(6, racks)}, {})
    assert assignment == {"a": {T: frozenset({1, 3, 5})}, "b": {T: frozenset({0, 2, 4})}}


def test_range_assignor_assigns_the_same_partition_index_of_all_topics_to_one_member() -> None:
    members = {name: MemberSpec(frozenset({T, U})) for name in "abc"}
    assignment = assign_range(members, {T: TopicSpec(4), U: TopicSpec(4)}, {})
    assert assignment["a"] == {T: frozenset({0, 1}), U: frozenset({0, 1})}
    assert assignment["b"] == {T: frozenset({2}), U: frozenset({2})}


def test_static_member_keeps_its_range_assignment_under_a_new_member_id() -> None:
    both = frozenset({T})
    before = assign_range({"x": MemberSpec(both, None, "1"), "a": MemberSpec(both, None, "2")}, {T: TopicSpec(3)}, {})
    after = assign_range({"z": MemberSpec(both, None, "1"), "a": MemberSpec(both, None, "2")}, {T: TopicSpec(3)}, {})
    assert before["x"] == after["z"] == {T: frozenset({0, 1})}


@settings(deadline=None, max_examples=examples(60))
@given(members=member_specs, topics=topic_specs)
def test_uniform_assignor_gives_a_member_at_most_one_partition_more_than_other_subscribers_of_its_topics(
    members: dict[str, MemberSpec], topics: dict[bytes, TopicSpec]
) -> None:
    held = {
        member: {(topic, index) for topic, indexes in partitions.items() for index in indexes}
        for member, partitions in ASSIGNORS["uniform"](members, topics, {}).items()
    }
    for owner, slots in held.items():
        for topic, _ in slots:
            readers = [each for each, spec in members.items() if topic in spec.topics]
            assert all(len(slots) - len(held[each]) <= 1 for each in readers), (owner, topic)
