"""Small documents are fetched from protected places only, and within their timeout."""

from __future__ import annotations

import pytest

from penstock.net.web import Document


@pytest.mark.parametrize(
    "url", ["http://localhost:80/k", "http://127.0.0.1/k", "http://127.3.2.1/k", "http://[::1]:8/k"]
)
def test_plain_http_is_accepted_for_loopback_addresses(url: str) -> None:
    assert not Document(url, 10).in_file


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost.evil.example/k",
        "http://localhostile.example/k",
        "http://127.evil.example/k",
        "http://127.0.0.1.evil.example/k",
        "http://10.0.0.1/k",
        "http://[::2]/k",
    ],
)
def test_plain_http_is_refused_for_other_hosts(url: str) -> None:
    with pytest.raises(ValueError, match="is not protected"):
        Document(url, 10)
