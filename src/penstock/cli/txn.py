"""`penstock txn` lists and describes transactions, and aborts transactions that no coordinator will end.

A transaction hangs if it is open in a partition and no coordinator knows it: the last stable offset does not advance,
so every read_committed consumer waits. `hanging` finds such partitions, `abort` writes the missing marker. Any Kafka
broker serves the requests used here.
"""

from __future__ import annotations

import argparse

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, duration, verb
from penstock.cli.parser import listed
from penstock.client.transaction_admin import ONGOING, state_row
from penstock.protocol.errors import ErrorCode, KafkaError

DEFAULT_MAX_AGE = "15m"  # the default of transaction.max.timeout.ms, the longest that a transaction may last


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    listing = verb(verbs, "list", "list transactional ids", run_list)
    connection(listing)
    listing.add_argument("--state", action="append", default=[], help="Empty, Ongoing, PrepareCommit, … (repeatable)")
    listing.add_argument("--producer-id", type=int, action="append", default=[], help="repeatable")
    listing.add_argument("--longer-than", type=duration, default=-1, metavar="15m", help="open for longer than this")

    describe = verb(verbs, "describe", "show state, producer, age and partitions of transactional ids", run_describe)
    connection(describe)
    describe.add_argument("ids", nargs="+", metavar="TRANSACTIONAL_ID")

    terminate = verb(
        verbs,
        "terminate",
        "abort the open transactions of transactional ids, prepared or not, and fence their producers",
        run_terminate,
    )
    connection(terminate)
    terminate.add_argument("ids", nargs="+", metavar="TRANSACTIONAL_ID")

    hanging = verb(verbs, "hanging", "find transactions that no coordinator will end", run_hanging)
    connection(hanging)
    hanging.add_argument("topics", nargs="*", metavar="TOPIC", help="default: all")
    hanging.add_argument(
        "--max-age",
        type=duration,
        default=DEFAULT_MAX_AGE,
        metavar=DEFAULT_MAX_AGE,
        help="minimum age of a hanging transaction; not below the brokers' transaction.max.timeout.ms",
    )

    abort = verb(
        verbs, "abort", "end a hanging transaction on one partition; its records are never committed", run_abort
    )
    connection(abort)
    abort.add_argument("topic", metavar="TOPIC")
    abort.add_argument("partition", type=int, metavar="PARTITION")
    abort.add_argument(
        "--start-offset", type=int, required=True, help="first offset of the transaction, as `hanging` shows"
    )


# --- list, describe -----------------------------------------------------------------------------------------------


def run_list(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, refusals
    from penstock.transactions.states import LABELS

    with connect(args) as broker, refusals():
        try:
            found = broker.client.run(broker.transactions.list_ids(args.state, args.producer_id, args.longer_than))
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_REQUEST:
                raise
            raise Failure(f"{error.message}: use {listed(LABELS.values())}", Exit.USAGE) from error
    columns = ["transactional_id", "state", "producer_id", "coordinator"]
    output.rows(args.output, columns, found, empty="no transactions")
    return Exit.OK


def run_describe(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome

    rows, failures = [], []
    with connect(args) as broker:
        for name in args.ids:
            try:
                state, node = broker.client.run(broker.transactions.describe(name))
            except KafkaError as error:
                failures.append((name, int(error.code), None))
                continue
            rows.append(state_row(state, node, _now_ms()))
    columns = ["transactional_id", "state", "producer_id", "producer_epoch", "timeout_ms", "two_phase", "age_ms"]
    return outcome(args.output, [*columns, "coordinator", "partitions"], rows, failures)


# --- terminate ----------------------------------------------------------------------------------------------------


def run_terminate(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome

    rows, failures = [], []
    with connect(args) as broker:
        for name in args.ids:
            try:
                before = broker.client.run(broker.transactions.terminate(name))
            except KafkaError as error:
                failures.append((name, int(error.code), None))
                continue
            result = "aborted" if before == ONGOING else "nothing was open"
            rows.append({"transactional_id": name, "state": before, "result": result})
    return outcome(args.output, ["transactional_id", "state", "result"], rows, failures)


# --- hanging, abort -----------------------------------------------------------------------------------------------


def run_hanging(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    now_ms = _now_ms()
    with connect(args) as broker:
        found, unread = broker.run(broker.transactions.hanging(args.topics, args.max_age, now_ms))
    for (topic, index), reason in unread.items():
        output.note(f"penstock: {topic}-{index}: {reason}")
    columns = ["topic", "partition", "start_offset", "producer_id", "producer_epoch", "age_ms"]
    output.rows(args.output, columns, [each.row(now_ms) for each in found], empty="no hanging transactions")
    return Exit.OK


def run_abort(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome

    with connect(args) as broker:
        try:
            found = broker.run(broker.transactions.abort((args.topic, args.partition), args.start_offset))
        except Failure as failure:
            if failure.code is not Exit.NOT_FOUND:
                raise
            remedy = f"`penstock txn hanging {args.topic}` shows the open transactions"
            raise Failure(f"{failure.message}: {remedy}", Exit.NOT_FOUND) from failure
    row = {"topic": args.topic, "partition": args.partition, "producer_id": found.producer_id, "result": "aborted"}
    return outcome(args.output, list(row), [row], [])


def _now_ms() -> int:
    from penstock.node.clock import SystemClock

    return SystemClock().wall_ms()
