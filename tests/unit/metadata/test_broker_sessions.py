"""Tests the sessions of brokers at the controller, which end without heartbeats."""

from dataclasses import replace

from penstock.metadata.controller.heartbeats import Heartbeats
from penstock.metadata.image import EMPTY_IMAGE, BrokerImage, MetadataImage


def image_of(brokers: str = "123") -> MetadataImage:
    """Returns an image with brokers by digit; `!` after a broker means fenced. The epoch of broker 1 is 11."""
    return replace(
        EMPTY_IMAGE,
        brokers={
            int(digit): BrokerImage(int(digit), 10 + int(digit), bytes(16), {}, fenced=mark == "!")
            for digit, mark in zip(brokers, brokers[1:] + " ", strict=True)
            if digit != "!"
        },
    )


def test_broker_session_ends_without_heartbeats() -> None:
    image, beats = image_of(), Heartbeats(9000)
    beats.begin(image, 0)
    beats.touch(2, 12, 5000, 100)
    assert beats.stale(image, 9000) == []
    assert beats.next_check_ms(image, 9000) == 9001
    assert beats.stale(image, 9001) == [1, 3]
    assert beats.stale(image, 14_001) == [1, 3, 2]
    fenced = image_of("1!23!")
    assert beats.stale(fenced, 9001) == []
    assert beats.next_check_ms(fenced, 9001) == 14_001


def test_only_a_connected_broker_that_sent_a_heartbeat_counts_as_live() -> None:
    image, beats = image_of(), Heartbeats(9000)
    beats.begin(image, 0)
    assert not beats.is_live(image, 1, 1)
    beats.touch(1, 11, 10, 100)
    assert beats.is_live(image, 1, 9010)
    assert not beats.is_live(image, 1, 9011)
    beats.disconnected(1, 10)
    assert beats.is_live(image, 1, 20)
    beats.disconnected(1, 11)
    assert not beats.is_live(image, 1, 20)
    beats.touch(1, 11, 30, 100)
    assert beats.is_live(image, 1, 40)
    assert not beats.is_live(image_of("1!23"), 1, 40)
    assert not beats.is_live(image, 9, 40)


def test_registration_with_a_new_epoch_begins_a_new_session() -> None:
    image, beats = image_of(), Heartbeats(9000)
    beats.begin(image, 0)
    beats.touch(1, 10, 5, 100)
    assert not beats.is_live(image, 1, 10)  # the session is of an earlier registration
    beats.registered(1, 11, 6000)
    assert beats.sessions[1].metadata_offset == -1
    assert beats.is_live(image, 1, 15_000)
    assert beats.stale(image, 15_000) == [2, 3]


def test_repeated_registration_extends_the_session_of_its_epoch() -> None:
    image, beats = image_of(), Heartbeats(9000)
    beats.touch(1, 11, 0, 100)
    beats.disconnected(1, 11)
    beats.registered(1, 11, 6000)
    assert beats.sessions[1].metadata_offset == 100
    assert beats.is_live(image, 1, 15_000)
    assert not beats.is_live(image, 1, 15_001)


def test_disconnect_and_unregistration_of_an_unknown_broker_create_no_session() -> None:
    beats = Heartbeats(9000)
    beats.disconnected(9, 19)
    beats.forget(9)
    assert beats.sessions == {}


def test_lowest_metadata_offset_ignores_brokers_in_controlled_shutdown() -> None:
    image, beats = image_of(), Heartbeats(9000)
    assert beats.lowest_active_offset(image) is None
    for broker_id, offset in [(1, 90), (2, 95), (3, 97)]:
        beats.touch(broker_id, 10 + broker_id, 0, offset)
    assert beats.lowest_active_offset(image) == 90
    beats.sessions[1].shutdown_offset = 92
    assert beats.lowest_active_offset(image) == 95
    assert beats.lowest_active_offset(image_of("12!3")) == 97


def test_pause_of_the_controller_extends_the_sessions_of_all_brokers() -> None:
    image, beats = image_of(), Heartbeats(9000)
    beats.begin(image, 0)
    beats.extend_sessions(60_000, 60_100)
    assert beats.stale(image, 65_000) == []
    assert beats.stale(image, 69_001) == [1, 2, 3]
