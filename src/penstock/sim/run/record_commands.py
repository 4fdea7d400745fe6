"""Implements scenario commands that write records, delete records, and throttle moves between log directories."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.client.producer import Producer
from penstock.protocol.vocabulary import ConfigOperation, ResourceType, TopicPartition

THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"


class Participant(Protocol):
    """Defines the interface of a client process of the script."""

    async def connected(self) -> AsyncClient: ...

    async def producing(self) -> Producer: ...


#: The size to which `fill` pads values.
FILL_BYTES = 600
#: Longer values are shown without their padding.
SHOWN_CHARACTERS = 20


def shown(value: bytes | None, offset: int) -> str:
    """Returns a record as value@offset, without the padding of `fill`."""
    text = (value or b"").decode()
    return f"{text if len(text) <= SHOWN_CHARACTERS else text.rstrip('.') + '…'}@{offset}"


As = Callable[[str, Callable[[Any], Awaitable[str]]], Awaitable[str]]


class RecordCommands:
    """Runs the commands `put`, `fill`, `delete-records` and `throttle`."""

    def __init__(self, act_as: As, place: Callable[[str], TopicPartition]) -> None:
        self._as = act_as
        self._place = place
        self.commands: dict[str, Callable[..., Awaitable[str]]] = {
            "put": self.put,
            "fill": self.fill,
            "delete-records": self.delete_records,
            "throttle": self.throttle,
        }

    async def put(self, place: str, *pairs: str, by: str = "p") -> str:
        """Writes records with keys, each given as key:value."""
        topic, index = self._place(place)

        async def work(role: Participant) -> str:
            producer = await role.producing()
            sent = []
            for pair in pairs:
                key, _, value = pair.partition(":")
                sent.append(await producer.send(topic, value.encode(), key=key.encode(), partition=index))
            await producer.flush()
            return " ".join([f"{pair}@{(await each).offset}" for pair, each in zip(pairs, sent)])

        return await self._as(by, work)

    async def fill(self, place: str, *values: str, by: str = "p", key: str = "") -> str:
        """Writes a large record for each value, each record in its own batch.

        If the replica moves to another directory, such records are copied before the swap of the logs, not during the
        swap.
        """
        topic, index = self._place(place)

        async def work(role: Participant) -> str:
            producer = await role.producing()
            found = []
            for value in values:
                padded = value.encode().ljust(FILL_BYTES, b".")
                sent = await producer.send(topic, padded, key=key.encode() or None, partition=index)
                await producer.flush()
                found.append(f"{value}@{(await sent).offset}")
            return " ".join(found)

        return await self._as(by, work)

    async def delete_records(self, place: str, before: str) -> str:
        """Deletes the records before an offset. Shows the new log start."""
        partition = self._place(place)

        async def work(role: Participant) -> str:
            starts = await Admin(await role.connected()).delete_records({partition: int(before)})
            return f"starts at {starts[partition]}"

        return await self._as("admin", work)

    async def throttle(self, rate: str) -> str:
        """Limits the moves on each machine to `rate` bytes per second; `none` removes the limit."""
        change = (THROTTLE, ConfigOperation.DELETE, None) if rate == "none" else (THROTTLE, ConfigOperation.SET, rate)

        async def work(role: Participant) -> str:
            await Admin(await role.connected()).alter_configs(ResourceType.BROKER, "", [change])
            return ""

        return await self._as("admin", work)
