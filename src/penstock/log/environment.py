"""What every log of a node shares: the disk, the clock, and whom to tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from penstock.allowance import Allowance
from penstock.clock import Clock
from penstock.disk.api import Disk
from penstock.log.unpacking import Unpacking

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.segment import Segment

DAY_MS = 24 * 3600 * 1000


def _ignore(*_: object) -> None:
    """Nobody listens."""


@dataclass(slots=True)
class LogEnvironment:
    disk: Disk
    clock: Clock
    random: Random = field(default_factory=lambda: Random(0))  # noqa: S311 (jitter, not a secret)
    producer_expiration_ms: int = DAY_MS
    #: Producer ids that all logs together may remember for clients.
    producer_ids: Allowance = field(default_factory=Allowance)
    #: Bytes above the recovery point before a flush in the background is asked for: bounds the scan after a crash.
    unflushed_bytes: int = 64 * 1024 * 1024
    #: The disk failed under this log: its directory goes offline.
    disk_failed: Callable[[Log, OSError], None] = _ignore
    #: Bytes below the recovery point are not what was written.
    corruption_found: Callable[[Log, str], None] = _ignore
    #: Recovery point or log start went down; the checkpoints must say so before this returns.
    recovery_point_lowered: Callable[[Log], None] = _ignore
    #: Files of these segments are renamed `.deleted` and may be removed after file.delete.delay.ms.
    discard: Callable[[Log, list[Segment]], None] = _ignore
    #: Flush this log soon.
    flush_wanted: Callable[[Log], None] = _ignore
    unpacking: Unpacking = field(init=False)

    def __post_init__(self) -> None:
        self.unpacking = Unpacking(self.disk)
