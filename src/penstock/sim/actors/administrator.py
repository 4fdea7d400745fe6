"""Defines the administrator, which creates, grows and deletes topics, alters configs, and deletes records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from penstock.client.admin import Admin, NewTopic
from penstock.client.client import AsyncClient
from penstock.client.offsets import list_offsets
from penstock.client.producer import Producer
from penstock.protocol.vocabulary import EARLIEST, LATEST, ConfigOperation, ResourceType, TopicPartition
from penstock.sim.actors.producers import Writer, WriterOptions
from penstock.sim.actors.session import Session
from penstock.sim.checks.history import Deletion, Outcome, TopicChange
from penstock.sim.plan.plan import FSYNC_SUFFIX

#: Configs that no guarantee depends on, with the values to choose from.
CONFIGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("segment.ms", ("2000", "10000", "60000")),
    ("index.interval.bytes", ("64", "1024", "4096")),
    ("flush.ms", ("1000", "30000")),
    ("compression.type", ("producer", "lz4", "zstd")),
    ("file.delete.delay.ms", ("0", "5000")),
)


@dataclass(frozen=True, slots=True)
class AdministratorOptions:
    partitions: Sequence[TopicPartition]
    pause_s: float = 3.0
    delete_records: bool = False
    replication_factor: int = 1


class Administrator:
    def __init__(self, session: Session, options: AdministratorOptions) -> None:
        self.session = session
        self.options = options
        self._count = 0
        self._own: dict[str, int] = {}
        self._writer = Writer(session, WriterOptions(options.partitions))

    async def run(self) -> None:
        await self.session.repeat(lambda client: self._act(client, Admin(client)), self.options.pause_s)

    async def _act(self, client: AsyncClient, admin: Admin) -> None:
        random = self.session.random
        choice = random.random()
        if choice < 0.3 or (choice < 0.6 and not self._own):
            self._count += 1
            name = f"own-{self.session.name}-{self._count}".replace("#", "-")
            fsync = random.random() < 0.5
            name += FSYNC_SUFFIX if fsync else ""
            await self._change(name, random.randint(1, 3), lambda change: self._create(admin, change, fsync))
            await self._use(client, name)
        elif choice < 0.45:
            name = random.choice(list(self._own))
            await self._change(
                name,
                self._own[name] + random.randint(1, 2),
                lambda change: admin.create_partitions(name, change.partitions),
            )
        elif choice < 0.6:
            name = random.choice(list(self._own))
            await self._change(name, 0, lambda change: admin.delete_topics([change.topic]))
        elif choice < 0.9 or not self.options.delete_records:
            await self._alter(admin)
        else:
            await self._delete_records(client, admin)

    async def _create(self, admin: Admin, change: TopicChange, fsync: bool) -> None:
        configs = {"penstock.acks.fsync": "true"} if fsync else {}
        await admin.create_topics(
            [NewTopic(change.topic, change.partitions, self.options.replication_factor, configs=configs)]
        )

    async def _use(self, client: AsyncClient, name: str) -> None:
        """Writes records to a topic directly after its creation. All guarantees must hold from the first moment of a
        topic."""
        self._writer.options = WriterOptions([(name, index) for index in range(self._own[name])])
        producer = Producer(client, self.session.clock, self._writer.producer_settings())
        try:
            await self._writer.write(producer, self.session.random.randint(1, 5))
        finally:
            await producer.close()

    async def _change(self, name: str, partitions: int, ask: Callable[[TopicChange], Awaitable[None]]) -> None:
        """Requests a change, and records its outcome if the request succeeds. After a refusal the outcome stays
        unknown: perhaps the first attempt succeeded, and only its retry was refused."""
        session = self.session
        change = TopicChange(name, partitions, session.now)
        session.history.topics.append(change)
        self._own.pop(name, None)
        await ask(change)
        change.outcome = Outcome.DONE
        session.note(f"topic {name}: {partitions} partitions")
        if partitions:
            self._own[name] = partitions

    async def _alter(self, admin: Admin) -> None:
        random = self.session.random
        topic = random.choice(self.options.partitions)[0]
        key, values = random.choice(CONFIGS)
        value = random.choice((*values, None))
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        await admin.alter_configs(ResourceType.TOPIC, topic, [(key, operation, value)])
        self.session.note(f"config {topic} {key}={value}")

    async def _delete_records(self, client: AsyncClient, admin: Admin) -> None:
        random = self.session.random
        partition = random.choice(self.options.partitions)
        start = (await list_offsets(client, {partition: EARLIEST}))[partition].offset
        stop = (await list_offsets(client, {partition: LATEST}))[partition].offset
        offset = random.randint(start, max(start, stop))
        self.session.history.deletions.append(Deletion(partition, offset))
        await admin.delete_records({partition: offset})
        self.session.note(f"deletes {partition} before {offset}")
