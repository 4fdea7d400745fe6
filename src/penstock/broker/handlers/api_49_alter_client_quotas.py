"""AlterClientQuotas, versions 0 to 1: sets and removes quotas of users, client ids and addresses, or only validates.

Errors are per entity. Brokers enforce a change as soon as they have applied it: see `broker/limits/quotas.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.controller.quotas import alter_client_quotas
from penstock.protocol.messages.api_49_alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    return await broker.metadata.submit(lambda image: alter_client_quotas(image, request))
