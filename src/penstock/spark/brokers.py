"""Connects to the brokers that the `kafka.*` options name."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from penstock.client.connection import ConnectionSettings
from penstock.client.consumer import ConsumerSettings
from penstock.client.retry import Retry
from penstock.client.sync import Client
from penstock.protocol.vocabulary import READ_COMMITTED, READ_UNCOMMITTED
from penstock.spark.errors import SourceError, in_one_sentence
from penstock.spark.options import DEFAULT_FETCH_BYTES, SourceOptions

T = TypeVar("T")

#: This timeout is short, because a user waits for the error message when the address does not answer.
CONNECT_TIMEOUT_MS = 10_000


def connect(options: SourceOptions, *, attempts: int | None = None) -> Client:
    """Returns a connected client. Raises SourceError if an option is wrong or no broker answers.

    With `attempts`, every request and the first connection are tried that many times.
    """
    retry = _retry(options)
    try:
        with in_one_sentence("The connection to the brokers failed"):
            return Client(
                options.bootstrap,
                settings=connection_settings(options),
                retry=retry if attempts is None else replace(retry, attempts=attempts),
                retry_first=attempts is not None,
            )
    except ValueError as error:
        raise SourceError(f"Option kafka.bootstrap.servers is not a list of host:port: {error}.") from None


def fetch_settings(options: SourceOptions) -> ConsumerSettings:
    partition_bytes = _number(options, "max.partition.fetch.bytes", DEFAULT_FETCH_BYTES)
    return ConsumerSettings(
        isolation_level=READ_COMMITTED if options.read_committed else READ_UNCOMMITTED,
        max_wait_ms=_number(options, "fetch.max.wait.ms", 500),
        min_bytes=_number(options, "fetch.min.bytes", 1),
        max_bytes=max(_number(options, "fetch.max.bytes", 50 * 1024 * 1024), 1),
        partition_max_bytes=partition_bytes,
        check_crc=_setting(options, "check.crcs", lambda text: {"true": True, "false": False}[text.lower()], True),
    )


def connection_settings(options: SourceOptions) -> ConnectionSettings:
    """Returns the timeouts, the client id and TLS that the options name. Raises SourceError."""
    return ConnectionSettings(
        client_id=options.client.get("client.id", "penstock-spark"),
        connect_timeout_s=_number(options, "socket.connection.setup.timeout.ms", CONNECT_TIMEOUT_MS) / 1000,
        request_timeout_s=_number(options, "request.timeout.ms", 30_000) / 1000,
        tls=_tls(options),
    )


def _retry(options: SourceOptions) -> Retry:
    return Retry(
        first_pause_s=_number(options, "retry.backoff.ms", 100) / 1000,
        longest_pause_s=_number(options, "retry.backoff.max.ms", 1000) / 1000,
    )


def _tls(options: SourceOptions) -> ssl.SSLContext | None:
    protocol = options.client.get("security.protocol", "PLAINTEXT").upper()
    if protocol == "PLAINTEXT":
        return None
    if protocol != "SSL":
        raise SourceError(
            f"Option kafka.security.protocol is {protocol}, which is not supported: use PLAINTEXT or SSL."
        )
    authority = options.client.get("ssl.ca.location")
    if options.client.get("ssl.truststore.type", "").upper() == "PEM":
        authority = authority or options.client.get("ssl.truststore.location")
    elif "ssl.truststore.location" in options.client:
        raise SourceError("A Java trust store can't be read: set kafka.ssl.truststore.type=PEM and name a PEM file.")
    try:
        context = ssl.create_default_context(cafile=authority)
        if "ssl.keystore.location" in options.client:
            if options.client.get("ssl.keystore.type", "").upper() != "PEM":
                raise SourceError(
                    "A Java key store can't be read: set kafka.ssl.keystore.type=PEM and name a PEM file."
                )
            context.load_cert_chain(options.client["ssl.keystore.location"])
    except OSError as error:
        raise SourceError(f"The certificates that the kafka.ssl.* options name can't be read: {error}.") from None
    if options.client.get("ssl.endpoint.identification.algorithm") == "":
        context.check_hostname = False
    return context


def _number(options: SourceOptions, name: str, default: int) -> int:
    found: int = _setting(options, name, int, default)
    if found < 0:
        raise SourceError(f"Option kafka.{name} is {found}: it takes 0 or more.")
    return found


def _setting(options: SourceOptions, name: str, read: Callable[[str], T], default: T) -> T:
    text = options.client.get(name)
    if text is None:
        return default
    try:
        return read(text)
    except (KeyError, ValueError):
        raise SourceError(f"Option kafka.{name} does not take {text!r}.") from None
