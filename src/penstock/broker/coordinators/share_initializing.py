"""Initializes the states of a share group's new partitions at the share coordinators.

A group may need the states of thousands of partitions. Only a limited number of states is requested at a time, so that
other requests are served meanwhile. Finished partitions are reported to the group coordinator together, because the
coordinator writes a list of all partitions for each report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from penstock.broker.coordinators.runtime import Phase
from penstock.groups.share.states import NOWHERE
from penstock.groups.share_requests import states_initialized
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.share.state_journal import ShareKey

if TYPE_CHECKING:
    from penstock.broker.coordinators.runtime import Coordinator
    from penstock.broker.coordinators.share_persister import SharePersister
    from penstock.groups.shard import GroupShard
    from penstock.groups.share.states import InitializeStates
    from penstock.share.sessions import Slot

logger = logging.getLogger(__name__)

#: Partitions whose states are requested in one pass of the event loop, about 10 ms; and those that wait for answers.
AT_ONCE, MAX_WAITING = 50, 200


class ShareInitializing:
    def __init__(
        self,
        wanted: InitializeStates,
        persister: SharePersister,
        coordinator: Coordinator[GroupShard],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._wanted = wanted
        self._persister = persister
        self._coordinator = coordinator
        self._spawn = spawn
        self._room = asyncio.Semaphore(MAX_WAITING)
        self._done: list[Slot] = []  # not yet reported to the group coordinator

    async def run(self) -> None:
        for count, slot in enumerate(self._wanted.partitions, 1):
            await self._room.acquire()
            self._spawn(self._initialize(slot))
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _initialize(self, slot: Slot) -> None:
        group_id = self._wanted.group_id
        try:
            await self._persister.initialize(ShareKey(group_id, *slot), self._wanted.state_epoch, NOWHERE)
        except KafkaError as error:
            if error.code is not ErrorCode.FENCED_STATE_EPOCH:  # otherwise the state exists, from a later epoch
                logger.info("share group %s: a partition can't be initialized yet: %s", group_id, error)
                return  # a later heartbeat asks again
        finally:
            self._room.release()
        self._done.append(slot)
        if len(self._done) == 1:
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        done, self._done = self._done, []
        if self._coordinator.phase is Phase.ACTIVE:
            self._coordinator.post(lambda shard, turn: states_initialized(shard, turn, self._wanted.group_id, done))
