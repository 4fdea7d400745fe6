"""Tests key stores and trust stores in every format, and TLS listeners: limits before the handshake, renewed
certificates."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import ipaddress
import os
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID
from net_harness import until

from penstock.net.limits import Arrival, Limits
from penstock.net.server import Listener, Server
from penstock.net.tls import TlsError, TlsSource, client_context, read_file, read_material, server_context

PASSWORD = "store-secret"


class Identity:
    """Holds a self-signed certificate for localhost, with its key."""

    def __init__(self, name: str = "localhost") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )

    def key_pem(self, password: str | None = None) -> str:
        encryption: Any = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        ).decode()

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def pkcs12(self) -> bytes:
        encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
        return pkcs12.serialize_key_and_certificates(b"me", self.key, self.certificate, None, encryption)

    def jks(self, key_password: str = PASSWORD) -> bytes:
        """Returns a JKS store with the key and, as a trusted entry, the certificate."""
        secret = key_password.encode("utf-16-be")
        plain = self.key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        last = salt = os.urandom(20)
        stream = b""
        while len(stream) < len(plain):
            last = hashlib.sha1(secret + last).digest()
            stream += last
        check = hashlib.sha1(secret + plain).digest()
        octets = salt + bytes(a ^ b for a, b in zip(plain, stream)) + check
        algorithm = _der(0x30, bytes.fromhex("060a2b060104012a02110101") + b"\x05\x00")
        protected = _der(0x30, algorithm + _der(0x04, octets))
        der = self.certificate.public_bytes(serialization.Encoding.DER)
        certificate = struct.pack(">H5sI", 5, b"X.509", len(der)) + der
        body = struct.pack(">III", 0xFEEDFEED, 2, 2)
        body += struct.pack(">IH2sq", 1, 2, b"me", 0) + struct.pack(">I", len(protected)) + protected
        body += struct.pack(">I", 1) + certificate
        body += struct.pack(">IH2sq", 2, 2, b"ca", 0) + certificate
        return body + hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    head = bytes([size]) if size < 128 else bytes([0x82]) + struct.pack(">H", size)
    return bytes([tag]) + head + content


@pytest.fixture(scope="module")
def identity() -> Identity:
    return Identity()


def stores(identity: Identity, where: Path) -> dict[str, dict[str, str]]:
    files = {
        "both.pem": (identity.key_pem() + identity.pem).encode(),
        "locked.pem": (identity.key_pem(PASSWORD) + identity.pem).encode(),
        "ca.pem": identity.pem.encode(),
        "store.p12": identity.pkcs12(),
        "store.jks": identity.jks(),
        "other.jks": identity.jks("key-secret"),
    }
    for name, content in files.items():
        (where / name).write_bytes(content)
    trusted = {"ssl.truststore.location": str(where / "ca.pem"), "ssl.truststore.type": "PEM"}

    def keystore(name: str, kind: str | None = None, **more: str) -> dict[str, str]:
        found = {"ssl.keystore.location": str(where / name), "ssl.keystore.password": PASSWORD, **trusted}
        return {**found, **({"ssl.keystore.type": kind} if kind else {}), **more}

    return {
        "pem": keystore("both.pem", "PEM"),
        "pem with password": keystore("locked.pem", "PEM", **{"ssl.key.password": PASSWORD}),
        "pem text": {
            "ssl.keystore.key": identity.key_pem().replace("\n", "\\n"),
            "ssl.keystore.certificate.chain": identity.pem,
            "ssl.truststore.certificates": identity.pem,
        },
        "pkcs12": keystore("store.p12", "PKCS12"),
        "jks": {
            **keystore("store.jks", "JKS"),
            "ssl.truststore.location": str(where / "store.jks"),
            "ssl.truststore.type": "JKS",
            "ssl.truststore.password": PASSWORD,
        },
        "jks with key password": keystore("other.jks", "JKS", **{"ssl.key.password": "key-secret"}),
        "type not given": keystore("store.jks"),
    }


@pytest.mark.parametrize(
    "kind", ["pem", "pem with password", "pem text", "pkcs12", "jks", "jks with key password", "type not given"]
)
def test_tls_client_and_server_connect_with_key_and_trust_stores_of_every_format(
    identity: Identity, tmp_path: Path, kind: str
) -> None:
    properties = {**stores(identity, tmp_path)[kind], "ssl.client.auth": "required"}
    material = read_material(properties, read_file)
    server, client = server_context(properties, material), client_context(properties, material)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    two = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    done: set[str] = set()
    for _ in range(10):
        for name, side in (("client", two), ("server", one)):
            try:
                side.do_handshake()
                done.add(name)
            except ssl.SSLWantReadError:
                continue
    assert done == {"client", "server"}
    certificate = one.getpeercert()
    assert certificate is not None
    assert certificate["subject"] == ((("commonName", "localhost"),),)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ssl.keystore.location": "/nowhere.pem"}, "can't be read .No such file"),
        ({"ssl.keystore.type": "BCFKS"}, "use PEM, PKCS12 or JKS"),
        ({"ssl.keystore.type": "PKCS12"}, "is not PKCS12"),
        ({"ssl.keystore.type": "JKS"}, "not a JKS key store"),
        ({"ssl.keystore.key": "x"}, "set both"),
        ({"ssl.client.auth": "required", "ssl.truststore.location": ""}, "needs ssl.truststore"),
        ({"ssl.enabled.protocols": "TLSv1"}, "use TLSv1.2"),
        ({"ssl.cipher.suites": "NO_SUCH_SUITE"}, "no suite"),
    ],
)
def test_error_for_an_unusable_key_store_names_its_property(
    identity: Identity, tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    properties = {**stores(identity, tmp_path)["pem"], **change}
    with pytest.raises(TlsError, match=reason) as refused:
        TlsSource(properties)
    assert PASSWORD not in str(refused.value)


def test_cipher_suites_restrict_both_versions_of_tls(identity: Identity, tmp_path: Path) -> None:
    properties = stores(identity, tmp_path)["pem"]
    new = "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256"
    only_new = TlsSource({**properties, "ssl.cipher.suites": new}).context
    assert only_new.minimum_version is ssl.TLSVersion.TLSv1_3
    only_old = TlsSource({**properties, "ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}).context
    assert only_old.maximum_version is ssl.TLSVersion.TLSv1_2
    assert "ECDHE-ECDSA-AES128-GCM-SHA256" in {each["name"] for each in only_old.get_ciphers()}
    with pytest.raises(TlsError, match=r"some but not all suites of TLS 1\.3"):
        TlsSource({**properties, "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"})


def test_key_store_with_a_wrong_password_is_refused(identity: Identity, tmp_path: Path) -> None:
    for kind, name in (
        ("jks", "ssl.keystore.password"),
        ("pkcs12", "ssl.keystore.password"),
        ("pem with password", "ssl.key.password"),
    ):
        with pytest.raises(TlsError, match="password"):
            TlsSource({**stores(identity, tmp_path)[kind], name: "wrong"})


def test_loading_a_key_store_leaves_no_key_file_on_disk(
    identity: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    TlsSource(stores(identity, tmp_path)["pkcs12"])
    assert not [path for path in set(tmp_path.iterdir()) - before if path.name.startswith("penstock-tls-")]


async def tls_server(source: TlsSource, limits: Limits | None = None) -> tuple[Server, int]:
    server = Server(lambda connection, frame: [bytes(frame)], limits or Limits())
    (listener,) = await server.start([Listener("SSL", security_protocol="SSL", tls=lambda: source.context)])
    return server, listener.port


async def echo(port: int, context: ssl.SSLContext) -> Any:
    """Sends a frame and returns the server's certificate."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    writer.write(struct.pack(">i", 4) + b"ping")
    assert await reader.readexactly(8) == struct.pack(">i", 4) + b"ping"
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return certificate


def test_new_connections_get_the_renewed_certificate_and_a_broken_certificate_is_ignored(tmp_path: Path) -> None:
    async def scenario() -> None:
        first, second = Identity("first"), Identity("second")
        store = tmp_path / "server.pem"
        store.write_text(first.key_pem() + first.pem)
        source = TlsSource({"ssl.keystore.location": str(store), "ssl.keystore.type": "PEM"})
        server, port = await tls_server(source)
        trust = ssl.create_default_context(cadata=first.pem + second.pem)
        before = await echo(port, trust)
        assert not source.refresh()
        store.write_text("not a certificate at all")
        with pytest.raises(TlsError):
            source.refresh()
        assert await echo(port, trust) == before
        store.write_text(second.key_pem() + second.pem + "\n")
        assert source.refresh()
        assert await echo(port, trust) == second.certificate.public_bytes(serialization.Encoding.DER)
        await server.stop(0)

    asyncio.run(scenario())


def test_empty_trust_store_file_is_refused_and_the_old_certificates_stay_in_use(
    identity: Identity, tmp_path: Path
) -> None:
    source = TlsSource({**stores(identity, tmp_path)["pem"], "ssl.client.auth": "required"})
    before = source.context
    (tmp_path / "ca.pem").write_text("")
    with pytest.raises(TlsError, match="trust store has no certificate"):
        source.refresh()
    assert source.context is before


def test_tls_connections_count_toward_the_limits_before_their_handshake_is_complete(
    identity: Identity, tmp_path: Path
) -> None:
    async def scenario() -> None:
        source = TlsSource(stores(identity, tmp_path)["pem"])
        server, port = await tls_server(source, Limits(max_connections=3, loopback_connections=0))
        loop = asyncio.get_running_loop()
        peers = []
        for _ in range(10):
            peer = socket.socket()
            peer.setblocking(False)
            await loop.sock_connect(peer, ("127.0.0.1", port))
            peers.append(peer)
        await until(lambda: server.refused >= 7)
        assert server.counts.total == 3
        for peer in peers:
            peer.close()
        await until(lambda: not server.counts.total)
        trust = ssl.create_default_context(cadata=identity.pem)
        await asyncio.gather(*(echo(port, trust) for _ in range(3)))
        await until(lambda: not server.counts.total)
        await server.stop(0)

    asyncio.run(asyncio.wait_for(scenario(), 120))


@pytest.mark.parametrize(
    "junk", [b"\0\0\0\x10" + bytes(16), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"A" * 100]
)
def test_random_bytes_instead_of_a_tls_handshake_close_only_their_connection(
    identity: Identity, tmp_path: Path, junk: bytes
) -> None:
    async def scenario() -> None:
        source = TlsSource(stores(identity, tmp_path)["pem"])
        server, port = await tls_server(source)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(junk)
        writer.write_eof()
        await reader.read()
        writer.close()
        await echo(port, ssl.create_default_context(cadata=identity.pem))
        await until(lambda: not server.counts.total)
        await server.stop(0)

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_listener_refuses_tls_renegotiation(identity: Identity, tmp_path: Path) -> None:
    properties = stores(identity, tmp_path)["pem"]
    context = server_context(properties, read_material(properties, read_file))
    assert context.options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize("arrival", [Arrival(0.0, "too many"), Arrival(0.01, "too many"), Arrival(0.01)])
def test_connection_rate_limit_delays_or_refuses_a_tls_connection_before_its_handshake(
    identity: Identity, tmp_path: Path, arrival: Arrival
) -> None:
    source = TlsSource(stores(identity, tmp_path)["pem"])

    async def main() -> None:
        server = Server(lambda connection, request: [request])
        server.arrivals = lambda host, listener: arrival
        (listener,) = await server.start([Listener("TLS", tls=lambda: source.context)])
        trusting = ssl.create_default_context(cadata=identity.pem)
        served = False
        with contextlib.suppress(OSError):
            served = bool(await echo(listener.port, trusting))
        assert served is (arrival.refused is None)
        await until(lambda: server.counts.total == 0)
        await server.stop(0)

    asyncio.run(asyncio.wait_for(main(), 120))
