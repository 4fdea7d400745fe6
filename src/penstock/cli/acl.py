"""`penstock acl` lists, adds and removes ACLs of a cluster with an authorizer."""

from __future__ import annotations

import argparse

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, verb
from penstock.client.access_admin import ACL_COLUMNS, OPERATIONS, AclFilter
from penstock.security.vocabulary import CLUSTER_NAME, AclResource, Operation, PatternType, Permission


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
    from penstock.cli.connect import connect

    kind, name = _named(args)
    pattern = PatternType.PREFIXED if args.prefixed else PatternType.ANY if name is None else PatternType.MATCH
    with connect(args) as broker:
        wanted = AclFilter(kind, name, pattern, args.principal, args.host)
        rows = broker.run(broker.access.acls(wanted, _operations(args)))
    output.rows(args.output, ACL_COLUMNS, rows)
    return Exit.OK


def run_add(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome
    from penstock.protocol.messages.api_30_create_acls import AclCreation

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
        rows, refused = broker.run(broker.access.create_acls(creations))
    failures = [(f"{kind.name.lower()} {name}", int(code), message) for _, code, message in refused]
    return outcome(args.output, ACL_COLUMNS, rows, failures)


def run_remove(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    kind, name = _named(args)
    pattern = PatternType.PREFIXED if args.prefixed else PatternType.LITERAL
    with connect(args) as broker:
        wanted = AclFilter(kind, name, pattern, args.principal, args.host)
        removed = broker.run(broker.access.delete_acls(wanted, _operations(args)))
    if not removed:
        raise Failure("no ACL matches: `penstock acl list` shows the ACLs", Exit.NOT_FOUND)
    output.rows(args.output, ACL_COLUMNS, removed)
    return Exit.OK


def _operations(args: argparse.Namespace) -> list[Operation]:
    return [OPERATIONS[name] for name in dict.fromkeys(args.operation or ())]
