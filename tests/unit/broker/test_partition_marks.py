"""Tests one replica alone: the epochs that it knows, its watermarks, and whom it notifies when they move."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from functools import partial

import pytest
from one_replica import EPOCH, LED, SOLE, Replica, code_of
from replica_cluster import batch, run

from penstock.broker.replicas import partition as partition_module
from penstock.log.flush import make_countable
from penstock.log.log import Log
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError


def test_leader_knows_epoch_ends_up_to_its_current_epoch_and_follower_up_to_the_last_epoch_in_its_log() -> None:
    async def scenario() -> None:
        replica = await Replica(LED).start()
        partition = replica.partition
        assert [partition.epoch_end(epoch) for epoch in (-1, 0, 1, 2)] == [(-1, -1), (0, 0), (1, 0), (-1, -1)]
        replica.append(b"a", b"b")
        replica.change(leader_epoch=3)
        replica.append(b"c")
        replica.change(leader_epoch=6)
        asked = range(-1, 8)
        known = {-1: (-1, -1), 0: (0, 0), 1: (1, 2), 2: (1, 2), 3: (3, 3)}
        led = {**known, 4: (3, 3), 5: (3, 3), 6: (6, 3), 7: (-1, -1)}
        followed = {**known, **dict.fromkeys((4, 5, 6, 7), (-1, -1))}
        assert {epoch: partition.epoch_end(epoch) for epoch in asked} == led
        assert [partition.epoch_at(offset) for offset in range(5)] == [1, 1, 3, 6, 6]
        replica.change(leader=2)
        assert {epoch: partition.epoch_end(epoch) for epoch in asked} == followed

    run(scenario())


def test_leader_that_is_elected_again_asks_its_followers_for_their_positions_again() -> None:
    async def scenario() -> None:
        replica = await Replica(replace(LED, isr=(1, 2))).start()
        leader = replica.partition
        replica.append(b"a")
        replica.fetch(2, 1)
        assert leader.log.high_watermark == 1
        replica.append(b"b")
        replica.change(leader_epoch=2)
        replica.append(b"c")
        assert leader.leading is not None
        assert (leader.leading.leader_epoch, leader.leading.epoch_start) == (2, 2)
        assert {each: one.log_end for each, one in leader.leading.followers.items()} == {2: -1, 3: -1}
        replica.fetch(3, 1)
        assert replica.proposals == [], "the follower lacks records of the earlier epoch"
        replica.fetch(3, 2)
        assert [each and (each.isr, each.leader_epoch) for each in replica.proposals] == [((1, 2, 3), 2)]

    run(scenario())


def test_error_of_a_follower_names_the_leader_or_says_that_no_leader_is_elected() -> None:
    async def scenario() -> None:
        replica = await Replica(LED).start()
        told = []
        for leader in (0, 2, -1):
            replica.change(leader=leader)
            with pytest.raises(KafkaError) as refused:
                replica.partition.leader_log()
            told.append(refused.value.message or "")
        assert ["node 0" in told[0], "node 2" in told[1], "not elected" in told[2]] == [True] * 3

    run(scenario())


@pytest.mark.parametrize("sole", [True, False])
def test_append_notifies_followers_immediately_but_consumers_and_commit_waiters_only_after_the_commit(
    sole: bool,
) -> None:
    async def scenario() -> None:
        replica = await Replica(SOLE if sole else LED).start()
        partition, log = replica.partition, replica.partition.log
        for _ in range(2):
            replica.park()
            before = log.size
            waiting = partition.waiters.commit(log.log_end_offset + 1)
            end = replica.append(b"a")
            size = log.size - before
            if sole:
                assert (replica.consumer.notified, waiting.done()) == ([size], True)
            else:
                assert (replica.follower.notified, replica.consumer.notified) == ([size], [])
                assert partition.when_committed(end) is not None
                replica.fetch(2, end)
                assert (log.high_watermark, waiting.done()) == (end - 1, False)
                replica.fetch(3, end)
                assert (log.high_watermark, waiting.done()) == (end, True)
                assert (replica.follower.notified, replica.consumer.notified) == ([size], [size])
            assert partition.when_committed(end) is None
            assert (replica.consumer.abandoned, replica.follower.abandoned) == (0, 0)
            partition.waiters.unpark(replica.consumer)
            partition.waiters.unpark(replica.follower)

    run(scenario())


def test_append_to_a_sole_replica_completes_commit_waiters_even_without_parked_fetches() -> None:
    async def scenario() -> None:
        replica = await Replica(SOLE).start()
        waiting = [replica.partition.waiters.commit(offset) for offset in (1, 2)]
        replica.append(b"a")
        assert [each.done() for each in waiting] == [True, False]
        replica.append(b"b")
        assert [each.done() for each in waiting] == [True, True]

    run(scenario())


def test_consumers_are_told_the_average_size_of_the_newly_committed_records() -> None:
    async def scenario() -> None:
        replica = await Replica(replace(LED, replicas=(1, 2), isr=(1, 2))).start()
        log = replica.partition.log
        for _ in range(4):
            replica.append(b"x" * 50)
        size = log.size // 4
        seen = []
        for offset in (1, 3, 4):
            replica.park()
            replica.fetch(2, offset)
            seen.append(replica.consumer.notified)
            replica.partition.waiters.unpark(replica.consumer)
        assert seen == [[size], [2 * size], [size]]
        log.truncate_fully_and_start_at(4)
        assert partition_module._estimated_bytes(log, 3) == 1

    run(scenario())


def test_average_size_leaves_out_the_offsets_of_deleted_records() -> None:
    async def scenario() -> None:
        replica = await Replica(replace(LED, replicas=(1, 2), isr=(1, 2))).start()
        replica.partition.log.truncate_fully_and_start_at(1000)
        for _ in range(4):
            replica.append(b"x" * 50)
        replica.park()
        replica.fetch(2, 1002)
        assert replica.consumer.notified == [replica.partition.log.size // 2]

    run(scenario())


def test_consumers_of_a_follower_are_not_notified_while_it_has_no_newly_committed_record() -> None:
    async def scenario() -> None:
        replica = await Replica(replace(LED, leader=2)).start()
        partition, log = replica.partition, replica.partition.log
        log.append_as_follower(batch(b"a"), 1)
        replica.park()
        partition.advance_high_watermark(log, 9)
        [first] = replica.consumer.notified
        assert (log.high_watermark, first > 0) == (1, True)
        for mark in (0, 1, 2, 9):
            partition.advance_high_watermark(log, mark)
        assert (log.high_watermark, replica.consumer.notified) == (1, [first])

    run(scenario())


def test_records_that_need_fsync_are_committed_by_one_task_after_the_disk_has_synced_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    synced = asyncio.Event()

    async def slow(log: Log) -> None:
        await synced.wait()
        await make_countable(log)

    monkeypatch.setattr(partition_module, "make_countable", slow)

    def tasks() -> int:
        return sum(each.get_name() == "high watermark of t-0" for each in asyncio.all_tasks())

    async def scenario() -> None:
        replica = await Replica(SOLE, LogConfig(flush_messages=1)).start()
        assert tasks() == 0
        waiting = [replica.partition.when_committed(replica.append(value)) for value in (b"a", b"b")]
        replica.partition.follow_disk(replica.partition.log)
        assert (tasks(), replica.partition.log.high_watermark) == (1, 0)
        synced.set()
        for each in waiting:
            assert each is not None
            await asyncio.wait_for(each, 1)
        await asyncio.sleep(0)
        assert (tasks(), replica.partition.log.high_watermark) == (0, 2)

    run(scenario())


@pytest.mark.parametrize(("leader", "replicas", "mark"), [(1, (1, 2), 0), (2, (1, 2), 0), (-1, (1,), 1), (1, (1,), 1)])
def test_disk_sync_on_one_node_commits_records_only_if_the_node_has_the_sole_replica(
    leader: int, replicas: tuple[int, ...], mark: int
) -> None:
    async def scenario() -> None:
        replica = await Replica(SOLE, LogConfig(flush_messages=1)).start()
        replica.append(b"a")
        replica.change(leader=leader, replicas=replicas, isr=replicas)
        await asyncio.sleep(1)
        log = replica.partition.log
        assert (log.countable_offset, log.high_watermark) == (1, mark)

    run(scenario())


def test_leader_waits_for_a_commit_only_in_its_own_epoch_and_only_above_the_high_watermark() -> None:
    async def scenario() -> None:
        replica = await Replica(replace(LED, replicas=(1, 2), isr=(1, 2), leader_epoch=4)).start()
        partition = replica.partition
        replica.append(b"a", b"b")
        replica.fetch(2, 1)
        assert [partition.when_committed(offset) for offset in (0, 1)] == [None, None]
        waiting = partition.when_committed(2)
        assert waiting is not None
        refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
        codes = {epoch: code_of(partial(partition.when_committed, 1, epoch)) for epoch in (-1, 3, 4, 5)}
        assert codes == {-1: ErrorCode.NONE, 3: refused, 4: ErrorCode.NONE, 5: refused}
        replica.change(leader=2)
        assert code_of(waiting.result) is refused
        assert code_of(lambda: partition.when_committed(1)) is ErrorCode.NONE
        assert code_of(lambda: partition.when_committed(2)) is refused

    run(scenario())


def test_commit_on_a_failed_disk_is_refused_at_once() -> None:
    async def scenario() -> None:
        replica = await Replica(LED).start()
        end = replica.append(b"a")
        replica.logs.take_offline(replica.logs.dirs[0], OSError(errno.EIO, "broken"))
        assert code_of(lambda: replica.partition.when_committed(end)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert not replica.partition.check_laggards(10**9)

    run(scenario())


def test_fetch_of_an_in_sync_follower_is_no_longer_quiet_after_the_leaders_disk_failed() -> None:
    async def scenario() -> None:
        replica = await Replica(replace(LED, replicas=(1, 2), isr=(1, 2))).start()
        replica.fetch(2, replica.append(b"a"))
        quiet = [replica.partition.is_quiet(2, EPOCH, 1, 0, None)]
        replica.logs.take_offline(replica.logs.dirs[0], OSError(errno.EIO, "broken"))
        quiet.append(replica.partition.is_quiet(2, EPOCH, 1, 0, None))
        assert quiet == [True, False]

    run(scenario())


def test_fetch_of_an_unknown_follower_is_refused_and_changes_nothing() -> None:
    async def scenario() -> None:
        replica = await Replica(replace(LED, replicas=(1, 2), isr=(1,))).start()
        assert code_of(lambda: replica.fetch(3, 0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [replica.partition.has_follower(each) for each in (1, 2, 3)] == [False, True, False]
        assert replica.proposals == []

    run(scenario())


def test_follower_is_proposed_for_the_isr_once_and_only_when_it_has_reached_the_high_watermark() -> None:
    async def scenario() -> None:
        replica = await Replica(replace(LED, isr=(1, 2))).start()
        replica.append(b"a", b"b")
        replica.fetch(2, 2)
        replica.fetch(3, 1)
        assert replica.proposals == []
        replica.fetch(3, 2)
        replica.fetch(3, 2)
        [proposal] = replica.proposals
        assert proposal is not None
        assert (proposal.isr, proposal.members) == ((1, 2, 3), ((1, EPOCH), (2, EPOCH), (3, EPOCH)))
        partition = replica.partition
        partition.isr_accepted([1, 2, 3], 9, 5)
        seen = [partition.isr]  # an answer for another epoch is ignored
        partition.isr_accepted([1, 2, 3], 1, 5)
        seen.append(partition.isr)
        partition.stop()
        partition.isr_accepted([1], 1, 6)
        seen.append(partition.isr)  # a partition that has stopped leading shows the image
        assert seen == [(1, 2), (1, 2, 3), (1, 2)]

    run(scenario())


def test_leader_proposes_an_isr_without_the_lagging_follower() -> None:
    async def scenario() -> None:
        replica = await Replica(LED).start()
        await asyncio.sleep(2)
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        end = replica.append(b"a")
        replica.fetch(2, end)
        assert not replica.partition.check_laggards(now_ms - 2000 + 1000)
        assert replica.proposals == []
        assert replica.partition.check_laggards(now_ms + 500)
        [proposal] = replica.proposals
        assert proposal is not None
        assert proposal.isr == (1, 2)
        assert not replica.partition.check_laggards(now_ms + 500), "one change is pending at a time"

    run(scenario())


@pytest.mark.parametrize(("left", "fails"), [((1, 2), False), ((1,), True)])
def test_smaller_isr_fails_waiting_commits_only_below_min_insync_replicas(left: tuple[int, ...], fails: bool) -> None:
    async def scenario() -> None:
        replica = await Replica(LED, LogConfig(min_insync_replicas=2)).start()
        waiting = replica.partition.when_committed(replica.append(b"a"))
        assert waiting is not None
        replica.change(isr=left)
        assert waiting.done() is fails
        if fails:
            assert code_of(waiting.result) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            assert code_of(replica.partition.check_replicas) is ErrorCode.NOT_ENOUGH_REPLICAS
        else:
            replica.fetch(2, 1)
            assert waiting.done()
            replica.partition.check_replicas()

    run(scenario())


@pytest.mark.parametrize("source", ["image", "answer"])
@pytest.mark.parametrize(("epoch", "mark"), [(0, 0), (1, 1)])
def test_smaller_isr_commits_the_records_that_its_members_have(source: str, epoch: int, mark: int) -> None:
    async def scenario() -> None:
        replica = await Replica(replace(LED, partition_epoch=1)).start()
        partition = replica.partition
        replica.append(b"a")
        replica.fetch(2, 1)
        if source == "answer":
            partition.isr_accepted([1, 2], 1, epoch)
        else:
            partition.follow_image(replace(LED, isr=(1, 2), partition_epoch=epoch))
        assert (partition.log.high_watermark, partition.isr) == (mark, (1, 2) if mark else (1, 2, 3))

    run(scenario())


def test_larger_isr_below_min_insync_replicas_does_not_fail_waiting_commits() -> None:
    async def scenario() -> None:
        replica = await Replica(replace(LED, isr=(1,)), LogConfig(min_insync_replicas=3)).start()
        waiting = replica.partition.when_committed(replica.append(b"a"))
        assert waiting is not None
        replica.change(isr=(1, 2))
        assert not waiting.done()
        replica.partition.stop()
        assert code_of(waiting.result) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario())


def test_deletion_of_records_waits_until_every_live_replica_has_advanced_its_log_start() -> None:
    async def scenario() -> None:
        replica = await Replica(LED).start()
        partition = replica.partition
        replica.append(b"a", b"b", b"c")
        for follower in (2, 3):
            replica.fetch(follower, 3)
        replica.park()
        waits = [partition.delete_before(offset) for offset in (1, 2)]
        assert (replica.follower.abandoned, replica.consumer.abandoned) == (2, 0)
        replica.fetch(2, 3, log_start=2)
        assert [each is None or each.done() for each in waits] == [False, False]
        replica.fetch(3, 3, log_start=1)
        assert [each is None or each.done() for each in waits] == [True, False]
        replica.host.brokers = {each: one for each, one in replica.host.brokers.items() if each != 3}
        partition.recheck()
        assert [each is None or each.done() for each in waits] == [True, True]
        assert partition.delete_before(2) is None

    run(scenario())
