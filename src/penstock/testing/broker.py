"""Runs a whole broker in a background thread, for tests of code that uses Kafka.

    with Broker(topics={"orders": 3}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

The broker is a production node on a free port. Its data is in memory unless you pass a directory. `kill()` ends it as
`kill -9` would, and `start()` starts it again with the same port and data; `restart()` stops it cleanly first.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.broker.requests.fault_rules import Faults
from penstock.disk.memory import MemoryDisk
from penstock.disk.real import RealDisk
from penstock.node.arguments import Value, keyword_configs, partition_counts, properties, topic_configs
from penstock.node.clock import SystemClock
from penstock.node.descriptors import available
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.testing.asking import create_topics, read_records
from penstock.testing.loop_thread import LoopThread

if TYPE_CHECKING:
    from penstock.client.connection import ConnectionSettings
    from penstock.client.sync import Client
    from penstock.disk.api import Disk
    from penstock.node.node import Node
    from penstock.records.record import Record

T = TypeVar("T")

START_LIMIT_S = 120.0
STOP_GRACE_S = 1.0
# Internal topics of a test are small: fewer partitions are created faster.
FOR_TESTS = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}


class Broker:
    def __init__(
        self,
        *,
        data: str | os.PathLike[str] | None = None,
        topics: Mapping[str, int] | None = None,
        config: Mapping[str, Value] | None = None,
        client: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        seed: int | None = None,
    ) -> None:
        """Prepares a broker. Its data is in the directory `data`; by default in memory.

        `topics` maps topic names to partition counts. `config` has server properties. If they secure the listener,
        `client` has the security properties, such as `sasl.mechanism`, with which `client()`, `create_topics()` and
        `records()` log in.
        """
        self._where = "/data" if data is None else os.path.abspath(data)
        self._disk: Disk = (
            MemoryDisk(now_ms=SystemClock().wall_ms) if data is None else RealDisk(max_open_files=available().log_files)
        )
        self._topics = partition_counts(topics)
        self._config = {**FOR_TESTS, **properties(config)}
        self._client = dict(client or {})
        self._host = host
        self._port = port
        self._seed = seed
        self._thread: LoopThread | None = None
        self._node: Node | None = None
        self.faults = Faults()

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the broker and returns when it serves requests. No-op if it is running."""
        if self._node is not None:
            return
        self._thread = LoopThread()
        try:
            self._node = self._thread.run(self._start(), START_LIMIT_S)
            if self._topics:
                wanted, self._topics = self._topics, {}
                self.create_topics(wanted)
        except BaseException:
            self._end_thread()
            raise

    async def _start(self) -> Node:
        settings = local_settings(self._where, host=self._host, port=self._port, overrides=self._config)
        node = make_node(settings, self._disk, seed=self._seed, faults=self.faults)
        format_if_new(node)
        await node.start()
        self._port = int(node.bootstrap.rpartition(":")[2])
        return node

    def stop(self) -> None:
        """Stops the broker cleanly. Fault rules are removed first, so that they can't delay the stop."""
        node, self._node = self._node, None
        if node is not None and self._thread is not None:
            self.faults.clear()
            self._thread.run(node.stop(STOP_GRACE_S), START_LIMIT_S)
        self._end_thread()

    def kill(self) -> None:
        """Ends the broker as `kill -9` would: nothing is flushed, but written data stays in the page cache."""
        node, self._node = self._node, None
        if node is not None and self._thread is not None:
            self._thread.run(self._abandon(node), START_LIMIT_S)
        self._end_thread()

    async def _abandon(self, node: Node) -> None:
        self.faults.release()
        await node.abandon()

    def restart(self) -> None:
        self.stop()
        self.start()

    def _end_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()

    # --- access for tests ---------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Returns the broker's `host:port`, for any client's bootstrap.servers."""
        return self.node.bootstrap

    def bootstrap_of(self, listener: str) -> str:
        """Returns `host:port` of the listener with this name, such as SASL_SSL."""
        return self.node.bootstrap_of(listener)

    @property
    def bootstrap_servers(self) -> str:
        return self.bootstrap

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def node(self) -> Node:
        """Returns the `Node` object of the broker. It runs on another thread, so call its methods with `run`."""
        if self._node is None:
            raise RuntimeError("the broker is not running: use it inside `with`, or call start()")
        return self._node

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the broker's event loop and returns its result."""
        assert self._thread is not None
        return self._thread.run(work, START_LIMIT_S)

    def client(self) -> Client:
        """Returns a connected `penstock.client` client. Close it, or use it in a `with` statement."""
        from penstock.client.sync import Client

        return Client(self.bootstrap, settings=self._connection())

    def _connection(self) -> ConnectionSettings:
        """Returns the settings with which this object connects to its broker. Raises ClientSecurityError."""
        from penstock.client.client_security import credentials_of
        from penstock.client.connection import ConnectionSettings

        found = credentials_of(self._client)
        return ConnectionSettings(tls=found.tls, login=found.login)

    def create_topic(self, name: str, partitions: int = 1, **configs: Value) -> None:
        """Creates a topic. Configs are passed as keywords, with underscores instead of dots: `retention_ms=1000`."""
        self.create_topics({name: partitions}, configs=keyword_configs(configs))

    def create_topics(self, topics: Mapping[str, int], *, configs: Mapping[str, Value] | None = None) -> None:
        wanted, named = partition_counts(topics), topic_configs(configs)
        self.run(create_topics(self.bootstrap, wanted, 1, named, self._connection()))

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Returns all records of a topic, or of one partition, up to the current end offset, ordered by partition."""
        return self.run(read_records(self.bootstrap, topic, partition, self._connection()))
