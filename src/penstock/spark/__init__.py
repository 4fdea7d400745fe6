"""Topics as Spark data: `format("penstock")` reads and writes them, in batch and as a stream, with no jar.

Invariants: records become Arrow columns without an object each; a task holds about two fetches of data; nothing is read
past the high watermark, or the last stable offset for committed reads. Whatever the user got wrong is one sentence.
Spark itself calls in through `pyspark_penstock`; users call `session`. Needs the extra `penstock[spark]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.sessions import session as session

__all__ = ["session"]


def __getattr__(name: str) -> object:
    # Executors import this package for its reader: they don't need what makes sessions.
    if name == "session":
        from penstock.spark.sessions import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
