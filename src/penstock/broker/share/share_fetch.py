"""Serves a ShareFetch: acquires records of its partitions, and parks the request while there are too few records.

A parked fetch tries again when the high watermark of one of its partitions moves, when records are released, and when a
state has been loaded. Parked fetches are woken in the order in which they were parked. A member that was served parks
its next fetch behind the fetches of other members, so that the members of a group take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.broker.share.fetched_batches import FetchedBatches
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.share.acquiring import Wish
from penstock.share.states import Acquired, AcquireMode

if TYPE_CHECKING:
    from penstock.broker.share.led_partition import LedSharePartition
    from penstock.log.log import LogSlice
    from penstock.log.txn_index import AbortedTransaction

#: Bytes that are read from one partition for one fetch: more would be read again for the next member.
MAX_READ_BYTES = 1 << 20
MAX_WAIT_MS = 600_000
#: Batches and acquired ranges of records that a fetch handles before other requests have their turn: about 10 ms.
MAX_STEPS = 2000
#: Rounds in which a fetch may find markers and aborted records only, before other requests have their turn.
MAX_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class ShareWish:
    """Holds the member of a ShareFetch and its limits, such as maximum wait, bytes and records."""

    member: str
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    mode: AcquireMode
    committed_only: bool


@dataclass(slots=True)
class Delivery:
    """Holds the records of one partition for a member, or the reason why there are none."""

    led: LedSharePartition
    records: Any = b""
    acquired: Sequence[Acquired] = ()
    error: KafkaError | None = None


class _Located:
    __slots__ = ("aborted", "led", "offset", "piece")

    def __init__(self, led: LedSharePartition, offset: int, piece: LogSlice, aborted: list[AbortedTransaction]) -> None:
        self.led = led
        self.offset = offset
        self.piece = piece
        self.aborted = aborted

    @property
    def moved(self) -> bool:
        """Returns True if the group's next fetch offset has moved past the offset at which this read began.

        This happens if the read found no record to deliver (for example only markers), and archived these offsets.
        """
        state = self.led.state
        return state is not None and state.next_fetch_offset() > self.offset


class ShareFetching:
    def __init__(self, wish: ShareWish, partitions: Sequence[LedSharePartition]) -> None:
        self._wish = wish
        self._partitions = partitions
        self._found: dict[LedSharePartition, Delivery] = {}
        self._future: asyncio.Future[None] | None = None
        self._woken = False
        self._ended = False
        self._steps = 0  # since other requests had their turn

    async def run(self) -> list[Delivery]:
        """Returns the acquired records of each partition, once there are enough records or the maximum wait is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(self._wish.max_wait_ms, MAX_WAIT_MS) / 1000
        self._park()
        try:
            while not await self._attempt(last=self._ended or loop.time() >= deadline):
                await self._wait(deadline)
        finally:
            self._unpark()
        return list(self._found.values())

    # --- waiting

    def _park(self) -> None:
        for led in self._partitions:
            led.waiters[self] = None
            led.partition.waiters.park(self, from_follower=False)

    def _unpark(self) -> None:
        for led in self._partitions:
            led.waiters.pop(self, None)
            led.partition.waiters.unpark(self)

    async def _wait(self, deadline: float) -> None:
        """Waits until `wake` is called or the deadline has passed.

        Does not wait if `wake` was called since the last attempt.
        """
        if self._woken:
            self._woken = False
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        timer = loop.call_at(deadline, self.wake)
        try:
            await future
        finally:
            timer.cancel()
            self._future = None
            self._woken = False

    def wake(self) -> None:
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def notify(self, appended_bytes: int) -> None:
        """Wakes the parked fetch, because the high watermark of one of its partitions has moved."""
        self.wake()

    def abandon(self) -> None:
        """Ends the wait: the fetch responds with the records that it can acquire now.

        Called when a partition leaves this node, or when the node stops.
        """
        self._ended = True
        self.wake()

    # --- acquiring

    async def _attempt(self, *, last: bool) -> bool:
        """Tries to acquire records. Returns True if the fetch should respond now."""
        for _ in range(MAX_ROUNDS):
            self._woken = False
            located = self._locate()
            failed = any(delivery.error is not None for delivery in self._found.values())
            size = sum(each.piece.size for each in located)
            if not failed and not last and size < max(1, self._wish.min_bytes):
                return not self._partitions
            if not located:
                return last or failed
            await self._deliver(located)
            if failed or any(delivery.acquired for delivery in self._found.values()):
                return True
        # There may be more to read. The fetch looks again without parking, unless these rounds moved no partition.
        self._woken = any(each.moved for each in located)
        return last

    def _locate(self) -> list[_Located]:
        """Returns the position of the records that can be acquired, for each partition. Does not read the records."""
        open_ones = []
        for led in self._partitions:
            try:
                state = led.ready()
                if state is not None and not led.busy and state.can_acquire(led.limits):
                    open_ones.append((led, state.next_fetch_offset()))
            except KafkaError as error:
                self._found[led] = Delivery(led, error=error)
        located: list[_Located] = []
        share = self._wish.max_bytes // max(1, len(open_ones))
        for led, offset in open_ones:
            try:
                found = self._read(led, offset, max(1, min(share, MAX_READ_BYTES)), first=not located)
                if found.piece.size:
                    located.append(found)
            except KafkaError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._found[led] = Delivery(led, error=error)
        return located

    def _read(self, led: LedSharePartition, offset: int, max_bytes: int, *, first: bool) -> _Located:
        log = led.partition.leader_log(led.leader_epoch)
        upper = log.last_stable_offset if self._wish.committed_only else log.high_watermark
        piece = log.read(offset, max_bytes, upper_bound=upper, min_one_batch=first)
        aborted = piece.aborted(offset, upper) if self._wish.committed_only and piece.size else []
        return _Located(led, offset, piece, aborted)

    async def _deliver(self, located: list[_Located]) -> None:
        left = self._wish.max_records
        for each in located:
            if left <= 0:
                return
            if self._steps > MAX_STEPS:
                self._steps = 0
                await asyncio.sleep(0)
            led = each.led
            try:
                data = each.piece.read_cached()
                if data is None:
                    data = await self._read_cold(each)
                if led.ready() is None:
                    continue
            except KafkaError as error:
                self._found[led] = Delivery(led, error=error)
                continue
            batches = FetchedBatches(data, each.aborted)
            wish = Wish(self._wish.member, left, self._wish.batch_size, self._wish.mode)
            acquired = led.acquire(wish, each.offset, batches)
            self._steps += len(batches) + len(acquired)
            if acquired:
                self._found[led] = Delivery(led, batches.cut(acquired), acquired)
                left -= sum(last - first + 1 for first, last, _ in acquired)

    async def _read_cold(self, located: _Located) -> Any:
        """Reads located records that are not in the page cache from the disk.

        Until the read ends, no other ShareFetch of the group can acquire records of this partition.
        """
        located.led.busy = True
        try:
            return await located.piece.read()
        finally:
            located.led.busy = False
            located.led.wake()
