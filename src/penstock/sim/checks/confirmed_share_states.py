"""Checks that share coordinators keep the states that they have confirmed.

A write of a share-partition leader is confirmed when `SharePersister.write` returns. If a leader reads the state later,
the start offset in this state must not be lower than in the write. Each record that the write acknowledged or archived
must still be acknowledged or archived, or be below the start offset. The coordinators' own states are compared at the
end of the run. A write without a confirmation may or may not be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.broker.coordinators.runtime import Phase
from penstock.broker.coordinators.share_persister import SharePersister
from penstock.share.state_journal import ShareKey
from penstock.share.state_requests import Read, Write
from penstock.share.states import FINAL, StateBatch
from penstock.sim.checks.taps import Tap
from penstock.sim.engine.machine import Machine

RULE = "confirmed share states"


@dataclass(slots=True)
class Confirmed:
    """Holds the state that the share coordinator has confirmed for one share partition in one state epoch."""

    start_offset: int = -1
    final: set[int] = field(default_factory=set)
    """Records at or above the start offset that are acknowledged or archived."""

    def add(self, write: Write) -> None:
        self.start_offset = max(self.start_offset, write.start_offset)
        self.final |= set(_final(write.batches))
        self.final = {offset for offset in self.final if offset >= self.start_offset}

    def missing_in(self, start_offset: int, batches: Iterable[StateBatch]) -> Iterator[str]:
        if start_offset < self.start_offset:
            yield f"the start offset {self.start_offset} was confirmed, and {start_offset} is stored"
        lost = {offset for offset in self.final if offset >= start_offset} - set(_final(batches))
        if lost:
            yield f"offset {min(lost)} was confirmed as done, and its state is not stored"


class ConfirmedShareStates:
    def __init__(
        self, machines: Sequence[Machine], violated: Callable[[str, str], None], *, excused: Callable[[], bool]
    ) -> None:
        """Creates the check. `excused` returns True if a power loss may have erased states that were not synced."""
        self._machines = machines
        self._violated = violated
        self._excused = excused
        self._confirmed: dict[tuple[ShareKey, int], Confirmed] = {}

    def taps(self) -> list[Tap]:
        return [
            Tap(SharePersister, "write", self.writing, answer=True),
            Tap(SharePersister, "read", self.reading, answer=True),
        ]

    def writing(self, persister: SharePersister, key: ShareKey, write: Write, *_: object) -> Callable[[None], None]:
        def confirmed(_: None) -> None:
            self._confirmed.setdefault((key, write.state_epoch), Confirmed()).add(write)

        return confirmed

    def reading(self, persister: SharePersister, key: ShareKey, leader_epoch: int) -> Callable[[Read], None]:
        # A write that is confirmed while the read is under way may come after the read.
        before = {
            epoch: Confirmed(each.start_offset, set(each.final))
            for (of, epoch), each in self._confirmed.items()
            if of == key
        }

        def read(found: Read) -> None:
            self._compare(key, before.get(found.state_epoch), found.start_offset, found.batches)

        return read

    def compare_all(self) -> None:
        """Compares the states of all share coordinators. Called when no member is left."""
        for machine in self._machines:
            if machine.broker is None or not machine.serving or not machine.holds_partitions:
                continue
            for coordinator in machine.broker.share_states.coordinators:
                if coordinator.phase is not Phase.ACTIVE:
                    continue
                for key, state in coordinator.machine.states.items():
                    known = self._confirmed.get((key, state.state_epoch))
                    self._compare(key, known, state.start_offset, state.batches())

    def _compare(
        self, key: ShareKey, confirmed: Confirmed | None, start_offset: int, batches: Iterable[StateBatch]
    ) -> None:
        if confirmed is None or self._excused():
            return
        for problem in confirmed.missing_in(start_offset, batches):
            self._violated(RULE, f"{key.group}, partition {key.partition}: {problem}")


def _final(batches: Iterable[StateBatch]) -> Iterator[int]:
    for batch in batches:
        if batch.state in FINAL:
            yield from range(batch.first, batch.last + 1)
