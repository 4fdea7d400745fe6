"""Tests which TLS handshakes the HTTP listener ends when more are in progress than its limits allow."""

from __future__ import annotations

import ssl

from penstock.http.server import MAX_HANDSHAKES, MAX_HANDSHAKES_OF_HOST, Handshakes
from penstock.net.limits import AT_ONCE, Arrival


def no_context() -> ssl.SSLContext:
    raise AssertionError("no handshake begins")


def begun(**counts: int) -> Handshakes:
    """Returns the handshakes of these hosts, all in progress."""
    handshakes = Handshakes(no_context)
    for host, count in counts.items():
        for _ in range(count):
            assert handshakes.enter(host) == AT_ONCE
    return handshakes


def test_too_many_tls_handshakes_close_a_handshake_of_the_host_with_the_most_handshakes() -> None:
    handshakes = begun(few=MAX_HANDSHAKES - 90, most=48, many=42)
    for _ in range(6):
        assert handshakes.enter("new") == Arrival(closes="most")
        handshakes.leave("most")
    assert handshakes.enter("new") == Arrival(closes="most")  # 42 as well, and older


def test_host_at_its_limit_of_tls_handshakes_is_refused_and_closes_no_handshake_of_another_host() -> None:
    handshakes = begun(one=MAX_HANDSHAKES_OF_HOST, other=MAX_HANDSHAKES_OF_HOST)
    assert handshakes.enter("one") is None
    for _ in range(MAX_HANDSHAKES - 2 * MAX_HANDSHAKES_OF_HOST):
        assert handshakes.enter("third") == AT_ONCE
    assert handshakes.enter("one") is None


def test_completed_tls_handshake_no_longer_counts_towards_the_limit_of_its_host() -> None:
    handshakes = begun(one=MAX_HANDSHAKES_OF_HOST)
    assert handshakes.enter("one") is None
    handshakes.completed("one")
    assert handshakes.enter("one") == AT_ONCE
