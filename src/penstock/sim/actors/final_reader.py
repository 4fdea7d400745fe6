"""Defines the final reader: after all faults have ended, it reads every stored record in every way that a client
can."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.client.consumer import Consumer, ConsumerSettings
from penstock.client.offsets import list_offsets
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from penstock.sim.actors.final_transactions import (
    STABLE_BOUND_S,
    restart_patient_producers,
    unended_transactions,
)
from penstock.sim.actors.session import Session
from penstock.sim.actors.share_members import drain_shares, read_dead_letters
from penstock.sim.checks.history import FinalView, History, StoredRecord, value_of
from penstock.sim.plan.plan import Plan
from penstock.sim.plan.workloads.share import DEAD_LETTERS

SPOT_CHECKS = 6
#: Readings of a partition that is shortened meanwhile.
TRIES = 20


async def read_everything(session: Session, plan: Plan, history: History) -> FinalView:
    view = FinalView()
    deadline = session.now + STABLE_BOUND_S
    shrinking = {topic.name for topic in plan.topics if topic.shrinks}
    forgotten = bool(history.power_losses) and not plan.fsync_everywhere
    async with session.client() as client:
        await restart_patient_producers(session, client, plan)
        listed = await Admin(client).list_topics()
        for topic in listed:
            if topic.name.startswith(DEAD_LETTERS):
                continue  # no client has written these records
            view.topics[topic.name] = len(topic.partitions)
            for index, part in topic.partitions.items():
                view.replicas[topic.name, index] = tuple(part.replicas)
        for name, count in view.topics.items():
            for index in range(count):
                partition = (name, index)
                reader = _PartitionReader(
                    session,
                    client,
                    view,
                    partition,
                    partition in history.damaged,
                    forgotten,
                    deadline,
                    name in shrinking,
                )
                await reader.run()
        asked = [*((each.group, each.partition) for each in history.commits), *history.outlived]
        for group, partition in dict.fromkeys(asked):
            offset = await _group_offset(session, client, view, group, partition, forgotten, deadline)
            if offset is not None:
                view.group_offsets[group, partition] = offset
        if not forgotten and not history.damaged:
            for left in await unended_transactions(session, client, deadline):
                view.problems.append(f"transaction {left} after {STABLE_BOUND_S:.0f} s")
        await drain_shares(session, client, history)
        for topic in listed:
            if topic.name.startswith(DEAD_LETTERS):
                view.dead_letters += await read_dead_letters(session, client, topic.name, len(topic.partitions))
    view.ended = session.now
    return view


async def _group_offset(
    session: Session,
    client: AsyncClient,
    view: FinalView,
    group: str,
    partition: TopicPartition,
    excused: bool,
    deadline: float,
) -> int | None:
    while True:
        try:
            return (await session.committed(client, group, [partition], stable=True))[partition]
        except KafkaError as error:
            if error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise
            if session.now > deadline:
                if not excused:
                    view.problems.append(f"{group} has offsets of an open transaction after {STABLE_BOUND_S:.0f} s")
                return None


@dataclass(slots=True)
class _PartitionReader:
    session: Session
    client: AsyncClient
    view: FinalView
    partition: TopicPartition
    damaged: bool
    forgotten: bool
    """True if a power loss may have erased the coordinator's state of a transaction that is still open in the
    partition."""
    deadline: float
    shrinks: bool
    """True if compaction or retention may remove records during the reading."""

    def _problem(self, what: str) -> None:
        self.view.problems.append(f"{self.partition[0]}-{self.partition[1]}: {what}")

    async def run(self) -> None:
        for _ in range(TRIES if self.shrinks else 1):
            if await self._read():
                return
        self._problem(f"was shortened during each of {TRIES} readings")

    async def _read(self) -> bool:
        """Reads the partition. Returns False if retention deleted records before they were read."""
        try:
            await self._bounds()
            self.view.records[self.partition] = await self._read_all(committed=False)
            if await self._stable():
                self.view.committed[self.partition] = await self._read_all(committed=True)
            await self._spot_checks()
            await self._timestamps()
        except KafkaError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and self.shrinks:
                return False
            if not self.damaged:
                self._problem(f"cannot be read: {error.code.name} {error.message}")
        return True

    async def _offset(self, position: int, isolation: int = READ_UNCOMMITTED) -> int:
        found = await list_offsets(self.client, {self.partition: position}, isolation_level=isolation)
        return found[self.partition].offset

    async def _bounds(self) -> None:
        self.view.log_start[self.partition] = await self._offset(EARLIEST)
        self.view.read_at[self.partition] = self.session.now
        self.view.log_end[self.partition] = await self._offset(LATEST)

    async def _stable(self) -> bool:
        """Waits until the producers or their timeouts have ended all transactions of the partition.

        Returns False if a transaction is still open at the deadline.
        """
        end = self.view.log_end[self.partition]
        while await self._offset(LATEST, READ_COMMITTED) < end:
            if self.session.now > self.deadline:
                if not self.forgotten and not self.damaged:  # recovery may have truncated a marker
                    self._problem(f"a transaction is still open after {STABLE_BOUND_S:.0f} s")
                return False
            await asyncio.sleep(1)
        return True

    def _consumer(self, *, committed: bool, size: int = 1 << 20) -> Consumer:
        level = READ_COMMITTED if committed else READ_UNCOMMITTED
        return Consumer(self.client, ConsumerSettings(isolation_level=level, max_wait_ms=100, partition_max_bytes=size))

    async def _read_all(self, *, committed: bool) -> dict[int, StoredRecord]:
        found: dict[int, StoredRecord] = {}
        end = self.view.log_end[self.partition]
        position = self.view.log_start[self.partition]
        async with self._consumer(committed=committed) as consumer:
            await consumer.assign({self.partition: position})
            while position < end:
                for part in await consumer.poll(5.0):
                    for record in part.records():
                        if record.offset in found:
                            self._problem(f"offset {record.offset} was returned twice in one pass")
                        found[record.offset] = StoredRecord(
                            value_of(record), record.timestamp, record.key, record.value is None
                        )
                position = consumer.position(self.partition)
        return found

    async def _spot_checks(self) -> None:
        """Reads from random offsets, which the broker finds by its indexes.

        Checks that each read begins at the requested offset.
        """
        records = self.view.records[self.partition]
        if not records or self.damaged:  # an index has no checksum: a flipped bit may lead past records
            return
        offsets = sorted(records)
        async with self._consumer(committed=False, size=500) as consumer:
            for _ in range(SPOT_CHECKS):
                wanted = self.session.random.choice(offsets)
                await consumer.assign({self.partition: wanted})
                got = [record for part in await consumer.poll(5.0) for record in part.records()]
                if not got or got[0].offset != wanted:
                    if self.shrinks and (not got or got[0].offset > wanted):
                        continue
                    self._problem(f"reading from {wanted} began at {got[0].offset if got else 'nothing'}")
                elif value_of(got[0]) != records[wanted].value:
                    self._problem(f"offset {wanted} has another value when it is read alone")

    async def _timestamps(self) -> None:
        records = self.view.records[self.partition]
        if not records:
            return
        for _ in range(SPOT_CHECKS // 2):
            stamp = self.session.random.choice(list(records.values())).timestamp + self.session.random.choice(
                (-1, 0, 1)
            )
            expected = next((offset for offset in sorted(records) if records[offset].timestamp >= stamp), -1)
            try:
                found = (await list_offsets(self.client, {self.partition: stamp}))[self.partition].offset
            except KafkaError as error:
                if error.code is not ErrorCode.CORRUPT_MESSAGE or not self.damaged:
                    raise
                continue
            # A marker has a timestamp too, and may be the first.
            right = found == expected or (
                found not in records and 0 <= found < (expected if expected >= 0 else found + 1)
            )
            if not right and not self.damaged and not self.shrinks:
                self._problem(f"the first record at or after {stamp} is {expected}, not {found}")
