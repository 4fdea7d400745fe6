"""Tests the events that the active controller derives from two successive metadata images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from penstock.broker.events.from_images import events_between
from penstock.broker.events.kinds import (
    AclsChanged,
    BrokerUnfenced,
    BrokerUnregistered,
    ConfigChanged,
    IsrChanged,
    LeaderElected,
    NodeEvent,
    NodeQuarantined,
    NodeReleased,
    TopicsChanged,
)
from penstock.metadata.image import (
    EMPTY_IMAGE,
    LOST_DIRECTORY,
    AclImage,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from penstock.protocol.vocabulary import NO_LEADER, ResourceType

WHOLE = PartitionImage((1, 2, 3), (1, 2, 3), 1)


def image(partitions: Iterable[PartitionImage] = (WHOLE,), **brokers: BrokerImage) -> MetadataImage:
    """Returns an image with topic t and three brokers; `b2=...` replaces broker 2."""
    known = {number: brokers.get(f"b{number}", live(number)) for number in (1, 2, 3)}
    topic = TopicImage("t", b"t" * 16, dict(enumerate(partitions)))
    return replace(EMPTY_IMAGE, brokers=known, topics={"t": topic}, topics_by_id={b"t" * 16: topic})


def live(broker_id: int) -> BrokerImage:
    return BrokerImage(broker_id, epoch=10 * broker_id, incarnation_id=bytes(16), endpoints={}, fenced=False)


def between(old: MetadataImage, new: MetadataImage) -> list[NodeEvent]:
    return list(events_between(old, new))


def test_two_equal_metadata_images_give_no_events() -> None:
    assert between(image(), image()) == []


@pytest.mark.parametrize(
    ("broker", "partition", "reason"),
    [
        (live(2), replace(WHOLE, isr=(1, 3)), "broker 2 fell behind"),
        (replace(live(2), fenced=True), replace(WHOLE, isr=(1, 3)), "broker 2 is fenced"),
        (replace(live(2), in_controlled_shutdown=True), replace(WHOLE, isr=(1, 3)), "broker 2 shuts down"),
        (live(2), replace(WHOLE, replicas=(1, 3), isr=(1, 3)), "broker 2 is no longer a replica"),
        (
            live(2),
            replace(WHOLE, isr=(1, 3), directories=(b"d" * 16, LOST_DIRECTORY, b"d" * 16)),
            "the log directory of broker 2 failed",
        ),
    ],
)
def test_isr_shrink_event_has_the_reason_why_the_broker_left(
    broker: BrokerImage, partition: PartitionImage, reason: str
) -> None:
    assert between(image(), image([partition], b2=broker)) == [IsrChanged(("t-0",), 1, (1, 2, 3), (1, 3), reason)]


def test_isr_expand_event_says_that_the_broker_has_caught_up() -> None:
    short = image([replace(WHOLE, isr=(1, 3))])
    assert between(short, image()) == [IsrChanged(("t-0",), 1, (1, 3), (1, 2, 3), "broker 2 caught up")]


def test_new_order_of_the_same_isr_gives_no_event() -> None:
    assert between(image(), image([replace(WHOLE, isr=(3, 2, 1))])) == []


def test_partitions_that_change_in_the_same_way_share_one_event() -> None:
    old = image([WHOLE] * 1000)
    new = image([replace(WHOLE, leader=2, isr=(2, 3))] * 1000, b1=replace(live(1), fenced=True))
    first = tuple(f"t-{index}" for index in range(5))
    assert between(old, new) == [
        LeaderElected(first, 1000, 1, 2, unclean=False),
        IsrChanged(first, 1000, (1, 2, 3), (2, 3), "broker 1 is fenced"),
    ]
    assert str(between(old, new)[0]) == (
        "t-0, t-1, t-2, t-3, t-4 and 995 more: node 2 leads after node 1, by a clean election"
    )


def test_event_of_an_unclean_election_warns_that_records_may_be_lost() -> None:
    alone = image([replace(WHOLE, leader=NO_LEADER, isr=(1,))])
    elected, isr = between(alone, image([replace(WHOLE, leader=2, isr=(2,), leader_recovery_state=1)]))
    assert elected == LeaderElected(("t-0",), 1, NO_LEADER, 2, unclean=True)
    assert "may have lost records" in str(elected)
    assert isr == IsrChanged(("t-0",), 1, (1,), (2,), "an unclean election")


def test_unfencing_and_unregistering_of_brokers_give_events() -> None:
    fenced = image(b2=replace(live(2), fenced=True))
    assert between(fenced, image()) == [BrokerUnfenced(2, 20)]
    unknown = replace(image(), brokers={1: live(1), 3: live(3)})
    assert between(unknown, image()) == [BrokerUnfenced(2, 20)], "a broker that is unfenced when it is first seen"
    gone = replace(image(), brokers={1: live(1), 3: live(3)})
    assert between(image(), gone) == [BrokerUnregistered(2)]


def test_recreated_topic_gives_a_deletion_event_and_a_creation_event() -> None:
    other = TopicImage("t", b"u" * 16, {0: WHOLE})
    again = replace(image(), topics={"t": other}, topics_by_id={b"u" * 16: other})
    assert between(image(), again) == [TopicsChanged(("t",), 1, "deleted"), TopicsChanged(("t",), 1, "created")]


def test_config_event_names_the_changed_configs_without_their_values() -> None:
    key = (int(ResourceType.BROKER), "2")
    old = replace(image(), configs={key: {"a": "1", "ssl.key.password": "first"}})
    new = replace(image(), configs={key: {"a": "1", "ssl.key.password": "second", "b": "2"}})
    assert between(old, new) == [ConfigChanged("broker 2", ("b", "ssl.key.password"))]
    assert "second" not in str(between(old, new)[0])
    assert between(new, old) == [ConfigChanged("broker 2", ("b", "ssl.key.password"))], "b was removed"


def test_acl_event_has_the_number_of_changes_and_the_principals() -> None:
    acl = AclImage(2, "t", 3, "User:ann", "*", 3, 3)
    with_acl = replace(image(), acls={b"1": acl})
    assert between(image(), with_acl) == [AclsChanged(1, 0, ("User:ann",))]
    assert between(with_acl, image()) == [AclsChanged(0, 1, ("User:ann",))]


def test_quarantine_and_release_of_a_node_give_events_in_addition_to_the_config_event() -> None:
    free = image()
    held = replace(free, configs={(ResourceType.BROKER, "2"): {"penstock.guard.quarantined": "lies"}}, version=9)
    changed = ConfigChanged("broker 2", ("penstock.guard.quarantined",))
    assert between(free, held) == [NodeQuarantined(2, "lies"), changed]
    assert between(held, free) == [NodeReleased(2), changed]
