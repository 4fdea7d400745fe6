"""`penstock cluster elect` elects the preferred replicas as leaders; with --unclean, replicas that are not in sync."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.confirm import ask
from penstock.cli.exit import Exit, Failure

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.protocol.vocabulary import TopicPartition


def run_elect(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome
    from penstock.client.cluster_admin import PREFERRED, UNCLEAN

    with connect(args) as broker:
        wanted = _wanted(broker, args.partitions, unclean=args.unclean)
        if args.unclean and wanted and not args.yes:
            output.note(f"{output.counted(len(wanted), 'partition')} may lose committed records")
            ask("let replicas that are not in sync lead?")
        kind = UNCLEAN if args.unclean else PREFERRED
        refused = broker.run(broker.cluster.elect_leaders(wanted, kind=kind)) if wanted else {}
    rows = [{"topic": topic, "partition": index} for topic, index in wanted if (topic, index) not in refused]
    failures = [(f"{topic}-{index}", int(code), None) for (topic, index), code in sorted(refused.items())]
    if not wanted:
        output.note("nothing to elect: every partition is led as wanted")
    return outcome(args.output, ["topic", "partition"], rows, failures)


def _wanted(broker: Broker, names: list[str], *, unclean: bool) -> list[TopicPartition]:
    """Returns the partitions that need an election. `names` selects topics and partitions; empty means all.

    An unclean election is needed if a partition has no leader. A preferred election is needed if the leader is not the
    partition's first replica.
    """
    found = []
    known = set()
    for topic in broker.topics():
        name = topic.name or ""
        for part in topic.partitions:
            known |= {name, f"{name}-{part.partition_index}"}
            if names and name not in names and f"{name}-{part.partition_index}" not in names:
                continue
            led = part.leader_id in part.replica_nodes[:1]
            if part.leader_id < 0 if unclean else part.leader_id >= 0 and not led:
                found.append((name, part.partition_index))
    missing = sorted(set(names) - known)
    if missing:
        raise Failure(
            f"there is no topic or partition {missing[0]}: `penstock topic list` shows the topics", Exit.NOT_FOUND
        )
    return sorted(found)
