"""Tests that handlers of the active controller get only the controller, not the whole broker."""

from __future__ import annotations

import inspect

import pytest

from penstock.broker.handlers.forwarding import CONTROLLER_APIS
from penstock.broker.handlers.registry import HANDLERS, load_handler

#: AlterPartition, BrokerRegistration, BrokerHeartbeat, AllocateProducerIds, ControllerRegistration,
#: AssignReplicasToDirs: what brokers and controllers ask the active controller in their own name.
ASKED_BY_NODES = (56, 62, 63, 67, 70, 73)


@pytest.mark.parametrize("api_key", sorted((CONTROLLER_APIS & HANDLERS.keys()) | set(ASKED_BY_NODES)))
def test_every_handler_of_the_active_controller_gets_the_controller_instead_of_the_broker(api_key: int) -> None:
    first, *_ = inspect.signature(load_handler(api_key)).parameters.values()
    assert first.annotation == "ControllerParts"
