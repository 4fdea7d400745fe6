"""Implements operations on transactions: list, describe, find hanging transactions, and abort transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.transaction_admin import ONGOING, TransactionAdmin, state_row
from penstock.http.rest.cluster import PAGE, paged
from penstock.http.rest.fields import Field
from penstock.http.rest.routes import Call, Route

if TYPE_CHECKING:
    from penstock.http.rest.service import Service

#: The default of transaction.max.timeout.ms, the longest time that a transaction may last.
MAX_AGE_MS = 15 * 60 * 1000


async def list_transactions(service: Service, call: Call) -> Any:
    text = call.query.get("search", "")
    states = [call.query["state"]] if "state" in call.query else []
    rows = await TransactionAdmin(await service.client()).list_ids(
        states, longer_than_ms=call.query.get("longer_than_ms", -1)
    )
    return paged([row for row in rows if text in row["transactional_id"]], call, "transactions")


async def describe_transaction(service: Service, call: Call) -> Any:
    state, coordinator = await TransactionAdmin(await service.client()).describe(call.path["id"])
    return state_row(state, coordinator, service.broker.clock.wall_ms())


async def terminate_transaction(service: Service, call: Call) -> Any:
    before = await TransactionAdmin(await service.client()).terminate(call.path["id"])
    return {"transactional_id": call.path["id"], "state_before": before, "aborted": before == ONGOING}


async def list_hanging(service: Service, call: Call) -> Any:
    """Answers with the hanging transactions: open transactions that no coordinator will end.

    Checks every partition of the topic that the query names; by default, the partitions of all topics.
    """
    now_ms = service.broker.clock.wall_ms()
    topics = [call.query["topic"]] if "topic" in call.query else []
    max_age_ms = call.query.get("max_age_ms", MAX_AGE_MS)
    found, unread = await TransactionAdmin(await service.client()).hanging(topics, max_age_ms, now_ms)
    return {
        **paged([each.row(now_ms) for each in found], call, "transactions"),
        "unread": [
            {"topic": topic, "partition": index, "reason": reason} for (topic, index), reason in sorted(unread.items())
        ],
    }


async def abort_hanging(service: Service, call: Call) -> Any:
    """Writes the abort marker that ends a hanging transaction on one partition."""
    place = (call.body["topic"], call.body["partition"])
    found = await TransactionAdmin(await service.client()).abort(place, call.body["start_offset"])
    return {"topic": place[0], "partition": place[1], "producer_id": found.producer_id, "aborted": True}


ID = {"id": Field("string", "transactional id; write a slash as %2F")}
ROUTES = (
    Route(
        "GET",
        "/v1/transactions",
        "Lists transactional ids",
        list_transactions,
        query={
            **PAGE,
            "state": Field("string", "only ids in this state, such as Ongoing"),
            "longer_than_ms": Field("integer", "only transactions that are open for longer", low=0),
            "search": Field("string", "only ids with this text"),
        },
        own_acls=True,
    ),
    Route(
        "GET",
        "/v1/transactions/{id}",
        "Describes the transaction of a transactional id",
        describe_transaction,
        path=ID,
        own_acls=True,
    ),
    Route(
        "POST",
        "/v1/transactions/{id}/terminate",
        "Aborts the open transaction of an id and fences its producer",
        terminate_transaction,
        path=ID,
        body={},
        own_acls=True,
    ),
    Route(
        "GET",
        "/v1/hanging-transactions",
        "Lists open transactions that no coordinator will end",
        list_hanging,
        query={
            **PAGE,
            "topic": Field("string", "only this topic; default: all"),
            "max_age_ms": Field("integer", "least age of a hanging transaction; default: 15 minutes", low=0),
        },
        own_acls=True,
    ),
    Route(
        "POST",
        "/v1/hanging-transactions/abort",
        "Ends a hanging transaction on one partition; its records are never committed",
        abort_hanging,
        body={
            "topic": Field("string", required=True),
            "partition": Field("integer", required=True, low=0, high=2**31 - 1),
            "start_offset": Field("integer", "first offset of the transaction", required=True, low=0),
        },
        own_acls=True,
    ),
)
