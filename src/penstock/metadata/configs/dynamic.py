"""Rules for dynamic configs: which settings of a running broker can change, per broker or cluster-wide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.metadata.configs.broker import UpdateMode, broker_key, update_mode
from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.settings import Settings, check_broker_settings

# Keys and certificates are per listener: without the listener's prefix a change would apply to all listeners at once.
ONLY_WITH_LISTENER_PREFIX = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
# Settings of a TLS listener that a running broker applies to new connections, with the listener's prefix.
TLS_WHILE_RUNNING = ONLY_WITH_LISTENER_PREFIX | {
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
}
# Kafka opens and closes sockets, and reads providers again, when these change; Penstock keeps those of its start.
NOT_WHILE_RUNNING = frozenset({"config.providers", "listeners", "listener.security.protocol.map"})


# Kafka resizes these thread pools while it runs, at most by a factor of two at a time, and refuses larger steps.
THREAD_POOLS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)


def validate_thread_pools(values: Mapping[str, str], settings: Settings) -> None:
    """Raises ConfigError for a thread pool size of more than double or less than half the current size.

    Call it after `validate_dynamic_settings`, which checks that the values are numbers.
    """
    for name in THREAD_POOLS:
        if name not in values:
            continue
        wanted, current = int(values[name]), settings.int(name)
        if not current // 2 <= wanted <= current * 2:
            raise ConfigError(f"{name} is {current}: one change can at most double or halve the value.")


def validate_dynamic_settings(values: Mapping[str, str], *, per_broker: bool) -> None:
    """Raises ConfigError for settings that cannot change on a running broker, and for cluster-wide settings that can
    only be set per broker. Accepts unknown names, as Kafka does.
    """
    fixed = [name for name in values if _is_fixed(name)]
    if fixed:
        raise ConfigError(
            f"A running broker can't change {_listed(fixed)}: set them in its properties file and restart it."
        )
    if not per_broker:
        own = [name for name in values if update_mode(name) is UpdateMode.PER_BROKER and not _needs_prefix(name)]
        if own:
            raise ConfigError(f"{_listed(own)} can't be set cluster-wide: name the broker to set them for.")
    secret = [name for name in values if _needs_prefix(name)]
    if secret:
        raise ConfigError(
            "Keys and certificates are changed for one listener at a time: put the listener's prefix before "
            + _listed(secret)
        )
    check_broker_settings(values.items())


def _is_fixed(name: str) -> bool:
    if name in NOT_WHILE_RUNNING or _protects(name):
        return True
    return not name.startswith("listener.name.") and (
        broker_key(name) is not None and update_mode(name) is UpdateMode.READ_ONLY
    )


def _needs_prefix(name: str) -> bool:
    return name in ONLY_WITH_LISTENER_PREFIX


def _protects(name: str) -> bool:
    """Returns True for settings that protect a listener and that Penstock reads only when it starts.

    These are the SASL settings and some TLS settings with a listener prefix. Kafka applies changes of them at once.
    """
    key = broker_key(name)
    base = name if key is None else key.name
    if not name.startswith("listener.name.") or base in TLS_WHILE_RUNNING:
        return False
    return base.startswith(("ssl.", "sasl.", "connections.max.reauth"))


def _listed(names: Iterable[str]) -> str:
    return f"[{', '.join(sorted(names))}]"
