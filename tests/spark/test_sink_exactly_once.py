"""Kills the driver or a task at every step: no row is lost or duplicated, and no transaction stays open.

`sink_driver` simulates Spark; test_sink_kills.py has a few of these tests with Spark itself.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import suppress

import pytest
from sink_driver import Killed, Query, Rows, committed_rows, killed_at

from penstock.client.client import AsyncClient
from penstock.client.sync import Client
from penstock.protocol.messages.api_65_describe_transactions import DescribeTransactionsRequest
from penstock.protocol.messages.api_66_list_transactions import ListTransactionsRequest
from penstock.spark import sink_write
from penstock.spark.errors import SourceError
from penstock.spark.sink_decisions import Decision, DecisionLog
from penstock.spark.sink_steps import DRIVER_STEPS, TASK_STEPS
from penstock.testing import Broker

BATCHES: list[Rows] = [[(f"k{row % 7}", f"{batch}-{row}") for row in range(20)] for batch in range(3)]
ALL = sorted(row for batch in BATCHES for row in batch)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"t-{secrets.token_hex(4)}"
    broker.create_topic(name, 2)
    return name


def open_transactions(broker: Broker, query: Query) -> list[str]:
    with Client(broker.bootstrap) as client:
        listed = client.request(ListTransactionsRequest(state_filters=["Ongoing"])).transaction_states
    return [each.transactional_id for each in listed if query.id in each.transactional_id]


def decision(broker: Broker, query: Query) -> Decision | None:
    with Client(broker.bootstrap) as client:
        return DecisionLog(client, query.id).last()


def test_rows_are_visible_only_after_their_batch_is_committed(broker: Broker, topic: str) -> None:
    query = Query(broker, topic)
    message = query.attempt(0, 0, BATCHES[0])
    assert committed_rows(broker, topic, up_to_the_end=False) == []
    query.commit(0, [message])
    assert sorted(committed_rows(broker, topic)) == sorted(BATCHES[0])
    decided = decision(broker, query)
    assert decided is not None
    assert decided.batch == 0


@pytest.mark.parametrize(
    ("occurrence", "tasks_after"),
    [(1, 3), *(pytest.param(*each, marks=pytest.mark.slow) for each in [(1, 2), (2, 3), (2, 2), (4, 3), (4, 2)])],
)
@pytest.mark.parametrize("step", [*TASK_STEPS, *DRIVER_STEPS])
def test_query_that_is_killed_at_any_step_and_restarted_writes_each_row_once(
    broker: Broker, topic: str, step: str, occurrence: int, tasks_after: int
) -> None:
    query = Query(broker, topic)
    with killed_at(step, occurrence):
        try:
            query.run(BATCHES)
        except Killed:
            pass
        else:
            assert occurrence == 4, "the step is reached"
    query.run(BATCHES, tasks_after)
    assert sorted(committed_rows(broker, topic)) == ALL
    assert open_transactions(broker, query) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", DRIVER_STEPS[2:])
@pytest.mark.parametrize("second", [TASK_STEPS[-1], *DRIVER_STEPS[2:]])
def test_query_that_is_killed_twice_in_a_row_writes_each_row_once(
    broker: Broker, topic: str, first: str, second: str
) -> None:
    query = Query(broker, topic)
    for step in (first, second):
        with killed_at(step, 2), suppress(Killed):
            query.run(BATCHES[:2])
    query.run(BATCHES)
    assert sorted(committed_rows(broker, topic)) == ALL
    assert open_transactions(broker, query) == []


def test_only_the_rows_of_the_task_attempt_that_spark_commits_are_written(broker: Broker, topic: str) -> None:
    query = Query(broker, topic)
    first = query.attempt(0, 0, BATCHES[0])
    second = query.attempt(0, 0, BATCHES[0])
    assert first.transactional_id != second.transactional_id
    query.commit(0, [first])
    assert sorted(committed_rows(broker, topic)) == sorted(BATCHES[0])
    assert open_transactions(broker, query) == []


def test_task_attempt_writes_no_rows_if_the_commit_of_its_batch_is_already_decided(broker: Broker, topic: str) -> None:
    query = Query(broker, topic)
    message = query.attempt(0, 0, BATCHES[0])
    query.commit(0, [message])
    late = query.attempt(0, 0, BATCHES[0])
    assert late.decided
    assert late.transactional_id == ""
    assert sorted(committed_rows(broker, topic)) == sorted(BATCHES[0])


def test_task_attempt_that_starts_after_the_commit_decision_does_not_end_prepared_transactions(
    broker: Broker, topic: str
) -> None:
    query = Query(broker, topic)
    message = query.attempt(0, 0, BATCHES[0])
    with killed_at("driver-decided"), pytest.raises(Killed):
        query.commit(0, [message])
    assert query.attempt(0, 0, BATCHES[0]).decided
    # and an attempt of the next batch, which a replaced driver started, uses another transactional id
    assert query.attempt(1, 0, BATCHES[1]).transactional_id != message.transactional_id
    query.commit(0, [message])
    assert sorted(committed_rows(broker, topic)) == sorted(BATCHES[0])


def test_driver_that_was_replaced_cannot_record_a_commit_decision(broker: Broker, topic: str) -> None:
    query = Query(broker, topic)
    zombies = [query.attempt(0, 0, BATCHES[0])]
    with killed_at("driver-checked"), pytest.raises(Killed):
        query.commit(0, zombies)
    ours = [query.attempt(0, 0, BATCHES[0])]
    query.commit(0, ours)
    query.commit(0, zombies)  # the replaced driver continues and finds the batch decided
    assert sorted(committed_rows(broker, topic)) == sorted(BATCHES[0])
    query.commit(1, [query.attempt(1, 0, BATCHES[1])])
    with pytest.raises(SourceError, match="another run of this query"):
        query.commit(0, zombies)
    assert sorted(committed_rows(broker, topic)) == sorted(BATCHES[0] + BATCHES[1])


def test_transactions_of_a_failed_batch_are_aborted_and_its_rows_are_written_again(broker: Broker, topic: str) -> None:
    query = Query(broker, topic)
    query.abort(0, [query.attempt(0, 0, BATCHES[0]), None])
    assert open_transactions(broker, query) == []
    query.run(BATCHES)
    assert sorted(committed_rows(broker, topic)) == ALL


def test_abort_after_a_recorded_commit_decision_does_not_undo_the_decision(broker: Broker, topic: str) -> None:
    query = Query(broker, topic)
    messages = [query.attempt(0, 0, BATCHES[0])]
    with killed_at("driver-decided"), pytest.raises(Killed):
        query.commit(0, messages)
    query.abort(0, messages)
    query.run(BATCHES)
    assert sorted(committed_rows(broker, topic)) == ALL


def test_driver_refuses_to_commit_a_batch_if_another_producer_has_ended_its_transaction(
    broker: Broker, topic: str
) -> None:
    from penstock.client.producer import ProducerSettings

    query = Query(broker, topic)
    message = query.attempt(0, 0, BATCHES[0])
    with Client(broker.bootstrap) as client:
        client.producer(ProducerSettings(transactional_id=message.transactional_id)).start()
    with pytest.raises(SourceError, match="ended by another producer or an operator"):
        query.commit(0, [message])
    query.run(BATCHES)
    assert sorted(committed_rows(broker, topic)) == ALL


def test_no_row_is_lost_if_the_broker_is_killed_between_prepare_and_commit(topic: str) -> None:
    with Broker() as own:
        own.create_topic(topic, 2)
        query = Query(own, topic)
        messages = [query.attempt(0, slot, BATCHES[0][slot::2]) for slot in range(2)]
        own.kill()
        own.start()
        query.commit(0, messages)
        assert sorted(committed_rows(own, topic)) == sorted(BATCHES[0])


def test_tasks_without_rows_prepare_no_transaction(broker: Broker, topic: str) -> None:
    query = Query(broker, topic)
    message = query.attempt(0, 0, [])
    assert (message.rows, message.transactional_id) == (0, "")
    query.commit(0, [message])
    assert decision(broker, query) is None


def test_last_commit_decision_is_found_despite_many_aborted_decision_records_after_it(
    broker: Broker, topic: str
) -> None:
    query = Query(broker, topic)
    query.commit(0, [query.attempt(0, 0, BATCHES[0])])
    with Client(broker.bootstrap) as client:
        log = DecisionLog(client, query.id)
        for _ in range(12):
            owner = log.own()
            owner.begin()
            owner.send(f"__penstock_spark_commits-{query.id}", b"{}", b"decision", partition=0).result()
            owner.close()
        log.own().close()
        found = log.last()
    assert found is not None
    assert found.batch == 0


def test_prepared_transaction_does_not_time_out_but_an_unprepared_transaction_does(broker: Broker, topic: str) -> None:
    query = Query(broker, topic)
    with killed_at("task-wrote"), pytest.raises(Killed):
        query.attempt(0, 0, BATCHES[0])
    query.attempt(0, 1, BATCHES[0])
    request = DescribeTransactionsRequest(transactional_ids=[f"penstock-spark-{query.id}-{slot}-0" for slot in (0, 1)])
    with Client(broker.bootstrap) as client:
        states = client.request(request).transaction_states
    assert [(each.transaction_state, each.transaction_timeout_ms) for each in states] == [
        ("Ongoing", query.options.transaction_timeout_ms),
        ("Ongoing", 0x7FFFFFFF),
    ]


@pytest.mark.parametrize("step", ["driver-decided", "driver-completed-one"])
def test_batch_with_a_recorded_commit_decision_is_completed_although_its_replay_has_no_rows(
    broker: Broker, topic: str, step: str
) -> None:
    query = Query(broker, topic)
    messages = [query.attempt(0, slot, BATCHES[0][slot::2]) for slot in range(2)]
    with killed_at(step), pytest.raises(Killed):
        query.commit(0, messages)
    query.commit(0, [query.attempt(0, 0, [])])  # the source's records were deleted
    assert sorted(committed_rows(broker, topic)) == sorted(BATCHES[0])
    query.done = 1
    query.run(BATCHES)
    assert sorted(committed_rows(broker, topic)) == ALL
    assert open_transactions(broker, query) == []


def test_batch_with_a_recorded_commit_decision_is_completed_by_the_next_batch(broker: Broker, topic: str) -> None:
    query = Query(broker, topic)
    messages = [query.attempt(0, slot, BATCHES[0][slot::3]) for slot in range(3)]
    with killed_at("driver-decided"), pytest.raises(Killed):
        query.commit(0, messages)
    query.commit(1, [query.attempt(1, 0, BATCHES[1])])
    assert sorted(committed_rows(broker, topic)) == sorted(BATCHES[0] + BATCHES[1])


def test_empty_replay_of_a_batch_without_a_commit_decision_aborts_its_open_transactions(
    broker: Broker, topic: str
) -> None:
    query = Query(broker, topic)
    messages = [query.attempt(0, 0, BATCHES[0])]
    with killed_at("driver-checked"), pytest.raises(Killed):
        query.commit(0, messages)
    query.commit(0, [query.attempt(0, 0, [])])
    assert open_transactions(broker, query) == []
    assert committed_rows(broker, topic) == []
    query.commit(0, messages)  # the replaced driver continues
    assert committed_rows(broker, topic) == []


def test_each_row_is_written_once_although_many_drivers_die_before_they_decide_to_commit(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_write, "PLACES", 2)
    query = Query(broker, topic)
    query.commit(0, [query.attempt(0, 0, BATCHES[0])])
    for _ in range(5):
        query.attempt(1, 0, BATCHES[1])
    assert len(open_transactions(broker, query)) <= 2
    query.done = 1
    query.run(BATCHES)
    assert sorted(committed_rows(broker, topic)) == ALL
    assert open_transactions(broker, query) == []


def test_driver_cannot_decide_to_commit_transactions_that_a_task_has_aborted(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_write, "PLACES", 1)
    query = Query(broker, topic)
    zombies = [query.attempt(0, 0, BATCHES[0])]
    ours = [query.attempt(0, 0, BATCHES[0])]
    with pytest.raises(SourceError, match="aborted by another run"):
        query.commit(0, zombies)
    query.commit(0, ours)
    assert sorted(committed_rows(broker, topic)) == sorted(BATCHES[0])


def test_sink_task_and_driver_try_their_first_connection_again_if_the_broker_is_down(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker() as own:
        own.create_topic(topic, 2)
        query = Query(own, topic)

        down: list[Broker] = []

        async def start_meanwhile(client: AsyncClient, failures: int) -> None:
            if down:
                await asyncio.to_thread(down.pop().start)

        monkeypatch.setattr(AsyncClient, "pause", start_meanwhile)
        own.kill()
        down.append(own)
        message = query.attempt(0, 0, BATCHES[0])
        own.kill()
        down.append(own)
        query.commit(0, [message])
        assert sorted(committed_rows(own, topic)) == sorted(BATCHES[0])
