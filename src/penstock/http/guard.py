"""Guards all routes: refuses forged changes, authenticates the caller, and checks the caller's role and ACLs.

    request ─► forged? 403, 415 ─► public route? served ─► login: 401 ─► role: 403 ─► ACL on the cluster: 403 ─► served

If a route sends Kafka requests for its caller, `on_behalf` checks each of these requests with the caller's ACLs. A
route that reads this node's own state requires an operation on the cluster, such as DESCRIBE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.broker.requests.context import ANONYMOUS, RequestContext
from penstock.broker.requests.local_connection import LocalConnection
from penstock.http.address import LISTENER
from penstock.http.messages import CHANGES, Request, Response
from penstock.http.rest.problems import BODY_TYPE, problem
from penstock.http.roles import Role, Roles
from penstock.security.vocabulary import Operation

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.http.messages import BodyStream

#: The API whose name denials of whole routes have in log and audit lines.
DESCRIBE_CLUSTER = 60
#: Time after which the caller of a stream is checked again.
STREAM_CHECK_S = 1.0
#: Values of Sec-Fetch-Site with which browsers mark requests of this site's own pages, and of the user.
OWN_SITES = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class Need:
    """Describes the role and the operation that a route requires of its caller."""

    role: Role
    operation: Operation | None = None
    """The operation on the cluster that the authorizer has to allow; None if the route checks ACLs itself."""


#: Pages that show this node's view of the whole cluster. Kafka's DescribeLogDirs requires the same operation.
VIEW_CLUSTER = Need(Role.VIEW, Operation.DESCRIBE)
VIEW_CONSOLE = Need(Role.VIEW)


@dataclass(frozen=True, slots=True)
class Caller:
    """Describes the authenticated sender of a request."""

    principal: str = ANONYMOUS
    host: str = ""
    role: Role = Role.ADMIN
    client_id: str = "http"
    """Method and path of the request, for log and audit lines."""

    @property
    def user(self) -> str:
        """Returns the key for limits per user: the principal; for an anonymous caller, also the host."""
        return f"{self.principal} at {self.host}" if self.principal == ANONYMOUS else self.principal

    def context(self, broker: Broker, api_key: int = DESCRIBE_CLUSTER, version: int = 0) -> RequestContext:
        """Returns the request context that the authorizer and the audit file use for a request of this caller."""
        known = None if self.principal == ANONYMOUS else self.principal
        connection = LocalConnection(LISTENER, known, self.host)
        return RequestContext(api_key, version, 0, self.client_id, connection, broker.clock.wall_ms())


NOBODY = Caller()


class Login(Protocol):
    async def identify(self, request: Request) -> str | Response:
        """Returns the principal of the request's sender, or the response that refuses the request."""
        ...


class NoLogin:
    """Accepts every sender as `User:ANONYMOUS`."""

    async def identify(self, request: Request) -> str | Response:
        return ANONYMOUS


NO_LOGIN = NoLogin()


class Guard:
    def __init__(self, broker: Broker, roles: Roles, login: Login) -> None:
        self._broker = broker
        self._roles = roles
        self._login = login

    async def admit(self, request: Request, need: Need | None) -> Caller | Response:
        """Returns the caller if it may use the route, else the response that refuses the request.

        `need` is None for a route that needs no login.
        """
        refusal = forged_change(request)
        if refusal is not None:
            return refusal
        if need is None:
            return NOBODY
        principal = await self._login.identify(request)
        if isinstance(principal, Response):
            return principal
        role = self._roles.of(principal)
        # A caller without a role is only named in the audit line about its refusal.
        caller = Caller(principal, request.peer.host, role or Role.VIEW, f"http {request.method} {request.path}")
        if role is None or role < need.role:
            return problem(403, deny_role(self._broker, caller, need.role))
        access = self._broker.access
        if access is not None and need.operation is not None:
            context = caller.context(self._broker)
            if not access.allows_cluster(context, need.operation):
                return problem(403, f"{principal} has no ACL for {need.operation.name} on the cluster.")
        return caller


class AdmittedStream:
    """Wraps a stream, and ends it soon after its caller has lost the right to read it.

    The caller loses this right if its access token expires, or if a change of its password, role or ACLs forbids the
    request.
    """

    def __init__(self, stream: BodyStream, is_admitted: Callable[[], Awaitable[bool]]) -> None:
        self._stream = stream
        self._parts = aiter(stream)
        self._is_admitted = is_admitted
        self._checked_at = asyncio.get_running_loop().time()

    def __aiter__(self) -> AdmittedStream:
        return self

    async def __anext__(self) -> bytes:
        part = await anext(self._parts)
        now = asyncio.get_running_loop().time()
        if now >= self._checked_at + STREAM_CHECK_S:
            if not await self._is_admitted():
                raise StopAsyncIteration
            self._checked_at = now
        return part

    async def aclose(self) -> None:
        await self._stream.aclose()


def deny_role(broker: Broker, caller: Caller, needed: Role) -> str:
    """Writes an audit line about a caller that does not have the needed role, and returns the reason for the answer."""
    role = needed.name.lower()
    if broker.audit is not None:
        broker.audit.role_missing(caller.context(broker), role)
    return f"{caller.principal} does not have the role {role}, which this request needs."


def forged_change(request: Request) -> Response | None:
    """Returns the response that refuses a forged change: a change that a web page of another site may have sent.

    Returns None for a genuine change. A browser adds the user's login to a forged change automatically. It also adds
    the headers Origin and Sec-Fetch-Site, which pages can't alter. A page can send JSON to another origin only after a
    preflight request, which this server refuses.
    """
    if request.method not in CHANGES:
        return None
    if request.content_type != BODY_TYPE:
        return problem(415, f"A change has to have the header Content-Type: {BODY_TYPE}.")
    # The authority alone, because a proxy in front of this server may have another scheme.
    own_page = not request.origin or request.origin.partition("://")[2].lower() == request.host.lower()
    if not own_page or request.site not in ("", *OWN_SITES):
        return problem(403, "Pages of other sites may not change anything here.")
    return None
