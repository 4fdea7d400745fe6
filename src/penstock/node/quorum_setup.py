"""Reads the properties of the quorum: this node's role, the voters, the bootstrap servers and the timeouts.

controller.quorum.voters              every node's properties list the voters (kraft.version 0)
controller.quorum.bootstrap.servers   the metadata log lists the voters (kraft.version 1)
neither                               a single node, or a node whose directory lists the voters
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from penstock.metadata.configs.definition import ConfigError
from penstock.raft.config import RaftConfig
from penstock.raft.voters import Voter, VoterSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.metadata.configs.settings import Settings

VOTER = re.compile(r"(?P<id>\d+)@(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]@]+):(?P<port>\d+)")
SERVER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]@]+):(?P<port>\d+)")
VOTERS, SERVERS = "controller.quorum.voters", "controller.quorum.bootstrap.servers"
#: Bootstrap servers of unknown id get ids from here downwards, as in Kafka.
FIRST_UNKNOWN_ID = -2
MAX_PORT = 65_535
FIRST_ELECTION_MS = 50
#: Hosts that name this machine in `controller.quorum.bootstrap.servers`.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class FirstVoters(Enum):
    """Holds the voters that `storage format` writes to a new directory."""

    NONE = "none: the node learns them from the quorum that it joins"
    STATIC = "none: the properties list them"
    ALONE = "this node"
    SEVERAL = "the controllers of --initial-controllers"


@dataclass(frozen=True, slots=True)
class QuorumPlan:
    is_broker: bool
    is_controller: bool
    static_voters: VoterSet
    bootstrap: dict[int, tuple[str, int]]
    config: RaftConfig

    @property
    def alone(self) -> bool:
        """Returns True if the properties name no other node.

        A formatted directory may still name other voters.
        """
        return not self.static_voters and not self.bootstrap

    def first_voters(self, *, standalone: bool, several: bool, joins: bool) -> FirstVoters:
        """Returns the voters that the flags of `storage format` name, to write to a new directory.

        Raises ConfigError.
        """
        if self.static_voters and (standalone or several):
            raise ConfigError(
                f"{VOTERS} is set, so no voters are stored in log directories: remove --standalone and "
                f"--initial-controllers, or replace {VOTERS} by {SERVERS}."
            )
        if standalone and not self.is_controller:
            raise ConfigError("--standalone needs a controller: leave it out, or add 'controller' to process.roles.")
        if joins or not self.is_controller:
            return FirstVoters.NONE
        if self.static_voters:
            return FirstVoters.STATIC
        if self.bootstrap and not standalone and not several:
            raise ConfigError(
                f"{SERVERS} is set and {VOTERS} is not, so choose one flag: --standalone for a new cluster with one "
                "controller, --initial-controllers for a new quorum of several controllers, "
                "--no-initial-controllers to join an existing quorum."
            )
        return FirstVoters.SEVERAL if several else FirstVoters.ALONE

    def format_advice(self, own: Iterable[tuple[str, int]]) -> str:
        """Returns the flags of `storage format` that an error message suggests. `own` holds this node's listeners."""
        if self.alone:
            return "--standalone"
        if self.static_voters:
            return "--cluster-id <the cluster's>"
        if self.is_controller and self._names_only(own):
            return "--standalone"
        return "--no-initial-controllers --cluster-id <the cluster's>"

    def _names_only(self, own: Iterable[tuple[str, int]]) -> bool:
        """Returns True if this node is the only bootstrap server, as in Kafka's sample properties."""
        mine = {(name, port) for host, port in own for name in (host, *(LOOPBACK if host in LOOPBACK else ()))}
        return len(self.bootstrap) == 1 and set(self.bootstrap.values()) <= mine

    def voters_for(self, me: Voter) -> VoterSet:
        """Returns the voters with which to start if the metadata log records no voters."""
        return VoterSet.of([me]) if self.alone else self.static_voters


def plan_quorum(settings: Settings, controller_listeners: Sequence[str]) -> QuorumPlan:
    """Reads the quorum's properties. Raises ConfigError if they can't form a quorum."""
    roles = settings.list("process.roles") or ("broker", "controller")
    is_broker, is_controller = "broker" in roles, "controller" in roles
    voters = _static_voters(settings, controller_listeners)
    servers = _bootstrap_servers(settings)
    node_id = settings.node_id
    named = ", ".join(map(str, voters.ids))
    if voters and is_controller and voters.find(node_id) is None:
        raise ConfigError(
            f"node.id {node_id} is not among {VOTERS} ({named}): "
            "add it there on every node, or leave 'controller' out of process.roles."
        )
    if voters and not is_controller and voters.find(node_id) is not None:
        raise ConfigError(
            f"{VOTERS} names node {node_id}, which is not a controller: "
            "add 'controller' to its process.roles, or take it out of the voters on every node."
        )
    if not is_controller and not voters and not servers:
        raise ConfigError(f"The broker has no controllers to connect to: set {SERVERS}, e.g. localhost:9093.")
    if is_controller and not controller_listeners and (len(voters) > 1 or servers):
        raise ConfigError(
            "The controller has no listener for other controllers: add one to listeners, e.g. "
            "CONTROLLER://localhost:9093, and name it in controller.listener.names."
        )
    return QuorumPlan(is_broker, is_controller, voters, servers, _raft_config(settings, bool(servers)))


def _static_voters(settings: Settings, controller_listeners: Sequence[str]) -> VoterSet:
    found: dict[int, Voter] = {}
    name = controller_listeners[0] if controller_listeners else "CONTROLLER"
    for entry in settings.list(VOTERS):
        match = VOTER.fullmatch(entry.strip())
        if match is None or int(match["port"]) > MAX_PORT:
            raise ConfigError(f"{VOTERS}: {entry.strip()!r} is not id@host:port, e.g. 1@localhost:9093.")
        node_id = int(match["id"])
        if node_id in found:
            raise ConfigError(f"{VOTERS}: node {node_id} is named twice; give each voter an id of its own.")
        found[node_id] = Voter(node_id, endpoints=((name, match["host"].strip("[]"), int(match["port"])),))
    return VoterSet.of(found.values())


def _bootstrap_servers(settings: Settings) -> dict[int, tuple[str, int]]:
    found: dict[int, tuple[str, int]] = {}
    for place, entry in enumerate(settings.list(SERVERS)):
        match = SERVER.fullmatch(entry.strip())
        if match is None or int(match["port"]) > MAX_PORT:
            raise ConfigError(f"{SERVERS}: {entry.strip()!r} is not host:port, e.g. localhost:9093.")
        found[FIRST_UNKNOWN_ID - place] = (match["host"].strip("[]"), int(match["port"]))
    return found


def _raft_config(settings: Settings, dynamic: bool) -> RaftConfig:
    def milliseconds(name: str) -> int:
        return max(1, settings.int(f"controller.quorum.{name}.ms"))

    fetch_timeout_ms = milliseconds("fetch.timeout")
    return RaftConfig(
        election_timeout_ms=milliseconds("election.timeout"),
        first_election_ms=FIRST_ELECTION_MS,
        election_backoff_max_ms=milliseconds("election.backoff.max"),
        fetch_timeout_ms=fetch_timeout_ms,
        request_timeout_ms=milliseconds("request.timeout"),
        retry_backoff_ms=milliseconds("retry.backoff"),
        fetch_max_wait_ms=max(1, fetch_timeout_ms // 4),  # Kafka's 500 ms, if the timeout is Kafka's default
        fetch_max_bytes=settings.int("controller.quorum.fetch.max.bytes"),
        max_snapshot_chunk_bytes=settings.int("controller.quorum.fetch.snapshot.max.bytes"),
        dynamic_voters=dynamic,
    )
