"""Defines the simulated clients that write: plain, idempotent and transactional producers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.accumulator import Sent
from penstock.client.client import AsyncClient
from penstock.client.producer import ALL, Producer, ProducerSettings
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.actors.session import Session
from penstock.sim.checks.history import TOMBSTONE_HEADER, Outcome, Transaction, Write

DELIVERY_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Holds the options of a producer."""

    partitions: Sequence[TopicPartition]
    acks: int = ALL
    idempotent: bool = True
    compression: int = 0
    burst: int = 5
    size: int = 100
    pause_s: float = 0.3
    transactional_id: str | None = None
    transaction_timeout_ms: int = 10_000
    abort: float = 0.3
    """Share of transactions that are aborted on purpose."""
    keys: int = 0
    """Number of keys to choose from; 0: records have no key."""
    first_sequence: int = 0
    tombstones: float = 0.0
    """Share of records that are tombstones."""


class Writer:
    """Sends records with unique values, and adds the outcome of each record to the history."""

    def __init__(self, session: Session, options: WriterOptions) -> None:
        self.session = session
        self.options = options
        self.count = 0

    def producer_settings(self) -> ProducerSettings:
        options = self.options
        return ProducerSettings(
            acks=options.acks,
            idempotent=options.idempotent,
            compression=options.compression,
            linger_s=0.002,
            batch_bytes=16_384,
            delivery_timeout_s=DELIVERY_TIMEOUT_S,
            transactional_id=options.transactional_id,
            transaction_timeout_ms=options.transaction_timeout_ms,
            first_sequence=options.first_sequence,
        )

    async def run(self) -> None:
        while not self.session.done:
            try:
                async with self.session.client() as client:
                    await self._produce(client)
            except KafkaError as error:
                self.session.note(f"starts again: {error.code.name}")
                await self.session.think(0.5)

    async def _produce(self, client: AsyncClient) -> None:
        session, options = self.session, self.options
        producer = Producer(client, session.clock, self.producer_settings())
        try:
            while not session.done:
                await self.write(producer, session.random.randint(1, options.burst))
                await session.think(options.pause_s)
        finally:
            await producer.close()

    async def write(self, producer: Producer, count: int, transaction: Transaction | None = None) -> bool:
        """Writes `count` records and awaits their answers. Returns True if all were acknowledged."""
        sent: list[tuple[Write, Sent]] = []
        whole = True
        for _ in range(count):
            write = self._next(transaction)
            try:
                topic, partition = write.partition
                if write.tombstone:
                    told = ((TOMBSTONE_HEADER, write.value),)
                    promise = await producer.send(topic, None, write.key, partition=partition, headers=told)
                else:
                    promise = await producer.send(topic, write.value, write.key, partition=partition)
                sent.append((write, promise))
            except KafkaError as error:
                self.session.note(f"can't send: {error.code.name}")
                whole = False
        for write, promise in sent:
            whole = await self._settle(write, promise) and whole
        return whole

    def _next(self, transaction: Transaction | None) -> Write:
        session, options = self.session, self.options
        self.count += 1
        name = f"{session.name}:{self.count}:".encode()
        value = name + session.random.randbytes(session.random.randint(0, options.size))
        write = self._recorded(session.random.choice(options.partitions), value, transaction)
        if options.keys:
            write.key = f"k{session.random.randrange(options.keys)}".encode()
        write.tombstone = bool(options.tombstones) and session.random.random() < options.tombstones
        return write

    def _recorded(self, partition: TopicPartition, value: bytes, transaction: Transaction | None) -> Write:
        options = self.options
        idempotent = (options.idempotent and options.acks == ALL) or transaction is not None
        write = Write(
            self.session.name, self.count, partition, value, self.session.now, options.acks, idempotent, transaction
        )
        self.session.history.writes.append(write)
        if transaction is not None:
            transaction.writes.append(write)
        return write

    async def _settle(self, write: Write, promise: Sent) -> bool:
        session = self.session
        try:
            metadata = await promise
        except KafkaError as error:
            session.note(f"lost {write.number}: {error.code.name}")
            return False
        if self.options.acks != 0:
            write.outcome = Outcome.DONE
            write.ended = session.now
            write.offset = metadata.offset
        session.note(f"wrote {write.number} to {write.partition[0]}-{write.partition[1]} at {metadata.offset}")
        return True


class TransactionalWriter(Writer):
    async def _produce(self, client: AsyncClient) -> None:
        session, options = self.session, self.options
        producer = Producer(client, session.clock, self.producer_settings())
        try:
            await producer.start()
            session.note("started")
            while not session.done:
                await self._transaction(producer)
                await session.think(options.pause_s)
        finally:
            await producer.close()

    async def _transaction(self, producer: Producer) -> None:
        session, options = self.session, self.options
        transaction = Transaction(f"{session.name}:{self.count}", session.now)
        session.history.transactions.append(transaction)
        producer.begin()
        whole = True
        for _ in range(session.random.randint(1, 3)):
            whole = await self.write(producer, session.random.randint(1, options.burst), transaction) and whole
            await session.think(options.pause_s / 4)
        commit = whole and session.random.random() >= options.abort
        await end(session, producer, transaction, commit=commit)


async def end(session: Session, producer: Producer, transaction: Transaction, *, commit: bool) -> None:
    """Commits or aborts a transaction. Raises KafkaError if the result is unknown."""
    transaction.committed = commit
    transaction.decided = session.now
    try:
        if commit:
            await producer.commit()
        else:
            await producer.abort()
    except KafkaError as error:
        session.note(f"transaction {transaction.name} ended with an unknown result: {error.code.name}")
        raise
    transaction.outcome = Outcome.DONE
    transaction.ended = session.now
    session.note(f"transaction {transaction.name} {'committed' if commit else 'aborted'}")
