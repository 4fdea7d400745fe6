"""Implements scenario commands for share groups: members join, fetch records and acknowledge them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from penstock.client.client import AsyncClient
from penstock.client.share_consumer import Delivered, ShareConsumer, ShareConsumerSettings
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_90_describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from penstock.protocol.vocabulary import Acknowledge
from penstock.sim.actors.session import Session
from penstock.sim.actors.share_members import start_at_earliest


class Participant(Protocol):
    """Defines the interface of a client process of the script."""

    session: Session
    client: AsyncClient | None

    async def connected(self) -> AsyncClient: ...


As = Callable[[str, Callable[[Any], Awaitable[str]]], Awaitable[str]]
#: A member that waits for records or partitions gives up after this time.
PATIENCE_S = 20.0


class ShareCommands:
    """Runs the commands `share`, `take`, `accept`, `give-back`, `reject`, `renew`, `hang-up` and `share-offset`."""

    def __init__(self, act_as: As) -> None:
        self._as = act_as
        self._members: dict[str, ShareConsumer] = {}
        self._held: dict[str, dict[str, Delivered]] = {}
        self.commands: dict[str, Callable[..., Awaitable[str]]] = {
            "share": self.share,
            "take": self.take,
            "hang-up": self.hang_up,
            "share-offset": self.share_offset,
            "accept": self._answer(Acknowledge.ACCEPT),
            "give-back": self._answer(Acknowledge.RELEASE),  # `release` is a command for held requests
            "reject": self._answer(Acknowledge.REJECT),
            "renew": self._answer(Acknowledge.RENEW),
        }

    async def share(self, name: str, group: str, topic: str, most: str = "500") -> str:
        """Lets a member join a share group and waits until the member has partitions. The group starts at the first
        record."""

        async def work(role: Participant) -> str:
            client = await role.connected()
            await start_at_earliest(client, group)
            settings = ShareConsumerSettings(max_records=int(most), strict=True, max_wait_ms=300)
            member = self._members[name] = ShareConsumer(client, group, [topic], settings, member_id=name)
            await member.start()
            give_up = role.session.now + PATIENCE_S
            while not member.assignment and role.session.now < give_up:
                await member.poll()
            return "joined" if member.assignment else "no partitions"

        return await self._as(name, work)

    async def take(self, name: str, count: str = "1", within: str = str(PATIENCE_S)) -> str:
        """Fetches until the member has got `count` records, at most for `within` seconds. Shows each record as
        value@offset#deliveries."""

        async def work(role: Participant) -> str:
            found: list[Delivered] = []
            give_up = role.session.now + float(within)
            while len(found) < int(count) and role.session.now < give_up:
                found += await self._members[name].poll()
            for each in found:
                self._held.setdefault(name, {})[_value(each)] = each
            return " ".join(f"{_value(each)}@{each.record.offset}#{each.deliveries}" for each in found) or "nothing"

        return await self._as(name, work)

    def _answer(self, kind: Acknowledge) -> Callable[..., Awaitable[str]]:
        async def answer(name: str, *values: str) -> str:
            """Acknowledges records that the member has fetched. Shows whether the acknowledgements are stored."""

            async def work(role: Participant) -> str:
                member = self._members[name]
                for value in values:
                    member.acknowledge(self._held[name][value], kind)
                errors = [error for _, _, error in await member.commit()]
                return " ".join("stored" if error is None else _shown(error) for error in errors)

            return await self._as(name, work)

        return answer

    async def hang_up(self, name: str) -> str:
        """Closes the member's connections without leaving the group, as if its process had died."""

        async def work(role: Participant) -> str:
            member = self._members.pop(name)
            if member._beating is not None:
                member._beating.cancel()
            await (await role.connected()).close()
            role.client = None
            return ""

        return await self._as(name, work)

    async def share_offset(self, group: str) -> str:
        """Shows the group's start offset and lag in each partition."""

        async def work(role: Participant) -> str:
            wanted = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
            request = DescribeShareGroupOffsetsRequest(groups=[wanted])
            [found] = (await (await role.connected()).ask_coordinator(group, request)).groups
            return " ".join(
                f"{topic.topic_name}-{part.partition_index}: start {part.start_offset}, lag {part.lag}"
                for topic in found.topics
                for part in topic.partitions
            )

        return await self._as("operator", work)


def _value(delivered: Delivered) -> str:
    return (delivered.record.value or b"").decode()


def _shown(error: KafkaError) -> str:
    return f"error {error.code.name}"
