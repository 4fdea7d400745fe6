"""Tests the queue of uncommitted decisions: the order and the moment of each reply, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from plain_coordinator import PlainTurn, code_of, future_of, in_virtual_time, plain, token, write
from test_coordinator_runtime import MemoryPartition

from penstock.broker.coordinators.commits import UNDER_MIN_ISR_PAUSE_SECONDS, Commit, Commits, set_result
from penstock.broker.replicas.partition import Partition
from penstock.protocol.errors import ErrorCode, KafkaError

TOO_FEW = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "1 of 2.")


class CountingPartition(MemoryPartition):
    waits = 0

    async def committed(self, offset: int) -> None:
        self.waits += 1
        await super().committed(offset)


class Queue:
    """Holds a queue of decisions, and notes the time and result of each reply."""

    def __init__(self, timeout_s: float = 1.0) -> None:
        self.partition = CountingPartition(replicated=False)
        self.settled: list[Any] = []
        self.failures: list[KafkaError] = []
        self.answers: list[tuple[float, str, object]] = []
        self.commits = Commits(
            cast(Partition, self.partition), settle=self._settle, failed=self.failures.append, timeout_s=timeout_s
        )

    def _settle(self, turn: Any) -> None:
        self.settled += turn.effects
        for one, response in turn.replies:
            set_result(one, response)

    def decide(self, *names: str) -> None:
        """Appends one record for all given decisions. Each decision has a future and two replies."""
        self.partition.log_end_offset += 1
        self.commits.add([self._commit(name) for name in names])

    def _commit(self, name: str) -> Commit:
        replies = [(self._noted(f"{name}.{number}"), number) for number in range(2)]
        turn = PlainTurn(0, 0, replies=replies, effects=[name])
        return Commit(turn, name, self._noted(name))

    def _noted(self, name: str) -> asyncio.Future[Any]:
        def note(done: asyncio.Future[Any]) -> None:
            error = done.exception()
            self.answers.append((asyncio.get_running_loop().time(), name, done.result() if error is None else "early"))

        future = token()
        future.add_done_callback(note)
        return future

    def answered(self, *names: str) -> list[tuple[float, object]]:
        """Returns the distinct times and results of the named decisions, whose replies all come together."""
        wanted = [(at, name, result) for at, name, result in self.answers if name.split(".")[0] in names]
        assert len(wanted) == 3 * len(names), wanted
        return sorted({(at, "early" if result == "early" else "fine") for at, _, result in wanted}, key=str)


def test_decisions_are_settled_in_order_once_the_high_watermark_reaches_their_end_offset() -> None:
    async def scenario() -> None:
        queue = Queue()
        queue.decide("a", "b")
        queue.decide("c")
        queue.decide("d", "e")
        assert bool(queue.commits)
        await asyncio.sleep(0.25)
        for offset, settled in ((1, "ab"), (2, "abc"), (3, "abcde")):
            queue.partition.catch_up(offset)
            await asyncio.sleep(0.125)
            assert queue.settled == list(settled)
        assert not queue.commits
        assert [queue.answered(*names) for names in ("ab", "c", "de")] == [
            [(0.25, "fine")],
            [(0.375, "fine")],
            [(0.5, "fine")],
        ]
        assert {name: result for _, name, result in queue.answers if name in "abcde"} == dict(zip("abcde", "abcde"))
        assert queue.partition.waits <= 4

    in_virtual_time(scenario)


def test_each_client_gets_the_error_exactly_when_its_own_wait_expires() -> None:
    async def scenario() -> None:
        queue = Queue(timeout_s=1.0)
        queue.decide("a", "b")
        await asyncio.sleep(0.25)
        queue.decide("c")
        await asyncio.sleep(0.5)
        queue.decide("d")
        await asyncio.sleep(2.25)  # 3.0: all clients have their answers
        queue.decide("e")
        await asyncio.sleep(0.5)
        queue.partition.catch_up()
        await asyncio.sleep(10)
        assert [queue.answered(*names) for names in ("ab", "c", "d", "e")] == [
            [(1.0, "early")],
            [(1.25, "early")],
            [(1.75, "early")],
            [(3.5, "fine")],
        ]
        assert queue.settled == list("abcde")
        assert queue.failures == []

    in_virtual_time(scenario)


def test_clients_get_the_error_at_once_if_too_few_replicas_are_left_and_decisions_are_settled_later() -> None:
    async def scenario() -> None:
        queue = Queue(timeout_s=100.0)
        queue.decide("a", "b")
        queue.decide("c")
        await asyncio.sleep(1)
        queue.partition.fail(TOO_FEW)
        await asyncio.sleep(10 * UNDER_MIN_ISR_PAUSE_SECONDS)
        assert queue.answered(*"abc") == [(1.0, "early")]
        assert 5 <= queue.partition.waits <= 15
        queue.decide("d")
        await asyncio.sleep(UNDER_MIN_ISR_PAUSE_SECONDS)
        assert [result for _, result in queue.answered("d")] == ["early"]
        queue.partition.failing = None
        await asyncio.sleep(1)
        assert queue.settled == []
        queue.partition.catch_up()
        await asyncio.sleep(1)
        assert queue.settled == list("abcd")
        assert queue.failures == []

    in_virtual_time(scenario)


def test_decisions_are_settled_if_replicas_return_and_no_further_request_arrives() -> None:
    async def scenario() -> None:
        queue = Queue()
        queue.decide("a")
        await asyncio.sleep(0)
        queue.partition.fail(TOO_FEW)
        await asyncio.sleep(0)
        queue.partition.failing = None
        queue.partition.catch_up()
        await asyncio.sleep(1)
        assert queue.settled == ["a"]

    in_virtual_time(scenario)


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_wait_that_ends_before_the_high_watermark_moves_lets_other_tasks_run(behind: int) -> None:
    async def scenario() -> None:
        queue = Queue()
        queue.partition.log_end_offset = 2

        async def at_once(offset: int) -> None:
            pass

        queue.partition.committed = at_once  # type: ignore[method-assign]
        queue.decide("a")
        for offset in range(3 - behind, 4):
            queue.partition.high_watermark = offset
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert queue.settled == ["a"]

    in_virtual_time(scenario)


def test_error_of_the_log_is_reported_once_and_clients_are_left_to_the_coordinator() -> None:
    async def scenario() -> None:
        queue = Queue()
        failed = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "gone")

        def stop(error: KafkaError) -> None:
            queue.failures.append(error)
            left.extend(queue.commits.stop())

        left: list[Commit] = []
        queue.commits._failed = stop
        queue.decide("a", "b")
        queue.decide("c")
        await asyncio.sleep(0)
        queue.partition.fail(failed)
        await asyncio.sleep(5)
        assert queue.failures == [failed]
        assert [commit.result for commit in left] == list("abc")
        assert queue.answers == []
        assert queue.settled == []

    in_virtual_time(scenario)


def test_stopped_queue_is_empty_and_settles_nothing_more() -> None:
    async def scenario() -> None:
        queue = Queue()
        queue.decide("a")
        queue.decide("b")
        await asyncio.sleep(0.5)
        assert [commit.result for commit in queue.commits.stop()] == ["a", "b"]
        assert not queue.commits
        queue.partition.catch_up()
        await asyncio.sleep(0.5)
        queue.decide("c")
        queue.partition.catch_up()
        await asyncio.sleep(10)
        assert queue.settled == []
        assert queue.answers == []
        assert [commit.result for commit in queue.commits.stop()] == ["c"]

    in_virtual_time(scenario)


def test_commit_answers_no_client_that_has_left() -> None:
    """A client that has left cancels its future; the other clients of the decision still get the error."""

    async def scenario() -> None:
        for left in range(3):
            turn = PlainTurn(0, 0)
            futures = [token(), token(), token()]
            turn.replies = [(one, "fine") for one in futures[:2]]
            commit = Commit(turn, "result", futures[2])
            futures[left].cancel()
            commit.fail(KafkaError(ErrorCode.NOT_COORDINATOR, "no"))
            assert turn.replies == []
            others = [one for one in futures if one is not futures[left]]
            assert [code_of(one) for one in others] == [ErrorCode.NOT_COORDINATOR] * 2
        Commit(PlainTurn(0, 0), None, None).fail(KafkaError(ErrorCode.NOT_COORDINATOR, "no"))

    in_virtual_time(scenario)


def test_client_that_left_does_not_keep_later_decisions_from_their_clients() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        coordinator = plain(partition)
        first = future_of(coordinator.run(write(b"a")))
        second = future_of(coordinator.run(write(b"b")))
        first.cancel()
        await asyncio.sleep(1)
        partition.catch_up()
        assert await second == b"b"

    in_virtual_time(scenario)
