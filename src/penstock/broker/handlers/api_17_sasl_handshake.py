"""SaslHandshake v0-1: chooses a SASL mechanism.

After a v0 handshake the client sends its tokens as bare frames; after a v1 handshake, in SaslAuthenticate requests. For
an unsupported mechanism the client gets UNSUPPORTED_SASL_MECHANISM and the supported mechanisms, then the connection
closes. A listener without SASL returns ILLEGAL_SASL_STATE. A client that is already authenticated gets the same error
if its session does not expire, or if it authenticates again within a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.requests.authentication import SESSION, SaslSession
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_17_sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.security.errors import SaslError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.net.later import Later


def handle(
    broker: Broker, ctx: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse | Later[SaslHandshakeResponse]:
    session: SaslSession | None = ctx.connection.state.get(SESSION)
    if session is None or not session.may_handshake():
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    offered = session.server.offered
    try:
        known = session.server.handshake(request.mechanism)
    except SaslError as error:
        response = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered)
        return session.refuse(str(error), response)
    if not known:
        response = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
        return session.refuse("it asked for a mechanism that is not offered", response)
    session.raw = ctx.api_version == 0
    return SaslHandshakeResponse(mechanisms=offered)
