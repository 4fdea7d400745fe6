"""The HTTP side of a node: opened with its other listeners, serving when the broker does, and never in its way."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.http.address import PROPERTY, HttpAddress
from penstock.node.listeners import HttpUnavailableError, ListenerPlan, plan_http

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.http.pipelines import Pipelines
    from penstock.http.server import HttpServer, Site
    from penstock.net.server import Server
    from penstock.node.parts import World

logger = logging.getLogger(__name__)


class HttpSide:
    """Does nothing where no address is set. Raises ListenerError for one that is none."""

    def __init__(
        self, world: World, plans: Sequence[ListenerPlan], *, optional: bool = False, pipelines: Pipelines | None = None
    ) -> None:
        """`optional`: the node starts without HTTP where the address can't be had. `pipelines` lists those of the
        console.
        """
        self._world = world
        self._address = plan_http(world.settings)
        self._plans = plans
        self._server: HttpServer | None = None
        self._started_ms = 0
        self._optional = optional
        self._pipelines = pipelines
        #: Why HTTP is not served although an address is set.
        self.problem: str | None = None

    @property
    def url(self) -> str | None:
        """None where it is off."""
        return None if self._server is None else self._server.url

    async def open(self) -> None:
        """Raises HttpUnavailableError, unless it is optional."""
        if self._address is None:
            return
        self._started_ms = self._world.clock.wall_ms()
        from penstock.http.server import HttpServer

        server = HttpServer(self._address, self._world.network, self._names(self._address))
        try:
            await server.start()
        except OSError as error:
            self.problem = _sentence(self._address, error)
            if not self._optional:
                raise HttpUnavailableError(self.problem) from error
            logger.info("%s", self.problem)
        else:
            self._server = server

    def _names(self, address: HttpAddress) -> list[str]:
        """Under which it may be asked for besides its own: those that clients know this machine by."""
        if _is_loopback(address.host):
            return []
        return [socket.gethostname(), *(plan.advertised_host for plan in self._plans)]

    def serve(self, broker: Broker, server: Server) -> None:
        if self._server is None:
            return

        def make() -> Site:
            from penstock.http.pipelines import no_pipelines
            from penstock.http.site import Site
            from penstock.http.view import View

            pipelines = self._pipelines or no_pipelines
            return Site(View(broker, server, self._world.network, self._started_ms, pipelines))

        self._server.serve(make)

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _sentence(address: HttpAddress, error: OSError) -> str:
    shown = f"{PROPERTY}={address.host}:{address.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{shown}: the port is taken; stop what uses it, choose another, or leave the property empty"
    return f"{shown}: can't listen there: {error.strerror or error}"
