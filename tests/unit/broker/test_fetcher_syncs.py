"""Tests that a Fetch names only synced offsets of partitions that require fsync before an acknowledgement.

The leader counts all records below the fetch offset for the high watermark.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from replica_cluster import TOPIC_ID, run, until
from scripted_leader import data, named, records
from test_fetcher_rounds import Syncs, synced

from penstock.broker.replicas import replica_fetcher
from penstock.broker.replicas.partition import Partition
from penstock.log.flush import make_countable
from penstock.log.log import Log
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode


def write(partition: Partition) -> None:
    """Appends a record that is not synced."""
    partition.log.append_as_follower(records(partition.log.log_end_offset), 1)


def test_partition_whose_pause_ends_is_synced_before_the_next_fetch_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        follower = await synced(1, 0).start()
        syncs = Syncs(monkeypatch)
        await follower.asked(1)
        follower.answer(data(0, error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
        await until(lambda: follower.is_paused(0))
        write(follower.partitions[0])
        await until(lambda: bool(syncs.waiting))
        assert len(follower.leader.fetches) == 1
        syncs.waiting[0][1].set_result(None)
        assert named(await follower.asked(2)) == {0: 1}
        assert follower.partitions[0].log.flushed_offset == 1
        await follower.fetcher.close()

    run(scenario())


def test_partition_that_is_added_during_a_sync_is_synced_before_the_next_fetch_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        follower = await synced(3, 0, 2).start(0, 1)
        syncs = Syncs(monkeypatch)
        await follower.asked(1)
        follower.answer(data(0, records(0)))
        await until(lambda: len(syncs.waiting) == 1)
        write(follower.partitions[2])
        follower.fetcher.add(follower.partitions[2])
        syncs.waiting[0][1].set_result(None)
        await until(lambda: len(syncs.waiting) == 2)
        assert len(follower.leader.fetches) == 1
        syncs.waiting[1][1].set_result(None)
        await until(lambda: len(follower.leader.fetches) > 1)
        assert named(follower.leader.fetches[1][0]) == {0: 1, 2: 1}
        assert follower.partitions[2].log.flushed_offset == 1
        await follower.fetcher.close()

    run(scenario())


class Walk:
    """Adds, removes and answers partitions at random. The partitions 0 to 2 require fsync, from some moment on."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng = Random(seed)
        self.follower = synced(4)
        self.begin = self.follower.leader.begin
        self.named: set[int] = set()
        #: Named partitions, their fetch offsets, and the offsets up to which they are synced.
        self.wrong: list[tuple[int, int, int]] = []
        monkeypatch.setattr(self.follower.leader, "begin", self._begin)
        monkeypatch.setattr(replica_fetcher, "make_countable", self._sync)

    async def _sync(self, log: Log) -> None:
        await asyncio.sleep(self.rng.choice((0, 0.01, 0.1)))
        await make_countable(log)

    def _begin(self, node_id: int, request: Any, **options: Any) -> Any:
        for index, offset in named(request).items():
            log = self.follower.partitions[index].log
            if offset != log.log_end_offset or (log.config.fsync_before_ack and offset > log.flushed_offset):
                self.wrong.append((index, offset, log.flushed_offset))  # the fetcher would catch an error of the test
            self.named.add(index)
        return self.begin(node_id, request, **options)

    async def run(self, steps: int) -> None:
        await self.follower.start(3)
        for _ in range(steps):
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.02, 0.1)))
            self.rng.choice((self._add, self._remove, self._require, self._answer, self._answer))()
        await self.follower.fetcher.close()

    def _add(self) -> None:
        partition = self.rng.choice(self.follower.partitions)
        if (TOPIC_ID, partition.index) not in self.follower.fetcher._followed:
            if self.rng.random() < 0.5:
                write(partition)
            self.follower.fetcher.add(partition)

    def _require(self) -> None:
        self.follower.partitions[self.rng.randrange(3)].log.update_config(LogConfig(flush_messages=1))

    def _remove(self) -> None:
        self.follower.fetcher.remove(self.rng.choice(self.follower.partitions))

    def _answer(self) -> None:
        answer = self.follower.leader.fetches[-1][2] if self.follower.leader.fetches else None
        if answer is None or answer.done():
            return
        told = []
        for _, index in list(self.follower.fetcher._followed):
            if self.rng.random() < 0.6:
                told.append(data(index, records(self.follower.end(index), self.rng.randint(1, 3))))
            elif self.rng.random() < 0.4:
                code = self.rng.choice((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR))
                told.append(data(index, error_code=code))
        self.follower.answer(*told)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_fetch_names_no_unsynced_offset_in_random_walks(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    for seed in range(first, first + 10):
        walk = Walk(seed, monkeypatch)
        run(walk.run(40))
        assert walk.wrong == [], "the leader would count records that are not synced"
        seen |= walk.named
    assert seen == {0, 1, 2, 3}
