"""Compares a coordinator whose log refuses some requests with a coordinator that never gets these requests."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from consumer_driver import ConsumerDriver, error, shares
from share_driver import ShareDriver
from streams_driver import EAGER, StreamsDriver
from test_group_migration import CONFIG, metadata

from penstock.groups.config import GroupConfig
from penstock.groups.timers import TimerKind
from penstock.protocol.errors import ErrorCode

MEMBERS = "abc"
SHARE = GroupConfig(share_assignment_interval_ms=0)
Step = Callable[[Any], Any]


def epoch_of(driver: ConsumerDriver, member: str) -> int:
    group: Any = driver.shard.groups.get("g")
    known = group.members.get(member) if group is not None else None
    return known.epoch if known is not None else 0


def consumer_step(random: Random) -> Step:
    member, kind = random.choice(MEMBERS), random.randrange(6)
    names = random.sample("tuv", random.randint(1, 2))
    regex = random.choice((None, "t.*", "u.*"))

    def step(driver: ConsumerDriver) -> Any:
        epoch = epoch_of(driver, member)
        if kind == 0 and epoch:
            return driver.beat(member, -1)
        if kind == 1 and "g" in driver.shard.groups:
            return driver.join("z", protocols=metadata()).answer
        if not epoch:
            return driver.enter(member, *names, subscribed_topic_regex=regex)
        if kind == 2:
            return driver.beat(member, epoch, subscribed_topic_names=names)
        group = driver.consumers.members[member]
        held = {
            name: sorted(group.assigned.get(topic.topic_id, ())) for name, topic in driver.shard.image.topics.items()
        }
        return driver.beat(member, epoch, owned=held)

    return step


def share_step(random: Random) -> Step:
    member, kind = random.choice(MEMBERS), random.randrange(5)
    names = random.sample("tuv", random.randint(1, 2))

    def step(driver: ShareDriver) -> Any:
        epoch = epoch_of(driver, member)
        if kind == 0 and epoch:
            return driver.share_beat(member, -1)
        if not epoch:
            return driver.come(member, *names)
        return driver.share_beat(member, epoch, subscribed_topic_names=names if kind == 1 else None)

    return step


def streams_step(random: Random) -> Step:
    member, kind = random.choice(MEMBERS), random.randrange(5)

    def step(driver: StreamsDriver) -> Any:
        if not epoch_of(driver, member):
            return driver.come(member)
        return driver.stream_beat(member, -1) if kind == 0 else driver.stay(member)

    return step


def strangers(driver: ConsumerDriver) -> set[str]:
    """Returns the ids with timers that are not members of their group."""
    groups: dict[str, Any] = driver.shard.groups
    return {
        timer.member_id
        for group in groups.values()
        for timer in group.all_timers()
        if timer.member_id and timer.member_id not in group.members
    }


def revocations(driver: ConsumerDriver) -> dict[str, int]:
    """Returns when each member must have revoked its partitions."""
    groups: dict[str, Any] = driver.shard.groups
    return {
        timer.member_id: timer.deadline_ms
        for group in groups.values()
        for timer in group.all_timers()
        if timer.kind is TimerKind.REVOCATION and timer.armed
    }


def refuse(driver: ConsumerDriver, step: Step) -> None:
    """Sends a request while the log refuses records."""
    written, asked = len(driver.journal), list(driver.asked) if isinstance(driver, ShareDriver) else []
    driver.refuse_records = True
    step(driver)
    driver.refuse_records = False
    assert len(driver.journal) == written
    if isinstance(driver, ShareDriver):
        driver.asked = asked  # effects of refused records are dropped


MAKERS: dict[str, tuple[Callable[[], ConsumerDriver], Callable[[Random], Step]]] = {
    "consumer": (lambda: ConsumerDriver(CONFIG, {"t": 2, "u": 1}), consumer_step),
    "share": (lambda: ShareDriver(SHARE, {"t": 2, "u": 1}), share_step),
    "streams": (lambda: StreamsDriver(EAGER, {"t": 2, "u": 1}), streams_step),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_request_whose_records_are_refused_has_no_effect_on_later_requests(kind: str) -> None:
    make, step_of = MAKERS[kind]
    for seed in range(8):
        random = Random(seed)
        disturbed, plain = make(), make()
        for _ in range(40):
            if random.random() < 0.2:
                topics = {name: random.randint(1, 4) for name in "tuv" if random.random() < 0.8}
                disturbed.see(topics)
                plain.see(topics)
            if random.random() < 0.4:
                refuse(disturbed, step_of(random))
            step = step_of(random)
            assert step(disturbed) == step(plain)
            if isinstance(disturbed, ShareDriver) and isinstance(plain, ShareDriver) and random.random() < 0.5:
                disturbed.create_states()
                plain.create_states()
            assert disturbed.shard.remembered() == plain.shard.remembered()
            assert strangers(disturbed) == set()
            assert revocations(disturbed) == revocations(plain)
            for each in (disturbed, plain):
                each.advance(7)


def test_topic_change_is_noticed_by_a_consumer_group_after_a_refused_heartbeat() -> None:
    driver = ConsumerDriver(CONFIG, {"t": 2})
    epoch = driver.enter("a").member_epoch
    driver.see({"t": 4})
    driver.refuse_records = True
    driver.beat("a", epoch)
    driver.refuse_records = False
    answer = driver.beat("a", epoch)
    assert (error(answer), shares(answer)) == (ErrorCode.NONE, {"t": [0, 1, 2, 3]})
