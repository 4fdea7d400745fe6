"""Writes the dead letters of one share partition, RECORDS_AT_ONCE records at a time.

A record's dead letter is written only after the share coordinator has stored that the record is given up. The record is
archived when its dead letter is written. If a write fails, it is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.broker.share.share_figures import ShareFigures
from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition
    from penstock.log.log import Log
    from penstock.share.group_settings import ShareSettings
    from penstock.share.partition import SharePartition
    from penstock.share.state_journal import ShareKey
    from penstock.share.states import ShareLimits
    from penstock.share.window import Run

logger = logging.getLogger(__name__)

RECORDS_AT_ONCE = 500
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.2, 30.0


class DeadLetters(Protocol):
    async def write(
        self, group: str, settings: ShareSettings, source: Partition, log: Log, runs: Sequence[Run]
    ) -> None: ...


class Burying(Protocol):
    """Defines the interface of a share partition whose dead letters are written."""

    key: ShareKey
    partition: Partition
    leader_epoch: int
    state: SharePartition | None

    @property
    def settings(self) -> ShareSettings: ...

    @property
    def limits(self) -> ShareLimits: ...

    def buried(self, runs: list[Run]) -> None:
        """Archives records whose dead letters have been written."""
        ...

    def burial_ended(self) -> None: ...


class Burial:
    def __init__(
        self,
        led: Burying,
        dead_letters: DeadLetters,
        *,
        figures: ShareFigures,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._led = led
        self._dead_letters = dead_letters
        self._figures = figures
        self._spawn = spawn
        self.running = False
        #: Why dead letters can't be written; None if they were.
        self.error: KafkaError | None = None

    def start(self) -> None:
        """Starts to write dead letters. No-op if the writing task is already running, or if no dead letter is due."""
        state = self._led.state
        if state is not None and not self.running and state.dying(1):
            self.running = True
            self._spawn(self._run())

    async def _run(self) -> None:
        led, pause = self._led, RETRY_SECONDS
        try:
            while (state := led.state) is not None and (runs := state.dying(RECORDS_AT_ONCE)):
                if await self._write(runs):
                    pause = RETRY_SECONDS
                    if led.state is state:
                        led.buried(runs)
                else:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, MAX_RETRY_SECONDS)
        finally:
            self.running = False
        led.burial_ended()

    async def _write(self, runs: list[Run]) -> bool:
        """Writes the dead letters of the records. Returns True if the records may be archived.

        If the group's config no longer requires dead letters, the records are archived without them.
        """
        led = self._led
        if not led.limits.dead_letters:
            return True
        try:
            log = led.partition.leader_log(led.leader_epoch)
            await self._dead_letters.write(led.key.group, led.settings, led.partition, log, runs)
        except KafkaError as error:
            if self.error is None:
                logger.warning("%s: share group %s can't write dead letters: %s", led.partition, led.key.group, error)
            self.error = error
            self._figures.failed_dead_letters += 1
            return False
        self.error = None
        self._figures.dead_letters += sum(run.size for run in runs)
        return True
