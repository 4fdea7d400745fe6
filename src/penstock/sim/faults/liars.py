"""Sends forged messages in the name of nodes, from a host that does not belong to the cluster. Nodes must refuse them.

If the listeners demand a login, the sender has no login, or logs in as a user without rights. Then its messages have
the current ids and epochs. Without a login, nodes can't distinguish such messages from messages of real nodes, so the
sender only sends messages with stale ids or epochs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any

from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.client.login import Login
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_52_vote import VoteResponse
from penstock.protocol.schema import Struct
from penstock.sim.engine.loop import ProcessLoop, run_in
from penstock.sim.engine.network import SimNetwork
from penstock.sim.engine.secured_listeners import is_secured, login_of
from penstock.sim.faults.forged_messages import Forged, Forger
from penstock.sim.faults.target import FaultTarget
from penstock.sim.plan.plan import FaultPlan

RULE = "forged messages"
STRANGER = "stranger"
#: Number of times that a fault forges its messages, from what the cluster knows at that moment.
ROUNDS = 3
TIMEOUT_S = 2.0


class Liars:
    def __init__(self, target: FaultTarget) -> None:
        self._target = target
        self._forger = Forger(target)
        self._secured = is_secured(target.plan.settings)
        lie: Callable[[FaultPlan, Random], Awaitable[None]] = self._lie
        self.by_kind = dict.fromkeys(self._forger.by_kind, lie)

    async def _lie(self, fault: FaultPlan, random: Random) -> None:
        for _ in range(ROUNDS):
            for forged in list(self._forger.by_kind[fault.kind](random)):
                if self._secured or not forged.knowing:
                    user = random.choice(("", "mallory")) if self._secured else ""
                    await self._send(fault, forged, user)
            await asyncio.sleep(fault.lasts / ROUNDS)

    async def _send(self, fault: FaultPlan, forged: Forged, user: str) -> None:
        target = self._target
        who = user or "a stranger"
        loop = target.timeline.process(STRANGER)
        try:
            answer = await run_in(loop, self._ask(loop, forged, login_of(user) if user else None))
        finally:
            loop.kill()
            target.fabric.process_died(STRANGER, loop)
        target.note(fault, f"{who} tells {forged.receiver.name}: {forged.what}; gets {_shown(answer)}")
        if forged.judged and answer is not None and not is_refused(answer):
            target.story.violated(RULE, f"{forged.receiver.name} believed {who}: {forged.what}")

    async def _ask(self, loop: ProcessLoop, forged: Forged, login: Login | None) -> Any:
        """Returns the answer to a forged message; None if no answer comes."""
        network = SimNetwork(self._target.fabric, STRANGER, loop)
        settings = ConnectionSettings(
            client_id=STRANGER, connect_timeout_s=TIMEOUT_S, request_timeout_s=TIMEOUT_S, login=login
        )
        try:
            connection = await BrokerConnection.open(network, forged.receiver.name, forged.port, settings)
            return await connection.request(forged.request)
        except KafkaError:
            return None


def is_refused(answer: Any) -> bool:
    """Returns True if a vote is not granted, or if an answer of another kind has an error code."""
    if isinstance(answer, VoteResponse):
        return not any(part.vote_granted for topic in answer.topics for part in topic.partitions)
    return any(code != ErrorCode.NONE for code in _codes(answer))


def _codes(message: Any) -> Iterator[int]:
    if isinstance(message, Struct):
        for field in message.FIELDS:
            value = getattr(message, field.name)
            if field.name == "error_code":
                yield value
            elif isinstance(value, list):
                for each in value:
                    yield from _codes(each)


def _shown(answer: Any) -> str:
    if answer is None:
        return "no answer"
    return next((ErrorCode(code).name for code in _codes(answer) if code), "no error")
