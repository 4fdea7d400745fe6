"""Asks all brokers, after all faults have ended, for transactions that are still open.

The transaction of a killed producer ends with its timeout. If this timeout is too long to wait for, the producer is
started once more, as an application would do. Its start ends the transaction.
"""

from __future__ import annotations

import asyncio

from penstock.client.client import AsyncClient
from penstock.client.producer import Producer, ProducerSettings
from penstock.protocol.messages.api_66_list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.sim.actors.session import Session
from penstock.sim.plan.plan import Plan

#: Within this time every open transaction ends after its producer is gone.
STABLE_BOUND_S = 60.0
UNENDED = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


async def unended_transactions(session: Session, client: AsyncClient, deadline: float) -> list[str]:
    """Waits until all transactions have ended. Returns the transactions that are still open at the deadline, with their
    states."""
    while True:
        left: list[str] = []
        for node in sorted(client.cluster.nodes):
            answer: ListTransactionsResponse = await client.request(
                ListTransactionsRequest(state_filters=list(UNENDED)), node=node
            )
            left += [f"{each.transactional_id} is in {each.transaction_state}" for each in answer.transaction_states]
        if not left or session.now > deadline:
            return left
        await asyncio.sleep(1)


async def restart_patient_producers(session: Session, client: AsyncClient, plan: Plan) -> None:
    """Restarts each producer whose transaction timeout is longer than STABLE_BOUND_S. The restart ends a transaction
    that the producer has left open."""
    for actor in plan.actors:
        timeout_ms, name = actor.params.get("transaction_timeout_ms", 0), actor.params.get("transactional_id")
        if name is not None and timeout_ms > STABLE_BOUND_S * 1_000:
            settings = ProducerSettings(transactional_id=name, transaction_timeout_ms=timeout_ms)
            producer = Producer(client, session.clock, settings)
            try:
                await producer.start()
            finally:
                await producer.close()
