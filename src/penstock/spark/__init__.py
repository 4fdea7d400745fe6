"""Implements the Spark data source `format("penstock")`: reads and writes topics, in batch and as a stream, without a
jar.

Invariants: records become Arrow columns without a Python object per record; a task holds the data of about two fetches;
no record above the high watermark is read; with read_committed, no record above the last stable offset is read; a
user's error is reported in one sentence.

Spark finds the data source through package `pyspark_penstock`; users call `session`. Needs the extra `penstock[spark]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.sessions import session as session

__all__ = ["session"]


def __getattr__(name: str) -> object:
    # Executors import this package for its reader and need no session, so the session's modules load on first use.
    if name == "session":
        from penstock.spark.sessions import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
