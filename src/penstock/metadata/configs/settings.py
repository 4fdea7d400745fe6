"""Defines `Settings`: a broker's config values, from its properties file and the dynamic configs in the metadata log.

A value is looked up in the broker's dynamic configs, then in the cluster-wide dynamic configs, then in the file, then
in the table of defaults. The same lookup gives the values that topics and groups inherit, and the synonyms of
DescribeConfigs. A broker has one `Settings` object for its whole run; `apply_dynamic` changes it in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.check import check
from penstock.metadata.configs.broker import (
    BROKER_CONFIGS,
    UpdateMode,
    broker_key,
    broker_synonyms,
    update_mode,
)
from penstock.metadata.configs.definition import ConfigError, ConfigValue
from penstock.metadata.configs.topic import TOPIC_SYNONYMS, LogConfig
from penstock.security.hosts import canonical_host

if TYPE_CHECKING:
    from penstock.metadata.image import MetadataImage

CORDONED = "cordoned.log.dirs"

# The methods `int`, `str`, ... would shadow the types in this class's own annotations.
_Int: TypeAlias = int
_Float: TypeAlias = float
_Str: TypeAlias = str
_Bool: TypeAlias = bool


class ConfigSource(IntEnum):
    """Lists the sources of a config's value, with their numbers in DescribeConfigs."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class Synonym:
    """Holds one entry of the synonyms that DescribeConfigs returns for a property: a source and its value."""

    name: str
    value: str | None
    source: ConfigSource


_Synonyms = list[Synonym]


class Settings:
    __slots__ = ("_cluster", "_log_defaults", "_own", "_resolved", "check_own", "derived", "static")

    def __init__(self, static: Mapping[_Str, _Str] | None = None) -> None:
        """Creates the settings from the properties file. Raises ConfigError for a value that is not accepted."""
        self.static = dict(static or {})
        if "broker.id" in self.static:
            self.static.setdefault("node.id", self.static["broker.id"])
        if "node.id" in self.static:
            self.static.setdefault("broker.id", self.static["node.id"])
        _check_static(self.static)
        self._own: dict[_Str, _Str] = {}
        self._cluster: dict[_Str, _Str] = {}
        self._resolved: dict[_Str, ConfigValue] = {}
        self._log_defaults: LogConfig | None = None
        self.derived: dict[_Str, Any] = {}
        """Values that callers derived from these settings; cleared when a setting changes."""
        self.check_own: Callable[[Mapping[_Str, _Str]], None] | None = None
        """Raises ConfigError if this broker can't use dynamic configs of its own that it is about to get."""
        check_cordoned(self.static.get(CORDONED), self.log_dirs)

    # --- typed values ---------------------------------------------------------------------------------

    def get(self, name: _Str) -> ConfigValue:
        """Returns the parsed value in effect; None if the property is not set and has no default."""
        if name not in self._resolved:
            key = broker_key(name)
            check(key is not None, f"There is no broker property '{name}'.")
            assert key is not None
            raw = self.raw(name)
            self._resolved[name] = None if raw is None else key.parse(raw)
        return self._resolved[name]

    def int(self, name: _Str) -> _Int:
        value = self._resolved.get(name)
        if type(value) is int:  # the usual case: requests read the same few settings again and again
            return value
        value = self.get(name)
        check(isinstance(value, int) and not isinstance(value, bool), f"'{name}' is an integer.")
        assert isinstance(value, int)
        return value

    def bool(self, name: _Str) -> _Bool:
        value = self.get(name)
        check(isinstance(value, bool), f"'{name}' is a boolean.")
        return value is True

    def float(self, name: _Str) -> _Float:
        value = self.get(name)
        check(isinstance(value, int | float), f"'{name}' is a number.")
        assert isinstance(value, int | float)
        return float(value)

    def str(self, name: _Str) -> _Str:
        value = self.get(name)
        check(isinstance(value, str), f"'{name}' is a string and set.")
        assert isinstance(value, str)
        return value

    def optional_str(self, name: _Str) -> _Str | None:
        value = self.get(name)
        check(value is None or isinstance(value, str), f"'{name}' is a string.")
        assert value is None or isinstance(value, str)
        return value

    def optional_int(self, name: _Str) -> _Int | None:
        return None if self.get(name) is None else self.int(name)

    def list(self, name: _Str) -> tuple[_Str, ...]:
        """Returns the items of a list property; no items if it is not set."""
        value = self.get(name)
        check(value is None or isinstance(value, tuple), f"'{name}' is a list.")
        return value if isinstance(value, tuple) else ()

    # --- values from several properties ---------------------------------------------------------------

    @property
    def node_id(self) -> _Int:
        value = self.get("node.id")
        return value if isinstance(value, int) else 1

    @property
    def log_dirs(self) -> tuple[_Str, ...]:
        return self.list("log.dirs") or self.list("log.dir")

    def cordoned_log_dirs(self) -> frozenset[_Str]:
        """Returns the log directories that get no new partitions."""
        named = set(map(_plain_path, self.list(CORDONED)))
        return frozenset(path for path in map(_plain_path, self.log_dirs) if "*" in named or path in named)

    def max_connections_per_ip_overrides(self) -> dict[_Str, _Int]:
        return parse_host_counts("max.connections.per.ip.overrides", self.str("max.connections.per.ip.overrides"))

    def log_defaults(self) -> LogConfig:
        """Returns the log config of a topic that has no topic configs."""
        if self._log_defaults is None:
            self._log_defaults = LogConfig.from_map(self.topic_defaults())
        return self._log_defaults

    def log_config(self, image: MetadataImage, topic: _Str) -> LogConfig:
        """Returns a topic's log config: the topic's own configs override inherited values. Topics without configs share
        one object."""
        return self.log_defaults().overlaid(image.topic_config(topic))

    def topic_defaults(self) -> dict[_Str, _Str]:
        """Returns the defaults of topic configs that come from broker properties, as strings in the unit of the topic
        config.
        """
        found: dict[_Str, _Str] = {}
        for topic_config, names in TOPIC_SYNONYMS.items():
            for name, factor in names:
                value = self.raw(name)
                if value is not None:
                    found[topic_config] = value if factor == 1 else _Str(_Int(value) * factor)
                    break
        if _Int(found["retention.ms"]) < 0:
            found["retention.ms"] = "-1"
        return found

    # --- where values come from -----------------------------------------------------------------------

    def raw(self, name: _Str) -> _Str | None:
        """Returns the string in effect for exactly this name, without a search of its synonyms.

        A name of one listener (`listener.name.…`) is different: if it is not set, returns the setting for all
        listeners.
        """
        names = broker_synonyms(name) if name.startswith("listener.name.") else (name,)
        for values in (self._own, self._cluster, self.static):
            for each in names:
                if each in values:
                    return values[each]
        key = broker_key(name)
        return None if key is None else key.default

    def of_listener(self, listener: _Str, name: _Str, own: Mapping[_Str, _Str] | None = None) -> _Str | None:
        """Returns the value of `listener.name.<listener>.<name>`; None if it is not set.

        If `own` is given, it is used in place of this broker's dynamic configs.
        """
        prefixed = f"listener.name.{listener.lower()}.{name}"
        sources = (self._own if own is None else own, self._cluster, self.static)
        return next((each[prefixed] for each in sources if prefixed in each), None)

    def synonyms(self, name: _Str) -> _Synonyms:
        """Returns every source that has a value for this property, the source in effect first."""
        names = broker_synonyms(name)
        found = [
            Synonym(each, values[each], source)
            for values, source in (
                (self._own, ConfigSource.DYNAMIC_BROKER_CONFIG),
                (self._cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
                (self.static, ConfigSource.STATIC_BROKER_CONFIG),
            )
            for each in names
            if each in values
        ]
        defaults = ((each, BROKER_CONFIGS[each].default) for each in names if each in BROKER_CONFIGS)
        found += [Synonym(each, value, ConfigSource.DEFAULT_CONFIG) for each, value in defaults if value is not None]
        while found and found[0].name != name:
            del found[0]
        return found

    def dynamic_defaults(self) -> Mapping[_Str, _Str]:
        """Returns the cluster-wide dynamic configs."""
        return self._cluster

    def dynamic_own(self) -> Mapping[_Str, _Str]:
        """Returns the dynamic configs of this broker alone."""
        return self._own

    # --- changes --------------------------------------------------------------------------------------

    def apply_image(self, image: MetadataImage) -> frozenset[_Str]:
        return self.apply_dynamic(image.broker_config(None), image.broker_config(self.node_id))

    def apply_dynamic(self, cluster: Mapping[_Str, _Str], own: Mapping[_Str, _Str]) -> frozenset[_Str]:
        """Adopts the dynamic configs. Returns the names of the properties whose value changed.

        Ignores values that this broker cannot use: a controller of another version may have accepted them, and a bad
        value in the metadata log must not stop a broker from starting.
        """
        before = {name: self.raw(name) for name in {*self._cluster, *self._own, *cluster, *own}}
        given = self._cluster, self._own
        self._cluster = _usable(cluster, own_broker=False)
        self._own = _usable(own, own_broker=True)
        changed = frozenset(name for name, value in before.items() if self.raw(name) != value)
        if changed:
            self._resolved.clear()
            self._log_defaults = None
        if given != (self._cluster, self._own):
            self.derived.clear()  # the same value may come from another source now
        return changed


def parse_host_counts(name: str, text: str) -> dict[str, int]:
    """Parses `host:count,host:count`. Returns the count of each host, with IP addresses in their canonical spelling.

    The count follows the last colon of an item: a host that is an IPv6 address has colons, too.
    """
    found: dict[str, int] = {}
    for item in (part.strip() for part in text.split(",")):
        if not item:
            continue
        host, colon, count = item.rpartition(":")
        if not colon or not host.strip() or not count.strip().isdigit():
            raise ConfigError.invalid(name, text, remedy=f"'{item}' is not of the form host:count")
        found[canonical_host(host.strip().strip("[]"))] = int(count)
    return found


def check_broker_settings(names_and_values: Iterable[tuple[str, str]]) -> None:
    """Raises ConfigError for the first value that is invalid for its broker property. Accepts unknown names."""
    for name, text in names_and_values:
        key = broker_key(name)
        if key is not None:
            key.parse(text)
            if name == "max.connections.per.ip.overrides":
                parse_host_counts(name, text)
            elif name == CORDONED and "*" in (items := [item.strip() for item in text.split(",")]) and len(items) > 1:
                raise ConfigError.invalid(name, text, remedy="* means all directories: give * alone")


def check_lockout(per_ip: str | None, overrides: str | None) -> None:
    """Raises ConfigError if the connection limits would let no address open a connection. Kafka refuses such limits
    too."""
    if per_ip is not None and per_ip.strip() == "0" and not (overrides or "").strip():
        raise ConfigError(
            "max.connections.per.ip=0 refuses every connection: set max.connections.per.ip.overrides for some "
            "addresses."
        )


def check_cordoned(text: str | None, log_dirs: Iterable[str]) -> None:
    """Raises ConfigError for a path that is not a log directory of this broker: cordoning it would have no effect."""
    known = set(map(_plain_path, log_dirs))
    for path in (item.strip() for item in (text or "").split(",")):
        if path and path != "*" and _plain_path(path) not in known:
            raise ConfigError.invalid(CORDONED, text or "", remedy=f"{path} is not one of log.dirs")


def _plain_path(path: str) -> str:
    return path.rstrip("/") or "/"


def _check_static(static: Mapping[str, str]) -> None:
    check_broker_settings(static.items())
    check_lockout(static.get("max.connections.per.ip"), static.get("max.connections.per.ip.overrides"))
    ids = {static[name].strip() for name in ("broker.id", "node.id") if name in static}
    if len(ids) > 1:
        raise ConfigError(f"node.id and broker.id differ ({', '.join(sorted(ids))}): set only node.id.")


def _usable(values: Mapping[str, str], *, own_broker: bool) -> dict[str, str]:
    usable: dict[str, str] = {}
    for name, text in values.items():
        mode = update_mode(name)
        known = broker_key(name) is not None
        if known and (mode is UpdateMode.READ_ONLY or (mode is UpdateMode.PER_BROKER and not own_broker)):
            continue
        try:
            check_broker_settings([(name, text)])
        except ConfigError:
            continue
        usable[name] = text
    return usable
