"""Contains functions that several group handlers use, for example to build a response that waits for a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.broker.coordinators.runtime import committed
from penstock.groups.turn import Caller
from penstock.net.later import Later
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Turn

# every operation on a group: read, delete, describe, describe and alter configs
ALL_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))

R = TypeVar("R")
S = TypeVar("S")


class Described(Protocol):
    error_code: int
    authorized_operations: int


class DescribeRequest(Protocol):
    group_ids: list[str]
    include_authorized_operations: bool


D = TypeVar("D", bound=Described)


def caller(ctx: RequestContext) -> Caller:
    """Returns the client's id, host and request version. The host is formatted as Java prints an address."""
    return Caller(ctx.client_id or "", f"/{ctx.connection.peer_host}", ctx.api_version)


def finish(result: R | asyncio.Future[R], shape: Callable[[R], S]) -> S | Later[S]:
    """Calls `shape` to convert a decision's result to a response.

    If the result is a future, returns a `Later`: a response that is made when the future is done.
    """
    if isinstance(result, asyncio.Future):
        return Later(result, lambda future: shape(future.result()))
    return shape(result)


def unchanged(response: R) -> R:
    """Returns the response unchanged. Handlers pass this function to `finish` for results that need no conversion."""
    return response


def check_feature(broker: Broker, feature: str, subject: str) -> None:
    """Raises UNSUPPORTED_VERSION unless the feature is enabled in the cluster."""
    if broker.metadata.image.features.get(feature, 0) < 1:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{subject} are disabled in this cluster: enable them with kafka-features upgrade --feature {feature}=1.",
        )


async def describe_groups(
    broker: Broker,
    request: DescribeRequest,
    described: Callable[..., D],
    decide: Callable[[GroupShard, Turn, str], D],
) -> list[D]:
    """Returns a description of each group in the request. A repeated group id is described once.

    The group's coordinator runs `decide` to describe the group. If `decide` fails, `described` builds a description
    with the error.
    """
    groups: list[D] = []
    for group_id in dict.fromkeys(request.group_ids):
        if groups:  # a description may have thousands of members or tasks
            await broker.slices.turn()
        try:
            if not group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is empty: set a group id.")
            coordinator = broker.groups.coordinator(group_id)
            group = await committed(coordinator.run(partial(_decide, decide, group_id)))
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = ALL_OPERATIONS
        except KafkaError as error:
            group = described(group_id=group_id, error_code=error.code, error_message=error.message)
        groups.append(group)
    return groups


def _decide(decide: Callable[[GroupShard, Turn, str], R], group_id: str, shard: GroupShard, turn: Turn) -> R:
    return decide(shard, turn, group_id)
