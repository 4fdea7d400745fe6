"""AlterUserScramCredentials, version 0: sets and removes SCRAM credentials. Passwords never reach the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.controller.scram import alter_scram_credentials
from penstock.protocol.messages.api_51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    return await broker.metadata.submit(lambda image: alter_scram_credentials(image, request))
