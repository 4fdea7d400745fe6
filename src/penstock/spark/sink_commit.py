"""The driver's part of an exactly-once batch: complete the last decision, decide, complete, abort the rest.

    tasks: write, prepare ──▶ driver: own ─▶ read the last decision, complete what it names
                                       │ a later batch: refuse                   (another run of the query went on)
                                       │ this batch: nothing to decide           (a replay, with rows or without)
                                       ▼ an earlier one, or none
                                     check that all are still prepared ─▶ decide ─▶ complete all ─▶ abort the rest

Tasks never abort what may be prepared: an attempt that finds its place taken writes under the next transactional id. A
driver that aborts has recorded before what it is going to abort (`sink_policy` says why that is enough).
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
    """Some task failed. What the others prepared for this attempt is aborted, unless it was decided on."""
    log = DecisionLog(client, query)
    log.own(TIMEOUT_MS).close()
    last = log.last()
    if last is None or last.batch < batch:
        client.run(_end_all(client.asynchronous, prepared, commit=False, held=True))


def give_up_slot(client: Client, query: str, slot: int) -> None:
    """Aborts what earlier attempts of a task have left open, unless it is decided on. Raises KafkaError.

    For a task without a place of its own. It takes the right to decide for a moment: no driver can decide meanwhile on
    what is being given up. Tasks that do so at once, and a driver, take it from each other and try again.
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
            if error.code not in _LOOK_AGAIN or failures == FENCINGS:
                raise
            client.run(client.asynchronous.pause(failures))
            continue
        finally:
            owner.close()
        left = [each for each in opened if each in decision.aborted]
        client.run(_end_all(client.asynchronous, left, commit=False))
        return


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


def _anything_open(client: Client, query: str, last: Decision | None) -> bool:
    """Whether an earlier attempt left something to complete or to abort."""
    opened = client.run(_open_transactions(client.asynchronous, transactional_prefix(query)))
    return bool(opened or (last is not None and client.run(_still_open(client.asynchronous, last, (), opened))))


async def _still_open(
    client: AsyncClient, last: Decision, prepared: Collection[Prepared], opened: Collection[Prepared]
) -> list[Prepared]:
    """What is left to complete of a decision. A name that has been prepared again has ended its transaction before."""
    taken = {name for name, _ in prepared}
    room = asyncio.Semaphore(AT_ONCE)

    async def is_open(name: str, state: PreparedTxnState) -> bool:
        async with room:
            return (name, state) in opened or (name not in taken and await _describe(client, name) == state)

    found = await asyncio.gather(*(is_open(*each) for each in last.transactions))
    return [each for each, is_it in zip(last.transactions, found) if is_it]


async def _open_transactions(client: AsyncClient, prefix: str) -> list[Prepared]:
    """All with ids that begin so which are open, as far as coordinators that can be reached know."""

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
