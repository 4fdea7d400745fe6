"""`penstock cluster reassign` moves chosen partitions to chosen nodes. `cluster drain` and `rebalance` plan moves."""

from __future__ import annotations

import argparse

from penstock.cli import output
from penstock.cli.confirm import ask
from penstock.cli.exit import Exit, Failure
from penstock.protocol.vocabulary import TopicPartition


def run_reassign(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    wanted = dict(_wanted(text) for text in args.moves)
    with connect(args) as broker:
        topics = broker.existing(sorted({topic for topic, _ in wanted}))
        now = {
            (each.name or "", part.partition_index): part.replica_nodes for each in topics for part in each.partitions
        }
        missing = sorted(wanted.keys() - now.keys())
        if missing:
            raise Failure(
                f"topic {missing[0][0]} has no partition {missing[0][1]}: `penstock topic list` shows the topics",
                Exit.NOT_FOUND,
            )
        rows = [{"topic": key[0], "partition": key[1], "from": now[key], "to": wanted[key]} for key in sorted(wanted)]
        output.rows(args.output, ["topic", "partition", "from", "to"], rows)
        if args.dry_run:
            return Exit.OK
        if not args.yes:
            ask("go on?")
        broker.run(broker.cluster.reassign(wanted))
    output.note(
        "the moves have begun: `penstock cluster moves` shows them, and `penstock cluster cancel` takes them back"
    )
    return Exit.OK


def _wanted(text: str) -> tuple[TopicPartition, list[int]]:
    """Parses TOPIC-PARTITION=NODE,… Raises Failure."""
    place, equals, nodes = text.rpartition("=")
    topic, _, index = place.rpartition("-")
    listed = nodes.split(",")
    if not equals or not topic or not index.isdecimal() or not all(each.isdecimal() for each in listed):
        raise Failure(
            f"{text!r} is not a move: write TOPIC-PARTITION=NODE,… with the preferred leader first", Exit.USAGE
        )
    return (topic, int(index)), [int(each) for each in listed]
