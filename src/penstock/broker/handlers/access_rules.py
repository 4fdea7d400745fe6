"""Defines the access rules: each rule checks a request with the authorizer before the handler gets the request.

A rule returns None to allow the request, an error code to refuse it, or a `Denied` to refuse some items of one array.
`access.py` lists the rules of each API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.metadata.controller.tokens import owner_of
from penstock.protocol.errors import ErrorCode
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import (
    GROUP_COORDINATOR,
    INTERNAL_TOPICS,
    TRANSACTION_COORDINATOR,
    UNLISTED_TOPICS,
    ResourceType,
)
from penstock.security.vocabulary import CLUSTER_NAME, AclResource, Operation

if TYPE_CHECKING:
    from penstock.broker.requests.access_control import AccessControl
    from penstock.broker.requests.context import RequestContext
    from penstock.metadata.image import MetadataImage

CLUSTER, TOPIC, GROUP, TRANSACTIONAL_ID = (
    AclResource.CLUSTER,
    AclResource.TOPIC,
    AclResource.GROUP,
    AclResource.TRANSACTIONAL_ID,
)
DENIALS = {
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
#: Since this version, AddPartitionsToTxn comes from brokers.
BROKERS_ADD_SINCE = 4
BATCHED_OFFSET_FETCH = 8
BATCHED_COORDINATORS = 4
#: Position of the low byte of a record batch's attributes, and its bit for a transaction.
ATTRIBUTES_AT, TRANSACTIONAL_BIT = 22, 0x10


class Asker(NamedTuple):
    """Holds the authorizer, the metadata image, and the context of a request, which has the client's principal."""

    access: AccessControl
    ctx: RequestContext
    image: MetadataImage

    def may(self, operation: Operation, resource: AclResource, name: str) -> bool:
        return self.access.allows(self.ctx, operation, resource, name)

    def sees(self, resource: AclResource, name: str) -> bool:
        """Returns True if the client may know that the resource exists."""
        return self.access.sees(self.ctx, Operation.DESCRIBE, resource, name)

    def may_cluster(self, operation: Operation) -> bool:
        return self.access.allows_cluster(self.ctx, operation)

    def topic(self, item: Any) -> str | None:
        """Returns the topic name of an item of the request; None if the item has a topic id that no topic has."""
        if isinstance(item, str):
            return item
        topic_id = getattr(item, "topic_id", ZERO_UUID)
        if topic_id != ZERO_UUID:
            found = self.image.topics_by_id.get(topic_id)
            return None if found is None else found.name
        name: str = getattr(item, "name", "") or getattr(item, "topic", "") or getattr(item, "topic_name", "")
        return name or ""


class Denied(NamedTuple):
    """Holds the error codes for the items of one array of a request: one code per item, None if the item is allowed.

    If `for_others` is set, the allowed items are not handled either: they get the error code `for_others`.
    """

    field: str
    codes: Sequence[ErrorCode | None]
    for_others: ErrorCode | None = None


Rule = Callable[[Asker, Any], ErrorCode | Denied | None]


# --- kinds of rules ---------------------------------------------------------------------------------


def cluster(*operations: Operation) -> Rule:
    """Returns a rule that requires one of the given operations on the cluster."""

    def check(asker: Asker, request: Any) -> ErrorCode | None:
        return None if any(asker.may_cluster(operation) for operation in operations) else DENIALS[CLUSTER]

    return check


def named(operation: Operation, resource: AclResource, field: str) -> Rule:
    """Returns a rule that requires the operation on the resource whose name is in `field`; allows a null name."""

    def check(asker: Asker, request: Any) -> ErrorCode | None:
        name = getattr(request, field)
        return None if name is None or asker.may(operation, resource, name) else DENIALS[resource]

    return check


def each(operation: Operation, resource: AclResource, field: str) -> Rule:
    """Returns a rule that requires the operation for each item of the array `field`.

    An item is a name, or a struct with a topic's name or id.
    """

    def check(asker: Asker, request: Any) -> Denied | None:
        items = getattr(request, field) or ()
        access, ctx = asker.access, asker.ctx
        for item in items:
            name = asker.topic(item)
            if name is not None and not access.allows(ctx, operation, resource, name):
                break
        else:
            return None
        return Denied(field, [_code(asker, operation, resource, asker.topic(item)) for item in items])

    return check


def _code(asker: Asker, operation: Operation, resource: AclResource, name: str | None) -> ErrorCode | None:
    return None if name is None or asker.may(operation, resource, name) else DENIALS[resource]


def configs(operation: Operation) -> Rule:
    """Returns a rule that requires the operation for each config resource.

    For the configs of a topic or group, the client needs the operation on the topic or group. For all other configs, it
    needs the operation on the cluster.
    """

    def check(asker: Asker, request: Any) -> Denied | None:
        codes: list[ErrorCode | None] = []
        for item in request.resources:
            if item.resource_type == ResourceType.TOPIC:
                codes.append(_code(asker, operation, TOPIC, item.resource_name))
            elif item.resource_type == ResourceType.GROUP:
                codes.append(_code(asker, operation, GROUP, item.resource_name))
            else:
                codes.append(None if asker.may_cluster(operation) else DENIALS[CLUSTER])
        return Denied("resources", codes) if any(codes) else None

    return check


# --- rules of single APIs ---------------------------------------------------------------------------


def transactional_records(asker: Asker, request: Any) -> ErrorCode | None:
    if request.transactional_id is not None:
        allowed = asker.may(Operation.WRITE, TRANSACTIONAL_ID, request.transactional_id)
        return None if allowed else DENIALS[TRANSACTIONAL_ID]
    for topic in request.topic_data:
        for partition in topic.partition_data:
            records = partition.records
            if records is not None and len(records) > ATTRIBUTES_AT and records[ATTRIBUTES_AT] & TRANSACTIONAL_BIT:
                return DENIALS[TRANSACTIONAL_ID]
    return None


def written_by_clients(asker: Asker, request: Any) -> Denied | None:
    """Requires, for Produce, WRITE on each topic.

    Refuses topics to which only brokers write, even if the client has WRITE.
    """
    names = [asker.topic(item) for item in request.topic_data]
    codes = [
        ErrorCode.INVALID_TOPIC_EXCEPTION if name in UNLISTED_TOPICS else _code(asker, Operation.WRITE, TOPIC, name)
        for name in names
    ]
    return Denied("topic_data", codes) if any(codes) else None


def described_or_created(asker: Asker, request: Any) -> Denied | None:
    """Requires, for Metadata, DESCRIBE on each topic, and CREATE for a missing topic that the request would create."""
    codes: list[ErrorCode | None] = []
    for item in request.topics or ():
        name = asker.topic(item)
        code = _code(asker, Operation.DESCRIBE, TOPIC, name)
        if code is None and name is not None and request.allow_auto_topic_creation and name not in asker.image.topics:
            code = _creation_code(asker, name)
        codes.append(code)
    return Denied("topics", codes) if any(codes) else None


def _creation_code(asker: Asker, name: str) -> ErrorCode | None:
    ctx = asker.ctx
    allowed = asker.access.sees(ctx, Operation.CREATE, CLUSTER, CLUSTER_NAME) or asker.may(
        Operation.CREATE, TOPIC, name
    )
    return None if allowed else DENIALS[TOPIC]


def created_topics(asker: Asker, request: Any) -> Denied | None:
    codes = [_creation_code(asker, topic.name) for topic in request.topics]
    return Denied("topics", codes) if any(codes) else None


def deleted_topics(asker: Asker, request: Any) -> Denied | None:
    """Requires, for DeleteTopics, DELETE on the cluster or on each topic.

    If the request names a refused topic by id, the response does not contain the topic's name.
    """
    if asker.access.sees(asker.ctx, Operation.DELETE, CLUSTER, CLUSTER_NAME):
        return None
    field = "topics" if request.topics else "topic_names"
    codes = [_code(asker, Operation.DELETE, TOPIC, asker.topic(item)) for item in getattr(request, field)]
    return Denied(field, codes) if any(codes) else None


def coordinator_keys(asker: Asker, request: Any) -> ErrorCode | Denied | None:
    resource = {GROUP_COORDINATOR: GROUP, TRANSACTION_COORDINATOR: TRANSACTIONAL_ID}.get(request.key_type)
    if resource is None:  # a share coordinator, which only brokers look up
        return None if asker.may_cluster(Operation.CLUSTER_ACTION) else DENIALS[CLUSTER]
    if asker.ctx.api_version < BATCHED_COORDINATORS:
        return _code(asker, Operation.DESCRIBE, resource, request.key)
    codes = [_code(asker, Operation.DESCRIBE, resource, key) for key in request.coordinator_keys]
    return Denied("coordinator_keys", codes) if any(codes) else None


def producer_id(asker: Asker, request: Any) -> ErrorCode | None:
    if request.transactional_id is not None:
        if not asker.may(Operation.WRITE, TRANSACTIONAL_ID, request.transactional_id):
            return DENIALS[TRANSACTIONAL_ID]
        if request.enable_2pc and not asker.may(Operation.TWO_PHASE_COMMIT, TRANSACTIONAL_ID, request.transactional_id):
            return DENIALS[TRANSACTIONAL_ID]
        return None
    access, ctx = asker.access, asker.ctx
    if access.sees(ctx, Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME) or access.sees_any(
        ctx, Operation.WRITE, TOPIC
    ):
        return None
    return None if asker.may_cluster(Operation.IDEMPOTENT_WRITE) else DENIALS[CLUSTER]


def epoch_ends(asker: Asker, request: Any) -> Denied | None:
    if asker.access.sees(asker.ctx, Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME):
        return None
    verdict = each(Operation.DESCRIBE, TOPIC, "topics")(asker, request)
    assert not isinstance(verdict, ErrorCode)
    return verdict


def added_partitions(asker: Asker, request: Any) -> ErrorCode | Denied | None:
    """Requires, for AddPartitionsToTxn before v4, WRITE on the transactional id and on every topic.

    If one topic is refused, no partition is added, and the other topics get OPERATION_NOT_ATTEMPTED. Since v4 only
    brokers send this request, and they need CLUSTER_ACTION.
    """
    if asker.ctx.api_version >= BROKERS_ADD_SINCE:
        return None if asker.may_cluster(Operation.CLUSTER_ACTION) else DENIALS[CLUSTER]
    if not asker.may(Operation.WRITE, TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        return DENIALS[TRANSACTIONAL_ID]
    codes = [
        DENIALS[TOPIC] if topic.name in INTERNAL_TOPICS or not asker.may(Operation.WRITE, TOPIC, topic.name) else None
        for topic in request.v3_and_below_topics
    ]
    return Denied("v3_and_below_topics", codes, ErrorCode.OPERATION_NOT_ATTEMPTED) if any(codes) else None


def fetched_groups(asker: Asker, request: Any) -> ErrorCode | Denied | None:
    if asker.ctx.api_version < BATCHED_OFFSET_FETCH:
        return _code(asker, Operation.DESCRIBE, GROUP, request.group_id)
    return described_groups(asker, request)


def described_groups(asker: Asker, request: Any) -> Denied | None:
    codes = [_code(asker, Operation.DESCRIBE, GROUP, group.group_id) for group in request.groups]
    return Denied("groups", codes) if any(codes) else None


def subscribed_topics(asker: Asker, request: Any) -> ErrorCode | None:
    """Requires, for heartbeats of consumer and share groups, DESCRIBE on every topic that the member names.

    A subscription by pattern is not checked here: it matches only topics that the member may describe.
    """
    names = request.subscribed_topic_names or ()
    return None if all(asker.may(Operation.DESCRIBE, TOPIC, name) for name in names) else DENIALS[TOPIC]


def topology_topics(asker: Asker, request: Any) -> ErrorCode | None:
    """Requires, for StreamsGroupHeartbeat, DESCRIBE on every topic of the member's topology."""
    names = named_topics(request.topology)
    return None if all(asker.may(Operation.DESCRIBE, TOPIC, name) for name in sorted(names)) else DENIALS[TOPIC]


def named_topics(topology: Any) -> set[str]:
    """Returns all topics that a topology names, in a heartbeat request or in a StreamsGroupDescribe response."""
    names: set[str] = set()
    for each in (topology.subtopologies or ()) if topology is not None else ():
        names.update(each.source_topics, each.repartition_sink_topics)
        names.update(topic.name for topic in (*each.repartition_source_topics, *each.state_changelog_topics))
    return names


def token_owner(asker: Asker, request: Any) -> ErrorCode | None:
    """Requires, for CreateDelegationToken, CREATE_TOKENS on the token's owner, unless the client is the owner."""
    requester = asker.ctx.principal
    owner = owner_of(request, requester)
    if owner == requester or asker.may(Operation.CREATE_TOKENS, AclResource.USER, owner):
        return None
    return ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
