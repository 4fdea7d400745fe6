"""Holds the credentials with which a client connects to a listener: a TLS context, a SASL login, both or none."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from penstock.client.login import Login


@dataclass(frozen=True, slots=True)
class Credentials:
    tls: ssl.SSLContext | None = None
    login: Login | None = None


NO_CREDENTIALS = Credentials()
