"""Runs the built-in pipelines: `penstock pipeline table | backfill | repartition | mirror | archive | report`."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, positive_int32, verb
from penstock.cli.pipeline_session import (
    client_options,
    follow,
    pace,
    progress_lines,
    reached,
    spark_options,
    spark_session,
    stream_options,
    topic,
    topic_options,
)

if TYPE_CHECKING:
    from penstock.pipelines.topics import Topic


def configure(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    table = verb(verbs, "table", "keep a Delta or Parquet table current with a topic", run_table)
    stream_options(table)
    table.add_argument("topic", metavar="TOPIC")
    table.add_argument("path", metavar="TABLE", help="a directory or an address that Spark can write to")
    table.add_argument("--format", choices=("delta", "parquet"), default="delta", help="default: %(default)s")
    table.add_argument("--mode", choices=("append", "upsert"), default="append", help="a row per record, or per key")
    table.add_argument("--key", action="append", default=[], metavar="FIELD", help="upsert by it (default: the key)")
    table.add_argument("--partition-by", action="append", default=[], metavar="COLUMN")
    table.add_argument(
        "--value-format", choices=("json", "avro", "protobuf", "csv", "string", "binary"), default="json"
    )
    table.add_argument(
        "--value-schema", metavar="DDL", help="default: found in the values, and grown with them (Delta)"
    )
    table.add_argument("--checkpoint", metavar="DIR", help="default: TABLE.checkpoint")
    table.add_argument(
        "--optimize-every", type=int, default=20, metavar="N", help="batches between compactions; 0: never"
    )

    back = verb(verbs, "backfill", "write a table to a topic, as it is or was", run_backfill)
    connection(back)
    spark_options(back)
    back.add_argument("path", metavar="TABLE")
    back.add_argument("topic", metavar="TOPIC", help="created if it does not exist")
    back.add_argument(
        "-p", "--partitions", type=positive_int32, help="partitions of a created topic (default: as needed)"
    )
    back.add_argument("--format", choices=("delta", "parquet", "archive"), default="delta", help="default: %(default)s")
    back.add_argument("--archived", metavar="NAME", help="the topic that the archive is of (default: TOPIC)")
    back.add_argument("--key", metavar="COLUMN", help="default: _key")
    back.add_argument("--until", metavar="TIME", help="only records up to this timestamp, such as 2026-01-31 12:00:00")
    back.add_argument("--as-of", metavar="VERSION|TIME", help="a Delta table as it was")
    back.add_argument("--where", metavar="SQL", help="only rows that meet this condition")
    back.add_argument("--same-partitions", action="store_true", help="records go to the partitions they came from")
    back.add_argument("--at-least-once", action="store_true", help="without transactions: a retried task writes again")
    back.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the sink")

    again = verb(verbs, "repartition", "copy a topic to one with other partitions or keys, in order per key", run_copy)
    _copying(again, "TARGET", "made with --partitions if it is not there")
    again.add_argument("-p", "--partitions", type=positive_int32, help="of the target (default: the source's)")
    again.add_argument("--key", metavar="SQL", help="a new key, such as \"get_json_object(value, '$.user')\"")

    mirror = verb(verbs, "mirror", "copy a topic from any Kafka cluster, with offsets mapped", run_mirror)
    _copying(mirror, "TARGET", "default: the same name", optional=True)
    mirror.add_argument("--from", dest="source", required=True, metavar="HOST:PORT", help="the cluster to copy from")
    mirror.add_argument(
        "--from-config",
        metavar="FILE",
        help="client properties for --from, as --command-config is for --bootstrap",
    )
    mirror.add_argument(
        "--target-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the sink, such as kafka.*; --option is for the source",
    )
    mirror.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="GROUP",
        help="afterwards, translate this group's offsets to the target",
    )

    archive = verb(verbs, "archive", "keep a topic's records for longer than the topic does", run_archive)
    stream_options(archive)
    archive.add_argument("topic", metavar="TOPIC")
    archive.add_argument("path", metavar="DIR", help="a directory or an address that Spark can write to")
    archive.add_argument("--checkpoint", metavar="DIR", help="default: DIR.checkpoint")
    archive.add_argument(
        "--segments", action="store_true", help="sealed segments, byte for byte, instead of Parquet files of records"
    )
    archive.add_argument(
        "--all", action="store_true", help="with --segments: also committed records that are not in a sealed segment"
    )

    report = verb(verbs, "report", "report on topics: sizes, keys, skew, fields, duplicates, gaps", run_report)
    connection(report)
    spark_options(report)
    report.add_argument("topics", nargs="*", metavar="TOPIC", help="default: all that are not internal")
    report.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the source")
    report.add_argument("--html", default="report.html", metavar="FILE", help="default: %(default)s")


def _copying(parser: argparse.ArgumentParser, target: str, summary: str, *, optional: bool = False) -> None:
    stream_options(parser)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("target", metavar=target, nargs="?" if optional else None, help=summary)
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="where Spark stores its progress")
    parser.add_argument(
        "--at-least-once", action="store_true", help="for target brokers without transactions of two phases"
    )


def run_table(args: argparse.Namespace) -> int:
    from penstock.pipelines.table import TableJob, keep_current
    from penstock.spark.errors import SourceError

    job = TableJob(
        topic(args, args.topic),
        args.path,
        format=args.format,
        mode=args.mode,
        keys=tuple(args.key),
        partition_by=tuple(args.partition_by),
        value_format=args.value_format,
        value_schema=args.value_schema,
        checkpoint=args.checkpoint,
        optimize_every=args.optimize_every,
        pace=pace(args),
    )
    try:
        job.check()
    except SourceError as problem:
        raise Failure(str(problem).rstrip("."), Exit.USAGE) from problem
    with spark_session(args, f"table {args.topic}", delta=args.format == "delta") as spark:
        spec = f"{args.topic} → {args.path}"
        name, clusters = f"table-{args.topic}", [job.topic.cluster_id]
        return follow(spark, name, spec, lambda until: keep_current(spark, job, until=until), clusters=clusters)


def run_backfill(args: argparse.Namespace) -> int:
    from penstock.pipelines.backfill import Backfill, BackfillJob
    from penstock.pipelines.topics import Topic
    from penstock.pipelines.watching import told

    target = Topic(args.bootstrap, args.topic, topic_options(args.command_config, args.option))
    with reached(args, target):  # Spark takes seconds to start; an unreachable broker should be reported before
        pass
    job = BackfillJob(
        args.path,
        target,
        format=args.format,
        archived=args.archived,
        key=args.key,
        until=args.until,
        as_of=args.as_of,
        where=args.where,
        same_partitions=args.same_partitions,
        partitions=args.partitions,
        exactly_once=not args.at_least_once,
    )
    with spark_session(args, f"backfill {args.topic}", delta=args.format == "delta") as spark:
        work = Backfill(spark, job)
        total = work.total()
        with progress_lines(lambda seconds: told(f"backfill {args.topic}", work.written(), total, "records", seconds)):
            written = work.run()
    output.record(args.output, {"topic": args.topic, "records": written})
    return Exit.OK


def run_copy(args: argparse.Namespace) -> int:
    from penstock.pipelines.copying import CopyJob, start_repartition
    from penstock.pipelines.running import run
    from penstock.pipelines.topics import Topic

    source = topic(args, args.topic)
    if args.topic == args.target:
        raise Failure("source and target are the same topic: give the target another name", Exit.USAGE)
    job = CopyJob(
        source,
        Topic(args.bootstrap, args.target, client_options(source.options)),
        args.checkpoint,
        partitions=args.partitions,
        key=args.key,
        exactly_once=not args.at_least_once,
        pace=pace(args),
    )
    with spark_session(args, f"repartition {args.topic}") as spark:
        spec = f"{args.topic} → {args.target}"
        start = partial(start_repartition, spark, job)
        name, clusters = f"repartition-{args.topic}", [source.cluster_id]
        return follow(spark, name, spec, lambda until: run(start, until=until), clusters=clusters)


def run_mirror(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from penstock.pipelines.copying import CopyJob, start_mirror
    from penstock.pipelines.running import run
    from penstock.pipelines.topics import Topic

    source = topic(args, args.topic, args.source, args.from_config)
    options = topic_options(args.command_config, args.target_option, "--target-option")
    target = Topic(args.bootstrap, args.target or args.topic, options)
    with reached(args, target) as here:
        here.topics([])  # the target must be reachable, too
        target = replace(target, cluster_id=here.cluster_id)
    same = source.bootstrap == target.bootstrap or (source.cluster_id and source.cluster_id == target.cluster_id)
    if same and source.name == target.name:
        raise Failure("--from and --bootstrap are the same cluster: give the target topic another name", Exit.USAGE)
    job = CopyJob(source, target, args.checkpoint, exactly_once=not args.at_least_once, pace=pace(args))
    with spark_session(args, f"mirror {args.topic}") as spark:
        spec = f"{args.source} {source.name} → {target.name}"
        start = partial(start_mirror, spark, job)
        name, clusters = f"mirror-{args.topic}", [source.cluster_id, target.cluster_id]
        code = follow(spark, name, spec, lambda until: run(start, until=until), clusters=clusters)
        for group in args.group:
            _translate(args, spark, group, source, target)
    return code


def _translate(args: argparse.Namespace, spark: Any, group: str, source: Topic, target: Topic) -> None:
    from penstock.cli.group_offsets import committed
    from penstock.pipelines.copying import translate
    from penstock.spark.commits import commit_offsets

    with reached(args, source) as there:
        known = {index: offset for (name, index), offset in committed(there, group).items() if name == args.topic}
    if not known:
        output.note(f"group {group} has no offsets of {args.topic} at {args.source}")
        return
    found = translate(spark, target, known)
    with reached(args, target) as here:
        commit_offsets(here.client, group, found)
    rows = [
        {"group": group, "partition": index, "there": known[index], "here": offset}
        for (_, index), offset in sorted(found.items())
    ]
    output.rows(args.output, ("group", "partition", "there", "here"), rows)


def run_archive(args: argparse.Namespace) -> int:
    from penstock.pipelines.archive import start_archive
    from penstock.pipelines.running import run

    if args.segments:
        return _archive_segments(args)
    if args.all:
        raise Failure("--all needs --segments: without --segments, all committed records are archived", Exit.USAGE)
    source = topic(args, args.topic)
    with spark_session(args, f"archive {args.topic}") as spark:
        start = partial(start_archive, spark, source, args.path, checkpoint=args.checkpoint, pace=pace(args))
        spec = f"{args.topic} → {args.path}"
        name, clusters = f"archive-{args.topic}", [source.cluster_id]
        return follow(spark, name, spec, lambda until: run(start, until=until), clusters=clusters)


def _archive_segments(args: argparse.Namespace) -> int:
    from penstock.pipelines.segment_archive import archive_segments
    from penstock.pipelines.watching import told, watched

    if args.follow or args.checkpoint:
        raise Failure(
            "--segments archives the segments that are sealed now: leave --follow and --checkpoint out, and run the "
            "command again for later segments",
            Exit.USAGE,
        )
    source = topic(args, args.topic)

    def line(seconds: float) -> str:
        work = watch.look()
        return told(f"archive {args.topic}", work.tasks, work.all_tasks, "partitions", seconds)

    with spark_session(args, f"archive {args.topic}") as spark, watched(spark) as watch, progress_lines(line):
        found = archive_segments(spark, source, args.path, everything=args.all)
    columns = ("partition", "first_offset", "last_offset", "records", "bytes")
    rows = [
        {
            "partition": each.partition,
            "first_offset": each.first,
            "last_offset": each.end - 1,
            "records": each.records,
            "bytes": each.bytes,
        }
        for each in found
    ]
    output.rows(args.output, columns, rows, empty="nothing new is sealed")
    return Exit.OK


def run_report(args: argparse.Namespace) -> int:
    from penstock.pipelines.report import PASSES, examine
    from penstock.pipelines.report_page import page
    from penstock.pipelines.topics import Topic, bounds
    from penstock.pipelines.watching import told, watched

    options = topic_options(args.command_config, args.option)
    with reached(args, Topic(args.bootstrap, "", options)) as broker:
        known = broker.existing(args.topics or None)
    # Leaves out the topics in which Penstock keeps the decisions of Spark queries.
    names = [each.name for each in known if each.name and not each.is_internal and not each.name.startswith("__")]
    if not names:
        raise Failure("the cluster has no topics to report on: create one with `penstock topic create`", Exit.NOT_FOUND)
    topics = [Topic(args.bootstrap, name, options) for name in names]
    # Opened before the long work, to fail early; not truncated, to keep the old report until the new one is ready.
    try:
        file = open(args.html, "a", encoding="utf-8")  # noqa: SIM115 (closed below)
    except OSError as problem:
        raise Failure(
            f"{args.html} can't be written: {problem.strerror}: name another file with --html", Exit.STORAGE
        ) from problem
    with file:
        with spark_session(args, "report") as spark, watched(spark) as watch:
            total = sum(end - first for each in topics for first, end in bounds(each).values())

            def line(seconds: float) -> str:
                read = min(watch.look().records_read // PASSES, total)
                return told("report", read, total, "records", seconds)

            with progress_lines(line):
                found = examine(spark, topics)
        file.truncate(0)
        file.write(page(f"Topics of {args.bootstrap}", found))
    columns = ("topic", "partitions", "records", "bytes", "skew", "duplicates", "gaps")
    rows = [
        {
            "topic": each.topic,
            "partitions": len(each.partitions),
            "records": each.records,
            "bytes": each.bytes,
            "skew": round(each.skew, 2),
            "duplicates": each.duplicates,
            "gaps": sum(part.gaps for part in each.partitions),
        }
        for each in found
    ]
    output.rows(args.output, columns, rows)
    output.note(f"the full report is in {args.html}")
    return Exit.OK
