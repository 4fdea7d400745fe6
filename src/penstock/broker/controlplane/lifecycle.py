"""A broker's standing with the active controller: registered, then unfenced by heartbeats, and handed over at the end.

    start ──register──► registered, fenced ──heartbeat, caught up──► unfenced ──stop──► leaderships moved ──► gone
                            ▲                                            │
                            └──────── the controller doesn't know it ◄───┘

Everything goes through the channel: on a node that is the active controller itself no byte leaves the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.broker.controlplane.metadata_storage import StorageError
from penstock.metadata.controller.assignments import has_directories
from penstock.metadata.controller.broker_states import CORDONED_SINCE
from penstock.metadata.controller.brokers import CONTROLLERS_REGISTER_SINCE
from penstock.metadata.features import SUPPORTED_FEATURES
from penstock.metadata.image import METADATA_VERSION
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_62_broker_registration as api_62
from penstock.protocol.messages import api_70_controller_registration as api_70
from penstock.protocol.messages import api_80_add_raft_voter as api_80
from penstock.protocol.messages import api_81_remove_raft_voter as api_81
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest
from penstock.protocol.uuid import ZERO_UUID

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_channel import ControllerChannel
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import Endpoint, MetadataImage

logger = logging.getLogger(__name__)

LANE = "heartbeat"
REGISTRATION_TRY_MS = 3_000
MEMBERSHIP_TRY_MS = 10_000
#: Pauses between two tries while something is being waited for.
SOON_S = 0.02
AGAIN_S = 0.1
SILENCE_S = 1.5  # no controller for that long while this broker stops: the others stop, too
NOT_KNOWN = frozenset({ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED})
#: What no later try changes, and what to do about it.
REFUSALS = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the controllers it reaches belong to another cluster: give it the addresses of "
    "its own cluster, or directories formatted with the id of theirs",
    ErrorCode.UNSUPPORTED_VERSION: "it is too old for the cluster's features: upgrade it first",
    ErrorCode.INVALID_REGISTRATION: "the controller finds its listeners or directories wrong: compare them with those "
    "of the other brokers",
}
DUPLICATE = "another broker with the same node.id is running: give this one an id of its own"


class RefusedError(StorageError):
    """The cluster doesn't take this node in. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is in this life."""

    node_id: int
    cluster_id: str
    incarnation_id: bytes
    is_broker: bool
    is_controller: bool
    endpoints: Mapping[str, Endpoint]
    controller_endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    previous_broker_epoch: int = -1
    #: Partitions, by topic id, whose logs were marked as synced when this process started.
    synced: Mapping[bytes, Sequence[int]] = field(default_factory=dict)


class Directories(NamedTuple):
    """Ids of log directories: those in use, those that failed, and those that take nothing new."""

    online: list[bytes]
    offline: list[bytes]
    cordoned: list[bytes]


class Lifecycle:
    def __init__(
        self,
        identity: Identity,
        channel: ControllerChannel,
        metadata: MetadataLog,
        settings: Settings,
        directories: Callable[[], Directories],
        note_incarnation: Callable[[int, bytes], None] = lambda epoch, asking: None,
    ) -> None:
        self._note_incarnation = note_incarnation
        self.identity = identity
        self.broker_epoch = -1
        self._channel = channel
        self._metadata = metadata
        self._settings = settings
        self._directories = directories
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._wants_shut_down = False
        self._heard_at = 0.0
        self._may_shut_down = asyncio.Event()

    def apply(self, old: MetadataImage, new: MetadataImage) -> None:
        """Wakes the tasks that wait for an image, and the heartbeat if a broker begins to shut down."""
        self._news.set()
        if new.brokers is not old.brokers and _leaving(new) - _leaving(old):
            self._wake.set()  # a broker that shuts down waits until all the others have heard of it

    # --- coming ---------------------------------------------------------------------------------------------

    async def register(self) -> None:
        """Registered, and everything that was decided before that is in the image. Raises RefusedError."""
        if self.identity.is_controller:
            self._start(self._register_controller(), "controller-registration")
            self._start(self._join_quorum(), "quorum-membership")
        if self.identity.is_broker:
            await self._register_broker(asyncio.get_running_loop().time())
            await self._until(lambda image: image.offset >= self.broker_epoch)

    async def unfence(self) -> None:
        """Heartbeats from now on. Returns when the cluster counts on this broker."""
        if not self.identity.is_broker:
            return
        self._start(self._beat(), "broker-heartbeat")
        await self._until(self._is_unfenced)

    def _is_unfenced(self, image: MetadataImage) -> bool:
        broker = image.brokers.get(self.identity.node_id)
        return broker is not None and broker.epoch == self.broker_epoch and not broker.fenced

    async def sees(self, condition: Callable[[MetadataImage], bool], limit_s: float) -> bool:
        """Whether the condition holds of this node's image, now or within the limit."""
        try:
            async with asyncio.timeout(limit_s):
                await self._until(condition)
        except TimeoutError:
            return False
        return True

    async def _until(self, condition: Callable[[MetadataImage], bool]) -> None:
        while not condition(self._metadata.image):
            self._news.clear()
            await self._news.wait()

    async def _register_broker(self, began_s: float) -> None:
        """A controller that can't be reached is waited for; one that refuses is believed after a while.

        First it is noted who asks: should the process die before it hears, the next one asks under the same name, and
        nobody holds the registration that was made meanwhile for a life that ended without a word.
        """
        me = self.identity
        self._note_incarnation(
            me.previous_broker_epoch if self.broker_epoch < 0 else self.broker_epoch, me.incarnation_id
        )
        patience_s = self._settings.int("initial.broker.registration.timeout.ms") / 1000
        loop = asyncio.get_running_loop()
        said: ErrorCode | None = None
        ended_epoch = -1
        while True:
            try:
                request = self._registration(ended_epoch)
                answer = await self._channel.ask(request, timeout_ms=REGISTRATION_TRY_MS, lane=LANE)
            except KafkaError as error:
                if self._metadata.among_strangers:
                    raise RefusedError(self._refusal(ErrorCode.INCONSISTENT_CLUSTER_ID)) from None
                logger.warning("broker %d is not registered yet: %s", self.identity.node_id, error.message)
                began_s = loop.time()
                await asyncio.sleep(AGAIN_S)
                continue
            code = ErrorCode(answer.error_code)
            if not code:
                self.broker_epoch = answer.broker_epoch
                self._note_incarnation(answer.broker_epoch, ZERO_UUID)
                return
            if code in REFUSALS or loop.time() - began_s >= patience_s:
                raise RefusedError(self._refusal(code))
            if code is ErrorCode.BROKER_ID_NOT_REGISTERED:  # only a process that runs can name the epoch it is told
                ended_epoch = answer.broker_epoch
                await asyncio.sleep(SOON_S)
                continue
            if code is not said:  # once, not ten times a second: a life before this one may just not be over yet
                said = code
                logger.warning("%s It goes on asking for up to %.0f s.", self._refusal(code), patience_s)
            await asyncio.sleep(AGAIN_S)

    def _refusal(self, code: ErrorCode) -> str:
        duplicate = code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        why = REFUSALS.get(code, DUPLICATE if duplicate else f"the controller says {code.name}: see its log")
        me = self.identity
        kind = "Broker" if me.is_broker else "Controller"
        return f"{kind} {me.node_id} with directories of cluster {me.cluster_id} stays out: {why}."

    def _registration(self, ended_epoch: int) -> api_62.BrokerRegistrationRequest:
        me = self.identity
        return api_62.BrokerRegistrationRequest(
            broker_id=me.node_id,
            cluster_id=me.cluster_id,
            incarnation_id=me.incarnation_id,
            listeners=_listeners(api_62.Listener, me.endpoints),
            features=_features(api_62.Feature),
            rack=me.rack,
            log_dirs=self._directories().online,
            previous_broker_epoch=me.previous_broker_epoch,
            synced_topics=[
                api_62.SyncedTopic(topic_id=topic, partitions=list(some)) for topic, some in me.synced.items()
            ],
            ended_broker_epoch=ended_epoch,
        )

    async def _register_controller(self) -> None:
        me = self.identity
        request = api_70.ControllerRegistrationRequest(
            controller_id=me.node_id,
            incarnation_id=me.incarnation_id,
            zk_migration_ready=False,
            listeners=_listeners(api_70.Listener, me.controller_endpoints),
            features=_features(api_70.Feature),
        )
        told = False
        while True:
            try:
                answer = await self._channel.ask(request, timeout_ms=REGISTRATION_TRY_MS, lane=LANE)
            except KafkaError as error:
                if self._metadata.among_strangers and not told:
                    told = True
                    logger.error("%s", self._refusal(ErrorCode.INCONSISTENT_CLUSTER_ID))
                logger.info("controller %d is not registered yet: %s", me.node_id, error.message)
                continue
            if not answer.error_code:
                return
            logger.warning("controller %d is not registered: %s", me.node_id, ErrorCode(answer.error_code).name)
            if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
                await self._until(lambda image: image.features.get(METADATA_VERSION, 0) >= CONTROLLERS_REGISTER_SINCE)
            await asyncio.sleep(1.0)

    async def _join_quorum(self) -> None:
        """A controller that doesn't vote says so, or asks to vote where it may (KIP-853)."""
        await self._until(lambda image: image.offset >= 0)
        joins = self._settings.bool("controller.quorum.auto.join.enable")
        told = False
        while True:
            sentence, request = self._membership()
            if sentence is None:
                return
            if not told:
                logger.warning("%s", sentence)
                told = True
            if joins and request is not None:
                try:
                    answer = await self._channel.ask(request, timeout_ms=MEMBERSHIP_TRY_MS)
                    logger.info("the quorum's voters: %s", answer.error_message or ErrorCode(answer.error_code).name)
                except KafkaError as error:
                    logger.info("the quorum's voters could not be changed: %s", error.message)
            await asyncio.sleep(1.0)

    def _membership(self) -> tuple[str | None, Any]:
        """What is wrong with this controller's vote, and the request that brings it nearer to one."""
        me, view = self._metadata.voter, self._metadata.quorum()
        listed = next((voter for voter in view.voters if voter.node_id == me.node_id), None)
        if not view.voters or (listed is not None and listed.directory_id in (ZERO_UUID, me.directory_id)):
            return None, None
        cluster_id = self.identity.cluster_id
        if listed is not None:
            sentence = (
                f"Node {me.node_id} has another disk than the one that votes as node {me.node_id}, and doesn't vote: "
                "remove that voter from the quorum, then add this one."
            )
            return sentence, api_81.RemoveRaftVoterRequest(
                cluster_id=cluster_id, voter_id=me.node_id, voter_directory_id=listed.directory_id
            )
        sentence = f"Controller {me.node_id} doesn't vote yet: add it to the quorum's voters."
        listeners = [api_80.Listener(name=name, host=host, port=port) for name, host, port in me.endpoints]
        return sentence, api_80.AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=MEMBERSHIP_TRY_MS,
            voter_id=me.node_id,
            voter_directory_id=me.directory_id,
            listeners=listeners,
        )

    # --- being there ----------------------------------------------------------------------------------------

    def beat_now(self) -> None:
        """Something changed that the controller should hear of at once, as a directory that failed."""
        self._wake.set()

    async def _beat(self) -> None:
        interval_s = self._settings.int("broker.heartbeat.interval.ms") / 1000
        # One that is lost on its way, on a connection that leads nowhere any more, leaves time for another.
        timeout_ms = self._settings.int("broker.session.timeout.ms") // 2
        while True:
            pause_s = AGAIN_S
            self._wake.clear()  # before it is said how things are: what changes while it is on its way is told at once
            try:
                answer = await self._channel.ask(self._heartbeat(), timeout_ms=timeout_ms, lane=LANE)
                pause_s = await self._heard(answer, interval_s)
            except KafkaError as error:
                logger.warning("broker %d can't reach the controller: %s", self.identity.node_id, error.message)
            except RefusedError as error:
                logger.critical("%s", error)
            except Exception:  # without heartbeats this broker would be fenced, and never come back
                logger.exception("a heartbeat of broker %d failed: once more", self.identity.node_id)
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _heard(self, answer: Any, interval_s: float) -> float:
        """How long to wait until the next heartbeat."""
        self._heard_at = asyncio.get_running_loop().time()
        code = ErrorCode(answer.error_code)
        if code in NOT_KNOWN:
            logger.warning("broker %d registers again: %s", self.identity.node_id, code.name)
            await self._register_broker(asyncio.get_running_loop().time())
            return 0.0
        if code:
            logger.warning("the controller answers broker %d's heartbeat with %s", self.identity.node_id, code.name)
            return AGAIN_S
        if answer.should_shut_down:
            self._may_shut_down.set()
        if self._directories_untold():
            await self._tell_directories()
        if self._wants_shut_down or answer.is_fenced:
            return SOON_S
        return interval_s

    def _directories_untold(self) -> bool:
        """True if this broker registered before the metadata.version was raised to one with directories."""
        image = self._metadata.image
        broker = image.brokers.get(self.identity.node_id)
        is_mine = broker is not None and broker.epoch == self.broker_epoch
        return broker is not None and is_mine and not broker.log_dirs and has_directories(image)

    async def _tell_directories(self) -> None:
        """The same registration once more; should it fail, the next heartbeat is followed by another.

        It is not noted that this process asks: a later one must not take over this one's name and epoch.
        """
        answer = await self._channel.ask(self._registration(-1), timeout_ms=REGISTRATION_TRY_MS, lane=LANE)
        if answer.error_code:
            code = ErrorCode(answer.error_code).name
            logger.warning("the controller was not told of broker %d's directories: %s", self.identity.node_id, code)

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        directories = self._directories()
        # A controller of an older version of the metadata doesn't take the question.
        may_cordon = self._metadata.image.features.get(METADATA_VERSION, 0) >= CORDONED_SINCE
        return BrokerHeartbeatRequest(
            broker_id=self.identity.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata.image.offset,
            want_fence=False,
            want_shut_down=self._wants_shut_down,
            offline_log_dirs=directories.offline,
            cordoned_log_dirs=directories.cordoned if may_cordon else None,
        )

    # --- going ----------------------------------------------------------------------------------------------

    async def hand_over(self, limit_s: float) -> None:
        """Controlled shutdown: others lead what this broker led, before it goes. Alone there is nobody to ask."""
        image, me = self._metadata.image, self.identity.node_id
        others = [one for one in image.brokers.values() if one.broker_id != me and one.usable]
        enabled = self._settings.bool("controlled.shutdown.enable")
        if not self.identity.is_broker or not others or not enabled or not self._is_unfenced(image):
            return
        self._wants_shut_down = True
        self._wake.set()
        loop = asyncio.get_running_loop()
        began = self._heard_at = loop.time()
        while not self._may_shut_down.is_set():
            if loop.time() - began > limit_s or loop.time() - self._heard_at > SILENCE_S:
                logger.warning("broker %d stops with leaderships that could not be moved", me)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._may_shut_down.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()

    def _start(self, work: Any, name: str) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work, name=name))


def _leaving(image: MetadataImage) -> set[int]:
    return {broker_id for broker_id, one in image.brokers.items() if one.in_controlled_shutdown and not one.fenced}


def _listeners(kind: Any, endpoints: Mapping[str, Endpoint]) -> list[Any]:
    return [
        kind(name=name, host=one.host, port=one.port, security_protocol=one.security_protocol)
        for name, one in endpoints.items()
    ]


def _features(kind: Any) -> list[Any]:
    return [
        kind(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
    ]
