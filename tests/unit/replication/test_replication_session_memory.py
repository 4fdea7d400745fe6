"""Tests what a fetch session remembers of its partitions: nothing of an earlier session, and nothing twice."""

from __future__ import annotations

from itertools import product

from penstock.protocol.errors import ErrorCode
from penstock.replication.fetch_session import NO_SESSION, Key, ReplicaSession

A, B, C = (b"a" * 16, 0), (b"a" * 16, 1), (b"c" * 16, 0)


def ask(session: ReplicaSession, *everything: Key) -> tuple[list[Key], dict[bytes, list[int]]]:
    due = session.due(everything)
    for key in due:
        session.named(key)
    forgotten = session.ask()
    topics = {each.topic_id: list(each.partitions) for each in forgotten}
    assert len(topics) == len(forgotten), "each topic is named once"
    return due, topics


def begun(*everything: Key) -> ReplicaSession:
    session = ReplicaSession()
    ask(session, *everything)
    session.answered(7)
    return session


def test_forgotten_partitions_of_one_topic_are_named_together() -> None:
    session = begun(A, B, C)
    for key in (A, C, B):
        session.leave(key)
    assert ask(session) == ([], {A[0]: [0, 1], C[0]: [0]})


def test_partition_that_the_same_request_names_is_not_forgotten() -> None:
    """Leaders add partitions first and then remove, so the partition would be lost."""
    session = begun(A, B)
    session.leave(A)
    session.mention(A)
    assert ask(session, A, B) == ([A], {})
    session.leave(A)
    assert ask(session, B) == ([], {A[0]: [0]})


def test_new_session_knows_only_the_partitions_that_began_it() -> None:
    def restart(session: ReplicaSession, how: str) -> None:
        if how == "begin":
            session.begin()
        elif how == "no room":
            session.answered(NO_SESSION)
        else:
            session.failed(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    for how, left_before in product(("begin", "no room", "lost"), (False, True)):
        session = begun(A, B, C)
        session.mention(C)
        if left_before:
            session.leave(A)
        restart(session, how)
        assert ask(session, B) == ([B], {}), "a new session removes nothing"
        session.answered(8)
        session.leave(A)
        session.leave(C)
        assert ask(session, B) == ([], {}), "the leader's session has neither"
        session.leave(B)
        assert ask(session) == ([], {B[0]: [1]})


def test_partition_that_returns_without_having_left_the_session_is_no_news() -> None:
    session = begun(A)
    session.come_back(A)
    session.come_back(B)
    assert ask(session, A) == ([], {})
    session.leave(B)
    assert ask(session, A) == ([], {}), "the leader never knew it"


def test_request_after_an_answer_names_only_what_changed_since_the_request_before() -> None:
    session = begun(A, B)
    session.mention(A)
    session.mention(B)
    assert session.due([A, B]) == [A, B]
    session.named(A)  # the request has no room for B
    session.ask()
    session.mention(B)
    assert ask(session, A, B) == ([B], {})
