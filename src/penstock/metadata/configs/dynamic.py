"""Checks dynamic configs: which settings of a running broker can change, per broker or cluster-wide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.metadata.configs.broker import UpdateMode, broker_key, update_mode
from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.settings import Settings, check_broker_settings

# Settings of a TLS listener that a running broker applies to new connections. They need the listener's prefix: without
# it, a change would apply to all listeners at once.
TLS_WHILE_RUNNING = frozenset(
    {
        "ssl.cipher.suites",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
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
# Names of the settings that protect listeners begin with these.
PROTECTING = ("connections.max.reauth", "principal.builder.", "sasl.", "ssl.")
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
    """Raises ConfigError for settings that cannot change on a running broker. Accepts unknown names, as Kafka does.

    For a cluster-wide change, also raises ConfigError for settings that can only be set per broker.
    """
    fixed = [name for name in values if _is_fixed(name)]
    if fixed:
        raise ConfigError(
            f"A running broker can't change {_listed(fixed)}: set them in its properties file and restart it."
        )
    if not per_broker:
        own = [name for name in values if update_mode(name) is UpdateMode.PER_BROKER and not _needs_prefix(name)]
        if own:
            raise ConfigError(f"{_listed(own)} can't be set cluster-wide: set a value for each broker.")
    unprefixed = [name for name in values if _needs_prefix(name)]
    if unprefixed:
        raise ConfigError(
            "TLS settings are changed for one listener at a time: put the listener's prefix before "
            + _listed(unprefixed)
        )
    check_broker_settings(values.items())


def _is_fixed(name: str) -> bool:
    if name in NOT_WHILE_RUNNING or _protects(name):
        return True
    return not name.startswith("listener.name.") and (
        broker_key(name) is not None and update_mode(name) is UpdateMode.READ_ONLY
    )


def _needs_prefix(name: str) -> bool:
    return name in TLS_WHILE_RUNNING


def _protects(name: str) -> bool:
    """Returns True for settings that protect listeners and that Penstock reads only when it starts.

    These are the SASL settings and some TLS settings, with and without a listener prefix. Kafka applies changes of many
    of them to a running broker. If a change were stored but not applied, a listener would look protected but be open.
    """
    key = broker_key(name)
    return key is not None and key.name not in TLS_WHILE_RUNNING and key.name.startswith(PROTECTING)


def _listed(names: Iterable[str]) -> str:
    return f"[{', '.join(sorted(names))}]"
