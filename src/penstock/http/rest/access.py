"""Implements operations on the caller, SCRAM users and ACLs: describe, list, create, delete."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client.access_admin import OPERATIONS, AccessAdmin, AclFilter
from penstock.http.rest.cluster import PAGE, paged
from penstock.http.rest.fields import Field, list_of
from penstock.http.rest.problems import Problem, kafka_status
from penstock.http.rest.routes import Call, Route
from penstock.http.roles import Role
from penstock.protocol.messages.api_30_create_acls import AclCreation
from penstock.security.scram import DEFAULT_ITERATIONS, MAX_ITERATIONS, MECHANISMS, MIN_ITERATIONS, ScramMechanism
from penstock.security.vocabulary import CLUSTER_NAME, AclResource, Operation, PatternType, Permission

if TYPE_CHECKING:
    from penstock.http.rest.service import Service

E = TypeVar("E", bound=IntEnum)

RESOURCES = {
    each.name.lower().replace("_", "-"): each
    for each in AclResource
    if each not in (AclResource.UNKNOWN, AclResource.ANY)
}
PATTERNS = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED}
PERMISSIONS = {"allow": Permission.ALLOW, "deny": Permission.DENY}


def _chosen(values: Mapping[str, E], name: str, text: str) -> E:
    found = values.get(text)
    if found is None:
        raise Problem(400, f"'{name}' can't be {text[:40]!r}: give one of {', '.join(values)}.")
    return found


async def describe_caller(service: Service, call: Call) -> Any:
    return {"principal": service.caller.principal, "role": service.caller.role.name.lower()}


# --- users


async def list_users(service: Service, call: Call) -> Any:
    text = call.query.get("search", "")
    rows = await AccessAdmin(await service.client()).users()
    return paged([row for row in rows if text in row["user"]], call, "users")


def _mechanisms(names: list[str] | None) -> list[ScramMechanism]:
    return [_chosen(MECHANISMS, "mechanisms", each) for each in dict.fromkeys(names or MECHANISMS)]


async def set_password(service: Service, call: Call) -> Any:
    """Sets the password of a SCRAM user, and creates the user if needed. The password is salted on this node."""
    user, mechanisms = call.path["user"], _mechanisms(call.body.get("mechanisms"))
    if not call.body["password"]:
        raise Problem(400, "The field 'password' is empty: give a password.")
    iterations = call.body.get("iterations", DEFAULT_ITERATIONS)
    admin = AccessAdmin(await service.client())
    await admin.set_password(user, call.body["password"], mechanisms, secrets.token_bytes, iterations)
    return {"user": user, "mechanisms": [each.label for each in mechanisms]}


async def remove_user(service: Service, call: Call) -> Any:
    admin, user = AccessAdmin(await service.client()), call.path["user"]
    removed = await admin.remove_user(user, list(MECHANISMS.values()))
    return {"user": user, "removed": [each.label for each in removed]}


# --- ACLs


async def list_acls(service: Service, call: Call) -> Any:
    query = call.query
    resource = _chosen(RESOURCES, "resource", query["resource"]) if "resource" in query else AclResource.ANY
    name = query.get("name")
    pattern = PatternType.ANY if name is None else PatternType.MATCH
    wanted = AclFilter(resource, name, pattern, query.get("principal"))
    return paged(list(await AccessAdmin(await service.client()).acls(wanted)), call, "acls")


def _acl(body: Mapping[str, Any]) -> tuple[AclResource, str, PatternType, list[Operation], Permission]:
    resource = _chosen(RESOURCES, "resource", body["resource"])
    name = body.get("name", CLUSTER_NAME if resource is AclResource.CLUSTER else "")
    if not name:
        raise Problem(400, "The field 'name' is missing: give the name of the resource, or * for all.")
    operations = [_chosen(OPERATIONS, "operations", each) for each in body.get("operations") or ["all"]]
    pattern = _chosen(PATTERNS, "pattern", body.get("pattern", "literal"))
    return resource, name, pattern, operations, _chosen(PERMISSIONS, "permission", body.get("permission", "allow"))


async def create_acls(service: Service, call: Call) -> Any:
    resource, name, pattern, operations, permission = _acl(call.body)
    creations = [
        AclCreation(
            resource_type=resource,
            resource_name=name,
            resource_pattern_type=pattern,
            principal=call.body["principal"],
            host=call.body.get("host", "*"),
            operation=operation,
            permission_type=permission,
        )
        for operation in operations
    ]
    rows, refused = await AccessAdmin(await service.client()).create_acls(creations)
    for _, code, message in refused:
        status = 502 if rows else kafka_status(code)
        raise Problem(status, message or f"{code.name}.", kafka_error=code.name, created=rows)
    return {"created": rows}


async def delete_acls(service: Service, call: Call) -> Any:
    """Deletes the ACLs with exactly this resource, principal, host, operations and permission."""
    resource, name, pattern, operations, permission = _acl(call.body)
    wanted = AclFilter(resource, name, pattern, call.body["principal"], call.body.get("host", "*"))
    removed = await AccessAdmin(await service.client()).delete_acls(wanted, operations, permission)
    if not removed:
        raise Problem(404, "No ACL matches: GET /v1/acls lists the ACLs.")
    return {"deleted": removed}


USER = {"user": Field("string", "name of the user")}
ACL = {
    "resource": Field("string", f"one of {', '.join(RESOURCES)}", required=True),
    "name": Field("string", "name of the resource, or * for all; not needed for the cluster"),
    "pattern": Field("string", "literal (default) or prefixed"),
    "principal": Field("string", "such as User:ann, or User:* for all", required=True),
    "host": Field("string", "address of the client; default: *"),
    "operations": list_of(Field("string"), "such as read; default: all"),
    "permission": Field("string", "allow (default) or deny"),
}
ROUTES = (
    Route("GET", "/v1/me", "Tells who the caller is, and the caller's role", describe_caller, own_acls=True),
    Route(
        "GET",
        "/v1/users",
        "Lists SCRAM users with their mechanisms",
        list_users,
        query={**PAGE, "search": Field("string", "only users with this text in their name")},
        own_acls=True,
    ),
    Route(
        "PUT",
        "/v1/users/{user}/password",
        "Sets the password of a SCRAM user, who is created if new",
        set_password,
        path=USER,
        body={
            "password": Field("string", required=True),
            "mechanisms": list_of(Field("string"), f"default: {', '.join(MECHANISMS)}"),
            "iterations": Field("integer", low=MIN_ITERATIONS, high=MAX_ITERATIONS),
        },
        role=Role.ADMIN,
        own_acls=True,
    ),
    Route("DELETE", "/v1/users/{user}", "Removes a SCRAM user", remove_user, path=USER, role=Role.ADMIN, own_acls=True),
    Route(
        "GET",
        "/v1/acls",
        "Lists ACLs",
        list_acls,
        query={
            **PAGE,
            "resource": Field("string", f"one of {', '.join(RESOURCES)}"),
            "name": Field("string", "only ACLs that apply to the resource with this name"),
            "principal": Field("string", "only ACLs of this principal"),
        },
        own_acls=True,
    ),
    Route("POST", "/v1/acls", "Creates ACLs", create_acls, body=ACL, status=201, role=Role.ADMIN, own_acls=True),
    Route(
        "POST", "/v1/acls/delete", "Deletes exactly these ACLs", delete_acls, body=ACL, role=Role.ADMIN, own_acls=True
    ),
)
