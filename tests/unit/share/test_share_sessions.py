"""Tests the limits of share sessions."""

from __future__ import annotations

import pytest

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.share.sessions import MAX_PARTITIONS, MAX_SESSION_PARTITIONS, ShareSession, ShareSessions, Slot

TOPIC = bytes(16)


def slots(count: int, first: int = 0) -> list[Slot]:
    return [(TOPIC, index) for index in range(first, first + count)]


def fetch(sessions: ShareSessions, member: str, epoch: int, added: list[Slot]) -> ShareSession:
    return sessions.fetch("group", member, epoch, "connection", added, (), acknowledges=False)


def test_share_fetch_beyond_the_partition_limit_of_a_session_is_refused_and_changes_nothing() -> None:
    sessions = ShareSessions(10)
    session = fetch(sessions, "m", 0, slots(MAX_SESSION_PARTITIONS))
    with pytest.raises(KafkaError) as refused:
        fetch(sessions, "m", 1, slots(1, MAX_SESSION_PARTITIONS))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert (session.epoch, len(session.partitions)) == (1, MAX_SESSION_PARTITIONS)
    assert fetch(sessions, "m", 1, slots(5)) is session, "these partitions are in the session"


def test_share_fetch_beyond_the_partition_limit_of_all_sessions_is_refused() -> None:
    sessions = ShareSessions(1000)
    most = MAX_PARTITIONS // MAX_SESSION_PARTITIONS
    for number in range(most):
        fetch(sessions, str(number), 0, slots(MAX_SESSION_PARTITIONS))
    with pytest.raises(KafkaError) as refused:
        fetch(sessions, "one more", 0, slots(1))
    assert refused.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.close("group", "0")
    fetch(sessions, "one more", 0, slots(1))
    session = fetch(sessions, "1", 1, [])
    sessions.forget(session, slots(5))
    fetch(sessions, "another", 0, slots(MAX_SESSION_PARTITIONS))
