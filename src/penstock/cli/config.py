"""`penstock config` shows and changes settings of topics, brokers, groups and client metrics."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, pairs, refuse_secrets, verb
from penstock.protocol.vocabulary import ConfigOperation, ResourceType

KINDS: dict[str, int] = {kind.name.lower().replace("_", "-"): kind for kind in ResourceType}
OPERATIONS: dict[str, int] = {operation.name.lower(): operation for operation in ConfigOperation}
SOURCES = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "properties file",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
DEFAULT_SOURCE = 5
EVERY_BROKER = "default"

EPILOG = f"""KIND is one of {", ".join(KINDS)}. A broker's NAME is its id, or "default" for settings of all brokers."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    describe = verb(verbs, "describe", "show settings", run_describe)
    _resource(describe)
    describe.add_argument("keys", nargs="*", metavar="KEY", help="only these")
    describe.add_argument("-a", "--all", action="store_true", help="also settings with default values")
    describe.add_argument("--synonyms", action="store_true", help="every place a value could come from")
    describe.add_argument("--docs", action="store_true", help="what each setting does")

    change = verb(verbs, "set", "set values", run_set)
    _resource(change)
    change.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    change.add_argument("--file", metavar="FILE", help="a properties file with further values, for passwords")
    change.add_argument("--dry-run", action="store_true", help="only check whether it could be done")

    unset = verb(
        verbs, "unset", "go back to defaults", lambda args: _change(args, [("delete", dict.fromkeys(args.keys))])
    )
    _resource(unset)
    unset.add_argument("keys", nargs="+", metavar="KEY")
    unset.add_argument("--dry-run", action="store_true", help="only check whether it could be done")

    alter = verb(verbs, "alter", "several changes at once, all or none", run_alter)
    _resource(alter)
    alter.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    alter.add_argument("--file", metavar="FILE", help="a properties file with further values to set, for passwords")
    alter.add_argument("--delete", action="append", default=[], metavar="KEY", help="go back to the default")
    alter.add_argument("--append", action="append", default=[], metavar="KEY=VALUE", help="add to a list")
    alter.add_argument("--subtract", action="append", default=[], metavar="KEY=VALUE", help="take from a list")
    alter.add_argument("--dry-run", action="store_true", help="only check whether it could be done")

    listing = verb(verbs, "list", "list resources that have settings of their own", run_list)
    connection(listing)
    listing.add_argument("kind", nargs="?", choices=KINDS, metavar="KIND", help="default: all kinds")


def _resource(parser: argparse.ArgumentParser) -> None:
    connection(parser)
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument(
        "name", metavar="NAME", help='name of the topic, broker (an id or "default"), subscription or group'
    )
    parser.epilog = EPILOG


def _address(args: argparse.Namespace) -> tuple[int, str, int | None]:
    """Returns the config resource's type and name, and the broker to send the request to; None means any broker."""
    kind = KINDS[args.kind]
    if args.kind not in ("broker", "broker-logger"):
        return kind, args.name, None
    if args.kind == "broker" and args.name == EVERY_BROKER:
        return kind, "", None
    if not args.name.isdigit():
        raise Failure(
            f'{args.name!r} is not a broker id: give a number, or "{EVERY_BROKER}" for all brokers', Exit.USAGE
        )
    return kind, args.name, int(args.name)


def run_describe(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    kind, name, _ = _address(args)
    with connect(args) as broker:
        if kind == KINDS["topic"]:
            broker.existing([name])
        found = broker.configs(kind, name, keys=args.keys or None, synonyms=args.synonyms, documentation=args.docs)
    wanted = [each for each in found if args.all or args.keys or each.config_source != DEFAULT_SOURCE]
    columns = ["name", "value", "source"]
    columns += ["synonyms"] if args.synonyms else []
    columns += ["documentation"] if args.docs else []
    rows = [_shown(each, synonyms=args.synonyms, docs=args.docs) for each in sorted(wanted, key=lambda c: str(c.name))]
    output.rows(args.output, columns, rows, empty="nothing is set: --all shows the defaults")
    return Exit.OK


def _shown(config: Any, *, synonyms: bool, docs: bool) -> dict[str, Any]:
    row = {
        "name": config.name,
        "value": "(hidden)" if config.is_sensitive else config.value,
        "source": SOURCES.get(config.config_source, "unknown"),
        "read_only": config.read_only,
        "sensitive": config.is_sensitive,
    }
    if synonyms:
        row["synonyms"] = [f"{s.name}={s.value} ({SOURCES.get(s.source, 'unknown')})" for s in config.synonyms]
    if docs:
        row["documentation"] = config.documentation
    return row


def run_set(args: argparse.Namespace) -> int:
    values = _values(args, args.changes, "set")
    if not values:
        raise Failure("nothing to set: give KEY=VALUE or --file", Exit.USAGE)
    return _change(args, [("set", values)])


def _values(args: argparse.Namespace, texts: list[str], what: str) -> dict[str, str]:
    """Returns the values to set, from arguments and from the file of `--file`. Refuses secrets in arguments."""
    found = pairs(texts, what)
    if args.kind == "broker":
        refuse_secrets(found, "write it into a properties file and give --file FILE")
    if args.file is not None:
        from penstock.cli.properties import read_file

        found |= read_file(args.file, "properties")
    return found


def run_alter(args: argparse.Namespace) -> int:
    changes: list[tuple[str, dict[str, Any]]] = [
        ("set", dict(_values(args, args.set, "--set"))),
        ("delete", dict.fromkeys(args.delete)),
        ("append", dict(pairs(args.append, "--append"))),
        ("subtract", dict(pairs(args.subtract, "--subtract"))),
    ]
    if not any(values for _, values in changes):
        raise Failure("nothing to alter: give --set, --file, --delete, --append or --subtract", Exit.USAGE)
    return _change(args, changes)


def _change(args: argparse.Namespace, changes: list[tuple[str, Any]]) -> int:
    from penstock.cli.connect import connect, outcome, with_near_configs
    from penstock.protocol.messages import api_44_incremental_alter_configs as api

    kind, name, node = _address(args)
    configs = [
        api.AlterableConfig(name=key, config_operation=OPERATIONS[operation], value=value)
        for operation, values in changes
        for key, value in values.items()
    ]
    resource = api.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    with connect(args) as broker:
        answer: api.IncrementalAlterConfigsResponse = broker.ask(
            api.IncrementalAlterConfigsRequest(resources=[resource], validate_only=args.dry_run), node=node
        )
    named = [each.name for each in configs] if args.kind == "topic" else []
    failures = [
        (f"{args.kind} {args.name}", each.error_code, with_near_configs(each.error_message, named))
        for each in answer.responses
        if each.error_code
    ]
    rows = []
    if not failures:
        result = "could be" if args.dry_run else "done"
        rows = [
            {"operation": operation, "name": key, "value": value, "result": result}
            for operation, values in changes
            for key, value in values.items()
        ]
    return outcome(args.output, ["operation", "name", "value", "result"], rows, failures)


def run_list(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, failure
    from penstock.protocol.messages import api_74_list_config_resources as api

    kinds = [KINDS[args.kind]] if args.kind else list(KINDS.values())
    with connect(args) as broker:
        answer: api.ListConfigResourcesResponse = broker.ask(api.ListConfigResourcesRequest(resource_types=kinds))
    if answer.error_code:
        raise failure("config list", answer.error_code, None)
    names = {number: name for name, number in KINDS.items()}
    rows = [
        {"kind": names.get(each.resource_type, str(each.resource_type)), "name": each.resource_name or EVERY_BROKER}
        for each in answer.config_resources
    ]
    output.rows(args.output, ["kind", "name"], sorted(rows, key=lambda row: (row["kind"], row["name"])), empty="none")
    return Exit.OK
