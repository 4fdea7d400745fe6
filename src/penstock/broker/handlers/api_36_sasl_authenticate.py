"""SaslAuthenticate v0-2: handles one SASL token. v1+ returns how long the session lasts (KIP-368).

A refused token gets SASL_AUTHENTICATION_FAILED after a delay, then the connection closes. ILLEGAL_SASL_STATE is
returned on a listener without SASL, and on a connection that is already authenticated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.requests.authentication import SESSION, SaslSession
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_36_sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.security.errors import SaslError
from penstock.security.sasl_server import SaslState

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.net.later import Later

_OUT_OF_TURN = "SaslAuthenticate request received after successful authentication"


def handle(
    broker: Broker, ctx: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse | Later[SaslAuthenticateResponse]:
    session: SaslSession | None = ctx.connection.state.get(SESSION)
    if session is None or session.server.state is SaslState.DONE:
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_OUT_OF_TURN)
    try:
        answer = session.token(bytes(request.auth_bytes))
    except SaslError as error:
        code, message = ErrorCode.SASL_AUTHENTICATION_FAILED, f"Authentication failed: {error}"
        return session.refuse(error.reason, SaslAuthenticateResponse(error_code=code, error_message=message))
    return SaslAuthenticateResponse(error_message=None, auth_bytes=answer, session_lifetime_ms=session.lifetime_ms)
