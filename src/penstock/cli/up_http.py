"""Determines the HTTP listeners of `penstock up` from --http, --no-http and --override."""

from __future__ import annotations

import argparse

from penstock.cli.exit import Exit, Failure
from penstock.cli.options import overrides

HTTP_PORT = 9644
HTTP_LISTENER = "penstock.http.listener"


def http_listeners(args: argparse.Namespace) -> list[str]:
    """Returns the HTTP listener of each node as text; an empty string means no HTTP."""
    from penstock.http.address import HttpAddress, parse_address

    if args.no_http:
        return [""] * args.nodes
    try:
        first = parse_address(args.http) if args.http is not None else None
    except ValueError:
        raise Failure(f"--http takes PORT or HOST:PORT, not {args.http!r}", Exit.USAGE) from None
    # With --port 0 the console takes a free port, too.
    first = first or HttpAddress("127.0.0.1", HTTP_PORT if args.port else 0)
    if first.port + args.nodes > 65536:
        raise Failure(
            f"--http {args.http} leaves too few ports above it for {args.nodes} nodes: choose a lower port", Exit.USAGE
        )
    host = f"[{first.host}]" if ":" in first.host else first.host
    scheme = "https://" if first.tls else ""
    return [f"{scheme}{host}:{first.port + index if first.port else 0}" for index in range(args.nodes)]


def http_is_optional(args: argparse.Namespace) -> bool:
    """Returns True if no option sets the HTTP port. The broker then starts without HTTP if the port is taken."""
    return args.http is None and HTTP_LISTENER not in overrides(args.override)
