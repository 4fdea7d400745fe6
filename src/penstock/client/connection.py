"""Implements one connection to a broker: negotiates versions, sends requests and matches responses to requests."""

import asyncio
import socket
import ssl
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

from penstock import __version__
from penstock.client.errors import code_of
from penstock.client.login import AnyLogin
from penstock.net.framing import SIZE, FrameError, FrameReader
from penstock.net.network import Network
from penstock.protocol.apis import (
    API_VERSIONS,
    APIS,
    request_header_version,
    response_class,
    response_header_version,
)
from penstock.protocol.codec import (
    DecodeError,
    EncodeError,
    UnfitValueError,
    decode,
    decode_prefix,
    encode,
    encode_parts,
)
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_17_sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.protocol.messages.api_18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.protocol.messages.api_36_sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.protocol.messages.headers import RequestHeader, ResponseHeader
from penstock.protocol.schema import Message
from penstock.security.errors import SaslError

#: Size of the frame, API key, version, correlation id.
_HEADER_START = struct.Struct(">ihhi")
#: A response header is the correlation id and tagged fields; Kafka defines no tagged fields so far.
_HEADER_ROOM = 4096
#: Share of a SASL session's lifetime after which the connection is given up for a new one.
SESSION_SHARE = 0.85
SESSION_END_CHECK_S = 0.5
#: Responses of this size are decoded in less than 5 ms.
LARGE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    client_id: str = "penstock"
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    max_response_bytes: int = 256 * 1024 * 1024
    tls: ssl.SSLContext | None = None
    login: AnyLogin | None = None
    decode_in_thread: bool = False
    """True decodes responses of more than LARGE_BYTES in a thread, for a client on the event loop of a node."""


@dataclass(slots=True)
class _Waiting:
    correlation_id: int
    future: "asyncio.Future[memoryview]"
    deadline: float
    timeout_s: float


@dataclass(slots=True, eq=False)
class _Stream(asyncio.BufferedProtocol):
    """Implements the asyncio protocol of the connection: passes received frames to the waiting requests."""

    address: str
    reader: FrameReader
    transport: asyncio.Transport | None = None
    waiting: deque[_Waiting] = field(default_factory=deque)
    timer: asyncio.TimerHandle | None = None
    """One timer for the timeouts of all requests.

    It fires when the oldest request may be late; most have a response by then.
    """
    writable: asyncio.Event = field(default_factory=asyncio.Event)
    lost: KafkaError | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """An event that is set when the transport has closed the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        why = f": {exc}" if exc else ""
        self.fail(KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{self.address} closed the connection{why}."))

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self.reader.received(nbytes)
        except FrameError as error:
            self.fail(
                KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{self.address} did not answer like a Kafka broker: {error}.")
            )
            return
        for frame in frames:
            self._answer(frame)

    def _answer(self, frame: memoryview) -> None:
        correlation_id = SIZE.unpack_from(frame)[0] if len(frame) >= SIZE.size else None
        if not self.waiting or self.waiting[0].correlation_id != correlation_id:
            self.fail(KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{self.address} sent an answer without a request."))
            return
        future = self.waiting.popleft().future
        if not future.done():
            future.set_result(frame)

    def end_in(self, seconds: float) -> None:
        """Closes the connection after the given seconds, as soon as no request is in flight.

        Called if the SASL session has a limited lifetime. The client later opens a new connection.
        """
        asyncio.get_running_loop().call_later(seconds, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self.lost is not None:
            return
        if self.waiting:
            self.end_in(SESSION_END_CHECK_S)
        else:
            self.fail(
                KafkaError(ErrorCode.NETWORK_EXCEPTION, f"The SASL session with {self.address} ended."), flush=True
            )

    def expect(self, entry: _Waiting) -> None:
        self.waiting.append(entry)
        if self.timer is None or entry.deadline < self.timer.when():
            self._look_at(entry.deadline)

    def _look_at(self, when: float) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_at(when, self._look_for_late)

    def _look_for_late(self) -> None:
        self.timer = None
        if not self.waiting:
            return
        first = min(self.waiting, key=lambda entry: entry.deadline)
        if first.deadline > asyncio.get_running_loop().time():
            self._look_at(first.deadline)
            return
        # Answers come in order, so a late answer blocks all later ones: only a new connection helps.
        sentence = f"{self.address} didn't answer within {first.timeout_s:g} s."
        self.fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT, sentence))

    def fail(self, error: KafkaError, *, flush: bool = False) -> None:
        if self.lost is None:
            self.lost = error
        self.writable.set()
        if self.transport is not None:
            if flush:
                self.transport.close()
            else:
                self.transport.abort()
            self.transport = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        while self.waiting:
            entry = self.waiting.popleft()
            if not entry.future.done():
                # A separate exception for each waiter: a shared traceback grows with every raise.
                entry.future.set_exception(KafkaError(error.code, error.message))


class BrokerConnection:
    """Implements a connection to a broker, on which several requests may be in flight. The broker responds in order.

    A failed connection is not reopened: `closed` stays True.
    """

    def __init__(self, stream: _Stream, settings: ConnectionSettings) -> None:
        self._stream = stream
        self._settings = settings
        self._next_correlation_id = 0
        self._header_ends: dict[tuple[int, int], bytes] = {}
        self.versions: dict[int, tuple[int, int]] = {}
        """The versions that the broker serves: API key → first and last version."""
        self.features: dict[str, int] = {}
        """The cluster's finalized features, from the ApiVersions response."""

    @classmethod
    async def open(
        cls, network: Network, host: str, port: int, settings: ConnectionSettings | None = None
    ) -> "BrokerConnection":
        """Connects, requests the API versions of the broker, and returns the connection. Raises KafkaError."""
        settings = settings or ConnectionSettings()
        stream = _Stream(f"{host}:{port}", FrameReader(settings.max_response_bytes))
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await network.connect(host, port, lambda: stream, tls=settings.tls)
        except (OSError, UnicodeError) as error:  # a name that is not valid in the DNS raises UnicodeError
            sentence = f"Can't connect to {host}:{port}: {_why(error)}."
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, sentence) from error
        connection = cls(stream, settings)
        try:
            await connection._negotiate()
            if settings.login is not None:
                await connection._authenticate(settings.login)
        except BaseException:
            sentence = f"The connection to {connection.address} was given up before it was ready."
            stream.fail(KafkaError(ErrorCode.NETWORK_EXCEPTION, sentence))  # at once: nothing is left to be sent
            raise
        return connection

    @property
    def address(self) -> str:
        return self._stream.address

    @property
    def closed(self) -> bool:
        return self._stream.lost is not None

    @property
    def in_flight(self) -> int:
        return len(self._stream.waiting)

    def version_of(self, api_key: int, at_most: int | None = None) -> int:
        """Returns the highest version that both client and broker support. Raises KafkaError if there is none."""
        api = APIS[api_key]
        low, high = self.versions.get(api_key, (0, -1))
        low, high = max(low, api.min_version), min(high, api.latest_stable)
        if at_most is not None:
            high = min(high, at_most)
        if low > high:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} supports no version of {api.name} that this client can use.",
            )
        return high

    async def request(self, message: Message, *, version: int | None = None, timeout_s: float | None = None) -> Any:
        """Sends a request and returns the decoded response. Raises KafkaError.

        The caller checks the response's error codes.
        """
        if version is None:
            version = self.version_of(message.API_KEY)
        frame = await self._ask(message, version, timeout_s)
        if not self._settings.decode_in_thread or len(frame) <= LARGE_BYTES:
            return self.decoded(frame, message.API_KEY, version)
        try:
            return await asyncio.to_thread(_decoded, frame, message.API_KEY, version)
        except DecodeError as error:
            raise self._undecodable(message.API_KEY, version, error) from None

    @property
    def writable(self) -> bool:
        """Returns False while the broker reads too slowly. Meanwhile, `request` waits before it sends."""
        return self._stream.writable.is_set()

    def post(self, message: Message, version: int, timeout_s: float | None = None) -> "asyncio.Future[memoryview]":
        """Sends a request and returns a future of the response's bytes. Decode them with `decoded`."""
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        future: asyncio.Future[memoryview] = loop.create_future()
        entry = _Waiting(self._next_correlation_id, future, loop.time() + timeout_s, timeout_s)
        self._write(message, version, entry)
        return future

    def leave(self, future: "asyncio.Future[memoryview]") -> "asyncio.Future[memoryview]":
        """Abandons a request. The returned future completes when the late response arrives or the connection closes."""
        for entry in self._stream.waiting:
            if entry.future is future:
                entry.future = asyncio.get_running_loop().create_future()
                return entry.future
        return future

    async def send(self, message: Message, *, version: int | None = None) -> None:
        """Sends a request that gets no response: Produce with acks=0."""
        if version is None:
            version = self.version_of(message.API_KEY)
        await self._until_writable()
        self._write(message, version)

    def close(self) -> None:
        """Closes the connection and fails waiting requests. Still sends buffered bytes, for Produce with acks=0."""
        sentence = f"The connection to {self.address} was closed."
        self._stream.fail(KafkaError(ErrorCode.NETWORK_EXCEPTION, sentence), flush=True)

    async def wait_closed(self) -> None:
        await self._stream.gone.wait()

    async def _ask(self, message: Message, version: int, timeout_s: float | None) -> memoryview:
        if not self.writable:
            timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
            try:
                async with asyncio.timeout(timeout_s):
                    await self._until_writable()
            except TimeoutError:
                sentence = f"{self.address} did not read the request within {timeout_s:g} s."
                self._stream.fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT, sentence))
        return await self.post(message, version, timeout_s)

    async def _until_writable(self) -> None:
        while not self.writable:
            await self._stream.writable.wait()

    def _write(self, message: Message, version: int, entry: _Waiting | None = None) -> None:
        stream = self._stream
        if stream.lost is not None or stream.transport is None:
            lost = stream.lost
            raise KafkaError(lost.code if lost else ErrorCode.NETWORK_EXCEPTION, lost.message if lost else None)
        if stream.transport.is_closing():
            # Since Python 3.12, asyncio's `writelines` leaves the descriptor of such a transport in the selector, and
            # the next connection that gets the descriptor is never read.
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{stream.address} closed the connection.")
        correlation_id = self._next_correlation_id
        try:
            parts = encode_parts(message, version)
        except UnfitValueError as error:
            sentence = f"{APIS[message.API_KEY].name} can't be sent: {error}."
            raise KafkaError(ErrorCode.INVALID_REQUEST, sentence) from None
        except EncodeError as error:
            sentence = f"{self.address} serves only {APIS[message.API_KEY].name} v{version}: {error}."
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, sentence) from None
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        end = self._header_ends.get((message.API_KEY, version)) or self._header_end(message.API_KEY, version)
        size = _HEADER_START.size - SIZE.size + len(end) + sum(map(len, parts))
        head = _HEADER_START.pack(size, message.API_KEY, version, correlation_id) + end
        if entry is not None:
            stream.expect(entry)
        stream.transport.writelines([head, *parts])

    def _header_end(self, api_key: int, version: int) -> bytes:
        """Returns the part of a request header after the correlation id.

        This part is the same for all requests with this API key and version.
        """
        header = RequestHeader(request_api_key=api_key, request_api_version=version, client_id=self._settings.client_id)
        end = encode(header, request_header_version(api_key, version))[_HEADER_START.size - SIZE.size :]
        self._header_ends[api_key, version] = end
        return end

    def decoded(self, frame: memoryview, api_key: int, version: int) -> Any:
        """Decodes the response in a frame. Raises KafkaError for an invalid frame."""
        try:
            return _decoded(frame, api_key, version)
        except DecodeError as error:
            raise self._undecodable(api_key, version, error) from None

    def _undecodable(self, api_key: int, version: int, error: DecodeError) -> KafkaError:
        self.close()
        sentence = f"{self.address} sent an invalid answer to {APIS[api_key].name} v{version}: {error}."
        return KafkaError(ErrorCode.NETWORK_EXCEPTION, sentence)

    async def _negotiate(self) -> None:
        request = ApiVersionsRequest(client_software_name="penstock", client_software_version=__version__)
        version = APIS[API_VERSIONS].latest_stable
        frame = await self._ask(request, version, self._settings.connect_timeout_s)
        if _error_code(frame) == ErrorCode.UNSUPPORTED_VERSION:
            # A broker that doesn't support the version answers in version 0, with the versions that it supports.
            known: ApiVersionsResponse = self.decoded(frame, API_VERSIONS, 0)
            version = max((api.max_version for api in known.api_keys if api.api_key == API_VERSIONS), default=0)
            version = min(version, APIS[API_VERSIONS].latest_stable - 1)
            frame = await self._ask(request, version, self._settings.connect_timeout_s)
        answer: ApiVersionsResponse = self.decoded(frame, API_VERSIONS, version)
        if answer.error_code:
            raise KafkaError(code_of(answer.error_code), f"{self.address} refused to list its API versions.")
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in answer.finalized_features}

    async def _authenticate(self, login: AnyLogin) -> None:
        """Authenticates the connection with the SASL login. Raises KafkaError; the message contains no secret."""
        chosen: SaslHandshakeResponse = await self.request(SaslHandshakeRequest(mechanism=login.mechanism), version=1)
        if chosen.error_code:
            offered = f"; it offers {', '.join(chosen.mechanisms)}" if chosen.mechanisms else ""
            raise KafkaError(
                code_of(chosen.error_code), f"{self.address} does not accept the mechanism {login.mechanism}{offered}."
            )
        try:
            exchange = await login.exchange()
        except SaslError as error:
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error)) from error.__cause__
        token: bytes | None = exchange.first()
        try:
            while token is not None:
                answer: SaslAuthenticateResponse = await self.request(SaslAuthenticateRequest(auth_bytes=token))
                if answer.error_code:
                    reason = answer.error_message or "no reason was given"
                    raise KafkaError(code_of(answer.error_code), f"{self.address} refused {login.who}: {reason}")
                token = exchange.step(bytes(answer.auth_bytes))
        except SaslError as error:
            raise KafkaError(
                ErrorCode.SASL_AUTHENTICATION_FAILED, f"{self.address} could not be authenticated: {error}"
            ) from None
        if answer.session_lifetime_ms > 0:
            self._stream.end_in(answer.session_lifetime_ms / 1000 * SESSION_SHARE)


def _decoded(frame: memoryview, api_key: int, version: int) -> Any:
    """Decodes the response in a frame. Raises DecodeError. Pure, so it can run in a thread."""
    # Passes the beginning of the frame only: a reader copies its input to `bytes`, and a fetch has megabytes.
    _, start = decode_prefix(ResponseHeader, response_header_version(api_key, version), frame[:_HEADER_ROOM])
    return decode(response_class(api_key), version, frame, start)


def _why(error: OSError | UnicodeError) -> str:
    match error:
        case TimeoutError():
            return "no answer in time"
        case socket.gaierror():
            return "the host name is not known"
        case ConnectionRefusedError():
            return "the connection was refused"
        case OSError():
            return error.strerror or str(error)
        case UnicodeError():
            return "that is no host name"


def _error_code(frame: memoryview) -> int:
    """Returns the error code of an ApiVersions response, which is at the same position in every version."""
    return int.from_bytes(frame[4:6], "big", signed=True) if len(frame) >= 6 else 0
