"""Commits the transactions of an exactly-once batch, from the driver.

A decision is a record that the transactions of a batch are to be committed (`sink_decisions`). To complete a decision
means to commit these transactions. The driver first completes the decision of the previous batch. Then it records the
decision to commit the new batch, completes it, and aborts transactions that no decision names.

    tasks: write, prepare ──▶ driver: fence older drivers ─▶ read the last decision, complete its transactions
                                       │ decision about a later batch: refuse     (another run of the query is ahead)
                                       │ about this batch: nothing to decide      (Spark replays the batch)
                                       ▼ about an earlier batch, or no decision
                                     check that all are still prepared ─▶ decide ─▶ complete all ─▶ abort the rest

Tasks never abort a transaction that may be prepared: an attempt that finds an open transaction under its transactional
id uses the next id. Before a driver aborts transactions, it records which transactions these are (`sink_policy` gives
the reason).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from penstock.client.client import AsyncClient
from penstock.client.errors import code_of
from penstock.client.prepared import NOTHING_PREPARED, PreparedTxnState
from penstock.client.sync import Client
from penstock.client.transactions import Transactions
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from penstock.protocol.messages.api_66_list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.protocol.vocabulary import TRANSACTION_COORDINATOR
from penstock.spark.errors import SourceError
from penstock.spark.sink_decisions import Decision, DecisionLog, Prepared, slot_prefix, transactional_prefix
from penstock.spark.sink_policy import next_decision, with_aborted
from penstock.spark.sink_steps import reached

AT_ONCE = 32
FENCINGS = 20  # attempts; another producer does not take over an id more often by accident
TIMEOUT_MS = 60_000
ONGOING = "Ongoing"
#: Errors of EndTxn that mean: the transaction may have ended already, or another producer has taken over its id.
_OWNER_CHANGED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)


def commit_batch(client: Client, query: str, batch: int, prepared: Sequence[Prepared], *, replayed: bool) -> None:
    """Records the decision to commit the batch, and commits its transactions. Raises SourceError, KafkaError.

    `replayed` is True if a task found that the decision is already recorded, and therefore wrote nothing.
    """
    reached("driver-begins")
    log = DecisionLog(client, query)
    if not prepared and not replayed and not _anything_open(client, query, log.last()):
        return
    owner = log.own(TIMEOUT_MS)
    try:
        reached("driver-owns")
        last = log.last()
        opened = client.run(_open_transactions(client.asynchronous, transactional_prefix(query)))
        decision = next_decision(last, batch, prepared, opened, replayed=replayed)
        if last is not None:
            still_open = client.run(_still_open(client.asynchronous, last, prepared, opened))
            client.run(_end_all(client.asynchronous, still_open, commit=True, held=True))
        fresh = decision.transactions if decision is not None and (last is None or last.batch < batch) else ()
        _check_prepared(client, fresh, opened)
        reached("driver-checked")
        if decision is not None and decision != last:
            log.decide(owner, decision)
        reached("driver-decided")
    finally:
        owner.close()
    client.run(_end_all(client.asynchronous, fresh, commit=True, held=True))
    reached("driver-completed")
    if decision is not None:
        left = [each for each in opened if each in decision.aborted]
        client.run(_end_all(client.asynchronous, left, commit=False))
    reached("driver-done")


def abort_batch(client: Client, query: str, batch: int, prepared: Sequence[Prepared]) -> None:
    """Aborts the transactions that this attempt of the batch prepared. Called after a task has failed.

    Aborts nothing if a decision to commit the batch is recorded.
    """
    log = DecisionLog(client, query)
    log.own(TIMEOUT_MS).close()
    last = log.last()
    if last is None or last.batch < batch:
        client.run(_end_all(client.asynchronous, prepared, commit=False, held=True))


def give_up_slot(client: Client, query: str, slot: int) -> None:
    """Aborts the open transactions of a task's earlier attempts. Raises KafkaError.

    A task calls this function when it finds no free transactional id. Transactions that the last decision commits are
    left open. The task takes over the driver's transactional id for a short time, so that no driver can decide to
    commit the same transactions. Tasks and drivers that do this at the same time fence each other and try again.
    """
    log = DecisionLog(client, query)
    for failures in range(1, FENCINGS + 1):
        owner = log.own(TIMEOUT_MS)
        try:
            last = log.last()
            opened = client.run(_open_transactions(client.asynchronous, slot_prefix(query, slot)))
            decision = with_aborted(last, opened)
            if decision != last:
                log.decide(owner, decision)
        except KafkaError as error:
            if error.code not in _OWNER_CHANGED or failures == FENCINGS:
                raise
            client.run(client.asynchronous.pause(failures))
            continue
        finally:
            owner.close()
        left = [each for each in opened if each in decision.aborted]
        client.run(_end_all(client.asynchronous, left, commit=False))
        return


def commit_run(client: Client, prepared: Sequence[Prepared], *, commit: bool) -> None:
    """Commits or aborts the transactions of a batch job.

    No decision is recorded, because Spark does not replay a batch job. A transaction that is left open times out.
    """
    client.run(_end_all(client.asynchronous, prepared, commit=commit, insist=False))


def _check_prepared(client: Client, prepared: Iterable[Prepared], found: Iterable[Prepared]) -> None:
    """Raises SourceError if a transaction in `prepared` is no longer open.

    `found` lists the open transactions. A transaction that is missing there is looked up again, because its coordinator
    may just have moved.
    """
    for name, state in sorted(set(prepared).difference(found)):
        if client.run(_describe(client.asynchronous, name)) != state:
            raise SourceError(
                f"Transaction {name} was ended by another producer or an operator before the query decided to commit "
                "the batch: restart the query, which writes the batch again."
            )


# --- asking the coordinators


def _anything_open(client: Client, query: str, last: Decision | None) -> bool:
    """Returns True if an earlier attempt left transactions that must be committed or aborted."""
    opened = client.run(_open_transactions(client.asynchronous, transactional_prefix(query)))
    return bool(opened or (last is not None and client.run(_still_open(client.asynchronous, last, (), opened))))


async def _still_open(
    client: AsyncClient, last: Decision, prepared: Collection[Prepared], opened: Collection[Prepared]
) -> list[Prepared]:
    """Returns the transactions of the decision `last` that are not committed yet.

    A transactional id has one transaction at a time. So a transaction has ended if `prepared` has a newer transaction
    with the same id.
    """
    taken = {name for name, _ in prepared}
    room = asyncio.Semaphore(AT_ONCE)

    async def is_open(name: str, state: PreparedTxnState) -> bool:
        async with room:
            return (name, state) in opened or (name not in taken and await _describe(client, name) == state)

    found = await asyncio.gather(*(is_open(*each) for each in last.transactions))
    return [each for each, is_it in zip(last.transactions, found) if is_it]


async def _open_transactions(client: AsyncClient, prefix: str) -> list[Prepared]:
    """Returns all open transactions whose transactional ids have this prefix. Asks every node of the cluster."""

    async def list_open() -> list[Prepared]:
        await client.metadata([])
        return [found for node in sorted(client.cluster.nodes) for found in await _open_on(client, node, prefix)]

    return await client.retrying(list_open)


async def _open_on(client: AsyncClient, node: int, prefix: str) -> list[Prepared]:
    listed: ListTransactionsResponse = await client.request(ListTransactionsRequest(state_filters=[ONGOING]), node=node)
    if listed.error_code:
        raise KafkaError(code_of(listed.error_code), f"Node {node} failed to list its transactions.")
    names = sorted(each.transactional_id for each in listed.transaction_states)
    names = [name for name in names if name.startswith(prefix)]
    if not names:
        return []
    request = DescribeTransactionsRequest(transactional_ids=names)
    described: DescribeTransactionsResponse = await client.request(request, node=node)
    return [(each.transactional_id, _open_state(each)) for each in described.transaction_states if _is_open(each)]


def _is_open(told: TransactionState) -> bool:
    if told.error_code and told.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise KafkaError(code_of(told.error_code), f"Transaction {told.transactional_id} could not be described.")
    return not told.error_code and told.transaction_state == ONGOING


def _open_state(told: TransactionState) -> PreparedTxnState:
    return PreparedTxnState(told.producer_id, told.producer_epoch)


async def _describe(client: AsyncClient, name: str) -> PreparedTxnState:
    """Returns the producer id and epoch of a transactional id's open transaction; NOTHING_PREPARED if none is open."""

    async def describe() -> PreparedTxnState:
        node = await client.coordinator(name, TRANSACTION_COORDINATOR)
        try:
            answer: DescribeTransactionsResponse = await client.request(
                DescribeTransactionsRequest(transactional_ids=[name]), node=node
            )
            [told] = answer.transaction_states
            return _open_state(told) if _is_open(told) else NOTHING_PREPARED
        except KafkaError:
            client.forget_coordinator(name, TRANSACTION_COORDINATOR)
            raise

    return await client.retrying(describe)


# --- ending


async def _end_all(
    client: AsyncClient, transactions: Iterable[Prepared], *, commit: bool, held: bool = False, insist: bool = True
) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def end(name: str, state: PreparedTxnState) -> None:
        async with room:
            await end_transaction(client, name, state, commit=commit, held=held, insist=insist)
            if commit:
                reached("driver-completed-one")

    await asyncio.gather(*(end(name, state) for name, state in transactions))


async def end_transaction(
    client: AsyncClient, name: str, state: PreparedTxnState, *, commit: bool, held: bool = False, insist: bool = True
) -> None:
    """Commits or aborts the given transaction, even if another producer has taken over its transactional id.

    Does nothing if the transaction has already ended. With insist=False, raises KafkaError if the transaction has ended
    or another producer has taken over the id.

    A task increments the producer's epoch when it prepares the transaction. With `held`, the first attempt uses the
    incremented epoch, which usually saves a request. Later attempts ask the coordinator for the current epoch.
    """
    transactions = Transactions(client, name, TIMEOUT_MS, two_phase=True)
    await transactions.resume(PreparedTxnState(state.producer_id, state.producer_epoch + held))
    for _ in range(FENCINGS):
        try:
            await transactions.end(commit=commit)
        except KafkaError as error:
            if error.code not in _OWNER_CHANGED or not insist:
                raise
        else:
            return
        transactions = Transactions(client, name, TIMEOUT_MS, two_phase=True)
        await transactions.start(keep_prepared=True)
        if transactions.prepared != state:
            return
    raise KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"Transaction {name} could not be ended: other producers took it over {FENCINGS} times.",
    )
