"""Implements scenario commands that hold one request back in flight, so that it may arrive long after its retry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.protocol.apis import APIS
from penstock.sim.engine.connection import RESET
from penstock.sim.faults.aimed_faults import request_in

if TYPE_CHECKING:
    from penstock.sim.engine.connection import Endpoint
    from penstock.sim.engine.network import Fabric

LOOK_S = 0.01
KEYS = {api.name: key for key, api in APIS.items()}


class HeldRequest:
    """Runs the commands `hold`, `held`, `lose-connection` and `release`. One request is held at a time."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._end: Endpoint | None = None
        self.commands: dict[str, Callable[..., Awaitable[str]]] = {
            "hold": self.hold,
            "held": self.held,
            "lose-connection": self.lose_connection,
            "release": self.release,
        }

    async def hold(self, sender: str, api: str, skip: str = "0") -> str:
        """Holds back the next request of this API from a machine, and all later data on the same connection.

        The first `skip` requests are not held back.
        """
        key, still_to_skip = KEYS[api], int(skip)
        self._end = None

        def tap(end: Endpoint, data: bytes) -> None:
            nonlocal still_to_skip
            if self._end is None and end.outgoing and end.host.name == sender and request_in(data, key) is not None:
                if still_to_skip:
                    still_to_skip -= 1
                    return
                end.out.hold()
                self._end = end
                self._fabric.taps = [each for each in self._fabric.taps if each is not tap]

        self._fabric.taps = [*self._fabric.taps, tap]
        return ""

    async def held(self, within: str = "30") -> str:
        async with asyncio.timeout(float(within)):
            while self._end is None:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        return f"{self._end.host.name} has asked {self._end.get_extra_info('peername')[0]}"

    async def lose_connection(self) -> str:
        """Breaks the connection on the sender's side only. The sender then retries over another connection."""
        assert self._end is not None
        self._end.receive(RESET)
        return ""

    async def release(self) -> str:
        assert self._end is not None
        self._end.out.release()
        return ""
