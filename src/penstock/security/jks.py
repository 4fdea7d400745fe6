"""Reads a Java key store (JKS): private keys with their certificates, and trusted certificates.

A JKS file is a list of entries, followed by a SHA-1 digest of the store's password and the entries. Keys are encrypted
with Sun's own scheme, a stream of chained SHA-1 digests. This module does not write stores: new stores should be PEM or
PKCS12.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field

MAGIC = 0xFEEDFEED
_KEY, _TRUSTED = 1, 2
_DIGEST = 20
_WHITENER = b"Mighty Aphrodite"
#: Sun's key protector as an ASN.1 object identifier, in DER.
_PROTECTOR = bytes.fromhex("060a2b060104012a02110101")
_SEQUENCE, _OCTETS = 0x30, 0x04


class JksError(ValueError):
    """Raised for a store that can't be read. The message is one sentence without secrets."""


@dataclass(frozen=True, slots=True)
class JksKey:
    alias: str
    key: bytes = field(repr=False)
    """The decrypted private key, as PKCS #8 in DER."""
    chain: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class JksStore:
    keys: tuple[JksKey, ...]
    trusted: tuple[bytes, ...]


def read_jks(data: bytes, password: str, key_password: str | None = None) -> JksStore:
    """Returns the entries of a store. Raises JksError for a wrong password or a damaged file."""
    if len(data) < 12 + _DIGEST or int.from_bytes(data[:4], "big") != MAGIC:
        raise JksError("the file is not a JKS key store")
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    expected = hashlib.sha1(_utf16(password) + _WHITENER + body).digest()  # noqa: S324 - the format's own checksum
    if not hmac.compare_digest(expected, digest):
        raise JksError("the password of the key store is wrong, or the file is damaged")
    reader = _Reader(body, 4)
    version, count = reader.number(4), reader.number(4)
    if version not in (1, 2):
        raise JksError(f"the key store has version {version}, which is unknown")
    keys: list[JksKey] = []
    trusted: list[bytes] = []
    for _ in range(count):
        kind, alias = reader.number(4), reader.sized(2).decode(errors="replace")
        reader.take(8)  # the time of creation
        if kind == _KEY:
            encrypted = reader.sized(4)
            chain = tuple(reader.certificate(version) for _ in range(reader.number(4)))
            keys.append(JksKey(alias, _decrypted(encrypted, key_password or password), chain))
        elif kind == _TRUSTED:
            trusted.append(reader.certificate(version))
        else:
            raise JksError(f"the key store has an entry of kind {kind}, which is unknown")
    return JksStore(tuple(keys), tuple(trusted))


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be")


class _Reader:
    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    def take(self, size: int) -> bytes:
        start, self._position = self._position, self._position + size
        if self._position > len(self._data):
            raise JksError("the key store ends inside an entry")
        return self._data[start : self._position]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def sized(self, size: int) -> bytes:
        return self.take(self.number(size))

    def certificate(self, version: int) -> bytes:
        if version > 1:
            self.sized(2)  # the kind of certificate, X.509
        return self.sized(4)


def _decrypted(encrypted: bytes, password: str) -> bytes:
    protected = _protected_key(encrypted)
    if len(protected) < 2 * _DIGEST:
        raise JksError("the key store has a private key that is too short")
    salt, secret, check = protected[:_DIGEST], protected[_DIGEST:-_DIGEST], protected[-_DIGEST:]
    stream = b""
    last = salt
    while len(stream) < len(secret):
        last = hashlib.sha1(_utf16(password) + last).digest()  # noqa: S324 - the format's own cipher
        stream += last
    plain = bytes(a ^ b for a, b in zip(secret, stream))
    if not hmac.compare_digest(hashlib.sha1(_utf16(password) + plain).digest(), check):  # noqa: S324
        raise JksError("the password of the private key is wrong")
    return plain


def _protected_key(encrypted: bytes) -> bytes:
    """Returns the encrypted key bytes of an EncryptedPrivateKeyInfo.

    Its structure is SEQUENCE { SEQUENCE { protector, … }, OCTET STRING }.
    """
    outer, _ = _der(encrypted, 0, _SEQUENCE)
    algorithm, after = _der(outer, 0, _SEQUENCE)
    if not algorithm.startswith(_PROTECTOR):
        raise JksError(
            "a private key in the key store is not encrypted with JKS's own algorithm: convert the key store to PKCS12"
        )
    octets, _ = _der(outer, after, _OCTETS)
    return octets


def _der(data: bytes, position: int, tag: int) -> tuple[bytes, int]:
    """Returns the content of the DER element at `position`, and the position after it."""
    try:
        if data[position] != tag:
            raise JksError("the key store has a private key in an unknown form")
        size = data[position + 1]
        start = position + 2
        if size & 0x80:
            width = size & 0x7F
            (size,) = struct.unpack(">I", data[start : start + width].rjust(4, b"\0")[:4])
            start += width
    except (IndexError, struct.error):
        raise JksError("the key store has a damaged private key") from None
    if start + size > len(data):
        raise JksError("the key store has a damaged private key")
    return data[start : start + size], start + size
