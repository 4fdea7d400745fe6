"""Makes a certificate authority, certificates and users for a secured local cluster (`penstock up --secure`).

Everything is kept in one directory, in files that only this user can read: `ca.pem`, `ca.key`, `node.pem` (key and
certificate of all nodes) and `users.json` (passwords). Later starts use the same files. A new node certificate is made
before the old one expires, or if the old one lacks a name of the node. Needs the package `cryptography`.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.disk.api import DIRECTORY_MODE, private
from penstock.metadata.image import AclImage
from penstock.security.scram import DEFAULT_ITERATIONS as ITERATIONS
from penstock.security.scram import MECHANISMS, SALT_BYTES, credential_of, salted_password
from penstock.security.scram_arguments import ScramUser
from penstock.security.vocabulary import CLUSTER_NAME, WILDCARD, AclResource, Operation, PatternType, Permission

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

LISTENER, MECHANISM = "SASL_SSL", "SCRAM-SHA-512"
NODE, ADMIN, APP = "node", "admin", "app"
CA_DAYS, NODE_DAYS, RENEW_DAYS = 3650, 800, 60
PASSWORD_BYTES = 24


@dataclass(frozen=True, slots=True)
class LocalSecurity:
    """Holds the files and passwords of a secured local cluster."""

    ca: str
    key_store: str
    passwords: Mapping[str, str]

    def properties(self) -> dict[str, str]:
        """Returns the server properties that all nodes share. The listener for clients has the name LISTENER."""
        return {
            "listener.security.protocol.map": f"{LISTENER}:SASL_SSL,CONTROLLER:SASL_SSL",
            "inter.broker.listener.name": LISTENER,
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "sasl.mechanism.controller.protocol": MECHANISM,
            "sasl.jaas.config": jaas_line(NODE, self.passwords[NODE]),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.key_store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{NODE};User:{ADMIN}",
        }

    def users(self) -> tuple[ScramUser, ...]:
        found = []
        for name, password in self.passwords.items():
            for mechanism in MECHANISMS.values():
                salt = secrets.token_bytes(SALT_BYTES)
                salted = salted_password(mechanism, password, salt, ITERATIONS)
                found.append(ScramUser(name, mechanism, credential_of(mechanism, salt, salted, ITERATIONS)))
        return tuple(found)


def app_acls() -> tuple[AclImage, ...]:
    """Returns the ACLs of the application user: all topics, groups and transactional ids, but not the cluster."""
    everything = [(kind, WILDCARD) for kind in (AclResource.TOPIC, AclResource.GROUP, AclResource.TRANSACTIONAL_ID)]
    rules = [(kind, name, Operation.ALL) for kind, name in everything]
    rules += [
        (AclResource.CLUSTER, CLUSTER_NAME, operation)
        for operation in (Operation.CREATE, Operation.DESCRIBE, Operation.IDEMPOTENT_WRITE)
    ]
    return tuple(
        AclImage(kind, name, PatternType.LITERAL, f"User:{APP}", WILDCARD, operation, Permission.ALLOW)
        for kind, name, operation in rules
    )


def jaas_line(user: str, password: str) -> str:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return f'{module} required username="{user}" password="{password}";'


# --- files ------------------------------------------------------------------------------------------


def is_there(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, "users.json"))


def local_security(directory: str, host: str, now: datetime | None = None) -> LocalSecurity:
    """Returns the files and passwords of the cluster. Creates missing files and passwords.

    Raises OSError, and ImportError without the package `cryptography`.
    """
    os.makedirs(os.path.dirname(directory), DIRECTORY_MODE, exist_ok=True)
    os.makedirs(directory, DIRECTORY_MODE, exist_ok=True)
    ca, key = (os.path.join(directory, name) for name in ("ca.pem", "ca.key"))
    node, users = (os.path.join(directory, name) for name in ("node.pem", "users.json"))
    now = datetime.now(UTC) if now is None else now
    if not os.path.exists(ca) or not os.path.exists(key):
        _make_authority(ca, key, now)
    if not _usable(node, host, now):
        _make_certificate(node, ca, key, host, now)
    if not os.path.exists(users):
        made = {name: secrets.token_urlsafe(PASSWORD_BYTES) for name in (NODE, ADMIN, APP)}
        _write(users, json.dumps(made, indent=2).encode() + b"\n")
    with open(users, encoding="utf-8") as file:
        return LocalSecurity(ca, node, json.load(file))


def _write(path: str, data: bytes) -> None:
    """Writes a file that only this user can read. Replaces an existing file in one step."""
    with open(f"{path}.tmp", "wb", opener=private) as file:
        file.write(data)
    os.replace(f"{path}.tmp", path)


# --- certificates -----------------------------------------------------------------------------------


def _make_authority(certificate_path: str, key_path: str, now: datetime) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject("Penstock local authority")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = x509.CertificateBuilder().issuer_name(name).subject_name(name).public_key(key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    _write(key_path, _key_pem(key))
    _write(certificate_path, _pem(_signed(builder, key, now, CA_DAYS)))


def _make_certificate(path: str, ca: str, ca_key: str, host: str, now: datetime) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority = _read_certificate(ca)
    with open(ca_key, "rb") as file:
        signing: Any = serialization.load_pem_private_key(file.read(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[Any] = []
    for name in _names(host):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            names.append(x509.DNSName(name))
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    builder = x509.CertificateBuilder().issuer_name(authority.subject).subject_name(_subject("penstock node"))
    builder = builder.public_key(key.public_key())
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    builder = builder.add_extension(identifier, critical=False)
    _write(path, _key_pem(key) + _pem(_signed(builder, signing, now, NODE_DAYS)))


def _signed(builder: Any, key: Any, now: datetime, days: int) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=days))
    signed: Certificate = builder.sign(key, hashes.SHA256())
    return signed


def _subject(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _names(host: str) -> list[str]:
    """Returns the host names and addresses with which clients may connect to a node on this machine."""
    wildcard = host in ("", "0.0.0.0", "::")  # noqa: S104 - not bound here
    found = ["localhost", "127.0.0.1", "::1", *([socket.gethostname()] if wildcard else [host])]
    return list(dict.fromkeys(found))


def _usable(path: str, host: str, now: datetime) -> bool:
    """Returns True if the certificate exists, stays valid for RENEW_DAYS or longer, and has all names of the node."""
    from cryptography import x509

    if not os.path.exists(path):
        return False
    certificate = _read_certificate(path)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    return certificate.not_valid_after_utc > now + timedelta(days=RENEW_DAYS) and known >= set(_names(host))


def _read_certificate(path: str) -> Certificate:
    from cryptography import x509

    with open(path, "rb") as file:
        return x509.load_pem_x509_certificate(file.read())


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    found: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return found


# --- clients ----------------------------------------------------------------------------------------


def client_properties(security: LocalSecurity, bootstrap: str, user: str) -> dict[str, str]:
    """Returns the properties with which Kafka's Java clients and tools log in as `user`.

    Spark takes the same properties with the prefix `kafka.`.
    """
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": jaas_line(user, security.passwords[user]),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": security.ca,
    }


def librdkafka_properties(security: LocalSecurity, bootstrap: str, user: str) -> dict[str, str]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": MECHANISM,
        "sasl.username": user,
        "sasl.password": security.passwords[user],
        "ssl.ca.location": security.ca,
    }


def write_client_files(directory: str, security: LocalSecurity, bootstrap: str) -> dict[str, str]:
    """Writes `client.properties` of the application user and `admin.properties`. Returns the path of each user's
    file."""
    paths = {APP: os.path.join(directory, "client.properties"), ADMIN: os.path.join(directory, "admin.properties")}
    for user, path in paths.items():
        lines = [f"{name}={value}\n" for name, value in client_properties(security, bootstrap, user).items()]
        _write(path, "".join(lines).encode())
    return paths
