"""Pipelines as the console and the metrics show them. Where they are looked up is the caller's choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Query:
    """A streaming query of a pipeline, after its last batch."""

    name: str
    running: bool
    batch: int
    rows: int
    """In the last batch."""
    total_rows: int
    rows_per_second: float
    batch_ms: int
    lag: int
    """Offsets that are there and not read."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    state: str
    """running, done, stopped, failed or killed."""
    began: str
    spec: str
    last: str
    """The newest event, or why it failed."""
    queries: tuple[Query, ...] = ()


#: Called in a thread: it may read files.
Pipelines = Callable[[], list[Pipeline]]


def no_pipelines() -> list[Pipeline]:
    return []
