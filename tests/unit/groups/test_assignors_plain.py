"""Compares the assignors of share and streams groups with the same rules in plain loops, for random groups."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from penstock.groups.share import assignor as share
from penstock.groups.streams import assignor as streams
from penstock.groups.streams.assignor import MemberSpec, SubtopologySpec
from penstock.groups.streams.group import Role, TaskKey, Tasks

Slot = tuple[bytes, int]
Task = tuple[str, int]


def ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


# --- share groups


def plain_share(
    reads: Mapping[str, frozenset[bytes]],
    partitions: Mapping[bytes, frozenset[int]],
    previous: Mapping[str, Mapping[bytes, frozenset[int]]],
) -> dict[str, set[Slot]]:
    every = sorted((topic, index) for topic, indexes in partitions.items() for index in indexes)
    own = {member: [slot for slot in every if slot[0] in topics] for member, topics in reads.items()}
    read = sorted({slot for slots in own.values() for slot in slots})
    readers = [member for member in sorted(own) if own[member]]
    held: dict[str, set[Slot]] = {member: set() for member in reads}
    if not readers:
        return held
    most = ceil(len(readers), len(read))  # members that may share a partition
    whole, extra = divmod(len(read) * most, len(readers))
    quota = {member: min(len(own[member]), max(1, whole + (i < extra))) for i, member in enumerate(readers)}

    def users(slot: Slot) -> int:
        return sum(slot in slots for slots in held.values())

    for member in readers:
        before = {(topic, index) for topic, indexes in previous.get(member, {}).items() for index in indexes}
        for slot in own[member]:
            if slot in before and len(held[member]) < quota[member] and users(slot) < most:
                held[member].add(slot)
    for slot in read:
        if not users(slot):
            held[min((len(held[each]), each) for each in readers if slot in own[each])[1]].add(slot)
    for member in sorted(readers, key=lambda each: (len(held[each]), each)):
        while len(held[member]) < quota[member]:
            held[member].add(min((users(slot), slot) for slot in own[member] if slot not in held[member])[1])
    return held


def test_share_assignor_gives_the_same_partitions_as_its_rules_in_plain_loops() -> None:
    random = Random(1)
    topics = [b"t", b"u", b"v"]
    previous: dict[str, Mapping[bytes, frozenset[int]]] = {}
    for _ in range(1200):
        one = frozenset(random.sample(topics, random.randint(0, 3)))
        is_uniform = random.random() < 0.4
        reads = {
            member: one if is_uniform else frozenset(random.sample(topics, random.randint(0, 3)))
            for member in random.sample("abcdefg", random.randint(1, 7))
        }
        partitions = {
            topic: frozenset(random.sample(range(4), random.randint(1, 4))) for topic in topics if random.random() < 0.8
        }
        found = share.assign(reads, partitions, previous)
        slots = {
            member: {(topic, index) for topic, indexes in each.items() for index in indexes}
            for member, each in found.items()
        }
        assert slots == plain_share(reads, partitions, previous)
        previous = {**previous, **found} if random.random() < 0.8 else {}


# --- streams groups


class Share:
    """Holds the number of tasks that a member may have: the tasks left, divided by the members that are not full."""

    def __init__(self, tasks: int, members: int) -> None:
        self.tasks, self.members = tasks, members

    @property
    def limit(self) -> int:
        return ceil(self.tasks, self.members) if self.members else 0

    def grow(self, count: int) -> None:
        if count == self.limit:
            self.tasks, self.members = self.tasks - count, self.members - 1


class PlainStreams:
    """Computes the member of each active task, and the members of each standby task."""

    def __init__(
        self, members: Mapping[str, MemberSpec], subtopologies: Mapping[str, SubtopologySpec], standbys: int
    ) -> None:
        self.members, self.standbys = members, standbys
        tasks = [(name, index) for name, spec in subtopologies.items() for index in range(spec.tasks)]
        stateful = [task for task in tasks if subtopologies[task[0]].is_stateful]
        self.tasks = sorted(tasks, key=lambda task: (task[1], task[0]))
        self.active: dict[Task, str] = {}
        self.copies: dict[Task, set[str]] = {task: set() for task in stateful if standbys}
        self.total = Share(len(tasks) + standbys * len(stateful), len(members))
        self.place_active()
        self.place_standbys()

    def held(self, member: str) -> set[Task]:
        mine = {task for task, owner in self.active.items() if owner == member}
        return mine | {task for task, owners in self.copies.items() if member in owners}

    def count(self, member: str) -> int:
        return len(self.held(member))

    def process(self, member: str) -> list[str]:
        return [each for each, spec in self.members.items() if spec.process_id == self.members[member].process_id]

    def load(self, member: str) -> tuple[int, float]:
        process = self.process(member)
        return self.count(member), len({task for each in process for task in self.held(each)}) / len(process)

    def is_near(self, member: str, task: Task) -> bool:
        return any(task in self.held(each) for each in self.process(member))

    def had(self, role: Role, task: Task) -> list[str]:
        key = TaskKey(role, task[0])
        return [member for member, spec in self.members.items() if task[1] in spec.previous.get(key, ())]

    def place_active(self) -> None:
        share = Share(len(self.tasks), len(self.members))
        for role in (Role.ACTIVE, Role.STANDBY):
            for task in self.tasks:
                owners = self.had(role, task)
                if task in self.active or not owners:
                    continue
                member = owners[-1] if role is Role.ACTIVE else min(owners, key=self.load)
                if self.count(member) < share.limit:
                    self.active[task] = member
                    share.grow(self.count(member))
                    self.total.grow(self.count(member))
        for task in sorted(set(self.tasks) - self.active.keys()):
            self.active[task] = min(self.members, key=self.load)
            self.total.grow(self.count(self.active[task]))

    def place_standbys(self) -> None:
        for task in reversed([task for task in self.tasks if task in self.copies]):
            found = self.copies[task]
            earlier = sorted(self.had(Role.STANDBY, task), key=self.count)
            for member in (*self.had(Role.ACTIVE, task)[-1:], *earlier):
                is_wanted = len(found) < self.standbys and not self.is_near(member, task)
                if is_wanted and self.count(member) < self.total.limit:
                    found.add(member)
                    self.total.grow(self.count(member))
        for task in sorted(self.copies, reverse=True):
            while len(self.copies[task]) < self.standbys:
                free = [member for member in self.members if not self.is_near(member, task)]
                if not free:
                    break
                self.copies[task].add(min(free, key=self.load))


def owners(found: Mapping[str, Tasks], role: Role) -> dict[Task, set[str]]:
    result: dict[Task, set[str]] = {}
    for member, tasks in found.items():
        for key, indexes in tasks.items():
            for index in indexes if key.role is role else ():
                result.setdefault((key.subtopology, index), set()).add(member)
    return result


def random_tasks(random: Random) -> Tasks:
    """Returns tasks that a member may have had, also of subtopologies and partitions that no longer exist."""
    return {
        TaskKey(role, name): frozenset(random.sample(range(5), random.randint(1, 3)))
        for role in (Role.ACTIVE, Role.STANDBY)
        for name in random.sample("0123", random.randint(0, 3))
    }


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_streams_assignor_gives_the_same_tasks_as_its_rules_in_plain_loops(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STEP_TASKS", step)
    random = Random(step)
    found: dict[str, Tasks] = {}
    for _ in range(120):
        is_free = random.random() < 0.4
        members = {
            member: MemberSpec(
                random.choice("pqr"), random_tasks(random) if is_free else found.get(member, random_tasks(random))
            )
            for member in random.sample("abcdef", random.randint(1, 5))
        }
        subtopologies = {
            name: SubtopologySpec(random.randint(1, 4), random.random() < 0.7)
            for name in random.sample("012", random.randint(1, 3))
        }
        standbys = random.randint(0, 2)
        found = streams.assign(members, subtopologies, standbys)
        plain = PlainStreams(members, subtopologies, standbys)
        assert owners(found, Role.ACTIVE) == {task: {member} for task, member in plain.active.items()}
        assert owners(found, Role.STANDBY) == {task: some for task, some in plain.copies.items() if some}
