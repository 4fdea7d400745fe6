"""`penstock up` runs a broker, or with --nodes a cluster, on this machine without any configuration.

Data goes to --data, else PENSTOCK_DATA, else the user's data directory.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from penstock.cli.exit import Exit, Failure
from penstock.cli.options import finish, overrides, positive_int
from penstock.cli.up_http import HTTP_LISTENER, HTTP_PORT, http_is_optional, http_listeners
from penstock.cli.up_secure import security_of

if TYPE_CHECKING:
    from penstock.disk.api import Disk

IN_MEMORY = "memory"
MOST_NODES = 7  # every node is a voter and a process


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=9092, help="0 chooses a free port (default: %(default)s)")
    parser.add_argument(
        "--nodes", type=positive_int, default=1, metavar="N", help="run a cluster of N processes, on ports P, P+1, …"
    )
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--data", metavar="DIR", help=f"data directory (default: PENSTOCK_DATA, else {default_data()})")
    kept.add_argument("--ephemeral", action="store_true", help="keep everything in memory, and nothing after the stop")
    console = parser.add_mutually_exclusive_group()
    console.add_argument(
        "--http",
        metavar="[HOST:]PORT",
        help=f"console and metrics; with --nodes from here up (default: {HTTP_PORT}, if it is free)",
    )
    console.add_argument("--no-http", action="store_true", help="no console and no metrics")
    parser.add_argument(
        "--secure",
        action="store_true",
        help="TLS, users and ACLs; makes certificates and passwords once, and prints what clients need",
    )
    parser.add_argument("--override", action="append", default=[], metavar="NAME=VALUE", help="a server property")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log more to stderr; twice for everything")
    parser.add_argument("--until-stdin-ends", action="store_true", help=argparse.SUPPRESS)  # for `pipeline demo`
    finish(parser, run)


def default_data() -> str:
    told = os.environ.get("PENSTOCK_DATA")
    if told:
        return told
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", os.path.expanduser("~"))
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Application Support")
    else:
        base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.path.join(base, "penstock")


def run(args: argparse.Namespace) -> int:
    from penstock.cli.properties import warn_without_effect
    from penstock.cli.serve import configure_logging, failures_in_one_line, node_to_serve, serve
    from penstock.metadata.configs.definition import ConfigError
    from penstock.node.descriptors import raise_limit
    from penstock.node.listeners import ListenerError
    from penstock.node.local import format_if_new, local_settings

    configure_logging(args.verbose)
    if args.nodes > MOST_NODES:
        raise Failure(
            f"--nodes {args.nodes} is too many: a cluster on one machine has at most {MOST_NODES} nodes", Exit.USAGE
        )
    if args.nodes > 1:
        from penstock.cli.up_nodes import run_nodes

        return run_nodes(args, os.path.abspath(os.path.expanduser(args.data or default_data())))
    raise_limit()
    where = IN_MEMORY if args.ephemeral else os.path.abspath(os.path.expanduser(args.data or default_data()))
    with security_of(args, f"{where}-security", where) as secured:
        own = {HTTP_LISTENER: http_listeners(args)[0], **secured.properties, **overrides(args.override)}
        try:
            settings = local_settings(
                "/data" if args.ephemeral else where,
                host=args.host,
                port=args.port,
                overrides=own,
                listener=secured.listener,
            )
            warn_without_effect(settings)
            node = node_to_serve(settings, _disk(args.ephemeral), http_optional=http_is_optional(args))
        except (ConfigError, ListenerError) as problem:
            raise Failure(str(problem), Exit.USAGE) from problem
        with failures_in_one_line(node):
            format_if_new(node, secured.users, secured.acls)
        return serve(
            node, where, args.output, until_stdin_ends=args.until_stdin_ends, after_ready=secured.print_clients
        )


def _disk(ephemeral: bool) -> Disk:
    if ephemeral:
        from penstock.disk.memory import MemoryDisk
        from penstock.node.clock import SystemClock

        return MemoryDisk(now_ms=SystemClock().wall_ms)
    from penstock.disk.real import RealDisk
    from penstock.node.descriptors import available

    return RealDisk(max_open_files=available().log_files)


def _port(text: str) -> int:
    value = int(text) if text.isdecimal() else -1
    if not 0 <= value < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 0 to 65535")
    return value
