"""Tests moves that end late: a cancelled copy with a write under way, an error after the swap, a changed rate."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from disk_node import A, B, DiskNode, contents, soon
from replica_cluster import run

from penstock.broker.replicas import replica_move
from penstock.log.future_log import FutureLog
from penstock.log.future_logs import FutureLogs, Retired
from penstock.metadata.image import ImageChanges
from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import ResourceType
from penstock.replication.directory_move import MoveState

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


async def with_logs_in_a(*names: str) -> DiskNode:
    node = await DiskNode().start()
    for name in names:
        node.move(A, name)
    node.create(*names)
    for name in names:
        node.write(20, topic=name)
    return node


@pytest.mark.parametrize("ending", ["settle", "close"])
def test_stop_waits_for_the_last_write_of_every_cancelled_move(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release, writes = asyncio.Event(), 0

    async def slow(self: FutureLog, max_bytes: int) -> int:
        nonlocal writes
        writes += 1
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()  # a thread writes: the cancelled copy has to wait for it
        return 0

    monkeypatch.setattr(FutureLog, "copy", slow)

    async def scenario() -> None:
        node = await with_logs_in_a("t", "u")
        for name in ("t", "u"):
            node.move(B, name)
        await soon(lambda: writes == 2)
        assert [node.moves.cancel(name, 0) for name in ("t", "u")] == [True, True]
        assert (node.moves.figures(), node.names(B)) == ([], ["t-0-future", "u-0-future"])
        waiting = asyncio.ensure_future(node.moves.settle() if ending == "settle" else node.moves.close())
        await asyncio.sleep(1)
        assert not waiting.done()
        release.set()
        await asyncio.wait_for(waiting, 5)
        assert node.names(B) == ["t-0-delete", "u-0-delete"]
        assert node.moves.counts[MoveState.CANCELLED] == len(node.moves.ended) == 2
        await node.stop()

    run(scenario())


def test_error_of_the_program_after_the_swap_leaves_the_new_log_in_use(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")

    async def broken(self: FutureLogs, retired: Retired) -> None:
        raise ValueError("seven")

    monkeypatch.setattr(FutureLogs, "retire", broken)

    async def scenario() -> None:
        node = await with_logs_in_a("t")
        before = contents(node.log())
        node.move(B)
        await asyncio.wait_for(node.moves.settle(), 5)
        assert (node.log().log_dir, contents(node.log())) == (B, before)
        assert (node.moves.figures(), node.reverted) == ([], [])
        assert node.names(B) == ["t-0"]
        node.write(3)
        assert len(contents(node.log())) > len(before)
        await node.stop()

    run(scenario())


def test_moved_log_leaves_nothing_in_its_old_directory_but_files_for_removal() -> None:
    async def scenario() -> None:
        node = await with_logs_in_a("t", "u")
        node.move(B)
        await asyncio.wait_for(node.moves.settle(), 5)
        assert (node.names(A), node.names(B)) == (["t-0-delete", "u-0"], ["t-0"])
        assert node.move(A) is ErrorCode.NONE, "the old directory can be used again"
        await asyncio.wait_for(node.moves.settle(), 5)
        assert (node.log().log_dir, node.names(B)) == (A, ["t-0-delete"])
        await node.stop()

    run(scenario())


def test_throttled_copy_follows_a_higher_limit_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_move, "CHUNK_BYTES", 1024)

    def limited(node: DiskNode, rate: int) -> None:
        old = node.image
        assert old is not None
        key = (int(ResourceType.BROKER), "")
        configs = {**old.configs, key: {RATE: str(rate)}}
        changes = ImageChanges(old.version, configs=frozenset({key}))
        node.apply(replace(old, version=old.version + 1, configs=configs, changes=changes))

    async def scenario() -> None:
        node = await with_logs_in_a("t")
        node.write(200)
        limited(node, 1)
        node.move(B)
        await asyncio.sleep(30)
        [copying] = node.moves.figures()
        assert (copying.state, copying.copied_bytes < 10_000) == (MoveState.COPYING, True)
        began = asyncio.get_running_loop().time()
        limited(node, 1_000_000)
        await asyncio.wait_for(node.moves.settle(), 60)
        assert asyncio.get_running_loop().time() - began < 2
        assert node.log().log_dir == B
        await node.stop()

    run(scenario())
