"""Implements SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): credentials, and both sides of the exchange.

    client                                   server
    first    n,,n=user,r=nonce          →
             ← r=nonce+more,s=salt,i=iterations     server first
    final    c=biws,r=…,p=proof         →
             ← v=signature                          server final

The server knows the stored key and the server key, never the password. For a user without credentials, the server runs
the same exchange with a salt made from the user name, and fails at the end. So its answers do not show which users
exist.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from penstock.security.errors import SaslError

MIN_ITERATIONS, MAX_ITERATIONS, DEFAULT_ITERATIONS = 4_096, 16_384, 4_096
#: Limits of a client's messages; real ones have a few hundred bytes.
MAX_MESSAGE_BYTES, MAX_NONCE, MAX_NAME = 8_192, 256, 1_024
SALT_BYTES = 16
#: Length of the salt, and iterations, of every delegation token's credential.
TOKEN_SHAPE = (SALT_BYTES, MIN_ITERATIONS)
#: Attribute of the client's first message: the user name is the id of a delegation token.
TOKEN_EXTENSION = "tokenauth=true"  # noqa: S105 - no password
_BINDING = "biws"  # "n,," in base64: no channel binding


class ScramMechanism(IntEnum):
    """Lists the SCRAM mechanisms, with their numbers in Kafka's protocol."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def label(self) -> str:
        return f"SCRAM-{self.name.replace('_', '-')}"

    @property
    def hash(self) -> str:
        return self.name.replace("_", "").lower()


MECHANISMS: dict[str, ScramMechanism] = {mechanism.label: mechanism for mechanism in ScramMechanism}


class ScramKeys(Protocol):
    """Holds a user's SCRAM credential in the metadata image."""

    @property
    def salt(self) -> bytes: ...
    @property
    def stored_key(self) -> bytes: ...
    @property
    def server_key(self) -> bytes: ...
    @property
    def iterations(self) -> int: ...


class ScramToken(Protocol):
    """Holds a delegation token with which a client logs in."""

    @property
    def credential(self) -> ScramKeys: ...
    @property
    def owner(self) -> str: ...
    @property
    def expires_ms(self) -> int: ...


@dataclass(frozen=True, slots=True, repr=False)
class ScramCredential:
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salt: bytes, salted: bytes, iterations: int) -> ScramCredential:
    """Makes a credential (stored key and server key) from a salted password."""
    client_key = _mac(mechanism, salted, b"Client Key")
    stored = hashlib.new(mechanism.hash, client_key).digest()
    return ScramCredential(salt, stored, _mac(mechanism, salted, b"Server Key"), iterations)


def password_matches(mechanism: ScramMechanism, keys: ScramKeys, password: str) -> bool:
    """Returns True if the credential was made from this password. Takes milliseconds, so don't call it on the event
    loop."""
    salted = salted_password(mechanism, password, keys.salt, keys.iterations)
    made = credential_of(mechanism, keys.salt, salted, keys.iterations)
    return hmac.compare_digest(made.stored_key, keys.stored_key)


def credential_of_nobody(
    mechanism: ScramMechanism, secret: bytes, name: str, shapes: Sequence[tuple[int, int]]
) -> ScramCredential:
    """Returns a made-up credential for a name that has no credential. The same name always gets the same credential.

    `shapes` lists pairs (length of the salt, iterations) of real credentials. The made-up credential uses one of these
    pairs, so that it looks like a real credential. No password matches a made-up credential.
    """
    drawn = hmac.new(secret, name.encode(), "sha512").digest()
    known = shapes or [(SALT_BYTES, DEFAULT_ITERATIONS)]
    salt_bytes, iterations = known[int.from_bytes(drawn[-4:], "big") % len(known)]
    size = hashlib.new(mechanism.hash).digest_size
    return ScramCredential(drawn[: min(salt_bytes, 60)], bytes(size), bytes(size), iterations)


def secret_of_nobody(cluster_id: str, token_key: str | None) -> bytes:
    """Returns the secret from which made-up credentials are computed.

    All nodes of a cluster have the same secret, so all nodes show the same salt for a name without a credential.
    `token_key` is the value of `delegation.token.secret.key`. If this key is not set, an attacker who knows the
    cluster's id can compute the salts.
    """
    return hmac.digest((token_key or "").encode(), f"credentials of nobody in {cluster_id}".encode(), "sha256")


def _mac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, mechanism.hash).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


# --- messages ---------------------------------------------------------------------------------------


def _attributes(text: str, kinds: str) -> list[str]:
    """Splits `a=…,b=…` and returns the values of the first attributes. `kinds` has their one-letter names, in order.

    Raises SaslError if an attribute is missing or has another name.
    """
    parts = text.split(",")
    if len(parts) < len(kinds):
        raise SaslError("The SCRAM message has too few attributes.")
    values = []
    for part, kind in zip(parts, kinds):
        if not part.startswith(f"{kind}="):
            raise SaslError(f"The SCRAM message does not have the attribute {kind!r} where it is expected.")
        values.append(part[2:])
    return values


def _text(message: bytes) -> str:
    if len(message) > MAX_MESSAGE_BYTES:
        raise SaslError("The SCRAM message is too long.")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise SaslError("The SCRAM message is not UTF-8.") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SaslError("The SCRAM message has an attribute that is not base64.") from None


def _name_in(escaped: str) -> str:
    name = escaped.replace("=2C", ",").replace("=3D", "=")
    if not name or len(name) > MAX_NAME or "=" in escaped.replace("=2C", "").replace("=3D", ""):
        raise SaslError("The SCRAM message has an invalid user name.")
    return name


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _nonce_in(nonce: str) -> str:
    if not nonce or len(nonce) > MAX_NONCE or not all(33 <= ord(char) <= 126 for char in nonce):
        raise SaslError("The SCRAM message has an invalid nonce.")
    return nonce


# --- the server -------------------------------------------------------------------------------------


class ScramServer:
    """Runs the server's side of one authentication.

    Sets `user` once the client has proved that it knows the password.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramKeys | None],
        nonce: str,
        secret: bytes,
        shapes: Sequence[tuple[int, int]] = (),
        find_token: Callable[[str], ScramToken | None] = lambda token_id: None,
    ) -> None:
        """Prepares one authentication.

        `find` returns the credential of a user, or None. `find_token` returns the delegation token with an id, or None.

        For a user that does not exist, the server uses a made-up credential, computed from `secret`. `secret` must not
        change while the node runs, and clients must not know it. `shapes` lists pairs (length of the salt, iterations)
        of real credentials; a made-up credential uses one of these pairs.
        """
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce
        self._secret = secret
        self._shapes = shapes
        self._find_token = find_token
        self._token: ScramToken | None = None
        self._keys: ScramKeys | None = None
        self._known = False
        self._messages = ""
        self._name = ""
        self.user: str | None = None
        self.expires_ms: int | None = None
        self.refusal: str | None = None
        #: True if the client says that its user name is the id of a delegation token.
        self.by_token = False

    def step(self, message: bytes) -> bytes:
        """Handles the client's message and returns the server's next message. Raises SaslError."""
        return self._final(message) if self._keys is not None else self._first(message)

    def _first(self, message: bytes) -> bytes:
        text = _text(message)
        binding, _, rest = text.partition(",")
        authzid, comma, bare = rest.partition(",")
        if binding not in ("n", "y") or not comma:
            raise SaslError("SCRAM with channel binding is not supported.")
        if bare.startswith("m="):
            raise SaslError("The SCRAM message has an extension that is mandatory and not supported.")
        escaped, nonce = _attributes(bare, "nr")
        self._name = _name_in(escaped)
        if authzid not in ("", f"a={escaped}"):
            raise SaslError("The client requested an authorization id that differs from its user name.")
        self._nonce = _nonce_in(nonce) + self._nonce
        self.by_token = TOKEN_EXTENSION in bare.lower().split(",")[2:]
        if self.by_token:
            self._token = self._find_token(self._name)
        found = self._find(self._name) if not self.by_token else self._token and self._token.credential
        self._known = found is not None
        shapes = [TOKEN_SHAPE] if self.by_token else self._shapes
        self._keys = found or credential_of_nobody(self._mechanism, self._secret, self._name, shapes)
        salt = base64.b64encode(self._keys.salt).decode()
        reply = f"r={self._nonce},s={salt},i={self._keys.iterations}"
        self._messages = f"{bare},{reply}"
        return reply.encode()

    def _final(self, message: bytes) -> bytes:
        text = _text(message)
        without_proof, _, proof = text.rpartition(",p=")
        binding, nonce = _attributes(without_proof, "cr")
        if binding not in (_BINDING, "eSws"):  # "n,," and "y,,"; an authorization id repeats the name
            expected = base64.b64encode(f"n,a={_escaped(self._name)},".encode()).decode()
            if binding != expected:
                raise SaslError("The last SCRAM message has another channel binding than the first SCRAM message.")
        assert self._keys is not None
        signed = f"{self._messages},{without_proof}".encode()
        signature = _mac(self._mechanism, self._keys.stored_key, signed)
        given = _decoded(proof)
        if len(given) != len(signature):
            raise SaslError("The SCRAM message has a proof of a wrong size.")
        stored = hashlib.new(self._mechanism.hash, _xor(given, signature)).digest()
        matches = hmac.compare_digest(stored, self._keys.stored_key)
        if not (hmac.compare_digest(nonce.encode(), self._nonce.encode()) and matches and self._known):
            raise SaslError("Invalid credentials.")
        self.user = self._name
        if self._token is not None:
            self.user, self.expires_ms = self._token.owner, self._token.expires_ms
        verifier = base64.b64encode(_mac(self._mechanism, self._keys.server_key, signed)).decode()
        return f"v={verifier}".encode()


# --- the client -------------------------------------------------------------------------------------


class ScramClient:
    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str, extensions: str = "") -> None:
        """Prepares one authentication. `extensions`, such as `tokenauth=true`, are added to the client's first
        message."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={_escaped(user)},r={nonce}" + (f",{extensions}" if extensions else "")
        self._verifier: bytes | None = None
        self._step = 0
        self.done = False

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def step(self, message: bytes) -> bytes | None:
        """Handles the server's message and returns the client's next message. Raises SaslError.

        Returns None after the server has proved that it knows the credential.
        """
        self._step += 1
        if self._step == 1:
            return self._final(_text(message))
        text = _text(message)
        if text.startswith("e="):
            raise SaslError(f"The server refused the credentials: {text[2:]}.")
        (verifier,) = _attributes(text, "v")
        if self._verifier is None or not hmac.compare_digest(_decoded(verifier), self._verifier):
            raise SaslError("The server did not prove that it knows the user: it may be an impostor.")
        self.done = True
        return None

    def _final(self, server_first: str) -> bytes:
        nonce, salt, iterations = _attributes(server_first, "rsi")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise SaslError("The server's SCRAM nonce does not extend the client's nonce.")
        if not iterations.isdigit() or not MIN_ITERATIONS <= int(iterations) <= 1_000_000:
            raise SaslError(
                f"The server asks for {iterations[:20]!r} SCRAM iterations: {MIN_ITERATIONS} is the minimum."
            )
        salted = salted_password(self._mechanism, self._password, _decoded(salt), int(iterations))
        keys = credential_of(self._mechanism, _decoded(salt), salted, int(iterations))
        without_proof = f"c={_BINDING},r={nonce}"
        signed = f"{self._bare},{server_first},{without_proof}".encode()
        client_key = _mac(self._mechanism, salted, b"Client Key")
        proof = _xor(client_key, _mac(self._mechanism, keys.stored_key, signed))
        self._verifier = _mac(self._mechanism, keys.server_key, signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
