"""The driver's part of an exactly-once batch: decide, then complete; or find that it was decided, and only complete.

    tasks: write, prepare ──▶ driver: own ─▶ read the last decision
                                       │ this batch: complete what it names      (a replay; nothing is written again)
                                       │ a later one: refuse                     (another run of the query went on)
                                       ▼ an earlier one, or none
                                     check that all are still prepared ─▶ decide ─▶ complete all ─▶ abort the rest

Tasks never abort what may be prepared: an attempt that finds its place taken writes under the next transactional id. So
only a driver whose decision is certain ends transactions of others, and only those that it saw before it decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from penstock.client.client import TRANSACTION, AsyncClient
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
from penstock.spark.errors import SourceError
from penstock.spark.sink_decisions import Decision, DecisionLog, transactional_prefix
from penstock.spark.sink_steps import reached

Prepared = tuple[str, PreparedTxnState]

AT_ONCE = 32
FENCINGS = 20  # more often than this, nobody takes an id away by accident
TIMEOUT_MS = 60_000
ONGOING = "Ongoing"
#: What an end is told when its transaction has ended before, or another producer has taken its id.
_LOOK_AGAIN = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)


def commit_batch(client: Client, query: str, batch: int, prepared: Sequence[Prepared], *, replayed: bool) -> None:
    """`replayed`: a task found the batch decided and wrote nothing. Raises SourceError, KafkaError."""
    reached("driver-begins")
    log = DecisionLog(client, query)
    owner = log.own(TIMEOUT_MS)
    try:
        reached("driver-owns")
        last = log.last()
        if last is not None and last.batch > batch:
            raise SourceError(
                f"Batch {batch} is late: another run of this query has written batch {last.batch}. "
                "Stop one of them, or give each its own checkpointLocation."
            )
        others = client.run(_open_transactions(client.asynchronous, query))
        if last is None or last.batch < batch:
            if replayed:
                raise SourceError(f"Batch {batch} was decided and is not any more: topic of decisions lost records.")
            _check_prepared(client, prepared, others)
            last = Decision(batch, tuple(sorted(prepared)))
            reached("driver-checked")
            log.decide(owner, last)
        reached("driver-decided")
    finally:
        owner.close()
    ours = set(last.transactions)
    client.run(_end_all(client.asynchronous, last.transactions, commit=True, held=True))
    reached("driver-completed")
    client.run(_end_all(client.asynchronous, [each for each in others if each not in ours], commit=False))
    reached("driver-done")


def abort_batch(client: Client, query: str, batch: int, prepared: Sequence[Prepared]) -> None:
    """Some task failed. What the others prepared for this attempt is aborted, unless it was decided on."""
    log = DecisionLog(client, query)
    log.own(TIMEOUT_MS).close()
    last = log.last()
    if last is None or last.batch < batch:
        client.run(_end_all(client.asynchronous, prepared, commit=False, held=True))


def commit_run(client: Client, prepared: Sequence[Prepared], *, commit: bool) -> None:
    """A batch write, which nobody replays: there is nothing to remember, and what is left open times out."""
    client.run(_end_all(client.asynchronous, prepared, commit=commit, insist=False))


def _check_prepared(client: Client, prepared: Iterable[Prepared], found: Iterable[Prepared]) -> None:
    """A coordinator that just moved may have been left out of the list: it is asked itself."""
    for name, state in sorted(set(prepared).difference(found)):
        if client.run(_describe(client.asynchronous, name)) != state:
            raise SourceError(
                f"Transaction {name} was ended by somebody else before the batch was decided: "
                "restart the query, which writes the batch again."
            )


# --- what coordinators know


async def _open_transactions(client: AsyncClient, query: str) -> list[Prepared]:
    """All that tasks of the query have left open, as far as coordinators that can be reached know."""
    prefix = transactional_prefix(query)

    async def look() -> list[Prepared]:
        await client.metadata([])
        return [found for node in sorted(client.cluster.nodes) for found in await _open_on(client, node, prefix)]

    return await client.retrying(look)


async def _open_on(client: AsyncClient, node: int, prefix: str) -> list[Prepared]:
    listed: ListTransactionsResponse = await client.request(ListTransactionsRequest(state_filters=[ONGOING]), node=node)
    if listed.error_code:
        raise KafkaError(code_of(listed.error_code), f"Node {node} does not list its transactions.")
    names = sorted(each.transactional_id for each in listed.transaction_states)
    names = [name for name in names if name.startswith(prefix)]
    if not names:
        return []
    request = DescribeTransactionsRequest(transactional_ids=names)
    described: DescribeTransactionsResponse = await client.request(request, node=node)
    return [(each.transactional_id, _open_state(each)) for each in described.transaction_states if _is_open(each)]


def _is_open(told: TransactionState) -> bool:
    if told.error_code and told.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise KafkaError(code_of(told.error_code), f"Transaction {told.transactional_id} is not described.")
    return not told.error_code and told.transaction_state == ONGOING


def _open_state(told: TransactionState) -> PreparedTxnState:
    return PreparedTxnState(told.producer_id, told.producer_epoch)


async def _describe(client: AsyncClient, name: str) -> PreparedTxnState:
    """From its own coordinator, wherever that is now."""

    async def ask() -> PreparedTxnState:
        node = await client.coordinator(name, TRANSACTION)
        try:
            answer: DescribeTransactionsResponse = await client.request(
                DescribeTransactionsRequest(transactional_ids=[name]), node=node
            )
            [told] = answer.transaction_states
            return _open_state(told) if _is_open(told) else NOTHING_PREPARED
        except KafkaError:
            client.forget_coordinator(name, TRANSACTION)
            raise

    return await client.retrying(ask)


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
    """Ends exactly this one, whoever owns its id now; nothing happens if it has ended. Without `insist` that raises.

    `held`: its task took it over once to prepare it, so that its owner has the epoch after, which no other transaction
    ever gets. Mostly that saves a request; where it is wrong, the coordinator says who owns it.
    """
    transactions = Transactions(client, name, TIMEOUT_MS, two_phase=True)
    await transactions.resume(PreparedTxnState(state.producer_id, state.producer_epoch + held))
    for _ in range(FENCINGS):
        try:
            await transactions.end(commit=commit)
        except KafkaError as error:
            if error.code not in _LOOK_AGAIN or not insist:
                raise
        else:
            return
        transactions = Transactions(client, name, TIMEOUT_MS, two_phase=True)
        await transactions.start(keep_prepared=True)
        if transactions.prepared != state:
            return
    raise KafkaError(ErrorCode.PRODUCER_FENCED, f"Transaction {name} is taken over again and again.")
