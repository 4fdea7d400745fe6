"""Serves one HTTP connection: answers requests one after the other. h11 parses the protocol; limits are set here.

    idle ──bytes──► receiving ──request whole──► answering ──all sent──► idle
      │ IDLE_S          │ RECEIVE_S: 408             │ ANSWER_S: cut off
      └► closed         └► refused: answered, then closed once the peer has read the answer, or after LINGER_S

A response may be a stream without an end. The next part is made only when all earlier parts are sent; a peer that reads
nothing for SLOW_S is cut off. A long response is also sent in parts, so that a connection buffers at most PART_BYTES.

A connection that exceeds the server's limits is on trial: a probe (`/livez`, `/readyz`) is answered, any other request
is refused.

One request is answered at a time. Meanwhile the connection reads no bytes, so pipelined requests wait in the kernel.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, cast

import h11

from penstock.http.messages import (
    FAILED,
    HEADER_MAX_BYTES,
    NO_PEER,
    PROBES,
    SAFE_HEADERS,
    BodyStream,
    Peer,
    Request,
    Response,
    parse_request,
    text,
)
from penstock.net.tls import peer_certificate

if TYPE_CHECKING:
    from penstock.http.address import Names

logger = logging.getLogger(__name__)

IDLE_S = 60.0
#: Longest time in which a request has to arrive. A body gets more time while it arrives at RECEIVE_BYTES_PER_S or more.
RECEIVE_S, RECEIVE_BYTES_PER_S = 10.0, 16 * 1024
ANSWER_S = 30.0
#: Longest time for which the peer of a stream may leave a part unread.
SLOW_S = 20.0
#: Longest time in which a connection on trial has to send its request.
TRIAL_S = 2.0
#: Bytes of a long answer that wait for the peer at a time. The rest waits in the answer, which connections may share.
PART_BYTES = 256 * 1024
#: A peer reads slowly if, after SLOW_AFTER_S, it has taken a part at less than SLOW_BYTES_PER_S.
SLOW_AFTER_S, SLOW_BYTES_PER_S = 1.0, 16 * 1024
#: A refused peer may still be sending: an immediate close would reset the connection and lose the answer.
LINGER_S = 1.0
LINGER_MAX_BYTES = 256 * 1024
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class ConnectionServer(Protocol):
    """Defines the methods and attributes of the HTTP server that a connection needs."""

    names: Names
    stopping: bool

    def admit(self, connection: HttpConnection) -> Response | None:
        """Registers a connection.

        Returns None if the connection is admitted, else the error response for requests that are not probes.
        """
        ...

    def refuse_unread(self, connection: HttpConnection, size: int) -> Response | None:
        """Returns None if a response of `size` bytes may be sent, else the error response to send instead."""
        ...

    def forget(self, connection: HttpConnection) -> None: ...

    async def respond(self, request: Request) -> Response: ...


class HttpConnection(asyncio.Protocol):
    def __init__(self, server: ConnectionServer) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_MAX_BYTES)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None
        #: The parts of the body so far. `parse_request` has refused a body that is announced as too long.
        self._body: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._head_only = False
        #: When the current request began to arrive, and how many bytes of its body have arrived.
        self._receiving_since: float | None = None
        self._received = 0
        self._unsent = False
        #: Bytes in the transport, and the time, when the peer began to leave bytes unread.
        self._unsent_from, self._unsent_since = 0, 0.0
        #: Bytes of a long answer that are not in the transport yet.
        self._left = 0
        self._lingering = 0
        self._paused = False
        self.peer = NO_PEER
        self._streaming = False
        #: Completed when all bytes of a stream so far are sent.
        self._sent: asyncio.Future[None] | None = None
        self._delayed = False
        #: The response to any request that is not a probe; None if the connection is admitted.
        self._on_trial: Response | None = None

    @property
    def host(self) -> str:
        return self.peer.host

    @property
    def unread_bytes(self) -> int:
        """Returns how many bytes of the current response the peer has not read yet."""
        return self._left + self.buffered_bytes

    @property
    def buffered_bytes(self) -> int:
        """Returns the number of bytes in the transport's write buffer."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def reads_slowly(self) -> bool:
        """Returns True if the peer reads the current response too slowly or not at all."""
        if not self._unsent or self._transport is None:
            return False
        took_s = asyncio.get_running_loop().time() - self._unsent_since
        taken = self._unsent_from - self.buffered_bytes
        return took_s >= SLOW_AFTER_S and taken < took_s * SLOW_BYTES_PER_S

    @property
    def idle(self) -> bool:
        """Returns True if this connection may be closed to make room for a new connection.

        This is the case if no request is in progress, or only a failed login whose response is delayed.
        """
        return self._delayed or (self._task is None and not self._unsent)

    # --- events of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = _peer_of(self._transport)
        # So that resume_writing signals an empty buffer. A TLS transport pauses at `high` bytes already, not beyond.
        self._transport.set_write_buffer_limits(high=1 if self.peer.tls else 0, low=0)
        self._on_trial = self._server.admit(self)
        self._within(IDLE_S if self._on_trial is None else TRIAL_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._cancel_timer()
        if self._task is not None:
            self._task.cancel()
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._lingering += len(data)
            if self._lingering > LINGER_MAX_BYTES:
                self.abort()
            return
        self._http.receive_data(data)
        if self._task is not None or self._unsent:
            self._pause_reading()  # later requests wait in the kernel, and h11 holds the bytes of one read at most
        self._process_received()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and self._paused:
            self._paused = False
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        if self._lingering or self._streaming:
            return False  # the peer of a stream has gone: the stream has no end to wait for
        self._http.receive_data(b"")
        self._process_received()
        # The pending request is still answered; TLS can't be closed in one direction only.
        return not self.peer.tls and (self._task is not None or self._unsent)

    def pause_writing(self) -> None:
        self._unsent = True
        self._unsent_from, self._unsent_since = self.buffered_bytes, asyncio.get_running_loop().time()

    def resume_writing(self) -> None:
        self._unsent = False
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)
        if self._task is not None:
            return
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # the bytes were those of a TLS handshake
            self._resume_reading()
            self._process_received()
        else:
            self._answered()

    # --- requests

    def _process_received(self) -> None:
        """Processes received bytes up to the next complete request. Does nothing while a request is being served."""
        while self._task is None and not self._unsent and not self._lingering and self._transport is not None:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                too_large = error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                status = 431 if too_large else 400
                self._refuse(text(status, f"The request can't be parsed: {error}."))
                return
            match event:
                case h11.NEED_DATA:
                    self._await_rest()
                    return
                case h11.Request():
                    self._requested(event)
                case h11.EndOfMessage():
                    self._receiving_since, self._received = None, 0
                    self._task = asyncio.get_running_loop().create_task(self._answer(), name="http")
                    self._within(ANSWER_S, self.abort)
                case h11.ConnectionClosed():
                    self._close()
                    return
                case h11.Data():
                    self._body.append(bytes(event.data))
                    self._received += len(event.data)
                case _:  # h11 has no other events
                    return

    def _await_rest(self) -> None:
        """Starts the time limit for receiving a request once its first bytes have arrived.

        Tells a client that sent `Expect: 100-continue` to send the body.
        """
        if self._receiving_since is None and (self._request is not None or self._http.trailing_data[0]):
            self._receiving_since = asyncio.get_running_loop().time()
            self._within(RECEIVE_S if self._on_trial is None else TRIAL_S, self._check_rate)
        if self._request is not None and self._http.they_are_waiting_for_100_continue:
            self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")))

    def _check_rate(self) -> None:
        """Refuses the request with status 408 if it arrives too slowly; otherwise schedules the next check."""
        assert self._receiving_since is not None
        limit_s = RECEIVE_S + self._received / RECEIVE_BYTES_PER_S if self._on_trial is None else TRIAL_S
        left_s = self._receiving_since + limit_s - asyncio.get_running_loop().time()
        if left_s > 0:
            self._within(left_s, self._check_rate)
        else:
            rate = f"a body gets more while it arrives at {RECEIVE_BYTES_PER_S} bytes per second or more"
            self._refuse(text(408, f"The request did not arrive within {RECEIVE_S:.0f} s; {rate}."))

    def _requested(self, event: h11.Request) -> None:
        self._head_only = event.method == b"HEAD"
        size = sum(len(name) + len(value) + 4 for name, value in event.headers)
        if size > HEADER_MAX_BYTES:  # h11 checks the limit only while headers arrive
            self._refuse(text(431, f"The headers are too long: the maximum is {HEADER_MAX_BYTES} bytes."))
            return
        found = parse_request(event.method, event.target, event.headers, self._server.names, self.peer)
        if isinstance(found, Response):
            self._refuse(found)
        elif self._on_trial is not None and found.path not in PROBES:
            self._refuse(self._on_trial)
        else:
            self._request, self._body = found, []

    async def _answer(self) -> None:
        request, self._request = self._request, None
        assert request is not None
        began = asyncio.get_running_loop().time()
        if self._body:
            request, self._body = replace(request, body=b"".join(self._body)), []
        try:
            response = await self._server.respond(request)
        except Exception:
            logger.exception("HTTP request %s %s failed", request.method, request.path)
            response = FAILED
        if response.delay_s:
            self._delayed = True
            await asyncio.sleep(began + response.delay_s - asyncio.get_running_loop().time())
            self._delayed = False
        if response.stream is not None:
            await self._stream(response, response.stream)
        else:
            await self._send_in_parts(self._server.refuse_unread(self, len(response.body)) or response)
        self._task = None
        if not self._unsent:
            self._answered()

    async def _stream(self, response: Response, stream: BodyStream) -> None:
        """Sends the parts of a streamed response until the stream ends or the peer has closed the connection."""
        self._streaming = True
        try:
            self._write(self._head(response))
            if not self._head_only:
                async for part in stream:
                    self._write(self._http.send(h11.Data(data=part)))
                    self._within(SLOW_S, self.abort)
                    await self._all_sent()
                    self._cancel_timer()
            self._write(self._http.send(h11.EndOfMessage()))
        except Exception:
            logger.exception("a streamed HTTP response failed after its first bytes, so its connection is closed")
            self.abort()
        finally:
            self._streaming = False
            await stream.aclose()

    async def _all_sent(self) -> None:
        """Waits until the transport has sent all bytes."""
        if self._unsent:
            self._sent = asyncio.get_running_loop().create_future()
            await self._sent

    def _answered(self) -> None:
        """Prepares for the next request, or closes the connection. Called when a response is completely sent."""
        if self._lingering or self._transport is None:
            return
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE and not self._server.stopping:
            self._http.start_next_cycle()
            self._resume_reading()
            self._within(IDLE_S, self.abort)
            self._process_received()
        else:
            self._close()

    # --- responses

    async def _send_in_parts(self, response: Response) -> None:
        """Sends a response. Sends each part of a long body only after the previous part has been sent."""
        size = len(response.body)
        if self._head_only or size <= PART_BYTES:
            self._send(response)
            return
        self._write(self._head(response, ("Content-Length", str(size))))
        for start in range(0, size, PART_BYTES):
            self._left = size - start
            await asyncio.sleep(0)  # the system may take many parts at once: others have their turn between two of them
            await self._all_sent()
            self._left = max(0, size - start - PART_BYTES)
            self._write(self._http.send(h11.Data(data=response.body[start : start + PART_BYTES])))
        self._write(self._http.send(h11.EndOfMessage()))

    def _send(self, response: Response, *, last: bool = False) -> None:
        if self._transport is None:
            return
        parts = [self._head(response, ("Content-Length", str(len(response.body))), last=last)]
        if not self._head_only:
            parts.append(self._http.send(h11.Data(data=response.body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        self._write(b"".join(part for part in parts if part))

    def _head(self, response: Response, *more: tuple[str, str], last: bool = False) -> bytes | None:
        headers = [
            ("Content-Type", response.content_type),
            ("Date", http_date(time.time())),
            ("Cache-Control", response.cache),
            *SAFE_HEADERS,
            *response.headers,
            *more,
        ]
        if last or self._on_trial is not None or self._server.stopping:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(response.status).phrase
        return self._http.send(h11.Response(status_code=response.status, headers=headers, reason=reason.encode()))

    def _write(self, data: bytes | None) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def _refuse(self, response: Response) -> None:
        if self._transport is None:
            return
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(response, last=True)
        self._lingering = 1
        self._within(LINGER_S, self._close)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    # --- closing

    def finish(self) -> None:
        """Closes the connection once the current response is sent, because the node stops."""
        if self.idle or self._streaming:
            self._close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _within(self, seconds: float, otherwise: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, otherwise)


def _peer_of(transport: asyncio.Transport) -> Peer:
    name, secure = transport.get_extra_info("peername"), transport.get_extra_info("ssl_object")
    return Peer(str(name[0]) if name else "", secure is not None, peer_certificate(secure))


def http_date(seconds: float) -> str:
    """Formats a date for HTTP headers, always in English."""
    at = time.gmtime(seconds)
    day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT"
