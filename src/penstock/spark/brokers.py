"""Connects to the brokers that the `kafka.*` options name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from penstock.client.client_security import SECURITY_PREFIXES, ClientSecurityError, credentials_of
from penstock.client.connection import ConnectionSettings
from penstock.client.consumer import ConsumerSettings
from penstock.client.credentials import Credentials
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

    If `attempts` is given, the first connection and each request are tried at most this many times.
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
    """Returns the connection settings that the options set: timeouts, client id and TLS. Raises SourceError."""
    credentials = _credentials(options)
    return ConnectionSettings(
        client_id=options.client.get("client.id", "penstock-spark"),
        connect_timeout_s=_number(options, "socket.connection.setup.timeout.ms", CONNECT_TIMEOUT_MS) / 1000,
        request_timeout_s=_number(options, "request.timeout.ms", 30_000) / 1000,
        tls=credentials.tls,
        login=credentials.login,
    )


def _retry(options: SourceOptions) -> Retry:
    return Retry(
        first_pause_s=_number(options, "retry.backoff.ms", 100) / 1000,
        longest_pause_s=_number(options, "retry.backoff.max.ms", 1000) / 1000,
    )


def _credentials(options: SourceOptions) -> Credentials:
    named = {name: text for name, text in options.client.items() if name.startswith(SECURITY_PREFIXES)}
    try:
        return credentials_of(named)
    except ClientSecurityError as problem:
        text = str(problem)
        raise SourceError(f"Option kafka.{text}" if text.startswith(SECURITY_PREFIXES) else text) from None


def _number(options: SourceOptions, name: str, default: int) -> int:
    found: int = _setting(options, name, int, default)
    if found < 0:
        raise SourceError(f"Option kafka.{name} is {found}: it takes a number of 0 or more.")
    return found


def _setting(options: SourceOptions, name: str, read: Callable[[str], T], default: T) -> T:
    text = options.client.get(name)
    if text is None:
        return default
    try:
        return read(text)
    except (KeyError, ValueError):
        raise SourceError(f"Option kafka.{name} does not take {text!r}: correct or remove the option.") from None
