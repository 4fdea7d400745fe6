"""Tests the check of share coordinators: losing confirmed writes breaks a rule, losing unconfirmed writes does not."""

from collections.abc import Callable

from penstock.share.state_journal import ShareKey
from penstock.share.state_requests import Read, Write
from penstock.share.states import RecordState, StateBatch
from penstock.sim.checks.confirmed_share_states import ConfirmedShareStates

KEY = ShareKey("group", bytes(16), 0)
DONE = StateBatch(3, 4, RecordState.ACKNOWLEDGED, 1)
RELEASED = StateBatch(5, 5, RecordState.AVAILABLE, 1)


class Checked:
    def __init__(self, *, excused: bool = False) -> None:
        self.problems: list[str] = []
        self.check = ConfirmedShareStates([], lambda rule, what: self.problems.append(what), excused=lambda: excused)

    def begin_write(self, *batches: StateBatch, start: int = 2) -> Callable[[None], None]:
        return self.check.writing(None, KEY, Write(1, 0, start, 0, batches))  # type: ignore[arg-type]

    def read(self, *batches: StateBatch, start: int = 2, epoch: int = 1) -> list[str]:
        self.check.reading(None, KEY, 1)(Read(epoch, start, batches))  # type: ignore[arg-type]
        return self.problems


def test_share_state_with_all_confirmed_writes_breaks_no_rule() -> None:
    checked = Checked()
    checked.begin_write(DONE, RELEASED)(None)
    assert checked.read(DONE) == []
    assert checked.read(start=5) == []


def test_rule_finds_a_share_state_that_lacks_a_confirmed_write() -> None:
    checked = Checked()
    checked.begin_write(DONE)(None)
    assert checked.read(DONE._replace(first=4)) == [
        "group, partition 0: offset 3 was confirmed as done, and its state is not stored"
    ]
    checked = Checked()
    checked.begin_write(start=7)(None)
    assert checked.read() == ["group, partition 0: the start offset 7 was confirmed, and 2 is stored"]


def test_share_state_may_lack_writes_that_were_not_confirmed_before_the_read_began() -> None:
    checked = Checked()
    confirmed = checked.begin_write(DONE)
    assert checked.read() == []
    read = checked.check.reading(None, KEY, 1)  # type: ignore[arg-type]
    confirmed(None)
    read(Read(1, 2, ()))
    assert checked.problems == []


def test_share_state_may_lack_confirmed_writes_after_a_power_loss_or_in_a_new_state_epoch() -> None:
    checked = Checked()
    checked.begin_write(DONE)(None)
    assert checked.read(epoch=2) == []
    checked = Checked(excused=True)
    checked.begin_write(DONE)(None)
    assert checked.read() == []
