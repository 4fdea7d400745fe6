"""Compares one replica with a plain model in random walks: its high watermark, its proposals, and the waits at it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace

import pytest
from one_replica import EPOCH, LED, ME, Replica, code_of
from parked_fetch import ParkedFetch
from replica_cluster import run

from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode

LAG_MS, NEVER = 1000, -(1 << 60)
LOST = ErrorCode.NOT_LEADER_OR_FOLLOWER
TOO_FEW = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@dataclass
class Follower:
    """Holds what the leader has heard of a follower in this leader epoch."""

    caught_up: int
    fetched: int
    epoch: int = -1
    end: int = -1
    start: int = -1
    leader_end: int = -1


@dataclass
class Model:
    """States the rules of a partition: who counts for the high watermark, and who may join or has to leave the ISR."""

    replicas: tuple[int, ...] = (1, 2, 3)
    isr: tuple[int, ...] = (1, 2, 3)
    leader: int = ME
    leader_epoch: int = 1
    partition_epoch: int = 0
    min_isr: int = 2
    fenced: set[int] = field(default_factory=set)
    end: int = 0
    #: The part of the leader's own log that counts: all of it, or only the synced part.
    own: int = 0
    start: int = 0
    mark: int = 0
    epoch_start: int = 0
    last_epoch: tuple[int, int] = (-1, 0)
    proposed: tuple[int, ...] | None = None
    followers: dict[int, Follower] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        return self.leader == ME and len(self.replicas) > 1

    def is_under_min(self) -> bool:
        return len(self.isr) < min(self.min_isr, len(self.replicas))

    def take_role(self, now: int) -> None:
        self.proposed, self.followers = None, {}
        self.epoch_start = self.last_epoch[1] if self.last_epoch[0] == self.leader_epoch else self.end
        self.meet(now)

    def meet(self, now: int) -> None:
        """Begins to watch new followers: the in-sync ones count as caught up now."""
        self.followers = {
            each: self.followers.get(each)
            or Follower(now if each in self.isr else NEVER, now if each in self.isr else NEVER)
            for each in self.replicas
            if each != ME and self.leads
        }

    def is_eligible(self, each: int) -> bool:
        return each not in self.fenced and self.followers[each].epoch == EPOCH

    def is_caught_up(self, each: int, now: int) -> bool:
        return self.followers[each].end == self.end or now - self.followers[each].caught_up <= LAG_MS

    def largest(self) -> set[int]:
        return {*self.isr, *(self.proposed or ())}

    def advance(self, now: int) -> None:
        if self.leader != ME and self.replicas != (ME,):
            return
        if self.replicas == (ME,):
            self.mark = max(self.mark, self.own)
        elif not self.is_under_min():
            counted = [
                one.end
                for each, one in self.followers.items()
                if each in self.largest() or (self.is_caught_up(each, now) and self.is_eligible(each))
            ]
            self.mark = max(self.mark, min([self.own, *counted]))

    def append(self, count: int) -> None:
        if self.last_epoch[0] != self.leader_epoch:
            self.last_epoch = self.leader_epoch, self.end
        self.end += count

    def fetch(self, each: int, epoch: int, offset: int, start: int, now: int) -> tuple[int, ...] | None:
        """Notes a fetch. Returns the ISR that the leader proposes now, if any."""
        one = self.followers[each]
        if offset >= self.end:
            one.caught_up = now
        elif 0 <= one.leader_end <= offset:
            one.caught_up = max(one.caught_up, one.fetched)
        one.epoch, one.end, one.start, one.leader_end, one.fetched = epoch, offset, start, self.end, now
        joins = each not in self.largest() and offset >= max(self.mark, self.epoch_start) and self.is_eligible(each)
        if self.proposed is None and joins:
            self.proposed = (*self.isr, each)
            return self.proposed
        return None

    def laggards(self, now: int) -> tuple[int, ...] | None:
        late = {each for each in self.isr if each in self.followers and not self.is_caught_up(each, now)}
        if self.proposed is not None or not late:
            return None
        self.proposed = tuple(each for each in self.isr if each not in late)
        return self.proposed

    def low_mark(self) -> int:
        return min([self.start, *(one.start for each, one in self.followers.items() if each not in self.fenced)])


class Walk:
    """Does the same random steps with a replica and with the model, and compares them after every step."""

    def __init__(self, seed: int, *, fsync: bool) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.model = Model()
        self.fsync = fsync
        self.replica = Replica(LED, self._config(2))
        self.proposals: list[tuple[int, ...]] = []
        #: Waits with their offsets.
        self.commits: list[tuple[int, asyncio.Future[None]]] = []
        self.deletions: list[tuple[int, asyncio.Future[None]]] = []
        #: Parked fetches of a consumer and of a follower, both or only one of them, and what they have to hear.
        self.consumer, self.follower = ParkedFetch(), ParkedFetch()
        for fetch, from_follower, without in ((self.consumer, False, 0), (self.follower, True, 1)):
            if seed % 3 != without:
                self.replica.partition.waiters.park(fetch, from_follower=from_follower)
        self.appends = self.moves = self.elections = self.new_starts = 0

    def _config(self, min_isr: int) -> LogConfig:
        config = LogConfig(min_insync_replicas=min_isr)
        return replace(config, flush_messages=1) if self.fsync else config

    def now(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def run(self, steps: int) -> None:
        await self.replica.start()
        self.model.take_role(self.now())
        names = (
            "append",
            "fetch",
            "fetch",
            "fetch",
            "image",
            "image",
            "answer",
            "broker",
            "config",
            "laggards",
            "wait",
            "delete",
        )
        for number in range(steps):
            await asyncio.sleep(self.rng.choice((0, 0.1, 0.4, 0.9)))
            name, mark = self.rng.choice(names), self.model.mark
            getattr(self, name)()
            self.moves += self.model.mark > mark
            self.compare(f"{number}: {name}")
            if self.fsync:
                await self.sync()
                self.compare(f"{number}: sync after {name}")

    async def sync(self) -> None:
        """Lets the disk sync the log, and expects that the records which are then on all in-sync replicas count."""
        for _ in range(10):
            await asyncio.sleep(0)
        mark, log = self.model.mark, self.replica.partition.log
        assert log.countable_offset == log.log_end_offset or self.model.leader != ME
        self.advance()
        self.moves += self.model.mark > mark

    def advance(self) -> None:
        self.model.own = self.replica.partition.log.countable_offset
        self.model.advance(self.now())

    def compare(self, step: str) -> None:
        model, partition = self.model, self.replica.partition
        log = partition.log
        assert (log.high_watermark, log.log_end_offset) == (model.mark, model.end), step
        assert partition.isr == model.isr, step
        assert [each and each.isr for each in self.replica.proposals] == self.proposals, step
        assert sorted(each for each in (1, 2, 3) if partition.has_follower(each)) == sorted(model.followers), step
        for waits, mark in ((self.commits, model.mark), (self.deletions, model.low_mark())):
            for offset, wait in waits:
                if waits is self.commits:
                    assert wait.done() == (offset <= mark), (step, offset)
                else:
                    assert not wait.done() or offset <= mark, (step, offset)
        if self.seed % 3 != 0:
            assert (len(self.consumer.notified), self.consumer.abandoned) == (self.moves, self.elections), step
        if self.seed % 3 != 1:
            assert len(self.follower.notified) == self.appends, step
            assert self.follower.abandoned == self.elections + self.new_starts, step
        assert all(size > 0 for size in (*self.consumer.notified, *self.follower.notified)), step

    def fail_waits(self, code: ErrorCode) -> None:
        """Expects that the waits which have not ended have failed now."""
        for waits in (self.commits, self.deletions):
            assert {code_of(wait.result) for offset, wait in waits if wait.done() and wait.exception()} <= {code}
            for offset, wait in waits:
                if waits is self.commits and offset > self.model.mark:
                    assert code_of(wait.result) is code, offset
            assert all(wait.done() for _, wait in waits)
            waits.clear()

    def end_deletions(self) -> None:
        low = self.model.low_mark()
        assert [wait.done() for _, wait in self.deletions] == [offset <= low for offset, _ in self.deletions]
        self.deletions = [each for each in self.deletions if not each[1].done()]

    # Steps.

    def append(self) -> None:
        count = self.rng.randint(1, 2)
        code = code_of(lambda: self.replica.append(*[b"x"] * count))
        assert code is (ErrorCode.NONE if self.model.leader == ME else LOST)
        if code is ErrorCode.NONE:
            self.model.append(count)
            self.advance()
            self.appends += self.model.leads or self.fsync  # a sole replica has no followers to notify

    def fetch(self) -> None:
        model, partition = self.model, self.replica.partition
        each, epoch = self.rng.choice((2, 3)), self.rng.choice((EPOCH, EPOCH, EPOCH, EPOCH - 1))
        known = model.followers.get(each)
        offset = self.rng.randint(max(0, known.end) if known else 0, model.end)
        start = self.rng.randint(0, model.start)
        quiet = known is not None and (
            (known.end, known.epoch, start) == (offset, epoch, model.start)
            and offset == model.end == model.mark
            and each in model.isr
        )
        assert partition.is_quiet(each, epoch, offset, start, None) == quiet
        code = code_of(lambda: partition.on_replica_fetch(each, epoch, offset, start))
        assert code is (ErrorCode.NONE if known else LOST)
        if known is None:
            return
        deleted = known.start != start
        proposed = model.fetch(each, epoch, offset, start, self.now())
        if proposed is not None:
            self.proposals.append(proposed)
        self.advance()
        if deleted:
            self.end_deletions()

    def image(self) -> None:
        """Publishes an image with another ISR, other replicas, another epoch or another leader."""
        model, rng = self.model, self.rng
        fewer = len(model.isr)
        kind = rng.choice(("isr", "isr", "replicas", "epoch", "leader", "old"))
        image = self.replica.partition.image
        model_isr = tuple(sorted({ME, *rng.sample((2, 3), rng.randint(0, 2))} & set(model.replicas)))
        epoch = image.partition_epoch if kind == "old" else max(model.partition_epoch, image.partition_epoch) + 1
        leader, leader_epoch, replicas = model.leader, model.leader_epoch, model.replicas
        if kind == "replicas":
            replicas = rng.choice(((1,), (1, 2), (1, 3), (1, 2, 3)))
            model_isr = tuple(each for each in model.isr if each in replicas)
        elif kind == "epoch":
            leader_epoch += 1
        elif kind == "leader":
            leader, leader_epoch = (2 if leader == ME and 2 in replicas else ME), leader_epoch + 1
        elif kind == "old":
            model_isr = image.isr
        same = leader_epoch == model.leader_epoch
        if leader != ME and 2 not in replicas:
            return
        self.replica.partition.follow_image(
            replace(
                image,
                isr=model_isr,
                replicas=replicas,
                leader=leader,
                leader_epoch=leader_epoch,
                partition_epoch=epoch,
            )
        )
        stale = same and model.leads and epoch < model.partition_epoch
        led = model.leads and same
        was_sole = model.replicas == (ME,)
        model.leader, model.leader_epoch = leader, leader_epoch
        if not stale:
            if not led or epoch > model.partition_epoch or model.proposed is None:
                model.isr, model.proposed = model_isr, None
            model.partition_epoch = epoch
            model.replicas = replicas
        if not model.leads:
            model.followers, model.proposed = {}, None
        elif not same or was_sole:
            model.take_role(self.now())
        else:
            model.meet(self.now())
        self.advance()
        if leader != ME:
            self.elections += not same
            self.fail_waits(LOST)
        elif led and model.leads and len(model.isr) < fewer and model.is_under_min() and self.commits_wait():
            self.fail_waits(TOO_FEW)

    def commits_wait(self) -> bool:
        return any(offset > self.model.mark for offset, _ in self.commits)

    def answer(self) -> None:
        """Answers the proposal: grants it, or answers for another leader epoch or an older partition epoch."""
        model, rng = self.model, self.rng
        leader_epoch, epoch = rng.choice(((0, 1), (0, 1), (1, 1), (-1, 1), (0, -1)))
        isr = model.proposed or model.isr
        before = len(model.isr)
        self.replica.partition.isr_accepted(list(isr), model.leader_epoch + leader_epoch, model.partition_epoch + epoch)
        if model.leads and (leader_epoch, epoch) == (0, 1):
            model.isr, model.proposed, model.partition_epoch = isr, None, model.partition_epoch + 1
            self.advance()
            if len(isr) < before and model.is_under_min() and self.commits_wait():
                self.fail_waits(TOO_FEW)

    def broker(self) -> None:
        """Fences or unfences a broker."""
        each = self.rng.choice((2, 3))
        self.model.fenced ^= {each}
        known = self.replica.host.brokers
        fenced = each in self.model.fenced
        self.replica.host.brokers = {**known, each: replace(known[each], fenced=fenced)}
        self._recheck()

    def config(self) -> None:
        self.model.min_isr = self.rng.randint(1, 3)
        self.replica.partition.log.update_config(self._config(self.model.min_isr))
        self._recheck()

    def _recheck(self) -> None:
        self.replica.partition.recheck()
        self.advance()
        self.end_deletions()

    def laggards(self) -> None:
        found = self.replica.partition.check_laggards(self.now())
        if not self.model.leads:
            assert not found
            return
        self.advance()
        self.end_deletions()
        proposed = self.model.laggards(self.now())
        if proposed is not None:
            self.proposals.append(proposed)
        assert found == (proposed is not None)

    def wait(self) -> None:
        model, offset = self.model, self.rng.randint(max(0, self.model.mark - 1), self.model.end + 1)
        if offset <= model.mark:
            assert self.replica.partition.when_committed(offset) is None
        elif model.leader == ME:
            wait = self.replica.partition.when_committed(offset)
            assert wait is not None
            self.commits.append((offset, wait))
        else:
            assert code_of(lambda: self.replica.partition.when_committed(offset)) is LOST

    def delete(self) -> None:
        model, offset = self.model, self.rng.randint(self.model.start, self.model.mark)
        if model.leader != ME:
            assert code_of(lambda: self.replica.partition.delete_before(offset)) is LOST
            return
        wait = self.replica.partition.delete_before(offset)
        model.start = offset
        assert (wait is None) == (model.low_mark() >= offset)
        if wait is not None:
            self.deletions.append((offset, wait))
            self.new_starts += 1


@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("first", range(0, 100, 10))
def test_partition_behaves_like_the_model_in_random_walks(first: int, fsync: bool) -> None:
    for seed in range(first, first + 10):
        run(Walk(seed, fsync=fsync).run(200), seed)
