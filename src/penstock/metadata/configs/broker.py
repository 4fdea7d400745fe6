"""Defines the broker properties: all properties of Kafka 4.3, with type, default, limits and update mode.

The rows are text in `broker_rows/`. A row is a line of words and an indented line of documentation:

    name TYPE [=default] [limits] [high|low] [per-broker|cluster-wide] [internal] [unsupported]

`=` alone is an empty default; without `=` there is no default. Limits are `[1..]`, `[0..1]`, `[1..9|-1]` (1 to 9, or
-1), `{a|b}` (a or b; for a LIST any of them), `{a|b}~` (a or b in upper or lower case), and `nonempty`. By default the
importance is medium and the property is read-only. With `unsupported` the value is accepted and shown but has no
effect; remove this word once the property has an effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.check import check
from penstock.metadata.configs.broker_rows import cluster, connections, coordinators, security, storage
from penstock.metadata.configs.definition import (
    ConfigKey,
    ConfigType,
    Importance,
    ListOf,
    NonEmpty,
    OneOf,
    Range,
    RangeOr,
    Validator,
    table,
)


class UpdateMode(Enum):
    """Tells how a broker property can change while the broker runs: not at all, per broker, or cluster-wide."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


@dataclass(frozen=True, slots=True)
class _Row:
    key: ConfigKey
    mode: UpdateMode


def _rows(text: str) -> Iterator[_Row]:
    lines = text.strip("\n").split("\n")
    check(len(lines) % 2 == 0, "Every broker property has a line of words and a line of documentation.")
    for at in range(0, len(lines), 2):
        check(lines[at + 1].startswith("    "), f"The documentation line under '{lines[at]}' must be indented.")
        yield _row(lines[at].split(" "), lines[at + 1].strip())


def _row(words: list[str], doc: str) -> _Row:
    name, kind, *rest = words
    config_type = ConfigType[kind]
    default: str | None = None
    validator: Validator | None = ListOf() if config_type is ConfigType.LIST else None
    importance, mode = Importance.MEDIUM, UpdateMode.READ_ONLY
    internal, supported = False, True
    for word in rest:
        match word:
            case "high" | "low":
                importance = Importance[word.upper()]
            case "per-broker" | "cluster-wide":
                mode = UpdateMode(word)
            case "internal":
                internal = True
            case "unsupported":
                supported = False
            case _ if word.startswith("="):
                default = word[1:]
            case _:
                validator = _validator(word, config_type)
    return _Row(ConfigKey(name, config_type, default, doc, validator, importance, internal, supported), mode)


def _validator(word: str, config_type: ConfigType) -> Validator:
    if word == "nonempty":
        return NonEmpty()
    if choice := re.fullmatch(r"\{(.+)\}(~?)", word):
        values = tuple(choice[1].split("|"))
        return ListOf(values) if config_type is ConfigType.LIST else OneOf(values, ignore_case=bool(choice[2]))
    limits = re.fullmatch(r"\[(-?[0-9.]+?)\.\.(-?[0-9.]*)(?:\|(-?[0-9]+))?\]", word)
    check(limits, f"'{word}' is not a limit of a broker property.")
    assert limits is not None
    if limits[3]:
        return RangeOr(int(limits[1]), int(limits[2]), int(limits[3]))
    return Range(_number(limits[1]), _number(limits[2]) if limits[2] else None)


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


# Replication throttles exist only as dynamic configs, not in a properties file.
_DYNAMIC_ONLY = """
follower.replication.throttled.rate LONG =9223372036854775807 [0..] cluster-wide
    Bytes per second that throttled followers may fetch.
leader.replication.throttled.rate LONG =9223372036854775807 [0..] cluster-wide
    Bytes per second that leaders may send to throttled followers.
replica.alter.log.dirs.io.max.bytes.per.second LONG =9223372036854775807 [0..] cluster-wide
    Bytes per second for moves between log directories.
"""

# Properties of Penstock that Kafka 4.3 does not have. Those for dead letters are from KIP-1191.
_OWN = """
errors.deadletterqueue.auto.create.topics.enable BOOLEAN =false cluster-wide
    True creates the dead-letter topic of a share group when its first dead letter is written.
errors.deadletterqueue.topic.name.prefix STRING =dlq. cluster-wide
    Prefix that the name of a dead-letter topic must have; empty allows all names.
penstock.allow.plaintext BOOLEAN =false
    True accepts listeners without TLS on addresses that other machines can reach; false warns about them at the start.
penstock.audit.file STRING =
    File that gets one line for each denied or changing request; empty writes no such lines.
penstock.coordinator.max.bytes LONG =1073741824 [0..]
    Limit for the memory of all groups (members and offsets) and transactional ids that this node coordinates.
penstock.events.log.format STRING =text {text|json}
    Form of the log lines of events: a sentence, or one JSON object.
penstock.events.topic.enable BOOLEAN =true
    True keeps the last events of each node in the topic __penstock_events, on clusters with more than one broker.
penstock.events.topic.replication.factor SHORT =-1 [1..32767|-1]
    Replication factor of the topic __penstock_events; -1 is default.replication.factor.
penstock.fetch.session.cache.max.partitions INT =500000 [0..]
    Limit of partitions over all fetch sessions; beyond it clients fetch without a session.
penstock.guard.check.interval.ms LONG =10000 [100..] cluster-wide
    Time between two checks of what replicas claim about their roles, epochs and log ends.
penstock.guard.enable BOOLEAN =false
    True compares replicas in the background, refills damaged ones, and quarantines nodes that stay wrong.
penstock.guard.quarantine.threshold INT =3 [0..] cluster-wide
    Confirmed findings against a node, within penstock.guard.window.ms, that lead to its quarantine; 0 is never.
penstock.guard.quarantined STRING = per-broker
    Reason for which the broker is in quarantine; the guard sets it, and its removal releases the broker.
penstock.guard.repair.enable BOOLEAN =true cluster-wide
    True refills a damaged segment of this node's replica from another replica.
penstock.guard.scrub.bytes.per.second LONG =1048576 [1..] cluster-wide
    Bytes per second that this node reads, from all replicas together, to compare them.
penstock.guard.scrub.interval.ms LONG =3600000 [0..] cluster-wide
    Time from the start of one comparison of all replicas of this node to the start of the next.
penstock.guard.timestamp.max.future.ms LONG =-1 [-1..] cluster-wide
    Timestamps later than now plus this time are reported; -1 reports none.
penstock.guard.window.ms LONG =3600000 [1..] cluster-wide
    Time for which a confirmed finding counts against a node.
penstock.history.interval.ms INT =10000 [1000..]
    Time between two samples of the rates and lags that the console plots; the last 360 samples are kept.
penstock.http.listener STRING =
    Address for metrics, JSON and the console over HTTP, as host:port; empty disables it.
penstock.http.max.connections.per.ip INT =32 [1..]
    Limit of HTTP connections of one address; probes are answered beyond it. All addresses together may have 64.
penstock.http.roles STRING =
    Roles of HTTP users, as view=User:a;operate=User:b;admin=User:c; empty gives every user every role.
penstock.log.dirs.min.free.bytes LONG =67108864 [0..] cluster-wide
    Records of clients are refused while a log directory has fewer free bytes; 0 at start disables the check.
penstock.max.producer.ids INT =2000000 [0..]
    Limit of idempotent producers over all partitions of a node; each is kept for producer.id.expiration.ms.
penstock.otel.endpoint STRING =
    URL of an OpenTelemetry collector that gets the metrics by OTLP over HTTP, as http://host:4318; empty exports none.
penstock.otel.interval.ms INT =60000 [1000..]
    Time between two exports of metrics to the OpenTelemetry collector.
penstock.queued.max.response.bytes LONG =268435456
    Bytes of responses that wait for slow clients, over all connections; -1 is no limit.
penstock.request.timing.every INT =1024 [0..1000000]
    One of this many requests of a busy API is timed for the histograms of request phases; 0 times none.
penstock.schema.registry.basic.auth.user.info PASSWORD
    User and password for the schema registry, as name:password.
penstock.schema.registry.ssl.truststore.location STRING
    File with the certificate authorities of the schema registry (PEM, PKCS12 or JKS); default: those of the system.
penstock.schema.registry.ssl.truststore.password PASSWORD
    Password of penstock.schema.registry.ssl.truststore.location.
penstock.schema.registry.url STRING =
    URL of a schema registry with Confluent's API, whose schemas decode records on the console; empty uses none.
penstock.schemas.dir STRING =
    Directory with Avro schemas and Protobuf descriptor sets that decode records on the console; empty uses none.
"""

# Properties of Kafka's StandardAuthorizer, which Kafka passes to it without listing them.
_OF_AUTHORIZER = """
allow.everyone.if.no.acl.found BOOLEAN =false
    True lets every client use a resource that has no ACL.
super.users STRING =
    Principals that are allowed everything, as User:name, separated by semicolons.
"""

_ALL = [row for part in (cluster, connections, coordinators, security, storage) for row in _rows(part.ROWS)]
_DYNAMIC = list(_rows(_DYNAMIC_ONLY))
_OURS = list(_rows(_OWN))

BROKER_CONFIGS: dict[str, ConfigKey] = table(row.key for row in _ALL)
OWN_CONFIGS: dict[str, ConfigKey] = table(row.key for row in _OURS)
AUTHORIZER_CONFIGS: dict[str, ConfigKey] = table(row.key for row in _rows(_OF_AUTHORIZER))
DYNAMIC_ONLY_CONFIGS: dict[str, ConfigKey] = table(row.key for row in _DYNAMIC)
UPDATE_MODES: dict[str, UpdateMode] = {
    row.key.name: row.mode for row in [*_ALL, *_DYNAMIC, *_OURS] if row.mode is not UpdateMode.READ_ONLY
}

#: Properties that would protect the node if Penstock supported them; a node refuses to start with one of them.
PROTECTION_CONFIGS = frozenset(row.key.name for row in _rows(security.ROWS) if not row.key.supported)

# Names for the same setting in different units, the most precise first.
_SAME_THING = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.*)")
# Listener settings that are per SASL mechanism have its name as a prefix: `plain.sasl.jaas.config`.
_OF_MECHANISM = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
# Listener settings that may be set cluster-wide; all others are per broker.
_OF_ANY_LISTENER = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})


def broker_synonyms(name: str) -> tuple[str, ...]:
    """Returns the property's own name and its synonyms, in the order in which they are searched for a value."""
    for names in _SAME_THING:
        if name in names and (name != "log.flush.scheduler.interval.ms"):
            return names
    listener = _LISTENER.fullmatch(name)
    if listener is not None:
        return (name, _without_mechanism(listener[1]))
    return (name,)


def broker_key(name: str) -> ConfigKey | None:
    """Returns the definition of a broker property, also for names with the prefix `listener.name.<listener>.`."""
    listener = _LISTENER.fullmatch(name)
    base = name if listener is None else _without_mechanism(listener[1])
    for known in (BROKER_CONFIGS, DYNAMIC_ONLY_CONFIGS, OWN_CONFIGS, AUTHORIZER_CONFIGS):
        if base in known:
            return known[base]
    return None


def update_mode(name: str) -> UpdateMode:
    listener = _LISTENER.fullmatch(name)
    if listener is None:
        return UPDATE_MODES.get(name, UpdateMode.READ_ONLY)
    base = _without_mechanism(listener[1])
    mode = UPDATE_MODES.get(base, UpdateMode.READ_ONLY)
    return UpdateMode.PER_BROKER if mode is UpdateMode.CLUSTER_WIDE and base not in _OF_ANY_LISTENER else mode


class ListenerProperty(NamedTuple):
    """Holds the parts of a property name such as `listener.name.clients.plain.sasl.jaas.config`."""

    listener: str
    base: str
    mechanism: str
    """The SASL mechanism in front of the base; empty if there is none."""


def listener_property(name: str) -> ListenerProperty | None:
    """Splits a name that begins with `listener.name.` into the listener, the mechanism and the property.

    Returns None for all other names.
    """
    found = re.fullmatch(r"listener\.name\.([^.]*)\.(.*)", name)
    if found is None:
        return None
    base = _without_mechanism(found[2])
    return ListenerProperty(found[1], base, found[2].removesuffix(base).removesuffix("."))


def _without_mechanism(base: str) -> str:
    if base.startswith("oauthbearer.sasl.oauthbearer."):  # this mechanism has properties of its own
        return base.removeprefix("oauthbearer.")
    return next((known for known in _OF_MECHANISM if base.endswith("." + known)), base)
