"""Lists planted bugs of share groups: the share-partition leader or the share coordinator breaks one rule."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.broker.share.burial import Burial
from penstock.broker.share.led_partition import LedSharePartition
from penstock.share.partition import SharePartition
from penstock.share.states import RecordState
from penstock.share.transitions import Transition
from penstock.share.window import NOBODY


def _batches_forgotten(old: Any) -> Any:
    def load(self: SharePartition, start_offset: int, batches: Any = ()) -> None:
        old(self, start_offset, ())

    return load


def _locks_forgotten(old: Any) -> Any:
    def expire(self: SharePartition, limits: Any, now_ms: int) -> list[Any]:
        self.locks.due(now_ms)
        self.delays.due(now_ms)
        return []

    return expire


def _count_reset(old: Any) -> Any:
    def commit(self: SharePartition, transition: Transition, now_ms: int) -> None:
        transition.changes = [
            change._replace(deliveries=0) if change.state == RecordState.AVAILABLE else change
            for change in transition.changes
        ]
        old(self, transition, now_ms)

    return commit


def _answered_first(old: Any) -> Any:
    def submit(self: LedSharePartition, transition: Transition) -> asyncio.Future[None]:
        old(self, transition).add_done_callback(lambda done: done.cancelled() or done.exception())
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answered.set_result(None)
        return answered

    return submit


def _start_at_the_end(old: Any) -> Any:
    def after(self: SharePartition, changes: Any) -> tuple[int, int]:
        return max((change.last + 1 for change in changes), default=self.start_offset), 0

    return after


def _any_holder(old: Any) -> Any:
    def acknowledge(self: SharePartition, member: str, ranges: Any, limits: Any, now_ms: int) -> Transition | None:
        holders = [(lock, lock.member) for lock in self.locks.by_number.values()]
        for lock, _ in holders:
            lock.member = member
        try:
            answer: Transition | None = old(self, member, ranges, limits, now_ms)
            return answer
        finally:
            for lock, holder in holders:
                lock.member = holder

    return acknowledge


def _counts_forgotten(old: Any) -> Any:
    def load(self: SharePartition, start_offset: int, batches: Any = ()) -> None:
        old(self, start_offset, [batch._replace(deliveries=0) for batch in batches])

    return load


def _archived_first(old: Any) -> Any:
    async def write(self: Burial, runs: Any) -> bool:
        async def later() -> None:
            await asyncio.sleep(1.0)
            await old(self, runs)

        self._spawn(later())
        return True

    return write


def _available_at_once(old: Any) -> Any:
    def retried(self: SharePartition, first: int, stop: int, count: int, *_: Any) -> tuple[int, int, int]:
        return RecordState.AVAILABLE, count, NOBODY

    return retried


#: Length of a run that looks for one of these bugs.
SHARE_SECONDS = 30.0
#: name → (about, replacements, number of machines, a seed that finds it)
SHARE_BUGS: dict[str, tuple[str, tuple[tuple[Any, str, Any], ...], int, int]] = {
    "share-acknowledgements-lost": (
        "a new leader of a share partition forgets acknowledgements behind the first open record",
        ((SharePartition, "__init__", _batches_forgotten),),
        3,
        1,
    ),
    "share-lock-kept": (
        "the records of an expired lock stay acquired",
        ((SharePartition, "expire", _locks_forgotten),),
        1,
        3,
    ),
    "share-count-reset": (
        "a released record loses its number of deliveries",
        ((SharePartition, "commit", _count_reset),),
        1,
        1,
    ),
    "share-answer-before-write": (
        "an acknowledgement is answered before the share coordinator has it",
        ((LedSharePartition, "_submit", _answered_first),),
        3,
        2,
    ),
    "share-start-skips-open-records": (
        "the start offset moves past records that are not done",
        ((SharePartition, "after", _start_at_the_end),),
        3,
        1,
    ),
    "share-count-reset-by-a-new-leader": (
        "a new leader of a share partition forgets the number of deliveries",
        ((SharePartition, "__init__", _counts_forgotten),),
        3,
        1,
    ),
    "share-archived-before-its-dead-letter": (
        "a record is archived a second before its dead letter is written",
        ((Burial, "_write", _archived_first),),
        3,
        17,
    ),
    "share-back-off-ignored": (
        "a released record is delivered again without a back-off",
        ((SharePartition, "_retried", _available_at_once),),
        1,
        1,
    ),
    "share-any-member-acknowledges": (
        "a member may acknowledge records that another member holds",
        ((SharePartition, "acknowledge", _any_holder),),
        3,
        7,
    ),
}
