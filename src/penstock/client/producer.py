"""Writes records: collects them into batches, sends the batches to leaders, and retries until delivery or a timeout.

Each partition has at most one batch in flight, so retries keep the order. With idempotence (default) a batch carries a
producer id and a sequence number, and a retry of a written batch is not written again.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from penstock.client import produce_requests
from penstock.client.accumulator import (
    RECORD_OVERHEAD,
    Accumulator,
    Appended,
    Built,
    BulkRecord,
    PendingBatch,
    Sent,
    record_size,
)
from penstock.client.client import AsyncClient
from penstock.client.errors import code_of, may_pass
from penstock.client.partitioner import another_partition, partition_for_key
from penstock.client.prepared import PreparedTxnState
from penstock.client.producer_identity import ProducerIdentity
from penstock.client.transactions import Transactions
from penstock.clock import Clock
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_00_produce import PartitionProduceResponse, ProduceResponse
from penstock.protocol.vocabulary import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition
from penstock.records.build import build_batch
from penstock.records.record import Headers

ALL = -1
_ANYWHERE = -1
# Records wait meanwhile: metadata is refreshed more often than connections to a dead node are tried.
LONGEST_PAUSE_S = 0.25

# The broker no longer knows the sequence numbers: a new producer id restarts them.
_NEEDS_NEW_ID = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    acks: int = ALL
    idempotent: bool = True
    """True if a retried batch must not be written twice. Needs acks=ALL."""
    compression: int = 0
    compression_level: int | None = None
    linger_s: float = 0.005
    batch_bytes: int = 256 * 1024
    request_max_bytes: int = 1024 * 1024
    buffer_bytes: int = 32 * 1024 * 1024
    """Limit on the bytes of undelivered records. At the limit, `send` waits."""
    delivery_timeout_s: float = 120.0
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    two_phase_commit: bool = False
    """True for transactions without a timeout, which an external coordinator can prepare and end (KIP-939)."""
    first_sequence: int = 0
    """The first sequence number for each partition. For tests: a broker accepts any number from a new producer."""
    create_topics: bool = False
    """True if the broker should create a missing topic, as far as its auto-creation is on."""


class Producer:
    """Sends records: `async with Producer(client, clock) as producer`. Flushes at the end of the block."""

    def __init__(self, client: AsyncClient, clock: Clock, settings: ProducerSettings | None = None) -> None:
        self._client = client
        self._clock = clock
        self._settings = settings or ProducerSettings()
        self._idempotent = self._settings.idempotent and self._settings.acks == ALL
        self._pending = Accumulator(self._settings.batch_bytes)
        self._sticky: dict[str, int] = {}
        self._transactions: Transactions | None = None
        if self._settings.transactional_id is not None:
            timeout_ms = self._settings.transaction_timeout_ms
            self._transactions = Transactions(
                client, self._settings.transactional_id, timeout_ms, two_phase=self._settings.two_phase_commit
            )
            self._idempotent = True
        self._identity = ProducerIdentity(client, self._transactions)
        self._identity.first_sequence = self._settings.first_sequence
        self._in_flight: dict[TopicPartition, asyncio.Task[None]] = {}
        self._flushing = 0
        self._room = asyncio.Event()
        self._room.set()
        self._timer: asyncio.Handle | None = None
        self._wakes_at = 0.0

    async def __aenter__(self) -> "Producer":
        if self._transactions is not None:
            await self._transactions.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.flush()
        await self.close()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Sent:
        """Queues a record. Waits only for buffer space. Await the returned `Sent` for the record's offset."""
        size = record_size(key, value, headers)
        batch = await self._place(topic, key, size, partition)
        timestamp = self._clock.wall_ms() if timestamp_ms is None else timestamp_ms
        index = batch.add((timestamp, key, value, headers), size)
        self._pending.bytes += size
        self._full(batch)
        return Sent(batch, index)

    async def send_many(
        self, topic: str, records: Iterable[BulkRecord], *, partition: int | None = None
    ) -> list[PendingBatch]:
        """Queues records. Waits only for buffer space. Returns their batches, whose futures give the results.

        This is faster than `send` for each record, because most records only have to be added to a batch that is known
        already.
        """
        info = await self._client.topic(topic, create=self._settings.create_topics)
        count, limit, now = len(info.partitions), self._settings.batch_bytes, self._clock.wall_ms()
        found: dict[PendingBatch, None] = {}
        filling: dict[int, PendingBatch] = {}
        for key, value, headers, timestamp_ms in records:
            if key is None and not headers:
                size = RECORD_OVERHEAD + len(value or b"")
            else:
                size = record_size(key, value, headers)
            place = _ANYWHERE if key is None or partition is not None else partition_for_key(key, count)
            batch = filling.get(place)
            if batch is None or batch.size + size > limit:
                batch = await self._place(topic, key, size, partition)
                # Batches may have been sent during the wait.
                filling = {at: each for at, each in filling.items() if each.encoded is None and not each.done.done()}
                filling[place] = batch
                found[batch] = None
            batch.records.append((now if timestamp_ms is None else timestamp_ms, key, value, headers))
            batch.size += size
            self._pending.bytes += size
        self._full(None)
        self._drain()
        return list(found)

    async def _place(self, topic: str, key: bytes | None, size: int, partition: int | None) -> PendingBatch:
        """Returns a batch with room for a record of `size` bytes. Waits for buffer space."""
        if self._transactions is not None:
            self._transactions.check_open()
        info = self._client.cluster.topics.get(topic)
        if info is None:
            info = await self._client.topic(topic, create=self._settings.create_topics)
        if partition is None:
            partition = self._choose(topic, key, size, len(info.partitions))
        elif partition not in info.partitions:
            await self._client.leader(topic, partition)
        self._full(None)
        while not self._room.is_set():
            self._drain()
            await self._room.wait()
        return self._pending.open_batch((topic, partition), size) or self._new_batch((topic, partition))

    def _full(self, batch: PendingBatch | None) -> None:
        """If the buffer is full, makes later calls of `send` wait. If a full batch is given, sends it."""
        if self._pending.bytes >= self._settings.buffer_bytes:
            self._room.clear()
        if batch is not None and batch.size >= self._settings.batch_bytes:
            self._drain()

    async def send_built(self, topic: str, partition: int, built: Built) -> None:
        """Queues a batch that other code has encoded. Waits only for buffer space.

        `flush` raises an error if the batch was not delivered.
        """
        if self._transactions is not None:
            self._transactions.check_open()
        while not self._room.is_set():
            self._drain()
            await self._room.wait()
        batch = self._new_batch((topic, partition))
        batch.built = built
        batch.size += built.size
        self._pending.bytes += built.size
        self._full(None)
        self._drain()

    async def flush(self) -> None:
        """Waits until all queued records are delivered or have failed. Raises the first failure."""
        batches = self._pending.all()
        self._flushing += 1
        try:
            self._drain()
            failures = await asyncio.gather(*(batch.done for batch in batches), return_exceptions=True)
        finally:
            self._flushing -= 1
        for failure in failures:
            if isinstance(failure, BaseException):
                raise failure

    async def close(self) -> None:
        """Closes the producer and fails undelivered records."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for batch in self._pending.all():
            self._settle(batch, KafkaError(ErrorCode.NETWORK_EXCEPTION, "The producer was closed before delivery."))

    # Transactions: with a transactional id, after `async with` or `start`

    async def start(self, *, keep_prepared: bool = False) -> PreparedTxnState:
        """Initializes the transactional id and aborts its open transaction.

        With `keep_prepared`, keeps a prepared transaction and returns it.
        """
        transactions = self._transactional()
        await transactions.start(keep_prepared=keep_prepared)
        return transactions.prepared

    def begin(self) -> None:
        self._transactional().begin()

    async def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Adds a group's offsets to the open transaction: they are committed only if the transaction is committed."""
        await self._transactional().send_offsets(group_id, offsets)

    @property
    def transaction(self) -> PreparedTxnState:
        """Returns the producer id and epoch of the open transaction, for an external coordinator that may end it."""
        transactions = self._transactional()
        transactions.check_open()
        return PreparedTxnState(transactions.producer_id, transactions.producer_epoch)

    async def prepare(self) -> PreparedTxnState:
        """Delivers all records and prepares the transaction.

        Returns the prepared state. To commit the transaction, pass this state to `complete`.
        """
        with suppress(KafkaError):
            await self.flush()
        return self._transactional().prepare()

    async def complete(self, decided: PreparedTxnState) -> None:
        """Commits the prepared transaction if it equals `decided`; otherwise aborts it.

        Does nothing if no transaction is prepared.
        """
        if await self._transactional().complete(decided):
            self._identity.restart_sequences()

    async def commit(self) -> None:
        """Delivers all records and commits. Raises KafkaError if a record was lost; then call `abort`."""
        with suppress(KafkaError):
            await self.flush()
        await self._end(commit=True)

    async def abort(self) -> None:
        with suppress(KafkaError):
            await self.flush()
        await self._end(commit=False)

    async def _end(self, *, commit: bool) -> None:
        if await self._transactional().end(commit=commit):
            self._identity.restart_sequences()

    def _transactional(self) -> Transactions:
        if self._transactions is None:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                "The producer has no transactional id: set transactional_id in its settings.",
            )
        return self._transactions

    # Gathering

    def _choose(self, topic: str, key: bytes | None, size: int, partitions: int) -> int:
        if key is not None:
            return partition_for_key(key, partitions)
        current = self._sticky.get(topic)
        if current is None or self._pending.open_batch((topic, current), size) is None:
            current = self._sticky[topic] = another_partition(partitions, current, self._client.random)
        return current

    def _new_batch(self, partition: TopicPartition) -> PendingBatch:
        loop = asyncio.get_running_loop()
        now = loop.time()
        settings = self._settings
        batch = PendingBatch(
            partition, now + settings.linger_s, now + settings.delivery_timeout_s, loop.create_future()
        )
        # Callers need not await a future; `flush` and `close` handle its failure.
        batch.done.add_done_callback(_seen)
        self._pending.append(batch)
        self._pending.bytes += batch.size
        self._wake_at(batch.due_at)
        return batch

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            if self._wakes_at <= when:
                return
            self._timer.cancel()
        self._wakes_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._drain()

    # Sending

    def _drain(self) -> None:
        """Sends the oldest batch of each partition if the batch is ready and the partition has no batch in flight."""
        now = asyncio.get_running_loop().time()
        hurry = self._flushing > 0 or not self._room.is_set()
        by_leader: dict[int | None, list[PendingBatch]] = {}
        for batch, complete in self._pending.heads():
            if batch.partition in self._in_flight:
                continue
            ready_at = batch.retry_at if complete or hurry else max(batch.due_at, batch.retry_at)
            if ready_at > now:
                self._wake_at(ready_at)
                continue
            by_leader.setdefault(self._client.cluster.leader(*batch.partition), []).append(batch)
        for leader, batches in by_leader.items():
            # Without a known leader, each batch waits for its own.
            max_bytes = 0 if leader is None else self._settings.request_max_bytes
            for group in produce_requests.divide(batches, max_bytes):
                task = asyncio.ensure_future(self._deliver(leader, group))
                for batch in group:
                    self._in_flight[batch.partition] = task

    async def _deliver(self, leader: int | None, batches: list[PendingBatch]) -> None:
        refused: list[PendingBatch] = []
        try:
            if leader is None:
                leader = await self._leader(batches[0])
            await self._encode(batches)
            refused = await self._produce(leader, batches)
        except KafkaError as error:
            refused = [batch for batch in batches if self._failed(batch, error)]
        try:
            await self._find_leaders(refused)
        finally:
            for batch in batches:
                self._in_flight.pop(batch.partition, None)
        self._drain()

    async def _leader(self, batch: PendingBatch) -> int:
        """Waits for a leader of the batch's partition, at most until the batch's delivery timeout."""
        try:
            async with asyncio.timeout_at(batch.gives_up_at):
                return await self._client.leader(*batch.partition)
        except TimeoutError:
            topic, index = batch.partition
            message = f"{topic}-{index} had no leader within the delivery timeout."
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, message) from None

    async def _find_leaders(self, refused: list[PendingBatch]) -> None:
        """Refreshes the leaders of refused batches. Batches with a new leader are retried at once, without a pause."""
        if not refused:
            return
        cluster = self._client.cluster
        before = {batch: cluster.leader(*batch.partition) for batch in refused}
        await self._client.refresh_quietly(list(dict.fromkeys(batch.partition[0] for batch in refused)))
        for batch, leader in before.items():
            if cluster.leader(*batch.partition) not in (None, leader):
                batch.retry_at = 0.0

    async def _encode(self, batches: list[PendingBatch]) -> None:
        producer_id, epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        if self._idempotent and any(batch.encoded is None for batch in batches):
            producer_id, epoch = await self._identity.current()
        for batch in batches:
            if batch.encoded is not None:
                continue
            sequence = self._identity.next_sequence(batch.partition, batch.count) if self._idempotent else NO_SEQUENCE
            if batch.built is not None:
                batch.encoded = batch.built.seal(producer_id, epoch, sequence, self._transactions is not None)
                continue
            batch.encoded = build_batch(
                batch.records,
                compression=self._settings.compression,
                level=self._settings.compression_level,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=self._transactions is not None,
            )

    async def _produce(self, leader: int, batches: list[PendingBatch]) -> list[PendingBatch]:
        """Sends one Produce request to a leader. Returns the batches whose leaders must be refreshed before a retry."""
        connection = await self._client.connection(leader)
        transactions, settings = self._transactions, self._settings
        request = produce_requests.build(
            batches,
            self._client.cluster,
            transactional_id=settings.transactional_id,
            acks=settings.acks if transactions is None else ALL,
            timeout_s=self._client.settings.request_timeout_s,
        )
        adds_partitions = transactions is None or transactions.implicit
        last_version = produce_requests.last_version(request, adds_partitions=adds_partitions)
        version = connection.version_of(request.API_KEY, last_version)
        if self._transactions is not None:
            await self._transactions.enlist(batch.partition for batch in batches)
        if request.acks == 0:
            await connection.send(request, version=version)
            for batch in batches:
                self._settle(batch, Appended(-1, -1))
            return []
        refused: list[PendingBatch] = []
        answer: ProduceResponse = await connection.request(request, version=version)
        waiting = {batch.partition: batch for batch in batches}
        for topic in answer.responses:
            name = topic.name or self._client.cluster.names_by_id.get(topic.topic_id, "")
            for result in topic.partition_responses:
                answered = waiting.pop((name, result.index), None)
                if answered is not None:
                    hint = result.current_leader
                    moved = self._client.cluster.take_hint(answered.partition, hint, answer.node_endpoints)
                    if self._answered(answered, result, moved):
                        refused.append(answered)
        left_out = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "The broker's answer does not contain the partition.")
        return refused + [batch for batch in waiting.values() if self._failed(batch, left_out)]

    # Outcomes

    def _answered(self, batch: PendingBatch, result: PartitionProduceResponse, moved: bool) -> bool:
        """Handles the result of a batch in a Produce response.

        Returns True if the partition's leader must be refreshed before a retry.
        """
        code = code_of(result.error_code)
        if code is ErrorCode.NONE:
            self._settle(batch, Appended(result.base_offset, result.log_append_time_ms))
        elif code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._settle(batch, Appended(-1, -1))
        elif moved and code.retriable and asyncio.get_running_loop().time() < batch.gives_up_at:
            # The refusal named the new leader: retry at once.
            batch.retry_at = 0.0
        else:
            return self._failed(batch, KafkaError(code, result.error_message))
        return False

    def _failed(self, batch: PendingBatch, error: KafkaError) -> bool:
        """Handles a batch that was not delivered. Returns True if it will be retried.

        Returns False if the error is final or the delivery timeout has passed.
        """
        now = asyncio.get_running_loop().time()
        batch.failures += 1
        new_id = self._identity.can_be_replaced and error.code in _NEEDS_NEW_ID and batch.failures == 1
        if not (may_pass(error.code) or new_id) or now >= batch.gives_up_at:
            if batch.encoded is not None:
                # Its sequence numbers may or may not be used: the next batch can't continue them.
                self._identity.replace()
            if self._transactions is not None:
                self._transactions.failed(error)
            self._settle(batch, error)
            return False
        if new_id:
            self._identity.replace()
            batch.encoded = None
        pause = min(self._client.retry.pause_s(batch.failures, self._client.random), LONGEST_PAUSE_S)
        batch.retry_at = min(now + pause, batch.gives_up_at)
        return True

    def _settle(self, batch: PendingBatch, outcome: Appended | KafkaError) -> None:
        self._pending.remove(batch)
        if self._pending.bytes < self._settings.buffer_bytes:
            self._room.set()
        if batch.done.done():
            return
        if isinstance(outcome, KafkaError):
            topic, partition = batch.partition
            why = outcome.message or "refused."
            batch.done.set_exception(KafkaError(outcome.code, f"Records for {topic}-{partition}: {why}"))
        else:
            batch.done.set_result(outcome)


def _seen(done: "asyncio.Future[Appended]") -> None:
    if not done.cancelled():
        done.exception()
