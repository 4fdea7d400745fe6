"""Lists the APIs whose requests are written to the audit file, and the resource names in their audit lines.

These are the APIs that change something. Only names are read from a request, so no config value, password or salt gets
into an audit line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.broker.limits.audit import MAX_NAMES, OK
from penstock.broker.requests.encoded_responses import Encoded
from penstock.net.later import Later
from penstock.net.reply import Close
from penstock.protocol.apis import response_class
from penstock.protocol.codec import decode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import ZERO_UUID, uuid_to_str
from penstock.protocol.vocabulary import ResourceType
from penstock.security.vocabulary import AclResource, Operation, PatternType, Permission

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.handlers.registry import Handler
    from penstock.broker.limits.audit import Audit
    from penstock.broker.requests.context import RequestContext

Names = Callable[[Any], Iterable[str]]


def _no_names(broker: Broker, request: Any) -> Iterable[str]:
    return ()


class Change(NamedTuple):
    operation: str
    resource: str
    names: Names
    #: Returns further names, which the request itself does not contain.
    found: Callable[[Broker, Any], Iterable[str]] = _no_names


def _each(field: str, *attributes: str) -> Names:
    def names(request: Any) -> Iterator[str]:
        for item in getattr(request, field) or ():
            yield item if isinstance(item, str) else " ".join(str(getattr(item, one)) for one in attributes)

    return names


def _deleted_topics(request: Any) -> Iterator[str]:
    yield from request.topic_names
    for topic in request.topics:
        yield topic.name if topic.topic_id == ZERO_UUID else uuid_to_str(topic.topic_id)


def _member(kind: type[IntEnum], number: int) -> str:
    return kind(number).name if number in list(kind) else str(number)


def _acls(request: Any) -> Iterator[str]:
    for acl in request.creations:
        pattern = f"{_member(AclResource, acl.resource_type)}:{_member(PatternType, acl.resource_pattern_type)}"
        rule = f"{_member(Permission, acl.permission_type)} {_member(Operation, acl.operation)}"
        yield f"{pattern}:{acl.resource_name} {rule} {acl.principal} from {acl.host}"


def _acl_filters(request: Any) -> Iterator[str]:
    for one in request.filters:
        pattern = f"{_member(AclResource, one.resource_type_filter)}:{_member(PatternType, one.pattern_type_filter)}"
        rule = f"{_member(Permission, one.permission_type)} {_member(Operation, one.operation)}"
        yield f"{pattern}:{one.resource_name_filter} {rule} {one.principal_filter} from {one.host_filter}"


def _configs(request: Any) -> Iterator[str]:
    for resource in request.resources:
        changed = ", ".join(config.name for config in resource.configs[:MAX_NAMES])
        yield f"{_member(ResourceType, resource.resource_type)}:{resource.resource_name} ({changed})"


def _directories(request: Any) -> Iterator[str]:
    for directory in request.dirs:
        for topic in directory.topics:
            yield f"{topic.name} to {directory.path}"


def _markers(request: Any) -> Iterator[str]:
    for marker in request.markers:
        yield f"producer {marker.producer_id} {'commit' if marker.transaction_result else 'abort'}"


def _group_topics(field: str) -> Names:
    def names(request: Any) -> Iterator[str]:
        yield f"group {request.group_id}"
        for topic in request.topics:
            yield getattr(topic, field)

    return names


def _quotas(request: Any) -> Iterator[str]:
    for entry in request.entries:
        entity = ", ".join(f"{each.entity_type}={each.entity_name or '<default>'}" for each in entry.entity[:MAX_NAMES])
        yield f"{entity} ({', '.join(op.key for op in entry.ops[:MAX_NAMES])})"


def _users(request: Any) -> Iterator[str]:
    for kind, changes in (("remove", request.deletions), ("set", request.upsertions)):
        for change in changes:
            yield f"{kind} {change.name} mechanism {change.mechanism}"


def _fields(*names: str) -> Names:
    return lambda request: [" ".join(str(getattr(request, name)) for name in names)]


def _token_owner(request: Any) -> Iterator[str]:
    if request.owner_principal_name:
        yield f"owner {request.owner_principal_type}:{request.owner_principal_name}"
    for each in request.renewers:
        yield f"renewer {each.principal_type}:{each.principal_name}"


def _nothing(request: Any) -> Iterator[str]:
    """Yields no names. Used for requests that contain only the secret HMAC of a token, which must not be logged."""
    yield from ()


def _token_id(broker: Broker, request: Any) -> Iterator[str]:
    token_id = broker.token_macs.find(broker.metadata.image.delegation_tokens, bytes(request.hmac))
    if token_id is not None:
        yield token_id


_TOPIC, _GROUP, _CLUSTER, _USER = "TOPIC", "GROUP", "CLUSTER", "USER"
CHANGES: dict[int, Change] = {
    19: Change("CREATE", _TOPIC, _each("topics", "name")),
    20: Change("DELETE", _TOPIC, _deleted_topics),
    21: Change("DELETE_RECORDS", _TOPIC, _each("topics", "name")),
    27: Change("WRITE_MARKERS", _CLUSTER, _markers),
    30: Change("CREATE", "ACL", _acls),
    31: Change("DELETE", "ACL", _acl_filters),
    33: Change("ALTER_CONFIGS", "CONFIG", _configs),
    34: Change("MOVE", _TOPIC, _directories),
    37: Change("ALTER", _TOPIC, _each("topics", "name", "count")),
    38: Change("CREATE", "TOKEN", _token_owner),
    39: Change("RENEW", "TOKEN", _nothing, _token_id),
    40: Change("EXPIRE", "TOKEN", _nothing, _token_id),
    42: Change("DELETE", _GROUP, _each("groups_names")),
    43: Change("ELECT", _TOPIC, _each("topic_partitions", "topic")),
    44: Change("ALTER_CONFIGS", "CONFIG", _configs),
    45: Change("REASSIGN", _TOPIC, _each("topics", "name")),
    47: Change("DELETE_OFFSETS", _GROUP, _group_topics("name")),
    49: Change("ALTER", "QUOTA", _quotas),
    51: Change("ALTER", _USER, _users),
    57: Change("ALTER", "FEATURE", _each("feature_updates", "feature", "max_version_level")),
    64: Change("UNREGISTER", _CLUSTER, _fields("broker_id")),
    80: Change("ADD_VOTER", _CLUSTER, _fields("voter_id")),
    81: Change("REMOVE_VOTER", _CLUSTER, _fields("voter_id")),
    91: Change("ALTER_OFFSETS", _GROUP, _group_topics("topic_name")),
    92: Change("DELETE_OFFSETS", _GROUP, _group_topics("topic_name")),
}


def audited(handler: Handler, api_key: int, audit: Audit | None) -> Handler:
    """Returns a handler that writes an audit line for each request, with its result.

    Returns `handler` itself if the node has no audit file, or if the API changes nothing.
    """
    change = CHANGES.get(api_key)
    if audit is None or change is None:
        return handler

    def handle(broker: Broker, ctx: RequestContext, request: Any) -> Any:
        # before the handler, which may change the request, or remove the token
        names = list(_first(chain(change.names(request), change.found(broker, request))))
        try:
            response = handler(broker, ctx, request)
        except KafkaError as error:
            audit.changed(ctx, change.operation, change.resource, names, error.code.name)
            raise
        if type(response) is not Later:
            audit.changed(ctx, change.operation, change.resource, names, _result(ctx, response))
            return response

        def make(done: asyncio.Future[Any]) -> Any:
            try:
                made = response.make(done)
            except KafkaError as error:
                audit.changed(ctx, change.operation, change.resource, names, error.code.name)
                raise
            audit.changed(ctx, change.operation, change.resource, names, _result(ctx, made))
            return made

        return Later(response.source, make)

    return handle


def _first(names: Iterable[str]) -> Iterator[str]:
    for number, name in enumerate(names):
        if number > MAX_NAMES:
            return
        yield name or ""


def _result(ctx: RequestContext, response: Any) -> str | dict[str, str]:
    """Returns the result for the audit line: OK, an error code, or the error codes of refused items by name.

    Returns CLOSED if the request made the broker close the connection.
    """
    if isinstance(response, Close):
        return "CLOSED"
    if isinstance(response, Encoded):
        response = decode(response_class(ctx.api_key), ctx.api_version, response.body)
    found: dict[str, str] = {}
    _collect(response, "", found)
    if not found:
        return OK
    return found[""] if found.keys() == {""} else found


_IDENTITIES = ("name", "topic", "topic_name", "resource_name", "group_id", "user", "feature", "partition_index")


def _collect(item: Any, where: str, found: dict[str, str]) -> None:
    for field in type(item).FIELDS:
        if len(found) >= MAX_NAMES:
            return
        value = getattr(item, field.name)
        if field.name == "error_code" and value:
            found[where] = ErrorCode(value).name if value in list(ErrorCode) else str(value)
        elif isinstance(value, list) and isinstance(field.item, type):
            for each in value:
                names = (getattr(each, one, None) for one in _IDENTITIES)
                name = next((str(one) for one in names if one is not None), "")[:100]
                _collect(each, f"{where}/{name}" if where else name, found)
