"""Tests moves between log directories as the broker manages them: requests, restarts, cancellation, errors."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest
from disk_node import A, B, C, DiskNode, contents, refuse, soon
from replica_cluster import run

from penstock.broker.replicas import directory_moves
from penstock.log.future_log import FutureLog
from penstock.log.future_logs import FutureLogs, Retired
from penstock.protocol.errors import ErrorCode
from penstock.replication.directory_move import MoveState

THROTTLED = {"replica.alter.log.dirs.io.max.bytes.per.second": "1"}


async def with_logs_in_a(*names: str, settings: Mapping[str, str] | None = None) -> DiskNode:
    """Starts a node, and creates topics with 20 records each in the directory A."""
    node = await DiskNode(settings=settings).start()
    for name in names:
        node.move(A, name)
    node.create(*names)
    for name in names:
        node.write(20, topic=name)
    return node


async def in_time(work: Coroutine[Any, Any, None]) -> None:
    await asyncio.wait_for(work, 30)


def test_node_moves_two_replicas_and_reports_the_start_the_end_and_the_copied_bytes_of_each_move() -> None:
    async def scenario() -> None:
        node = await with_logs_in_a("t", "u")
        before = {name: contents(node.log(name)) for name in ("t", "u")}
        assert [node.move(B, "t"), node.move(C, "u")] == [ErrorCode.NONE, ErrorCode.NONE]
        assert {(each.topic, each.source, each.target) for each in node.moves.figures()} == {("t", A, B), ("u", A, C)}
        await in_time(node.moves.settle())
        assert {name: contents(node.log(name)) for name in ("t", "u")} == before
        assert [node.log(name).log_dir for name in ("t", "u")] == [B, C]
        assert node.assigned == [("t", 0, B), ("u", 0, C)]
        assert (node.states("t"), node.states("u")) == (["begun", "done"], ["begun", "done"])
        assert node.moves.figures() == []
        assert [(each.topic, each.state) for each in node.moves.ended] == [("t", MoveState.DONE), ("u", MoveState.DONE)]
        assert node.moves.counts == {MoveState.DONE: 2, MoveState.FAILED: 0, MoveState.CANCELLED: 0}
        assert node.moves.copied_bytes == sum(each.copied_bytes for each in node.moves.ended) > 0
        await node.stop()

    run(scenario())


def test_one_copier_moves_the_replicas_one_after_the_other() -> None:
    async def scenario() -> None:
        node = await with_logs_in_a("t", "u", settings={"num.replica.alter.log.dirs.threads": "1"})
        answer = asyncio.Event()
        node.answer_assignment = answer.wait
        node.move(B, "t")
        node.move(C, "u")
        await soon(lambda: node.assigned == [("t", 0, B)])
        assert [each.state for each in node.moves.figures()] == [MoveState.CAUGHT_UP, MoveState.REQUESTED]
        answer.set()
        await in_time(node.moves.settle())
        assert node.assigned == [("t", 0, B), ("u", 0, C)]
        await node.stop()

    run(scenario())


@pytest.mark.parametrize("known", [False, True])
def test_directory_requested_before_the_replica_exists_is_remembered_until_its_first_use(known: bool) -> None:
    async def scenario() -> None:
        node = await DiskNode().start()
        code = node.moves.request("t", 0, node.directory(C), None, exists=known)
        assert code is (ErrorCode.REPLICA_NOT_AVAILABLE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        node.move(B)
        assert node.moves.remembered("t", 0) is node.directory(B), "the last request counts"
        assert node.moves.remembered("t", 0) is None
        node.move(B)
        node.logs.take_offline(node.directory(B), OSError(errno.EIO, "broken"))
        assert node.moves.remembered("t", 0) is None
        await node.stop()

    run(scenario())


def test_node_remembers_a_limited_number_of_requested_directories_and_forgets_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory_moves, "MAX_REMEMBERED", 2)

    async def scenario() -> None:
        node = await DiskNode().start()
        for name, target in (("t", A), ("u", B), ("t", C), ("v", C)):
            node.move(target, name)
        found = {name: node.moves.remembered(name, 0) for name in ("t", "u", "v")}
        assert found == {"t": node.directory(C), "u": None, "v": node.directory(C)}
        await node.stop()

    run(scenario())


def test_directory_that_was_requested_for_a_deleted_topic_is_forgotten() -> None:
    async def scenario() -> None:
        node = await with_logs_in_a("t", "u")
        node.moves.request("t", 0, node.directory(C), None)
        node.moves.request("u", 0, node.directory(C), None)
        node.delete("t")
        assert node.moves.remembered("t", 0) is None
        assert node.moves.remembered("u", 0) is node.directory(C)
        await node.stop()

    run(scenario())


@pytest.mark.parametrize("how", ["cancel", "move back", "delete"])
def test_cancelled_move_leaves_no_copy_and_reports_the_cancellation(how: str) -> None:
    async def scenario() -> None:
        node = await with_logs_in_a("t", "u", settings=THROTTLED)
        node.move(B, "t")
        node.move(B, "u")
        await soon(lambda: any(each.copied_bytes for each in node.moves.figures()))
        if how == "cancel":
            assert node.moves.cancel("t", 0)
            assert not node.moves.cancel("t", 0)
        elif how == "move back":
            assert node.move(A, "t") is ErrorCode.NONE
        else:
            node.delete("t")
        assert [each.topic for each in node.moves.figures()] == ["u"]
        await soon(lambda: node.states("t") == ["begun", "cancelled"])
        assert node.moves.ended[0].reason
        assert node.names(B) == ["t-0-delete", "u-0-future"]
        assert node.names(A) == (["t-0-delete", "u-0"] if how == "delete" else ["t-0", "u-0"])
        assert node.moves.counts[MoveState.CANCELLED] == 1
        assert (node.assigned, node.reverted) == ([], [])
        assert node.moves.cancel("u", 0)
        await in_time(node.moves.settle())
        await node.stop()

    run(scenario())


def test_cancellation_after_the_report_to_the_controller_reports_the_old_directory_again() -> None:
    async def scenario() -> None:
        node = await with_logs_in_a("t")
        node.answer_assignment = asyncio.Event().wait
        node.move(B)
        await soon(lambda: node.assigned == [("t", 0, B)])
        assert node.moves.cancel("t", 0)
        assert node.reverted == [("t", 0, A)]
        await in_time(node.moves.settle())
        assert (node.log().log_dir, node.names(B)) == (A, ["t-0-delete"])
        node.write(1)
        await node.stop()

    run(scenario())


def test_new_target_replaces_a_running_move() -> None:
    async def scenario() -> None:
        node = await with_logs_in_a("t", settings=THROTTLED)
        node.move(B)
        await soon(lambda: any(each.copied_bytes for each in node.moves.figures()))
        assert node.move(C) is ErrorCode.NONE
        assert [each.target for each in node.moves.figures()] == [C]
        await soon(lambda: node.states() == ["begun", "begun", "cancelled"])
        assert (node.names(B), node.names(C)) == (["t-0-delete"], ["t-0-future"])
        assert node.move(C) is ErrorCode.NONE, "the same target again"
        assert len(node.states()) == 3
        await node.stop()

    run(scenario())


def test_move_that_swaps_its_logs_can_not_be_cancelled_replaced_or_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    retire = FutureLogs.retire
    release = asyncio.Event()

    async def held(self: FutureLogs, retired: Retired) -> None:
        await release.wait()
        await retire(self, retired)

    monkeypatch.setattr(FutureLogs, "retire", held)

    async def scenario() -> None:
        node = await with_logs_in_a("t", "u")
        node.move(B)
        node.move(B, "u")
        await soon(lambda: [each.state for each in node.moves.figures()] == [MoveState.SWAPPING] * 2)
        assert not node.moves.cancel("t", 0)
        assert node.move(C) is ErrorCode.KAFKA_STORAGE_ERROR
        node.delete("t")
        closing = asyncio.ensure_future(node.moves.close())
        await asyncio.sleep(1)
        assert not closing.done()
        release.set()
        await in_time(asyncio.wait_for(closing, 5))
        assert (node.states("t"), node.states("u")) == (["begun", "done"], ["begun", "done"])
        await node.stop()

    run(scenario())


@pytest.mark.parametrize("compact", [False, True])
def test_moves_resume_after_a_restart_and_a_compacted_log_is_copied_from_its_start(compact: bool) -> None:
    async def scenario() -> None:
        node = await DiskNode(settings=THROTTLED).start()
        node.move(A)
        node.move(A, "u")
        node.create("t", "u", cleanup_policy="compact" if compact else "delete")
        for name in ("t", "u"):
            node.write(20, topic=name)
            node.move(B, name)
        await soon(lambda: len([each for each in node.moves.figures() if each.copied_bytes]) > 0)
        copied = sum(each.copied_bytes for each in node.moves.figures())
        total = node.log("t").size + node.log("u").size
        assert node.image is not None
        image = node.image
        await asyncio.wait_for(node.stop(), 30)
        assert (node.moves.figures(), node.states()) == ([], ["begun"])
        again = await DiskNode(node.disk).start(image)
        await again.partitions.settle()
        assert [(each.topic, each.target) for each in again.moves.figures()] == [("t", B), ("u", B)]
        for name in ("t", "u"):
            again.moves.resume(again.partitions.get(name, 0), again.log(name))
        assert len(again.moves.figures()) == 2, "a running move is not begun again"
        await in_time(again.moves.settle())
        assert again.moves.counts[MoveState.DONE] == 2
        assert again.names(B) == (["t-0", "t-0-delete", "u-0", "u-0-delete"] if compact else ["t-0", "u-0"])
        left = total if compact else total - copied
        assert left - 2 * 1024 <= again.moves.copied_bytes <= left
        await again.stop()

    run(scenario())


def test_move_that_can_not_be_resumed_leaves_the_log_in_its_directory() -> None:
    async def scenario() -> None:
        node = await DiskNode(settings=THROTTLED).start()
        node.move(A)
        node.create("t", cleanup_policy="compact")
        node.write(20)
        node.move(B)
        assert node.image is not None
        image = node.image
        await node.stop()

        def full(kind: str, path: str) -> None:
            if kind == "mkdir" and path.startswith(f"{B}/t-0"):
                raise OSError(errno.ENOSPC, "no space left on device", path)

        node.disk.on_write = full
        again = await DiskNode(node.disk).start(image)
        await again.partitions.settle()
        assert (again.moves.figures(), again.states()) == ([], [])
        assert (again.log().log_dir, again.log().log_end_offset) == (A, 20)
        again.write(1)
        await again.stop()

    run(scenario())


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError(errno.EIO, "input/output error"), "input/output error"), (ValueError("seven"), "seven")],
)
def test_move_that_fails_with_a_disk_error_or_an_unexpected_error_ends_as_failed(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copy = FutureLog.copy

    async def failing(self: FutureLog, max_bytes: int) -> int:
        if self.current.topic == "u":
            return await copy(self, max_bytes)
        raise self.log.health.failed(error) if isinstance(error, OSError) else error

    monkeypatch.setattr(FutureLog, "copy", failing)
    caplog.set_level("CRITICAL")

    async def scenario() -> None:
        node = await with_logs_in_a("t", "u")
        node.move(B)
        node.move(C, "u")
        await in_time(node.moves.settle())
        assert (node.states("t"), node.states("u")) == (["begun", "failed"], ["begun", "done"])
        assert reason in next(each.reason for each in node.moves.ended if each.topic == "t")
        assert node.moves.counts[MoveState.FAILED] == 1
        assert node.directory(B).offline is isinstance(error, OSError)
        assert node.names(B) == (["t-0-future"] if node.directory(B).offline else ["t-0-delete"])
        assert (node.log().log_dir, node.reverted) == (A, [])
        assert node.move(C) is ErrorCode.NONE, "a failed move does not block the next one"
        await node.stop()

    run(scenario())


def test_move_that_the_controller_refuses_fails_and_reports_the_old_directory_again() -> None:
    async def scenario() -> None:
        node = await with_logs_in_a("t")
        node.answer_assignment = refuse
        node.move(B)
        await in_time(node.moves.settle())
        assert (node.states(), node.reverted) == (["begun", "failed"], [("t", 0, A)])
        assert (node.log().log_dir, node.names(B)) == (A, ["t-0-delete"])
        await node.stop()

    run(scenario())


def test_copy_is_kept_if_the_directory_of_the_current_log_fails_during_the_move() -> None:
    async def scenario() -> None:
        node = await with_logs_in_a("t")
        node.answer_assignment = refuse
        node.move(B)
        await soon(lambda: any(each.copied_bytes for each in node.moves.figures()))
        node.logs.take_offline(node.directory(A), OSError(errno.EIO, "broken"))
        await in_time(node.moves.settle())
        assert (node.states(), node.names(B)) == (["begun", "failed"], ["t-0-future"])
        assert node.move(C) is ErrorCode.KAFKA_STORAGE_ERROR
        await node.stop()

    run(scenario())


def test_stop_of_a_node_ends_every_running_copy_and_keeps_the_copied_files() -> None:
    async def scenario() -> None:
        node = await with_logs_in_a("t", "u", "v", settings=THROTTLED)
        for name in ("t", "u", "v"):
            node.move(B, name)
        await soon(lambda: any(each.copied_bytes for each in node.moves.figures()))
        copies = {task for task in asyncio.all_tasks() if task.get_name().startswith("the move of")}
        assert len(copies) == 3
        await asyncio.wait_for(node.moves.close(), 5)
        assert all(task.done() for task in copies)
        assert node.names(B) == ["t-0-future", "u-0-future", "v-0-future"]
        await node.stop()

    run(scenario())
