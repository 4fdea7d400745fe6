"""Flushes many logs of one directory: several at a time, or all by one sync of the volume."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.disk.api import Disk
    from penstock.log.flush import FlushGoal
    from penstock.log.log import Log

logger = logging.getLogger(__name__)

#: Flushes begun before other tasks of the event loop get a turn.
BEGUN_AT_ONCE = 64
#: Logs flushed at the same time.
PARALLEL_FLUSHES = 8
#: For more logs than this, one sync of the whole volume is cheaper than one sync per file.
MANY_FLUSHES = 64


async def flush_all(disk: Disk, directory: str, logs: list[Log]) -> bool:
    """Flushes the logs of one directory. Returns False if a log could not be flushed. Raises OSError if the sync of the
    whole volume failed."""
    goals: list[tuple[Log, FlushGoal]] = []
    for count, log in enumerate(logs):
        try:
            goals.append((log, log.durability.begin()))
        except KafkaError as error:
            logger.error("%s could not be flushed and is tried again with the next flush: %s", log, error)
        if count % BEGUN_AT_ONCE == BEGUN_AT_ONCE - 1:
            await asyncio.sleep(0)
    synced = len(goals) > MANY_FLUSHES and await disk.run(disk.sync_volume, directory)
    if synced or not disk.shared:
        failures = await _end_flushes(goals, synced)
    else:
        shares = (goals[number::PARALLEL_FLUSHES] for number in range(PARALLEL_FLUSHES))
        failures = sum(await asyncio.gather(*(_end_flushes(share, False) for share in shares)))
    return len(goals) == len(logs) and not failures


async def _end_flushes(goals: list[tuple[Log, FlushGoal]], synced: bool) -> int:
    """Completes the flushes in `goals`, one after the other. Returns how many of them failed.

    `synced` is True if the whole volume was synced after the flushes began.
    """
    failures = 0
    for log, goal in goals:
        try:
            await log.durability.end(goal, synced=synced)
        except KafkaError as error:
            logger.error("%s could not be flushed and is tried again with the next flush: %s", log, error)
            failures += 1
    return failures
