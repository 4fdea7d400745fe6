"""Runs the HTTP server of a node. Opens it with the other listeners, and serves requests when the broker is ready."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.http.address import LISTENER, PROPERTY, HttpAddress
from penstock.http.history import PROPERTY as HISTORY_INTERVAL
from penstock.http.history import History
from penstock.node.http_security import HttpSecurity
from penstock.node.listeners import (
    HttpUnavailableError,
    ListenerPlan,
    exposed_listeners,
    inter_broker_listener,
    plan_http,
    plan_roles,
)
from penstock.node.record_schemas import plan_schemas
from penstock.node.token_users import token_users
from penstock.security.hosts import is_loopback

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.formats.schemas import Schemas
    from penstock.http.pipelines import Pipelines
    from penstock.http.sampler import Sampler
    from penstock.http.server import HttpServer, Site
    from penstock.http.view import View
    from penstock.log.cleaner import Cleaner
    from penstock.net.server import Server
    from penstock.node.otel import OtelExport
    from penstock.node.parts import World

logger = logging.getLogger(__name__)


class HttpSide:
    """Runs the HTTP listener and the export of metrics, if the settings ask for them."""

    def __init__(
        self,
        world: World,
        plans: Sequence[ListenerPlan],
        metadata: Callable[[], MetadataLog],
        secret_of_nobody: Callable[[], bytes],
        *,
        optional: bool = False,
        pipelines: Pipelines | None = None,
    ) -> None:
        """Reads the HTTP address, and the settings of its TLS, logins and schemas. Raises ListenerError.

        With `optional`, the node starts without HTTP if the address can't be bound. `pipelines` returns the pipelines
        that the console shows. `metadata` returns the metadata log, which holds the users' credentials.
        `secret_of_nobody` returns the secret from which made-up credentials of unknown users are computed.
        """
        self._world = world
        self._address = plan_http(world.settings)
        self._plans = plans
        self._roles = plan_roles(world.settings)
        self._otel: OtelExport | None = None
        if world.settings.str("penstock.otel.endpoint").strip():
            from penstock.node.otel import OtelExport

            self._otel = OtelExport(world.settings)
        self.security: HttpSecurity | None = None
        self._schemas: Schemas | None = None
        self._history = History(world.settings.int(HISTORY_INTERVAL))
        self._sampling: asyncio.Task[None] | None = None
        if self._address is not None:
            self._schemas = plan_schemas(world.settings)
            self.security = HttpSecurity(
                world.settings,
                self._address,
                plans,
                lambda: metadata().image.scram_credentials,
                secret_of_nobody,
                world.clock.wall_ms,
                token_users(world.settings, metadata, world.clock.wall_ms),
                world.audit,
            )
        self._server: HttpServer | None = None
        self._started_ms = 0
        self._optional = optional
        self._pipelines = pipelines
        #: The reason why HTTP is not served although an address is set.
        self.problem: str | None = None

    @property
    def securities(self) -> dict[str, HttpSecurity]:
        """Returns a dict from the HTTP listener's name to its security settings; an empty dict if HTTP is off."""
        return {} if self.security is None else {LISTENER: self.security}

    @property
    def url(self) -> str | None:
        """Returns the URL of the console; None if HTTP is off."""
        return None if self._server is None else self._server.url

    async def open(self) -> None:
        """Opens the listener. Raises HttpUnavailableError if the address can't be bound and HTTP is not optional."""
        self._started_ms = self._world.clock.wall_ms()
        if self._address is None or self.security is None:
            return
        for warning in self.security.warnings(self._world.settings):
            logger.warning("%s", warning)
        await self.security.start()
        from penstock.http.server import HttpServer

        server = HttpServer(
            self._address,
            self._world.network,
            self._names(self._address),
            self.security.tls,
            per_host=self._world.settings.int("penstock.http.max.connections.per.ip"),
        )
        try:
            await server.start()
        except OSError as error:
            self.problem = _sentence(self._address, error)
            if not self._optional:
                raise HttpUnavailableError(self.problem) from error
            logger.info("HTTP is off: %s", self.problem)
        else:
            self._server = server

    def _names(self, address: HttpAddress) -> list[str]:
        """Returns the names of this machine that a Host header may contain, besides the listener's own host."""
        if is_loopback(address.host):
            return []
        return [socket.gethostname(), *(plan.advertised_host for plan in self._plans)]

    def serve(self, broker: Broker, server: Server, cleaner: Cleaner | None = None) -> None:
        """Answers requests with the parts of the node, and begins to export metrics if a collector is set."""
        if self._otel is not None:
            self._otel.start(self._view(broker, server, cleaner))
        if self._server is None:
            return

        def make() -> Site:
            from penstock.http.site import Site

            return Site(self._view(broker, server, cleaner))

        server.loop_delays.start()
        self._server.serve(make)
        sampling = self._sample(self._view(broker, server, cleaner))
        self._sampling = asyncio.get_running_loop().create_task(sampling, name="http-history")

    async def _sample(self, view: View) -> None:
        """Samples rates and lags at intervals, for the history that the console shows."""
        interval_s = self._world.settings.int(HISTORY_INTERVAL) / 1000
        await asyncio.sleep(interval_s)

        def make() -> Sampler:
            from penstock.http.sampler import Sampler

            return Sampler(view, interval_s)

        sampler = await asyncio.to_thread(make)  # its imports take some time
        try:
            await sampler.run()
        finally:
            await sampler.close()

    def _view(self, broker: Broker, server: Server, cleaner: Cleaner | None) -> View:
        from penstock.http.guard import NO_LOGIN
        from penstock.http.pipelines import no_pipelines
        from penstock.http.view import NO_SCHEMAS, View

        world, security = self._world, self.security
        listener = inter_broker_listener(world.settings, self._plans)
        warnings = list(exposed_listeners(world.settings, self._plans))
        warnings += [] if security is None else security.warnings(world.settings)
        return View(
            broker,
            server,
            world.network,
            self._started_ms,
            self._pipelines or no_pipelines,
            listener,
            world.to_brokers,
            warnings,
            self._roles,
            NO_LOGIN if security is None else security.login,
            cleaner=cleaner,
            schemas=self._schemas or NO_SCHEMAS,
            history=self._history,
        )

    async def close(self) -> None:
        if self._otel is not None:
            await self._otel.close()
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
        if self.security is not None:
            self.security.close()


def _sentence(address: HttpAddress, error: OSError) -> str:
    shown = f"{PROPERTY}={address.host}:{address.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{shown}: the port is taken; stop its process, choose another port, or leave the property empty"
    return f"{shown}: can't listen on this address: {error.strerror or error}"
