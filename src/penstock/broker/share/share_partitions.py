"""Keeps the share partitions in use on this node, and the share sessions that use them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.requests.slices import SLICE_PARTITIONS, starts
from penstock.broker.share.burial import DeadLetters
from penstock.broker.share.led_partition import LedSharePartition
from penstock.broker.share.share_figures import ShareFigures
from penstock.broker.tasks import Tasks
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.share.group_settings import ShareSettings, share_settings
from penstock.share.sessions import ShareSession, ShareSessions, Slot
from penstock.share.state_journal import ShareKey

if TYPE_CHECKING:
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.coordinators.share_persister import SharePersister
    from penstock.broker.replicas.partitions import Partitions
    from penstock.clock import Clock
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage

logger = logging.getLogger(__name__)

LOAD_SECONDS = 10.0  # for which a request of an operator waits for the state of a share partition
VERIFY_SECONDS = 0.3  # maximum wait of a ShareFetch until the share coordinators confirm the states


class _Cached(NamedTuple):
    configs: object
    settings: ShareSettings


class SharePartitions:
    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        partitions: Partitions,
        metadata: MetadataLog,
        persister: SharePersister,
        dead_letters: DeadLetters,
        turn: Callable[[], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._partitions = partitions
        self._metadata = metadata
        self._persister = persister
        self._dead_letters = dead_letters
        self._turn = turn
        self._tasks = Tasks()
        self._led: dict[ShareKey, LedSharePartition] = {}
        self._of_group: dict[str, dict[ShareKey, None]] = {}
        self._group_settings: dict[str, _Cached] = {}
        self.figures = ShareFigures()
        self.sessions = ShareSessions(settings.int("group.share.max.share.sessions"))

    def __iter__(self) -> Iterator[LedSharePartition]:
        return iter(tuple(self._led.values()))

    async def close(self) -> None:
        error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node stops: refresh the metadata.")
        for led in self:
            led.close(error)
        await self._tasks.close()

    def apply(self, old: MetadataImage | None, new: MetadataImage) -> None:
        """Drops the states of partitions whose leader or leader epoch has changed."""
        if old is None or old.topics is new.topics:
            return
        for led in self:
            try:
                current = self._partitions.get_by_id(led.key.topic_id, led.key.partition)
                current.leader_log(led.leader_epoch)
                if current is not led.partition:
                    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The partition was moved: fetch again.")
            except KafkaError as error:
                if error.code is ErrorCode.UNKNOWN_TOPIC_ID:
                    error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error.message)
                led.close(error)

    # --- settings

    def settings_of(self, group: str) -> ShareSettings:
        """Returns the settings of a group. Reads them again only after a config change in the cluster."""
        image = self._metadata.image
        cached = self._group_settings.get(group)
        if cached is None or cached.configs is not image.configs:
            if len(self._group_settings) > self.sessions.most:
                self._group_settings.clear()
            cached = self._group_settings[group] = _Cached(image.configs, share_settings(image, group, self._settings))
        return cached.settings

    # --- share partitions

    def find(self, key: ShareKey) -> LedSharePartition | None:
        return self._led.get(key)

    def open(self, key: ShareKey) -> LedSharePartition:
        """Returns the share partition, and loads it first if it is not in use yet.

        Raises KafkaError if this node does not lead the partition.
        """
        partition = self._partitions.get_by_id(key.topic_id, key.partition)
        partition.leader_log()
        led = self._led.get(key)
        if led is not None:
            led.keep()
            return led
        led = self._led[key] = LedSharePartition(
            key,
            partition,
            self._persister,
            partial(self.settings_of, key.group),
            self._dead_letters,
            figures=self.figures,
            wall_ms=self._clock.wall_ms,
            spawn=self._tasks.start,
            turn=self._turn,
            closed=self._closed,
        )
        self._of_group.setdefault(key.group, {})[key] = None
        led.load()
        return led

    async def open_loaded(self, key: ShareKey) -> LedSharePartition:
        """Returns the share partition once it is loaded, for an operator. Call `done_with` afterwards."""
        led = self.open(key)
        await led.loaded(LOAD_SECONDS)
        return led

    def done_with(self, led: LedSharePartition) -> None:
        """Drops a share partition that an operator has opened, unless a session of the group uses it."""
        if not self.sessions.has_group(led.key.group):
            led.retire()

    async def verify(self, session: ShareSession) -> None:
        """Asks the share coordinator about partitions that are new in the session, and drops this node's states if
        outdated.

        A group may have been deleted, or its offsets altered, while a former member's session kept the state in use. If
        the coordinator does not answer soon, the partition is served meanwhile: the coordinator will refuse writes of
        an outdated state. After an error, the next request verifies the partition again.
        """
        waiting = list(session.unverified)
        session.unverified.clear()
        for first in starts(len(waiting)):
            found = [
                (slot, self._led.get(ShareKey(session.group, *slot)))
                for slot in waiting[first : first + SLICE_PARTITIONS]
            ]
            in_use = [(slot, led) for slot, led in found if led is not None]
            begun = [asyncio.Event() for _ in in_use]
            for (slot, led), done in zip(in_use, begun):
                self._tasks.start(self._verify(session, slot, led, done))
            if begun:
                with suppress(TimeoutError):
                    async with asyncio.timeout(VERIFY_SECONDS):
                        for done in begun:
                            await done.wait()

    async def _verify(self, session: ShareSession, slot: Slot, led: LedSharePartition, done: asyncio.Event) -> None:
        try:
            await led.verify()
        except KafkaError as error:
            logger.info("the state for share group %s can't be verified yet: %s", session.group, error)
            if slot in session.partitions:
                session.unverified[slot] = None
        finally:
            done.set()

    def _closed(self, led: LedSharePartition) -> None:
        if self._led.get(led.key) is led:
            del self._led[led.key]
            keys = self._of_group[led.key.group]
            del keys[led.key]
            if not keys:
                del self._of_group[led.key.group]

    # --- sessions

    def end_session(self, group: str, member: str) -> None:
        """Ends a share session and releases all records that its member has acquired."""
        session = self.sessions.close(group, member)
        if session is not None:
            self._ended([session])

    def connection_closed(self, owner: object) -> None:
        self._ended(self.sessions.close_owner(owner))

    def _ended(self, sessions: Iterable[ShareSession]) -> None:
        for session in sessions:
            keys = list(self._of_group.get(session.group, ()))
            for key in keys:
                self._led[key].abandon(session.member)
            if not self.sessions.has_group(session.group):
                for key in keys:
                    if key in self._led:
                        self._led[key].retire()
