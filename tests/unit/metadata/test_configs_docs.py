"""Checks that docs/skipped.md lists every config without effect, and that code reads every supported config."""

from pathlib import Path

from penstock.metadata.configs.broker import BROKER_CONFIGS
from penstock.metadata.configs.group import GROUP_INHERITANCE
from penstock.metadata.configs.topic import TOPIC_CONFIGS, TOPIC_SYNONYMS

ROOT = Path(__file__).parents[3]
# Read under a composed name: prefixes of quota windows, the quorum's timeouts, the lookups of Settings, and
# config.providers, which the reader of properties files uses.
READ_ELSEWHERE = {
    "broker.id",
    "config.providers",
    "controller.quorum.fetch.timeout.ms",
    "controller.quorum.request.timeout.ms",
    "controller.quorum.retry.backoff.ms",
    "controller.quota.window.num",
    "controller.quota.window.size.seconds",
    "cordoned.log.dirs",
    "log.dir",
    "log.dirs",
    "max.connections.per.ip.overrides",
    "node.id",
    "quota.window.num",
    "quota.window.size.seconds",
}


def source() -> str:
    files = (ROOT / "src" / "penstock").rglob("*.py")
    return "".join(path.read_text(encoding="utf-8") for path in files if "configs" not in path.parts)


def test_topic_configs_without_effect_are_listed_in_skipped_md() -> None:
    ledger = (ROOT / "docs" / "skipped.md").read_text(encoding="utf-8")
    missing = [name for name, key in TOPIC_CONFIGS.items() if not key.supported and f"`{name}" not in ledger]
    assert missing == []


def test_every_supported_broker_property_is_read_by_code() -> None:
    code = source()
    inherited = {name for names in TOPIC_SYNONYMS.values() for name, _ in names}
    limits = {name for each in GROUP_INHERITANCE.values() for name in (each.default, each.low, each.high) if name}
    unread = [
        name
        for name, key in BROKER_CONFIGS.items()
        if key.supported and name not in inherited | limits | READ_ELSEWHERE and f'"{name}"' not in code
    ]
    assert unread == []
