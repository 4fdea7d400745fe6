"""Tests client certificates with unusual names: each client gets exactly its own principal, or is refused."""

from __future__ import annotations

import ssl
import time
import warnings
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from test_tls_changes import connect, with_node

from penstock.node.node import Node
from penstock.protocol.errors import KafkaError
from tools.certificates import PEM, Authority, key_pem

MANY = 800  # names of a certificate; OpenSSL refuses certificates above 64 kB, which do not fit into a session ticket


def attribute(value: str, kind: _ASN1Type = _ASN1Type.UTF8String) -> x509.NameAttribute[str]:
    with warnings.catch_warnings(action="ignore"):  # the package warns of values that this test wants
        return x509.NameAttribute(NameOID.COMMON_NAME, value, kind, _validate=False)


def context(
    authority: Authority, where: Path, subject: list[x509.NameAttribute[str]], names: int = 0
) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    more = [x509.DNSName(f"{number}.{'x' * 40}.example") for number in range(names)]
    certificate = authority.signed(x509.Name(subject), key.public_key(), more=more)
    file = where / "odd.pem"
    file.write_text(key_pem(key) + certificate.public_bytes(PEM).decode())
    found = authority.trusting
    found.load_cert_chain(file)
    return found


def properties(authority: Authority, rules: str = "DEFAULT") -> dict[str, str]:
    return {
        "ssl.keystore.location": authority.store("server.pem", "localhost"),
        "ssl.truststore.location": str(authority.file),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": rules,
    }


@pytest.mark.parametrize(
    ("value", "kind", "name"),
    [
        ("admin\0.evil", _ASN1Type.UTF8String, "CN=admin\\00.evil"),
        ("admin,O=Org", _ASN1Type.UTF8String, "CN=admin\\,O\\=Org"),
        ("änn \U0001f600", _ASN1Type.UTF8String, "CN=änn \U0001f600"),
        ("änn", _ASN1Type.BMPString, "CN=änn"),
        (" admin ", _ASN1Type.UTF8String, "CN=\\ admin\\ "),
        ("admin\n", _ASN1Type.UTF8String, "CN=admin\n"),
        ("a" * 10_000, _ASN1Type.UTF8String, "CN=" + "a" * 10_000),
    ],
)
def test_principal_of_a_certificate_is_its_whole_subject_with_special_characters_escaped(
    tmp_path: Path, value: str, kind: _ASN1Type, name: str
) -> None:
    authority = Authority(tmp_path, "ca")
    tls = context(authority, tmp_path, [attribute(value, kind)])

    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, tls)
        (connection,) = node._server.connections.values()
        assert connection.principal == f"User:{name}"
        peer.close()

    with_node(scenario, properties(authority))


def test_principal_of_a_certificate_with_an_email_address_is_written_as_in_kafka(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    email = x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b")
    tls = context(authority, tmp_path, [attribute("ann"), email])

    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, tls)
        (connection,) = node._server.connections.values()
        assert connection.principal == "User:1.2.840.113549.1.9.1=#1603614062,CN=ann"
        peer.close()

    with_node(scenario, properties(authority))


@pytest.mark.parametrize(
    ("subject", "rules"),
    [
        ([], "DEFAULT"),
        ([attribute("a,OU=" * 15_000)], "RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1/"),
        ([attribute("bob")], "RULE:^CN=ann$/ann/"),
    ],
)
def test_client_whose_certificate_subject_gives_no_user_name_is_refused(
    tmp_path: Path, subject: list[x509.NameAttribute[str]], rules: str
) -> None:
    authority = Authority(tmp_path, "ca")
    tls = context(authority, tmp_path, subject)

    async def scenario(node: Node, port: int) -> None:
        with pytest.raises(KafkaError):
            await connect(port, tls)

    with_node(scenario, properties(authority, rules))


def test_certificate_with_many_alternative_names_takes_little_cpu_time(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    tls = context(authority, tmp_path, [attribute("ann")], MANY)

    async def scenario(node: Node, port: int) -> None:
        (await connect(port, tls)).close()
        begin = time.thread_time()
        peer = await connect(port, tls)
        assert time.thread_time() - begin < 5
        peer.close()

    with_node(scenario, properties(authority))
