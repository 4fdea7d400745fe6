"""Helps the handlers of the share coordinator: makes one decision for each share partition of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from penstock.broker.coordinators.runtime import committed
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.share.state_journal import ShareKey

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.share.state_shard import ShareStateShard, Turn

R = TypeVar("R")
Decide = Callable[["ShareStateShard", "Turn"], R]
Outcome: TypeAlias = "R | KafkaError"


async def decide_each(
    broker: Broker, group_id: str, topics: Iterable[Any], decision: Callable[[ShareKey, Any], Decide[R]]
) -> list[tuple[bytes, list[tuple[int, Outcome[R]]]]]:
    """Calls `decision` for every partition of the topics.

    Returns the outcomes by topic id and partition, once all of them are committed.
    """
    waiting = [
        (
            topic.topic_id,
            [(each.partition, _started(broker, group_id, topic, each, decision)) for each in topic.partitions],
        )
        for topic in topics
    ]
    return [(topic_id, [(index, await outcome) for index, outcome in some]) for topic_id, some in waiting]


def _started(
    broker: Broker, group_id: str, topic: Any, partition: Any, decision: Callable[[ShareKey, Any], Decide[R]]
) -> Coroutine[Any, Any, Outcome[R]]:
    """Makes the decision for one partition at once, so that all decisions of a request are committed together.

    Returns a coroutine that waits for the outcome.
    """
    key = ShareKey(group_id, topic.topic_id, partition.partition)
    try:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The group id is empty: give a group id.")
        return _outcome(broker.share_states.run(key, decision(key, partition)))
    except KafkaError as error:
        return _refused(error)


async def _outcome(result: R | asyncio.Future[R]) -> R | KafkaError:
    try:
        return await committed(result)
    except KafkaError as error:
        return error


async def _refused(error: KafkaError) -> KafkaError:
    return error


def error_fields(outcome: Any) -> dict[str, Any]:
    """Returns the error code and message of a partition's outcome, as fields for the response."""
    if isinstance(outcome, KafkaError):
        return {"error_code": outcome.code, "error_message": outcome.message}
    return {}
