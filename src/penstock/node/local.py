"""Makes a node without a configuration file, for `penstock up` and the embedded broker.

The node is broker and controller, with one listener and one directory, which is formatted if it is new. Internal topics
have a replication factor of 1, because there is no other node. Two-phase commit is allowed, because Spark's
exactly-once sink needs it. All other settings are Kafka's defaults.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.metadata.configs.settings import Settings
from penstock.net.network import RealNetwork
from penstock.node.clock import SystemClock
from penstock.node.descriptors import available
from penstock.node.node import Node
from penstock.node.quorum_setup import FirstVoters
from penstock.node.storage import FormatPlan, format_storage, read_meta_properties

if TYPE_CHECKING:
    from penstock.broker.requests.fault_rules import Faults
    from penstock.clock import Clock
    from penstock.disk.api import Disk
    from penstock.http.pipelines import Pipelines
    from penstock.metadata.image import AclImage
    from penstock.net.network import Network
    from penstock.security.scram_arguments import ScramUser

ALONE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.two.phase.commit.enable": "true",
}


def local_settings(
    directory: str,
    *,
    host: str = "127.0.0.1",
    port: int = 9092,
    overrides: Mapping[str, str] | None = None,
    listener: str = "PLAINTEXT",
) -> Settings:
    """Returns the settings of a local node. Raises ConfigError for an invalid override."""
    address = f"[{host}]" if ":" in host else host
    own = {"listeners": f"{listener}://{address}:{port}", "log.dirs": directory}
    return Settings({**ALONE, **own, **(overrides or {})})


def make_node(
    settings: Settings,
    disk: Disk,
    *,
    clock: Clock | None = None,
    network: Network | None = None,
    seed: int | None = None,
    on_fatal: Callable[[Exception], None] | None = None,
    faults: Faults | None = None,
    http_optional: bool = False,
    pipelines: Pipelines | None = None,
) -> Node:
    """Makes a node. Uses the machine's clock, network and randomness, unless the caller passes others."""
    if seed is None:
        seed = int.from_bytes(os.urandom(16), "big")
    return Node(
        settings,
        disk=disk,
        network=network or RealNetwork(max_connections=available().connections),
        clock=clock or SystemClock(),
        random=random.Random(seed),  # noqa: S311 - identifiers and jitter; secrets are made elsewhere
        on_fatal=on_fatal,
        faults=faults,
        http_optional=http_optional,
        pipelines=pipelines,
    )


def format_if_new(node: Node, users: tuple[ScramUser, ...] = (), acls: tuple[AclImage, ...] = ()) -> bool:
    """Formats the directories as a new cluster if all of them are empty. Returns True if it formatted them.

    Raises ConfigError if the properties name other controllers but don't say which controllers are voters.
    """
    settings = node.settings
    directories = settings.log_dirs
    if any(read_meta_properties(node.disk, path) is not None for path in directories):
        return False  # the others are new, or mount points without their disks: the start reports the remedy
    first = node.quorum_plan.first_voters(standalone=False, several=False, joins=False)
    plan = FormatPlan(
        directories,
        settings.node_id,
        metadata_directory=settings.optional_str("metadata.log.dir"),
        static_voters=first is FirstVoters.STATIC,
        joins=first is FirstVoters.NONE,
        users=users,
        acls=acls,
    )
    format_storage(node.disk, plan, random=node.random, now_ms=node.clock.wall_ms())
    return True
