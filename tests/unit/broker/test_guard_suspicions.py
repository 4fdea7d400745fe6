"""Tests how a broker keeps suspicions and sends them to the controller."""

from penstock.broker.controlplane.suspicions import (
    KEEP_S,
    MAX_SUSPICIONS,
    PER_HEARTBEAT,
    RESEND_S,
    Suspicions,
)
from penstock.protocol.codec import decode, encode
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest

TOPIC = bytes(range(16))


class Times:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_suspicion_is_sent_with_the_next_heartbeat_and_again_after_a_pause() -> None:
    now = Times()
    suspicions = Suspicions(now)
    assert suspicions.add(3, TOPIC, 0, 17)
    assert [(each.node_id, each.partition, each.offset) for each in suspicions.due()] == [(3, 0, 17)]
    assert suspicions.due() == []
    now.now = RESEND_S
    assert len(suspicions.due()) == 1


def test_suspicion_that_is_added_twice_is_sent_once() -> None:
    suspicions = Suspicions(Times())
    assert [suspicions.add(3, TOPIC, 0, 17) for _ in range(3)] == [True, False, False]
    assert len(suspicions.due()) == 1


def test_suspicion_that_is_not_renewed_is_dropped() -> None:
    now = Times()
    suspicions = Suspicions(now)
    suspicions.add(3, TOPIC, 0, 17)
    suspicions.add(3, TOPIC, 1, 17)
    now.now = KEEP_S - 1
    suspicions.add(3, TOPIC, 1, 17)
    now.now = KEEP_S
    assert [each.partition for each in suspicions.due()] == [1]


def test_number_of_suspicions_is_bounded_in_memory_and_in_a_heartbeat() -> None:
    suspicions = Suspicions(Times())
    for partition in range(MAX_SUSPICIONS + 5):
        suspicions.add(3, TOPIC, partition, 0)
    first = suspicions.due()
    assert [each.partition for each in first] == list(range(5, 5 + PER_HEARTBEAT))
    sent = len(first)
    while more := suspicions.due():
        sent += len(more)
    assert sent == MAX_SUSPICIONS


def test_broker_heartbeat_contains_suspicions_in_every_version() -> None:
    suspicions = Suspicions(Times())
    suspicions.add(3, TOPIC, 2, 17)
    request = BrokerHeartbeatRequest(broker_id=1, broker_epoch=5, suspicions=suspicions.due())
    for version in (0, 1, 2):
        again = decode(BrokerHeartbeatRequest, version, b"".join([encode(request, version)]))
        assert [(each.node_id, each.topic_id, each.partition, each.offset) for each in again.suspicions] == [
            (3, TOPIC, 2, 17)
        ]
