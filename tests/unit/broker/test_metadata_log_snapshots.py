"""Tests when the metadata log writes snapshots, what a snapshot replaces, and snapshots that a leader sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from metadata_stage import FEATURES, NEVER, PATH, MetadataStage, config, play, settle

from penstock.broker.controlplane.metadata_log import SnapshotPolicy
from penstock.metadata.apply import apply
from penstock.metadata.checkpoint import checkpoint_name, read_checkpoint, write_checkpoint
from penstock.metadata.image import EMPTY_IMAGE
from penstock.metadata.snapshot import records_of
from penstock.protocol.persisted.metadata.begin_transaction_record import BeginTransactionRecord
from penstock.protocol.persisted.metadata.end_transaction_record import EndTransactionRecord
from penstock.protocol.persisted.metadata.topic_record import TopicRecord
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.voters import Voter

ALWAYS = SnapshotPolicy(bytes_between=1, bytes_at_least=1)


class Gate:
    """Holds every write of a snapshot back until the test opens the gate."""

    def __init__(self, stage: MetadataStage) -> None:
        self.writes = 0
        self._open = asyncio.Event()
        self._run = stage.disk.run
        stage.disk.run = self._wait  # type: ignore[method-assign]

    async def _wait(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.writes += 1
        await self._open.wait()
        return await self._run(function, *args, **kwargs)

    def open(self) -> None:
        self._open.set()


async def change(stage: MetadataStage, *records: Any) -> None:
    task = stage.submit(*records)
    await asyncio.sleep(0)
    stage.commit()
    await task
    await settle()


def test_bytes_before_the_next_snapshot_follow_the_last_snapshot_between_both_limits() -> None:
    for low, high, last in product((1, 5, 9), (5, 9, 20), range(25)):
        policy = SnapshotPolicy(bytes_between=high, bytes_at_least=low)
        assert policy.due_bytes(last) == min(high, max(low, last))


def test_snapshot_replaces_the_log_before_it_and_the_quorum_learns_of_it() -> None:
    async def script() -> None:
        stage = MetadataStage()
        stage.quorum.voters = (Voter(1, bytes(15) + b"\x01"), Voter(2, bytes(15) + b"\x02"))
        await stage.leading(4)
        stage.write_control(4)  # snapshots have the voters from kraft.version 1 on
        stage.commit()
        for name in ("a", "b"):
            await change(stage, config(name))
        first = stage.log.log_end_offset
        assert await stage.metadata.snapshot() == checkpoint_name(first, 4)
        assert (stage.log.log_start_offset, stage.snapshots()) == (first, [first])
        assert stage.quorum.taken == [(OffsetAndEpoch(first, 4), first)]
        await change(stage, config("c"))
        waiting = stage.submit(config("not committed yet"))
        await settle()
        second = stage.image.offset + 1
        name = await stage.metadata.snapshot()
        assert name == checkpoint_name(second, 4)
        assert (stage.log.log_start_offset, stage.snapshots()) == (second, [second])
        assert stage.quorum.taken[1:] == [(OffsetAndEpoch(second, 4), second)]
        content = read_checkpoint(stage.disk.read_bytes(f"{PATH}/{name}"))
        assert content.voters == stage.quorum.voters
        image = apply(EMPTY_IMAGE, content.records, offset=stage.image.offset, epoch=4)
        assert image.configs == stage.image.configs
        # A segment that has an uncommitted record is kept.
        bases = sorted(int(file[:20]) for file in stage.disk.listdir(PATH) if file.endswith(".log"))
        assert bases == [first, second + 1]
        stage.commit()
        await waiting

    play(script)


def test_leader_and_follower_write_a_snapshot_when_enough_bytes_were_added() -> None:
    async def script(leads: bool) -> None:
        sizes = []
        probe = MetadataStage()
        await probe.leading()
        for name in "abcdef":
            before = probe.log.size
            await change(probe, config(name))
            sizes.append(probe.log.size - before)
        begin = probe.log.log_end_offset - 6
        limit = sum(sizes[:3])
        stage = MetadataStage(policy=SnapshotPolicy(bytes_between=limit, bytes_at_least=limit))
        await stage.leading()
        await stage.metadata.snapshot()
        if not leads:
            stage.role("follower", 1, 2)
        for index, name in enumerate("abcdef", start=1):
            if leads:
                await change(stage, config(name))
            else:
                stage.write(config(name))
                stage.commit()
                await settle()
            assert stage.snapshots() == [begin + index // 3 * 3], (leads, index)

    for leads in (False, True):
        play(lambda leads=leads: script(leads))  # type: ignore[misc]


def test_next_snapshot_waits_for_as_many_bytes_as_the_last_snapshot_has() -> None:
    async def script() -> None:
        stage = MetadataStage(policy=SnapshotPolicy(bytes_between=1 << 40, bytes_at_least=1))
        await stage.leading()
        await settle()
        await change(stage, *(config(f"t{number}") for number in range(50)))
        await settle()
        (large,) = stage.snapshots()
        size = stage.disk.size(f"{PATH}/{checkpoint_name(large, 1)}")
        begin = stage.log.size
        while stage.snapshots() == [large]:
            before = stage.log.size - begin
            assert before < size
            await change(stage, config("small"))
        assert stage.snapshots()[0] > large + 2

    play(script)


def test_snapshot_is_written_after_the_interval_if_there_is_a_new_record() -> None:
    async def script() -> None:
        stage = MetadataStage(policy=SnapshotPolicy(1 << 40, interval_ms=1000, bytes_at_least=1 << 40))
        await stage.leading()
        base = stage.log.log_end_offset
        for index, (wait_ms, is_written) in enumerate(
            ((0, False), (999, False), (1, True), (1, False), (998, False), (1, True), (5000, True)), start=1
        ):
            before = stage.snapshots()
            stage.clock.advance(wait_ms)
            await settle()
            assert stage.snapshots() == before
            await change(stage, config("a"))
            assert stage.snapshots() == ([base + index] if is_written else before), index

    play(script)


def test_no_snapshot_is_tried_inside_a_metadata_transaction(caplog: pytest.LogCaptureFixture) -> None:
    async def script() -> None:
        stage = MetadataStage(policy=ALWAYS)
        await stage.leading()
        await settle()
        before = stage.snapshots()
        await change(stage, BeginTransactionRecord(name="x"))
        await change(stage, config("inside"))
        stage.metadata.snapshot_damaged()
        await settle()
        assert stage.snapshots() == before
        await change(stage, EndTransactionRecord())
        assert stage.snapshots() == [stage.log.log_end_offset]
        assert not caplog.records  # a failed snapshot would be an error in the log

    play(script)


def test_one_snapshot_is_written_at_a_time_and_the_next_one_can_follow() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()
        gate = Gate(stage)
        for _ in range(3):
            stage.metadata.snapshot_damaged()
            await settle()
        assert gate.writes == 1
        gate.open()
        await settle()
        assert stage.snapshots() == [stage.log.log_end_offset]
        stage.metadata.snapshot_damaged()
        await settle()
        assert gate.writes == 2

    play(script)


def test_snapshot_that_cannot_be_written_is_tried_again_later() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()

        def full(operation: str, path: str) -> None:
            if ".checkpoint" in path:
                raise OSError(28, "No space left on device")

        stage.disk.on_write = full
        stage.metadata.snapshot_damaged()
        await settle()
        assert (stage.snapshots(), stage.quorum.taken, stage.log.log_start_offset) == ([], [], 0)
        stage.disk.on_write = None
        stage.metadata.snapshot_damaged()
        await settle()
        assert stage.snapshots() == [stage.log.log_end_offset]

    play(script)


def test_stop_waits_for_a_snapshot_that_is_being_written_but_a_crash_does_not() -> None:
    async def script(stops: bool) -> None:
        stage = MetadataStage()
        await stage.leading()
        gate = Gate(stage)
        stage.metadata.snapshot_damaged()
        await settle()
        if stops:
            closing = asyncio.ensure_future(stage.metadata.close())
            await settle()
            assert (closing.done(), stage.quorum.calls, stage.log.health.closed) == (False, [], False)
            gate.open()
            await closing
            assert (len(stage.snapshots()), stage.quorum.calls, stage.log.health.closed) == (1, ["close"], True)
        else:
            await stage.metadata.abandon()
            await settle()
            gate.open()
            await settle()
            assert (stage.snapshots(), stage.quorum.calls) == ([], ["abandon"])

    for stops in (False, True):
        play(lambda stops=stops: script(stops))  # type: ignore[misc]


@pytest.mark.parametrize("ahead", [1, 2, 10])
def test_own_snapshot_is_not_reported_if_a_newer_snapshot_was_installed_meanwhile(ahead: int) -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()
        gate = Gate(stage)
        own = asyncio.ensure_future(stage.metadata.snapshot())
        await settle()
        end = stage.image.offset + 1
        install(stage, OffsetAndEpoch(end + ahead, 2), *records_of(stage.image))
        gate.open()
        await own
        assert stage.quorum.taken == []
        assert stage.log.log_start_offset == stage.image.offset + 1 == end + ahead

    play(script)


def install(stage: MetadataStage, snapshot: OffsetAndEpoch, *records: Any) -> None:
    """Acts as the quorum does after it has downloaded a snapshot."""
    data = b"".join(write_checkpoint(records, epoch=snapshot.epoch, timestamp_ms=1))
    stage.disk.write_atomic(f"{PATH}/{checkpoint_name(*snapshot)}", data)
    stage.log.truncate_fully_and_start_at(snapshot.offset)
    stage.metadata.snapshot_installed(snapshot)


def test_installed_snapshot_is_shown_as_a_change_of_everything_that_is_old_or_new() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.metadata.start()
        stage.role("follower", 1, 2)
        topics = [TopicRecord(name=name, topic_id=bytes([number] * 16)) for number, name in enumerate("abc", start=1)]
        stage.write(FEATURES)
        for record in (topics[0], topics[1], config("a"), config("b")):
            stage.write(record)
            stage.commit()
        old = stage.image
        stage.shown.clear()
        stage.metadata.answers["key"] = "an answer of the old image"
        install(stage, OffsetAndEpoch(20, 3), FEATURES, topics[1], topics[2], config("b"), config("c"))
        ((before, new),) = stage.shown
        assert before is old
        assert new is stage.image
        assert (new.offset, new.epoch, sorted(new.topics)) == (19, 3, ["b", "c"])
        assert new.version > old.version
        assert new.changes.base_version == old.version
        assert new.changes.topics == {"a", "b", "c"}
        assert new.changes.configs == {(2, name) for name in "abc"}
        assert new.changes.brokers == frozenset()
        assert (new.changes.client_quotas, new.changes.features) == (True, True)
        assert stage.metadata.answers == {}
        stage.shown.clear()
        stage.write(config("d"), epoch=3)
        stage.commit()
        ((_, later),) = stage.shown
        assert later.changes.configs == {(2, "d")}
        assert later.version > new.version

    play(script)


def test_bytes_before_an_installed_snapshot_do_not_count_for_the_next_snapshot() -> None:
    async def script() -> None:
        probe = MetadataStage()
        probe.write(FEATURES)
        probe.write(config("a"))
        limit = probe.log.size + 1
        stage = MetadataStage(policy=SnapshotPolicy(bytes_between=limit, bytes_at_least=limit))
        await stage.metadata.start()
        stage.role("follower", 1, 2)
        stage.write(FEATURES)
        stage.write(config("a"))
        stage.commit()
        install(stage, OffsetAndEpoch(20, 3), FEATURES)
        stage.write(config("b"), epoch=3)
        stage.commit()
        await settle()
        assert stage.snapshots() == [20]

    play(script)


def test_uncommitted_decisions_of_a_deposed_leader_do_not_return_after_a_snapshot_of_the_next_leader() -> None:
    async def script() -> None:
        stage = MetadataStage(policy=NEVER)
        await stage.leading()
        task = stage.submit(config("lost"))
        await settle()
        stage.role("follower", 2, 2)
        await asyncio.gather(task, return_exceptions=True)
        install(stage, OffsetAndEpoch(30, 2), FEATURES, config("kept"))
        stage.write(config("next"), epoch=2)
        stage.commit()
        assert {name for _, name in stage.image.configs} == {"kept", "next"}
        stage.lead(3)
        later = stage.submit(config("own"))
        await settle()
        stage.commit()
        await later
        assert {name for _, name in stage.image.configs} == {"kept", "next", "own"}

    play(script)
