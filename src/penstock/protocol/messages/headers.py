"""Declares the headers before every request and response."""

from penstock.protocol.schema import Message, int16, int32, string


class RequestHeader(Message, versions="1-2", flexible="2+"):
    request_api_key: int = int16()
    request_api_version: int = int16()
    correlation_id: int = int32()
    client_id: str | None = string(nullable=True, flexible="none")


class ResponseHeader(Message, versions="0-1", flexible="1+"):
    correlation_id: int = int32()
