"""Compares random walks of broker sessions, and all small heartbeats, with plain models."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from itertools import product
from random import Random
from typing import Any

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller.broker_states import State, heartbeat
from penstock.metadata.controller.heartbeats import Heartbeats
from penstock.metadata.image import EMPTY_IMAGE, BrokerImage, MetadataImage, PartitionImage, TopicImage
from penstock.metadata.quarantine import QUARANTINED
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest

TIMEOUT_MS = 10
ID = bytes([1] * 16)
DISKS = (bytes([7] * 16), bytes([8] * 16))


@dataclass
class Plain:
    epoch: int
    last_ms: int
    offset: int = -1
    stopping_at: int | None = None
    heard: bool = False
    connected: bool = True


class Walk:
    """Does each operation on the sessions and on a plain dict of them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = 100
        self.beats = Heartbeats(TIMEOUT_MS)
        self.plain: dict[int, Plain] = {}
        self.image: MetadataImage = EMPTY_IMAGE

    def session(self, broker_id: int, epoch: int) -> Plain:
        if broker_id not in self.plain or self.plain[broker_id].epoch != epoch:
            self.plain[broker_id] = Plain(epoch, self.now_ms)
        return self.plain[broker_id]

    def step(self) -> None:
        random, beats, now = self.random, self.beats, self.now_ms
        who, epoch, offset = random.randint(1, 3), random.randint(1, 3), random.randint(0, 50)
        match random.choice(
            ("begin", "register", "forget", "look", *["touch"] * 4, "lose", "pause", "stop", "brokers")
        ):
            case "begin":
                beats.begin(self.image, now)
                self.plain = {each: Plain(one.epoch, now) for each, one in self.image.brokers.items()}
            case "register":
                beats.registered(who, epoch, now)
                one = self.session(who, epoch)
                one.last_ms, one.heard, one.connected = now, True, True
            case "forget":
                beats.forget(who)
                self.plain.pop(who, None)
            case "look":
                assert astuple(beats.session(who, epoch, now)) == astuple(self.session(who, epoch))
            case "touch":
                beats.touch(who, epoch, now, offset)
                one = self.session(who, epoch)
                one.last_ms, one.offset, one.heard, one.connected = now, offset, True, True
            case "lose":
                beats.disconnected(who, epoch)
                if who in self.plain and self.plain[who].epoch == epoch:
                    self.plain[who].connected = False
            case "pause":
                lost_ms = random.randint(0, 15)
                beats.extend_sessions(lost_ms, now)
                for one in self.plain.values():
                    one.last_ms = min(now, one.last_ms + lost_ms)
            case "stop":
                beats.session(who, epoch, now).shutdown_offset = offset
                self.session(who, epoch).stopping_at = offset
            case "brokers":
                brokers = [
                    BrokerImage(
                        each,
                        random.randint(1, 3),
                        ID,
                        {},
                        fenced=random.random() < 0.3,
                        in_controlled_shutdown=random.random() < 0.2,
                    )
                    for each in (1, 2, 3)
                    if random.random() < 0.8
                ]
                self.image = replace(EMPTY_IMAGE, brokers={one.broker_id: one for one in brokers})
        self.now_ms += random.randint(0, 6)

    def check(self) -> None:
        now, image = self.now_ms, self.image
        assert {each: astuple(one) for each, one in self.beats.sessions.items()} == {
            each: astuple(one) for each, one in self.plain.items()
        }
        for each in (1, 2, 3, 4):
            broker, one = image.brokers.get(each), self.plain.get(each)
            is_live = (
                broker is not None
                and one is not None
                and not broker.fenced
                and one.epoch == broker.epoch
                and (one.heard, one.connected) == (True, True)
                and now - one.last_ms <= TIMEOUT_MS
            )
            assert self.beats.is_live(image, each, now) == is_live
        active = [
            one.offset
            for each, one in self.plain.items()
            if each in image.brokers and image.brokers[each].usable and one.stopping_at is None
        ]
        assert self.beats.lowest_active_offset(image) == (min(active) if active else None)
        unfenced = {each: self.session(each, one.epoch) for each, one in image.brokers.items() if not one.fenced}
        over = sorted((one.last_ms, each) for each, one in unfenced.items() if now - one.last_ms > TIMEOUT_MS)
        assert self.beats.stale(image, now) == [each for _, each in over]
        first = min((one.last_ms for one in unfenced.values()), default=now)
        assert self.beats.next_check_ms(image, now) == first + TIMEOUT_MS + 1


@pytest.mark.parametrize("seed", range(3))
def test_sessions_after_every_step_of_a_random_walk_follow_the_model(seed: int) -> None:
    walk = Walk(Random(seed))
    for _ in range(1500):
        walk.step()
        walk.check()


# --- heartbeats -----------------------------------------------------------------------------------------------


def image_of(version: int, leads: bool, quarantined: bool, **me: Any) -> MetadataImage:
    """Returns an image of two topics. Broker 1 leads a partition of the second topic if `leads`."""
    leader = 1 if leads else 2
    topics = {
        "a": TopicImage("a", b"a" * 16, {0: PartitionImage((2, 3), (2, 3), 2)}),
        "b": TopicImage(
            "b",
            b"b" * 16,
            {
                0: PartitionImage((2, 3), (2, 3), 3),
                1: PartitionImage((leader, 3 - leader), (1, 2), leader, directories=(DISKS[0],) * 2),
            },
        ),
    }
    brokers = {each: BrokerImage(each, 10 + each, ID, {}, fenced=False) for each in (1, 2, 3)}
    brokers[1] = replace(brokers[1], log_dirs=DISKS, cordoned_log_dirs=DISKS[:1], **me)
    return replace(
        EMPTY_IMAGE,
        offset=100,
        features={"metadata.version": version},
        brokers=brokers,
        topics=topics,
        topics_by_id={topic.topic_id: topic for topic in topics.values()},
        configs={(4, "1"): {QUARANTINED: "bad"}} if quarantined else {},
    )


def next_state(image: MetadataImage, request: BrokerHeartbeatRequest, begun: int | None, lowest: int | None) -> State:
    leads = image.topics["b"].partitions[1].leader == 1
    fenced = image.brokers[1].fenced
    wants_fence = request.want_fence or bool(image.configs)
    if begun is not None and not fenced:
        is_known = lowest is None or lowest >= begun
        return State.SHUTDOWN_NOW if is_known and not leads else State.CONTROLLED_SHUTDOWN
    if request.want_shut_down:
        may_stop = fenced or wants_fence or not leads
        return State.SHUTDOWN_NOW if may_stop else State.CONTROLLED_SHUTDOWN
    if wants_fence or (fenced and request.current_metadata_offset < 11):
        return State.FENCED
    return State.UNFENCED


def test_every_small_heartbeat_changes_the_broker_and_its_partitions_as_the_model_says() -> None:
    for version, leads, quarantined, fenced in product((16, 17, 29, 30), (False, True), (False, True), (False, True)):
        image = image_of(version, leads, quarantined, fenced=fenced)
        for offset, want_fence, want_stop, (begun, lowest), offline, cordoned in product(
            (10, 11),
            (False, True),
            (False, True),
            ((None, None), (90, None), (90, 89), (90, 90), (90, 91)),
            ([], list(DISKS[:1])),
            (None, list(DISKS[:1]), list(DISKS)),
        ):
            request = BrokerHeartbeatRequest(
                broker_id=1,
                broker_epoch=11,
                current_metadata_offset=offset,
                want_fence=want_fence,
                want_shut_down=want_stop,
                offline_log_dirs=offline,
                cordoned_log_dirs=cordoned,
            )
            decision = heartbeat(image, request, shutdown_offset=begun, lowest_active_offset=lowest)
            state = next_state(image, request, begun, lowest)
            case = (version, leads, quarantined, fenced, request, begun, lowest)
            assert (decision.reply.state, decision.reply.is_caught_up) == (state, offset == 11), case
            assert decision.reply.is_fenced == (state in (State.FENCED, State.SHUTDOWN_NOW))
            done = apply(image, decision.records)
            after, partition = done.brokers[1], done.topics["b"].partitions[1]
            assert after.fenced == decision.reply.is_fenced, case
            begins = state is State.CONTROLLED_SHUTDOWN and begun is None
            assert after.in_controlled_shutdown == begins, case
            assert decision.reply.shutdown_offset == (done.offset if begins else None), case
            is_same = after.fenced == fenced and not begins
            failed = bool(offline) and version >= 17 and is_same
            leaves = begins or failed or (after.fenced and not fenced)
            assert (partition.leader, 1 in partition.isr) == (2 if leaves else 1 if leads else 2, not leaves), case
            assert after.log_dirs == (DISKS[1:] if failed else DISKS), case
            is_cordoned = version >= 30 and state is State.UNFENCED and cordoned == list(DISKS)
            assert after.cordoned_log_dirs == (DISKS if is_cordoned else DISKS[:1]), case
            assert done.topics["a"] == image.topics["a"]
