"""Parses `listeners`, `advertised.listeners` and the protocol map into addresses. Each error message is one
sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.http.address import PROPERTY, HttpAddress, parse_address
from penstock.http.roles import PROPERTY as ROLES
from penstock.http.roles import Roles, parse_roles
from penstock.security.authorizer import parse_super_users
from penstock.security.hosts import is_loopback

if TYPE_CHECKING:
    from penstock.metadata.configs.settings import Settings

PATTERN = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*):(?P<port>\d+)")
ALLOW_PLAINTEXT = "penstock.allow.plaintext"
PROTOCOL_MAP = "listener.security.protocol.map"
PLAINTEXT = "PLAINTEXT"
SUPPORTED_PROTOCOLS = {PLAINTEXT: 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class ListenerError(Exception):
    """Raised for a listener setting that can't work. The message names the setting and the remedy."""


class HttpUnavailableError(Exception):
    """Raised if the configured HTTP address can't be bound. The message names the remedy."""


@dataclass(frozen=True, slots=True)
class Address:
    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ListenerPlan:
    """Describes one listener: the address to listen on, and the address to advertise to clients."""

    name: str
    host: str
    port: int
    advertised_host: str
    advertised_port: int  # 0: the port that the socket was given
    security_protocol: str
    controller: bool


def parse_listeners(setting: str, entries: Sequence[str]) -> list[Address]:
    found: list[Address] = []
    for entry in entries:
        match = PATTERN.fullmatch(entry.strip())
        if match is None or int(match["port"]) > 65_535:
            raise ListenerError(
                f"{setting}: {entry.strip()!r} is not NAME://host:port, e.g. PLAINTEXT://127.0.0.1:9092"
            )
        found.append(Address(match["name"].upper(), match["host"].strip("[]"), int(match["port"])))
    names = [address.name for address in found]
    for name in names:
        if names.count(name) > 1:
            raise ListenerError(f"{setting}: listener name {name} is used twice; give each listener its own name")
    return found


def plan_listeners(settings: Settings, default_host: str = "localhost") -> list[ListenerPlan]:
    bound = parse_listeners("listeners", settings.list("listeners"))
    advertised = {a.name: a for a in parse_listeners("advertised.listeners", settings.list("advertised.listeners"))}
    protocols = _protocols(settings)
    controllers = _controllers(settings)
    if not bound:
        raise ListenerError("listeners: at least one listener is needed, e.g. PLAINTEXT://127.0.0.1:9092")
    for name in advertised:
        if name not in {address.name for address in bound}:
            raise ListenerError(f"advertised.listeners: {name} is not in listeners; add it there, or remove it here")
    plans = []
    for name in [*(address.name for address in bound), *sorted(controllers)]:
        protocol = protocols.get(name, name)
        if protocol not in SUPPORTED_PROTOCOLS:
            raise ListenerError(
                f"listener {name}: protocol {protocol} is unknown; map it in listener.security.protocol.map to one of "
                f"{', '.join(SUPPORTED_PROTOCOLS)}"
            )
    for address in bound:
        protocol = protocols.get(address.name, address.name)
        shown = advertised.get(address.name, address)
        host = shown.host
        if host in ("0.0.0.0", "::"):  # noqa: S104 - refused as an advertised address, not bound
            if shown is not address:
                raise ListenerError(
                    f"advertised.listeners: clients can't connect to {host}; use an address of this machine"
                )
            host = ""
        plans.append(
            ListenerPlan(
                address.name,
                address.host,
                address.port,
                host or default_host,
                shown.port,
                protocol,
                address.name in controllers,
            )
        )
    roles = settings.list("process.roles") or ("broker", "controller")
    if "broker" in roles and all(plan.controller for plan in plans):
        raise ListenerError("listeners: all listeners are in controller.listener.names; add a listener for clients")
    if "broker" not in roles:
        wrong = next((plan.name for plan in plans if not plan.controller), None)
        if wrong is not None:
            raise ListenerError(
                f"listeners: {wrong} is for clients, and this node is only a controller; "
                "name it in controller.listener.names, or remove it"
            )
    elif "controller" not in roles:
        wrong = next((plan.name for plan in plans if plan.controller), None)
        if wrong is not None:
            raise ListenerError(f"listeners: {wrong} is for controllers, and this node is not a controller; remove it")
    return plans


def _controllers(settings: Settings) -> set[str]:
    return {name.upper() for name in settings.list("controller.listener.names")}


def _protocols(settings: Settings) -> dict[str, str]:
    """Returns the security protocols of listeners by name.

    As in Kafka, a controller listener that is not in listener.security.protocol.map is PLAINTEXT if two conditions
    hold: the map is not set, and no listener is named after a protocol with TLS or SASL. Otherwise the operator must
    map it, so a cluster with secured clients never gets an open controller listener by mistake.
    """
    found = _protocol_map(settings.str(PROTOCOL_MAP))
    controllers = _controllers(settings)
    names = {entry.partition(":")[0].strip().upper() for entry in settings.list("listeners")} | controllers
    if PROTOCOL_MAP not in settings.static and names.isdisjoint(SUPPORTED_PROTOCOLS.keys() - {PLAINTEXT}):
        found = {**dict.fromkeys(controllers, PLAINTEXT), **found}
    return found


def protocol_of(settings: Settings, listener: str) -> str:
    """Returns the security protocol of the listener with this name, which may be a listener of another node."""
    return _protocols(settings).get(listener, listener)


def is_tls(protocol: str) -> bool:
    return protocol.endswith("SSL")


def is_sasl(protocol: str) -> bool:
    return protocol.startswith("SASL")


def inter_broker_listener(settings: Settings, plans: Sequence[ListenerPlan]) -> str:
    """Returns the name of the listener that brokers use for connections to each other. Raises ListenerError."""
    name = (settings.optional_str("inter.broker.listener.name") or "").upper()
    clients = [plan for plan in plans if not plan.controller]
    if name:
        if "broker" in (settings.list("process.roles") or ("broker",)) and name not in {plan.name for plan in clients}:
            raise ListenerError(
                f"inter.broker.listener.name: {name} is not a listener for clients; name one from listeners"
            )
        return name
    protocol = settings.str("security.inter.broker.protocol")
    names = [plan.name for plan in clients]
    return protocol if protocol in names or not names else names[0]


def exposed_listeners(settings: Settings, plans: Sequence[ListenerPlan]) -> list[str]:
    """Returns a warning for each listener without TLS that other machines can reach.

    Returns no warnings if a setting allows such listeners.
    """
    if settings.bool(ALLOW_PLAINTEXT):
        return []
    return [
        f"listener {plan.name} ({plan.security_protocol}) on {plan.host or 'all addresses'} is not encrypted, and "
        f"other machines can reach it: use SASL_SSL (docs/security.md), listen on loopback, or set {ALLOW_PLAINTEXT}="
        "true if the network is trusted."
        for plan in plans
        if not is_tls(plan.security_protocol) and not is_loopback(plan.host)
    ]


def protected_listeners(settings: Settings, plans: Sequence[ListenerPlan]) -> frozenset[str]:
    """Returns the listeners that accept connections beyond max.connections, as in Kafka.

    These are the controller listeners. If the node has several other listeners, the inter-broker listener is included.
    """
    names = {plan.name for plan in plans if plan.controller}
    if len(plans) - len(names) > 1:
        names.add(inter_broker_listener(settings, plans))
    return frozenset(names)


def plan_http(settings: Settings) -> HttpAddress | None:
    try:
        return parse_address(settings.str(PROPERTY))
    except ValueError as problem:
        raise ListenerError(str(problem)) from None


def plan_roles(settings: Settings) -> Roles:
    try:
        return Roles(parse_roles(settings.str(ROLES)), parse_super_users(settings.str("super.users")))
    except ValueError as problem:
        raise ListenerError(str(problem)) from None


def _protocol_map(text: str) -> dict[str, str]:
    pairs = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = entry.partition(":")
        if not protocol:
            raise ListenerError(
                f"listener.security.protocol.map: {entry!r} is not NAME:PROTOCOL, e.g. INTERNAL:PLAINTEXT"
            )
        pairs[name.strip().upper()] = protocol.strip().upper()
    return pairs
