"""Implements the sticky assignor of streams groups: spreads tasks evenly, and moves as few tasks as possible.

1. An active task stays with its member. If this member already has its equal share of the active tasks, the task goes
   to a member that had it as a standby and has less than its share.
2. The remaining active tasks go to the members with the fewest tasks.
3. A standby goes to a member that had the task before, in any role, if this member has less than its equal share of all
   tasks. Otherwise it goes to the member with the fewest tasks. A process never gets a task twice.

A large assignment takes many milliseconds. It is computed in steps, so that other requests are served between them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

from penstock.groups.streams.group import Role, TaskKey, Tasks

Task = tuple[str, int]  # subtopology and partition
Steps = Generator[None, None, dict[str, Tasks]]
#: Tasks in one step: about 5 ms.
STEP_TASKS = 1000


class MemberSpec(NamedTuple):
    process_id: str
    previous: Tasks


class SubtopologySpec(NamedTuple):
    tasks: int
    is_stateful: bool


class _Share:
    """Computes the maximum number of tasks per member, so that all members get an equal share.

    The remaining tasks are divided by the number of members that are not full, and the result is rounded up.
    """

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self.limit = -(-tasks // members) if members else 0

    def grown(self, count: int) -> None:
        """Updates the maximum after a member got a task and now has `count` tasks.

        If the member is now full, the maximum is computed again for the other members and the remaining tasks.
        """
        if count == self.limit:
            self._tasks -= count
            self._members -= 1
            self.limit = -(-self._tasks // self._members) if self._members else 0


class _Loads:
    """Counts the tasks that each member and each process has so far."""

    def __init__(self, members: Mapping[str, MemberSpec]) -> None:
        self.counts = dict.fromkeys(members, 0)
        self._process = {member: spec.process_id for member, spec in members.items()}
        self._size = dict.fromkeys(self._process.values(), 0)  # members of each process
        for process in self._process.values():
            self._size[process] += 1
        self._held: dict[str, set[Task]] = {process: set() for process in self._size}
        self._members = list(members)
        self._heap = [(0, 0.0, order) for order in range(len(self._members))]

    def _load(self, member: str) -> tuple[int, float]:
        process = self._process[member]
        return self.counts[member], len(self._held[process]) / self._size[process]

    def has(self, member: str, task: Task) -> bool:
        """Returns True if the member's process has the task."""
        return task in self._held[self._process[member]]

    def add(self, member: str, task: Task) -> int:
        self.counts[member] += 1
        self._held[self._process[member]].add(task)
        return self.counts[member]

    def least(self, candidates: Iterable[str]) -> str | None:
        return min(candidates, key=self._load, default=None)

    def place(self, task: Task) -> str | None:
        """Gives the task to the member with the fewest tasks, and returns this member.

        Skips members whose process already has the task. Returns None if all processes have the task.
        """
        heap, skipped, found = self._heap, [], None
        while heap and found is None:
            count, load, order = heap[0]
            member = self._members[order]
            current = self._load(member)
            if (count, load) != current:  # the member or its process has got tasks since
                heapreplace(heap, (*current, order))
            elif self.has(member, task):
                skipped.append(heappop(heap))
            else:
                found = member
                self.add(member, task)
                heapreplace(heap, (*self._load(member), order))
        for entry in skipped:
            heappush(heap, entry)
        return found


def assign(
    members: Mapping[str, MemberSpec], subtopologies: Mapping[str, SubtopologySpec], standbys: int
) -> dict[str, Tasks]:
    """Returns the tasks of each member. Computes the whole assignment without a pause for other requests."""
    return finish(assign_in_steps(members, subtopologies, standbys))


def finish(steps: Steps) -> dict[str, Tasks]:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: dict[str, Tasks] = done.value
            return found


def assign_in_steps(
    members: Mapping[str, MemberSpec], subtopologies: Mapping[str, SubtopologySpec], standbys: int
) -> Steps:
    """Computes the tasks of each member in steps: yields after each step, and returns the tasks after the last step.

    Leaves out a standby if every process already has its task.
    """
    if not members:
        return {}
    tasks = [(name, index) for name, spec in subtopologies.items() for index in range(spec.tasks)]
    stateful = [task for task in tasks if subtopologies[task[0]].is_stateful] if standbys else []
    loads = _Loads(members)
    total = _Share(len(tasks) + len(stateful) * standbys, len(members))
    was_active = {task: member for task, [member] in _previous(members, Role.ACTIVE, last=True).items()}
    was_standby = _previous(members, Role.STANDBY)
    yield
    active = yield from _assign_active(tasks, loads, total, was_active, was_standby)
    copies = yield from _assign_standbys(stateful, standbys, loads, total, was_active, was_standby)
    return _by_member(members, active, copies)


def _portions(tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
    for start in range(0, len(tasks), STEP_TASKS):
        yield tasks[start : start + STEP_TASKS]


def _previous(members: Mapping[str, MemberSpec], role: Role, *, last: bool = False) -> dict[Task, list[str]]:
    found: dict[Task, list[str]] = {}
    for member, spec in members.items():
        for key, partitions in spec.previous.items():
            for partition in partitions if key.role is role else ():
                if last:
                    found[key.subtopology, partition] = [member]
                else:
                    found.setdefault((key.subtopology, partition), []).append(member)
    return found


def _assign_active(
    tasks: list[Task],
    loads: _Loads,
    total: _Share,
    was_active: Mapping[Task, str],
    was_standby: Mapping[Task, list[str]],
) -> Generator[None, None, dict[Task, str]]:
    share = _Share(len(tasks), len(loads.counts))
    active: dict[Task, str] = {}

    def give(task: Task, member: str) -> None:
        active[task] = member
        count = loads.add(member, task)
        share.grown(count)
        total.grown(count)

    by_partition = sorted(tasks, key=lambda task: (task[1], task[0]))
    for portion in _portions(by_partition):
        for task in portion:
            member = was_active.get(task)
            if member is not None and loads.counts[member] < share.limit:
                give(task, member)
        yield
    for portion in _portions([task for task in by_partition if task not in active]):
        for task in portion:
            member = loads.least(was_standby.get(task, ()))
            if member is not None and loads.counts[member] < share.limit:
                give(task, member)
        yield
    for portion in _portions(sorted(task for task in tasks if task not in active)):
        for task in portion:
            member = loads.place(task)
            assert member is not None  # no process has an active task before it is given
            active[task] = member
            total.grown(loads.counts[member])
        yield
    return active


def _assign_standbys(
    tasks: list[Task],
    standbys: int,
    loads: _Loads,
    total: _Share,
    was_active: Mapping[Task, str],
    was_standby: Mapping[Task, list[str]],
) -> Generator[None, None, dict[Task, list[str]]]:
    copies: dict[Task, list[str]] = {}

    def give(task: Task, member: str) -> None:
        copies.setdefault(task, []).append(member)
        total.grown(loads.add(member, task))

    for portion in _portions(sorted(tasks, key=lambda task: (task[1], task[0]), reverse=True)):
        for task in portion:
            earlier = [was_active[task]] if task in was_active else []
            for member in (*earlier, *sorted(was_standby.get(task, ()), key=loads.counts.__getitem__)):
                wanted = len(copies.get(task, ())) < standbys and not loads.has(member, task)
                if wanted and loads.counts[member] < total.limit:
                    give(task, member)
        yield
    for portion in _portions(sorted(tasks, reverse=True)):
        for task in portion:
            while len(copies.get(task, ())) < standbys:
                least = loads.place(task)
                if least is None:
                    break
                copies.setdefault(task, []).append(least)
        yield
    return copies


def _by_member(
    members: Iterable[str], active: Mapping[Task, str], copies: Mapping[Task, list[str]]
) -> dict[str, Tasks]:
    found: dict[str, dict[TaskKey, set[int]]] = {member: {} for member in members}
    for (subtopology, partition), member in active.items():
        found[member].setdefault(TaskKey(Role.ACTIVE, subtopology), set()).add(partition)
    for (subtopology, partition), holders in copies.items():
        for member in holders:
            found[member].setdefault(TaskKey(Role.STANDBY, subtopology), set()).add(partition)
    return {member: {key: frozenset(indexes) for key, indexes in tasks.items()} for member, tasks in found.items()}
