"""Makes several nodes on one machine without configuration files, for `penstock up --nodes 3` and `testing.Cluster`.

Each node is broker and controller, with one port for clients and one port for controllers. The ports for controllers
are chosen when the directories are formatted. They never change, because the metadata log holds the voters' addresses.
Topics have three replicas and a min.insync.replicas of two; with fewer than three nodes, both values are lower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.http.address import PROPERTY
from penstock.metadata.names import random_uuid
from penstock.node.storage import FormatPlan, format_storage, read_meta_properties
from penstock.protocol.uuid import uuid_to_str
from penstock.raft.voters import Voter

if TYPE_CHECKING:
    from random import Random

    from penstock.disk.api import Disk
    from penstock.metadata.image import AclImage
    from penstock.security.scram_arguments import ScramUser

CONTROLLER = "CONTROLLER"
FACTOR = 3
MIN_ISR = 2


@dataclass(frozen=True, slots=True)
class LocalNode:
    node_id: int
    directory: str
    port: int
    properties: Mapping[str, str]


def local_nodes(
    directories: Sequence[str],
    *,
    host: str,
    ports: Sequence[int],
    controller_ports: Sequence[int],
    overrides: Mapping[str, str] | None = None,
    http: Sequence[str] | None = None,
    listener: str = "PLAINTEXT",
) -> list[LocalNode]:
    """Returns the settings of nodes 1, 2, 3, …, one per directory. Every property can be overridden."""
    address = f"[{host}]" if ":" in host else host
    count = len(directories)
    factor = str(min(FACTOR, count))
    in_sync = str(min(MIN_ISR, max(1, count - 1)))
    quorum = ",".join(f"{address}:{port}" for port in controller_ports)
    nodes = []
    for index, directory in enumerate(directories):
        listeners = f"{listener}://{address}:{ports[index]},{CONTROLLER}://{address}:{controller_ports[index]}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(index + 1),
            "listeners": listeners,
            "controller.listener.names": CONTROLLER,
            "controller.quorum.bootstrap.servers": quorum,
            "log.dirs": directory,
            "default.replication.factor": factor,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": factor,
            "share.coordinator.state.topic.min.isr": in_sync,
            "group.initial.rebalance.delay.ms": "0",
            "transaction.two.phase.commit.enable": "true",
            **({PROPERTY: http[index]} if http is not None else {}),
            **(overrides or {}),
        }
        nodes.append(LocalNode(index + 1, directory, ports[index], properties))
    return nodes


def format_new(
    disks: Sequence[Disk],
    nodes: Sequence[LocalNode],
    controller_ports: Sequence[int],
    *,
    host: str,
    random: Random,
    now_ms: int,
    users: tuple[ScramUser, ...] = (),
    acls: tuple[AclImage, ...] = (),
) -> bool:
    """Formats the unformatted directories as one cluster. Returns False if all directories are already formatted."""
    found = [read_meta_properties(disk, node.directory) for disk, node in zip(disks, nodes)]
    if all(found):
        return False
    cluster_id = next((each.cluster_id for each in found if each is not None), None) or uuid_to_str(random_uuid(random))
    voters = tuple(
        Voter(
            node.node_id,
            (known.directory_id if known is not None else None) or random_uuid(random),
            ((CONTROLLER, host, port),),
        )
        for node, known, port in zip(nodes, found, controller_ports)
    )
    for disk, node in zip(disks, nodes):
        plan = FormatPlan(
            (node.directory,),
            node.node_id,
            cluster_id=cluster_id,
            initial_controllers=voters,
            ignore_formatted=True,
            users=users,
            acls=acls,
        )
        format_storage(disk, plan, random=random, now_ms=now_ms)
    return True
