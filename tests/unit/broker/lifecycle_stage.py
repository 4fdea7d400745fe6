"""Plays the controller and the metadata log for tests of a broker's lifecycle, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from penstock.broker.controlplane.lifecycle import Directories, Identity, Lifecycle
from penstock.broker.events import NodeEvent
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import EMPTY_IMAGE, BrokerImage, Endpoint, MetadataImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_62_broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from penstock.protocol.messages.api_63_broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    Suspicion,
)
from penstock.raft.voters import Voter
from penstock.sim.engine.loop import Timeline

INCARNATION = bytes([7] * 16)
DIRECTORY = bytes([8] * 16)
ENDPOINTS = {"PLAINTEXT": Endpoint("h", 9092, 0), "OTHER": Endpoint("i", 9093, 1)}
ME = Identity(1, "c", INCARNATION, True, False, ENDPOINTS, {"CONTROLLER": Endpoint("h", 9094, 0)}, "rack", 3)
INTERVAL_S, SESSION_S = 2.0, 9.0


def broker(broker_id: int, epoch: int = 5, **fields: Any) -> BrokerImage:
    known: dict[str, Any] = {"fenced": False, "log_dirs": (DIRECTORY,)}
    return BrokerImage(broker_id, epoch, INCARNATION, {}, **{**known, **fields})


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Stage:
    """Replaces the channel to the controller and the metadata log. `answers` are used in turn; the last one stays."""

    identity: Identity = ME
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.asked: list[tuple[float, Any]] = []
        self.answers: dict[type, list[Any]] = {
            BrokerRegistrationRequest: [BrokerRegistrationResponse(broker_epoch=5)],
            BrokerHeartbeatRequest: [BrokerHeartbeatResponse(is_fenced=False, is_caught_up=True)],
        }
        self.delay_s = 0.0
        self.image: MetadataImage = replace(EMPTY_IMAGE, offset=10, brokers={1: broker(1)})
        self.reaches_other_cluster = False
        self.voter = Voter(1, DIRECTORY, (("CONTROLLER", "h", 9094),))
        self.voters: tuple[Voter, ...] = ()
        self.directories = Directories([DIRECTORY], [], [])
        self.noted: list[tuple[int, bytes]] = []
        self.events: list[NodeEvent] = []
        self.suspicions: list[Suspicion] = []
        self.lifecycle = Lifecycle(
            self.identity,
            cast(Any, self),
            cast(Any, self),
            Settings({"node.id": "1", **self.settings}),
            lambda: self.directories,
            lambda epoch, asking: self.noted.append((epoch, asking)),
            self.events.append,
            lambda: self.suspicions,
        )

    def quorum(self) -> Any:
        return SimpleNamespace(voters=self.voters)

    async def ask(self, request: Any, *, timeout_ms: int, lane: str = "") -> Any:
        self.asked.append((now(), request))
        await asyncio.sleep(self.delay_s)
        waiting = self.answers[type(request)]
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def show(self, **fields: Any) -> None:
        old, self.image = self.image, replace(self.image, **fields)
        self.lifecycle.apply(old, self.image)

    def requests(self, kind: type) -> list[Any]:
        return [request for _, request in self.asked if isinstance(request, kind)]

    def pauses(self) -> list[float]:
        times = [time for time, request in self.asked if isinstance(request, BrokerHeartbeatRequest)]
        return [round(later - earlier, 1) for earlier, later in pairwise(times)]

    async def beating(self) -> None:
        self.lifecycle.broker_epoch = 5
        await self.lifecycle.unfence()


def play(script: Callable[[], Awaitable[None]]) -> None:
    timeline = Timeline(Random(1))
    timeline.run(script(), timeline.process("node"))  # type: ignore[arg-type]
    timeline.end()


def lost() -> KafkaError:
    return KafkaError(ErrorCode.NETWORK_EXCEPTION, "no controller answers")
