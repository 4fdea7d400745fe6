"""Compares the metadata logs of all nodes while they run.

    log matching             the committed batches of any two nodes are the same
    leader completeness      the leader of the quorum has every record that any node regards as committed

Each check reads only batches that were committed since the previous check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from penstock.records.batches import split_batches
from penstock.sim.engine.machine import Machine, State

if TYPE_CHECKING:
    from penstock.log.log import Log

CHUNK_BYTES = 1 << 20


class QuorumLogs:
    def __init__(self, machines: Sequence[Machine], violated: Callable[[str, str], None]) -> None:
        self._machines = machines
        self._violated = violated
        #: Base offset → (checksum of the batch, name of the first node that had it).
        self._batches: dict[int, tuple[int, str]] = {}
        #: (node, incarnation) → end of what was read: the log of a restarted node is read again from its start.
        self._read: dict[tuple[str, int], int] = {}
        #: Highest offset that any node has taken for committed, and the epoch in which it was written.
        self.committed = 0
        self.epoch = 0
        self._told: set[str] = set()

    def look(self) -> None:
        for machine in self._machines:
            broker = machine.broker
            if broker is None or machine.state is not State.SERVING:
                continue
            log = broker.metadata.log
            if log.offline or machine.disk_faults:  # a read that fails would take the log offline
                continue
            self._read_committed(machine, log)
            leads = (
                broker.metadata.leading and broker.metadata.leader_epoch >= self.epoch
            )  # an older leader was deposed
            if leads and log.log_end_offset < self.committed:
                what = (
                    f"{machine.name} leads the quorum with log end {log.log_end_offset}; {self.committed} was committed"
                )
                self._broken("leader completeness", what)

    def _read_committed(self, machine: Machine, log: Log) -> None:
        incarnation = (machine.name, machine.incarnation)
        high = log.high_watermark
        position = max(self._read.get(incarnation, 0), log.log_start_offset)
        while position < high:
            data = log.read(position, CHUNK_BYTES, upper_bound=high).read_now()
            found = split_batches(data, allow_partial=True)
            if not found:
                break
            for header, view in found:
                self._batch(machine.name, header.base_offset, crc32(view))
                position = max(position, header.next_offset)
                if position > self.committed:
                    self.committed, self.epoch = position, header.partition_leader_epoch
        self._read[incarnation] = position

    def _batch(self, name: str, base_offset: int, checksum: int) -> None:
        known, by = self._batches.setdefault(base_offset, (checksum, name))
        if known != checksum:
            self._broken("log matching", f"offset {base_offset} of the metadata log differs between {by} and {name}")

    def _broken(self, rule: str, what: str) -> None:
        """Reports the first violation of each rule; ignores later violations."""
        if rule not in self._told:
            self._told.add(rule)
            self._violated(rule, what)
