"""Declares the request and the response of Envelope: API key 58, version 0."""

from penstock.protocol.schema import Message, binary, int16


class EnvelopeRequest(Message, api_key=58, versions="0", flexible="0+"):
    request_data: bytes = binary()
    request_principal: bytes | None = binary(nullable=True)
    client_host_address: bytes = binary()


class EnvelopeResponse(Message, api_key=58, versions="0", flexible="0+"):
    response_data: bytes | None = binary(nullable=True, default=None)
    error_code: int = int16()
