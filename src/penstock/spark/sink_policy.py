"""Which decision an exactly-once sink records next, given the last one and what is open. Pure.

Two rules make every decision final:

- A decision is recorded only when everything that the decision before it names has been completed. So a decided batch
  is written, even if its replay brings no rows.
- A transaction is aborted only when a recorded decision lists it as aborted, and no later decision commits it. So a
  driver that was replaced while it aborts takes nothing away from the driver that replaced it.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.spark.errors import SourceError
from penstock.spark.sink_decisions import Decision, Prepared

BEFORE_ALL = -1


def next_decision(
    last: Decision | None, batch: int, prepared: Collection[Prepared], opened: Collection[Prepared], *, replayed: bool
) -> Decision | None:
    """The decision about a batch, which is `last` where that says everything already. Raises SourceError.

    `prepared` is what tasks wrote for the batch, `opened` all that is open, `replayed` that a task found it decided.
    """
    if last is not None and last.batch > batch:
        raise SourceError(
            f"Batch {batch} is late: another run of this query has written batch {last.batch}. "
            "Stop one of them, or give each its own checkpointLocation."
        )
    if last is not None and last.batch == batch:
        return with_aborted(last, opened)
    if replayed:
        raise SourceError(f"Batch {batch} was decided and is not any more: topic of decisions lost records.")
    aborted = set(last.aborted).intersection(prepared) if last is not None else set()
    if aborted:
        raise SourceError(
            f"Transaction {min(aborted)[0]} was given up by another run of this query: "
            "restart the query, which writes the batch again."
        )
    done = last.transactions if last is not None else ()
    others = sorted(set(opened).difference(prepared, done))
    if not prepared and not others:
        return last
    return Decision(batch, tuple(sorted(prepared)), tuple(others))


def with_aborted(last: Decision | None, given_up: Collection[Prepared]) -> Decision:
    """The last decision, by which these are aborted too, unless they are what it commits."""
    last = last or Decision(BEFORE_ALL, ())
    more = sorted(set(given_up).difference(last.transactions, last.aborted))
    return Decision(last.batch, last.transactions, (*last.aborted, *more)) if more else last
