"""Tests how the dispatcher reacts to malformed headers and to handlers that fail."""

from __future__ import annotations

import inspect
import logging
import re
import struct
import time
from importlib import import_module
from typing import Any, cast

import pytest

from penstock.broker.dispatch import dispatcher as dispatch
from penstock.broker.dispatch.dispatcher import Dispatcher
from penstock.broker.handlers.registry import HANDLERS, ON_CONTROLLERS, Role
from penstock.broker.requests.fault_rules import Faults
from penstock.clock import ManualClock
from penstock.net.connection import Connection
from penstock.net.reply import Close
from penstock.protocol.codec import decode, encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.protocol.primitives import write_uvarint


class NoQuotas:
    class request:
        limits: dict[str, float] = {}  # noqa: RUF012 - never changed


class StubBroker:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.faults = Faults()
        self.quotas = NoQuotas()
        self.access = None
        self.audit = None


def dispatcher() -> Dispatcher:
    return Dispatcher(cast(Any, StubBroker()))


def frame(key: int, version: int, rest: bytes, client_id: bytes | None = b"me") -> memoryview:
    length = -1 if client_id is None else len(client_id)
    return memoryview(struct.pack(">hhih", key, version, 7, length) + (client_id or b"") + rest)


def send(request: memoryview) -> Any:
    return dispatcher()(cast(Connection, None), request)


FLEXIBLE_BODY = b"\0" + encode(DescribeClusterRequest(), 1)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\0\x3c\0\1",  # no correlation id
        bytes(frame(60, 1, b"")),  # the header's tags are missing
        bytes(frame(60, 1, b"\x05")),  # a count of five tags without any tag
        bytes(frame(60, 1, b"\x01\x00\xff\xff\xff\xff\x0f")),  # a tag of four gigabytes
        bytes(frame(60, 1, b"\xff\xff\xff\xff\xff\xff")),  # a count that never ends
        struct.pack(">hhih", 60, 1, 7, -5),  # a client id of negative length
        struct.pack(">hhih", 60, 1, 7, 100) + b"short",  # a client id past the frame
        bytes(frame(60, 1, FLEXIBLE_BODY, b"\xff\xfe")),  # a client id that isn't UTF-8
        bytes(frame(60, 1, b"\0")),  # no body
    ],
)
def test_a_malformed_frame_closes_its_connection(request_bytes: bytes) -> None:
    assert isinstance(send(memoryview(request_bytes)), Close)


@pytest.mark.usefixtures("no_collections")
def test_request_header_with_very_many_tagged_fields_is_refused_before_they_are_decoded() -> None:
    """Checks the CPU time: five megabytes of empty fields once took fourteen seconds."""
    count = 1 << 20
    started = time.thread_time()
    answer = send(frame(60, 1, write_uvarint(count) + b"\0\0" * count + FLEXIBLE_BODY))
    assert isinstance(answer, Close)
    assert "tagged fields" in answer.reason
    assert time.thread_time() - started < 0.1  # a second and more if they were read


@pytest.mark.parametrize(("key", "version"), [(4, 0), (999, 0), (60, 99), (60, -1), (0, 2), (52, 0)])
def test_an_api_that_is_not_served_on_the_listener_closes_the_connection_and_is_logged_by_name(
    key: int, version: int
) -> None:
    answer = send(frame(key, version, b""))
    assert isinstance(answer, Close)
    assert "is not served on this" in answer.reason


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_api_versions_request_of_an_unknown_version_gets_a_response_of_version_0(version: int) -> None:
    answer = send(frame(18, version, encode(ApiVersionsRequest(), 4)))
    assert answer[0] == struct.pack(">i", 7)
    told = decode(ApiVersionsResponse, 0, b"".join(answer[1:]))
    assert told.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(one.api_key, one.min_version, one.max_version) for one in told.api_keys] == [(18, 0, 4)]


def failing(error: Exception) -> Any:
    def handle(broker: object, ctx: object, request: object) -> None:
        raise error

    return handle


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(ErrorCode.NOT_CONTROLLER, "not here"), ErrorCode.NOT_CONTROLLER),
        (ZeroDivisionError(), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_client_gets_an_error_response_if_a_handler_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, code: ErrorCode
) -> None:
    caplog.set_level(logging.CRITICAL, "penstock.broker.dispatch.dispatcher")
    monkeypatch.setattr(dispatch, "load_handler", lambda key: failing(error))
    answer = send(frame(60, 1, FLEXIBLE_BODY))
    assert answer[0] == struct.pack(">i", 7) + b"\0"
    assert decode(DescribeClusterResponse, 1, b"".join(answer[1:])).error_code == code


@pytest.mark.parametrize(("api_key", "role"), [*((key, "BROKER") for key in sorted(HANDLERS)), (1, "CONTROLLER")])
def test_no_handler_is_annotated_to_return_an_awaitable(api_key: int, role: Role) -> None:
    name = ON_CONTROLLERS[api_key] if role == "CONTROLLER" else HANDLERS[api_key]
    function = import_module(f"penstock.broker.handlers.{name}").handle
    told = inspect.signature(function).return_annotation
    assert told is not inspect.Signature.empty
    assert not {"Awaitable", "Future", "Task", "Coroutine", "Any"} & set(re.findall(r"\w+", told))
    if inspect.iscoroutinefunction(function):
        assert "Later" not in told  # the registry makes it one
