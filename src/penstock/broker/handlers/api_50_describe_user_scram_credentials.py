"""DescribeUserScramCredentials, version 0: returns the SCRAM mechanisms and iterations of users, never the keys.

Without users in the request, all users are described. A user named twice gets DUPLICATE_RESOURCE, a user without
credentials RESOURCE_NOT_FOUND.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_50_describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


def handle(
    broker: Broker, ctx: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    known: dict[str, list[CredentialInfo]] = {}
    for (user, mechanism), credential in sorted(broker.metadata.image.scram_credentials.items()):
        known.setdefault(user, []).append(CredentialInfo(mechanism=mechanism, iterations=credential.iterations))
    asked = Counter(user.name for user in request.users) if request.users else Counter(list(known))
    results = [_result(user, known.get(user), asked[user]) for user in asked]
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _result(
    user: str, credentials: list[CredentialInfo] | None, times_asked: int
) -> DescribeUserScramCredentialsResult:
    if times_asked > 1:
        code, why = ErrorCode.DUPLICATE_RESOURCE, f"The request contains the user {user} twice: name each user once."
    elif credentials is None:
        code, why = ErrorCode.RESOURCE_NOT_FOUND, f"The user {user} has no SCRAM credentials: check the name."
    else:
        return DescribeUserScramCredentialsResult(user=user, error_message=None, credential_infos=credentials)
    return DescribeUserScramCredentialsResult(user=user, error_code=code, error_message=why)
