import pytest
from group_driver import Driver
from streams_driver import StreamsDriver, counting

from penstock.groups import admin
from penstock.protocol.errors import ErrorCode


def test_a_stable_group_is_described_with_metadata_and_assignments() -> None:
    driver = Driver()
    members = driver.stable(2)
    group = admin.describe(driver.shard, "g", 6)
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    assert {each.member_id: each.member_assignment for each in group.members} == {
        member: b"to " + member.encode() for member in members
    }
    assert {each.member_metadata for each in group.members} == {b"range-metadata"}
    assert {(each.client_id, each.client_host) for each in group.members} == {("client", "/127.0.0.1")}


def test_describing_a_rebalancing_group_shows_its_last_assignment_but_no_metadata() -> None:
    driver = Driver()
    [member] = driver.stable()
    driver.join()
    group = admin.describe(driver.shard, "g", 6)
    assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
    assert [each.member_metadata for each in group.members] == [b"", b""]
    assert [each.member_assignment for each in group.members] == [b"to " + member.encode(), b""]


def test_description_of_a_missing_group_is_state_dead_for_old_clients_and_an_error_for_new_clients() -> None:
    driver = Driver()
    old, new = admin.describe(driver.shard, "x", 5), admin.describe(driver.shard, "x", 6)
    assert (old.error_code, old.group_state) == (ErrorCode.NONE, "Dead")
    assert (new.error_code, new.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert new.error_message


def test_groups_are_listed_by_state_and_type() -> None:
    driver = Driver()
    driver.stable(group="stable")
    driver.commit({("t", 0): 1}, group="simple")

    def listed(states: set[str], types: set[str]) -> list[tuple[str, str, str, str]]:
        return [
            (each.group_id, each.protocol_type, each.group_state, each.group_type)
            for each in admin.list_groups(driver.shard.groups.values(), frozenset(states), frozenset(types))
        ]

    stable = ("stable", "consumer", "Stable", "classic")
    simple = ("simple", "", "Empty", "classic")
    assert listed(set(), set()) == [stable, simple]
    assert listed({"empty"}, set()) == [simple]
    assert listed({"stable", "empty"}, {"classic"}) == [stable, simple]
    assert listed(set(), {"consumer"}) == []


@pytest.mark.parametrize("name", ["notready", "not_ready"])
def test_groups_in_state_not_ready_are_listed_by_both_spellings_of_the_state(name: str) -> None:
    driver = StreamsDriver()
    driver.come("a", counting())
    [found] = admin.list_groups(driver.shard.groups.values(), frozenset({name}), frozenset())
    assert found.group_state == "NotReady"


def test_only_an_empty_group_can_be_deleted() -> None:
    driver = Driver()
    assert driver.delete() is ErrorCode.GROUP_ID_NOT_FOUND
    [member] = driver.stable()
    driver.commit({("t", 0): 1}, member_id=member, generation=1)
    assert driver.delete() is ErrorCode.NON_EMPTY_GROUP
    driver.leave(member)
    assert driver.delete() is ErrorCode.NONE
    assert driver.state() == "Dead"
    assert driver.fetch() == {}
    assert driver.delete() is ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.reload().shard.remembered() == {"groups": {}, "committed": {}, "pending": {}}
