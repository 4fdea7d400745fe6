"""Defines `ControllerParts`: the fields of a node that the active controller's handlers use.

The active controller's own node sends requests to the controller while it starts, before its `Broker` object exists. So
these handlers must work without a `Broker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from random import Random

    from penstock.broker.controlplane.controller import Controller
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.limits.quotas import Quotas
    from penstock.broker.requests.access_control import AccessControl
    from penstock.clock import Clock
    from penstock.metadata.configs.settings import Settings
    from penstock.security.delegation_tokens import TokenMacs


class ControllerParts(Protocol):
    @property
    def node_id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def random(self) -> Random: ...

    @property
    def metadata(self) -> MetadataLog: ...

    @property
    def controller(self) -> Controller: ...

    @property
    def quotas(self) -> Quotas: ...

    @property
    def token_macs(self) -> TokenMacs: ...

    @property
    def access(self) -> AccessControl | None: ...
