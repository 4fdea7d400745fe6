"""Properties for protection that Penstock does not have yet: TLS, SASL, an authorizer, policies.

A node that ignored one of them would be open to everybody against its owner's intent, so it refuses to start.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.metadata.configs.broker import PROTECTION_CONFIGS, broker_key
from penstock.metadata.configs.definition import ConfigError

#: Properties of Kafka's own authorizer; Kafka's table of broker properties does not list them.
_OF_AUTHORIZER = frozenset({"super.users", "allow.everyone.if.no.acl.found"})
#: Other properties with these prefixes belong to a security plug-in, or are misspelt.
_PREFIXES = ("authorizer.", "delegation.token.", "sasl.", "ssl.")


def protection_refusal(name: str, value: str) -> str | None:
    """Returns why a node does not start with this property, as a sentence; None if the property is not about
    protection.
    """
    key = broker_key(name)
    if key is None:
        asks = name in _OF_AUTHORIZER or name.startswith(_PREFIXES)
    else:
        asks = key.name in PROTECTION_CONFIGS and value.strip() != (key.default or "")
    if not asks:
        return None
    return (
        f"{name} requires protection that Penstock does not have yet, and without it the node would be open to "
        "everybody: remove the property, and let only trusted machines reach the node's ports."
    )


def check_protection(static: Mapping[str, str]) -> None:
    """Raises ConfigError for the first property that requires protection."""
    for name in sorted(static):
        refusal = protection_refusal(name, static[name])
        if refusal is not None:
            raise ConfigError(refusal)
