"""Moves replicas between directories in random walks, with writes, restarts and power losses at any moment."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from disk_node import A, B, C, DiskNode, passes, refuse, with_topics
from replica_cluster import run

from penstock.broker.replicas import replica_move
from penstock.disk.memory import MemoryDisk
from penstock.log.log import Log
from penstock.metadata.image import EMPTY_IMAGE, MetadataImage
from penstock.protocol.errors import ErrorCode
from penstock.records.batches import split_batches
from penstock.replication.directory_move import MoveState

TOPICS = ("t", "u")
SYNCED = {"flush.messages": "1"}


def batches(log: Log) -> dict[int, bytes]:
    """Returns the batches of a log by their offsets."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 22, upper_bound=log.log_end_offset).read_now()
        for header, view in split_batches(data, allow_partial=True):
            found[header.base_offset] = bytes(view)
            offset = header.next_offset
    return found


class Walk:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.node = DiskNode(MemoryDisk(crashable=True))
        self.expected: dict[str, dict[int, bytes]] = {name: {} for name in TOPICS}
        #: The directory of each replica that the broker has reported to the controller last.
        self.reported = dict.fromkeys(TOPICS, A)
        self.refuses = False

    async def run(self, steps: int) -> None:
        self._listen()
        await self.node.start()
        for name in TOPICS:
            self.node.move(A, name)
        self.node.create(*TOPICS, flush_messages="1")
        for name in TOPICS:
            self.node.write(30, topic=name)
            self.expected[name] = batches(self.node.log(name))
        for _ in range(steps):
            step = self.rng.choice((self.write, self.write, self.move, self.move, self.cancel, self.delete, self.power))
            await step()
            await passes(self.rng.choice((0, 1, 3, 10, 40)))
            self.compare()
        await self.restart()
        self.compare()
        await asyncio.wait_for(self.node.moves.settle(), 600)
        self.compare()
        self.check_end()
        await self.power()
        await self.node.stop()

    def _listen(self) -> None:
        """Notes what the node reports to the controller. The controller may refuse the directory of a move."""
        node = self.node

        class Reports(list[Any]):
            def append(self, report: tuple[str, int, str | bytes]) -> None:
                super().append(report)
                reports[report[0]] = node.path_of(report[2]) if isinstance(report[2], bytes) else report[2]

        reports = self.reported
        node.assigned, node.reverted, node.placed = Reports(), Reports(), Reports()
        node.answer_assignment = self._answer

    def _answer(self) -> Any:
        if self.refuses:
            return refuse()
        return asyncio.sleep(self.rng.choice((0, 0, 0.001)))

    def image(self) -> MetadataImage:
        """Returns the metadata with the directories that the controller knows."""
        image = EMPTY_IMAGE
        for name in TOPICS:
            directory = self.node.directory(self.reported[name]).directory_id
            image = with_topics(image, (name,), directory=directory, configs=SYNCED)
        return image

    def compare(self) -> None:
        for name in TOPICS:
            log = self.node.log(name)
            known = {offset: each for offset, each in self.expected[name].items() if offset >= log.log_start_offset}
            assert batches(log) == known, name

    def check_end(self) -> None:
        """Checks that each replica has one log, in the directory that the controller knows, and no copies."""
        names = {path: [each for each in self.node.names(path) if not each.endswith("-delete")] for path in (A, B, C)}
        for name in TOPICS:
            path = self.node.log(name).log_dir
            assert (path, self.node.log(name).path) == (self.reported[name], f"{path}/{name}-0")
            assert [each for each in (A, B, C) if f"{name}-0" in names[each]] == [path]
        assert sum(len(each) for each in names.values()) == len(TOPICS)
        assert self.node.moves.figures() == []
        begun = sum(self.node.states(name).count("begun") for name in TOPICS)
        assert sum(self.node.moves.counts.values()) == begun == len(self.node.moves.ended)

    # Steps.

    async def write(self) -> None:
        name = self.rng.choice(TOPICS)
        self.node.write(self.rng.choice((1, 5, 40)), topic=name)
        self.expected[name] = {**self.expected[name], **batches(self.node.log(name))}

    async def move(self) -> None:
        self.refuses = self.rng.random() < 0.2
        self.node.move(self.rng.choice((A, B, C)), self.rng.choice(TOPICS))

    async def cancel(self) -> None:
        name = self.rng.choice(TOPICS)
        states = {each.topic: each.state for each in self.node.moves.figures()}
        can = name in states and states[name] is not MoveState.SWAPPING
        assert self.node.moves.cancel(name, 0) == can
        if not can and self.rng.random() < 0.5:
            await self.restart()

    async def delete(self) -> None:
        name = self.rng.choice(TOPICS)
        log = self.node.log(name)
        self.node.partitions.get(name, 0).delete_before(self.rng.randint(log.log_start_offset, log.high_watermark))

    async def restart(self) -> None:
        await self.node.stop()
        self.node = DiskNode(self.node.disk)
        self._listen()
        await self.node.logs.open(node_id=1, cluster_id="c")
        self.node.apply(self.image())
        await self.node.partitions.settle()

    async def power(self) -> None:
        """Checks that a machine which loses its power now keeps all committed records."""
        image = self.image()
        committed = {name: self.node.log(name).high_watermark for name in TOPICS}
        start = {name: self.node.log(name).log_start_offset for name in TOPICS}
        survivor = DiskNode(self.node.disk.crash(self.rng))
        await survivor.logs.open(node_id=1, cluster_id="c")
        survivor.apply(image)
        for name in TOPICS:
            found = batches(survivor.log(name))
            for offset, each in self.expected[name].items():
                if start[name] <= offset < committed[name]:
                    assert found.get(offset) == each, (name, offset, committed)
        await survivor.stop()


@pytest.mark.parametrize("seed", range(20))
def test_replica_that_moves_keeps_its_records_and_its_reported_directory(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_move, "CHUNK_BYTES", 1500)
    run(Walk(seed).run(40), seed)


def test_move_to_an_unknown_directory_changes_nothing() -> None:
    async def scenario() -> None:
        node = await DiskNode().start()
        node.create("t")
        assert node.moves.request("t", 0, None, node.partitions.get("t", 0)) is ErrorCode.LOG_DIR_NOT_FOUND
        assert (node.moves.figures(), node.moves.remembered("t", 0)) == ([], None)
        await node.stop()

    run(scenario())
