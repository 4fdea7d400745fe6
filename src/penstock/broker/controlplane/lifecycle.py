"""Registers this broker with the active controller, sends its heartbeats, and runs its controlled shutdown.

    start ──register──► registered, fenced ──heartbeat, caught up──► unfenced ──stop──► leaderships moved ──► stopped
                            ▲                                            │
                            └───── registration unknown or stale ◄───────┘

All requests go through the `ControllerChannel`: on the active controller's own node they are function calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.broker.controlplane.metadata_storage import StorageError
from penstock.broker.events import Observer, log_event
from penstock.broker.events.kinds import NetworkPartitionSuspected
from penstock.metadata.controller.assignments import has_directories
from penstock.metadata.controller.broker_states import CORDONED_SINCE
from penstock.metadata.controller.brokers import CONTROLLERS_REGISTER_SINCE
from penstock.metadata.features import SUPPORTED_FEATURES
from penstock.metadata.image import METADATA_VERSION
from penstock.metadata.quarantine import quarantine_reason
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_62_broker_registration as api_62
from penstock.protocol.messages import api_70_controller_registration as api_70
from penstock.protocol.messages import api_80_add_raft_voter as api_80
from penstock.protocol.messages import api_81_remove_raft_voter as api_81
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest, Suspicion
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
#: Pauses between two tries: short while the next answer is expected at once, longer after an error.
SOON_S = 0.02
AGAIN_S = 0.1
SILENCE_S = 1.5  # a shutdown ends after this time without an answer: the controllers probably stop, too
NOT_REGISTERED = frozenset({ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED})
#: Error codes that a retry can't change, with cause and remedy.
REFUSALS = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the controllers at the configured addresses belong to another cluster: "
    "configure the controllers of this cluster, or format the directories with the other cluster's id",
    ErrorCode.UNSUPPORTED_VERSION: "its version doesn't support the cluster's finalized features: upgrade the node",
    ErrorCode.INVALID_REGISTRATION: "the controller rejected its listeners or log directories: compare them with those "
    "of the other brokers",
}
DUPLICATE = "another broker with the same node.id is running: set a node.id that no other broker has"


class RefusedError(StorageError):
    """Raised if the cluster refuses this node's registration. The message has cause and remedy."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Holds the data that this incarnation of the node registers: ids, endpoints, state of the previous incarnation."""

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
    """Holds the ids of this broker's log directories: directories in use, failed directories, and cordoned directories.

    A cordoned directory gets no new replicas.
    """

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
        observer: Observer = log_event,
        suspicions: Callable[[], list[Suspicion]] = list,
    ) -> None:
        self._observer = observer
        self._suspects_network = False
        self._suspicions = suspicions
        self._quarantine_logged = False
        self._note_incarnation = note_incarnation
        self.identity = identity
        self.broker_epoch = -1
        self._channel = channel
        self._metadata = metadata
        self._settings = settings
        self._directories = directories
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._image_changed = asyncio.Event()
        self._wants_shut_down = False
        self._answered_at = 0.0
        self._may_shut_down = asyncio.Event()

    def apply(self, old: MetadataImage, new: MetadataImage) -> None:
        """Wakes the tasks that wait for a change of the image.

        If another broker begins to shut down, this broker sends a heartbeat at once. The controller lets the other
        broker stop only after the heartbeats of all brokers contain the new metadata offset.
        """
        self._image_changed.set()
        if new.brokers is not old.brokers and _shutting_down(new) - _shutting_down(old):
            self._wake.set()  # that broker waits until every other broker's heartbeat shows the new metadata offset

    # --- registration ---------------------------------------------------------------------------------------

    async def register(self) -> None:
        """Registers this node, and waits until its image has every record that was written before the registration.

        Raises RefusedError.
        """
        if self.identity.is_controller:
            self._start(self._register_controller(), "controller-registration")
            self._start(self._join_quorum(), "quorum-membership")
        if self.identity.is_broker:
            await self._register_broker(asyncio.get_running_loop().time())
            await self._until(lambda image: image.offset >= self.broker_epoch)

    async def unfence(self) -> None:
        """Starts the heartbeats, and waits until the controller has unfenced this broker."""
        if not self.identity.is_broker:
            return
        self._start(self._beat(), "broker-heartbeat")
        await self._until(self._is_unfenced)

    def _is_unfenced(self, image: MetadataImage) -> bool:
        broker = image.brokers.get(self.identity.node_id)
        return broker is not None and broker.epoch == self.broker_epoch and not broker.fenced

    async def sees(self, condition: Callable[[MetadataImage], bool], limit_s: float) -> bool:
        """Waits until the condition is true for this node's image. Returns False after `limit_s` seconds."""
        try:
            async with asyncio.timeout(limit_s):
                await self._until(condition)
        except TimeoutError:
            return False
        return True

    async def _until(self, condition: Callable[[MetadataImage], bool]) -> None:
        while not condition(self._metadata.image):
            self._image_changed.clear()
            await self._image_changed.wait()

    async def _register_broker(self, began_s: float) -> None:
        """Registers this broker.

        Waits for a controller without a time limit. Retries a refused registration for a limited time. The incarnation
        id is stored before the first attempt. If the process dies before the response arrives, the next process
        registers with the same incarnation id. So the controller does not mistake the dead process for another running
        broker.
        """
        me = self.identity
        self._note_incarnation(
            me.previous_broker_epoch if self.broker_epoch < 0 else self.broker_epoch, me.incarnation_id
        )
        patience_s = self._settings.int("initial.broker.registration.timeout.ms") / 1000
        loop = asyncio.get_running_loop()
        logged: ErrorCode | None = None
        ended_epoch = -1
        while True:
            try:
                request = self._registration(ended_epoch)
                answer = await self._channel.ask(request, timeout_ms=REGISTRATION_TRY_MS, lane=LANE)
            except KafkaError as error:
                if self._metadata.reaches_other_cluster:
                    raise RefusedError(self._refusal(ErrorCode.INCONSISTENT_CLUSTER_ID)) from None
                logger.warning("broker %d is not registered yet and retries: %s", self.identity.node_id, error.message)
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
            if code is ErrorCode.BROKER_ID_NOT_REGISTERED:  # repeating the epoch proves that this process is running
                ended_epoch = answer.broker_epoch
                await asyncio.sleep(SOON_S)
                continue
            if code is not logged:  # once, not at every try: the previous incarnation's session may not have ended yet
                logged = code
                logger.warning(
                    "the registration of this broker was refused and is retried for up to %.0f s: %s",
                    patience_s,
                    self._refusal(code),
                )
            await asyncio.sleep(AGAIN_S)

    def _refusal(self, code: ErrorCode) -> str:
        duplicate = code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        why = REFUSALS.get(
            code, DUPLICATE if duplicate else f"the controller answered {code.name}: see the controller's log"
        )
        me = self.identity
        kind = "Broker" if me.is_broker else "Controller"
        return f"{kind} {me.node_id} with directories of cluster {me.cluster_id} was refused: {why}."

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
        logged = False
        while True:
            try:
                answer = await self._channel.ask(request, timeout_ms=REGISTRATION_TRY_MS, lane=LANE)
            except KafkaError as error:
                if self._metadata.reaches_other_cluster and not logged:
                    logged = True
                    logger.error("%s", self._refusal(ErrorCode.INCONSISTENT_CLUSTER_ID))
                logger.info("controller %d is not registered yet and retries: %s", me.node_id, error.message)
                await asyncio.sleep(AGAIN_S)  # some errors come at once, even without a request
                continue
            if not answer.error_code:
                return
            code = ErrorCode(answer.error_code).name
            logger.warning("controller %d is not registered yet: the active controller answered %s", me.node_id, code)
            if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
                await self._until(lambda image: image.features.get(METADATA_VERSION, 0) >= CONTROLLERS_REGISTER_SINCE)
            await asyncio.sleep(1.0)

    async def _join_quorum(self) -> None:
        """Logs a warning while this controller is not a voter.

        If auto-join is on (KIP-853), also asks the quorum's leader to add this controller as a voter.
        """
        await self._until(lambda image: image.offset >= 0)
        joins = self._settings.bool("controller.quorum.auto.join.enable")
        logged = False
        while True:
            problem, request = self._membership()
            if problem is None:
                return
            if not logged:
                logger.warning("%s", problem)
                logged = True
            if joins and request is not None:
                try:
                    answer = await self._channel.ask(request, timeout_ms=MEMBERSHIP_TRY_MS)
                    result = answer.error_message or ErrorCode(answer.error_code).name
                    logger.info("the quorum's leader answered the request to change the voters: %s", result)
                except KafkaError as error:
                    logger.info("the request to change the quorum's voters failed and is repeated: %s", error.message)
            await asyncio.sleep(1.0)

    def _membership(self) -> tuple[str | None, Any]:
        """Returns why this controller is not a voter, and the next request to send so that it becomes a voter.

        Returns (None, None) if this controller is a voter.
        """
        me, view = self._metadata.voter, self._metadata.quorum()
        listed = next((voter for voter in view.voters if voter.node_id == me.node_id), None)
        if not view.voters or (listed is not None and listed.directory_id in (ZERO_UUID, me.directory_id)):
            return None, None
        cluster_id = self.identity.cluster_id
        if listed is not None:
            problem = (
                f"Controller {me.node_id} is no voter: the quorum lists voter {me.node_id} with another directory id. "
                "Remove that voter from the quorum, then add this controller."
            )
            return problem, api_81.RemoveRaftVoterRequest(
                cluster_id=cluster_id, voter_id=me.node_id, voter_directory_id=listed.directory_id
            )
        problem = f"Controller {me.node_id} is no voter yet: add it to the quorum's voters."
        listeners = [api_80.Listener(name=name, host=host, port=port) for name, host, port in me.endpoints]
        return problem, api_80.AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=MEMBERSHIP_TRY_MS,
            voter_id=me.node_id,
            voter_directory_id=me.directory_id,
            listeners=listeners,
        )

    # --- heartbeats -----------------------------------------------------------------------------------------

    def beat_now(self) -> None:
        """Sends a heartbeat at once, so that the controller soon learns of a change such as a failed directory."""
        self._wake.set()

    async def _beat(self) -> None:
        interval_s = self._settings.int("broker.heartbeat.interval.ms") / 1000
        # If a heartbeat is lost on a dead connection, there is time for another within the session.
        timeout_ms = self._settings.int("broker.session.timeout.ms") // 2
        while True:
            pause_s = AGAIN_S
            self._wake.clear()  # before the heartbeat is built: a change while it is in flight causes another at once
            try:
                answer = await self._channel.ask(self._heartbeat(), timeout_ms=timeout_ms, lane=LANE)
                pause_s = await self._handle_answer(answer, interval_s)
            except KafkaError as error:
                logger.warning("a heartbeat of broker %d got no answer: %s", self.identity.node_id, error.message)
                self._no_answer()
            except RefusedError as error:
                logger.critical("%s", error)
            except Exception:  # without heartbeats this broker would be fenced for good
                logger.exception("a heartbeat of broker %d failed and is repeated", self.identity.node_id)
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _no_answer(self) -> None:
        """Emits an event about a suspected network partition if no controller answered within the session timeout.

        Emits only one event in each outage.
        """
        timeout_s = self._settings.int("broker.session.timeout.ms") / 1000
        silent = self._answered_at and asyncio.get_running_loop().time() - self._answered_at >= timeout_s
        if silent and not self._suspects_network:
            self._suspects_network = True
            reason = f"no controller has answered broker {self.identity.node_id} for {timeout_s * 1000:.0f} ms"
            self._observer(NetworkPartitionSuspected(reason, ()))

    async def _handle_answer(self, answer: Any, interval_s: float) -> float:
        """Handles the response to a heartbeat, and returns the pause until the next heartbeat."""
        self._answered_at = asyncio.get_running_loop().time()
        self._suspects_network = False
        code = ErrorCode(answer.error_code)
        if code in NOT_REGISTERED:
            logger.warning(
                "broker %d registers again: its heartbeat was answered with %s", self.identity.node_id, code.name
            )
            await self._register_broker(asyncio.get_running_loop().time())
            return 0.0
        if code:
            logger.warning("the controller answered broker %d's heartbeat with %s", self.identity.node_id, code.name)
            return AGAIN_S
        if answer.should_shut_down:
            self._may_shut_down.set()
        if self._directories_unregistered():
            await self._register_directories()
        if answer.is_fenced and self._is_quarantined() and not self._wants_shut_down:
            return interval_s
        if self._wants_shut_down or answer.is_fenced:
            return SOON_S
        return interval_s

    def _is_quarantined(self) -> bool:
        """Returns True if this broker is in quarantine. Logs the quarantine once."""
        me = self.identity.node_id
        reason = quarantine_reason(self._metadata.image, me)
        if reason is not None and not self._quarantine_logged:
            release = f"check its disks, then run `penstock guard release {me}`"
            logger.error("broker %d is in quarantine and stays fenced: %s; %s", me, reason, release)
        self._quarantine_logged = reason is not None
        return reason is not None

    def _directories_unregistered(self) -> bool:
        """Returns True if this broker registered before metadata.version supported directory ids."""
        image = self._metadata.image
        broker = image.brokers.get(self.identity.node_id)
        is_mine = broker is not None and broker.epoch == self.broker_epoch
        return broker is not None and is_mine and not broker.log_dirs and has_directories(image)

    async def _register_directories(self) -> None:
        """Registers again, now with directory ids. A failed registration is repeated after the next heartbeat.

        Does not store the incarnation id, because the next process of this broker must not reuse it.
        """
        answer = await self._channel.ask(self._registration(-1), timeout_ms=REGISTRATION_TRY_MS, lane=LANE)
        if answer.error_code:
            code = ErrorCode(answer.error_code).name
            logger.warning("the directories of broker %d could not be registered: %s", self.identity.node_id, code)

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        directories = self._directories()
        # The controller rejects `cordoned_log_dirs` below metadata.version CORDONED_SINCE.
        may_cordon = self._metadata.image.features.get(METADATA_VERSION, 0) >= CORDONED_SINCE
        return BrokerHeartbeatRequest(
            broker_id=self.identity.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata.image.offset,
            want_fence=False,
            want_shut_down=self._wants_shut_down,
            offline_log_dirs=directories.offline,
            cordoned_log_dirs=directories.cordoned if may_cordon else None,
            suspicions=self._suspicions(),
        )

    # --- controlled shutdown --------------------------------------------------------------------------------

    async def hand_over(self, limit_s: float) -> None:
        """Requests a controlled shutdown: the controller moves this broker's leaderships to other brokers.

        Returns at once if no other broker can take over the leaderships.
        """
        image, me = self._metadata.image, self.identity.node_id
        others = [broker for broker in image.brokers.values() if broker.broker_id != me and broker.usable]
        enabled = self._settings.bool("controlled.shutdown.enable")
        if not self.identity.is_broker or not others or not enabled or not self._is_unfenced(image):
            return
        self._wants_shut_down = True
        self._wake.set()
        loop = asyncio.get_running_loop()
        began = self._answered_at = loop.time()
        while not self._may_shut_down.is_set():
            if loop.time() - began > limit_s or loop.time() - self._answered_at > SILENCE_S:
                logger.warning("broker %d stops before the controller has moved all its leaderships", me)
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


def _shutting_down(image: MetadataImage) -> set[int]:
    return {id_ for id_, broker in image.brokers.items() if broker.in_controlled_shutdown and not broker.fenced}


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
