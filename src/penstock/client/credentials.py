"""Holds the credentials with which a client connects to a listener: a TLS context, a SASL login, both or none."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from penstock.client.login import AnyLogin


@dataclass(slots=True, eq=False)
class Credentials:
    #: The context for the next connection; a node replaces it when its certificate is renewed.
    tls: ssl.SSLContext | None = None
    login: AnyLogin | None = None


NO_CREDENTIALS = Credentials()
