"""`penstock start server.properties` runs a broker from Kafka's own file, and warns about properties without effect."""

from __future__ import annotations

import argparse

from penstock.cli.exit import Exit, Failure
from penstock.cli.options import finish, overrides


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("properties", metavar="FILE", help="a server.properties file")
    parser.add_argument(
        "--override", action="append", default=[], metavar="NAME=VALUE", help="overrides a property of FILE"
    )
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log more to stderr; twice for everything")
    parser.add_argument("--until-stdin-ends", action="store_true", help=argparse.SUPPRESS)  # for `up --nodes`
    parser.add_argument("--http-optional", action="store_true", help=argparse.SUPPRESS)  # for `up --nodes`, too
    finish(parser, run)
    parser.epilog = "The directories of log.dirs have to be formatted first: penstock storage format."


def run(args: argparse.Namespace) -> int:
    from penstock.cli.properties import read_settings, warn_without_effect
    from penstock.cli.serve import configure_logging, node_to_serve, serve
    from penstock.disk.real import RealDisk
    from penstock.metadata.configs.definition import ConfigError
    from penstock.node.descriptors import available, raise_limit
    from penstock.node.listeners import ListenerError

    configure_logging(args.verbose)
    raise_limit()
    settings = read_settings(args.properties, overrides(args.override))
    warn_without_effect(settings)
    try:
        disk = RealDisk(max_open_files=available().log_files)
        node = node_to_serve(settings, disk, http_optional=args.http_optional)
    except (ConfigError, ListenerError) as problem:
        raise Failure(f"{args.properties}: {problem}", Exit.USAGE) from problem
    return serve(node, ",".join(settings.log_dirs), args.output, until_stdin_ends=args.until_stdin_ends)
