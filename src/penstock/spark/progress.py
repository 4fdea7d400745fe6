"""Reports the progress of queries: rows, rate, batch time and lag, computed from Spark's own progress events.

    watcher = watch(spark)                     # or watch(spark, on_progress=print)
    watcher.queries["…"].lag
    watch(spark, publish="my-job")             # for `penstock pipeline list`, and brokers' consoles and metrics

    with_metrics(query.lastProgress)           # minOffsetsBehindLatest and so on, as Spark's own Kafka source has them

Python sources can't report metrics or a description to Spark, so both are computed here: the lag is the source's latest
offset minus the end offset of the batch.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock import runs
from penstock.protocol.vocabulary import TopicPartition
from penstock.spark.continuity import StreamOffset

#: Number of ended queries whose state is kept.
MAX_ENDED = 100


@dataclass(frozen=True, slots=True)
class QueryState:
    query_id: str
    name: str | None
    batch_id: int
    rows: int
    """Number of rows in the last batch."""
    total_rows: int
    """Number of rows since this watcher first saw the query."""
    rows_per_second: float
    batch_ms: int
    lag: int
    """Number of offsets not read yet, summed over all partitions."""
    lags: Mapping[TopicPartition, int] = field(default_factory=dict)
    description: str = ""
    """The topics that the query reads."""
    topic_ids: tuple[str, ...] = ()
    """Ids of the topics that the query reads; empty if the brokers have no topic ids."""
    running: bool = True
    problem: str | None = None

    def __str__(self) -> str:
        label = self.name or self.query_id[:8]
        if self.problem:
            return f"{label}: stopped, {self.problem}"
        speed = f"{self.rows:,} rows in {self.batch_ms:,} ms, {self.rows_per_second:,.0f} rows/s"
        return f"{label}: batch {self.batch_id}, {speed}, lag {self.lag:,}"


def state_of(progress: Mapping[str, Any], before: QueryState | None = None) -> QueryState:
    """Returns the state of a query after the progress event `progress`. `before` is the state before the event."""
    lags: dict[TopicPartition, int] = {}
    topic_ids: set[str] = set()
    descriptions = []
    for source in progress.get("sources", ()):
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        topic_ids.update(end.topic_ids.values(), latest.topic_ids.values())
        descriptions += [_description(end, latest)] if end.offsets or latest.offsets else []
        for partition, lag in _behind(end, latest).items():
            lags[partition] = lags.get(partition, 0) + lag
    rows = int(progress.get("numInputRows", 0))
    return QueryState(
        query_id=str(progress["id"]),
        name=progress.get("name"),
        batch_id=int(progress.get("batchId", -1)),
        rows=rows,
        total_rows=rows + (before.total_rows if before is not None else 0),
        rows_per_second=float(progress.get("processedRowsPerSecond") or 0.0),
        batch_ms=int(progress.get("batchDuration") or progress.get("durationMs", {}).get("triggerExecution", 0)),
        lag=sum(lags.values()),
        lags=lags,
        description=", ".join(descriptions),
        topic_ids=tuple(sorted(topic_ids)),
    )


def with_metrics(progress: Mapping[str, Any] | Any) -> dict[str, Any]:
    """Returns a query's progress, with `metrics` and `description` added to each source that reads topics.

    The metrics have the same names as in Spark's own Kafka source. `progress` is `query.lastProgress`, an element of
    `query.recentProgress`, or its parsed JSON.
    """
    told = dict(progress) if isinstance(progress, Mapping) else json.loads(progress.json)
    return told | {"sources": [_with_metrics(source) for source in told.get("sources", ())]}


def _with_metrics(source: Mapping[str, Any]) -> dict[str, Any]:
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if not end.offsets and not latest.offsets:
        return dict(source)
    behind = _behind(end, latest).values()
    metrics = {}
    if behind:
        metrics = {
            "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
            "maxOffsetsBehindLatest": str(max(behind)),
            "minOffsetsBehindLatest": str(min(behind)),
        }
    return {**source, "description": _description(end, latest), "metrics": metrics}


def _behind(end: StreamOffset, latest: StreamOffset) -> dict[TopicPartition, int]:
    """Returns the number of unread offsets of each partition."""
    return {each: max(0, offset - end.offsets.get(each, 0)) for each, offset in latest.offsets.items()}


def _description(*offsets: StreamOffset) -> str:
    topics = sorted({topic for each in offsets for topic, _ in each.offsets})
    return f"penstock[{', '.join(topics)}]"


def _offsets(given: Any) -> StreamOffset:
    """Parses a source's offset. Returns an empty StreamOffset if the source reads no topics."""
    try:
        return StreamOffset.from_json(json.loads(given) if isinstance(given, str) else given)
    except (AttributeError, TypeError, ValueError):
        return StreamOffset()


class QueryWatcher(StreamingQueryListener):
    """Keeps the state of each query of a session.

    Spark calls the watcher in a separate thread. Each event replaces the dict `queries`, and no event changes the old
    dict, so any thread can read it at any time.
    """

    def __init__(self, on_progress: Callable[[QueryState], object] | None = None) -> None:
        self.queries: dict[str, QueryState] = {}
        self._on_progress = on_progress

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        progress = json.loads(event.progress.json)
        self._keep(state_of(progress, self.queries.get(str(progress["id"]))))

    def onQueryTerminated(self, event: Any) -> None:
        known = self.queries.get(str(event.id))
        if known is not None:
            self._keep(_ended(known, event.exception))

    def _keep(self, state: QueryState) -> None:
        queries = {**self.queries, state.query_id: state}
        ended = [each for each, known in queries.items() if not known.running]
        for each in ended[: max(0, len(ended) - MAX_ENDED)]:
            del queries[each]
        self.queries = queries
        if self._on_progress is not None:
            self._on_progress(state)


def _ended(known: QueryState, exception: str | None) -> QueryState:
    from dataclasses import replace

    return replace(known, running=False, problem=sentence_in(exception) if exception else None)


def _published(name: str, then: Callable[[QueryState], object] | None) -> Callable[[QueryState], None]:
    if runs.NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not a valid name to publish: use letters, digits, '.', '_' and '-'")
    recording = runs.Recording(runs.begin(runs.free_name(name), "watch"))
    recording.__enter__()
    atexit.register(recording.note, state="done")

    def progressed(state: QueryState) -> None:
        recording.progressed(state.query_id, figures(state), str(state))
        if then is not None:
            then(state)

    return progressed


def sentence_in(exception: str) -> str:
    """Returns the message of the SourceError in an error text of Spark, or the first line if there is none."""
    marker = "SourceError: "
    for line in exception.splitlines():
        if marker in line:
            return line.rpartition(marker)[2].strip()
    return exception.splitlines()[0] if exception else ""


def figures(state: QueryState) -> runs.Query:
    """Converts the state of a query to the form in which `runs` stores it."""
    return runs.Query(
        name=state.name or state.query_id[:8],
        running=state.running,
        batch=max(0, state.batch_id),
        rows=state.rows,
        total_rows=state.total_rows,
        rows_per_second=state.rows_per_second,
        batch_ms=state.batch_ms,
        lag=state.lag,
        topic_ids=state.topic_ids[: runs.MAX_IDS],
    )


def watch(
    spark: Any, on_progress: Callable[[QueryState], object] | None = None, *, publish: str | None = None
) -> QueryWatcher:
    """Watches every query of this session from now on, and returns the watcher.

    With `publish`, tools on this host show the queries as a pipeline run of this name.
    """
    if publish is not None:
        on_progress = _published(publish, on_progress)
    watcher = QueryWatcher(on_progress)
    spark.streams.addListener(watcher)
    return watcher
