"""Defines the environment that all logs of a node share: disk, clock, limits, and callbacks to the log manager."""

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
    """Does nothing. This function is the default of all callbacks."""


@dataclass(slots=True)
class LogEnvironment:
    disk: Disk
    clock: Clock
    random: Random = field(default_factory=lambda: Random(0))  # noqa: S311 (jitter, not a secret)
    producer_expiration_ms: int = DAY_MS
    #: Bounds the producer ids that all logs together remember for clients.
    producer_ids: Allowance = field(default_factory=Allowance)
    #: A log with this many bytes above its recovery point asks for a flush: bounds the scan after a crash.
    unflushed_bytes: int = 64 * 1024 * 1024
    #: Called when the disk failed under a log: its directory goes offline.
    disk_failed: Callable[[Log, OSError], None] = _ignore
    #: Called with the reason when a stored batch is damaged.
    corruption_found: Callable[[Log, str], None] = _ignore
    #: Called when a recovery point or log start went down; writes the checkpoints before it returns.
    recovery_point_lowered: Callable[[Log], None] = _ignore
    #: Called with segments whose files are renamed `.deleted`; removes them after file.delete.delay.ms.
    discard: Callable[[Log, list[Segment]], None] = _ignore
    #: Called by a log that should be flushed soon.
    flush_wanted: Callable[[Log], None] = _ignore
    unpacking: Unpacking = field(init=False)

    def __post_init__(self) -> None:
        self.unpacking = Unpacking(self.disk)
