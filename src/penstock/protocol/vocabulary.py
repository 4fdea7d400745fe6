"""Defines the names and reserved values of Kafka's protocol that more than one package uses.

A value that only one module needs stays in that module. API keys are in `protocol.apis`, ids in `protocol.uuid`.
"""

from __future__ import annotations

from enum import IntEnum

TopicPartition = tuple[str, int]

METADATA_TOPIC = "__cluster_metadata"
CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"
#: Holds the events of all nodes. Clients may read and write it, as far as ACLs allow.
EVENT_TOPIC = "__penstock_events"
#: Topics that clients may not write to. The metadata log is not one of them: clients don't see it as a topic at all.
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})
#: Topics that metadata marks as internal: clients leave them out of lists and of subscriptions by pattern.
UNLISTED_TOPICS = INTERNAL_TOPICS | {EVENT_TOPIC}

# Timestamps of ListOffsets that ask for a position instead of a time.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

# Isolation levels of Fetch and ListOffsets.
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

# Values that stand for "none" or "unknown".
NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1
NO_BROKER_EPOCH = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
#: No node is the leader, or has this node's vote.
NO_NODE = -1
#: The partition has no leader.
NO_LEADER = -1
#: A PartitionChangeRecord leaves the leader as it is.
NO_LEADER_CHANGE = -2

# Replica ids of Fetch and ListOffsets that name no broker.
CONSUMER_REPLICA = -1
DEBUGGING_REPLICA = -2
#: The preferred read replica of a fetch that should stay with the broker it asked.
NO_REPLICA = -1

MAX_SEQUENCE = 0x7FFFFFFF
MAX_PRODUCER_EPOCH = 0x7FFF
#: From this transaction.version on, each transaction has an epoch of its own and its marker a newer one (KIP-890).
EPOCH_PER_TRANSACTION = 2
#: The timeout of a transaction that an outside coordinator ends (KIP-939).
NO_TRANSACTION_TIMEOUT_MS = 0x7FFFFFFF

# Key types of FindCoordinator.
GROUP_COORDINATOR = 0
TRANSACTION_COORDINATOR = 1
SHARE_COORDINATOR = 2


class ResourceType(IntEnum):
    """Lists the config resource types, with their numbers in the protocol and in ConfigRecord."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(IntEnum):
    """Lists the operations on a config that an IncrementalAlterConfigs request can contain."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


#: The member id with which an operator asks a Penstock node about a running share group, or changes its records.
SHARE_OPERATOR = "penstock.operator"


class Acknowledge(IntEnum):
    """Lists the types of acknowledgement that a share group member can send for a record, numbered as in
    ShareAcknowledge."""

    GAP = 0  # the offset holds no record
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4  # the member needs more time (KIP-1222)
