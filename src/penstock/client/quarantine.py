"""Lists the brokers in quarantine (fenced because their replicas seem damaged), and releases brokers from it.

Requests go to any broker, because clients don't find a fenced broker in the metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client.errors import code_of
from penstock.metadata.quarantine import QUARANTINED
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.protocol.vocabulary import ConfigOperation, ResourceType

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient


async def quarantined_nodes(client: AsyncClient) -> dict[int, str]:
    """Returns the brokers in quarantine, with the reason for each quarantine. Raises KafkaError."""
    answer: DescribeClusterResponse = await client.request(DescribeClusterRequest(include_fenced_brokers=True))
    if answer.error_code:
        raise KafkaError(code_of(answer.error_code), answer.error_message)
    return {each.broker_id: each.quarantine for each in answer.brokers if each.quarantine}


async def release(client: AsyncClient, node_id: int) -> bool:
    """Releases a broker from quarantine. Returns False if it is not in quarantine. Raises KafkaError."""
    if node_id not in await quarantined_nodes(client):
        return False
    config = AlterableConfig(name=QUARANTINED, config_operation=ConfigOperation.DELETE, value=None)
    resource = AlterConfigsResource(resource_type=ResourceType.BROKER, resource_name=str(node_id), configs=[config])
    answer: IncrementalAlterConfigsResponse = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
    for result in answer.responses:
        if result.error_code:
            raise KafkaError(code_of(result.error_code), result.error_message)
    return True
