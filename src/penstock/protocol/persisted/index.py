"""Finds the class of a persisted record by its type number.

Each number has one class for a metadata record, and two classes for a coordinator's record: `<Name>Key` and
`<Name>Value`. All functions here raise KeyError for a number that Kafka 4.3 doesn't have.
"""

from functools import cache
from importlib import import_module

from penstock.protocol.schema import Message

METADATA_RECORDS: dict[int, str] = {
    0: "RegisterBrokerRecord",
    1: "UnregisterBrokerRecord",
    2: "TopicRecord",
    3: "PartitionRecord",
    4: "ConfigRecord",
    5: "PartitionChangeRecord",
    7: "FenceBrokerRecord",
    8: "UnfenceBrokerRecord",
    9: "RemoveTopicRecord",
    10: "DelegationTokenRecord",
    11: "UserScramCredentialRecord",
    12: "FeatureLevelRecord",
    14: "ClientQuotaRecord",
    15: "ProducerIdsRecord",
    17: "BrokerRegistrationChangeRecord",
    18: "AccessControlEntryRecord",
    19: "RemoveAccessControlEntryRecord",
    20: "NoOpRecord",
    21: "ZkMigrationStateRecord",
    22: "RemoveUserScramCredentialRecord",
    23: "BeginTransactionRecord",
    24: "EndTransactionRecord",
    25: "AbortTransactionRecord",
    26: "RemoveDelegationTokenRecord",
    27: "RegisterControllerRecord",
    28: "ClearElrRecord",
}
REMOTE_LOG_RECORDS: dict[int, str] = {
    0: "RemoteLogSegmentMetadataRecord",
    1: "RemoteLogSegmentMetadataUpdateRecord",
    2: "RemotePartitionDeleteMetadataRecord",
    3: "RemoteLogSegmentMetadataSnapshotRecord",
}
GROUP_RECORDS: dict[int, str] = {
    0: "LegacyOffsetCommit",
    1: "OffsetCommit",
    2: "GroupMetadata",
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    8: "ConsumerGroupCurrentMemberAssignment",
    10: "ShareGroupMemberMetadata",
    11: "ShareGroupMetadata",
    12: "ShareGroupTargetAssignmentMetadata",
    13: "ShareGroupTargetAssignmentMember",
    14: "ShareGroupCurrentMemberAssignment",
    15: "ShareGroupStatePartitionMetadata",
    16: "ConsumerGroupRegularExpression",
    17: "StreamsGroupMetadata",
    19: "StreamsGroupMemberMetadata",
    20: "StreamsGroupTargetAssignmentMetadata",
    21: "StreamsGroupTargetAssignmentMember",
    22: "StreamsGroupCurrentMemberAssignment",
    23: "StreamsGroupTopology",
}
TRANSACTION_RECORDS: dict[int, str] = {
    0: "TransactionLog",
}
SHARE_RECORDS: dict[int, str] = {
    0: "ShareSnapshot",
    1: "ShareUpdate",
}


def module_name(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)[1:]


def _load(package: str, name: str, suffix: str = "") -> type[Message]:
    module = import_module(f"penstock.protocol.persisted.{package}.{module_name(name)}")
    cls: type[Message] = getattr(module, name + suffix)
    return cls


@cache
def metadata_record(number: int) -> type[Message]:
    """Returns the class of a metadata record. Raises KeyError for a number that Kafka 4.3 doesn't have."""
    return _load("metadata", METADATA_RECORDS[number])


@cache
def remote_log_record(number: int) -> type[Message]:
    return _load("remote_log", REMOTE_LOG_RECORDS[number])


@cache
def group_record(number: int) -> tuple[type[Message], type[Message]]:
    """Returns the key and value classes of a group coordinator's record. Raises KeyError for an unknown type."""
    return _load("group", GROUP_RECORDS[number], "Key"), _load("group", GROUP_RECORDS[number], "Value")


@cache
def transaction_record(number: int) -> tuple[type[Message], type[Message]]:
    return _load("transaction", TRANSACTION_RECORDS[number], "Key"), _load(
        "transaction", TRANSACTION_RECORDS[number], "Value"
    )


@cache
def share_record(number: int) -> tuple[type[Message], type[Message]]:
    return _load("share", SHARE_RECORDS[number], "Key"), _load("share", SHARE_RECORDS[number], "Value")
