"""Asks all brokers, after all faults have ended, for transactions that are still open."""

from __future__ import annotations

import asyncio

from penstock.client.client import AsyncClient
from penstock.protocol.messages.api_66_list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.sim.actors.session import Session

UNENDED = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


async def unended_transactions(session: Session, client: AsyncClient, deadline: float) -> list[str]:
    """Waits until all transactions have ended. Returns those that have not ended at the deadline, with their states."""
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
