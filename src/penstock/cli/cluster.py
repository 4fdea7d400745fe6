"""`penstock cluster` shows nodes and partitions, and moves and compares replicas. It works on any Kafka cluster.

The command keeps no state: the cluster's list of reassignments is the only record of the moves. An interrupted command
is resumed by running it again, and the moves can be watched or cancelled from any machine.
"""

from __future__ import annotations

import argparse

from penstock.cli.options import connection, positive_float, positive_int, size, verb
from penstock.cli.pipeline_session import spark_options

DEFAULT_AT_ONCE = 50
DEFAULT_RANGE = 10_000


def configure(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import cluster_elect, cluster_moves, cluster_reassign, cluster_status, cluster_verify

    verbs = parser.add_subparsers(metavar="VERB", required=True)

    status = verb(verbs, "status", "show nodes, or partitions, and their problems", cluster_status.run_status)
    connection(status)
    status.add_argument("-p", "--partitions", action="store_true", help="one line per partition instead of per node")
    status.add_argument("--problems", action="store_true", help="only partitions with problems")
    status.add_argument("--every", type=positive_float, default=2.0, metavar="SECONDS", help="default: %(default)s")
    status.add_argument("--once", action="store_true", help="print it once, also on a terminal")

    health = verb(verbs, "health", "exit with code 9 if the cluster is not healthy", cluster_status.run_health)
    connection(health)
    health.add_argument("--degraded", action="store_true", help="accept under-replicated partitions and fenced nodes")

    drain = verb(verbs, "drain", "move every replica off nodes, to take them out", cluster_moves.run_drain)
    drain.add_argument("nodes", nargs="+", type=int, metavar="NODE")
    _moving(drain)

    add = verb(verbs, "add", "move a fair share of replicas onto nodes that are new", cluster_moves.run_add)
    add.add_argument("nodes", nargs="+", type=int, metavar="NODE")
    _moving(add)

    rebalance = verb(verbs, "rebalance", "even out replicas and leaders over all nodes", cluster_moves.run_rebalance)
    _moving(rebalance)

    reassign = verb(verbs, "reassign", "move chosen partitions to chosen nodes", cluster_reassign.run_reassign)
    connection(reassign)
    reassign.add_argument(
        "moves", nargs="+", metavar="TOPIC-PARTITION=NODE[,…]", help="new replicas, the preferred leader first"
    )
    how = reassign.add_mutually_exclusive_group()
    how.add_argument("-y", "--yes", action="store_true", help="don't ask after showing the moves")
    how.add_argument("-n", "--dry-run", action="store_true", help="only show the moves")

    moves = verb(verbs, "moves", "show replicas that are being moved", cluster_moves.run_moves)
    connection(moves)
    moves.add_argument(
        "--wait", action="store_true", help="wait until the moves are finished, then remove the throttle"
    )

    cancel = verb(verbs, "cancel", "cancel moves under way and restore the earlier replicas", cluster_moves.run_cancel)
    connection(cancel)

    elect = verb(verbs, "elect", "make the preferred replicas lead their partitions", cluster_elect.run_elect)
    connection(elect)
    elect.add_argument("partitions", nargs="*", metavar="TOPIC[-PARTITION]", help="default: all")
    elect.add_argument(
        "--unclean", action="store_true", help="let a replica out of sync lead a partition without a leader"
    )
    elect.add_argument("-y", "--yes", action="store_true", help="don't ask before an unclean election")

    verify = verb(verbs, "verify", "read every replica and compare them range by range", cluster_verify.run_verify)
    connection(verify)
    verify.add_argument("topics", nargs="*", metavar="TOPIC[-PARTITION]", help="default: all topics, internal ones too")
    verify.add_argument(
        "--range",
        type=positive_int,
        default=DEFAULT_RANGE,
        metavar="OFFSETS",
        help="offsets per digest (default: %(default)s)",
    )
    verify.add_argument("--rate", type=size, metavar="BYTES", help="limit of bytes read per second, e.g. 20M")
    verify.add_argument("--spark", action="store_true", help="compare in Spark tasks, for large topics; or --master")
    spark_options(verify)

    reset = verb(verbs, "reset", "drop one replica and copy it anew from the leader", cluster_moves.run_reset)
    connection(reset)
    reset.add_argument("partition", metavar="TOPIC-PARTITION")
    reset.add_argument("--replica", type=int, required=True, metavar="NODE", help="the node whose replica to drop")
    reset.add_argument("-y", "--yes", action="store_true", help="don't ask")

    forget = verb(verbs, "forget", "drop the registration of a node that will not return", cluster_moves.run_forget)
    connection(forget)
    forget.add_argument("nodes", nargs="+", type=int, metavar="NODE")


def _moving(parser: argparse.ArgumentParser) -> None:
    connection(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-y", "--yes", action="store_true", help="don't ask after showing the plan")
    how.add_argument("-n", "--dry-run", action="store_true", help="only show the plan")
    parser.add_argument(
        "--throttle", type=size, metavar="BYTES", help="limit of bytes moved per second and node, e.g. 50M"
    )
    parser.add_argument(
        "--at-once",
        type=positive_int,
        default=DEFAULT_AT_ONCE,
        metavar="PARTITIONS",
        help="partitions to move at a time (default: %(default)s)",
    )
    parser.add_argument("--topic", action="append", default=[], metavar="NAME", help="only this topic; repeatable")
