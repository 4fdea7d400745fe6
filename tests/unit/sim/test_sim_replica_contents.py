"""Tests the comparison of replicas by content: which records are committed, and which of them may be lost."""

from penstock.sim.checks.replica_contents import Committed
from penstock.sim.checks.stored_batches import StoredBatch
from penstock.sim.checks.taps import Tap, tapped


def committed(*ends: int) -> Committed:
    known, base = Committed(("t", 0)), 0
    for time, end in enumerate(ends, 1):
        known.add(StoredBatch(base, end, b"batch %d" % base), epoch=time, time=float(time), keep=False)
        base = end
    return known


def test_record_is_committed_at_the_time_when_the_high_watermark_first_passes_it() -> None:
    known = committed(3, 5, 9)
    assert [known.time_of(offset) for offset in (0, 2, 3, 4, 5, 8, 9)] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, float("inf")]


def test_committed_end_offset_before_an_epoch_counts_only_earlier_epochs() -> None:
    known = committed(3, 5, 9)
    assert [known.end_before(epoch) for epoch in (1, 2, 3, 4)] == [0, 3, 5, 9]


def test_allowed_loss_lowers_the_committed_end_offset_and_counts_the_lost_records() -> None:
    known = committed(3, 5, 9)
    known.cut(3)
    assert (known.end, known.records_excused, list(known.batches)) == (3, 6, [0])
    assert known.end_before(4) == 3
    assert known.lost == {}


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self, number: int) -> int:
        self.value += number
        return self.value


def test_method_observer_sees_each_call_only_inside_its_with_block() -> None:
    counter, seen = Counter(), []
    taps = [
        Tap(Counter, "add", lambda each, number: seen.append(("before", each.value, number)), before=True),
        Tap(Counter, "add", lambda each, number: seen.append(("after", each.value, number))),
    ]
    with tapped(taps):
        assert counter.add(2) == 2
    counter.add(3)
    assert seen == [("before", 0, 2), ("after", 2, 2)]
