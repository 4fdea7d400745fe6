"""A whole broker in a background thread, for tests of code that talks to Kafka.

    with Broker(topics={"orders": 3}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

It is the node that production runs, on memory unless given a directory, on a free port. `kill()` ends it as `kill -9`
would and `start()` brings it back over what it had written; `restart()` stops it cleanly first. Port and data stay
the same throughout.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.broker.faults import Faults
from penstock.disk.memory import MemoryDisk
from penstock.disk.real import RealDisk
from penstock.net.loop import new_event_loop
from penstock.node.clock import SystemClock
from penstock.node.local import format_if_new, local_settings, make_node

if TYPE_CHECKING:
    from penstock.client.sync import Client
    from penstock.disk.api import Disk
    from penstock.node.node import Node
    from penstock.records.record import Record

T = TypeVar("T")

START_LIMIT_S = 30.0
STOP_GRACE_S = 1.0
READ_LIMIT_S = 10.0
# Internal topics of a test are small: fewer partitions are made sooner.
FOR_TESTS = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}


class Broker:
    def __init__(
        self,
        *,
        data: str | os.PathLike[str] | None = None,
        topics: Mapping[str, int] | None = None,
        config: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        seed: int | None = None,
    ) -> None:
        """`data` is a directory to keep, `topics` are names with partition counts, `config` are server properties."""
        self._where = "/data" if data is None else os.path.abspath(data)
        self._disk: Disk = MemoryDisk(now_ms=SystemClock().wall_ms) if data is None else RealDisk()
        self._topics = dict(topics or {})
        self._config = {**FOR_TESTS, **(config or {})}
        self._host = host
        self._port = port
        self._seed = seed
        self._thread: _LoopThread | None = None
        self._node: Node | None = None
        self.faults = Faults()

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when the broker serves. Nothing happens if it already does."""
        if self._node is not None:
            return
        self._thread = _LoopThread()
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
        node = make_node(settings, self._disk, seed=self._seed)
        format_if_new(node)
        await node.start()
        node.broker.faults = self.faults
        self._port = int(node.bootstrap.rpartition(":")[2])
        return node

    def stop(self) -> None:
        """A clean stop. Fault rules go, so that nothing is held up by them."""
        node, self._node = self._node, None
        if node is not None and self._thread is not None:
            self.faults.clear()
            self._thread.run(node.stop(STOP_GRACE_S), START_LIMIT_S)
        self._end_thread()

    def kill(self) -> None:
        """Ends the broker as `kill -9` would: nothing is flushed or marked; what was written is in the page cache."""
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

    # --- what tests ask -----------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """`host:port`, for any client's bootstrap.servers."""
        return self.node.bootstrap

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
        """The node itself, which lives on another thread: reach into it with `run`."""
        if self._node is None:
            raise RuntimeError("the broker is not running: use it inside `with`, or call start()")
        return self._node

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the broker's own event loop and returns what it returns."""
        assert self._thread is not None
        return self._thread.run(work, START_LIMIT_S)

    def client(self) -> Client:
        """A small client of Penstock's own, connected; close it, or use it in `with`."""
        from penstock.client.sync import Client

        return Client(self.bootstrap)

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Configs as keywords with underscores for dots: `retention_ms="1000"`."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.create_topics({name: partitions}, configs=named)

    def create_topics(self, topics: Mapping[str, int], *, configs: Mapping[str, str] | None = None) -> None:
        from penstock.client.admin import Admin, NewTopic
        from penstock.client.client import AsyncClient

        async def create() -> None:
            async with AsyncClient(self.bootstrap) as client:
                wanted = [NewTopic(name, partitions, 1, configs=configs) for name, partitions in topics.items()]
                await Admin(client).create_topics(wanted)

        self.run(create())

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Everything in a topic, or one partition of it, up to its end now; partitions one after the other."""
        from penstock.client.consumer import Consumer
        from penstock.client.offsets import EARLIEST, LATEST, list_offsets

        async def read() -> list[Record]:
            from penstock.client.client import AsyncClient

            async with AsyncClient(self.bootstrap) as client, asyncio.timeout(READ_LIMIT_S):
                wanted = (await client.topic(topic)).partitions if partition is None else [partition]
                found: list[Record] = []
                for each in wanted:
                    key = (topic, each)
                    end = (await list_offsets(client, {key: LATEST}))[key].offset
                    async with Consumer(client) as consumer:
                        await consumer.assign({key: EARLIEST})
                        while consumer.position(key) < end:
                            for fetched in await consumer.poll():
                                found += [record for record in fetched.records() if record.offset < end]
                return found

        return self.run(read())


class _LoopThread:
    """An event loop in a daemon thread: a test that dies does not wait for it."""

    def __init__(self) -> None:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-broker", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(_cancel_the_rest(), self._loop).result(STOP_GRACE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_the_rest() -> None:
    """A killed broker leaves tasks behind; they end here, quietly, rather than with a warning when the loop goes."""
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
