"""Helps ShareFetch and ShareAcknowledge: applies the acknowledgements of a request, and ends share sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.broker.requests.slices import SLICE_PARTITIONS
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import Acknowledge
from penstock.share.portions import PORTION
from penstock.share.sessions import MAX_SESSION_PARTITIONS
from penstock.share.state_journal import ShareKey
from penstock.share.states import AcknowledgedRange

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.share.sessions import Slot

RENEW_SINCE = 2
#: A "not the leader" error names the leader.
HINTED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def member_of(request: Any) -> tuple[str, str]:
    """Returns the group id and member id of the request. Raises INVALID_REQUEST if one of them is missing."""
    if not request.group_id or not request.member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names no group or no member: give both.")
    return request.group_id, request.member_id


def check_size(request: Any) -> None:
    """Raises INVALID_REQUEST if a ShareFetch or ShareAcknowledge has more partitions than a session may have."""
    if sum(len(topic.partitions) for topic in request.topics) > MAX_SESSION_PARTITIONS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"The request has more than {MAX_SESSION_PARTITIONS} partitions: send fewer."
        )


def watch_connection(broker: Broker, ctx: RequestContext) -> None:
    """Ends the sessions of a connection when the connection closes. Call this before a session begins."""
    shares, connection = broker.share_partitions, ctx.connection
    if not shares.sessions.has_owner(connection):
        connection.on_close(lambda: shares.connection_closed(connection))


def check_topic_access(broker: Broker, denies: Callable[[str], bool] | None, slot: Slot) -> None:
    """Raises TOPIC_AUTHORIZATION_FAILED if the client may not read the topic."""
    topic = broker.metadata.image.topics_by_id.get(slot[0])
    if topic is not None and denies is not None and denies(topic.name):
        raise KafkaError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED, "The client may not read the topic: add an ACL for READ."
        )


class Acknowledgements:
    """Applies the acknowledgements of one request, waits until they are written, and collects their errors."""

    def __init__(self, broker: Broker, ctx: RequestContext, group: str, member: str, *, renews: bool) -> None:
        self._broker = broker
        self._group = group
        self._member = member
        self._version = ctx.api_version
        self._renews = renews
        self._denies = broker.fetch_policy.leader_consumer(ctx).denies
        self._waiting: list[tuple[Slot, asyncio.Future[None]]] = []
        self.errors: dict[Slot, KafkaError] = {}
        self.slots: dict[Slot, None] = {}

    async def start(self, partitions: Iterable[tuple[Slot, Sequence[Any]]]) -> None:
        """Applies the acknowledgements of a request and starts to write them to the share coordinators."""
        for count, (slot, batches) in enumerate(partitions, 1):
            if count % SLICE_PARTITIONS == 0:
                await self._broker.slices.turn()
            await self._start(slot, batches)

    async def _start(self, slot: Slot, batches: Sequence[Any]) -> None:
        """Applies the acknowledgements of one partition and starts to write them to the share coordinator."""
        self.slots[slot] = None
        try:
            ranges = await self._ranges(batches)
            check_topic_access(self._broker, self._denies, slot)
            futures = await self._led(slot).acknowledge(self._member, ranges, self._broker.slices.turn)
        except KafkaError as error:
            self.errors[slot] = error
            return
        self._waiting += [(slot, future) for future in futures]

    def _led(self, slot: Slot) -> Any:
        self._broker.partitions.get_by_id(*slot).leader_log()
        led = self._broker.share_partitions.find(ShareKey(self._group, *slot))
        if led is None:
            # Kafka's code for a partition of which this leader has delivered nothing to the group
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The group has fetched nothing from this leader: fetch first."
            )
        return led

    async def _ranges(self, batches: Sequence[Any]) -> list[AcknowledgedRange]:
        """Returns the acknowledged ranges of a partition.

        Raises INVALID_REQUEST if the ranges are out of order or malformed.
        """
        most = Acknowledge.RENEW if self._version >= RENEW_SINCE and self._renews else Acknowledge.REJECT
        limits = self._broker.share_partitions.settings_of(self._group).limits
        ranges: list[AcknowledgedRange] = []
        after = -1
        for count, batch in enumerate(batches, 1):
            if count % PORTION == 0:
                await self._broker.slices.turn()
            first, last, types = batch.first_offset, batch.last_offset, tuple(batch.acknowledge_types)
            reason = None
            if not after <= first <= last:  # Kafka finds an overlap later, as a record that is not acquired
                reason = "overlaps the previous range, or ends before it begins"
            elif not types or (len(types) > 1 and len(types) != last - first + 1):
                reason = "needs one type, or one for each offset"
            elif not Acknowledge.GAP <= min(types) <= max(types) <= most:
                reason = "has an unknown type, or renews locks in a request without is_renew_ack"
            elif Acknowledge.RENEW in types and not limits.renewable:
                reason = "renews locks, but share.renew.acknowledge.enable=false"
            if reason is not None:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"The acknowledgement of offsets {first} to {last} is refused: it {reason}.",
                )
            ranges.append(AcknowledgedRange(first, last, types))
            after = last
        return ranges

    async def written(self) -> None:
        """Waits until the share coordinators have stored all acknowledgements.

        Keeps the errors of acknowledgements that could not be stored.
        """
        for slot, future in self._waiting:
            try:
                await future
            except KafkaError as error:
                self.errors[slot] = error
