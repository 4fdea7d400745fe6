"""Tests which HTTP connections are closed when more clients connect than the server's limits allow."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.http import places
from penstock.http.places import MAX_CONNECTIONS, PROBE_PLACES, UNREAD_MAX_BYTES, Limit, Places


@dataclass(eq=False)
class Peer:
    host: str = "10.0.0.1"
    idle: bool = False
    reads_slowly: bool = False
    unread_bytes: int = 0


def full(*peers: Peer, per_host: int = MAX_CONNECTIONS) -> Places[Peer]:
    """Returns a full table of connections: the given peers, and peers of other hosts with active requests."""
    taken: Places[Peer] = Places(per_host)
    for peer in (*peers, *(Peer(f"10.1.0.{number}") for number in range(MAX_CONNECTIONS - len(peers)))):
        assert taken.enter(peer) == (None, None)
    return taken


def test_full_http_server_closes_the_connection_of_a_slow_reader_before_an_idle_connection() -> None:
    idle, slow = Peer(idle=True), Peer(reads_slowly=True)
    taken = full(idle, slow)
    assert taken.enter(Peer()) == (None, slow)
    assert taken.enter(Peer()) == (None, idle)
    assert len(taken) == MAX_CONNECTIONS


def test_full_http_server_closes_the_oldest_idle_connection_of_the_host_with_the_most_connections() -> None:
    alone, *several = Peer("10.0.0.1", idle=True), Peer("10.0.0.2", idle=True), Peer("10.0.0.2", idle=True)
    taken = full(alone, *several)
    assert taken.enter(Peer("10.0.0.3")).closed is several[0]


def test_full_http_server_closes_no_active_connection_and_accepts_a_new_one_only_for_health_probes() -> None:
    taken = full()
    assert taken.enter(Peer()) == (Limit.ALL, None)
    assert len(taken) == MAX_CONNECTIONS + 1


def test_full_http_server_limits_probe_connections_and_first_closes_a_probe_connection_without_a_request() -> None:
    taken = full()
    trials = [Peer(idle=number == 3) for number in range(PROBE_PLACES)]
    for peer in trials:
        assert taken.enter(peer) == (Limit.ALL, None)
    assert taken.enter(Peer()) == (Limit.ALL, trials[3])
    assert taken.enter(Peer()) == (Limit.ALL, trials[0])
    assert len(taken) == MAX_CONNECTIONS + PROBE_PLACES


def test_new_connection_of_a_host_at_its_limit_closes_only_an_idle_connection_of_the_same_host() -> None:
    taken: Places[Peer] = Places(2)
    other, first, second = Peer("10.0.0.2", reads_slowly=True), Peer(), Peer()
    for peer in (other, first, second):
        assert taken.enter(peer) == (None, None)
    assert taken.enter(Peer()) == (Limit.HOST, None)
    second.idle = True
    assert taken.enter(Peer()) == (None, second)


def test_closed_http_connection_no_longer_counts_towards_the_limits() -> None:
    taken: Places[Peer] = Places(1)
    first, second = Peer(), Peer()
    taken.enter(first)
    taken.enter(second)
    taken.leave(first)
    taken.leave(second)
    assert len(taken) == 0
    assert taken.enter(Peer()) == (None, None)


def test_host_at_its_limit_of_unread_bytes_gets_an_answer_only_if_closing_slow_readers_frees_enough() -> None:
    taken: Places[Peer] = Places(8)
    half = UNREAD_MAX_BYTES // 2
    slow, reading, other = Peer(unread_bytes=half), Peer(unread_bytes=half), Peer("10.0.0.2", unread_bytes=half)
    asking = Peer(unread_bytes=5)
    for peer in (slow, reading, other, asking):
        taken.enter(peer)
    assert taken.in_the_way(asking, 1) is None
    slow.reads_slowly = True
    assert taken.in_the_way(asking, 1) == [slow]
    assert taken.in_the_way(asking, half + 1) is None
    assert taken.in_the_way(other, half) == []


def test_single_answer_larger_than_the_limit_of_unread_bytes_is_sent_if_nothing_else_is_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "UNREAD_MAX_BYTES", 10)
    taken: Places[Peer] = Places(8)
    asking = Peer()
    taken.enter(asking)
    taken.enter(Peer())
    assert taken.in_the_way(asking, 11) == []
