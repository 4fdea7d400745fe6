"""Makes certificate authorities and certificates for tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
_ATTRIBUTES = {
    "CN": NameOID.COMMON_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "O": NameOID.ORGANIZATION_NAME,
}


class Authority:
    """Represents a certificate authority that signs certificates for localhost."""

    def __init__(self, where: Path, name: str) -> None:
        self._where, self._name = where, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.pem = self.signed(_subject(name), self._key.public_key(), ca=True).public_bytes(PEM).decode()
        self.file = where / f"{name}.pem"
        self.file.write_text(self.pem)

    def signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        ca: bool = False,
        more: Sequence[x509.GeneralName] = (),
    ) -> x509.Certificate:
        """Returns a certificate for `subject` that is valid for this machine, and for the names in `more`."""
        now = datetime.datetime.now(datetime.UTC)
        addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *more]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_subject(self._name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def store(self, file: str, name: str | Mapping[str, str]) -> str:
        """Writes a key and its certificate into one PEM file, and returns the path.

        `name` is the common name, or the subject's attributes from the least specific on: {"O": "Org", "CN": "ann"}.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.signed(_subject(name) if isinstance(name, str) else _subject(**name), key.public_key())
        return replace(self._where / file, key_pem(key) + certificate.public_bytes(PEM).decode())

    @property
    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.file))


def key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()


def replace(path: Path, text: str) -> str:
    """Writes the file whole or not at all, as a program that renews certificates does, and returns its path."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    os.replace(fresh, path)
    return str(path)


def serial_number(store: str) -> int:
    """Returns the serial number of the first certificate in a PEM file."""
    return x509.load_pem_x509_certificate(Path(store).read_bytes()).serial_number


def _subject(name: str | None = None, **attributes: str) -> x509.Name:
    values = attributes if name is None else {"CN": name}
    return x509.Name([x509.NameAttribute(_ATTRIBUTES[kind], value) for kind, value in values.items()])
