"""Decides which transactions of an exactly-once sink to commit and to abort. Pure code.

Two rules make every decision final:

- A decision is recorded only when all transactions of the previous decision are completed. So the rows
  of a decided batch are always committed, even if Spark's replay of the batch has no rows.
- A transaction is aborted only when a recorded decision lists it as aborted. No later decision commits this
  transaction. So if a driver is replaced while it aborts transactions, the new driver commits none of them.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.spark.errors import SourceError
from penstock.spark.sink_decisions import PREFIX, Decision, Prepared

BEFORE_ALL = -1


def next_decision(
    last: Decision | None, batch: int, prepared: Collection[Prepared], opened: Collection[Prepared], *, replayed: bool
) -> Decision | None:
    """Returns the next decision: which transactions of a batch to commit, and which to abort. Raises SourceError.

    Returns `last`, the last recorded decision, if there is nothing new to decide. `prepared` has the transactions of
    the batch's tasks; `opened` has all open transactions of the query. `replayed` is True if a task found a recorded
    decision to commit the batch.
    """
    if last is not None and last.batch > batch:
        raise SourceError(
            f"Batch {batch} is late: another run of this query has written batch {last.batch}. "
            "Stop one of the two runs, or give each its own checkpointLocation."
        )
    if last is not None and last.batch == batch:
        return with_aborted(last, opened)
    if replayed:
        raise SourceError(
            f"A task found the decision to commit batch {batch}, but the driver did not: the query's topic {PREFIX}-… "
            "lost records. Check whether the batch is in the output topics before you restart the query, because a "
            "restart writes the batch again."
        )
    aborted = set(last.aborted).intersection(prepared) if last is not None else set()
    if aborted:
        raise SourceError(
            f"Transaction {min(aborted)[0]} was aborted by another run of this query: "
            "restart the query, which writes the batch again."
        )
    done = last.transactions if last is not None else ()
    others = sorted(set(opened).difference(prepared, done))
    if not prepared and not others:
        return last
    return Decision(batch, tuple(sorted(prepared)), tuple(others))


def with_aborted(last: Decision | None, given_up: Collection[Prepared]) -> Decision:
    """Returns the last decision, with the transactions in `given_up` added to those that it aborts.

    Transactions that the decision commits are not added.
    """
    last = last or Decision(BEFORE_ALL, ())
    more = sorted(set(given_up).difference(last.transactions, last.aborted))
    return Decision(last.batch, last.transactions, (*last.aborted, *more)) if more else last
