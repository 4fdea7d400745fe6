"""Runs histories in which fsync before acknowledgements is switched on and off, and checks each event loop iteration.

A record counts if it is below a leader's high watermark or below the offset in a follower's fetches. While the synced
mark file may survive a power loss, every record that counted survives too. While fsync is switched on, records count
only once the mark file survives every power loss.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from log_harness import ROOT, TOPIC_ID, batch, produce

from penstock.broker.replicas.partition import Partition
from penstock.broker.replicas.partition_host import PartitionHost
from penstock.clock import ManualClock
from penstock.disk.volume import Directory, Inode, Severity, Volume
from penstock.log.flush import make_countable
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.log.synced_mark import SYNCED_MARK_FILE
from penstock.metadata.configs.topic import LogConfig
from penstock.metadata.image import PartitionImage
from penstock.protocol.errors import KafkaError
from penstock.records.batches import split_batches
from penstock.sim.engine.disk import DiskConditions, SimDisk
from penstock.sim.engine.loop import ProcessKilled, SimulationError, Timeline
from penstock.sim.engine.trace import Trace

pytestmark = pytest.mark.exhaustive

HISTORIES = int(os.environ.get("PENSTOCK_EXAMPLES", "60"))
PLAIN = LogConfig(retention_ms=-1)
PROMISED = replace(PLAIN, penstock_acks_fsync=True)
PATH = f"{ROOT}/t-0"


class Machine:
    """Simulates one replica on a simulated disk. Records below offset `counted` have counted for the high watermark."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.timeline = Timeline(Random(seed))
        self.volume = Volume(lambda: 0)
        self.volume.mkdir(ROOT)
        self.volume.sync_all()
        self.config = PLAIN
        self.counted = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.start()

    def start(self) -> None:
        self.loop = self.timeline.process("broker")
        self.disk = SimDisk(self.volume, self.loop, self.random, Trace(self.timeline), DiskConditions())
        self.logs = LogManager(self.disk, [ROOT], ManualClock())
        self.timeline.run(self.logs.open(node_id=1, cluster_id="cluster", config_of=lambda _: self.config), self.loop)
        self.told = bool(self.logs.synced_partitions())
        with self.timeline.inside(self.loop):
            self.log: Log = self.logs.get("t", 0) or self.logs.create("t", TOPIC_ID, 0, self.config)
            self.take_role()

    def act(self, action: str) -> None:
        if action in ("turn", "rest", "kill", "power"):
            getattr(self, action)()
        else:
            with suppress(ProcessKilled), self.timeline.inside(self.loop):
                getattr(self, action)()
        self.check()

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            with suppress(KafkaError):  # truncated, or the process was killed
                await work()

        self.tasks.append(self.loop.create_task(run()))

    # What happens to a replica.

    def take_role(self) -> None:
        raise NotImplementedError

    def append(self) -> None:
        raise NotImplementedError

    def on(self) -> None:
        self.config = PROMISED
        self.log.update_config(PROMISED)

    def off(self) -> None:
        self.config = PLAIN
        self.log.update_config(PLAIN)

    def sync(self) -> None:
        self.begin(lambda: self.log.flushed(self.log.log_end_offset))

    def flush(self) -> None:
        self.begin(self.log.flush)

    def roll(self) -> None:
        self.log.roll()

    def cut(self) -> None:
        """Does nothing: a leader does not truncate."""

    def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()

    def turn(self) -> None:
        with suppress(SimulationError):  # nothing is left to do
            self.timeline.step()

    def rest(self) -> None:
        for _ in range(20):
            self.turn()
            self.check()

    def die(self) -> None:
        """Kills the process inside one of its next calls of the disk."""
        left = self.random.randint(1, 12)

        def is_due(kind: str) -> bool:
            nonlocal left
            left -= 1
            return not left

        self._die_when(is_due)

    def die_removing(self) -> None:
        """Kills the process after the mark file is removed and before the directory is synced."""
        self._die_when(lambda kind: kind == "sync_dir" and self.volume.find(f"{PATH}/{SYNCED_MARK_FILE}") is None)

    def _die_when(self, is_due: Callable[[str], bool]) -> None:
        def on_change(kind: str, path: str) -> None:
            if is_due(kind):
                self.loop.kill()
                raise ProcessKilled

        self.disk.on_change = on_change

    def kill(self) -> None:
        self.loop.kill()
        self.volume.locks.clear()
        self.tasks.clear()
        self.start()

    def power(self) -> None:
        self.loop.kill()
        self.tasks.clear()
        before = self.counted
        self.volume.lose_power(self.random, self.random.choice([Severity.SOME, Severity.EVERYTHING]))
        self.counted = 0  # the controller counts it no more, unless it is told of a mark
        self.start()
        if self.told:
            assert self.log.log_end_offset >= before
            self.counted = max(self.counted, before)

    # What has to hold.

    def count(self) -> int:
        raise NotImplementedError

    def check(self) -> None:
        if self.loop.dead:
            self.turn()  # closes its tasks
            self.kill()
        before, self.counted = self.counted, max(self.counted, self.count())
        promised = self.counted > before and self.config is PROMISED
        if promised or may_be_marked(self.volume):
            is_marked, end = after_a_power_loss(self.volume)
            assert end >= self.counted
            assert is_marked or not promised


class Leader(Machine):
    """Simulates the only replica of a partition: its high watermark alone decides which records count."""

    def take_role(self) -> None:
        self.partition = Partition(
            "t", TOPIC_ID, 0, PartitionImage((1,), (1,), 1), PartitionHost(1, lambda _: self.log)
        )
        _ = self.partition.log

    def append(self) -> None:
        self.partition.append(batch(timestamp=0), now_ms=0)

    def on(self) -> None:
        super().on()
        self.partition.follow_disk(self.log)

    def off(self) -> None:
        super().off()
        self.partition.follow_disk(self.log)

    def count(self) -> int:
        return self.log.high_watermark


class Follower(Machine):
    def take_role(self) -> None:
        self.named = 0

    def append(self) -> None:
        produce(self.log, commit=False)

    def sync(self) -> None:
        """Fetches from the log end once all records before it count, as `ReplicaFetcher` does."""
        self.begin(self._fetch)

    async def _fetch(self) -> None:
        log = self.log
        while log.countable_offset < log.log_end_offset:
            await make_countable(log)
        self.named = log.log_end_offset

    def cut(self) -> None:
        """Truncates the last record, because a new leader has another record at this offset."""
        self.log.truncate_to(max(0, self.log.log_end_offset - 1))
        self.named = min(self.named, self.log.log_end_offset)
        self.counted = min(self.counted, self.log.log_end_offset)

    def count(self) -> int:
        return self.named


def may_be_marked(volume: Volume) -> bool:
    """Returns True if the mark file may exist after a power loss."""
    directory = volume.find(PATH)
    if not isinstance(directory, Directory):
        return False
    changes = [change for step in directory.pending for change in step if change[0] == SYNCED_MARK_FILE]
    return SYNCED_MARK_FILE in directory.entries or any(before is not None for _, before, _ in changes)


def after_a_power_loss(volume: Volume) -> tuple[bool, int]:
    """Returns whether the mark file survives the worst power loss, and the log end offset after this power loss."""
    copied = deepcopy(volume)
    copied.lose_power(Random(0), Severity.EVERYTHING)
    end, directory = 0, copied.find(PATH)
    for name, inode in sorted(directory.entries.items()) if isinstance(directory, Directory) else ():
        if name.endswith(".log") and isinstance(inode, Inode) and int(name[:-4]) == end:
            for header, _ in split_batches(bytes(inode.data), allow_partial=True):
                end = header.next_offset
    return copied.find(f"{PATH}/{SYNCED_MARK_FILE}") is not None, end


#: How often each happens.
WEIGHTS: dict[str, float] = {"turn": 10, "append": 5, "sync": 4, "on": 2, "off": 2}
WEIGHTS |= {"rest": 1, "flush": 1, "roll": 1, "cut": 1}
WEIGHTS |= {"cancel": 0.5, "die": 0.5, "kill": 0.3, "power": 0.3}
#: Fsync is promised again while the mark is removed, and then not any more.
SWITCHED_BACK = "on append sync rest off append sync {} on append sync rest off append sync rest append sync rest"
KILLED = "on append sync rest off append die_removing {} sync rest append sync rest"
#: A segment is made while the directory is synced; it is cut off and made again.
ROLLED = "on append sync rest roll append sync {} roll append sync rest append sync rest"
MADE_AGAIN = "on append roll append sync rest cut roll append sync rest"


@pytest.mark.parametrize("role", [Leader, Follower])
def test_only_synced_records_count_for_the_high_watermark_while_the_synced_mark_file_may_exist(
    role: type[Machine],
) -> None:
    for seed in range(HISTORIES):
        play(role, Random(seed).choices(list(WEIGHTS), list(WEIGHTS.values()), k=100), seed)


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("history", [SWITCHED_BACK, KILLED, ROLLED])
@pytest.mark.parametrize("role", [Leader, Follower])
def test_only_synced_records_count_for_the_high_watermark_whenever_the_config_changes(
    role: type[Machine], history: str, turns: int
) -> None:
    play(role, history.format("turn " * turns).split(), 1)


def test_recreated_segment_counts_for_the_high_watermark_only_once_its_directory_entry_is_synced() -> None:
    play(Follower, MADE_AGAIN.split(), 1)


def play(role: type[Machine], actions: list[str], seed: int) -> None:
    machine = role(seed)
    try:
        for action in actions:
            machine.act(action)
    finally:
        machine.timeline.end()
