"""StreamsGroupHeartbeat v0 (KIP-1071): a member joins, stays in or leaves a streams group.

The coordinator assigns tasks, and requests the creation of missing internal topics. The response does not wait until
these topics exist: its status names them until a later heartbeat finds them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.handlers.access_rules import named_topics
from penstock.broker.handlers.group_calls import caller, check_feature, finish
from penstock.groups.streams.checks import check_size
from penstock.groups.streams.topics import Status
from penstock.groups.streams_requests import streams_heartbeat
from penstock.metadata.names import name_problem
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import INTERNAL_TOPICS
from penstock.security.vocabulary import CLUSTER_NAME, AclResource, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.groups.streams.heartbeat import Answer
    from penstock.groups.streams.topics import InternalTopic
    from penstock.net.later import Later
    from penstock.protocol.messages.api_88_streams_group_heartbeat import (
        StreamsGroupHeartbeatRequest,
        StreamsGroupHeartbeatResponse,
    )

SHOWN_ERRORS = 3
#: A refused topic is created again after this many heartbeat intervals.
PAUSE_INTERVALS = 2


def handle(
    broker: Broker, ctx: RequestContext, request: StreamsGroupHeartbeatRequest
) -> StreamsGroupHeartbeatResponse | Later[StreamsGroupHeartbeatResponse]:
    check_feature(broker, "streams.version", "Streams groups")
    check_size(request)
    _check_names(named_topics(request.topology))
    coordinator = broker.groups.coordinator(request.group_id)
    who = caller(ctx)
    answer = coordinator.run(lambda shard, turn: streams_heartbeat(shard, turn, request, who))
    return finish(answer, partial(_response, broker, ctx))


def _check_names(names: Iterable[str]) -> None:
    for name in sorted(names):
        if name in INTERNAL_TOPICS:
            raise KafkaError(
                ErrorCode.STREAMS_INVALID_TOPOLOGY, f"The broker itself uses topic {name}: use another topic."
            )
        problem = name_problem(name)
        if problem is not None:
            raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, f"The topology has an illegal topic name: {problem}")


def _response(broker: Broker, ctx: RequestContext, answer: Answer) -> StreamsGroupHeartbeatResponse:
    response = answer.response
    if answer.missing:
        more = _create(broker, ctx, answer.missing, response.heartbeat_interval_ms)
        for status in response.status or ():
            if status.status_code == Status.MISSING_INTERNAL_TOPICS:
                status.status_detail += more
    return response


def _create(broker: Broker, ctx: RequestContext, topics: Mapping[str, InternalTopic], interval_ms: int) -> str:
    """Starts to create the topics. Returns an error text for the response; an empty text if there is no error.

    If the client lacks the permission to create one or more of the topics, no topic is created, and the text lists the
    topics that it may not create. Otherwise the text lists the topics that the controller has refused.
    """
    refused = _unauthorized(broker, ctx, topics)
    if refused:
        return f"; Unauthorized to CREATE on topics {', '.join(refused)}."
    errors = broker.groups.internal_topics.create(topics, PAUSE_INTERVALS * interval_ms / 1000)
    if not errors:
        return ""
    shown = ", ".join(f"{name} ({reason})" for name, reason in list(errors.items())[:SHOWN_ERRORS])
    more = f" and {len(errors) - SHOWN_ERRORS} more" if len(errors) > SHOWN_ERRORS else ""
    return f"; Creation failed: {shown}{more}."


def _unauthorized(broker: Broker, ctx: RequestContext, topics: Iterable[str]) -> list[str]:
    access = broker.access
    if access is None or access.sees(ctx, Operation.CREATE, AclResource.CLUSTER, CLUSTER_NAME):
        return []
    return [name for name in topics if not access.allows(ctx, Operation.CREATE, AclResource.TOPIC, name)]
