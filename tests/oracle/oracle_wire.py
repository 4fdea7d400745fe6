"""A plain connection that sends requests exactly as given: one request, one answer, no retries."""

from __future__ import annotations

import socket
import struct
from typing import Any

from penstock.protocol.apis import request_header_version, response_class, response_header_version
from penstock.protocol.codec import decode, decode_prefix, encode
from penstock.protocol.messages.headers import RequestHeader, ResponseHeader
from penstock.protocol.schema import Message

PATIENCE_SECONDS = 120.0
# A parked fetch with this wait is answered in time only if an event ends it.
LONGER_THAN_PATIENCE_MS = 600_000


class Closed(Exception):
    """Raised if the broker closed the connection instead of answering."""


class Wire:
    def __init__(
        self, host: str, port: int, client_id: str | None = "oracle", patience_s: float = PATIENCE_SECONDS
    ) -> None:
        self.socket = socket.create_connection((host, port), patience_s)
        self.client_id = client_id
        self._correlation_id = 0

    def close(self) -> None:
        self.socket.close()

    def send(self, request: Message, version: int) -> int:
        """Sends a request. Returns the correlation id, which `receive` needs to read the answer."""
        self._correlation_id += 1
        header = RequestHeader(
            request_api_key=request.API_KEY,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=self.client_id,
        )
        head = encode(header, request_header_version(request.API_KEY, version))
        self.send_frame(head + encode(request, version))
        return self._correlation_id

    def send_frame(self, frame: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except ConnectionError as error:
            raise Closed from error

    def receive(self, api_key: int, version: int, correlation_id: int) -> Any:
        frame = self.receive_frame()
        header, position = decode_prefix(ResponseHeader, response_header_version(api_key, version), frame)
        assert header.correlation_id == correlation_id, "answers come in the order of the requests"
        return decode(response_class(api_key), version, frame, position)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                chunk = self.socket.recv(size - len(parts))
            except ConnectionError as error:
                raise Closed from error
            if not chunk:
                raise Closed
            parts += chunk
        return bytes(parts)
