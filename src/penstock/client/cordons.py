"""Sets `cordoned.log.dirs` of a node (KIP-1066, Kafka 4.3), so that its directories get no new replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.client.admin import Admin
from penstock.client.cluster_admin import ClusterAdmin
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import ConfigOperation, ResourceType

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.client.cluster_admin import Holdings

CORDON_S, LOOK_AGAIN_S = 5.0, 0.05
CORDONED = "cordoned.log.dirs"


async def set_cordoned(
    client: AsyncClient, node: int, directories: str | None, reached: Callable[[Holdings], bool]
) -> str | None:
    """Sets `cordoned.log.dirs` of a node, and waits until `reached` accepts the directories that the node reports.

    None for `directories` unsets the config. Returns None, or a sentence with the reason if the config can't be
    changed. A cluster older than Kafka 4.3 does not know the config, and still places new replicas in these
    directories.
    """
    change = (CORDONED, ConfigOperation.DELETE if directories is None else ConfigOperation.SET, directories)
    cluster = ClusterAdmin(client)
    try:
        await Admin(client).alter_configs(ResourceType.BROKER, str(node), [change])
        async with asyncio.timeout(CORDON_S):
            while not reached(await cluster.holdings(node)):  # noqa: ASYNC110 - another node changes it
                await asyncio.sleep(LOOK_AGAIN_S)
    except TimeoutError:
        problem = KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, "the broker does not report the config; it may be older than Kafka 4.3"
        )
    except KafkaError as error:
        problem = error
    else:
        return None
    return f"node {node}: {CORDONED} could not be changed, new topics are placed as before: {problem}"
