"""Tests the comparison of a replica's state with a rebuilt state: which first offsets of a transaction are correct."""

from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.log import AppendOrigin, Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn
from penstock.sim.checks.rebuilt_state import Rebuilt, RebuiltStates, Transaction
from penstock.sim.checks.taps import tapped


@pytest.mark.parametrize(
    ("after", "batches", "start", "right"),
    [
        (-1, [(5, 6), (7, 8)], 4, {0, 1, 2, 3, 5}),
        (4, [(5, 6), (7, 8)], 4, {5}),
        (-1, [(5, 6), (7, 8)], 6, {0, 1, 2, 3, 5, 7}),
        (4, [(5, 9)], 6, {5}),
        (4, [(5, 6), (7, 8)], 9, {5, 7, None}),
        (4, [], 4, {None}),
    ],
    ids=[
        "began before the log or with its first batch",
        "the producer's last marker is in the log",
        "the first batch was deleted",
        "the log starts inside a batch",
        "all batches were deleted",
        "only a marker",
    ],
)
def test_check_accepts_only_possible_first_offsets_of_a_rebuilt_transaction(
    after: int, batches: list[tuple[int, int]], start: int, right: set[int | None]
) -> None:
    transaction = Transaction(7, after, batches)
    candidates = [None, *range(12)]
    assert {first for first in candidates if transaction.may_begin_at(first, log_begin=4, start=start)} == right


class OneDisk:
    """Stands in for a machine that consists only of its disk."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.volume = self.disk.volume


def new_log(machine: OneDisk) -> Log:
    logs = LogManager(machine.disk, ("/logs",), ManualClock())
    with pytest.raises(StopIteration):
        logs.open(node_id=1, cluster_id="cluster").send(None)
    return logs.create("t", bytes(16), 0, LogConfig())


def append(log: Log, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
    log.append_as_leader(data, leader_epoch=0, now_ms=0, origin=origin)


def test_rebuilt_producer_state_includes_a_marker_that_compaction_is_about_to_remove() -> None:
    machine: Any = OneDisk()
    log = new_log(machine)
    states = RebuiltStates([machine], lambda rule, what: None, set())
    rebuilt = states._replicas[machine, (log.topic_id, log.partition)] = Rebuilt(log)
    records = [(0, b"key", b"value", ())]
    append(log, build_batch(records, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    rebuilt.read_on(machine)
    assert list(rebuilt.open) == [7]
    marker = build_end_txn(EndTxn(committed=False, coordinator_epoch=0), timestamp=0, producer_id=7, producer_epoch=0)
    append(log, marker, AppendOrigin.COORDINATOR)
    log.roll()
    with tapped(states.taps()):
        log.segments.replace([log.segments[0]], log.segments[0])
    assert rebuilt.open == {}
    assert rebuilt.aborted[1].batches == [(0, 1)]
