"""Tests the address of the HTTP listener, and which host names it accepts in requests."""

from __future__ import annotations

import pytest

from penstock.http.address import HttpAddress, Names, parse_address
from penstock.metadata.configs.settings import Settings
from penstock.node.listeners import ListenerError, plan_http


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9644", "127.0.0.1", 9644),
        ("9644", "127.0.0.1", 9644),
        (":0", "127.0.0.1", 0),
        ("[::1]:80", "::1", 80),
        ("0.0.0.0:9644", "0.0.0.0", 9644),
        ("node1.example:9644", "node1.example", 9644),
    ],
)
def test_http_address_is_parsed_into_host_and_port_with_loopback_as_default_host(
    text: str, host: str, port: int
) -> None:
    assert parse_address(text) == HttpAddress(host, port)


def test_http_address_that_begins_with_https_turns_on_tls() -> None:
    assert parse_address("https://node1:9644") == HttpAddress("node1", 9644, tls=True)
    assert parse_address("https://[::1]:9644") == HttpAddress("::1", 9644, tls=True)
    assert parse_address("http://node1:9644") == HttpAddress("node1", 9644)
    assert HttpAddress("0.0.0.0", 0, tls=True).url(1) == "https://localhost:1/"


def test_empty_http_address_turns_http_off() -> None:
    assert parse_address(" ") is None


@pytest.mark.parametrize(
    "text", ["nowhere", "ftp://localhost:80", "https://", "localhost:70000", "a b:1", "user@host:1", "::1:80"]
)
def test_error_about_an_invalid_http_address_shows_the_expected_form(text: str) -> None:
    with pytest.raises(ListenerError, match=r"penstock\.http\.listener can't be .*: write host:port"):
        plan_http(Settings({"penstock.http.listener": text}))


def test_url_of_the_http_listener_can_be_opened_on_the_same_machine() -> None:
    assert HttpAddress("127.0.0.1", 0).url(1234) == "http://127.0.0.1:1234/"
    assert HttpAddress("::1", 0).url(1234) == "http://[::1]:1234/"
    assert HttpAddress("0.0.0.0", 0).url(1234) == "http://localhost:1234/"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9644", "127.0.0.1:9644", "[::1]:9644", "[::1]", "localhost."])
def test_host_headers_with_local_names_are_accepted(host: str) -> None:
    assert Names(HttpAddress("127.0.0.1", 9644)).allow(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:9644",
        "10.0.0.1",
        "a@localhost",
        "localhost:x",
    ],
)
def test_host_headers_with_unknown_names_are_refused(host: str) -> None:
    assert not Names(HttpAddress("127.0.0.1", 9644)).allow(host)


def test_wildcard_listener_accepts_host_headers_with_any_ip_address_but_only_known_names() -> None:
    names = Names(HttpAddress("0.0.0.0", 9644), ["broker-1.example"])
    assert names.allow("10.0.0.7:9644")
    assert names.allow("[fe80::1]:9644")
    assert names.allow("Broker-1.example")
    assert not names.allow("evil.example")
