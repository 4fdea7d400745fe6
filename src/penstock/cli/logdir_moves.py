"""`penstock logdir move|cancel|balance|evacuate` moves replicas between the log directories of their nodes.

A plan counts a replica that is being moved as if it were in its target directory. The same command, run again after an
interruption, therefore waits for the moves under way and plans only the remaining moves.
"""

from __future__ import annotations

import argparse
import posixpath
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.confirm import ask
from penstock.cli.exit import Exit, Failure
from penstock.cli.logdir_holdings import Held, copies, read_holdings
from penstock.client.cluster_facts import readable
from penstock.client.cordons import CORDONED, set_cordoned
from penstock.client.directory_moves import NodeMove, Step, plan_rows, starting_point
from penstock.metadata.directory_balance import DirectoryMove, balance, evacuate
from penstock.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.client.cluster_admin import Holdings
    from penstock.protocol.vocabulary import TopicPartition

# --- one replica ----------------------------------------------------------------------------------------------------


def run_move(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        node, partition = _replica(broker, args.replica)
        held = read_holdings(broker, [node])
        current = held[node].replicas.get(partition)
        if args.throttle:
            broker.run(broker.directory_moves.throttle(args.throttle, held))
        failures = broker.run(broker.cluster.move_replicas(node, {partition: args.directory}))
        if partition in failures:
            _refuse(node, partition, args.directory, failures[partition], held[node])
        held = read_holdings(broker, [node])
        if args.wait:
            wait(broker, held)
            held = read_holdings(broker, [node])
            if args.throttle:
                unthrottle(broker, held)
        future, now = held[node].futures.get(partition), held[node].replicas.get(partition)
    output.record(
        args.output,
        {
            "topic": partition[0],
            "partition": partition[1],
            "node": node,
            "from": None if current is None else current.directory,
            "to": args.directory,
            "result": "moving" if future is not None else "done",
            "directory": None if now is None else now.directory,
        },
    )
    return Exit.OK


def _replica(broker: Broker, text: str) -> tuple[int, TopicPartition]:
    """Parses TOPIC-PARTITION@NODE. The part @NODE may be missing if the partition has only one replica."""
    name, at, node = text.rpartition("@")
    topic, _, index = (name if at else text).rpartition("-")
    if not topic or not index.isdecimal() or (at and not node.isdecimal()):
        raise Failure(f"{text!r} names no replica: give TOPIC-PARTITION@NODE, such as orders-0@1", Exit.USAGE)
    partition = (topic, int(index))
    if at:
        return int(node), partition
    (found,) = broker.existing([topic])
    part = next((each for each in found.partitions if each.partition_index == partition[1]), None)
    if part is None:
        raise Failure(f"the cluster has no partition {text}: `penstock topic list` shows the topics", Exit.NOT_FOUND)
    if len(part.replica_nodes) != 1:
        nodes = ", ".join(map(str, part.replica_nodes))
        raise Failure(
            f"{text} has replicas on nodes {nodes}: name one of these nodes, such as {text}@{part.replica_nodes[0]}",
            Exit.USAGE,
        )
    return part.replica_nodes[0], partition


def _refuse(node: int, partition: TopicPartition, directory: str, code: ErrorCode, holdings: Holdings) -> None:
    replica = f"{partition[0]}-{partition[1]}"
    match code:
        case ErrorCode.LOG_DIR_NOT_FOUND:
            known = ", ".join(each.path for each in holdings.directories)
            raise Failure(f"node {node} has no log directory {directory}: it has {known}", Exit.NOT_FOUND)
        case ErrorCode.REPLICA_NOT_AVAILABLE | ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise Failure(
                f"node {node} has no replica of {replica} to move: if the node gets a replica of {replica} before it "
                f"restarts, the replica is created in {directory}",
                Exit.NOT_FOUND,
            )
        case ErrorCode.KAFKA_STORAGE_ERROR:
            raise Failure(
                f"{replica} can't be moved to {directory}: a directory is offline, or an earlier move of the replica "
                "is about to end. See `penstock logdir list` and the node's log",
                Exit.FAILED,
            )
        case _:
            raise Failure(f"{replica} can't be moved to {directory} on node {node}: {code.name}", Exit.FAILED)


def run_cancel(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        named = [_replica(broker, each) for each in args.replicas]
        held = read_holdings(broker, sorted({*args.node, *(node for node, _ in named)}))
        going = [each for each in sorted(copies(held)) if not named or each in named]
        rows = []
        for node, holdings in held.items():
            back = {
                partition: holdings.replicas[partition].directory
                for own, partition in going
                if own == node and partition in holdings.replicas
            }
            failures = broker.run(broker.cluster.move_replicas(node, back)) if back else {}
            for partition, directory in back.items():
                told = failures.get(partition)
                result = "cancelled" if told is None else f"not cancelled: {told.name}"
                row = {"topic": partition[0], "partition": partition[1], "node": node, "stays_in": directory}
                rows.append({**row, "result": result})
        if not args.replicas:
            unthrottle(broker, held)
    columns = ["topic", "partition", "node", "stays_in", "result"]
    output.rows(args.output, columns, rows, empty="no replica is being moved")
    return Exit.OK if all(row["result"] == "cancelled" for row in rows) else Exit.FAILED


# --- plans ----------------------------------------------------------------------------------------------------------


def run_balance(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    def plan(holdings: Holdings) -> list[DirectoryMove]:
        return balance(*starting_point(holdings), args.keep_free)

    with connect(args) as broker:
        held = read_holdings(broker, args.node)
        return _run(broker, args, held, plan, "the log directories are even")


def run_evacuate(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        held = read_holdings(broker, args.node)
        node, path = _find_directory(held, args.directory)
        held = {node: held[node]}
        cordoned = sorted(each.path for each in held[node].directories if each.cordoned)

        def plan(holdings: Holdings) -> list[DirectoryMove]:
            return evacuate(path, *starting_point(holdings), args.keep_free)

        def cordon() -> None:
            problem = broker.run(
                set_cordoned(
                    broker.client.asynchronous,
                    node,
                    ",".join([*cordoned, path]),
                    lambda holdings: any(each.path == path and each.cordoned for each in holdings.directories),
                )
            )
            if problem is not None:
                output.note(problem)

        if path not in cordoned:
            output.note(f"{path} of node {node} to get no new replicas until it is taken out of {CORDONED}")
        done = f"no replica is left in {path} of node {node}: stop the node, take {path} out of log.dirs and start it"
        return _run(broker, args, held, plan, done, cordon=None if path in cordoned else cordon)


def _find_directory(held: Held, path: str) -> tuple[int, str]:
    wanted = posixpath.normpath(path)
    having = [node for node, holdings in held.items() if any(each.path == wanted for each in holdings.directories)]
    if not having:
        raise Failure(
            f"no node has a log directory {path}: `penstock logdir list` shows the log directories", Exit.NOT_FOUND
        )
    if len(having) > 1:
        nodes = ", ".join(map(str, having))
        raise Failure(f"nodes {nodes} have a log directory {path}: choose one with --node", Exit.USAGE)
    return having[0], wanted


def _plans(held: Held, plan: Callable[[Holdings], list[DirectoryMove]]) -> list[NodeMove]:
    from penstock.metadata.moves import PlanError

    try:
        return [(node, move) for node, holdings in held.items() for move in plan(holdings)]
    except PlanError as problem:
        raise Failure(str(problem), Exit.FAILED) from problem


def _run(
    broker: Broker,
    args: argparse.Namespace,
    held: Held,
    plan: Callable[[Holdings], list[DirectoryMove]],
    done: str,
    *,
    cordon: Callable[[], None] | None = None,
) -> int:
    """Shows a plan, asks for confirmation, and carries it out.

    `cordon` is called before the first move, and makes a directory refuse new replicas. Replicas that the directory got
    between the plan and this call are moved, too.
    """
    moves = _plans(held, plan)
    _show(args, moves)
    if args.dry_run:
        return Exit.OK
    if (moves or cordon is not None) and not args.yes:
        ask("go on?")
    if cordon is not None:
        cordon()
    if args.throttle and moves:
        broker.run(broker.directory_moves.throttle(args.throttle, held))
    failed = False
    try:
        wait(broker, held)  # moves that an earlier run or another operator began
        while moves and not failed:
            failed = _carry_out(broker, moves, args.at_once)
            moves = _plans(read_holdings(broker, list(held)), plan) if cordon is not None else []
    except KeyboardInterrupt:
        output.note("moves that have begun go on; the same command again waits for them and does the rest,")
        output.note("and `penstock logdir cancel` takes them back")
        raise
    if args.throttle:
        unthrottle(broker, held)
    output.note("some replicas could not be moved: run the command again when the cause is gone" if failed else done)
    return Exit.FAILED if failed else Exit.OK


def _show(args: argparse.Namespace, moves: Sequence[NodeMove]) -> None:
    rows = plan_rows(moves)
    shown = rows if args.output == "json" else [{**row, "bytes": readable(row["bytes"])} for row in rows]
    if moves or args.output == "json":
        output.rows(args.output, ["topic", "partition", "node", "from", "to", "bytes"], shown)
    if moves:
        total = readable(sum(move.size for _, move in moves))
        output.note(f"{output.counted(len(moves), 'replica')} to move ({total})")


def _carry_out(broker: Broker, moves: Sequence[NodeMove], at_once: int) -> bool:
    """Runs the moves, at most `at_once` per node at a time. Returns True if any move failed."""
    failed = False
    with output.Progress("moved", total=len(moves), unit="replicas") as progress:
        for step in broker.steps(broker.directory_moves.carry_out(moves, at_once)):
            failed |= note_step(step, progress)
    return failed


def note_step(step: Step, progress: output.Progress) -> bool:
    """Adds the moves that have ended to the progress, and prints the failures. Returns True if any move failed."""
    progress.add(step.ended)
    for sentence in step.failures:
        output.note(sentence)
    return bool(step.failures)


def wait(broker: Broker, nodes: Iterable[int]) -> None:
    """Waits until no replica of these nodes is being moved."""
    with output.Progress("moved", unit="replicas") as progress:
        for count in broker.steps(broker.directory_moves.wait(nodes)):
            progress.add(count)


def unthrottle(broker: Broker, nodes: Iterable[int]) -> None:
    for sentence in broker.run(broker.directory_moves.unthrottle(nodes)):
        output.note(sentence)
