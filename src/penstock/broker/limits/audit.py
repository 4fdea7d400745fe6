"""Writes the audit file: one line for each request that is denied or that changes something.

A line has the principal, its address, the API, the resource, the operation and the result.

- A line is a JSON object in ASCII, so that no name from a client can break the line.
- A line has the names of configs but not their values, and the names of users but not their passwords. Long names and
  long lists of names are cut.
- The number of lines per second is limited for each principal, with separate limits for denied, refused and successful
  requests. So very many denied requests of one user do not suppress other lines.
- If lines were left out, a line with their number comes before the next line of the same kind and principal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.broker.limits.rates import TokenBucket, Window
from penstock.broker.requests.context import ANONYMOUS
from penstock.protocol.apis import APIS

if TYPE_CHECKING:
    from penstock.broker.requests.context import RequestConnection, RequestContext
    from penstock.clock import Clock
    from penstock.security.vocabulary import AclResource, Operation

#: Lines per second of one principal, on average over ten seconds. A refused request wanted to change something.
DENIED_PER_S, REFUSED_PER_S, CHANGED_PER_S = 20, 20, 200
#: Limits that are remembered: one for each kind of line and principal. Beyond, the one unused for longest is forgotten.
MAX_LIMITS = 1_000
#: Characters of a name, and names of one request, that a line has.
MAX_CHARS, MAX_NAMES = 200, 20
_WINDOW = Window(samples=10, sample_ms=1000)

DENIED, OK = "DENIED", "OK"


@dataclass(slots=True)
class _Limit:
    """Limits the lines of one kind about one principal, and counts the lines that were left out."""

    bucket: TokenBucket
    missing: int = 0


class Audit:
    """Makes the lines of a node's audit file; `write` appends a line to the file."""

    def __init__(self, clock: Clock, write: Callable[[bytes], None]) -> None:
        self._clock = clock
        self._write = write
        self._limits: dict[tuple[str, str], _Limit] = {}

    def denied(self, ctx: RequestContext, operation: Operation, resource: AclResource, name: str) -> None:
        """Writes a line about a denied request, or about one denied item of a request."""
        self._line("denied", ctx.connection, ctx, operation.name, resource.name, [name], DENIED)

    def role_missing(self, ctx: RequestContext, role: str) -> None:
        """Writes a line about a request that was denied because its sender lacks the required role."""
        self._line("denied", ctx.connection, ctx, "USE", "ROLE", [role], DENIED)

    def changed(
        self, ctx: RequestContext, operation: str, resource: str, names: Iterable[str], result: str | dict[str, str]
    ) -> None:
        """Writes a line about a request that changes something.

        `result` is OK, an error code, or the error codes of refused items.
        """
        self._line("changed" if result == OK else "refused", ctx.connection, ctx, operation, resource, names, result)

    def login_failed(self, connection: RequestConnection, reason: str) -> None:
        """Writes a line about a failed authentication. `reason` contains no secret."""
        self._line("denied", connection, None, "AUTHENTICATE", "CONNECTION", [reason], DENIED)

    def _line(
        self,
        kind: str,
        connection: RequestConnection,
        ctx: RequestContext | None,
        operation: str,
        resource: str,
        names: Iterable[str],
        result: str | dict[str, str],
    ) -> None:
        now_ms = self._clock.wall_ms()
        principal = (connection.principal or ANONYMOUS)[:MAX_CHARS]
        limit = self._limit(now_ms, kind, principal)
        if limit.bucket.excess_ms(now_ms):
            limit.missing += 1
            return
        limit.bucket.take(1, now_ms)
        self._put_missing(now_ms, kind, principal, limit)
        shown = [name[:MAX_CHARS] for name in islice(names, MAX_NAMES + 1)]
        fields: dict[str, Any] = {
            "principal": principal,
            "host": connection.peer_host,
            "listener": connection.listener.name,
            "api": None if ctx is None else APIS[ctx.api_key].name,
            "client_id": None if ctx is None or ctx.client_id is None else ctx.client_id[:MAX_CHARS],
            "operation": operation,
            "resource": resource,
            "names": shown[:MAX_NAMES],
            "result": result,
        }
        if len(shown) > MAX_NAMES:
            fields["more"] = True
        self._put(now_ms, fields)

    def _limit(self, now_ms: int, kind: str, principal: str) -> _Limit:
        found = self._limits.pop((kind, principal), None)
        if found is None:
            found = _Limit(TokenBucket(_RATES[kind], _WINDOW))
            if len(self._limits) >= MAX_LIMITS:
                oldest = next(iter(self._limits))
                self._put_missing(now_ms, *oldest, self._limits.pop(oldest))
        self._limits[kind, principal] = found  # the last one is the one used last
        return found

    def _put_missing(self, now_ms: int, kind: str, principal: str, limit: _Limit) -> None:
        if limit.missing:
            self._put(now_ms, {"missing": limit.missing, "kind": kind, "principal": principal})
            limit.missing = 0

    def _put(self, now_ms: int, fields: dict[str, Any]) -> None:
        time = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
        self._write(json.dumps({"time": time, **fields}, separators=(",", ":")).encode() + b"\n")


_RATES = {"denied": DENIED_PER_S, "refused": REFUSED_PER_S, "changed": CHANGED_PER_S}
