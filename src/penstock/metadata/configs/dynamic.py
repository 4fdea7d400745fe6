"""Which settings a running broker may be given, and by whom: the rules of dynamic configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.metadata.configs.broker import UpdateMode, broker_key, update_mode
from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.settings import Settings, check_broker_settings

# Keys and certificates belong to a listener: given without its prefix they would change all of them at once.
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
# Kafka opens and closes sockets for these; a running node here keeps those it started with.
NOT_WHILE_RUNNING = frozenset({"listeners", "listener.security.protocol.map"})


# Kafka grows and shrinks these while it runs, by at most a factor of two a time, and refuses what looks like a slip.
THREAD_POOLS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)


def validate_thread_pools(values: Mapping[str, str], settings: Settings) -> None:
    """To be called with values that are numbers: after `validate_dynamic_settings`."""
    for name in THREAD_POOLS:
        if name not in values:
            continue
        wanted, current = int(values[name]), settings.int(name)
        if not current // 2 <= wanted <= current * 2:
            raise ConfigError(f"{name} is {current}: change it to at least half and at most double of that at a time.")


def validate_dynamic_settings(values: Mapping[str, str], *, per_broker: bool) -> None:
    """Raises ConfigError for what may not be set on a running broker, or on all. Unknown names pass, as in Kafka."""
    fixed = [name for name in values if _is_fixed(name)]
    if fixed:
        raise ConfigError(f"A running broker can't take {_listed(fixed)}: set them in its file and restart it.")
    if not per_broker:
        own = [name for name in values if update_mode(name) is UpdateMode.PER_BROKER and not _needs_prefix(name)]
        if own:
            raise ConfigError(f"Each broker has its own {_listed(own)}: name the broker to set them for.")
    secret = [name for name in values if _needs_prefix(name)]
    if secret:
        raise ConfigError(
            "Keys and certificates are changed for one listener at a time: put its prefix before " + _listed(secret)
        )
    check_broker_settings(values.items())


def _is_fixed(name: str) -> bool:
    if name in NOT_WHILE_RUNNING:
        return True
    return not name.startswith("listener.name.") and (
        broker_key(name) is not None and update_mode(name) is UpdateMode.READ_ONLY
    )


def _needs_prefix(name: str) -> bool:
    return name in ONLY_WITH_LISTENER_PREFIX


def _listed(names: Iterable[str]) -> str:
    return f"[{', '.join(sorted(names))}]"
