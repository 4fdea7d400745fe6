"""Lists the access rules of each API: one table, from the API key to the checks that the authorizer makes.

A rule refuses the whole request, or some items of one array. In the second case the handler gets only the allowed
items, and the refused items are added to its response with their error codes. Filters remove from a response the items
that the client may not see. The import of this module fails if an API of `HANDLERS` has no entry in the table. Nodes
without an authorizer call the handlers directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.broker.handlers import access_filters as filters
from penstock.broker.handlers import access_rules as rules
from penstock.broker.handlers.access_rules import GROUP, TOPIC, TRANSACTIONAL_ID, Asker, Denied, Rule
from penstock.broker.handlers.registry import HANDLERS, Handler, Role
from penstock.broker.requests.encoded_responses import Encoded
from penstock.broker.requests.error_replies import clone, error_response, merge
from penstock.broker.requests.pieces import join
from penstock.net.later import Later, settled
from penstock.net.reply import Close
from penstock.protocol.apis import METADATA, response_class
from penstock.protocol.codec import decode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.security.vocabulary import Operation

if TYPE_CHECKING:
    from penstock.broker.requests.access_control import AccessControl

Filter = Callable[[Asker, Any, Any], None]
#: Items of a large request that the authorizer checks in one pass of the event loop.
SLICE_ITEMS = 500


@dataclass(frozen=True, slots=True)
class Access:
    rules: tuple[Rule, ...] = ()
    filter: Filter | None = None


# --- the table --------------------------------------------------------------------------------------

_READ, _WRITE, _DESCRIBE, _DELETE, _ALTER = (
    Operation.READ,
    Operation.WRITE,
    Operation.DESCRIBE,
    Operation.DELETE,
    Operation.ALTER,
)
OPEN = Access()
_BROKERS = Access((rules.cluster(Operation.CLUSTER_ACTION),))
_CLUSTER_ALTER = Access((rules.cluster(_ALTER),))
_CLUSTER_DESCRIBE = Access((rules.cluster(_DESCRIBE),))
_GROUP_READ = rules.named(_READ, GROUP, "group_id")
_TRANSACTION_WRITE = rules.named(_WRITE, TRANSACTIONAL_ID, "transactional_id")

ACCESS: dict[int, Access] = {
    0: Access((rules.transactional_records, rules.each(_WRITE, TOPIC, "topic_data"))),
    1: OPEN,  # each partition of a fetch session is checked: `FetchPolicy`
    2: Access((rules.each(_DESCRIBE, TOPIC, "topics"),)),
    3: Access((rules.described_or_created,), filters.visible_topics),
    8: Access((_GROUP_READ, rules.each(_READ, TOPIC, "topics"))),
    9: Access((rules.fetched_groups,), filters.visible_offsets),
    10: Access((rules.coordinator_keys,)),
    11: Access((_GROUP_READ,)),
    12: Access((_GROUP_READ,)),
    13: Access((_GROUP_READ,)),
    14: Access((_GROUP_READ,)),
    15: Access((rules.each(_DESCRIBE, GROUP, "groups"),), filters.group_operations),
    16: OPEN,  # the handler lists only groups that the client may describe
    17: OPEN,
    18: OPEN,
    19: Access((rules.created_topics,), filters.created_configs),
    20: Access((rules.deleted_topics,)),
    21: Access((rules.each(_DELETE, TOPIC, "topics"),)),
    22: Access((rules.producer_id,)),
    23: Access((rules.epoch_ends,)),
    24: Access((rules.added_partitions,)),
    25: Access((_TRANSACTION_WRITE, _GROUP_READ)),
    26: Access((_TRANSACTION_WRITE,)),
    27: Access((rules.cluster(_ALTER, Operation.CLUSTER_ACTION),)),
    28: Access((_TRANSACTION_WRITE, _GROUP_READ, rules.each(_READ, TOPIC, "topics"))),
    29: _CLUSTER_DESCRIBE,
    30: _CLUSTER_ALTER,
    31: _CLUSTER_ALTER,
    32: Access((rules.configs(Operation.DESCRIBE_CONFIGS),)),
    33: Access((rules.configs(Operation.ALTER_CONFIGS),)),
    34: _CLUSTER_ALTER,
    35: _CLUSTER_DESCRIBE,
    36: OPEN,
    37: Access((rules.each(_ALTER, TOPIC, "topics"),)),
    38: Access((rules.token_owner,)),
    39: OPEN,  # the controller compares the client with the token's owner and renewers
    40: OPEN,
    41: OPEN,  # the handler lists only tokens that the client may see
    42: Access((rules.each(_DELETE, GROUP, "groups_names"),)),
    43: _CLUSTER_ALTER,
    44: Access((rules.configs(Operation.ALTER_CONFIGS),)),
    45: _CLUSTER_ALTER,
    46: _CLUSTER_DESCRIBE,
    47: Access((rules.named(_DELETE, GROUP, "group_id"), rules.each(_READ, TOPIC, "topics"))),
    48: Access((rules.cluster(Operation.DESCRIBE_CONFIGS),)),
    49: Access((rules.cluster(Operation.ALTER_CONFIGS),)),
    50: _CLUSTER_DESCRIBE,
    51: _CLUSTER_ALTER,
    52: _BROKERS,
    53: _BROKERS,
    54: _BROKERS,
    55: _CLUSTER_DESCRIBE,
    56: _BROKERS,
    57: _CLUSTER_ALTER,
    58: _BROKERS,
    59: _BROKERS,
    60: Access((), filters.cluster_operations),
    61: Access((rules.each(_READ, TOPIC, "topics"),)),
    62: _BROKERS,
    63: _BROKERS,
    64: _CLUSTER_ALTER,
    65: Access((rules.each(_DESCRIBE, TRANSACTIONAL_ID, "transactional_ids"),), filters.visible_transaction_topics),
    66: Access((), filters.visible_transactions),
    67: _BROKERS,
    68: Access((_GROUP_READ, rules.subscribed_topics)),
    69: Access((rules.each(_DESCRIBE, GROUP, "group_ids"),), filters.described_members),
    70: _BROKERS,
    71: OPEN,
    72: OPEN,
    73: _BROKERS,
    74: Access((rules.cluster(Operation.DESCRIBE_CONFIGS),)),
    75: Access((rules.each(_DESCRIBE, TOPIC, "topics"),), filters.topic_operations),
    76: Access((_GROUP_READ, rules.subscribed_topics)),
    77: Access((rules.each(_DESCRIBE, GROUP, "group_ids"),), filters.described_members),
    78: Access((_GROUP_READ,)),  # the handler checks each topic of the share session
    79: Access((_GROUP_READ,)),
    80: _CLUSTER_ALTER,
    81: _CLUSTER_ALTER,
    82: _BROKERS,
    83: _BROKERS,
    84: _BROKERS,
    85: _BROKERS,
    86: _BROKERS,
    87: _BROKERS,
    88: Access((_GROUP_READ, rules.topology_topics)),  # the handler asks for CREATE of internal topics
    89: Access((rules.each(_DESCRIBE, GROUP, "group_ids"),), filters.described_topologies),
    90: Access((rules.described_groups,), filters.visible_share_offsets),
    91: Access((_GROUP_READ, rules.each(_READ, TOPIC, "topics"))),
    92: Access((rules.named(_DELETE, GROUP, "group_id"), rules.each(_READ, TOPIC, "topics"))),
}
#: APIs with other rules on a controller's listener.
ON_CONTROLLERS: dict[int, Access] = {1: _BROKERS, 60: Access((rules.cluster(_ALTER),), filters.cluster_operations)}

#: APIs whose handlers ask the authorizer themselves. These are their rules where a node sends a client's request to
#: another node with its own credentials, so that the handler there can't ask for the client.
ON_BEHALF: dict[int, Access] = {
    0: Access((rules.transactional_records, rules.written_by_clients)),
    1: Access((rules.each(_READ, TOPIC, "topics"),)),
    16: Access((), filters.visible_groups),
    78: Access((_GROUP_READ, rules.each(_READ, TOPIC, "topics"))),
    79: Access((_GROUP_READ, rules.each(_READ, TOPIC, "topics"))),
}

_missing = sorted(HANDLERS.keys() - ACCESS.keys())
if _missing:
    raise ImportError(
        f"handlers/access.py has no entry for the API keys {_missing}: add the ACL operations that these APIs require"
    )


# --- the guard --------------------------------------------------------------------------------------


def guarded(handler: Handler, api_key: int, access: AccessControl | None, role: Role = "BROKER") -> Handler:
    """Returns a handler that checks the API's access rules and then calls `handler`.

    Returns `handler` itself if the node has no authorizer.
    """
    needs = ON_CONTROLLERS.get(api_key) if role == "CONTROLLER" else None
    return _guarded_by(needs or ACCESS[api_key], handler, access)


def guarded_on_behalf(handler: Handler, api_key: int, access: AccessControl | None) -> Handler:
    """Returns a handler that checks the client's access and then calls `handler`, which asks another node.

    The other node can't check the client's access, because the request arrives there with this node's credentials.
    """
    return _guarded_by(ON_BEHALF.get(api_key) or ACCESS[api_key], handler, access)


def _guarded_by(needs: Access, handler: Handler, access: AccessControl | None) -> Handler:
    return handler if access is None or needs is OPEN else _Guard(handler, access, needs)


@dataclass(frozen=True, slots=True)
class _Guard:
    handler: Handler
    access: AccessControl
    needs: Access

    def __call__(self, broker: Any, ctx: Any, request: Any, /) -> Any:
        asker = Asker(self.access, ctx, broker.metadata.image)
        if ctx.large:
            return Later(self._in_slices(broker, asker, request))
        denied: Denied | None = None
        for rule in self.needs.rules:
            verdict = rule(asker, request)
            if isinstance(verdict, ErrorCode):
                return error_response(ctx.api_key, ctx.api_version, request, verdict, _message(verdict))
            denied = denied or verdict
        if denied is None:
            return self._filtered(asker, request, self.handler(broker, ctx, request))
        return Later(self._partly(broker, asker, request, denied))

    async def _in_slices(self, broker: Any, asker: Asker, request: Any) -> Any:
        """Checks a request with very many items, and returns its response.

        The authorizer checks one slice of the items in each pass of the event loop.
        """
        ctx = asker.ctx
        field, items = _longest_array(request)
        codes: list[ErrorCode | None] = []
        for_others: ErrorCode | None = None
        for start in range(0, len(items), SLICE_ITEMS) or (0,):
            part = _with(request, field, items[start : start + SLICE_ITEMS]) if field else request
            found: list[ErrorCode | None] = [None] * len(items[start : start + SLICE_ITEMS])
            for rule in self.needs.rules:
                verdict = rule(asker, part)
                if isinstance(verdict, ErrorCode):
                    return error_response(ctx.api_key, ctx.api_version, request, verdict, _message(verdict))
                if verdict is not None:
                    found, for_others = list(verdict.codes), verdict.for_others
            codes += found
            await asyncio.sleep(0)
        if not any(codes):
            return await settled(self._filtered(asker, request, self.handler(broker, ctx, request)))
        return await self._partly(broker, asker, request, Denied(field, codes, for_others))

    async def _partly(self, broker: Any, asker: Asker, request: Any, denied: Denied) -> Any:
        """Calls the handler with the allowed items, and adds the refused items with their errors to its response."""
        items: dict[ErrorCode | None, list[Any]] = {}
        for item, code in zip(getattr(request, denied.field), denied.codes):
            items.setdefault(code or denied.for_others, []).append(item)
        kept = items.pop(None, [])
        response = await self._allowed(broker, asker, _with(request, denied.field, kept), any_items=bool(kept))
        ctx = asker.ctx
        if isinstance(response, Encoded):
            response = decode(response_class(ctx.api_key), ctx.api_version, response.body)
        for code, refused in items.items():
            assert code is not None
            for start in range(0, len(refused), SLICE_ITEMS):
                part = _with(request, denied.field, refused[start : start + SLICE_ITEMS])
                errors = error_response(ctx.api_key, ctx.api_version, part, code, _message(code))
                if isinstance(errors, Close) or isinstance(response, Close):
                    return errors
                if response is None:
                    response = errors
                elif ctx.large:
                    join(response, errors, ctx.api_key, type(request), ctx.api_version)
                    await asyncio.sleep(0)
                else:
                    response = merge(response, errors, ctx.api_version)
        return response

    async def _allowed(self, broker: Any, asker: Asker, request: Any, *, any_items: bool) -> Any:
        """Calls the handler with the allowed items and returns its response; None if no item is allowed.

        If the handler raises KafkaError, returns a response with this error for the allowed items only: the refused
        items have their own error codes.
        """
        ctx = asker.ctx
        if not any_items and ctx.api_key != METADATA:
            return None
        try:
            response = await settled(self._filtered(asker, request, self.handler(broker, ctx, request)))
        except KafkaError as error:
            return error_response(ctx.api_key, ctx.api_version, request, error.code, error.message)
        if not any_items:
            response.topics = []  # in Metadata v0 an empty list means all topics; brokers are answered in any case
        return response

    def _filtered(self, asker: Asker, request: Any, response: Any) -> Any:
        needs = self.needs.filter
        if needs is None or isinstance(response, Close):
            return response
        if type(response) is Later:
            return Later(_filtered_later(asker, request, response, needs))
        needs(asker, request, response)
        return response


async def _filtered_later(asker: Asker, request: Any, later: Later[Any], needs: Filter) -> Any:
    response = await later
    if not isinstance(response, Close):
        needs(asker, request, response)
    return response


def _longest_array(request: Any) -> tuple[str, list[Any]]:
    """Returns the name and the items of a request's longest array; "" and no items if it has none."""
    arrays = [
        (field.name, getattr(request, field.name) or []) for field in type(request).FIELDS if field.kind == "array"
    ]
    return max(arrays, key=lambda array: len(array[1]), default=("", []))


def _with(request: Any, field: str, items: list[Any]) -> Any:
    part = clone(request)
    setattr(part, field, items)
    return part


def _message(code: ErrorCode) -> str | None:
    return None if code is ErrorCode.OPERATION_NOT_ATTEMPTED else "The client is not authorized: add an ACL for it."
