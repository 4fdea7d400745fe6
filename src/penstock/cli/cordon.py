"""Sets `cordoned.log.dirs` of a node (KIP-1066, Kafka 4.3), so that its directories get no new replicas."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import ConfigOperation, ResourceType

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.client.cluster_admin import Holdings

CORDON_S, LOOK_AGAIN_S = 5.0, 0.05
CORDONED = "cordoned.log.dirs"


def set_cordoned(broker: Broker, node: int, directories: str | None, reached: Callable[[Holdings], bool]) -> None:
    """Sets `cordoned.log.dirs` of a node; None unsets it.

    Then waits until `reached` is true for the log directories that the node reports. If the config can't be changed,
    prints a note. A cluster older than Kafka 4.3 does not know this config: it still places new replicas in these
    directories.
    """
    change = (CORDONED, ConfigOperation.DELETE if directories is None else ConfigOperation.SET, directories)
    try:
        broker.client.alter_configs(ResourceType.BROKER, str(node), [change])
        deadline = time.monotonic() + CORDON_S
        while not reached(broker.run(broker.cluster.holdings(node))):
            if time.monotonic() > deadline:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    "the broker does not report the config; it may be older than Kafka 4.3",
                )
            time.sleep(LOOK_AGAIN_S)
    except KafkaError as problem:
        output.note(f"node {node}: {CORDONED} could not be changed, new topics are placed as before: {problem}")
