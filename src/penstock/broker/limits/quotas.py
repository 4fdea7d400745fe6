"""Enforces client quotas: on produced and fetched bytes, handler time, metadata changes and new connections.

For each kind of quota, a (user, client id) pair is limited by one entity: the most specific entity with a quota, in
Kafka's order. Requests count against the rate of this entity; for example, all clients of a user share the user's
quota. A response contains the throttle time, and the connection is muted for that time. If no quota of a kind is set, a
request costs only one lookup in an empty dict for this kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.broker.limits.rates import Rate, TokenBucket, Window
from penstock.metadata.controller.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    address_of,
)
from penstock.security.hosts import canonical_host

if TYPE_CHECKING:
    from penstock.broker.requests.context import RequestContext
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage, QuotaEntity

# Maximum number of rates for each kind of quota, of clients or addresses; beyond it the oldest rate is dropped.
MAX_TRACKED = 10_000
NO_LIMIT = 2**63 - 1
ANONYMOUS = "ANONYMOUS"
# One nanosecond of handler time as percent of a second.
PERCENT_PER_NANOSECOND = 100 / 1e9

Meter = TypeVar("Meter", Rate, TokenBucket)
# The key of a shared rate: (user, client id), with "" for a part that the quota's entity does not name.
Tag = tuple[str, str]


class Quotas:
    """Holds all client quotas of a node. `apply_image` is called when the quotas in the metadata image change."""

    def __init__(self, settings: Settings, nanoseconds: Callable[[], int] = lambda: 0) -> None:
        """Creates the quotas. `nanoseconds` is the clock for handler time; without it handler time is not counted."""
        window = _window(settings, "quota")
        self.nanoseconds = nanoseconds
        self._window = window
        self.produce = ClientQuota(PRODUCER_BYTE_RATE, window, Rate)
        self.fetch = ClientQuota(CONSUMER_BYTE_RATE, window, Rate)
        self.request = ClientQuota(REQUEST_PERCENTAGE, window, Rate)
        self.mutation = ClientQuota(CONTROLLER_MUTATION_RATE, _window(settings, "controller.quota"), TokenBucket)
        self.connection = AddressQuota(window)
        self._applied: Mapping[QuotaEntity, Mapping[str, float]] | None = None

    def apply_image(self, image: MetadataImage) -> None:
        if image.client_quotas is self._applied:
            return
        self._applied = image.client_quotas
        for quota in (self.produce, self.fetch, self.request):
            quota.set_limits(image.client_quotas)
        self.mutation.set_limits(image.client_quotas)
        self.connection.set_limits(image.client_quotas)

    def record_produce(self, ctx: RequestContext, size: int) -> int:
        """Counts produced bytes; returns the throttle time in milliseconds."""
        if not self.produce.limits:
            return 0
        rate = self.produce.meter(ctx.principal, ctx.client_id)
        return 0 if rate is None else rate.record(size, ctx.now_ms)

    def record_fetch(self, ctx: RequestContext, size: int) -> int:
        """Counts bytes that are about to be sent; returns the throttle time in milliseconds.

        If the client is throttled, the bytes are not counted, because the caller sends an empty response.
        """
        if not self.fetch.limits:
            return 0
        rate = self.fetch.meter(ctx.principal, ctx.client_id)
        if rate is None:
            return 0
        was_idle = rate.idle(ctx.now_ms)
        throttle_ms = rate.record(size, ctx.now_ms)
        if throttle_ms and was_idle:
            # Otherwise a batch larger than the quota of a whole window would never be sent.
            return 0
        if throttle_ms:
            rate.forget(size, ctx.now_ms)
        return throttle_ms

    def max_fetch_bytes(self, ctx: RequestContext) -> int:
        """Returns the largest size of a response within the fetch quota: the bytes that one whole window allows."""
        if not self.fetch.limits:
            return NO_LIMIT
        rate = self.fetch.meter(ctx.principal, ctx.client_id)
        return NO_LIMIT if rate is None else int(rate.limit * self._window.full_ms / 1000)

    def record_request(self, ctx: RequestContext, nanoseconds: int) -> int:
        """Counts handler time; returns the throttle time in milliseconds.

        The throttle time is at most the length of one sample, so that slow requests do not lock a client out.
        """
        if not self.request.limits:
            return 0
        rate = self.request.meter(ctx.principal, ctx.client_id)
        if rate is None:
            return 0
        return min(rate.record(nanoseconds * PERCENT_PER_NANOSECOND, ctx.now_ms), self._window.sample_ms)

    def record_connection(self, address: str, now_ms: int) -> int:
        """Counts a new connection.

        Returns 0 if it is accepted; otherwise the milliseconds to wait before closing it.
        """
        if not self.connection.limits:
            return 0
        rate = self.connection.meter(canonical_host(address))
        if rate is None:
            return 0
        throttle_ms = rate.record(1, now_ms)
        if throttle_ms:
            rate.forget(1, now_ms)
        return throttle_ms


class ClientQuota(Generic[Meter]):
    """Holds the quotas of one kind, such as produced bytes, for users and client ids, with a rate for each entity."""

    __slots__ = ("_key", "_make", "_meters", "_resolved", "_window", "limits")

    def __init__(self, key: str, window: Window, make: Callable[[float, Window], Meter]) -> None:
        self._key = key
        self._window = window
        self._make: Callable[[float, Window], Meter] = make
        self.limits: dict[QuotaEntity, float] = {}
        self._meters: dict[Tag, Meter] = {}
        self._resolved: dict[tuple[str, str | None], Meter | None] = {}

    def set_limits(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self.limits = {
            entity: values[self._key]
            for entity, values in quotas.items()
            if self._key in values and any(kind in (USER, CLIENT_ID) for kind, _ in entity)
        }
        self._resolved.clear()
        if not self.limits:
            self._meters.clear()

    def meter(self, principal: str, client_id: str | None) -> Meter | None:
        """Returns the meter that counts this client's requests; None if no quota applies to the client."""
        who = (principal, client_id)
        try:
            return self._resolved[who]
        except KeyError:
            if len(self._resolved) >= MAX_TRACKED:
                self._resolved.clear()
            meter = self._resolved[who] = self._find(principal.partition(":")[2] or ANONYMOUS, client_id or "")
            return meter

    def _find(self, user: str, client_id: str) -> Meter | None:
        for entity, tag in _entities(user, client_id):
            limit = self.limits.get(entity)
            if limit is None:
                continue
            meter = self._meters.get(tag)
            if meter is None:
                if len(self._meters) >= MAX_TRACKED:
                    del self._meters[next(iter(self._meters))]
                meter = self._meters[tag] = self._make(limit, self._window)
            meter.limit = limit
            return meter
        return None


class AddressQuota:
    """Limits the new connections per second from each address."""

    __slots__ = ("_meters", "_window", "limits")

    def __init__(self, window: Window) -> None:
        self._window = window
        self.limits: dict[str | None, float] = {}
        self._meters: dict[str, Rate] = {}

    def set_limits(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self.limits.clear()
        for entity, values in quotas.items():
            kinds = dict(entity)
            if IP in kinds and CONNECTION_CREATION_RATE in values:
                host = kinds[IP]
                self.limits[None if host is None else address_of(host) or host] = values[CONNECTION_CREATION_RATE]
        self._meters.clear()

    def meter(self, address: str) -> Rate | None:
        meter = self._meters.get(address)
        if meter is None:
            limit = self.limits.get(address, self.limits.get(None))
            if limit is None:
                return None
            if len(self._meters) >= MAX_TRACKED:
                del self._meters[next(iter(self._meters))]
            meter = self._meters[address] = Rate(limit, self._window)
        return meter


def _entities(user: str, client_id: str) -> list[tuple[QuotaEntity, Tag]]:
    """Returns the entities whose quota may apply to a client, most specific first.

    Each entity comes with the key under which its rate is kept.
    """
    both, alone = (user, client_id), (user, "")
    found: list[tuple[QuotaEntity, Tag]] = []
    if client_id:
        found += [(_entity(user, client_id), both), (((CLIENT_ID, None), (USER, user)), both)]
    found.append((((USER, user),), alone))
    if client_id:
        found += [(((CLIENT_ID, client_id), (USER, None)), both), (((CLIENT_ID, None), (USER, None)), both)]
    found.append((((USER, None),), alone))
    if client_id:
        found += [(((CLIENT_ID, client_id),), ("", client_id)), (((CLIENT_ID, None),), ("", client_id))]
    return found


def _entity(user: str, client_id: str) -> QuotaEntity:
    return ((CLIENT_ID, client_id), (USER, user))


def _window(settings: Settings, prefix: str) -> Window:
    return Window(settings.int(f"{prefix}.window.num"), settings.int(f"{prefix}.window.size.seconds") * 1000)
