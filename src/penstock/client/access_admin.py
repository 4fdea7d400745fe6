"""Lists, adds and removes SCRAM users and ACLs of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.client.client import AsyncClient
from penstock.client.errors import code_of
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_29_describe_acls import DescribeAclsRequest
from penstock.protocol.messages.api_30_create_acls import AclCreation, CreateAclsRequest
from penstock.protocol.messages.api_31_delete_acls import DeleteAclsFilter, DeleteAclsRequest
from penstock.protocol.messages.api_50_describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from penstock.protocol.messages.api_51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.security.scram import DEFAULT_ITERATIONS, SALT_BYTES, ScramMechanism, salted_password
from penstock.security.vocabulary import AclResource, Operation, PatternType, Permission

OPERATIONS: Mapping[str, Operation] = {
    operation.name.lower().replace("_", "-"): operation
    for operation in Operation
    if operation not in (Operation.UNKNOWN, Operation.ANY)
}
#: The columns of a row that describes an ACL.
ACL_COLUMNS = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
AclRow = dict[str, str]


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACLs by resource, principal and host. None and ANY match all values."""

    resource: AclResource = AclResource.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None


class AccessAdmin:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    # Users.

    async def users(self, name: str | None = None) -> list[dict[str, Any]]:
        """Returns a row for each SCRAM user and mechanism. If a name is given, returns only the rows of this user."""
        wanted = None if name is None else [UserName(name=name)]
        answer = await self._client.request(DescribeUserScramCredentialsRequest(users=wanted))
        _raise_for("users", answer.error_code, answer.error_message)
        return [
            {"user": result.user, "mechanism": ScramMechanism(each.mechanism).label, "iterations": each.iterations}
            for result in answer.results
            for each in result.credential_infos
        ]

    async def set_password(
        self,
        user: str,
        password: str,
        mechanisms: Iterable[ScramMechanism],
        salt: Callable[[int], bytes],
        iterations: int = DEFAULT_ITERATIONS,
    ) -> None:
        """Sets a user's password for these mechanisms. `salt` returns random bytes.

        The password is never sent: the client computes the salted password. It does so in a thread, because this takes
        some milliseconds.
        """
        for mechanism in mechanisms:  # Kafka takes one change of a user per request
            random = salt(SALT_BYTES)
            salted = await asyncio.to_thread(salted_password, mechanism, password, random, iterations)
            change = ScramCredentialUpsertion(
                name=user,
                mechanism=mechanism,
                iterations=iterations,
                salt=random,
                salted_password=salted,
            )
            await self._alter_user(AlterUserScramCredentialsRequest(upsertions=[change]))

    async def remove_user(self, user: str, mechanisms: Sequence[ScramMechanism]) -> list[ScramMechanism]:
        """Removes a user's passwords for the given mechanisms. Returns the mechanisms for which the user had a
        password.

        Raises KafkaError(RESOURCE_NOT_FOUND) if the user has no password for any of these mechanisms.
        """
        had = {row["mechanism"] for row in await self.users(user)}
        wanted = [mechanism for mechanism in mechanisms if mechanism.label in had]
        if not wanted:
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND, f"user {user} has no password for any of the given mechanisms"
            )
        for mechanism in wanted:
            deletion = ScramCredentialDeletion(name=user, mechanism=mechanism)
            await self._alter_user(AlterUserScramCredentialsRequest(deletions=[deletion]))
        return wanted

    async def _alter_user(self, request: AlterUserScramCredentialsRequest) -> None:
        for result in (await self._client.request(request)).results:
            _raise_for(f"user {result.user}", result.error_code, result.error_message)

    # ACLs.

    async def acls(self, wanted: AclFilter, operations: Iterable[Operation] = ()) -> list[AclRow]:
        """Returns the rows of the ACLs that the filter matches, sorted. Without operations, ACLs of every operation
        match."""
        rows: list[AclRow] = []
        for operation in [*operations] or [Operation.ANY]:
            request = DescribeAclsRequest(
                resource_type_filter=wanted.resource,
                resource_name_filter=wanted.name,
                pattern_type_filter=wanted.pattern,
                principal_filter=wanted.principal,
                host_filter=wanted.host,
                operation=operation,
                permission_type=Permission.ANY,
            )
            answer = await self._client.request(request)
            _raise_for("ACLs", answer.error_code, answer.error_message)
            for resource in answer.resources:
                where = (resource.resource_type, resource.resource_name, resource.pattern_type)
                rows += [acl_row(*where, acl) for acl in resource.acls]
        return sorted(rows, key=lambda row: [row[column] for column in ACL_COLUMNS])

    async def create_acls(
        self, creations: Sequence[AclCreation]
    ) -> tuple[list[AclRow], list[tuple[AclCreation, ErrorCode, str | None]]]:
        """Creates ACLs. Returns the rows of the new ACLs, and each refused ACL with its error."""
        answer = await self._client.request(CreateAclsRequest(creations=[*creations]))
        rows, refused = [], []
        for asked, result in zip(creations, answer.results):
            if result.error_code:
                refused.append((asked, code_of(result.error_code), result.error_message))
            else:
                rows.append(acl_row(asked.resource_type, asked.resource_name, asked.resource_pattern_type, asked))
        return rows, refused

    async def delete_acls(
        self, wanted: AclFilter, operations: Iterable[Operation] = (), permission: Permission = Permission.ANY
    ) -> list[AclRow]:
        """Deletes the ACLs that the filter matches, and returns their rows."""
        filters = [
            DeleteAclsFilter(
                resource_type_filter=wanted.resource,
                resource_name_filter=wanted.name,
                pattern_type_filter=wanted.pattern,
                principal_filter=wanted.principal,
                host_filter=wanted.host,
                operation=operation,
                permission_type=permission,
            )
            for operation in [*operations] or [Operation.ANY]
        ]
        answer = await self._client.request(DeleteAclsRequest(filters=filters))
        for result in answer.filter_results:
            _raise_for("ACLs", result.error_code, result.error_message)
        return [
            acl_row(acl.resource_type, acl.resource_name, acl.pattern_type, acl)
            for result in answer.filter_results
            for acl in result.matching_acls
        ]


def acl_row(kind: int, name: str, pattern: int, acl: Any) -> AclRow:
    return {
        "resource": AclResource(kind).name.lower().replace("_", "-"),
        "name": name,
        "pattern": PatternType(pattern).name.lower(),
        "principal": acl.principal,
        "host": acl.host,
        "operation": Operation(acl.operation).name.lower().replace("_", "-"),
        "permission": Permission(acl.permission_type).name.lower(),
    }


def _raise_for(what: str, code: int, message: str | None) -> None:
    if code:
        raise KafkaError(code_of(code), f"{what}: {message or code_of(code).name}")
