"""Observes the acquisition states of share partitions on their leaders, while the leaders run.

    a delivery          its delivery count is never above the limit, even if the member never gets the record
    an acknowledgement  for a record in the window, it is accepted only from the member that has acquired the record
    at the end          when no member is left, no record is acquired or waits for a write

`share_rules` uses the delivery counts too, to know which records may be archived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from penstock.broker.share.led_partition import LedSharePartition
from penstock.share.acquiring import Wish
from penstock.share.states import AcknowledgedRange, RecordState
from penstock.sim.checks.history import History
from penstock.sim.checks.taps import Tap
from penstock.sim.engine.machine import Machine
from penstock.sim.plan.workloads.share import MAX_DELIVERIES

RULE = "share states"


class ShareStates:
    def __init__(self, machines: Sequence[Machine], history: History, violated: Callable[[str, str], None]) -> None:
        self._machines = machines
        self._history = history
        self._violated = violated
        #: The first record of the acknowledgement under way that its member does not hold; None if it holds all.
        self._foreign: int | None = None

    def taps(self) -> list[Tap]:
        return [
            Tap(LedSharePartition, "acquire", self.acquired),
            Tap(LedSharePartition, "apply", self.asked, before=True),
            Tap(LedSharePartition, "apply", self.accepted),
        ]

    def acquired(self, led: LedSharePartition, wish: Wish, *_: object) -> None:
        assert led.state is not None
        counts = self._history.share_counts
        for run, lock in led.state.inspect():
            if run.state != RecordState.ACQUIRED or lock is None or lock.member != wish.member:
                continue
            if run.deliveries > MAX_DELIVERIES:
                self._violated(RULE, f"{_name(led, run.first)} is delivered as number {run.deliveries}")
            for offset in range(run.first, run.stop):
                place = (led.key.group, (led.partition.topic, led.partition.index), offset)
                counts[place] = max(run.deliveries, counts.get(place, 0))

    def asked(self, led: LedSharePartition, member: str, ranges: Sequence[AcknowledgedRange]) -> None:
        self._foreign = next(_not_held(led, member, ranges), None) if led.state is not None else None

    def accepted(self, led: LedSharePartition, member: str, ranges: Sequence[AcknowledgedRange]) -> None:
        """Checks that the member had acquired the records of an accepted acknowledgement."""
        if self._foreign is not None:
            self._violated(RULE, f"{_name(led, self._foreign)} is acknowledged by {member}, which does not hold it")

    def nothing_is_held(self) -> None:
        """Reports records that are still acquired or wait for a write. Called when all members have left."""
        for machine in self._machines:
            if machine.broker is None or not machine.serving or not machine.holds_partitions:
                continue
            for led in machine.broker.share_partitions:
                for run, _ in led.state.inspect() if led.state is not None else ():
                    if run.state in (RecordState.ACQUIRED, RecordState.PENDING):
                        state = RecordState(run.state).name
                        self._violated(RULE, f"{_name(led, run.first)} is {state} on {machine.name} at the end")


def _not_held(led: LedSharePartition, member: str, ranges: Sequence[AcknowledgedRange]) -> Iterator[int]:
    """Yields offsets in the window of a share partition that the member acknowledges but has not acquired."""
    assert led.state is not None
    start = max(led.state.start_offset, led.partition.log.log_start_offset)
    for run, lock in led.state.inspect():
        if run.state == RecordState.ACQUIRED and lock is not None and lock.member == member:
            continue
        for each in ranges:
            first = max(run.first, each.first, start)
            if first < min(run.stop, each.last + 1):
                yield first


def _name(led: LedSharePartition, offset: int) -> str:
    return f"{led.key.group} {led.partition.topic}-{led.partition.index} offset {offset}"
