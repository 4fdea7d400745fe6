"""Defines the server properties of each step from plaintext to SASL_SSL with ACLs, as in docs/operations.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.node.local_security import ADMIN, NODE, LocalSecurity

#: Before; both kinds of listeners; nodes use the secured ones among themselves; secured listeners alone.
BEFORE, BOTH, NODES_SECURED, SECURED = range(4)


@dataclass(frozen=True, slots=True)
class NodePorts:
    """Holds the ports of one node: for clients and for controllers, plaintext and secured."""

    clear: int
    clear_quorum: int
    secured: int
    secured_quorum: int


def step_properties(ports: Mapping[int, NodePorts], node: int, step: int, security: LocalSecurity) -> dict[str, str]:
    """Returns the listeners of a node, and their protection, after a step."""
    own = ports[node]
    listeners = {
        "PLAINTEXT": own.clear,
        "CONTROLLER": own.clear_quorum,
        "SASL_SSL": own.secured,
        "CONTROLLER_SSL": own.secured_quorum,
    }
    names = {BEFORE: ["PLAINTEXT", "CONTROLLER"], SECURED: ["SASL_SSL", "CONTROLLER_SSL"]}.get(step, list(listeners))
    controllers = {BEFORE: "CONTROLLER", BOTH: "CONTROLLER,CONTROLLER_SSL", NODES_SECURED: "CONTROLLER_SSL,CONTROLLER"}
    quorum = [each.secured_quorum if step >= NODES_SECURED else each.clear_quorum for each in ports.values()]
    found = {
        "listeners": ",".join(f"{name}://127.0.0.1:{listeners[name]}" for name in names),
        "controller.listener.names": controllers.get(step, "CONTROLLER_SSL"),
        "controller.quorum.bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in quorum),
        "inter.broker.listener.name": "SASL_SSL" if step >= NODES_SECURED else "PLAINTEXT",
    }
    if step == BEFORE:
        return found
    return {
        **security.properties(),
        **found,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL_SSL:SASL_SSL,CONTROLLER_SSL:SASL_SSL",
        "super.users": f"User:{NODE};User:{ADMIN}" + (";User:ANONYMOUS" if step < SECURED else ""),
    }
