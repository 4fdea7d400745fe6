"""Tests the limits on streams and operations, per user and for all users."""

from __future__ import annotations

import pytest

from penstock.http.guard import Caller
from penstock.http.shares import LimitReachedError, Shares


def refused(shares: Shares, user: str) -> LimitReachedError:
    with pytest.raises(LimitReachedError) as error:
        shares.take(user)
    return error.value


def test_streams_are_limited_per_user_and_for_all_users_together() -> None:
    shares = Shares("streams", "close one", total=3, of_user=2)
    shares.take("User:ann")
    shares.take("User:ann")
    mine = refused(shares, "User:ann")
    assert (mine.of_user, mine.limit, mine.allowed) == (True, "streams of one user", 2)
    assert str(mine) == "User:ann has 2 streams on this node, its share: close one."
    shares.take("User:bob")
    all_taken = refused(shares, "User:bob")
    assert (all_taken.of_user, all_taken.limit, all_taken.allowed) == (False, "streams of all users", 3)
    assert str(all_taken) == "All users have 3 streams on this node: close one, or try again later."


def test_ended_stream_no_longer_counts_towards_the_limits() -> None:
    shares = Shares("streams", "close one", total=1, of_user=1)
    for user in ("User:ann", "User:bob", "User:ann"):
        shares.take(user)
        assert shares.count == 1
        shares.give_back(user)
    assert shares.count == 0


def test_http_callers_without_a_login_count_as_one_user_per_address() -> None:
    assert Caller(host="10.0.0.1").user != Caller(host="10.0.0.2").user
    assert Caller("User:ann", "10.0.0.1").user == Caller("User:ann", "10.0.0.2").user
