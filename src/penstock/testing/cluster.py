"""Runs a whole cluster in background threads, for tests of node failures.

    with Cluster(nodes=3, topics={"orders": 3}) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        cluster.kill(cluster.leader("orders", 0))

Each node is a production node, both broker and controller, with its own event loop and thread. The data is in memory
unless you pass a directory. Topics have three replicas, or one per node if there are fewer than three nodes. A killed
or restarted node keeps its ports and data.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.broker.requests.fault_rules import Faults
from penstock.disk.api import DIRECTORY_MODE, private
from penstock.disk.memory import MemoryDisk
from penstock.disk.real import RealDisk
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import EMPTY_IMAGE
from penstock.net.network import RealNetwork
from penstock.net.ports import free_ports
from penstock.node.arguments import Value, keyword_configs, node_count, partition_counts, properties, topic_configs
from penstock.node.clock import SystemClock
from penstock.node.descriptors import available
from penstock.node.local import make_node
from penstock.node.local_cluster import LocalNode, format_new, local_nodes
from penstock.testing.asking import create_topics, read_records
from penstock.testing.broker import FOR_TESTS, START_LIMIT_S, STOP_GRACE_S
from penstock.testing.loop_thread import LoopThread
from penstock.testing.split_network import SplitNetwork

if TYPE_CHECKING:
    from penstock.client.sync import Client
    from penstock.disk.api import Disk
    from penstock.node.node import Node
    from penstock.records.record import Record

T = TypeVar("T")

LOOK_EVERY_S = 0.01
# Loopback is fast: elections and the detection of a silent leader can have shorter timeouts than on a network.
QUICK = {
    **FOR_TESTS,
    "penstock.events.topic.enable": "false",  # a test that lists the topics finds only its own
    "controller.quorum.election.timeout.ms": "200",
    "controller.quorum.election.backoff.max.ms": "100",
}


class Cluster:
    def __init__(
        self,
        nodes: int = 3,
        *,
        data: str | os.PathLike[str] | None = None,
        topics: Mapping[str, int] | None = None,
        config: Mapping[str, Value] | None = None,
        host: str = "127.0.0.1",
        seed: int | None = None,
    ) -> None:
        """Prepares a cluster. Its data is in the directory `data`; by default in memory.

        `topics` maps topic names to partition counts. `config` contains server properties.
        """
        node_count(nodes)
        home = "/data" if data is None else os.path.abspath(data)
        ports = free_ports(host, 2 * nodes) if data is None else _kept_ports(home, host, 2 * nodes)
        self._kept = data is not None
        self._host = host
        self._seed = seed
        self._topics = partition_counts(topics)
        self._controller_ports = ports[nodes:]
        self._plans = {
            plan.node_id: plan
            for plan in local_nodes(
                [f"{home}/{index + 1}" for index in range(nodes)],
                host=host,
                ports=ports[:nodes],
                controller_ports=self._controller_ports,
                overrides={**QUICK, **properties(config)},
            )
        }
        clock = SystemClock()
        self._share = available(nodes)
        self._disks: dict[int, Disk] = {
            each: MemoryDisk(now_ms=clock.wall_ms) if data is None else RealDisk(max_open_files=self._share.log_files)
            for each in self._plans
        }
        self._members: dict[int, _Member] = {}
        self._owners = {port: index + 1 for index, port in enumerate(ports[:nodes])}
        self._owners |= {port: index + 1 for index, port in enumerate(self._controller_ports)}
        self._networks: dict[int, SplitNetwork] = {}
        self._groups = [frozenset(self._plans)]
        self.faults: dict[int, Faults] = {each: Faults() for each in self._plans}

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the nodes if their data is in memory; otherwise stops them cleanly."""
        if self._kept:
            self.stop()
        else:
            self._end()

    # --- start and stop -----------------------------------------------------------------------------------------

    def start(self, *nodes: int) -> None:
        """Starts the given nodes, by default all stopped nodes, together. Returns when they serve requests."""
        self._format()
        wanted = [each for each in nodes or self._plans if each not in self._members]
        starting = {each: _Member(self._make(each)) for each in wanted}
        self._members.update(starting)
        try:
            _all([member.begin(member.node.start()) for member in starting.values()])
        except BaseException:
            for each in wanted:
                self._members.pop(each).thread.end()
            raise
        if self._topics:
            topics, self._topics = self._topics, {}
            self.create_topics(topics)

    def _format(self) -> None:
        chance = random.Random(self._seed) if self._seed is not None else random.SystemRandom()  # noqa: S311
        plans = list(self._plans.values())
        format_new(
            [self._disks[plan.node_id] for plan in plans],
            plans,
            self._controller_ports,
            host=self._host,
            random=chance,
            now_ms=SystemClock().wall_ms(),
        )

    def _make(self, node_id: int) -> Node:
        seed = None if self._seed is None else self._seed * 1000 + node_id
        network = SplitNetwork(RealNetwork(max_connections=self._share.connections), self._owners)
        settings = Settings(self._plan(node_id).properties)
        network.unreachable = self._beyond(node_id)
        self._networks[node_id] = network
        return make_node(settings, self._disks[node_id], network=network, seed=seed, faults=self.faults[node_id])

    def stop(self, *nodes: int) -> None:
        """Stops the given nodes cleanly, by default all nodes.

        Fault rules are removed first, so that they can't delay the stop.
        """
        leaving = {each: self._leave(each) for each in nodes or list(self._members)}
        for each, member in leaving.items():
            member.thread.resume()
            self.faults[each].clear()
        try:
            _all([member.begin(member.node.stop(STOP_GRACE_S)) for member in leaving.values()])
        finally:
            for member in leaving.values():
                member.thread.end()

    def _end(self) -> None:
        for each in self.running:
            self.kill(each)

    def kill(self, node: int) -> None:
        """Ends a node as `kill -9` would: nothing is flushed or handed over, and its connections close."""
        member = self._leave(node)
        member.thread.resume()
        self.faults[node].release()
        try:
            member.thread.run(member.node.abandon(), START_LIMIT_S)
        finally:
            member.thread.end()

    def restart(self, node: int) -> None:
        """Stops the node cleanly if it is running, and starts it with the same data."""
        if node in self._members:
            self.stop(node)
        self.start(node)

    def pause(self, node: int) -> None:
        """Pauses a node as SIGSTOP pauses a process: connections stay open, and requests get no response."""
        self._member(node).thread.pause()

    def resume(self, node: int) -> None:
        self._member(node).thread.resume()

    # --- the network --------------------------------------------------------------------------------------------

    def split(self, *groups: Sequence[int]) -> None:
        """Splits the network between nodes: a node reaches only the nodes of its own group.

        Nodes that are in no given group form one more group. Connections between groups break, and new connections get
        no answer. Clients still reach every node. Another call replaces the groups.
        """
        named = [node for group in groups for node in group]
        for node in named:
            self._plan(node)
        twice = sorted({node for node in named if named.count(node) > 1})
        if twice:
            raise ValueError(f"nodes {twice} are in two groups: name each node once")
        rest = [node for node in self._plans if node not in named]
        self._apply_split([*groups, rest])

    def heal(self) -> None:
        """Ends a split: all nodes reach each other again."""
        self._apply_split([list(self._plans)])

    def _apply_split(self, groups: Sequence[Sequence[int]]) -> None:
        self._groups = [frozenset(group) for group in groups]
        for node, member in self._members.items():
            member.thread.run(self._networks[node].cut(self._beyond(node)), START_LIMIT_S)

    def _beyond(self, node: int) -> frozenset[int]:
        """Returns the nodes that the given node can't reach because of a split."""
        own = next(group for group in self._groups if node in group)
        return frozenset(self._plans) - own

    # --- access for tests ---------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Returns `host:port,host:port,…` of all nodes, even of stopped nodes, for any client's bootstrap.servers."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return ",".join(f"{host}:{plan.port}" for plan in self._plans.values())

    @property
    def bootstrap_servers(self) -> str:
        return self.bootstrap

    @property
    def nodes(self) -> list[int]:
        """Returns the ids of all nodes."""
        return list(self._plans)

    @property
    def running(self) -> list[int]:
        return sorted(self._members)

    def node(self, node: int) -> Node:
        """Returns the `Node` object of a node. It runs on another thread, so call its methods with `run`."""
        return self._member(node).node

    def run(self, node: int, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on a node's event loop and returns its result."""
        return self._member(node).thread.run(work, START_LIMIT_S)

    def client(self) -> Client:
        """Returns a connected `penstock.client` client. Close it, or use it in a `with` statement."""
        from penstock.client.sync import Client

        return Client(self.bootstrap)

    def create_topic(self, name: str, partitions: int = 1, replication_factor: int = -1, **configs: Value) -> None:
        """Creates a topic. Configs are passed as keywords, with underscores instead of dots: `retention_ms=1000`."""
        named = keyword_configs(configs)
        self.create_topics({name: partitions}, replication_factor=replication_factor, configs=named)

    def create_topics(
        self, topics: Mapping[str, int], *, replication_factor: int = -1, configs: Mapping[str, Value] | None = None
    ) -> None:
        wanted, named = partition_counts(topics), topic_configs(configs)
        self._anywhere(create_topics(self.bootstrap, wanted, replication_factor, named))

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Returns all records of a topic, or of one partition, up to the current end offset, ordered by partition."""
        return self._anywhere(read_records(self.bootstrap, topic, partition))

    def leader(self, topic: str, partition: int = 0) -> int:
        """Returns the node id of the partition's leader. If there is no leader, waits for an election."""
        with self.client() as client:
            return client.leader(topic, partition)

    def isr(self, topic: str, partition: int = 0) -> list[int]:
        with self.client() as client:
            (described,) = client.describe_topics([topic])
            return sorted(described.partitions[partition].isr)

    @property
    def controller(self) -> int:
        """Returns the node id of the active controller. If there is no controller, waits for an election."""
        from penstock.client.cluster_admin import ClusterAdmin

        with self.client() as client:
            quorum = client.run(ClusterAdmin(client.asynchronous).describe_quorum())
        return int(quorum.topics[0].partitions[0].leader_id)

    def wait_in_sync(self, *topics: str, timeout_s: float = 30.0) -> None:
        """Waits until all replicas of the given topics, by default of all topics, are in sync.

        Raises TimeoutError if this takes longer than `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        self._require_running()
        while lacking := self._lacking(topics):
            if time.monotonic() > deadline:
                raise TimeoutError(f"replicas are not in sync after {timeout_s:g} s: {', '.join(lacking[:10])}")
            time.sleep(LOOK_EVERY_S)

    def _lacking(self, topics: Sequence[str]) -> list[str]:
        """Returns the partitions with a replica that is not in sync, by the newest metadata of any running node: a node
        that was cut off may still have metadata in which all replicas are in sync."""
        brokers = [member.node.broker_or_none for member in self._members.values()]
        images = [broker.metadata.image for broker in brokers if broker is not None]
        newest = max(images, key=lambda image: image.offset, default=EMPTY_IMAGE)
        named = [newest.topics[name] for name in topics if name in newest.topics] if topics else newest.topics.values()
        parts = [(f"{topic.name}-{index}", part) for topic in named for index, part in topic.partitions.items()]
        unknown = [name for name in topics if name not in newest.topics]
        return [*unknown, *(name for name, part in parts if len(part.isr) < len(part.replicas))]

    def _anywhere(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._require_running()
        except RuntimeError:
            work.close()
            raise
        return self.run(self.running[0], work)

    def _require_running(self) -> None:
        if not self._members:
            raise RuntimeError("no node is running: use the cluster inside `with`, or call start()")

    def _plan(self, node: int) -> LocalNode:
        if node not in self._plans:
            raise ValueError(f"there is no node {node}: the nodes are {', '.join(map(str, self._plans))}")
        return self._plans[node]

    def _member(self, node: int) -> _Member:
        self._plan(node)
        if node not in self._members:
            raise RuntimeError(f"node {node} is not running: start({node}) starts it")
        return self._members[node]

    def _leave(self, node: int) -> _Member:
        member = self._member(node)
        del self._members[node]
        return member


class _Member:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.thread = LoopThread(f"penstock-node-{node.settings.node_id}")

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return self.thread.begin(work)


def _kept_ports(home: str, host: str, count: int) -> list[int]:
    """Returns the nodes' ports from the file beside the data. If there is no file, chooses ports and stores them.

    Ports must not change, because the metadata log holds the voters' addresses.
    """
    path = os.path.join(home, "ports.json")
    if not os.path.exists(path):
        os.makedirs(home, DIRECTORY_MODE, exist_ok=True)
        with open(path, "w", encoding="utf-8", opener=private) as file:
            json.dump(free_ports(host, count), file)
    with open(path, encoding="utf-8") as file:
        ports: list[int] = json.load(file)
    if len(ports) != count:
        raise ValueError(
            f"{home} holds a cluster of {len(ports) // 2} nodes: pass nodes={len(ports) // 2} or another directory"
        )
    return ports


def _all(futures: Sequence[Future[Any]]) -> None:
    """Waits for all futures, then raises the error of the first future that failed."""
    failure: BaseException | None = None
    deadline = time.monotonic() + START_LIMIT_S
    for future in futures:
        try:
            future.result(max(0.0, deadline - time.monotonic()))
        except BaseException as problem:
            failure = failure or problem
    if failure is not None:
        raise failure
