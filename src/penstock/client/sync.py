"""Offers the client to code without an event loop: the command line, Spark's workers, scripts, notebooks.

It runs an event loop in its own thread, for two reasons. First, the client must read its connections, let a producer's
linger time pass and send a consumer's next fetch while the caller does other work. Second, the caller may already run
in an event loop, as in a notebook.
"""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.client.accumulator import Built, BulkRecord, RecordMetadata, Sent
from penstock.client.admin import Admin, NewTopic
from penstock.client.client import AsyncClient
from penstock.client.cluster import Cluster, Node, TopicInfo
from penstock.client.connection import ConnectionSettings
from penstock.client.consumer import Consumer, ConsumerSettings, Position
from penstock.client.fetched import Fetched
from penstock.client.offsets import FoundOffset
from penstock.client.prepared import PreparedTxnState
from penstock.client.producer import Producer, ProducerSettings
from penstock.client.retry import Retry
from penstock.client.share_consumer import Delivered, ShareConsumer, ShareConsumerSettings
from penstock.net.loop import new_event_loop
from penstock.net.network import Network
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_03_metadata import MetadataResponse
from penstock.protocol.messages.api_32_describe_configs import DescribeConfigsResourceResult
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterResponse
from penstock.protocol.schema import Message
from penstock.protocol.vocabulary import READ_UNCOMMITTED, Acknowledge, TopicPartition
from penstock.records.record import Headers

T = TypeVar("T")

"""One record as a tuple: key, value, headers and timestamp. A timestamp of None means now."""


class _WallClock:
    """Reads the system's wall clock, for clients outside a node."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def nanoseconds(self) -> int:
        return time.perf_counter_ns()


class _LoopThread:
    def __init__(self) -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="penstock-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C while waiting: the work must not continue unnoticed.
            future.cancel()
            raise

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Client:
    """Implements a blocking client, which several threads may use: `with Client("host:port") as client`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        settings: ConnectionSettings | None = None,
        retry: Retry | None = None,
        retry_first: bool = False,
        network: Network | None = None,
    ) -> None:
        """Connects to the brokers. `retry_first` retries the first connection if it fails."""
        self.asynchronous = AsyncClient(bootstrap, settings=settings, retry=retry, network=network)
        self._admin = Admin(self.asynchronous)
        self._thread = _LoopThread()
        self._closed = False
        try:
            self.run(self._connect(retry_first))
        except BaseException:
            self._thread.stop()
            raise

    async def _connect(self, retry_first: bool) -> None:
        if retry_first:
            await self.asynchronous.retrying(self.asynchronous.connection)
        else:
            await self.asynchronous.connection()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.run(self.asynchronous.close())
            self._thread.stop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the event loop of the asynchronous client and returns its result."""
        return self._thread.run(work)

    # Requests and metadata

    @property
    def cluster(self) -> Cluster:
        return self.asynchronous.cluster

    def request(
        self, message: Message, *, node: int | None = None, version: int | None = None, timeout_s: float | None = None
    ) -> Any:
        """Sends a request once to a node (None: any node), and returns the response. The caller checks its error
        codes."""
        return self.run(self.asynchronous.request(message, node=node, version=version, timeout_s=timeout_s))

    def metadata(self, topics: Sequence[str] | None = None) -> MetadataResponse:
        return self.run(self.asynchronous.metadata(topics))

    def leader(self, topic: str, partition: int) -> int:
        return self.run(self.asynchronous.leader(topic, partition))

    # Admin

    def create_topic(
        self, name: str, partitions: int = -1, replication_factor: int = -1, **configs: str | None
    ) -> None:
        self.run(self._admin.create_topic(name, partitions, replication_factor, **configs))

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        self.run(self._admin.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str] = (), *, ids: Iterable[bytes] = ()) -> None:
        self.run(self._admin.delete_topics(names, ids=ids))

    def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        return self.run(self._admin.list_topics(internal=internal))

    def describe_topics(self, names: Iterable[str]) -> list[TopicInfo]:
        return self.run(self._admin.describe_topics(names))

    def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        self.run(self._admin.create_partitions(topic, total, validate_only=validate_only))

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, FoundOffset]:
        return self.run(self._admin.list_offsets(wanted, isolation_level=isolation_level))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return self.run(self._admin.delete_records(before))

    def describe_configs(
        self,
        kind: int,
        name: str,
        *,
        keys: Sequence[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> list[DescribeConfigsResourceResult]:
        work = self._admin.describe_configs(kind, name, keys=keys, synonyms=synonyms, documentation=documentation)
        return self.run(work)

    def alter_configs(
        self, kind: int, name: str, changes: Iterable[tuple[str, int, str | None]], *, validate_only: bool = False
    ) -> None:
        self.run(self._admin.alter_configs(kind, name, changes, validate_only=validate_only))

    def describe_cluster(self) -> DescribeClusterResponse:
        return self.run(self._admin.describe_cluster())

    def nodes(self) -> list[Node]:
        return self.run(self._admin.nodes())

    # Records

    def producer(self, settings: ProducerSettings | None = None) -> "SyncProducer":
        return SyncProducer(self, settings)

    def consumer(self, settings: ConsumerSettings | None = None) -> "SyncConsumer":
        return SyncConsumer(self, settings)

    def share_consumer(
        self, group: str, topics: Sequence[str], settings: ShareConsumerSettings | None = None
    ) -> "SyncShareConsumer":
        """Returns a share consumer. It joins its group at the start of `with client.share_consumer(…) as …`."""
        return SyncShareConsumer(self, group, topics, settings)


class SyncProducer:
    """Implements a producer for code without an event loop.

    `send_many` passes all its records to the event loop's thread in one call.
    """

    def __init__(self, client: Client, settings: ProducerSettings | None) -> None:
        self._client = client
        self._transactional = settings is not None and settings.transactional_id is not None
        self._producer = Producer(client.asynchronous, _WallClock(), settings)

    def __enter__(self) -> "SyncProducer":
        if self._transactional:
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
        self.close()

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> "SyncSent":
        """Queues a record. Waits only for buffer space."""
        sent = self._client.run(
            self._producer.send(topic, value, key, partition=partition, headers=headers, timestamp_ms=timestamp_ms)
        )
        return SyncSent(self._client, sent)

    def send_many(self, topic: str, records: Iterable[BulkRecord], *, partition: int | None = None) -> None:
        """Queues records. Waits for buffer space. `flush` raises an error if they were not delivered."""

        self._client.run(self._producer.send_many(topic, list(records), partition=partition))

    def send_built(self, topic: str, partition: int, built: Built) -> None:
        """Queues a batch that other code has encoded. Waits only for buffer space."""
        self._client.run(self._producer.send_built(topic, partition, built))

    def start(self, *, keep_prepared: bool = False) -> PreparedTxnState:
        """Initializes the transactional id and fences its earlier producer.

        With `keep_prepared`, keeps a prepared transaction and returns it. Call `begin` or `complete` next.
        """
        return self._client.run(self._producer.start(keep_prepared=keep_prepared))

    def begin(self) -> None:
        self._producer.begin()

    def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._client.run(self._producer.send_offsets(group_id, offsets))

    @property
    def transaction(self) -> PreparedTxnState:
        return self._producer.transaction

    def prepare(self) -> PreparedTxnState:
        return self._client.run(self._producer.prepare())

    def complete(self, decided: PreparedTxnState) -> None:
        self._client.run(self._producer.complete(decided))

    def commit(self) -> None:
        self._client.run(self._producer.commit())

    def abort(self) -> None:
        self._client.run(self._producer.abort())

    def flush(self) -> None:
        """Waits until all queued records are delivered or have failed. Raises the first failure."""
        self._client.run(self._producer.flush())

    def close(self) -> None:
        self._client.run(self._producer.close())


class SyncSent:
    """Holds the result of sending one record, which may not be known yet."""

    __slots__ = ("_client", "_sent")

    def __init__(self, client: Client, sent: Sent) -> None:
        self._client = client
        self._sent = sent

    def result(self) -> RecordMetadata:
        async def settled() -> RecordMetadata:
            return await self._sent

        return self._client.run(settled())


class SyncConsumer:
    def __init__(self, client: Client, settings: ConsumerSettings | None) -> None:
        self._client = client
        self._consumer = Consumer(client.asynchronous, settings)

    def __enter__(self) -> "SyncConsumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def assignment(self) -> set[TopicPartition]:
        return self._consumer.assignment

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        self._client.run(self._consumer.assign(positions))

    def seek(self, positions: Mapping[TopicPartition, Position]) -> None:
        self._client.run(self._consumer.seek(positions))

    def unassign(self, partition: TopicPartition) -> None:
        self._consumer.unassign(partition)

    def position(self, partition: TopicPartition) -> int:
        return self._consumer.position(partition)

    def poll(self, timeout_s: float = 1.0) -> list[Fetched]:
        return self._client.run(self._consumer.poll(timeout_s))

    def close(self) -> None:
        self._client.run(self._consumer.close())


class SyncShareConsumer:
    """Implements a share consumer for code without an event loop. It sends heartbeats while the caller works."""

    def __init__(
        self, client: Client, group: str, topics: Sequence[str], settings: ShareConsumerSettings | None
    ) -> None:
        self._client = client
        self._consumer = ShareConsumer(client.asynchronous, group, topics, settings)

    def __enter__(self) -> "SyncShareConsumer":
        self._client.run(self._consumer.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def assignment(self) -> set[TopicPartition]:
        return self._consumer.assignment

    def poll(self) -> list[Delivered]:
        return self._client.run(self._consumer.poll())

    def acknowledge(self, delivered: Delivered, kind: Acknowledge = Acknowledge.ACCEPT) -> None:
        self._consumer.acknowledge(delivered, kind)

    def commit(self) -> dict[TopicPartition, KafkaError | None]:
        """Sends all acknowledgements. Returns an error for each partition; None if its acknowledgements are stored."""
        return {partition: error for partition, _, error in self._client.run(self._consumer.commit())}

    def close(self) -> None:
        self._client.run(self._consumer.close())
