"""Envelope v0: handles a client's request that another broker has forwarded to this node, the active controller."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from penstock.broker.controlplane.controller_channel import says_not_controller
from penstock.broker.handlers.access import guarded
from penstock.broker.handlers.forwarding import CONTROLLER_APIS
from penstock.broker.handlers.registry import load_handler, served_versions
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.error_replies import error_response
from penstock.broker.requests.local_connection import LocalConnection
from penstock.net.later import settled
from penstock.net.reply import Close
from penstock.protocol.apis import request_class, request_header_version, response_header_version
from penstock.protocol.codec import DecodeError, decode, decode_prefix, encode, encode_parts
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_58_envelope import EnvelopeRequest, EnvelopeResponse
from penstock.protocol.messages.default_principal_data import DefaultPrincipalData
from penstock.protocol.messages.headers import RequestHeader, ResponseHeader

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


async def handle(broker: Broker, ctx: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    if not broker.metadata.leading:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    try:
        inner, message = _unpacked(broker, ctx, request)
    except (DecodeError, ValueError):
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    if inner.api_key not in CONTROLLER_APIS or inner.api_version not in served_versions(inner.api_key):
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    try:
        handler = guarded(load_handler(inner.api_key), inner.api_key, broker.access)
        answer = await settled(handler(broker, inner, message))
    except KafkaError as error:
        answer = error_response(inner.api_key, inner.api_version, message, error.code, error.message)
    if says_not_controller(answer):
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if isinstance(answer, Close):
        return EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    header = ResponseHeader(correlation_id=inner.correlation_id)
    head = encode(header, response_header_version(inner.api_key, inner.api_version))
    return EnvelopeResponse(response_data=b"".join([head, *encode_parts(answer, inner.api_version)]))


def _unpacked(broker: Broker, ctx: RequestContext, request: EnvelopeRequest) -> tuple[RequestContext, Any]:
    data = request.request_data
    key, version = int.from_bytes(data[:2], "big", signed=True), int.from_bytes(data[2:4], "big", signed=True)
    if version not in served_versions(key):
        raise ValueError("this node does not serve the API key or version of the forwarded request")
    header, position = decode_prefix(RequestHeader, request_header_version(key, version), data)
    message = decode(request_class(key), version, data, position)
    who = decode(DefaultPrincipalData, 0, request.request_principal, 2) if request.request_principal else None
    connection = LocalConnection(
        ctx.listener_name,
        None if who is None else f"{who.type}:{who.name}",
        str(ipaddress.ip_address(bytes(request.client_host_address))),
    )
    inner = RequestContext(key, version, header.correlation_id, header.client_id, connection, broker.clock.wall_ms())
    return inner, message
