"""`penstock quorum` describes the metadata quorum, changes its voters, makes its leader resign and writes snapshots."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.confirm import ask
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, verb
from penstock.cli.rest import rest, rest_options

if TYPE_CHECKING:
    from penstock.protocol.messages.api_55_describe_quorum import DescribeQuorumResponse


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    describe = verb(verbs, "describe", "show leader, epoch, voters and observers", run_describe)
    connection(describe)
    shown = describe.add_mutually_exclusive_group()
    shown.add_argument("--status", action="store_true", help="the quorum as a whole (default)")
    shown.add_argument("--replication", action="store_true", help="the log end offset of each voter and observer")

    add = verb(verbs, "add-voter", "let a controller that follows the quorum vote in it", run_add)
    connection(add)
    add.add_argument("node_id", type=int, metavar="NODE", help="its node.id; it has to be running")
    _which_disk(add)
    add.add_argument(
        "--listener",
        action="append",
        default=[],
        metavar="NAME://HOST:PORT",
        help="its address for other controllers (default: as registered, or from --config)",
    )

    remove = verb(verbs, "remove-voter", "take a controller's vote away", run_remove)
    connection(remove)
    remove.add_argument("node_id", type=int, metavar="NODE", help="its node.id")
    _which_disk(remove)

    resign = verb(verbs, "resign", "make the quorum's leader resign; another voter is elected", run_resign)
    rest_options(resign)
    resign.add_argument("-y", "--yes", action="store_true", help="don't ask")

    snapshot = verb(verbs, "snapshot", "write a snapshot of a node's metadata log now", run_snapshot)
    rest_options(snapshot)


def _which_disk(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory-id", metavar="ID", help="id of its metadata directory (default: as known to the quorum)"
    )
    parser.add_argument("-c", "--config", metavar="FILE", help="take directory and listeners from its properties file")


# --- describe -----------------------------------------------------------------------------------------------------


def run_describe(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        answer = broker.run(broker.cluster.describe_quorum())
        cluster_id = broker.run(broker.cluster.describe_brokers()).cluster_id
    if args.replication:
        columns = ["node_id", "status", "log_end_offset", "lag", "last_fetch_ms", "caught_up_ms", "directory_id"]
        output.rows(args.output, columns, replication(answer))
    else:
        output.record(args.output, status(answer, cluster_id))
    return Exit.OK


def replication(answer: DescribeQuorumResponse) -> list[dict[str, Any]]:
    from penstock.protocol.uuid import uuid_to_str

    part = answer.topics[0].partitions[0]
    told = [("voter", each) for each in part.current_voters] + [("observer", each) for each in part.observers]
    end = max((each.log_end_offset for _, each in told), default=0)
    leaders = [each for _, each in told if each.replica_id == part.leader_id]
    end = leaders[0].log_end_offset if leaders else end
    now = max((each.last_fetch_timestamp for _, each in told), default=-1)
    now = max(now, max((each.last_caught_up_timestamp for each in leaders), default=-1))
    rows = [
        {
            "node_id": each.replica_id,
            "status": "leader" if each.replica_id == part.leader_id else kind,
            "log_end_offset": each.log_end_offset,
            "lag": max(0, end - each.log_end_offset) if each.log_end_offset >= 0 else None,
            "last_fetch_ms": now - each.last_fetch_timestamp if each.last_fetch_timestamp >= 0 else None,
            "caught_up_ms": now - each.last_caught_up_timestamp if each.last_caught_up_timestamp >= 0 else None,
            "directory_id": uuid_to_str(each.replica_directory_id),
        }
        for kind, each in told
    ]
    order = {"leader": 0, "voter": 1, "observer": 2}
    return sorted(rows, key=lambda row: (order[str(row["status"])], row["node_id"]))


def status(answer: DescribeQuorumResponse, cluster_id: str) -> dict[str, Any]:
    part = answer.topics[0].partitions[0]
    rows = replication(answer)
    voters = [row for row in rows if row["status"] != "observer"]
    endpoints = {
        node.node_id: [f"{each.name}://{each.host}:{each.port}" for each in node.listeners] for node in answer.nodes
    }
    return {
        "cluster_id": cluster_id,
        "leader_id": part.leader_id,
        "leader_epoch": part.leader_epoch,
        "high_watermark": part.high_watermark,
        "max_follower_lag": max((row["lag"] for row in voters if row["lag"] is not None), default=0),
        "voters": [row["node_id"] for row in voters],
        "observers": [row["node_id"] for row in rows if row["status"] == "observer"],
        "endpoints": {node: " ".join(listed) for node, listed in sorted(endpoints.items())},
    }


# --- add, remove --------------------------------------------------------------------------------------------------


def run_add(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        answer = broker.run(broker.cluster.describe_quorum())
        cluster_id = broker.run(broker.cluster.describe_brokers()).cluster_id
        part = answer.topics[0].partitions[0]
        if any(each.replica_id == args.node_id for each in part.current_voters) and args.directory_id is None:
            raise Failure(f"node {args.node_id} is a voter already: there is nothing to add", Exit.EXISTS)
        directory = _directory(args, part.observers)
        known = next((node.listeners for node in answer.nodes if node.node_id == args.node_id), [])
        listeners = _listeners(args) or [(each.name, each.host, each.port) for each in known]
        if not listeners:
            sentence = f"the quorum doesn't know where node {args.node_id} listens: give --listener NAME://HOST:PORT"
            raise Failure(sentence, Exit.USAGE)
        broker.run(broker.cluster.add_voter(args.node_id, directory, listeners, cluster_id=cluster_id))
        after = broker.run(broker.cluster.describe_quorum())
    output.record(args.output, status(after, cluster_id))
    return Exit.OK


def run_remove(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        answer = broker.run(broker.cluster.describe_quorum())
        cluster_id = broker.run(broker.cluster.describe_brokers()).cluster_id
        voters = answer.topics[0].partitions[0].current_voters
        if all(each.replica_id != args.node_id for each in voters):
            raise Failure(
                f"node {args.node_id} is not a voter: `penstock quorum describe` shows the voters", Exit.NOT_FOUND
            )
        directory = _directory(args, voters)
        broker.run(broker.cluster.remove_voter(args.node_id, directory, cluster_id=cluster_id))
        after = broker.run(broker.cluster.describe_quorum())
    output.record(args.output, status(after, cluster_id))
    return Exit.OK


# --- resign, snapshot ---------------------------------------------------------------------------------------------


def run_resign(args: argparse.Namespace) -> int:
    node = rest(args)
    if not args.yes:
        ask(f"make the quorum's leader at {node.address} resign?")
    output.record(args.output, node.ask("POST", "/v1/cluster/force-election", {}, shape={"resigned": int}))
    return Exit.OK


def run_snapshot(args: argparse.Namespace) -> int:
    output.record(args.output, rest(args).ask("POST", "/v1/cluster/compact-log", {}, shape={"snapshot": object}))
    return Exit.OK


def _directory(args: argparse.Namespace, seen: Any) -> bytes:
    """Returns the id of a node's metadata directory.

    Takes the id from --directory-id, else from the directory of --config, else from the quorum's description.
    """
    from penstock.protocol.uuid import uuid_from_str

    if args.directory_id is not None:
        try:
            return uuid_from_str(args.directory_id)
        except ValueError as wrong:
            raise Failure(f"--directory-id {args.directory_id} is not a directory id: {wrong}", Exit.USAGE) from wrong
    if args.config is not None:
        return _directory_of(args.config)
    found = [each.replica_directory_id for each in seen if each.replica_id == args.node_id]
    if not found:
        sentence = f"node {args.node_id} doesn't follow the quorum: start it, and check its controller.quorum settings"
        raise Failure(sentence, Exit.NOT_FOUND)
    if len(found) > 1:
        sentence = f"node {args.node_id} was seen with {len(found)} disks: say with --directory-id which one"
        raise Failure(sentence, Exit.USAGE)
    identity: bytes = found[0]
    return identity


def _directory_of(path: str) -> bytes:
    from penstock.cli.properties import read_settings
    from penstock.disk.real import RealDisk
    from penstock.node.storage import StorageError, read_meta_properties

    settings = read_settings(path)
    where = os.path.abspath(settings.optional_str("metadata.log.dir") or settings.log_dirs[0])
    try:
        properties = read_meta_properties(RealDisk(), where)
    except StorageError as problem:
        raise Failure(str(problem), Exit.STORAGE) from problem
    if properties is None or properties.directory_id is None:
        raise Failure(f"{where} is not formatted: run penstock storage format first", Exit.STORAGE)
    return properties.directory_id


def _listeners(args: argparse.Namespace) -> list[tuple[str, str, int]]:
    from penstock.node.listeners import ListenerError, parse_listeners, plan_listeners

    try:
        if args.listener:
            return [(each.name, each.host, each.port) for each in parse_listeners("--listener", args.listener)]
        if args.config is not None:
            from penstock.cli.properties import read_settings

            plans = plan_listeners(read_settings(args.config))
            return [
                (plan.name, plan.advertised_host, plan.advertised_port or plan.port)
                for plan in plans
                if plan.controller
            ]
    except ListenerError as problem:
        raise Failure(str(problem), Exit.USAGE) from problem
    return []
