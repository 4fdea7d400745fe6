"""`penstock topic compact` compacts a node's replicas of topics now, through the node's REST API."""

from __future__ import annotations

import argparse

from penstock.cli import output
from penstock.cli.exit import Exit
from penstock.cli.rest import OPERATION, rest

COLUMNS = ["topic", "partition", "records_read", "records_kept"]


def run_compact(args: argparse.Namespace) -> int:
    node = rest(args)
    begun = node.ask("POST", "/v1/cluster/compact-log", {"topics": args.names}, shape=OPERATION)
    rows = node.finished(begun)["result"]["partitions"]
    output.rows(args.output, COLUMNS, rows, empty="this node has no replica of these topics")
    return Exit.OK
