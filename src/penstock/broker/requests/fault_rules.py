"""Defines fault rules: a rule makes matching requests fail or wait, or loses their reply or their connection.

    faults.add(api="Produce", topic="orders", partition=0, times=3, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    faults.add(api="Fetch", delay=0.2)                       until the rule is removed
    faults.add(api="Produce", lose_reply=True, times=1)      the records are written, the client gets no reply

A rule's effects apply in this order:

- `delay` waits this number of seconds.
- `close` closes the connection without handling the request.
- `error` is returned for the matching items, which are not handled; the other items are handled normally.
- `lose_reply` handles the request but sends no reply: the connection stays silent until the client closes it, or with
  `close` it is closed at once.

The first matching rule that is not used up applies. Any thread may add rules; the dispatcher calls `apply` only while
there are rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.broker.requests.encoded_responses import Encoded
from penstock.broker.requests.error_replies import Target, error_response, merge, overwrite, split, targets
from penstock.net.later import settled
from penstock.net.reply import Close
from penstock.protocol.apis import APIS, FETCH, METADATA, response_class
from penstock.protocol.codec import decode
from penstock.protocol.errors import ErrorCode
from penstock.spelling import did_you_mean

if TYPE_CHECKING:
    from penstock.broker.requests.context import RequestContext

__all__ = ["FaultRule", "Faults", "error_response"]

# Requests of these APIs are handled, then the matching items of the response are replaced by the error. A fetch has to
# be handled, because its session must have the partition for later fetches.
SERVED_THEN_OVERWRITTEN = frozenset({FETCH, METADATA})
FULL_FETCH_EPOCHS = (0, -1)

BY_FAULT_RULE = Close("a fault rule closed the connection")


@dataclass(slots=True, eq=False)
class FaultRule:
    """Holds one fault rule. `hits` counts the requests to which the rule was applied; `remove` ends the rule."""

    faults: Faults
    api_key: int | None
    topic: str | None
    partition: int | None
    client_id: str | None
    times: int | None
    error: ErrorCode | None
    delay: float
    lose_reply: bool
    close: bool
    hits: int = 0

    @property
    def spent(self) -> bool:
        return self.times is not None and self.hits >= self.times

    def remove(self) -> None:
        self.faults.rules = tuple(rule for rule in self.faults.rules if rule is not self)

    def __enter__(self) -> FaultRule:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def covers(self, topic: str | None, partition: int | None) -> bool:
        if self.topic is not None and topic != self.topic:
            return False
        return self.partition is None or partition == self.partition


class Faults:
    def __init__(self) -> None:
        self.rules: tuple[FaultRule, ...] = ()  # never changed in place: another thread may iterate over it
        self._silent: dict[asyncio.Future[None], None] = {}

    def add(
        self,
        *,
        api: str | int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        client_id: str | None = None,
        times: int | None = None,
        error: ErrorCode | str | int | None = None,
        delay: float = 0.0,
        lose_reply: bool = False,
        close: bool = False,
    ) -> FaultRule:
        """Adds a rule for the next `times` requests that match all conditions, and returns the rule.

        Without `times`, the rule applies until `remove` is called.
        """
        if error is None and not delay and not lose_reply and not close:
            raise ValueError("a fault rule needs an effect: error, delay, lose_reply or close")
        if partition is not None and topic is None:
            raise ValueError("a fault rule for a partition also needs a topic: pass topic=")
        if times is not None and type(times) is not int:
            raise TypeError(f"times is {times!r}, which is not a whole number: write 1 or more")
        if times is not None and times < 1:
            raise ValueError(f"times is {times}, but a fault rule applies to at least 1 request: write 1 or more")
        key, code = _api_key(api), _error_code(error)
        rule = FaultRule(self, key, topic, partition, client_id, times, code, float(delay), lose_reply, close)
        self.rules = (*(each for each in self.rules if not each.spent), rule)
        return rule

    def clear(self) -> None:
        self.rules = ()

    def release(self) -> None:
        """Ends the waits of connections that a fault rule with `lose_reply` keeps open without a reply.

        Call it on the node's event loop.
        """
        for waiting in self._silent:
            if not waiting.done():
                waiting.set_result(None)

    async def apply(
        self,
        ctx: RequestContext,
        request: Any,
        handle: Callable[[RequestContext, Any], Any],
        topic_name: Callable[[bytes], str | None],
    ) -> Any:
        """Handles a request under the first rule that matches it, and returns the response; None means no reply.

        `handle` is the request's handler. `topic_name` translates a topic id to a name, because rules name topics by
        name.
        """

        async def serve(part: Any) -> Any:
            return await settled(handle(ctx, part))

        rule = self._match(ctx, request, topic_name)
        if rule is None:
            return await serve(request)
        if _needs_full_fetch(rule, ctx, request):
            return error_response(FETCH, ctx.api_version, request, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        rule.hits += 1
        return await self._act(rule, ctx, request, serve, topic_name)

    def _match(self, ctx: RequestContext, request: Any, topic_name: Callable[[bytes], str | None]) -> FaultRule | None:
        named: list[Target] | None = None
        for rule in self.rules:
            if rule.spent or rule.api_key not in (None, ctx.api_key):
                continue
            if rule.client_id not in (None, ctx.client_id):
                continue
            if rule.topic is None:
                return rule
            if named is None:
                named = targets(request, ctx.api_version)
            if any(_covers(rule, target, topic_name) for target in named):
                return rule
            if not named and ctx.api_key in SERVED_THEN_OVERWRITTEN:  # all topics, or those of the session
                return rule
        return None

    async def _act(
        self,
        rule: FaultRule,
        ctx: RequestContext,
        request: Any,
        serve: Callable[[Any], Awaitable[Any]],
        topic_name: Callable[[bytes], str | None],
    ) -> Any:
        if rule.delay:
            await asyncio.sleep(rule.delay)
        if rule.close and not rule.lose_reply:
            return BY_FAULT_RULE
        if rule.error is None:
            response = await serve(request)
        else:
            response = await _with_error(rule, rule.error, ctx, request, serve, topic_name)
        if not rule.lose_reply:
            return response
        if rule.close:
            return BY_FAULT_RULE
        return await self._stay_silent(ctx)

    async def _stay_silent(self, ctx: RequestContext) -> None:
        """Waits until the connection closes or `release` is called. The connection's later requests wait meanwhile."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._silent[waiting] = None
        ctx.connection.on_close(lambda: None if waiting.done() else waiting.set_result(None))
        try:
            await waiting
        finally:
            del self._silent[waiting]


async def _with_error(
    rule: FaultRule,
    code: ErrorCode,
    ctx: RequestContext,
    request: Any,
    serve: Callable[[Any], Awaitable[Any]],
    topic_name: Callable[[bytes], str | None],
) -> Any:
    def matches(target: Target) -> bool:
        return _covers(rule, target, topic_name)

    if ctx.api_key in SERVED_THEN_OVERWRITTEN:
        if ctx.api_key == FETCH:
            request.max_wait_ms = 0  # an error is returned at once
        response = _decoded(ctx, await serve(request))
        if not overwrite(response, ctx.api_version, code, matches) and rule.topic is None:
            return error_response(ctx.api_key, ctx.api_version, request, code)
        return response
    if rule.topic is None:
        return error_response(ctx.api_key, ctx.api_version, request, code)
    kept, hit = split(request, ctx.api_version, matches)
    refused = error_response(ctx.api_key, ctx.api_version, hit, code)
    if kept is None:
        return refused
    served = _decoded(ctx, await serve(kept))
    return refused if isinstance(refused, Close) else merge(served, refused, ctx.api_version)


def _decoded(ctx: RequestContext, response: Any) -> Any:
    """Decodes a response that the handler returned as bytes."""
    if isinstance(response, Encoded):
        return decode(response_class(ctx.api_key), ctx.api_version, response.body)
    return response


def _needs_full_fetch(rule: FaultRule, ctx: RequestContext, request: Any) -> bool:
    """Returns True if the rule needs the Fetch's partitions and the Fetch is incremental: it does not name all of them.

    The client must then send a full Fetch.
    """
    if ctx.api_key != FETCH or ctx.api_version < 7 or (rule.topic is None and rule.error is None):
        return False
    return request.session_epoch not in FULL_FETCH_EPOCHS


def _covers(rule: FaultRule, target: Target, topic_name: Callable[[bytes], str | None]) -> bool:
    topic = target.topic
    if topic is None and target.topic_id is not None:
        topic = topic_name(target.topic_id)
    return rule.covers(topic, target.partition)


def _api_key(api: str | int | None) -> int | None:
    if api is None:
        return None
    for key, known in APIS.items():
        if api == key or (isinstance(api, str) and known.name.lower() == api.lower()):
            return key
    raise ValueError(f"there is no API {api!r}: {did_you_mean(str(api), (known.name for known in APIS.values()))}")


def _error_code(error: ErrorCode | str | int | None) -> ErrorCode | None:
    if error is None:
        return None
    for known in ErrorCode:
        if error == known or (isinstance(error, str) and known.name == error.upper()):
            return known
    if not isinstance(error, str):
        raise ValueError(f"Kafka has no error with code {error!r}: use a member of ErrorCode, or its name")
    raise ValueError(f"Kafka has no error named {error!r}: {did_you_mean(error, ErrorCode.__members__)}")
