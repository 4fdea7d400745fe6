"""`penstock guard` lists the nodes in quarantine and releases them."""

from __future__ import annotations

import argparse

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, verb

COLUMNS = ["node", "reason"]


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    listing = verb(verbs, "list", "list the nodes in quarantine, with the reasons", run_list)
    connection(listing)

    releasing = verb(verbs, "release", "release a node from quarantine, after a check of its disks", run_release)
    connection(releasing)
    releasing.add_argument("node", type=int, metavar="NODE", help="its node.id")


def run_list(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect
    from penstock.client.quarantine import quarantined_nodes

    with connect(args) as broker:
        found = broker.run(quarantined_nodes(broker.client.asynchronous))
    rows = [{"node": node, "reason": reason} for node, reason in sorted(found.items())]
    output.rows(args.output, COLUMNS, rows, empty="no node is in quarantine")
    return Exit.OK


def run_release(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect
    from penstock.client.quarantine import release

    with connect(args) as broker:
        released = broker.run(release(broker.client.asynchronous, args.node))
    if not released:
        raise Failure(f"node {args.node} is not in quarantine: `penstock guard list` lists the nodes", Exit.NOT_FOUND)
    output.note(f"node {args.node} is released: it joins the in-sync sets once it has caught up")
    return Exit.OK
