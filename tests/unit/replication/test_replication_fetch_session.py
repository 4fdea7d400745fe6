"""Tests a follower's fetch session: which partitions each request contains, and which partitions it removes."""

from __future__ import annotations

import pytest

from penstock.protocol.errors import ErrorCode
from penstock.replication.fetch_session import FIRST_EPOCH, LAST_EPOCH, NO_SESSION, Key, ReplicaSession

A, B, C = (b"a" * 16, 0), (b"a" * 16, 1), (b"c" * 16, 0)


def ask(session: ReplicaSession, *everything: Key) -> tuple[list[Key], list[Key]]:
    """Makes one request. Returns the partitions that it contains, and the partitions that it removes."""
    due = session.due(everything)
    for key in due:
        session.named(key)
    return due, [(topic.topic_id, index) for topic in session.ask() for index in topic.partitions]


def begun(*everything: Key) -> ReplicaSession:
    session = ReplicaSession()
    assert ask(session, *everything) == (list(everything), [])
    session.answered(7)
    return session


def test_first_fetch_of_a_session_names_all_partitions_and_later_fetches_only_changed_partitions() -> None:
    session = begun(A, B, C)
    assert ask(session, A, B, C) == ([], [])
    session.mention(B)
    assert ask(session, A, B, C) == ([B], [])
    assert ask(session, A, B, C) == ([], [])


def test_fetch_forgets_a_partition_once_and_only_if_the_session_contains_the_partition() -> None:
    session = begun(A, B)
    session.leave(A)
    session.leave(C)
    assert ask(session, B) == ([], [A])
    assert ask(session, B) == ([], [])


def test_partition_that_is_followed_again_before_the_next_fetch_stays_in_the_session() -> None:
    session = begun(A, B)
    session.leave(A)
    session.come_back(A)
    session.mention(A)
    assert ask(session, A, B) == ([A], [])


def test_fetch_omits_a_changed_partition_that_has_left_the_session() -> None:
    session = begun(A, B)
    session.mention(A)
    session.leave(A)
    assert ask(session, B) == ([], [A])


def test_epoch_of_a_fetch_session_starts_at_one_and_wraps_from_the_largest_epoch_to_one() -> None:
    session = begun(A)
    assert (session.id, session.epoch) == (7, 1)
    session.answered(7)
    assert session.epoch == 2
    session.epoch = LAST_EPOCH
    session.answered(7)
    assert session.epoch == 1


def test_every_fetch_without_a_session_names_all_partitions() -> None:
    session = ReplicaSession()
    for _ in range(3):
        assert ask(session, A, B) == ([A, B], [])
        session.answered(NO_SESSION)
        assert session.begins


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
def test_next_fetch_after_a_lost_session_has_no_session_id(code: ErrorCode) -> None:
    session = begun(A, B)
    session.leave(B)
    assert session.failed(code)
    assert (session.id, session.epoch) == (NO_SESSION, FIRST_EPOCH)
    assert ask(session, A) == ([A], [])  # a new session has nothing to remove


def test_next_fetch_after_an_error_other_than_a_lost_session_has_the_old_session_id() -> None:
    session = begun(A)
    assert not session.failed(ErrorCode.NETWORK_EXCEPTION)
    assert (session.id, session.epoch) == (7, FIRST_EPOCH)
    assert ask(session, A) == ([A], [])


def test_partition_that_left_the_session_is_forgotten_in_one_request_only() -> None:
    session, key = ReplicaSession(), (bytes(16), 3)
    assert session.due([key]) == [key]
    session.named(key)
    assert session.ask() == []
    session.answered(7)
    session.leave(key)
    assert [(each.topic_id, each.partitions) for each in session.ask()] == [(bytes(16), [3])]
    session.answered(7)
    session.leave(key)
    assert session.ask() == []
