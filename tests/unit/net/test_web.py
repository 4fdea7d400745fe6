"""Tests that small documents are fetched only over TLS, from loopback or from files, and within a timeout."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.net.web import Document, FetchError
from penstock.node.local_security import local_security


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
def test_plain_http_url_is_refused_unless_its_host_is_the_loopback(url: str) -> None:
    with pytest.raises(ValueError, match="is not protected"):
        Document(url, 10)


@contextlib.contextmanager
def server(answer: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serves one connection with `answer`. Yields the server's URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def serve() -> None:
            peer, _ = listening.accept()
            with peer, contextlib.suppress(OSError):
                peer.settimeout(10)
                with peer if tls is None else tls.wrap_socket(peer, server_side=True) as served:
                    served.recv(4096)
                    answer(served)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{listening.getsockname()[1]}/keys"
        finally:
            thread.join()


def test_http_document_is_read_with_and_without_a_content_length_header() -> None:
    for head in (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"):
        with server(lambda peer, head=head: peer.sendall(head + b"keys")) as url:  # type: ignore[misc]
            assert Document(url, 10).read() == b"keys"


def test_document_is_read_over_tls_only_from_a_trusted_server(tmp_path: Path) -> None:
    security = local_security(str(tmp_path / "security"), "127.0.0.1")
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(security.key_store)

    def answer(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nkeys")

    with server(answer, own) as url:
        trusting = ssl.create_default_context(cafile=security.ca)
        assert Document(url, 10, tls=trusting).read() == b"keys"
    with server(answer, own) as url, pytest.raises(FetchError, match="can't be trusted"):
        Document(url, 10).read()


def test_read_of_an_http_document_times_out_if_the_response_headers_are_too_slow() -> None:
    gone = threading.Event()

    def answer(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Slow: ")
        for _ in range(200):
            if gone.wait(0.02):
                return
            peer.sendall(b"a")
        peer.sendall(b"\r\n\r\n")

    with server(answer) as url:
        try:
            with pytest.raises(FetchError, match=r"did not answer within 0\.2 s"):
                Document(url, 10, timeout_s=0.2).read()
        finally:
            gone.set()
