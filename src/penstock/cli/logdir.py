"""`penstock logdir` shows the log directories of nodes and moves replicas between them. It works on any Kafka cluster.

The command keeps no state: DescribeLogDirs of each node is the only record of the moves. An interrupted command is
resumed by running it again, and the moves can be watched or cancelled from any machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.exit import Exit
from penstock.cli.logdir_holdings import Held, copies, read_holdings
from penstock.cli.options import connection, positive_float, positive_int, size, verb

if TYPE_CHECKING:
    from penstock.client.cluster_admin import Holdings
    from penstock.metadata.directory_balance import CopyState
    from penstock.protocol.vocabulary import TopicPartition

DEFAULT_AT_ONCE = 2
DEFAULT_KEPT_FREE = 64 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import logdir_moves

    verbs = parser.add_subparsers(metavar="VERB", required=True)

    listing = verb(verbs, "list", "show the log directories of all nodes, with their bytes and free space", run_list)
    _nodes(listing)

    describe = verb(verbs, "describe", "show the moves under way: what is left, the rate and the time", run_describe)
    _nodes(describe)
    describe.add_argument(
        "--over", type=positive_float, default=1.0, metavar="SECONDS", help="measure the rate over (default: 1)"
    )
    describe.add_argument(
        "--wait", action="store_true", help="wait until the moves have ended, then remove the throttle"
    )

    move = verb(verbs, "move", "move a replica to another log directory of its node", logdir_moves.run_move)
    move.add_argument("replica", metavar="TOPIC-PARTITION@NODE", help="@NODE may be left out if one node has a replica")
    move.add_argument("directory", metavar="DIR")
    connection(move)
    move.add_argument("--wait", action="store_true", help="wait until the move has ended")
    _throttled(move)

    cancel = verb(verbs, "cancel", "cancel moves under way: the replicas stay where they are", logdir_moves.run_cancel)
    cancel.add_argument("replicas", nargs="*", metavar="TOPIC-PARTITION@NODE", help="default: all moves")
    _nodes(cancel)

    balance = verb(verbs, "balance", "even out the bytes of each node's log directories", logdir_moves.run_balance)
    _nodes(balance)
    _planned(balance)

    evacuate = verb(verbs, "evacuate", "empty a log directory, to take its disk out", logdir_moves.run_evacuate)
    evacuate.add_argument("directory", metavar="DIR")
    _nodes(evacuate)
    _planned(evacuate)


def _nodes(parser: argparse.ArgumentParser) -> None:
    connection(parser)
    parser.add_argument(
        "--node", type=int, action="append", default=[], metavar="NODE", help="only this node; repeatable"
    )


def _throttled(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--throttle", type=size, metavar="BYTES", help="limit of bytes copied per second and node, e.g. 50M"
    )


def _planned(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-y", "--yes", action="store_true", help="don't ask after showing the plan")
    how.add_argument("-n", "--dry-run", action="store_true", help="only show the plan")
    parser.add_argument(
        "--at-once",
        type=positive_int,
        default=DEFAULT_AT_ONCE,
        metavar="REPLICAS",
        help="replicas of a node to move at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--keep-free",
        type=size,
        default=DEFAULT_KEPT_FREE,
        metavar="BYTES",
        help="free space that the plan leaves in every directory (default: 64M)",
    )
    _throttled(parser)


# --- directories -----------------------------------------------------------------------------------------------------


def run_list(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect
    from penstock.client.cluster_facts import readable

    with connect(args) as broker:
        held = read_holdings(broker, args.node)
    rows = [row for node, holdings in held.items() for row in directory_rows(node, holdings)]
    if args.output != "json":
        rows = [{**row, **{name: readable(row[name]) for name in ("bytes", "free", "total")}} for row in rows]
    output.rows(args.output, ["node", "directory", "state", "replicas", "moving_in", "bytes", "free", "total"], rows)
    offline = [row for row in rows if row["state"] == "offline"]
    for row in offline:
        output.note(
            f"node {row['node']}: {row['directory']} is offline ({row['reason']}): the node's log and console name the "
            "disk error; replace the disk and restart the node"
        )
    return Exit.NEEDS_ATTENTION if offline else Exit.OK


def directory_rows(node: int, holdings: Holdings) -> list[dict[str, Any]]:
    rows = []
    for directory in holdings.directories:
        here = [each for each in holdings.replicas.values() if each.directory == directory.path]
        coming = [each for each in holdings.futures.values() if each.directory == directory.path]
        held = sum(each.size for each in here) + sum(each.size for each in coming)
        rows.append(
            {
                "node": node,
                "directory": directory.path,
                "state": "offline" if directory.error else "cordoned" if directory.cordoned else "online",
                "reason": directory.error.name if directory.error else None,
                "replicas": None if directory.error else len(here),
                "moving_in": None if directory.error else len(coming),
                "bytes": None if directory.error else held,
                "free": directory.usable_bytes if directory.usable_bytes >= 0 else None,
                "total": directory.total_bytes if directory.total_bytes >= 0 else None,
            }
        )
    return rows


# --- moves under way ------------------------------------------------------------------------------------------------


def run_describe(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect
    from penstock.cli.logdir_moves import unthrottle, wait

    with connect(args) as broker:
        held = read_holdings(broker, args.node)
        before, began = copies(held), time.monotonic()
        if before:
            time.sleep(args.over)
            held = read_holdings(broker, args.node)
        rows = list(_move_rows(held, before, time.monotonic() - began))
        if args.output == "json":
            output.rows("json", [], rows)
        else:
            columns = ["topic", "partition", "node", "from", "to", "records_left", "bytes_left", "rate", "eta"]
            output.rows("table", columns, map(_readable, rows), empty="no replica is being moved")
        if args.wait:
            wait(broker, held)
            unthrottle(broker, held)
    return Exit.OK


def _move_rows(
    held: Held, before: dict[tuple[int, TopicPartition], CopyState], seconds: float
) -> Iterable[dict[str, Any]]:
    from penstock.metadata.directory_balance import rate, seconds_left

    for (node, partition), now in sorted(copies(held).items()):
        speed = rate(before.get((node, partition)), now, seconds)
        eta = seconds_left(now, speed)
        current = held[node].replicas.get(partition)
        yield {
            "topic": partition[0],
            "partition": partition[1],
            "node": node,
            "from": None if current is None else current.directory,
            "to": held[node].futures[partition].directory,
            "records_left": now.records_left,
            "bytes_left": now.bytes_left,
            "bytes_per_second": None if speed is None else round(speed),
            "seconds_left": None if eta is None else round(eta, 1),
        }


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    from penstock.client.cluster_facts import readable

    speed, eta = row["bytes_per_second"], row["seconds_left"]
    return {
        **row,
        "bytes_left": readable(row["bytes_left"]),
        "rate": None if speed is None else f"{readable(speed)}/s",
        "eta": None if eta is None else _duration(eta),
    }


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {rest}s" if minutes else f"{rest}s"
