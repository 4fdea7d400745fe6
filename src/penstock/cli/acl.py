"""`penstock acl` lists, adds and removes ACLs of a cluster with an authorizer."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, verb
from penstock.security.vocabulary import CLUSTER_NAME, AclResource, Operation, PatternType, Permission

if TYPE_CHECKING:
    from penstock.protocol.messages.api_31_delete_acls import DeleteAclsMatchingAcl

OPERATIONS = {
    operation.name.lower().replace("_", "-"): operation
    for operation in Operation
    if operation not in (Operation.UNKNOWN, Operation.ANY)
}
COLUMNS = ["resource", "name", "pattern", "principal", "host", "operation", "permission"]


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    listing = verb(verbs, "list", "list ACLs, all or those that apply to a resource or principal", run_list)
    connection(listing)
    _resource(listing, required=False)
    _who(listing, required=False)

    for name, summary in (
        ("allow", "allow operations to a principal"),
        ("deny", "deny operations, whatever is allowed"),
    ):
        adding = verb(verbs, name, summary, run_add)
        adding.set_defaults(permission=Permission[name.upper()])
        connection(adding)
        _resource(adding, required=True)
        _who(adding, required=True)

    removing = verb(verbs, "remove", "remove exactly these ACLs", run_remove)
    connection(removing)
    _resource(removing, required=True)
    _who(removing, required=False)


def _resource(parser: argparse.ArgumentParser, *, required: bool) -> None:
    which = parser.add_mutually_exclusive_group(required=required)
    which.add_argument("--topic", metavar="NAME", help="a topic; * is every topic")
    which.add_argument("--group", metavar="NAME", help="a consumer or share group; * is every group")
    which.add_argument("--transactional-id", metavar="NAME", help="a transactional id; * is every id")
    which.add_argument("--user", metavar="User:NAME", help="the user whose delegation tokens are meant")
    which.add_argument("--cluster", action="store_true", help="the cluster itself")
    parser.add_argument("--prefixed", action="store_true", help="NAME is the beginning of names")


def _who(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--principal", metavar="User:NAME", required=required, help="User:* is every principal")
    parser.add_argument("--host", metavar="ADDRESS", help="an address; * is every host" + (" (default)" * required))
    parser.add_argument(
        "--operation",
        action="append",
        choices=sorted(OPERATIONS),
        metavar="OPERATION",
        help=f"may be repeated: {', '.join(sorted(OPERATIONS))}" + (" (default: all)" * required),
    )


def _named(args: argparse.Namespace) -> tuple[AclResource, str | None]:
    if args.cluster:
        return AclResource.CLUSTER, CLUSTER_NAME
    for kind in (AclResource.TOPIC, AclResource.GROUP, AclResource.TRANSACTIONAL_ID, AclResource.USER):
        name = getattr(args, kind.name.lower())
        if name is not None:
            return kind, name
    return AclResource.ANY, None


def run_list(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, failure
    from penstock.protocol.messages.api_29_describe_acls import DescribeAclsRequest

    kind, name = _named(args)
    pattern = PatternType.PREFIXED if args.prefixed else PatternType.ANY if name is None else PatternType.MATCH
    rows: list[dict[str, Any]] = []
    with connect(args) as broker:
        for operation in _operations(args) or [Operation.ANY]:
            answer = broker.ask(
                DescribeAclsRequest(
                    resource_type_filter=kind,
                    resource_name_filter=name,
                    pattern_type_filter=pattern,
                    principal_filter=args.principal,
                    host_filter=args.host,
                    operation=operation,
                    permission_type=Permission.ANY,
                )
            )
            if answer.error_code:
                raise failure("ACLs", answer.error_code, answer.error_message)
            for resource in answer.resources:
                where = (resource.resource_type, resource.resource_name, resource.pattern_type)
                rows += [_row(*where, acl) for acl in resource.acls]
    output.rows(args.output, COLUMNS, sorted(rows, key=lambda row: [row[column] for column in COLUMNS]))
    return Exit.OK


def run_add(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome
    from penstock.protocol.messages.api_30_create_acls import AclCreation, CreateAclsRequest

    kind, name = _named(args)
    creations = [
        AclCreation(
            resource_type=kind,
            resource_name=name or "",
            resource_pattern_type=PatternType.PREFIXED if args.prefixed else PatternType.LITERAL,
            principal=args.principal,
            host=args.host or "*",
            operation=operation,
            permission_type=args.permission,
        )
        for operation in _operations(args) or [Operation.ALL]
    ]
    with connect(args) as broker:
        answer = broker.ask(CreateAclsRequest(creations=creations))
    rows = []
    failures = []
    for asked, result in zip(creations, answer.results):
        if result.error_code:
            failures.append((f"{kind.name.lower()} {name}", result.error_code, result.error_message))
        else:
            rows.append(_row(kind, name or "", asked.resource_pattern_type, asked))
    return outcome(args.output, COLUMNS, rows, failures)


def run_remove(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, failure
    from penstock.protocol.messages.api_31_delete_acls import DeleteAclsFilter, DeleteAclsRequest

    kind, name = _named(args)
    filters = [
        DeleteAclsFilter(
            resource_type_filter=kind,
            resource_name_filter=name,
            pattern_type_filter=PatternType.PREFIXED if args.prefixed else PatternType.LITERAL,
            principal_filter=args.principal,
            host_filter=args.host,
            operation=operation,
            permission_type=Permission.ANY,
        )
        for operation in _operations(args) or [Operation.ANY]
    ]
    with connect(args) as broker:
        answer = broker.ask(DeleteAclsRequest(filters=filters))
    for result in answer.filter_results:
        if result.error_code:
            raise failure("ACLs", result.error_code, result.error_message)
    removed = list(_removed(answer.filter_results))
    if not removed:
        raise Failure("no ACL matches: `penstock acl list` shows the ACLs", Exit.NOT_FOUND)
    output.rows(args.output, COLUMNS, removed)
    return Exit.OK


def _removed(results: list[Any]) -> Iterator[dict[str, Any]]:
    for result in results:
        found: list[DeleteAclsMatchingAcl] = result.matching_acls
        for acl in found:
            yield _row(acl.resource_type, acl.resource_name, acl.pattern_type, acl)


def _operations(args: argparse.Namespace) -> list[Operation]:
    return [OPERATIONS[name] for name in dict.fromkeys(args.operation or ())]


def _row(kind: int, name: str, pattern: int, acl: Any) -> dict[str, Any]:
    return {
        "resource": AclResource(kind).name.lower().replace("_", "-"),
        "name": name,
        "pattern": PatternType(pattern).name.lower(),
        "principal": acl.principal,
        "host": acl.host,
        "operation": Operation(acl.operation).name.lower().replace("_", "-"),
        "permission": Permission(acl.permission_type).name.lower(),
    }
