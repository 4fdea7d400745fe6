"""Compares ListTransactions with plain conditions, for all combinations of its filters."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import product

import pytest
from transaction_driver import WALL_START_MS, Driver

from penstock.transactions.queries import list_transactions
from penstock.transactions.states import State
from penstock.transactions.transaction import Transaction

STATES: list[Collection[State]] = [(), {State.ONGOING}, {State.EMPTY, State.PREPARE_COMMIT}, set(State)]
PRODUCERS: list[Collection[int]] = [(), {1000}, {1001, 1003}, {7}]
NAMES: list[Callable[[str], bool] | None] = [None, lambda name: name < "c", lambda name: False]


@pytest.mark.parametrize("longer_than_ms", [-1, 0, 49, 50, 51, 100])
def test_listed_transactions_are_those_that_match_all_filters(longer_than_ms: int) -> None:
    driver = Driver()
    for number, name in enumerate("dbeac"):
        who = driver.init(name)
        if number != 2:
            driver.add(who, name=name)
        if number == 3:
            driver.end(who, True, name=name)
        driver.advance(25)
    wall_ms = WALL_START_MS + 100

    def is_old(txn: Transaction) -> bool:
        return longer_than_ms < 0 or wall_ms - txn.start_ms > longer_than_ms

    known = list(driver.shard.transactions.values())
    assert {is_old(txn) for txn in known} == ({True} if longer_than_ms < 0 else {True, False})
    for states, producers, matches in product(STATES, PRODUCERS, NAMES):
        expected = [
            (txn.transactional_id, txn.producer_id, txn.state.label)
            for txn in known
            if (not states or txn.state in states)
            and (not producers or txn.producer_id in producers)
            and is_old(txn)
            and (matches is None or matches(txn.transactional_id))
        ]
        found = list_transactions(
            driver.shard,
            wall_ms,
            states=states,
            producer_ids=producers,
            longer_than_ms=longer_than_ms,
            matches=matches,
        )
        assert [(each.transactional_id, each.producer_id, each.transaction_state) for each in found] == expected
