"""Compares the state of each coordinator with the state that a load of its log gives.

The next coordinator of a partition knows only what is in the log. So a group, an offset, a transaction or a share state
that is in memory and not in the log, or in the log and not in memory, is lost or comes back with the next leader. The
check loads the log into a new state machine, now and then while nodes run, and at the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.broker.coordinators.loading import Loading
from penstock.broker.coordinators.runtime import Coordinator, Phase
from penstock.groups.shard import GroupShard
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import TopicPartition
from penstock.share.state_shard import ShareStateShard
from penstock.sim.engine.machine import Machine, State
from penstock.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

RULE = "coordinators remember what their logs say"
#: Virtual time between two comparisons of a run.
PAUSE_S = 2.0
#: Longer logs are not loaded, because a load would delay the run.
LONGEST_LOG_BYTES = 1 << 20
#: At most this many characters of a state are shown in a violation.
SHOWN = 400


class ReloadedCoordinators:
    def __init__(
        self,
        machines: Sequence[Machine],
        now: Callable[[], float],
        violated: Callable[[str, str], None],
        damaged: AbstractSet[TopicPartition],
    ) -> None:
        self._machines = machines
        self._now = now
        self._violated = violated
        self._damaged = damaged
        self._due_s = 0.0
        self._reported: set[TopicPartition] = set()

    def look(self) -> None:
        """Compares all coordinators if `PAUSE_S` have passed. Called between two turns."""
        if self._now() >= self._due_s:
            self._due_s = self._now() + PAUSE_S
            self.compare_all()

    def compare_all(self) -> None:
        for machine in self._machines:
            broker = machine.broker
            if broker is None or machine.state is not State.SERVING or not machine.holds_partitions:
                continue
            if not machine.disk_faults:  # a read that fails would take the log offline
                for coordinator in _coordinators(broker):
                    self._compare(machine.name, coordinator)

    def _compare(self, name: str, coordinator: Coordinator[Any]) -> None:
        partition = coordinator.partition
        where = partition.topic, partition.index
        if where in self._damaged or where in self._reported or not _is_comparable(coordinator):
            return
        if problem := next(_problems(coordinator), ""):
            self._reported.add(where)
            self._violated(RULE, f"{partition.topic}-{partition.index} on {name}: {problem}")


def _coordinators(broker: Broker) -> Iterator[Coordinator[Any]]:
    # not over the coordinators themselves: such a look-up opens closed coordinators again
    for each in (broker.groups._coordinators, broker.transactions.coordinators, broker.share_states.coordinators):
        yield from each._by_partition.values()


def _problems(coordinator: Coordinator[Any]) -> Iterator[str]:
    partition = coordinator.partition
    if not partition.is_leader or partition.leader_epoch != coordinator.epoch:
        yield f"is active in leader epoch {coordinator.epoch}, and the partition is in epoch {partition.leader_epoch}"
        return
    loaded = _empty_copy(coordinator.machine)
    try:
        Loading(loaded, partition, coordinator.epoch).replay_now()
    except KafkaError as error:
        yield f"its log can't be loaded: {error}"
        return
    yield from _differences(recorded(coordinator.machine), recorded(loaded))


def _is_comparable(coordinator: Coordinator[Any]) -> bool:
    """Returns True if the coordinator is loaded and all records that it has applied are in its log."""
    log = coordinator.partition.log
    return (
        coordinator.phase is Phase.ACTIVE
        and not coordinator._batch
        and not log.offline
        and log.size <= LONGEST_LOG_BYTES
    )


def _empty_copy(machine: Any) -> Any:
    """Returns a state machine of the same kind, without state."""
    if isinstance(machine, GroupShard):
        return GroupShard(machine.config, Random(0))  # noqa: S311 - a replay draws no random number
    if isinstance(machine, TransactionShard):
        return TransactionShard(machine.config, lambda: None)
    return ShareStateShard(machine.updates_per_snapshot)


def recorded(machine: Any) -> dict[tuple[str, Any], Any]:
    """Returns the durable state of a coordinator by kind and key. A group without a record of its own is listed only if
    it has committed offsets."""
    remembered = machine.remembered()
    if not isinstance(machine, GroupShard):
        return {("key", key): value for key, value in remembered.items()}
    found = {(kind, key): value for kind in remembered for key, value in remembered[kind].items()}
    found |= {("group with offsets", group): True for group in remembered["committed"] if group in machine.groups}
    return {key: value for key, value in found.items() if value not in (None, {})}


def _differences(live: dict[tuple[str, Any], Any], loaded: dict[tuple[str, Any], Any]) -> Iterator[str]:
    for kind, key in sorted(live.keys() | loaded.keys(), key=str):
        ours, stored = live.get((kind, key)), loaded.get((kind, key))
        if ours != stored:
            yield f"{kind} {key} is {_short(ours)} in memory, and {_short(stored)} after a load"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
