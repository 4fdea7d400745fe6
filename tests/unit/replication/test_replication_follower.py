"""Tests a follower's decisions with tables of cases, and with a model of replicas that crash and lose records."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from penstock.metadata.image import BrokerImage, PartitionImage
from penstock.protocol.errors import ErrorCode
from penstock.replication.follower import (
    Answer,
    Reset,
    ResetKind,
    Trouble,
    Truncate,
    answer,
    is_final,
    pause_ms,
    reset,
    trouble,
    truncation,
)
from penstock.replication.leader import Leading

LAG_MS = 100


@pytest.mark.parametrize(
    ("leader", "own", "log_end", "high_watermark", "expected"),
    [
        ((2, 10), (2, 15), 15, 5, Truncate(10, True)),  # the same epoch, shorter on the leader
        ((2, 20), (2, 15), 15, 5, Truncate(15, True)),  # the same epoch, shorter here
        ((2, 10), (1, 8), 15, 5, Truncate(8, False)),  # KIP-279: an epoch that this log never had
        ((2, 10), (-1, -1), 15, 5, Truncate(10, True)),  # this log has no epoch that old
        ((-1, 10), (2, 15), 15, 5, Truncate(10, True)),
        # the leader knows no shared epoch: truncate to the high watermark
        ((-1, -1), (2, 15), 15, 5, Truncate(5, True)),
    ],
)
def test_a_follower_truncates_to_the_last_offset_it_may_share_with_the_leader(
    leader: tuple[int, int], own: tuple[int, int], log_end: int, high_watermark: int, expected: Truncate
) -> None:
    assert truncation(*leader, *own, log_end, high_watermark) == expected


@pytest.mark.parametrize(
    ("log_end", "start", "end", "expected"),
    [
        (10, 0, 5, Reset(ResetKind.TRUNCATE, 5)),
        (10, 20, 30, Reset(ResetKind.START_OVER, 20)),
        (10, 5, 30, Reset(ResetKind.STAY, 10)),
        (0, 0, 0, Reset(ResetKind.STAY, 0)),
    ],
)
def test_offset_out_of_range_makes_a_follower_truncate_or_restart_at_the_leaders_log_start(
    log_end: int, start: int, end: int, expected: Reset
) -> None:
    assert reset(log_end, start, end) == expected


def test_pause_after_fetch_errors_grows_up_to_replica_fetch_backoff_ms() -> None:
    assert trouble(ErrorCode.OFFSET_OUT_OF_RANGE) is Trouble.OUT_OF_RANGE
    soon = trouble(ErrorCode.UNKNOWN_LEADER_EPOCH)
    assert [pause_ms(soon, failures, 1000) for failures in (0, 1, 2, 9, 99)] == [10, 20, 40, 1000, 1000]
    assert pause_ms(trouble(ErrorCode.CORRUPT_MESSAGE), 0, 1000) == 1000


@pytest.mark.parametrize(
    ("asked", "log_end", "diverging", "expected"),
    [
        (10, 10, (-1, -1), Answer.APPEND),
        (10, 10, (3, 8), Answer.TRUNCATE),
        (10, 10, (-1, 8), Answer.TRUNCATE),
        (10, 10, (3, -1), Answer.TRUNCATE),
        (10, 12, (-1, -1), Answer.STALE),
        (10, 8, (3, 5), Answer.STALE),  # cut meanwhile: the divergence is that of an earlier request
        (-1, 0, (-1, -1), Answer.STALE),  # nothing was asked in this leader epoch
    ],
)
def test_follower_uses_a_fetch_answer_only_if_its_log_still_ends_at_the_fetched_offset(
    asked: int, log_end: int, diverging: tuple[int, int], expected: Answer
) -> None:
    assert answer(asked, log_end, *diverging) is expected


def test_follower_fetches_again_after_a_corrupt_message_but_not_after_a_storage_error() -> None:
    assert [is_final(code) for code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)] == [
        True,
        True,
    ]
    assert [is_final(code) for code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.OFFSET_OUT_OF_RANGE)] == [False, False]


@dataclass
class Replica:
    """Holds a log as a list of (epoch, value); entries below `synced` survive a crash."""

    node: int
    records: list[tuple[int, str]] = field(default_factory=list)
    synced: int = 0
    mark: int = 0
    alive: bool = True
    epoch: int = 0  # the broker epoch

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Returns the largest epoch at or below `epoch` and its end, as a log does."""
        known = [each for each, _ in self.records if each <= epoch]
        if not known:
            return (-1, -1) if not self.records else (epoch, 0)
        largest = max(known)
        return largest, max(at for at, (each, _) in enumerate(self.records) if each == largest) + 1


class Model:
    """Simulates a controller that elects from the in-sync set, and replicas that learn of elections late."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0
        self.replicas = {node: Replica(node, epoch=node) for node in (1, 2, 3)}
        self.image = PartitionImage((1, 2, 3), (1, 2, 3), 1, 1, 1)
        self.leaders: dict[int, Leading] = {}
        self.believed: dict[int, PartitionImage] = {}
        self.acknowledged: list[str] = []
        self.waiting: list[tuple[int, int, int, str]] = []
        self.written = 0
        for node in self.replicas:
            self.hear(node)

    @property
    def brokers(self) -> dict[int, BrokerImage]:
        return {
            each.node: BrokerImage(each.node, each.epoch, bytes(16), {}, fenced=not each.alive)
            for each in self.replicas.values()
        }

    def hear(self, node: int) -> None:
        old, self.believed[node] = self.believed.get(node), self.image
        if self.image.leader != node:
            self.leaders.pop(node, None)
        elif old is not None and old.leader_epoch == self.image.leader_epoch and node in self.leaders:
            self.leaders[node].follow(self.image, self.now)
            self.advance(node)
        else:
            self.leaders[node] = Leading(node, self.image, len(self.replicas[node].records), self.now)
            self.advance(node)

    def change(self, **fields: object) -> None:
        values = {
            "replicas": self.image.replicas,
            "isr": self.image.isr,
            "leader": self.image.leader,
            "leader_epoch": self.image.leader_epoch,
            "partition_epoch": self.image.partition_epoch + 1,
            **fields,
        }
        self.image = PartitionImage(**values)  # type: ignore[arg-type]

    def advance(self, node: int) -> None:
        leader, replica = self.leaders[node], self.replicas[node]
        if leader.is_under_min_isr(2):
            return
        end = len(replica.records)
        mark = leader.high_watermark(end, end, self.now, LAG_MS, self.brokers)
        replica.mark = max(replica.mark, mark)
        for each in [each for each in self.waiting if each[0] == node and each[2] <= replica.mark]:
            self.waiting.remove(each)
            if each[1] == leader.leader_epoch:
                self.acknowledged.append(each[3])

    # Events.

    def write(self) -> None:
        node = self.rng.choice([1, 2, 3])
        leader, replica = self.leaders.get(node), self.replicas[node]
        if leader is None or not replica.alive or leader.is_under_min_isr(2):
            return
        self.written += 1
        replica.records.append((leader.leader_epoch, f"r{self.written}"))
        self.waiting.append((node, leader.leader_epoch, len(replica.records), f"r{self.written}"))
        self.advance(node)

    def fetch(self) -> None:
        node = self.rng.choice([1, 2, 3])
        follower, image = self.replicas[node], self.believed[node]
        leader = self.leaders.get(image.leader)
        if not follower.alive or leader is None or image.leader == node or leader.leader_epoch != image.leader_epoch:
            return
        source = self.replicas[image.leader]
        if not source.alive:
            return
        if follower.records and self.diverges(follower, source):
            return
        end = len(follower.records)
        progress = leader.followers[node]
        progress.broker_epoch = follower.epoch
        progress.on_fetch(end, 0, len(source.records), self.now)
        if leader.may_join(progress, source.mark, self.brokers):
            leader.expand(node, source.epoch)
        self.advance(image.leader)
        follower.records.extend(source.records[end : end + self.rng.randint(0, 3)])
        follower.mark = max(follower.mark, min(source.mark, len(follower.records)))

    def diverges(self, follower: Replica, source: Replica) -> bool:
        last = follower.records[-1][0]
        epoch, end = source.epoch_end(last)
        if epoch == -1:
            epoch, end = last, len(source.records)
        if epoch == last and end >= len(follower.records):
            return False
        step = truncation(epoch, end, *follower.epoch_end(epoch), len(follower.records), follower.mark)
        assert step.offset >= follower.mark, "a committed record would be truncated"
        assert step.offset < len(follower.records), "the truncation would change nothing"
        del follower.records[step.offset :]
        follower.synced = min(follower.synced, step.offset)
        return True

    def lag(self) -> None:
        self.now += self.rng.choice([1, 10, 150])
        for node, leader in self.leaders.items():
            leaving = leader.laggards(len(self.replicas[node].records), self.now, LAG_MS)
            if leaving and self.replicas[node].alive:
                leader.shrink(leaving, self.replicas[node].epoch)

    def alter(self) -> None:
        """Lets the controller accept or refuse a proposal; sometimes drops its answer."""
        for node, leader in list(self.leaders.items()):
            proposal = leader.proposal
            if proposal is None or not self.replicas[node].alive or self.rng.random() < 0.5:
                continue
            if proposal.leader_epoch != self.image.leader_epoch:
                leader.refused(ErrorCode.FENCED_LEADER_EPOCH)
            elif proposal.partition_epoch != self.image.partition_epoch:
                leader.refused(ErrorCode.INVALID_UPDATE_VERSION)
            elif not all(self.replicas[each].alive and self.replicas[each].epoch == e for each, e in proposal.members):
                leader.refused(ErrorCode.INELIGIBLE_REPLICA)
                self.change()
            else:
                self.change(isr=proposal.isr)
                if self.rng.random() < 0.4:
                    leader.accepted(proposal.isr, self.image.leader_epoch, self.image.partition_epoch)
                    self.advance(node)

    def crash(self) -> None:
        node = self.rng.choice([1, 2, 3])
        replica = self.replicas[node]
        isr = tuple(each for each in self.image.isr if each != node)
        if not replica.alive or (node in self.image.isr and not isr):
            return
        if node in self.image.isr and len(isr) < 2 and self.rng.random() < 0.7:
            return
        replica.alive = False
        self.leaders.pop(node, None)
        self.waiting = [each for each in self.waiting if each[0] != node]
        # another replica is in sync, and has the records that this one loses
        del replica.records[self.rng.randint(replica.synced, len(replica.records)) :]
        replica.mark = min(replica.mark, len(replica.records))
        self.leave(node, isr)

    def leave(self, node: int, isr: tuple[int, ...]) -> None:
        if self.image.leader == node:
            alive = [each for each in isr if self.replicas[each].alive]
            self.change(isr=isr, leader=alive[0], leader_epoch=self.image.leader_epoch + 1)
        elif node in self.image.isr:
            self.change(isr=isr)

    def come_back(self) -> None:
        for node, replica in self.replicas.items():
            if not replica.alive and self.rng.random() < 0.3:
                replica.alive = True
                replica.epoch += 10
                replica.mark = self.rng.randint(0, replica.mark)  # the checkpointed high watermark is older
                self.believed.pop(node)
                self.hear(node)

    def elect(self) -> None:
        candidates = [each for each in self.image.isr if self.replicas[each].alive and each != self.image.leader]
        if candidates and self.rng.random() < 0.6:
            self.change(leader=self.rng.choice(candidates), leader_epoch=self.image.leader_epoch + 1)

    def sync(self) -> None:
        replica = self.replicas[self.rng.choice([1, 2, 3])]
        replica.synced = len(replica.records)

    def news(self) -> None:
        node = self.rng.choice([1, 2, 3])
        if self.replicas[node].alive:
            self.hear(node)

    def step(self) -> None:
        actions = [self.write, self.fetch, self.lag, self.alter, self.crash, self.come_back, self.elect, self.sync]
        self.rng.choices([*actions, self.news], [14, 20, 5, 6, 1, 3, 3, 2, 5])[0]()

    def settle(self) -> None:
        for replica in self.replicas.values():
            if not replica.alive:
                replica.alive, replica.epoch = True, replica.epoch + 10
        for _ in range(2000):
            self.now += 1
            for node in self.replicas:
                self.hear(node)
            self.fetch()
            self.alter()
            leader = self.replicas[self.image.leader]
            if all(each.records == leader.records for each in self.replicas.values()):
                return
        raise AssertionError("the replicas did not converge")


@pytest.mark.parametrize("seed", range(60))
def test_replicas_lose_no_acknowledged_record_and_their_logs_converge(seed: int) -> None:
    model = Model(random.Random(seed))
    for _ in range(600):
        model.step()
    model.settle()
    stored = [value for _, value in model.replicas[model.image.leader].records]
    assert not [value for value in model.acknowledged if value not in stored]
    assert len(stored) == len(set(stored))
    assert model.written
