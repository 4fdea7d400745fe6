"""Tests which machines have lost data, and when they count as recovered."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.sim.faults.lost_machines import DISK, POWER, LostMachines
from penstock.sim.plan.draw import draw_plan


@dataclass(eq=False)
class OneMachine:
    image: Any
    node_id: int = 1
    serving: bool = True
    holds_partitions: bool = True
    disk_faults: int = 0

    def register(self) -> None:
        self.image.brokers[self.node_id].epoch += 1


def machine() -> Any:
    return OneMachine(SimpleNamespace(offset=0, brokers={1: SimpleNamespace(epoch=5, fenced=False)}, topics={}))


@pytest.mark.parametrize("kind", [POWER, DISK])
def test_machine_that_lost_data_counts_as_recovered_once_it_has_registered_again_and_serves(kind: str) -> None:
    one = machine()
    losses = LostMachines(draw_plan(1, nodes=3), [one], set())
    losses.note(one, kind)
    assert losses.open() == {one: kind}
    one.register()
    one.serving = False
    assert losses.open() == {one: kind}
    one.serving = True
    assert losses.open() == {}


def test_machine_whose_disk_still_fails_does_not_count_as_recovered() -> None:
    one = machine()
    losses = LostMachines(draw_plan(1, nodes=3), [one], set())
    losses.note(one, DISK)
    one.disk_faults = 1
    one.register()
    assert losses.open() == {one: DISK}
    one.disk_faults = 0
    assert losses.open() == {}
