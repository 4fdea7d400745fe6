"""Describes Spark pipelines for the console and the metrics. The caller passes the function that finds the
pipelines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.protocol.uuid import uuid_from_str
from penstock.runs import Query, Run, recent

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

MAX_PIPELINES = 100


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    state: str
    """The state of the pipeline: running, done, stopped, failed or killed."""
    began: str
    spec: str
    last: str
    """The newest event of the pipeline; for a failed pipeline, the cause."""
    queries: tuple[Query, ...] = ()
    clusters: tuple[str, ...] = ()

    def is_of(self, cluster_id: str, has_topic: Callable[[str], bool]) -> bool:
        """Returns True if the pipeline reads from or writes to this cluster, or if its clusters are not known yet."""
        if self.clusters:
            return cluster_id in self.clusters
        ids = [each for query in self.queries for each in query.topic_ids]
        return not ids or any(map(has_topic, ids))


#: Called in a thread, because it may read files.
Pipelines = Callable[[], list[Pipeline]]


def no_pipelines() -> list[Pipeline]:
    return []


def pipelines_here() -> list[Pipeline]:
    """Returns this user's pipelines on this machine, one per name.

    Running pipelines come before stopped pipelines. In both groups, the pipeline with the newest report comes first.
    """
    found: dict[str, Pipeline] = {}
    for run in recent(MAX_PIPELINES):
        found.setdefault(run.name, _pipeline(run))
    return sorted(found.values(), key=lambda each: each.state != "running")


def of_cluster(found: list[Pipeline], broker: Broker) -> list[Pipeline]:
    """Returns the pipelines of the broker's cluster. Leaves out pipelines of other clusters on the same machine."""
    topics = broker.metadata.image.topics_by_id

    def has_topic(text: str) -> bool:
        try:
            return uuid_from_str(text) in topics
        except ValueError:
            return False

    return [each for each in found if each.is_of(broker.cluster_id, has_topic)]


def _pipeline(run: Run) -> Pipeline:
    queries = sorted(run.queries.items(), key=lambda each: (each[1].name, each[0]))
    by_name = {query.name: query for _, query in queries}  # a restarted query has a new id
    return Pipeline(run.name, run.shown, run.began, run.spec, run.last, tuple(by_name.values()), run.clusters)
