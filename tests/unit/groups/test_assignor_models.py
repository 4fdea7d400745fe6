"""Compares the assignors of share, streams and consumer groups with plain models of their rules.

The models have no heaps, no counters that are kept up to date and no steps: they look for the best member or partition
each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from random import Random

import pytest

from penstock.groups.consumer import assignors as consumer_assignors
from penstock.groups.share import assignor as share_assignor
from penstock.groups.streams import assignor as streams_assignor
from penstock.groups.streams.assignor import MemberSpec, SubtopologySpec
from penstock.groups.streams.group import Role, TaskKey, Tasks

pytestmark = pytest.mark.exhaustive

Slot = tuple[bytes, int]
Task = tuple[str, int]
Held = Mapping[str, Mapping[bytes, frozenset[int]]]


def grouped(slots: set[Slot]) -> dict[bytes, frozenset[int]]:
    return {topic: frozenset(index for each, index in slots if each == topic) for topic, _ in slots}


def slots_of(partitions: Mapping[bytes, frozenset[int]]) -> set[Slot]:
    return {(topic, index) for topic, indexes in partitions.items() for index in indexes}


def some_topics(random: Random, names: bytes) -> frozenset[bytes]:
    return frozenset(bytes([name]) for name in names if random.random() < 0.6)


# --- share groups


def expected_share(
    reads: Mapping[str, frozenset[bytes]], partitions: Mapping[bytes, frozenset[int]], before: Held
) -> Held:
    """Assigns partitions by the rules of the assignor `simple`."""
    wanted = {
        member: slots_of({topic: partitions.get(topic, frozenset()) for topic in reads[member]}) for member in reads
    }
    every = sorted(set().union(*wanted.values()))
    readers = sorted(member for member in reads if wanted[member])
    held: dict[str, set[Slot]] = {member: set() for member in reads}

    def holders(slot: Slot) -> int:
        return sum(slot in slots for slots in held.values())

    if not readers:
        return {member: {} for member in reads}
    sharing = -(-len(readers) // len(every))
    share, extra = divmod(len(every) * sharing, len(readers))
    quota = {member: min(len(wanted[member]), max(1, share + (place < extra))) for place, member in enumerate(readers)}
    for member in readers:
        for slot in sorted(slots_of(before.get(member, {})) & wanted[member]):
            if len(held[member]) < quota[member] and holders(slot) < sharing:
                held[member].add(slot)
    for slot in every:
        if not holders(slot):
            takers = [member for member in readers if slot in wanted[member]]
            held[min(takers, key=lambda member: (len(held[member]), member))].add(slot)
    for member in sorted(readers, key=lambda each: (len(held[each]), each)):
        while len(held[member]) < quota[member]:
            held[member].add(min(wanted[member] - held[member], key=lambda slot: (holders(slot), slot)))
    return {member: grouped(slots) for member, slots in held.items()}


@pytest.mark.parametrize("seed", range(40))
def test_share_assignor_follows_its_rules_for_any_subscriptions_and_earlier_assignment(seed: int) -> None:
    random = Random(seed)
    before: Held = {}
    for _ in range(8):
        partitions = {bytes([each]): frozenset(range(random.randint(1, 4))) for each in b"abc" if random.random() < 0.9}
        reads = {f"m{number}": some_topics(random, b"abc") for number in range(random.randint(1, 7))}
        found = share_assignor.assign(reads, partitions, before)
        assert found == expected_share(reads, partitions, before)
        before = found


def test_share_assignor_follows_its_rules_for_members_with_equal_subscriptions() -> None:
    for members, count, fewer in product(range(1, 8), range(1, 6), range(4)):
        partitions = {b"a": frozenset(range(count)), b"b": frozenset(range(2))}
        reads = {f"m{number}": frozenset({b"a", b"b"}) for number in range(members)}
        earlier = {member: reads[member] for member in list(reads)[fewer:]}
        before = expected_share(earlier, partitions, {})
        assert share_assignor.assign(reads, partitions, before) == expected_share(reads, partitions, before)


# --- streams groups


def limit_of(tasks: int, members: int) -> Callable[[int], int]:
    """Returns a function that notes a member's new number of tasks, and returns the equal share of the other members.

    A member whose number is equal to the share is full; it and its tasks no longer count.
    """
    full: list[int] = []

    def limit() -> int:
        left = members - len(full)
        return -(-(tasks - sum(full)) // left) if left else 0

    def noted(count: int) -> int:
        if count and count == limit():
            full.append(count)
        return limit()

    return noted


class ExpectedTasks:
    """Assigns tasks by the three rules of the sticky assignor."""

    def __init__(
        self, members: Mapping[str, MemberSpec], subtopologies: Mapping[str, SubtopologySpec], standbys: int
    ) -> None:
        self.members = members
        self.standbys = standbys
        self.tasks = [(name, index) for name, spec in subtopologies.items() for index in range(spec.tasks)]
        self.stateful = [task for task in self.tasks if subtopologies[task[0]].is_stateful and standbys]
        self.held: dict[str, dict[Role, set[Task]]] = {
            member: {Role.ACTIVE: set(), Role.STANDBY: set()} for member in members
        }
        self.active_limit = limit_of(len(self.tasks), len(members))
        self.total_limit = limit_of(len(self.tasks) + standbys * len(self.stateful), len(members))

    def assign(self) -> dict[str, Tasks]:
        for role in (Role.ACTIVE, Role.STANDBY):
            self.keep_active(role)
        for task in sorted(self.tasks):
            if not self.copies(task, Role.ACTIVE):
                self.give(min(self.members, key=self.load), task, Role.ACTIVE)
        self.keep_standbys()
        for task in sorted(self.stateful, reverse=True):
            while self.copies(task, Role.STANDBY) < self.standbys:
                free = [member for member in self.members if task not in self.in_process(member)]
                if not free:
                    break
                self.held[min(free, key=self.load)][Role.STANDBY].add(task)
        return {
            member: {
                TaskKey(role, name): frozenset(index for each, index in some if each == name)
                for role, some in roles.items()
                for name, _ in some
            }
            for member, roles in self.held.items()
        }

    def keep_active(self, role: Role) -> None:
        """Gives active tasks to the members that had them in this role, up to the equal share."""
        for task in sorted(self.tasks, key=lambda task: (task[1], task[0])):
            before = self.had(task, role)
            if before and not self.copies(task, Role.ACTIVE):
                member = min(before, key=self.load)
                if self.count(member) < self.active_limit(0):
                    self.give(member, task, Role.ACTIVE)
                    self.active_limit(self.count(member))

    def keep_standbys(self) -> None:
        for task in sorted(self.stateful, key=lambda task: (task[1], task[0]), reverse=True):
            for member in (*self.had(task, Role.ACTIVE), *sorted(self.had(task, Role.STANDBY), key=self.count)):
                wanted = self.copies(task, Role.STANDBY) < self.standbys and task not in self.in_process(member)
                if wanted and self.count(member) < self.total_limit(0):
                    self.give(member, task, Role.STANDBY)

    def give(self, member: str, task: Task, role: Role) -> None:
        self.held[member][role].add(task)
        self.total_limit(self.count(member))

    def count(self, member: str) -> int:
        return sum(map(len, self.held[member].values()))

    def mates(self, member: str) -> list[str]:
        process = self.members[member].process_id
        return [each for each, spec in self.members.items() if spec.process_id == process]

    def in_process(self, member: str) -> set[Task]:
        return set().union(*(some for mate in self.mates(member) for some in self.held[mate].values()))

    def load(self, member: str) -> tuple[int, float]:
        return self.count(member), len(self.in_process(member)) / len(self.mates(member))

    def had(self, task: Task, role: Role) -> list[str]:
        key = TaskKey(role, task[0])
        found = [member for member, spec in self.members.items() if task[1] in spec.previous.get(key, ())]
        return found if role is Role.STANDBY else found[-1:]

    def copies(self, task: Task, role: Role) -> int:
        return sum(task in each[role] for each in self.held.values())


@pytest.mark.parametrize("step_tasks", [1, 2, 1000])
@pytest.mark.parametrize("seed", range(40))
def test_streams_assignor_follows_its_rules_in_steps_of_any_size(
    monkeypatch: pytest.MonkeyPatch, seed: int, step_tasks: int
) -> None:
    monkeypatch.setattr(streams_assignor, "STEP_TASKS", step_tasks)
    random = Random(seed)
    before: dict[str, Tasks] = {}
    for _ in range(6):
        names = random.sample("abcdef", random.randint(1, 5))
        members = {name: MemberSpec(f"p{random.randint(0, 2)}", before.get(name, {})) for name in names}
        subtopologies = {
            name: SubtopologySpec(random.randint(1, 4), random.random() < 0.7) for name in "01"[: random.randint(1, 2)]
        }
        standbys = random.randint(0, 2)
        found = streams_assignor.assign(members, subtopologies, standbys)
        assert found == ExpectedTasks(members, subtopologies, standbys).assign()
        before = found


def test_streams_assignor_without_members_assigns_nothing() -> None:
    assert streams_assignor.assign({}, {"0": SubtopologySpec(2, True)}, 1) == {}


# --- consumer groups


@pytest.mark.parametrize("seed", range(30))
def test_uniform_assignor_leaves_no_move_that_makes_two_members_more_even(seed: int) -> None:
    random = Random(seed)
    before: Held = {}
    for _ in range(8):
        topics = {bytes([each]): consumer_assignors.TopicSpec(random.randint(1, 5)) for each in b"abcd"}
        members = {
            f"m{number}": consumer_assignors.MemberSpec(some_topics(random, b"abcd"))
            for number in range(random.randint(1, 5))
        }
        found = consumer_assignors.assign_uniform(members, topics, before)
        held = {member: slots_of(partitions) for member, partitions in found.items()}
        read = {(topic, index) for topic, spec in topics.items() for index in range(spec.partitions)}
        read = {slot for slot in read if any(slot[0] in spec.topics for spec in members.values())}
        assert sorted(slot for slots in held.values() for slot in slots) == sorted(read)
        for giver, taker in product(held, held):
            movable = {slot for slot in held[giver] if slot[0] in members[taker].topics}
            assert not movable or len(held[giver]) <= len(held[taker]) + 1
            assert all(slot[0] in members[giver].topics for slot in held[giver])
        before = found


def test_uniform_assignor_moves_only_what_is_above_the_equal_share() -> None:
    topics = {b"a": consumer_assignors.TopicSpec(3), b"b": consumer_assignors.TopicSpec(2)}
    every = [(b"a", index) for index in range(3)] + [(b"b", index) for index in range(2)]
    members = {name: consumer_assignors.MemberSpec(frozenset(topics)) for name in "xyz"}
    for owners in product("xyz-", repeat=len(every)):
        before = {name: grouped({slot for slot, owner in zip(every, owners) if owner == name}) for name in "xyz"}
        kept = sorted((owners.count(name) for name in "xyz"), reverse=True)
        found = consumer_assignors.assign_uniform(members, topics, before)
        assert sorted(len(slots_of(some)) for some in found.values()) == [1, 2, 2]
        stayed = sum(len(slots_of(found[name]) & slots_of(before[name])) for name in "xyz")
        assert stayed == sum(map(min, kept, (2, 2, 1))), owners
