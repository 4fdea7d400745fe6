"""Sends requests as different users to a node with an authorizer, for tests of access control."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from penstock.broker.dispatch.dispatcher import Dispatcher
from penstock.broker.requests.local_connection import LocalConnection
from penstock.disk.memory import MemoryDisk
from penstock.net.connection import Connection
from penstock.net.later import settled
from penstock.net.reply import Close
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.protocol.apis import APIS, request_header_version, response_class, response_header_version
from penstock.protocol.codec import decode, decode_prefix, encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_19_create_topics as create_topics
from penstock.protocol.messages import api_30_create_acls as create_acls
from penstock.protocol.messages.headers import RequestHeader, ResponseHeader
from penstock.protocol.schema import Message
from penstock.security.vocabulary import AclResource, Operation, PatternType, Permission

ADMIN, ANN, BOB = "User:admin", "User:ann", "User:bob"
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)


class Clients:
    """Sends requests to a node's dispatcher as different users."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._dispatchers = {role: Dispatcher(node.broker, cast(Any, role)) for role in ("BROKER", "CONTROLLER")}

    async def ask(
        self,
        principal: str | None,
        request: Message,
        *,
        version: int | None = None,
        role: str = "BROKER",
        host: str = "1.2.3.4",
    ) -> Any:
        key = request.API_KEY
        version = APIS[key].latest_stable if version is None else version
        header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=7, client_id="test")
        frame = encode(header, request_header_version(key, version)) + encode(request, version)
        listener = "PLAINTEXT" if role == "BROKER" else "CONTROLLER"
        connection = cast(Connection, LocalConnection(listener, principal, host))
        reply = await settled(self._dispatchers[role](connection, memoryview(frame)))
        if reply is None or isinstance(reply, Close):
            return reply
        body = b"".join(bytes(part) for part in reply)
        _, start = decode_prefix(ResponseHeader, response_header_version(key, version), body)
        return decode(response_class(key), version, body, start)

    async def allow(
        self, principal: str, operation: Operation, resource: AclResource, name: str, **options: Any
    ) -> None:
        answer = await self.ask(
            ADMIN, create_acls.CreateAclsRequest(creations=[acl(principal, operation, resource, name, **options)])
        )
        assert [each.error_code for each in answer.results] == [0]


def acl(
    principal: str,
    operation: Operation,
    resource: AclResource,
    name: str,
    *,
    deny: bool = False,
    prefixed: bool = False,
    host: str = "*",
) -> create_acls.AclCreation:
    return create_acls.AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=Permission.DENY if deny else Permission.ALLOW,
    )


def with_clients(scenario: Callable[[Clients], Awaitable[None]], **overrides: str) -> None:
    """Runs a scenario on a node with an authorizer, the super user `admin`, and the topics `open` and `secret`."""
    own = {"authorizer.class.name": STANDARD, "super.users": f"{ADMIN};User:ANONYMOUS", **overrides}

    async def main() -> None:
        node = make_node(local_settings("/data", port=0, overrides=own), MemoryDisk(), seed=1)
        format_if_new(node)
        await node.start()
        clients = Clients(node)
        topics = [
            create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in ("open", "secret")
        ]
        created = await clients.ask(ADMIN, create_topics.CreateTopicsRequest(topics=topics, timeout_ms=1000))
        assert [topic.error_code for topic in created.topics] == [0, 0]
        await clients.allow(ANN, Operation.ALL, AclResource.TOPIC, "open")
        try:
            await scenario(clients)
        finally:
            await node.stop()

    asyncio.run(main())
