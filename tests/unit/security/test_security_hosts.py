"""Tests which host names and addresses count as this machine."""

import pytest

from penstock.security.hosts import is_loopback


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.3.2.1", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"]
)
def test_localhost_and_every_loopback_address_count_as_loopback_hosts(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "10.0.0.1", "::2", "::ffff:10.0.0.1", "127.evil.example", "127.0.0.1.evil", "localhost.evil"],
)
def test_other_host_names_and_addresses_do_not_count_as_loopback_hosts(host: str) -> None:
    assert not is_loopback(host)
