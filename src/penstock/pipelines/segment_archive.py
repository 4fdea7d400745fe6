"""Archives the sealed segments of a topic, with one task for each partition.

The archive consists of pieces: a piece is a file of consecutive batches of one partition, and is written once. If a
task can read the partition's directory, a piece is a copy of a segment file. Otherwise the task fetches the batches
from the broker, and a piece ends when it has the size of a segment. Only batches below the last stable offset are
archived; readers leave out aborted transactions. Records wait until their segment is sealed, unless they are so old
that retention might delete them first. A reader of archive and topic (`archive.read_with_archive`) reads the archive
first, and then continues in the topic.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.client.fetched import visible_batches
from penstock.client.sync import Client
from penstock.pipelines.segments import Batch, Catalog, Spool, Written, catalog, describe
from penstock.pipelines.spread import spread
from penstock.pipelines.stores import Place, place_for
from penstock.pipelines.topics import Topic
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import uuid_to_str
from penstock.protocol.vocabulary import ResourceType
from penstock.records.batches import iter_batches
from penstock.spark.brokers import connect
from penstock.spark.errors import SourceError, in_one_sentence, sentence_of
from penstock.spark.files import portions, snapshot_of
from penstock.spark.options import SourceOptions, parse_options
from penstock.spark.planner import Planner, ReadTask
from penstock.spark.tasks import after_loss, directory_of, wire_reader


@dataclass(frozen=True, slots=True)
class Limits:
    segment_bytes: int
    """Size at which a piece that is fetched from the broker ends."""
    due_before_ms: int
    """A piece (a file of the archive) whose first batch is older than this time is archived, even if its segment is not
    sealed."""
    everything: bool
    """True if all committed records are archived, even those in segments that are not sealed."""

    def takes(self, oldest_ms: int | None) -> bool:
        """Returns True if the batches of an unsealed segment have to be archived now.

        This is so if the job archives all records, or if the first batch is older than `due_before_ms`. `oldest_ms` is
        the timestamp of the first batch; None if there is no batch.
        """
        return self.everything or (oldest_ms is not None and oldest_ms < self.due_before_ms)


@dataclass(frozen=True, slots=True)
class PartitionJob:
    task: ReadTask
    options: SourceOptions
    place: Place
    limits: Limits


@dataclass(frozen=True, slots=True)
class Chunk:
    """Holds consecutive batches of a partition, with the same bytes as in the log."""

    batches: Sequence[Batch]
    hidden: Sequence[int]
    """First offsets of batches that belong to aborted transactions."""
    start: int
    after: int
    sealed: bool = False
    """True if a segment ends after this chunk."""
    on_wire: bool = False
    unwanted: bool = False
    """True if this chunk and all chunks after it are left to a later run."""


def archive_segments(spark: Any, topic: Topic, path: str, *, everything: bool = False) -> list[Written]:
    """Archives the segments of a topic, and returns the pieces (archive files) that this call wrote.

    Raises SourceError.
    """
    place = place_for(spark, path)
    jobs = plan(topic, place, everything=everything, now_ms=time.time_ns() // 1_000_000)
    return [each for found in spread(spark, jobs, archive_partition) for each in found]


def plan(topic: Topic, place: Place, *, everything: bool, now_ms: int) -> list[PartitionJob]:
    options = parse_options(topic.reader_options(**{"kafka.isolation.level": "read_committed"}))
    store = place.open()
    known = catalog(store, topic.name)
    with connect(options) as client:
        planner = Planner(client, options)
        wanted = planner.partitions()
        topic_id = uuid_to_str(client.cluster.topic_id(topic.name))
        _same_topic(known, topic_id, place)
        if known is None or len(known.parts) < len(wanted):
            describe(store, topic.name, topic_id, len(wanted))
        first, last = planner.earliest(wanted), planner.latest(wanted)
        hints = planner.file_hints(wanted)
        limits = _limits(client, topic.name, everything, now_ms)
    jobs = []
    for key in wanted:
        start, begun = _start(known, key, first[key], last[key], planner)
        if start < last[key]:
            # Records that were deleted before the archive existed do not count as data loss.
            lenient = options if begun else replace(options, fail_on_data_loss=False)
            jobs.append(PartitionJob(ReadTask(*key, start, last[key], hints.get(key)), lenient, place, limits))
    return jobs


def _same_topic(known: Catalog | None, topic_id: str, place: Place) -> None:
    if known is not None and known.topic_id != topic_id:
        raise SourceError(
            f"{place.uri} has the archive of a deleted topic that was also named {known.topic}: archive the new topic "
            "at another address."
        )


def _start(known: Catalog | None, key: tuple[str, int], first: int, last: int, planner: Planner) -> tuple[int, bool]:
    """Returns the offset at which the archive has to continue, and True if it already has records of the partition.

    Raises SourceError if the partition ends before the end of the archive. Reports data loss if records were deleted
    before they were archived.
    """
    end = known.end(key[1]) if known is not None else None
    if end is None:
        return first, False
    name = f"{key[0]}-{key[1]}"
    if last < end:
        raise SourceError(
            f"{name} ends at {last}, but its archive ends at {end}: the topic lost records, or is not the archived "
            "topic. Archive this topic at another address."
        )
    if first > end:
        planner.data_loss(f"{name} begins at {first}, but its archive ends at {end}; the records between were deleted")
    return max(first, end), True


def _limits(client: Client, name: str, everything: bool, now_ms: int) -> Limits:
    keys = ("segment.bytes", "segment.ms", "retention.ms")
    with in_one_sentence(f"The configs of topic {name!r} could not be read"):
        found = client.describe_configs(ResourceType.TOPIC, name, keys=keys)
    values = {each.name: int(each.value) for each in found if each.value is not None}
    ages = [values.get("segment.ms", 7 * 86_400_000)]
    if values.get("retention.ms", -1) >= 0:
        ages.append(values["retention.ms"] // 2)  # half, so that a run can archive records before they expire
    return Limits(values.get("segment.bytes", 1 << 30), now_ms - min(ages), everything)


# --- a task ---------------------------------------------------------------------------------------------------------


def archive_partition(job: PartitionJob) -> list[Written]:
    task, limits = job.task, job.limits
    written: list[Written] = []

    def spool_from(offset: int) -> Spool:
        return Spool(task.topic, task.partition, offset)

    at = task.start
    spool = spool_from(at)
    try:
        for chunk in _chunks(job):
            if chunk.start > at:  # the records between were deleted, and failOnDataLoss=false allows it
                if spool.bytes:
                    written.append(spool.publish(job.place, at))
                spool.close()
                spool = spool_from(chunk.start)
            spool.take(chunk.batches, chunk.hidden)
            at = chunk.after
            if chunk.sealed or (chunk.on_wire and spool.bytes >= limits.segment_bytes):
                written.append(spool.publish(job.place, at))
                spool.close()
                spool = spool_from(at)
        if spool.first < task.end and limits.takes(
            limits.due_before_ms if spool.oldest_ms is None else spool.oldest_ms
        ):
            written.append(spool.publish(job.place, task.end))
    except KafkaError as error:
        raise SourceError(f"{task.topic}-{task.partition} could not be archived: {sentence_of(error)}") from None
    finally:
        spool.close()
    return written


def _chunks(job: PartitionJob) -> Iterator[Chunk]:
    """Yields the partition's batches in chunks: from segment files as far as possible, then from the broker."""
    position = job.task.start
    for chunk in _from_files(job):
        if chunk.unwanted:
            return
        yield chunk
        position = chunk.after
    if position < job.task.end:
        yield from _from_wire(job, position)


def _from_files(job: PartitionJob) -> Iterator[Chunk]:
    task = job.task
    directory = directory_of(job.options, task)
    if directory is None:
        return
    with snapshot_of(directory, task.start, task.end, True) as snapshot:
        position = task.start
        for segment in snapshot.segments:
            sealed = segment.end is not None and segment.end <= task.end
            for portion in portions(segment, position):
                first = max(portion.first, position)
                aborted = [a for a in snapshot.aborted if a.last_offset >= first and a.first_offset <= portion.last]
                try:
                    chunk = _chunk(portion.view, position, task.end, aborted)
                except KafkaError:  # corrupt file: the fetch from the broker reports the error
                    return
                if not sealed and chunk.batches and not job.limits.takes(chunk.batches[0][0].max_timestamp):
                    yield replace(chunk, unwanted=True)
                yield chunk
                position = chunk.after
            if segment.end is None or not sealed or not segment.whole:
                return
            yield Chunk((), (), position, segment.end, sealed=True)
            position = segment.end


def _from_wire(job: PartitionJob, position: int) -> Iterator[Chunk]:
    task, options = job.task, job.options
    with connect(options) as client:
        while position < task.end:
            reader = wire_reader(client, options, task, position)
            try:
                data, _ = client.run(reader.answer(position))
            except KafkaError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                position = after_loss(client, options, task, position)
                continue
            view = memoryview(data.records or b"")
            chunk = _chunk(view, position, task.end, data.aborted_transactions or (), on_wire=True)
            yield chunk
            position = chunk.after


def _chunk(view: memoryview, start: int, end: int, aborted: Sequence[Any], *, on_wire: bool = False) -> Chunk:
    """Returns the batches in `view` with offsets from `start` to `end` - 1. Raises KafkaError if a batch is corrupt."""
    visible, *_ = visible_batches(view, start, aborted=aborted)
    seen = {header.base_offset for header, _ in visible}
    batches = [
        (header, batch)
        for header, batch in iter_batches(view, allow_partial=True)
        if header.next_offset > start and header.base_offset < end
    ]
    hidden = [header.base_offset for header, _ in batches if not header.is_control and header.base_offset not in seen]
    after = batches[-1][0].next_offset if batches else start
    return Chunk(batches, hidden, start, after, on_wire=on_wire)
