"""Runs one decision of the share coordinator for each share partition of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from penstock.broker.coordinators.runtime import committed
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.share.portions import PORTION
from penstock.share.state_journal import ShareKey

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.share.state_shard import ShareStateShard, Turn

R = TypeVar("R")
Decide = Callable[["ShareStateShard", "Turn"], R]
Outcome: TypeAlias = "R | KafkaError"
Begun: TypeAlias = "R | asyncio.Future[R]"


async def decide_each(
    broker: Broker, group_id: str, topics: Iterable[Any], decision: Callable[[ShareKey, Any], Decide[R]]
) -> list[tuple[bytes, list[tuple[int, Outcome[R]]]]]:
    """Runs a decision for every partition of the topics, and waits until all decisions are committed.

    Returns the results or errors by topic id and partition. `decision` returns the decision for one partition.
    """
    waiting: list[tuple[bytes, list[tuple[int, Begun[R]]]]] = []
    begun = 0
    for topic in topics:
        waiting.append((topic.topic_id, []))
        for each in topic.partitions:
            waiting[-1][1].append((each.partition, _begun(broker, group_id, topic, each, decision)))
            begun += 1 + len(getattr(each, "state_batches", ()))
            if begun >= PORTION:
                begun = 0
                await broker.slices.turn()
    return [(topic_id, await _outcomes(some)) for topic_id, some in waiting]


def _begun(
    broker: Broker, group_id: str, topic: Any, partition: Any, decision: Callable[[ShareKey, Any], Decide[R]]
) -> Begun[R]:
    """Makes the decision for one partition at once, without waiting for its commit.

    Returns the result, or a future of the result. If the decision is refused, the future has the error.
    """
    key = ShareKey(group_id, topic.topic_id, partition.partition)
    try:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The group id is empty: give a group id.")
        return broker.share_states.run(key, decision(key, partition))
    except KafkaError as error:
        refused: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        refused.set_exception(error)
        refused.exception()  # marks the error as retrieved: no request may be left that awaits it
        return refused


async def _outcomes(begun: list[tuple[int, Begun[R]]]) -> list[tuple[int, Outcome[R]]]:
    found: list[tuple[int, Outcome[R]]] = []
    for index, each in begun:
        try:
            result: R = await committed(each)
            found.append((index, result))
        except KafkaError as error:
            found.append((index, error))
    return found


def error_fields(outcome: Any) -> dict[str, Any]:
    """Returns the error code and message of a partition's outcome, as fields for the response."""
    if isinstance(outcome, KafkaError):
        return {"error_code": outcome.code, "error_message": outcome.message}
    return {}
