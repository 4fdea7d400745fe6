"""Makes TLS contexts from Kafka's `ssl.*` properties, with keys in PEM files, PEM text, PKCS12 or JKS stores.

A `TlsSource` reads keys and certificates again when a file has changed, so that a renewed certificate needs no restart.
Open connections keep their old certificate.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.security.jks import MAGIC, JksError, read_jks
from penstock.security.principals import DER

PEM, PKCS12, JKS = "PEM", "PKCS12", "JKS"
_VERSIONS = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
#: The suites of TLS 1.3 that OpenSSL enables.
_SUITES_OF_1_3 = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})
#: A handshake takes at most three flights of each side.
HANDSHAKE_FLIGHTS = 5
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsError(ValueError):
    """Raised for TLS properties that can't be used. The message names the property and the remedy, but no secret."""


@dataclass(frozen=True, slots=True)
class Material:
    """Holds the private key and the certificates of a listener or client, as PEM text."""

    key: str | None = field(default=None, repr=False)
    chain: str | None = None
    trusted: str | None = None
    key_password: str | None = field(default=None, repr=False)


def read_material(properties: Mapping[str, str], read: Callable[[str], bytes]) -> Material:
    """Reads the key store and the trust store that are configured in the properties. Raises TlsError."""
    key, chain, key_password = _identity(properties, read)
    trusted = _trusted(properties, read)
    if trusted is not None and not trusted.strip():  # such as a file that is being written
        raise TlsError("The trust store has no certificate: put the certificate authority of the peers into it.")
    return Material(key, chain, trusted, key_password)


def _identity(properties: Mapping[str, str], read: Callable[[str], bytes]) -> tuple[str | None, str | None, str | None]:
    key_password = properties.get("ssl.key.password")
    if "ssl.keystore.key" in properties or "ssl.keystore.certificate.chain" in properties:
        key, chain = properties.get("ssl.keystore.key"), properties.get("ssl.keystore.certificate.chain")
        if not key or not chain:
            raise TlsError("ssl.keystore.key and ssl.keystore.certificate.chain belong together: set both.")
        return _lines(key), _lines(chain), key_password
    location = properties.get("ssl.keystore.location")
    if not location:
        return None, None, None
    data = _read(read, "ssl.keystore.location", location)
    kind = _kind(properties.get("ssl.keystore.type"), data, "ssl.keystore.type")
    password = properties.get("ssl.keystore.password")
    if kind == PEM:
        text = _pem_text(data, "ssl.keystore.location")
        return text, text, key_password
    if kind == JKS:
        try:
            store = read_jks(data, password or "", key_password)
        except JksError as problem:
            raise TlsError(f"ssl.keystore.location can't be used: {problem}.") from None
        if not store.keys:
            raise TlsError("ssl.keystore.location has no private key: use a store with a private key.")
        return _pem(store.keys[0].key, "PRIVATE KEY"), _pems(store.keys[0].chain), None
    key, certificates, _ = _pkcs12(data, password, "ssl.keystore")
    if key is None:
        raise TlsError("ssl.keystore.location has no private key: use a store with a private key.")
    return key, certificates, None


def _trusted(properties: Mapping[str, str], read: Callable[[str], bytes]) -> str | None:
    text = properties.get("ssl.truststore.certificates")
    if text:
        return _lines(text)
    location = properties.get("ssl.truststore.location")
    if not location:
        return None
    data = _read(read, "ssl.truststore.location", location)
    kind = _kind(properties.get("ssl.truststore.type"), data, "ssl.truststore.type")
    password = properties.get("ssl.truststore.password")
    if kind == PEM:
        return _pem_text(data, "ssl.truststore.location")
    if kind == JKS:
        try:
            return _pems(read_jks(data, password or "").trusted)
        except JksError as problem:
            raise TlsError(f"ssl.truststore.location can't be used: {problem}.") from None
    _, own, others = _pkcs12(data, password, "ssl.truststore")
    return (own or "") + (others or "")


def _kind(named: str | None, data: bytes, name: str) -> str:
    kind = (named or "").upper()
    if kind in (PEM, PKCS12, JKS):
        return kind
    if kind:
        raise TlsError(f"{name} is {named!r}: use PEM, PKCS12 or JKS.")
    if data[:4] == MAGIC.to_bytes(4, "big"):
        return JKS
    return PEM if b"-----BEGIN" in data else PKCS12


def _read(read: Callable[[str], bytes], name: str, location: str) -> bytes:
    try:
        return read(location)
    except OSError as problem:
        raise TlsError(
            f"{name}: {location} can't be read ({problem.strerror or problem}): check the path and its permissions."
        ) from None


def _lines(text: str) -> str:
    """Returns PEM text with real line breaks. In a properties file, `\\n` can stand for a line break."""
    return text.replace("\\n", "\n").strip() + "\n"


def _pem_text(data: bytes, name: str) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise TlsError(f"{name} is not a PEM file: set the store's type to PKCS12 or JKS.") from None


def _pem(der: bytes, label: str) -> str:
    text = base64.encodebytes(der).decode().replace("\n", "")
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""))


def _pems(certificates: tuple[bytes, ...]) -> str:
    return "".join(_pem(each, "CERTIFICATE") for each in certificates)


def _pkcs12(data: bytes, password: str | None, name: str) -> tuple[str | None, str | None, str | None]:
    """Returns the key, its certificates, and the other certificates of a PKCS12 store, as PEM."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise TlsError(f"{name}.type PKCS12 needs the package cryptography: install it with pip.") from None
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError:
        raise TlsError(
            f"{name}.location can't be read: the password is wrong, or the file is not PKCS12. Check both."
        ) from None

    def certificate(one: pkcs12.PKCS12Certificate) -> str:
        return one.certificate.public_bytes(serialization.Encoding.PEM).decode()

    others = "".join(map(certificate, store.additional_certs))
    if store.key is None:
        return None, None if store.cert is None else certificate(store.cert), others
    key = store.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key.decode(), (certificate(store.cert) if store.cert else "") + others, others


def peer_certificate(secure: ssl.SSLObject | None) -> dict[str, Any] | None:
    """Returns the verified certificate of a TLS peer in the form of Python's `ssl`, and in DER form under the key DER.

    Returns None if the peer has sent no certificate.
    """
    found = None if secure is None else secure.getpeercert()
    return {**found, DER: secure.getpeercert(binary_form=True)} if secure is not None and found else None


# --- contexts ---------------------------------------------------------------------------------------


def server_context(properties: Mapping[str, str], material: Material) -> ssl.SSLContext:
    """Returns the TLS context of a listener. Raises TlsError."""
    if material.key is None:
        raise TlsError("A TLS listener needs a certificate: set ssl.keystore.location, or ssl.keystore.key and .chain.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _configure(context, properties, material)
    wanted = properties.get("ssl.client.auth", "none").strip().lower()
    if wanted not in _CLIENT_AUTH:
        raise TlsError(f"ssl.client.auth is {wanted!r}: use none, requested or required.")
    if wanted != "none":
        if material.trusted is None:
            raise TlsError(f"ssl.client.auth={wanted} needs ssl.truststore.location or ssl.truststore.certificates.")
        context.verify_mode = _CLIENT_AUTH[wanted]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    return context


def client_context(properties: Mapping[str, str], material: Material) -> ssl.SSLContext:
    """Returns the TLS context of a client. By default it trusts the system's certificate authorities.

    Raises TlsError.
    """
    context = ssl.create_default_context() if material.trusted is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _configure(context, properties, material)
    if not properties.get("ssl.endpoint.identification.algorithm", "https").strip():
        context.check_hostname = False
    return context


def _configure(context: ssl.SSLContext, properties: Mapping[str, str], material: Material) -> None:
    names = [each.strip() for each in properties.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3").split(",")]
    unknown = sorted(set(names) - _VERSIONS.keys())
    if unknown:
        raise TlsError(f"ssl.enabled.protocols has {', '.join(unknown)}: use TLSv1.2, TLSv1.3 or both.")
    versions = sorted(_VERSIONS[name] for name in names)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    ciphers = [each.strip() for each in properties.get("ssl.cipher.suites", "").split(",") if each.strip()]
    if ciphers:
        _set_ciphers(context, ciphers)
    if material.trusted:
        try:
            context.load_verify_locations(cadata=material.trusted)
        except ssl.SSLError:
            raise TlsError("The trust store has no certificate that can be read: check its content.") from None
    if material.key is not None and material.chain is not None:
        _load_chain(context, material)


def check_trust(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Raises TlsError unless a TLS handshake between the client context and the server context succeeds.

    Does not check the server's host name.
    """
    client.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [server.wrap_bio(to_server, to_client, server_side=True), client.wrap_bio(to_client, to_server)]
    for _ in range(HANDSHAKE_FLIGHTS):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as problem:
                reason = getattr(problem, "verify_message", "") or problem.reason or str(problem)
                raise TlsError(
                    f"Nodes with this key store and this trust store would not accept each other ({reason}): put the "
                    "certificate authority of the key store into the trust store first."
                ) from None


def _set_ciphers(context: ssl.SSLContext, names: list[str]) -> None:
    """Sets the cipher suites, from Java's names (TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) or OpenSSL's names.

    A list without any suite of TLS 1.3 disables TLS 1.3. Raises TlsError if the list contains some suites of TLS 1.3
    but not all, because Python can't enable them separately.
    """
    new = {name for name in names if name.startswith(("TLS_AES_", "TLS_CHACHA20_"))}
    if new and not new.issuperset(_SUITES_OF_1_3):
        missing = ", ".join(sorted(_SUITES_OF_1_3 - new))
        raise TlsError(
            f"ssl.cipher.suites lists some but not all suites of TLS 1.3: add {missing}, or list no suite of TLS 1.3."
        )
    old = [_openssl_name(name) for name in names if name not in new]
    if not new:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not old:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    try:
        context.set_ciphers(":".join(old))
    except ssl.SSLError:
        raise TlsError(
            "ssl.cipher.suites has no suite that OpenSSL on this machine supports: add such a suite."
        ) from None


def _openssl_name(name: str) -> str:
    if "_WITH_" not in name:
        return name
    return name.removeprefix("TLS_").replace("_WITH_", "_").replace("AES_", "AES").replace("_", "-")


def _load_chain(context: ssl.SSLContext, material: Material) -> None:
    """Loads the key and certificates into the context.

    OpenSSL reads them only from a file, so a temporary file exists during this call. Only this user can read it.
    """
    descriptor, path = tempfile.mkstemp(prefix="penstock-tls-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write((material.chain or "") + ("" if material.chain == material.key else material.key or ""))
        password = material.key_password
        # A callback instead of None: OpenSSL would ask for the password on the terminal.
        context.load_cert_chain(path, password=lambda: password or "")
    except (ssl.SSLError, ValueError, OSError):
        raise TlsError(
            "The key store can't be used: key and certificate do not belong together, the password is wrong, or the "
            "content is damaged. Check the password, or create the key store again."
        ) from None
    finally:
        os.unlink(path)


ContextMaker = Callable[[Mapping[str, str], Material], ssl.SSLContext]


class TlsSource:
    """Holds the TLS context of a listener or client, and makes a new context when a file or a property has changed."""

    def __init__(self, properties: Mapping[str, str], make: ContextMaker = server_context) -> None:
        """Makes the first context. Raises TlsError if TLS can't work with these properties."""
        self._properties = dict(properties)
        self._maker = make
        #: True if nodes connect to each other with these stores: a change is then refused unless the changed trust
        #: store accepts the changed key store.
        self.among_nodes = False
        self._stamp = self._stamps()
        self.context = self._make(self._properties)

    def _make(self, properties: Mapping[str, str]) -> ssl.SSLContext:
        material = read_material(properties, read_file)
        if self.among_nodes and material.key is not None and material.trusted is not None:
            check_trust(server_context(properties, material), client_context(properties, material))
        return self._maker(properties, material)

    def reconfigure(self, properties: Mapping[str, str]) -> bool:
        """Uses new properties. Returns True if they led to a new context.

        Raises TlsError if TLS can't work with the new properties; the old context and properties then stay in use.
        """
        if properties == self._properties:
            return False
        context = self._make(properties)
        self._properties, self.context = dict(properties), context
        self._stamp = self._stamps()
        return True

    def refresh(self) -> bool:
        """Reads files that have changed. Returns True if a changed file led to a new context.

        Raises TlsError if the new files can't be used; the old context then stays in use.
        """
        stamp = self._stamps()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self.context = self._make(self._properties)
        return True

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for name in ("ssl.keystore.location", "ssl.truststore.location"):
            path = self._properties.get(name)
            if path:
                try:
                    status = os.stat(path)
                    found.append((status.st_mtime_ns, status.st_size, status.st_ino))
                except OSError:
                    found.append((0, 0, 0))
        return tuple(found)


def read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
